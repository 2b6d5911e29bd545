"""Training and what comes of it: ``incseg demo``, ``train``, ``eval``, ``report``, ``reproduce``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from incseg.cli.arguments import DEFAULT, Names, OptionalFile, OptionalFolder, OptionalStep, takes_settings
from incseg.cli.early import refuse_folders, refuse_missing_data_of, refuse_missing_models, refuse_run
from incseg.config import RESCORING, Layer, from_yaml, load_recipe, merge, recipe_names
from incseg.console import Console, is_rank_zero, publish
from incseg.engine.admission import check_rescoring
from incseg.errors import InputError
from incseg.files import replacing, usable_file, usable_folder
from incseg.run_folder import RunFolder

RunPath = Annotated[Path, tyro.conf.arg(metavar="RUN")]


def demo(out: Path = Path("runs/demo"), seed: int = DEFAULT.seed) -> None:
    """See incremental learning on embedded data: three methods and the upper reference, a table and a report.

    Learns four kinds of shapes, then two more, then two more, with plain fine-tuning (ft), MiB (mib), MiB with UCD
    (mib+ucd) and all data at once (joint). Takes a few minutes on two CPU cores; runs that are done are not repeated.

    Args:
        out: folder for the runs and the report.
        seed: seed of every random choice.
    """
    usable_folder(out)
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
    trust: bool = False,
    settings: Layer | None = None,
) -> None:
    """Train on the steps of a protocol, one after another, and score the model after each.

    Resumes from the last checkpoint when the same command is run again.

    Settings are written --SECTION.NAME VALUE, for example --optim.epochs 10; those of a method --METHOD.NAME VALUE, for
    example --ucd.temperature 0.1. To see them with the defaults of a recipe and the settings of a method, add --help:
    incseg train voc/15-5/overlapped --method plop+ucd --help

    Examples: incseg train shapes/4-2/overlapped --method mib+ucd;
    incseg train voc/15-5/overlapped --data-root DATA/VOC2012 --method mib+ucd --engine.devices 2

    Args:
        recipe: a protocol (voc/15-5/overlapped), the name of a recipe (demo), or a recipe file (mine.yaml).
        method: a method or a sum of methods, as in mib+ucd; 'incseg list methods' shows them.
        out: folder of the run (default: runs/RECIPE/METHOD-seedN).
        data_root: folder of the dataset.
        seed: seed of every random choice.
        splits: folder of published lists of training images per step, instead of the protocol's rule.
        first_step: folder of another run, whose step 0 is used instead of training it again.
        preset: named alternatives of the recipe, such as scripts or kd-100; 'incseg list recipes' shows them.
        trust: let a recipe file name code to run, as --recall.generator does; only for files whose author you trust.
        settings: any of the settings below, by section and name.
    """
    data = {key: value for key, value in (("root", data_root), ("splits", splits)) if value is not None}
    named = {"method": method, "seed": seed, "data": data or None, "preset": preset or None}
    config = load_recipe(
        recipe, merge(settings or {}, {key: value for key, value in named.items() if value is not None}), trust=trust
    )
    name = recipe if recipe in recipe_names() else config.protocol
    folder = out or Path("runs") / name.replace("/", "-") / "-".join([config.method, *preset, f"seed{config.seed}"])

    refuse_run(config, folder, first_step)

    from incseg.engine import assembly  # only now: PyTorch takes seconds, a refusal above should not

    console = Console()
    assembly.train(config, folder, first_step, console)
    if is_rank_zero():
        show_runs([folder], folder / "report.html", console)


@takes_settings(*RESCORING)
def evaluate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")],
    data: OptionalFolder = None,
    out: OptionalFile = None,
    step: OptionalStep = None,
    data_root: OptionalFolder = None,
    settings: Layer | None = None,
) -> None:
    """Score the saved models of a run again, or any model on a folder of images; nothing but --out is written.

    The models of a run are scored as during training, unless one of the settings below says otherwise: --data.scoring
    paper. With --data, one model is scored on the images in val.txt of a folder, or on all where it has none, its
    classes matched by name.

    Examples: incseg eval runs/mine; incseg eval models/mine.safetensors --data newdata --out scores.json

    Args:
        run: folder of a run; with --data also a step-K folder or a .safetensors file.
        data: folder with images/, masks/ and classes.txt to score one model on, instead of a run's own dataset.
        out: JSON file for all numbers.
        step: with --data, which step of a run.
        data_root: folder of the run's dataset, if it has moved since the training.
        settings: any of the settings below, by section and name.
    """
    if data is None and step is not None:
        raise InputError("--step goes with --data DIR: the models of a run are all scored, one after another.")
    if data is None and not RunFolder(run).config.is_file():
        raise InputError(
            f"{run} is not the folder of a run: it holds no {RunFolder(run).config.name}. To score a model on a folder "
            "of images, add --data DIR."
        )
    if data is not None and (data_root is not None or settings):
        raise InputError(
            "with --data, a model is scored on whole images of that folder: give no --data-root, no settings."
        )
    if data is not None:
        refuse_missing_models(run, step=step)
        refuse_folders({}, data=data)
    else:
        check_rescoring(settings or {}, from_yaml(RunFolder(run).config))
        refuse_missing_data_of(run, data_root)
    if out is not None:
        usable_file(out)

    from incseg.cli.scores import score_model, score_run

    if data is None:
        score_run(run, out, data_root, settings)
    else:
        score_model(run, step, data, out)


def report(
    runs: tyro.conf.Positional[tuple[RunPath, ...]],
    out: Path = Path("report.html"),
    csv: OptionalFile = None,
    tex: OptionalFile = None,
) -> None:
    """Compare runs of one protocol: a table here, and tables, curves and pictures on one self-contained page.

    What is not a run is named and left out, so 'incseg report runs/*' works.

    Args:
        runs: folders of runs.
        out: the page to write.
        csv: file for every score of every run, one per line.
        tex: file for the table as LaTeX.
    """
    from incseg.report.selection import choose_runs

    if not runs:
        raise InputError("name at least one run: incseg report RUN... --out report.html.")
    console = Console()
    folders = choose_runs(runs, console)
    for path in filter(None, (out, csv, tex)):
        usable_file(path)

    from incseg.report.summary import read_runs, summary_table
    from incseg.report.table_files import latex_table, scores_csv

    chosen = read_runs(folders)
    texts = {csv: scores_csv(chosen), tex: latex_table(summary_table(chosen))}
    files = {path: text for path, text in texts.items() if path is not None}
    show_runs(folders, out, console)
    for path, text in files.items():
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        console.say(f"table: {path}")


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
    from incseg.paper import read_table
    from incseg.paper.table_choice import check_seeds, choose_blocks, choose_rows

    found = read_table(table)
    check_seeds(seeds)
    choose_rows(found, rows)
    choose_blocks(found, columns)
    usable_folder(out)

    from incseg.paper.plan import make_plan  # only now: PyTorch takes seconds, a refusal above should not
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
        publish(commands=plan.commands())
    else:
        reproduce_table(plan, out, Console())


def show_runs(folders: Sequence[Path], page: Path, console: Console) -> None:
    """Print a table that compares runs, or of a single run also each class, and write their report."""
    from incseg.report.class_table import run_class_table
    from incseg.report.page import write_report
    from incseg.report.summary import conventions_table, read_runs, summary_table

    runs = read_runs(folders)
    console.show(summary_table(runs))
    console.show(conventions_table(runs))
    if len(runs) == 1:
        console.show(run_class_table(runs[0], elsewhere=str(page)))
    write_report(folders, page)
    console.say(f"report: {page}")
    publish(report=page, runs={str(run.folder): run.result for run in runs})
