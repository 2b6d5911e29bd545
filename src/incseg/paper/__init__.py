"""The numbers of the paper (Yang et al., TPAMI 2022), each written down once, in the YAML files beside this one."""

from incseg.paper.tables import EVALUATION, Block, Group, Row, Table, read_table, read_tables

__all__ = ["EVALUATION", "Block", "Group", "Row", "Table", "read_table", "read_tables"]
