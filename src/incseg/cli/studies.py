"""Many runs at once: ``incseg demo``, ``compare`` and ``reproduce``."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from incseg.cli.arguments import DEFAULT, Names, read_arguments, takes_settings
from incseg.cli.early import refuse_methods, refuse_missing_data
from incseg.cli.train import show_runs
from incseg.config import Layer, load_recipe
from incseg.console import Console, publish
from incseg.engine.cores import share_of_cores, usable_cores
from incseg.errors import InputError
from incseg.files import usable_folder
from incseg.study import children
from incseg.study.repetitions import seeds_from

DEMO = ("ft", "mib", "mib+ucd", "joint")

if TYPE_CHECKING:
    from incseg.study.comparison_plan import ComparisonPlan, Entrant
    from incseg.study.planned_run import PlannedRun


def demo(out: Path = Path("runs"), seed: int = DEFAULT.seed) -> None:
    """See incremental learning on embedded data: three methods and the upper reference, a table and a report.

    Learns four kinds of shapes, then two more, then two more, with plain fine-tuning (ft), MiB (mib), MiB with UCD
    (mib+ucd) and all data at once (joint). Two to three minutes on two CPU cores; what is done is not repeated.

    Args:
        out: folder in which demo/ is made, for the runs and the report.
        seed: seed of every random choice.
    """
    usable_folder(out)
    jobs = min(len(DEMO), usable_cores())
    children.import_ahead(share_of_cores(jobs))

    from incseg.study.comparison_plan import Entrant, plan_comparison

    entrants = [Entrant(method, written=method) for method in DEMO]
    plan = plan_comparison(["demo"], entrants, seeds=[seed], out=out)
    _run(replace(plan, against=None), Console(), jobs)


@takes_settings("")
def compare(
    recipes: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE...")],
    methods: Names = (),
    against: Annotated[str | None, tyro.conf.arg(metavar="METHOD", help_behavior_hint="(default: the first)")] = None,
    seeds: int = 3,
    out: Path = Path("runs/compare"),
    data_root: Names = (),
    splits: Names = (),
    preset: Names = (),
    trust: bool = False,
    jobs: int = 1,
    dry_run: bool = False,
    settings: Layer | None = None,
) -> None:
    """Compare methods under one or several protocols: train what is missing; tables, a significance test and a page.

    Step 0 is trained once per seed for all methods whose step 0 is alike. Run again, it keeps what is done and resumes
    the rest from the last checkpoint; a run that fails does not stop the others, and is named at the end.

    Settings such as --optim.epochs 10 apply to all runs, those of a method to the runs of that method. What only one
    of them is to have is written with it, in quotes: --methods mib "mib+ucd --ucd.temperature 0.1 --optim.epochs 20".

    Examples: incseg compare shapes/4-2/overlapped --methods ft mib mib+ucd --seeds 2;
    incseg compare voc/15-1/overlapped voc/15-5/overlapped --methods mib mib+ucd analytic --data-root DATA/VOC2012
    --against mib --dry-run

    Args:
        recipes: protocols (voc/15-5/overlapped), names of recipes (demo), or recipe files (mine.yaml).
        methods: the methods to compare, each with settings of its own if it is written in quotes.
        against: the method from which the others' differences are taken, written as in --methods.
        seeds: repetitions with different seeds; a test of significance needs two, and says little below five.
        out: folder for the runs, by recipe, with a report.html beside them.
        data_root: folder of the dataset; for several datasets voc=DIR ade20k=DIR.
        splits: folders of published lists of images; for several recipes 100-50=DIR 100-10=DIR.
        preset: named alternatives of the recipes, for all runs.
        trust: let recipe files name code to run; only for files whose author you trust.
        jobs: how many runs at once; what each says is then in a .log beside its folder.
        dry_run: print the commands, one per line, and run nothing; lines that begin with # say what waits for what.
        settings: any of the settings below, by section and name.
    """
    if not recipes:
        raise InputError("name at least one recipe: incseg compare voc/15-5/overlapped --methods mib mib+ucd.")
    positive(jobs)
    if not methods:
        raise InputError("name the methods to compare: --methods mib mib+ucd ('incseg list methods' shows them).")
    for text in methods:
        _words(text)  # refuses what cannot be read
    for recipe in recipes:
        load_recipe(recipe, trust=trust)  # refused before PyTorch is imported, if there is none

    def entrants() -> "list[Entrant]":
        return [entrant(text, preset) for text in methods]

    refuse_methods(recipes, entrants, settings or {}, trust=trust)
    repetitions = seeds_from(seeds)
    if not dry_run:
        children.import_ahead(share_of_cores(jobs))

    from incseg.study.comparison_plan import plan_comparison

    plan = plan_comparison(
        recipes,
        entrants(),
        against=against,
        seeds=repetitions,
        out=out,
        data_root=data_root,
        splits=splits,
        trust=trust,
        settings=settings or {},
    )
    if dry_run:
        print("\n".join(plan.schedule.commands()))
        publish(**_described(plan))
    else:
        _run(plan, Console(), jobs)


def _words(text: str, option: str = "--methods") -> list[str]:
    """A method and what follows its name."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise InputError(f"{option} cannot be '{text}': a quotation mark is missing.") from None
    if not words:
        raise InputError(f"{option} cannot be '{text}': each begins with the name of a method, as in mib+ucd.")
    return words


def entrant(text: str, presets: tuple[str, ...] = (), option: str = "--methods") -> "Entrant":
    """A method and what is written after its name, which is read as ``incseg train`` reads it."""
    from incseg.study.comparison_plan import Entrant

    method, *rest = _words(text, option)
    own = read_arguments(_own_settings, rest, f"{option} '{text}'")
    return Entrant(method, own["settings"], (*presets, *own["preset"]), text)


@takes_settings("")
def _own_settings(preset: Names = (), settings: Layer | None = None) -> None:
    """What may follow the name of a method.

    Args:
        preset: named alternatives of the recipe.
        settings: any of the settings, by section and name.
    """


def _run(plan: "ComparisonPlan", console: Console, jobs: int) -> None:
    """Train what is left, show what is done, and say at the end what failed."""
    from incseg.results import Run
    from incseg.study.execution import execute, refuse_failures

    for runs in plan.cells.values():
        refuse_missing_data(next(iter(runs.values()))[0].config)
    failed = execute(plan.schedule, console, jobs)
    shown = {recipe: folders for recipe in plan.cells if (folders := _show(plan, recipe, console))}
    results = {str(folder): Run.read(folder).result for folders in shown.values() for folder in folders}
    publish(reports={recipe: plan.page(recipe) for recipe in shown}, runs=results, failed=[r.folder for r in failed])
    refuse_failures(failed, plan.schedule)


def _show(plan: "ComparisonPlan", recipe: str, console: Console) -> list[Path]:
    """Compare the finished runs of a recipe; returns their folders."""
    from incseg.report.summary import read_runs

    done = {written: [run.folder for run in runs if run.is_done] for written, runs in plan.cells[recipe].items()}
    folders = [folder for some in done.values() for folder in some]
    if folders:
        reference = done[plan.against] if plan.against and len(done) > 1 else []
        against = next((run.label for run in read_runs(folders) if run.folder in reference), None)
        show_runs(folders, plan.page(recipe), console, against)
    return folders


def _described(plan: "ComparisonPlan") -> dict[str, object]:
    """For a scheduler: the commands, and of each run the folder whose step 0 must be there before it begins."""

    def of(run: "PlannedRun", provider: "PlannedRun | None") -> dict[str, object]:
        return {
            "folder": run.folder,
            "command": ["incseg", *run.arguments(provider.folder if provider else None)],
            "after": provider.folder if provider else None,
        }

    return {"commands": plan.schedule.commands(), "runs": [of(*pair) for pair in plan.schedule.pending]}


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
    jobs: int = 1,
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
        jobs: how many runs at once; what each says is then in a .log beside its folder.
        dry_run: print the commands, one per line, and run nothing.
        settings: any of the settings below, by section and name.
    """
    from incseg.paper import read_table
    from incseg.paper.table_choice import choose_blocks, choose_rows

    found = read_table(table)
    seeds_from(seeds)
    choose_rows(found, rows)
    choose_blocks(found, columns)
    positive(jobs)
    usable_folder(out)
    if not dry_run:
        children.import_ahead(share_of_cores(jobs))

    from incseg.paper.plan import make_plan  # only now: PyTorch takes seconds, a refusal above should not
    from incseg.paper.reproduce import reproduce_table

    plan = make_plan(
        table,
        rows=rows,
        columns=columns,
        seeds=seeds,
        out=out,
        data_root=data_root,
        splits=splits,
        orders=orders,
        settings=settings or {},
    )
    if dry_run:
        print("\n".join(plan.commands()))
        publish(commands=plan.commands())
    else:
        reproduce_table(plan, out, Console(), jobs)


def positive(jobs: int) -> int:
    """Refuse a number of runs at once that is none."""
    if jobs < 1:
        raise InputError(f"--jobs {jobs} is not a number of runs at once: give 1 or more.")
    return jobs
