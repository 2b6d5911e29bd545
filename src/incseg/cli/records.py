"""``incseg results``: what finished runs achieved, as records to keep and as pages to read."""

from pathlib import Path

import tyro

from incseg.cli.train import RunPath
from incseg.console import Console, publish
from incseg.errors import InputError
from incseg.files import read_text, replacing, usable_file, usable_folder


def collect(runs: tyro.conf.Positional[tuple[RunPath, ...]], out: Path = Path("benchmarks/results")) -> None:
    """Keep the results of finished runs as small files, one per run: scores, cost, command, versions, hardware.

    Args:
        runs: folders of runs, or folders with runs in them.
        out: folder for the records, by protocol; the same run gives the same file.
    """
    usable_folder(out)

    from incseg.report.selection import find_results
    from incseg.study.record import write_record

    console = Console()
    found = find_results(_named(runs), console)
    written = [write_record(run, out) for run in found if not run.is_record]
    for path in written:
        console.say(f"record: {path}")
    publish(records=written)


def leaderboard(paths: tyro.conf.Positional[tuple[RunPath, ...]], out: Path = Path("leaderboard.md")) -> None:
    """List the methods of any runs or records by protocol: scores, time, memory, seeds, hardware and commit.

    Args:
        paths: folders of runs, records, or folders with either.
        out: the page to write; if it exists, what stands between its marks is replaced.
    """
    _write_page(paths, out, whole=False)


def page(paths: tyro.conf.Positional[tuple[RunPath, ...]], out: Path = Path("results.md")) -> None:
    """Write the results of any runs or records beside the paper's numbers, with plots, into a page of Markdown.

    A page that does not exist is begun with everything there is. In one that does, what stands between
    '<!-- incseg: KIND PROTOCOL -->' and '<!-- /incseg -->' is replaced, and all other text is yours; KIND is scores,
    paper, steps, old-new or leaderboard.

    Args:
        paths: folders of runs, records, or folders with either.
        out: the page to write; its plots go to the folder images/ beside it.
    """
    _write_page(paths, out, whole=True)


def _write_page(paths: tuple[Path, ...], out: Path, *, whole: bool) -> None:
    usable_file(out)

    from incseg.report.filled_page import BEGUN, begun_results, fill
    from incseg.report.selection import find_results

    console = Console()
    runs = find_results(_named(paths), console)
    begun = begun_results(runs) if whole else BEGUN["leaderboard"]
    text, pictures = fill(read_text(out) if out.exists() else begun, runs)
    files = {out: text, **{out.parent / "images" / name: svg for name, svg in pictures.items()}}
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    console.say(f"written: {', '.join(map(str, files))}")
    publish(written=list(files))


def _named(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    if not paths:
        raise InputError("name at least one run, record, or folder with some.")
    return paths
