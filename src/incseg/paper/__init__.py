"""The numbers of the paper (Yang et al., TPAMI 2022), each written once, in the YAML files beside this one."""

from incseg.paper.tables import Block, ClassGroup, PaperRow, PaperTable, read_table, read_tables

__all__ = ["Block", "ClassGroup", "PaperRow", "PaperTable", "read_table", "read_tables"]
