"""The numbers of a report for other programs: a CSV file with every score, and a LaTeX table for a paper."""

import csv
import io
from collections.abc import Iterator, Sequence

from incseg.console import Table
from incseg.results import Run

COLUMNS = ("run", "label", "protocol", "method", "seed", "scored", "step", "score", "class", "learnt_in_step", "value")
# TeX's special characters; the signs that our tables use themselves come last.
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: rf"\{sign}" for sign in "&%$#_"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\dots{}",
}


def scores_csv(runs: Sequence[Run]) -> str:
    """One line per score, as in ``result.json``: IoU between 0 and 1, empty where there is none.

    ``score`` is ``iou`` for a class after a step, ``miou_all``, ``miou_old`` … for the means of a step, ``forgetting``
    of a class or their mean, and ``average_miou`` over the steps, without and with background; these belong to the run
    as a whole, so their step is its last. ``scored`` says how, and on how many images of the last step.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        head = [run.folder, run.label, run.protocol, run.method, run.seed, run.scored]
        writer.writerows([*head, *line] for line in _scores(run))
    return text.getvalue()


def _scores(run: Run) -> Iterator[list[object]]:
    """Step, score, class, the step in which it was learnt, and value."""
    learnt = {name: step["step"] for step in run.steps for name in step["new_classes"]}
    learnt[run.classes[0]] = run.steps[0]["step"]
    for entry in run.steps:
        for name, value in entry["iou"].items():
            yield [entry["step"], "iou", name, learnt[name], value]
        for name, value in entry["miou"].items():
            yield [entry["step"], f"miou_{name}", "", "", value]
    last, forgetting = run.steps[-1]["step"], run.result["forgetting"]
    for name, value in forgetting["classes"].items():
        yield [last, "forgetting", name, learnt[name], value]
    yield [last, "forgetting", "", "", forgetting["mean"]]
    for name in ("average_miou", "average_miou_with_background"):
        if name in run.result:  # results from before have only the first
            yield [last, name, "", "", run.result[name]]


def latex_table(table: Table) -> str:
    """A ``tabular`` in the style of booktabs; title and note are comments, for a caption."""
    comments = [f"% {' '.join(line.split())}" for line in (table.title, table.note) if line]
    rows = [_latex_row(row) for row in table.rows]
    columns = "l" + "r" * (len(table.headers) - 1)
    lines = [
        *comments,
        r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _latex_row(table.headers),
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape_latex, cells)) + r" \\"


def escape_latex(text: str) -> str:
    r"""Text as TeX prints it.

    >>> escape_latex("road_side & 50 %")
    'road\\_side \\& 50 \\%'
    """
    return "".join(LATEX.get(sign, sign) for sign in text)
