"""One self-contained page: no network, light and dark, for a reader with or without scripts.

The page is ``template/page.html``; its style and its scripts lie beside it. Whatever comes from outside, class and run
names first of all, goes through the template's escaping, and as text through the scripts.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from incseg.console import Table, percent
from incseg.files import replacing, usable_file
from incseg.images import palette
from incseg.paper.comparison import beside_the_paper
from incseg.protocol import IGNORE
from incseg.report import album as pictures
from incseg.report import charts, figures, tables
from incseg.report.album import Album
from incseg.report.figures import most_confused, sparse_shares
from incseg.report.runs import names_beside_each_other, read_runs
from incseg.run_folder import Run

SCRIPTS = ("elements.js", "theme.js", "iou.js", "confusion.js", "pictures.js")


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Compare runs of one protocol on one page."""
    runs = read_runs(folders)
    usable_file(out)
    with replacing(out) as temporary:
        temporary.write_text(render(runs), encoding="utf-8")


def render(runs: Sequence[Run]) -> str:
    """The page as text; the same runs give the same page."""
    style, script = _asset("style.css"), "\n".join(_asset(name) for name in SCRIPTS)
    album = pictures.collect(runs)
    page: str = _template().render(
        runs=runs,
        names=names_beside_each_other(runs),
        tables=summary_tables(runs),
        figures=figures,
        per_step=tables.per_step(runs),
        mistakes=[_mistakes(run.steps[-1], run.classes) for run in runs],
        environment=_environment(runs),
        configurations=[_configuration(run) for run in runs],
        album=album,
        data=_data(runs, album),
        style=style,
        script=script,
        policy=_content_policy(style, script),
    )
    return page


def summary_tables(runs: Sequence[Run]) -> list[Table]:
    """What a reader looks for first: the tables at the head of the page, in order."""
    return [tables.summary(runs), *beside_the_paper(runs)]


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("incseg.report", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"style_of": charts.style_of, "marker_of": charts.marker_of}
    return environment.get_template("page.html")


def _asset(name: str) -> str:
    return (resources.files("incseg.report") / "template" / name).read_text(encoding="utf-8")


def _content_policy(style: str, script: str) -> str:
    """Nothing may be loaded, and nothing runs but our own script, even if a name were to slip through as markup."""

    def fingerprint(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; img-src data:; style-src {fingerprint(style)}; script-src {fingerprint(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _data(runs: Sequence[Run], album: Album) -> dict[str, Any]:
    """What the scripts draw from."""
    classes, colours = runs[0].classes, palette().tolist()
    return {
        "runs": names_beside_each_other(runs),
        "classes": classes,
        "colours": colours[: len(classes)],
        "unlabelled": {"channel": IGNORE, "colour": colours[IGNORE]},
        "confusion": [[_confusion(run, step) for step in range(len(runs[0].steps))] for run in runs],
        "pictures": album.to_json(),
    }


def _confusion(run: Run, step: int) -> dict[str, Any] | None:
    entry = run.entry(step)
    return entry and {"shares": sparse_shares(entry["confusion"]), "mistakes": _mistakes(entry, run.classes)}


def _mistakes(entry: Mapping[str, Any], classes: Sequence[str]) -> list[tuple[str, str, str]]:
    mistakes = most_confused(entry["confusion"], classes)
    return [(mistake.truth, mistake.prediction, percent(mistake.share)) for mistake in mistakes]


def _configuration(run: Run) -> str:
    config = run.files.config
    return config.read_text(encoding="utf-8") if config.is_file() else f"{config.name} is missing"


def _environment(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """One row per fact, one column per run."""
    facts = dict.fromkeys(fact for run in runs for fact in run.result["environment"])
    return [(fact, [str(run.result["environment"].get(fact, "–")) for run in runs]) for fact in facts]
