"""One self-contained HTML page: no network, light and dark, readable with or without scripts.

The page is ``template/page.html``, with its style sheet and scripts beside it. Text from outside, above all names of
classes and runs, is escaped by the template and inserted as text by the scripts.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from incseg.colours import palette
from incseg.console import Table, percent
from incseg.files import read_text, replacing, usable_file
from incseg.paper.comparison import beside_the_paper
from incseg.protocol import IGNORE
from incseg.report import charts, curves, per_class
from incseg.report.album import Album, collect_album
from incseg.report.differences import agreement_tables, differences
from incseg.report.paired import paired_table
from incseg.report.summary import (
    conventions_table,
    per_step_table,
    read_runs,
    run_names,
    summary_table,
    title_of,
)
from incseg.results import Run
from incseg.run_folder import RunFolder

SCRIPTS = ("elements.js", "theme.js", "iou.js", "confusion.js", "pictures.js")


def write_report(folders: Sequence[Path], out: Path, against: str | None = None) -> None:
    """Compare runs of one protocol on one page; ``against`` names the method from which differences are taken."""
    runs = read_runs(folders)
    usable_file(out)
    with replacing(out) as temporary:
        temporary.write_text(render(runs, against), encoding="utf-8")


def render(runs: Sequence[Run], against: str | None = None) -> str:
    """The page as text; the same runs give the same page."""
    style, script = _asset("style.css"), "\n".join(_asset(name) for name in SCRIPTS)
    album = collect_album(runs)
    page: str = _template().render(
        runs=runs,
        title=title_of(runs),
        names=run_names(runs),
        summary=summary_tables(runs, against),
        miou_panels=curves.miou_over_steps(runs),
        per_step=per_step_table(runs),
        album=album,
        iou_groups=per_class.iou_over_steps(runs),
        agreement=agreement_tables(runs),
        differences=[differences(run) for run in runs],
        forgetting=per_class.forgetting(runs),
        mistakes=[_mistakes(run.steps[-1], run.classes) for run in runs],
        loss_panels=curves.loss_terms(runs),
        environment=_environment(runs),
        configurations=[_configuration(run) for run in runs],
        data=_script_data(runs, album),
        style=style,
        script=script,
        policy=_content_policy(style, script),
    )
    return page


def summary_tables(runs: Sequence[Run], against: str | None = None) -> list[Table]:
    """The tables at the top of the page: the scores, their differences, and the paper's where it has some."""
    return [*score_tables(runs, against), *beside_the_paper(runs)]


def score_tables(runs: Sequence[Run], against: str | None = None) -> list[Table]:
    """The scores of runs, and their differences."""
    paired = paired_table(runs, against)
    compared = [paired] if paired else []
    # An extension's images label the new classes, mostly: no paper counts such a mean.
    counted = [] if any(run.is_extension for run in runs) else [conventions_table(runs)]
    return [summary_table(runs), *compared, *counted]


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
    """Forbid loading anything and running any script but ours, in case a name is ever inserted without escaping."""

    def fingerprint(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; img-src data:; style-src {fingerprint(style)}; script-src {fingerprint(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _script_data(runs: Sequence[Run], album: Album) -> dict[str, Any]:
    """What the scripts draw."""
    classes, colours = runs[0].classes, palette(runs[0].colours).tolist()
    return {
        "runs": run_names(runs),
        "classes": classes,
        "colours": colours[: len(classes)],
        "unlabelled": {"channel": IGNORE, "colour": colours[IGNORE]},
        "confusion": [[_confusion(run, step) for step in range(len(runs[0].steps))] for run in runs],
        "pictures": album.to_json(),
    }


def _confusion(run: Run, step: int) -> dict[str, Any] | None:
    entry = run.entry(step)
    if entry is None:
        return None
    return {"shares": per_class.sparse_shares(entry["confusion"]), "mistakes": _mistakes(entry, run.classes)}


def _mistakes(entry: Mapping[str, Any], classes: Sequence[str]) -> list[tuple[str, str, str]]:
    mistakes = per_class.most_confused(entry["confusion"], classes)
    return [(mistake.truth, mistake.prediction, percent(mistake.share)) for mistake in mistakes]


def _environment(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """One row per fact, one column per run."""
    facts = dict.fromkeys(fact for run in runs for fact in run.result["environment"])
    return [(fact, [str(run.result["environment"].get(fact, "–")) for run in runs]) for fact in facts]


def _configuration(run: Run) -> str:
    config = RunFolder(run.folder).config
    return read_text(config) if config.is_file() else "config.yaml is missing"
