"""The tables of the paper's LaTeX source, read without any help from ``incseg.paper``."""

import re
from dataclasses import dataclass

SYMBOLS = {r"\dag": "†", r"\sharp": "♯", r"\checkmark": "✓"}


@dataclass(frozen=True)
class LatexTable:
    headings: list[str]
    """Of the last line of the head."""
    tasks: list[str]
    """Every A-B in the lines above it."""
    rows: list[list[str]]
    """Plain text, cell by cell."""


def read_latex(source: str) -> dict[str, LatexTable]:
    """Every table by its label."""
    found = {}
    for text in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", source, flags=re.DOTALL):
        label = re.search(r"\\label\{(.*?)\}", text)
        assert label
        head, body = text.split(r"\midrule", 1)
        *above, last = [line for line in head.split(r"\toprule")[1].split(r"\\") if line.strip()]
        tasks = [cell for line in above for cell in plain_cells(line) if re.fullmatch(r"\d+-\d+", cell)]
        lines = re.sub(r"\\(midrule|bottomrule).*?\n", "", body.split(r"\bottomrule")[0]).split(r"\\")
        rows = [plain_cells(line) for line in lines if line.strip()]
        found[label[1]] = LatexTable(plain_cells(last), tasks, rows)
    return found


def plain_cells(line: str) -> list[str]:
    return [plain(cell) for cell in line.split("&")]


def plain(cell: str) -> str:
    """The text of a cell: citations and rules go whole, of other commands all but the text they dress up."""
    cell = re.sub(r"\\cite\{.*?\}|\\cmidrule(\(.*?\))?\{.*?\}", "", cell)
    cell = re.sub(r"\\multicolumn\{.*?\}\{.*?\}|\\multirow\{.*?\}(\[.*?\])?\{.*?\}|\\textbf|\\underline", "", cell)
    for command, symbol in SYMBOLS.items():
        cell = cell.replace(command, symbol)
    return re.sub(r"[\s~$^{}]", "", cell)
