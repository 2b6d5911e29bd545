"""Training and what comes of it: ``incseg demo``, ``train``, ``eval``, ``report``, ``reproduce``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from incseg.cli.arguments import DEFAULT, Names, OptionalFolder, takes_settings
from incseg.config import SCORING, Layer, load_recipe, merge, recipe_names
from incseg.console import Console, is_rank_zero
from incseg.errors import InputError

RunPath = Annotated[Path, tyro.conf.arg(metavar="RUN")]


def demo(out: Path = Path("runs/demo"), seed: int = DEFAULT.seed) -> None:
    """See incremental learning on embedded data: three methods and the upper reference, a table and a report.

    Learns four kinds of shapes, then two more, then two more, with plain fine-tuning (ft), MiB (mib), MiB with UCD
    (mib+ucd) and all data at once (joint). Takes a few minutes on two CPU cores; runs that are done are not repeated.

    Args:
        out: folder for the runs and the report.
        seed: seed of every random choice.
    """
    console = Console()
    folders = run_demo(out, seed, console)
    show_runs(folders, out / "report.html", console)


def run_demo(
    out: Path, seed: int, console: Console, methods: Sequence[str] = ("ft", "mib", "mib+ucd", "joint")
) -> list[Path]:
    """Train every method from one shared step 0, skipping what is finished; returns the folders of the runs."""
    from incseg.engine import assembly

    folders: list[Path] = []
    for method in methods:
        config = load_recipe("demo", {"method": method, "seed": seed})
        assembly.train(config, out / method, first_step=folders[0] if folders else None, console=console)
        folders.append(out / method)
    return folders


@takes_settings("")
def train(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")],
    method: Annotated[
        str | None, tyro.conf.arg(metavar="METHOD", help_behavior_hint=f"(default: {DEFAULT.method})")
    ] = None,
    out: OptionalFolder = None,
    data_root: OptionalFolder = None,
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint=f"(default: {DEFAULT.seed})")] = None,
    splits: OptionalFolder = None,
    first_step: OptionalFolder = None,
    preset: Names = (),
    settings: Layer | None = None,
) -> None:
    """Train on the steps of a protocol, one after another, and score the model after each.

    Resumes from the last checkpoint when the same command is run again.

    Settings are written --SECTION.NAME VALUE, for example --optim.epochs 10; those of a method --METHOD.NAME VALUE, for
    example --ucd.temperature 0.1. To see them with the defaults of a recipe and the settings of a method, add --help:
    incseg train voc/15-5/overlapped --method plop+ucd --help

    Examples: incseg train shapes/4-2/overlapped --method mib+ucd;
    incseg train voc/15-5/overlapped --data-root DATA/VOC2012 --method mib+ucd --engine.precision bf16-mixed

    Args:
        recipe: a protocol (voc/15-5/overlapped), the name of a recipe (demo), or a recipe file (mine.yaml).
        method: a method or a sum of methods, as in mib+ucd; 'incseg list methods' shows them.
        out: folder of the run (default: runs/RECIPE/METHOD-seedN).
        data_root: folder of the dataset.
        seed: seed of every random choice.
        splits: folder of published lists of training images per step, instead of the protocol's rule.
        first_step: folder of another run, whose step 0 is used instead of training it again.
        preset: named alternatives of the recipe, such as scripts or kd-100; 'incseg list recipes' shows them.
        settings: any of the settings below, by section and name.
    """
    data = {key: value for key, value in (("root", data_root), ("splits", splits)) if value is not None}
    named = {"method": method, "seed": seed, "data": data or None, "preset": preset or None}
    config = load_recipe(
        recipe, merge(settings or {}, {key: value for key, value in named.items() if value is not None})
    )
    name = recipe if recipe in recipe_names() else config.protocol
    folder = out or Path("runs") / name.replace("/", "-") / "-".join([config.method, *preset, f"seed{config.seed}"])

    from incseg.engine import assembly  # only now: PyTorch takes seconds, a refusal above should not

    console = Console()
    assembly.train(config, folder, first_step, console)
    if is_rank_zero():
        show_runs([folder], folder / "report.html", console)


@takes_settings(*SCORING)
def evaluate(
    run: tyro.conf.Positional[RunPath],
    data_root: OptionalFolder = None,
    settings: Layer | None = None,
) -> None:
    """Score the saved models of a run again and print the table; nothing in its folder changes.

    Models are scored as during training, unless one of the settings below says otherwise: --data.scoring paper

    Args:
        run: folder of a run.
        data_root: folder of the dataset, if it has moved since the training.
        settings: any of the settings below, by section and name.
    """
    from incseg.engine.rescore import rescore
    from incseg.report.summary import summary_table
    from incseg.run_folder import Run

    result = rescore(run, data_root, settings)
    Console().show(summary_table([Run(run, result, label=result["method"])]))


def report(runs: tyro.conf.Positional[tuple[RunPath, ...]], out: Path = Path("report.html")) -> None:
    """Compare runs of one protocol: a table here, and tables, curves and pictures on one self-contained page.

    Args:
        runs: folders of runs.
        out: the page to write.
    """
    if not runs:
        raise InputError("name at least one run: incseg report RUN... --out report.html.")
    show_runs(list(runs), out, Console())


@takes_settings("")
def reproduce(
    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")],
    rows: Names = (),
    columns: Names = (),
    seeds: int = 1,
    out: Path = Path("runs/reproduce"),
    data_root: Names = (),
    splits: Names = (),
    orders: Names = ("a",),
    dry_run: bool = False,
    settings: Layer | None = None,
) -> None:
    """Reproduce a table of the paper: run what is missing, and show our numbers beside the paper's.

    Settings such as --optim.epochs 1 apply to all runs, so that a small machine can try a table; the result then says
    where it differs from the published recipe. Run again, it resumes from the last checkpoint.

    Examples: incseg reproduce voc-main --rows mib mib+ucd --columns 15-5 --seeds 3 --data-root DATA/VOC2012;
    incseg reproduce ablation-temperature --columns voc --dry-run

    Args:
        table: a name ('incseg list tables' shows them) or the paper's number.
        rows: some of its rows (default: all).
        columns: some of its protocols, or parts of their names such as 15-5 or 15-5/disjoint (default: all).
        seeds: repetitions with different seeds, for a mean and a standard deviation.
        out: folder for the runs, which all tables share, and for TABLE.csv and the plots.
        data_root: folder of the dataset; for several datasets voc=DIR ade20k=DIR.
        splits: folders of published lists of images, by column: 100-50=DIR 100-10=DIR; without, the protocol's rule.
        orders: class orders to run and to average over; MiB averages the orders a and b of ade20k.
        dry_run: print the commands, one per line, and run nothing.
        settings: any of the settings below, by section and name.
    """
    from incseg.paper.plan import make_plan
    from incseg.paper.reproduce import reproduce_table

    plan = make_plan(
        table,
        rows=rows,
        columns=columns,
        seeds=seeds,
        out=out,
        data_roots=data_root,
        splits=splits,
        orders=orders,
        settings=settings or {},
    )
    if dry_run:
        print("\n".join(plan.commands()))
    else:
        reproduce_table(plan, out, Console())


def show_runs(folders: Sequence[Path], page: Path, console: Console) -> None:
    """Print a table that compares runs, and write their report."""
    from incseg.report.page import write_report
    from incseg.report.summary import conventions_table, read_runs, summary_table

    runs = read_runs(folders)
    console.show(summary_table(runs))
    console.show(conventions_table(runs))
    write_report(folders, page)
    console.say(f"report: {page}")
