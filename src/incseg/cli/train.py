"""Training and what comes of it: ``incseg train``, ``eval``, ``report``."""

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
from incseg.files import replacing, usable_file
from incseg.run_folder import RunFolder

RunPath = Annotated[Path, tyro.conf.arg(metavar="RUN")]


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
    paper. With --data, one model is scored on the images of a folder that were given for validation (by val.txt,
    train.txt or the splits of an export), or on all where none were, its classes matched by name.

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
    pictures: OptionalFile = None,
    against: Annotated[str | None, tyro.conf.arg(metavar="METHOD", help_behavior_hint="(default: the first)")] = None,
) -> None:
    """Compare runs of one protocol: a table here, and tables, curves and pictures on one self-contained page.

    What is not a run is named and left out, so 'incseg report runs/*' works.

    Args:
        runs: folders of runs.
        out: the page to write.
        csv: file for every score of every run, one per line.
        tex: file for the table as LaTeX.
        pictures: file for one figure (.png, .pdf, .svg): images, ground truth, and what each method sees at the end.
        against: the method from which the others' differences are taken, seed by seed, as it is named in the table.
    """
    from incseg.report.selection import choose_runs

    if not runs:
        raise InputError("name at least one run: incseg report RUN... --out report.html.")
    console = Console()
    folders = choose_runs(runs, console)
    for path in filter(None, (out, csv, tex, pictures)):
        usable_file(path)

    from incseg.report.summary import read_runs, summary_table
    from incseg.report.table_files import latex_table, scores_csv

    chosen = read_runs(folders)
    contents = {csv: scores_csv(chosen).encode(), tex: latex_table(summary_table(chosen)).encode()}
    if pictures is not None:
        from incseg.report.side_by_side import drawn_as

        contents[pictures] = drawn_as(pictures, chosen)
    show_runs(folders, out, console, against)
    for file, content in contents.items():
        if file is not None:
            with replacing(file) as temporary:
                temporary.write_bytes(content)
            console.say(f"{'pictures' if file == pictures else 'table'}: {file}")


def show_runs(folders: Sequence[Path], page: Path, console: Console, against: str | None = None) -> None:
    """Print a table that compares runs, or of a single run also each class, and write their report."""
    from incseg.report.class_table import run_class_table
    from incseg.report.page import score_tables, write_report
    from incseg.report.summary import read_runs

    runs = read_runs(folders)
    for table in score_tables(runs, against):
        console.show(table)
    if len(runs) == 1:
        console.show(run_class_table(runs[0], elsewhere=str(page)))
    write_report(folders, page, against)
    console.say(f"report: {page}")
    publish(report=page, runs={str(run.folder): run.result for run in runs})
