"""One self-contained page: no network, no scripts, light and dark."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from incseg.errors import InputError
from incseg.files import replacing, usable_folder
from incseg.report import figures, tables
from incseg.report.comparison import beside_the_paper
from incseg.report.runs import Run, read_runs

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6575; --line: #d9dee6; --paper: #ffffff; --card: #f6f8fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf3; --soft: #a3adbd; --line: #343c49; --paper: #14181f; --card: #1c222c; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 64rem; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
.note, .lead { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--soft); }
figure { margin: 0; padding: .75rem; background: #ffffff; border: 1px solid var(--line); border-radius: .5rem; }
figure img { display: block; max-width: 100%; margin: 0 auto; }
details { background: var(--card); border-radius: .5rem; padding: .6rem .9rem; margin: .5rem 0; }
summary { cursor: pointer; font-weight: 600; } pre { overflow-x: auto; font-size: .8rem; }
"""


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Compare runs of one protocol on one page."""
    runs = read_runs(folders)
    if out.is_dir():
        raise InputError(f"{out} is a folder; name the page to write, for example {out / 'report.html'}.")
    usable_folder(out.parent)
    with replacing(out) as temporary:
        temporary.write_text(render(runs), encoding="utf-8")


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    sections = [
        tables.summary(runs).to_html(),
        *(table.to_html() for table in beside_the_paper(runs)),
        _figure("mIoU over the steps", figures.miou_over_steps(runs)),
        tables.per_step(runs).to_html(),
        tables.per_class(runs).to_html(),
        *_pictures(runs),
        "<h2>Configuration</h2>",
        *(_configuration(run) for run in runs),
    ]
    title = f"incseg: {runs[0].protocol}"
    lead = "Methods: " + ", ".join(dict.fromkeys(run.label for run in runs)) + f". {_environment(runs[0])}"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p class='lead'>{html.escape(lead)}</p>"
        + "\n".join(sections)
        + "</body></html>\n"
    )


def _pictures(runs: Sequence[Run]) -> list[str]:
    found = []
    for step in range(len(runs[0].steps)):
        figure = figures.predictions(runs, step)
        if figure is not None:
            names = ", ".join(runs[0].steps[step]["new_classes"])
            found.append(_figure(f"Predictions after step {step} ({names})", figure))
    return found


def _figure(title: str, figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = html.escape(title, quote=True)
    return f"<h2>{html.escape(title)}</h2><figure><img alt='{alt}' src='data:image/png;base64,{data}'></figure>"


def _configuration(run: Run) -> str:
    config = run.folder / "config.yaml"
    text = config.read_text(encoding="utf-8") if config.is_file() else "config.yaml is missing"
    name = html.escape(f"{run.label}, seed {run.seed}")
    return f"<details><summary>{name}</summary><pre>{html.escape(text)}</pre></details>"


def _environment(run: Run) -> str:
    return ", ".join(f"{key} {value}" for key, value in run.result["environment"].items()) + "."
