"""A page of Markdown in which a person writes the text, and a command the numbers: both between marks.

<!-- incseg: paper voc/15-5/overlapped -->
what stands here is replaced
<!-- /incseg -->
"""

import re
from collections.abc import Callable, Sequence

from incseg.console import Table
from incseg.errors import InputError, closest
from incseg.paper.comparison import beside_the_paper
from incseg.report import figures
from incseg.report.leaderboard import NOTE, leaderboard
from incseg.report.paired import paired_table
from incseg.report.summary import labelled, summary_table
from incseg.results import Run

MARK = re.compile(r"<!-- incseg: (\S+)(?: (\S+))?(?: ([^\n>]+))? -->\n.*?<!-- /incseg -->", flags=re.DOTALL)
DRAWN: dict[str, Callable[[Sequence[Run]], str]] = {"steps": figures.over_the_steps, "old-new": figures.old_and_new}
WRITTEN: dict[str, Callable[[Sequence[Run], str | None], list[Table]]] = {
    "scores": lambda runs, against: [table for table in (summary_table(runs), paired_table(runs, against)) if table],
    "paper": lambda runs, _: beside_the_paper(runs),
}
BEGUN = {
    "leaderboard": "# Leaderboard\n\n<!-- incseg: leaderboard -->\n<!-- /incseg -->\n",
    "results": "# Results\n",
}


def begun_results(runs: Sequence[Run]) -> str:
    """A page with everything for every protocol, to begin with."""
    parts = [BEGUN["results"]]
    for protocol in sorted({run.protocol for run in runs}):
        parts.append(f"## {protocol}\n")
        parts += [f"<!-- incseg: {kind} {protocol} -->\n<!-- /incseg -->\n" for kind in (*WRITTEN, *DRAWN)]
    return "\n".join(parts)


def fill(text: str, runs: Sequence[Run]) -> tuple[str, dict[str, str]]:
    """The page with everything between marks made anew, and the pictures it shows by their name."""
    pictures: dict[str, str] = {}

    def replaced(found: re.Match[str]) -> str:
        mark = found[0].partition("\n")[0]
        kind, protocol, against = found.groups()
        return f"{mark}\n{_content(kind, protocol, against, runs, pictures)}\n<!-- /incseg -->"

    if not MARK.search(text):
        raise InputError(
            "the page has no place for numbers: write '<!-- incseg: leaderboard -->' and '<!-- /incseg -->' on lines "
            "of their own, or name a page that does not exist yet."
        )
    return MARK.sub(replaced, text), pictures


def _content(
    kind: str, protocol: str | None, against: str | None, runs: Sequence[Run], pictures: dict[str, str]
) -> str:
    if kind == "leaderboard":
        chosen = [run for run in runs if protocol in (None, run.protocol)]
        return "\n\n".join([*(table.to_markdown() for table in leaderboard(chosen)), NOTE])
    if kind not in {**WRITTEN, **DRAWN}:
        kinds = ["leaderboard", *WRITTEN, *DRAWN]
        raise InputError(f"there is no '{kind}' to fill in: use one of {', '.join(kinds)}.{closest(kind, kinds)}")
    chosen = labelled([run for run in runs if run.protocol == protocol])
    if not chosen:
        raise InputError(f"the page asks for '{kind} {protocol}', and none of the records is of that protocol.")
    if kind in WRITTEN:
        tables = WRITTEN[kind](chosen, against)
        return "\n\n".join(table.to_markdown() for table in tables) or "*The paper has no numbers for these runs.*"
    name = f"results-{str(protocol).replace('/', '-')}-{kind}.svg"
    pictures[name] = DRAWN[kind](labelled(figures.principal(chosen)))  # with every variant, none would be seen
    return f"![{kind}: {protocol}](images/{name})"
