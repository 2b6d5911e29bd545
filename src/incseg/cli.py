"""The command line: one typed function per command; nothing else."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

import incseg
from incseg.console import Console
from incseg.errors import IncompleteError, InputError, TrainingError

RunFolder = Annotated[Path, tyro.conf.arg(metavar="RUN")]
ModelPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
OptionalStep = Annotated[int | None, tyro.conf.arg(metavar="K", help_behavior_hint="(default: the last)")]
OptionalFolder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME...", help_behavior_hint="")]


def demo(out: Path = Path("runs/demo"), seed: int = 42) -> None:
    """See incremental learning on embedded data: three methods and the upper reference, a table and a report.

    Learns four kinds of shapes, then two more, then two more, with plain fine-tuning (ft), MiB (mib), MiB with UCD
    (mib+ucd) and all data at once (joint). Takes a few minutes on two CPU cores. Run again, it only shows the result.

    Args:
        out: folder for the runs and the report.
        seed: every random choice follows from it.
    """
    console = Console()
    folders = run_demo(out, seed, console)
    _show(folders, out / "report.html", console)


def run_demo(
    out: Path, seed: int, console: Console, methods: Sequence[str] = ("ft", "mib", "mib+ucd", "joint")
) -> list[Path]:
    """Train every method from one shared step 0, skipping what is finished; returns the folders of the runs."""
    from incseg import config
    from incseg.engine import assembly

    folders: list[Path] = []
    for method in methods:
        settings = config.load_recipe("demo", {"method": method, "seed": seed})
        assembly.train(settings, out / method, first_step=folders[0] if folders else None, console=console)
        folders.append(out / method)
    return folders


def train(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")],
    method: Annotated[str | None, tyro.conf.arg(metavar="METHOD", help_behavior_hint="(default: mib+ucd)")] = None,
    out: OptionalFolder = None,
    data_root: OptionalFolder = None,
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: 42)")] = None,
    splits: OptionalFolder = None,
    first_step: OptionalFolder = None,
    settings: tyro.conf.Suppress[dict[str, Any] | None] = None,
) -> None:
    """Learn the steps of a protocol, one after another, scoring each. Killed, it goes on where it was when run again.

    Any other setting is written --SECTION.NAME VALUE, for example --optim.epochs 10, --model.encoder resnet18,
    --engine.devices 2, and a method's own as --METHOD.NAME VALUE, for example --ucd.temperature 0.1;
    'incseg list settings' shows them all.

    Examples: incseg train shapes/4-2/overlapped --method mib+ucd;
    incseg train voc/15-5/overlapped --data-root DATA/VOC2012 --method mib+ucd --engine.precision bf16-mixed

    Args:
        recipe: a protocol (voc/15-5/overlapped), the name of a recipe (demo), or a recipe file (mine.yaml).
        method: a method or a sum of methods, as in mib+ucd; 'incseg list methods' shows them.
        out: folder of the run (default: runs/RECIPE/METHOD-seedN).
        data_root: folder of the dataset.
        seed: every random choice follows from it.
        splits: folder of published lists of training images per step, instead of the protocol's rule.
        first_step: folder of another run whose step 0 to start from instead of learning it again.
        settings: the dotted settings, which main() reads.
    """
    from incseg.config import load_recipe, merge, recipe_names
    from incseg.engine import assembly as build

    data = {key: value for key, value in (("root", data_root), ("splits", splits)) if value is not None}
    named = {"method": method, "seed": seed, "data": data or None}
    config = load_recipe(
        recipe, merge(settings or {}, {key: value for key, value in named.items() if value is not None})
    )
    name = recipe if recipe in recipe_names() else config.protocol
    folder = out or Path("runs") / name.replace("/", "-") / f"{config.method}-seed{config.seed}"
    console = Console()
    build.train(config, folder, first_step, console)
    if _speaks_for_all():
        _show([folder], folder / "report.html", console)


def evaluate(
    run: tyro.conf.Positional[RunFolder],
    data_root: OptionalFolder = None,
    settings: tyro.conf.Suppress[dict[str, Any] | None] = None,
) -> None:
    """Score the saved models of a run again and print the table; nothing in its folder changes.

    It is scored as it was in training, or otherwise: --data.scoring paper, --data.future, --data.scored-void,
    --data.background and --data.score-on are taken here too.

    Args:
        run: folder of a run.
        data_root: folder of the dataset, if it has moved since.
        settings: the dotted settings, which main() reads.
    """
    from incseg.engine.rescore import rescore
    from incseg.report.summary import summary_table
    from incseg.run_folder import Run

    result = rescore(run, data_root, settings)
    Console().show(summary_table([Run(run, result, label=result["method"])]))


def report(runs: tyro.conf.Positional[tuple[RunFolder, ...]], out: Path = Path("report.html")) -> None:
    """Compare runs of one protocol: a table here, and tables, curves and pictures on one self-contained page.

    Args:
        runs: folders of runs.
        out: the page to write.
    """
    if not runs:
        raise InputError("name at least one run: incseg report RUN... --out report.html.")
    _show(list(runs), out, Console())


def reproduce(
    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")],
    rows: Names = (),
    columns: Names = (),
    seeds: int = 1,
    out: Path = Path("runs/reproduce"),
    data_root: Names = (),
    dry_run: bool = False,
    settings: tyro.conf.Suppress[dict[str, Any] | None] = None,
) -> None:
    """Repeat a table of the paper: plan its runs, do those not done yet, and show ours beside the paper's numbers.

    Settings such as --optim.epochs 1 go to all runs, so that a small machine can try a table; the result then says in
    what it is not the published recipe.

    Examples: incseg reproduce voc-main --rows mib mib+ucd --columns 15-5 --seeds 3 --data-root DATA/VOC2012;
    incseg reproduce ablation-temperature --columns voc --dry-run

    Args:
        table: a name ('incseg list tables' shows them) or the paper's number.
        rows: some of its rows (default: all).
        columns: some of its protocols, or parts of them such as 15-5 or 15-5/disjoint (default: all).
        seeds: repetitions, for a mean and a deviation.
        out: folder for the runs, which tables share, and for TABLE.csv and the plots.
        data_root: folder of the dataset; of several, voc=DIR ade20k=DIR.
        dry_run: print the commands, one per line, and run nothing.
        settings: the dotted settings, which main() reads.
    """
    from incseg.paper.plan import make_plan
    from incseg.paper.reproduce import reproduce_table

    plan = make_plan(
        table, rows=rows, columns=columns, seeds=seeds, out=out, data_roots=data_root, settings=settings or {}
    )
    if dry_run:
        print("\n".join(plan.commands()))
    else:
        reproduce_table(plan, out, Console())


def import_model(
    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")],
    classes: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    kind: Annotated[str | None, tyro.conf.arg(metavar="KIND", help_behavior_hint="")] = None,
    encoder: str = "resnet34",
    mean: Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: ImageNet's)")] = (),
    std: Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: ImageNet's)")] = (),
) -> None:
    """Take over a model trained elsewhere: any smp model, torchvision's deeplabv3 and fcn.

    The result says what the original says (that is checked), and can be extended, used and exported like any other.

    Examples: incseg import deeplab.pth --kind torchvision:deeplabv3_resnet50 --classes classes.txt --out models/mine;
    incseg import unet.pth --kind smp:unet --encoder resnet18 --classes classes.txt --out models/mine

    Args:
        checkpoint: weights by name (.pth or .safetensors), or a folder written by smp's save_pretrained.
        classes: text file with the names of its channels, one per line, background first.
        out: folder of the result.
        kind: smp:DECODER or torchvision:NAME; a folder of save_pretrained needs none.
        encoder: encoder of an smp model.
        mean: what images, scaled to 0 … 1, are normalised with.
        std: likewise.
    """
    from incseg.datasets.source import read_lines
    from incseg.deploy.import_model import read_checkpoint
    from incseg.deploy.model_card import write_card
    from incseg.files import usable_folder

    usable_folder(out)
    model = read_checkpoint(checkpoint, kind, encoder, read_lines(classes), mean or None, std or None)
    model.save(out / "model.safetensors")
    write_card(model, out)
    said = f"{out} is written and says what {checkpoint} says: {len(model.classes) - 1} classes and background."
    Console().print(said, highlight=False, soft_wrap=True)


def predict(
    model: ModelPath,
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")],
    out: Path = Path("predictions"),
    step: OptionalStep = None,
    device: str = "auto",
    batch_size: int = 8,
    tile: int = 1024,
) -> None:
    """Segment images: for each an overlay, an index PNG and a JSON with the area of every class.

    A file that cannot be read is named and left out; the exit code is 1 then.

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        images: files, folders (with what lies below) or patterns such as 'photos/**/*.jpg'.
        out: folder for the results.
        step: which step of a run.
        device: auto, cpu, cuda or mps.
        batch_size: images that go through the network together, if they are of one size.
        tile: images with a longer side are segmented in tiles of this size.
    """
    from incseg.deploy.model import open_model
    from incseg.deploy.predict import predict_files

    predict_files(open_model(model, step, device), images, out, batch_size=batch_size, tile=tile, console=Console())


def extend(
    model: ModelPath,
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    method: Annotated[str, tyro.conf.arg(metavar="METHOD")] = "mib+ucd",
    validation: OptionalFolder = None,
    step: OptionalStep = None,
    seed: int = 42,
    settings: tyro.conf.Suppress[dict[str, Any] | None] = None,
) -> None:
    """Teach a trained model new classes from images and masks of only those; no old data needed.

    Epochs, batch, crop and learning rate follow from the data's size and the model's past; any can be set, as with
    'incseg train': --optim.epochs 20. Killed, it goes on where it was when run again. The result is the folder of a
    run, for 'predict', 'export', 'serve', 'report', 'eval' and a further 'extend', with a MODEL_CARD.md.

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        data: folder with images/, masks/ (0: not a new class) and classes.txt (background, then the new classes).
        out: folder of the result.
        method: a method or a sum of methods; 'incseg list methods' shows them.
        validation: folder like DATA that labels old or new classes, to measure them; else only new ones are measured.
        step: which step of a run.
        seed: every random choice follows from it.
        settings: the dotted settings, which main() reads.
    """
    from incseg.deploy.model import open_model
    from incseg.engine.extend import before_and_after

    console = Console()
    given = open_model(model, step, "cpu")
    incseg.extend(given, data, out, method=method, validation=validation, seed=seed, settings=settings, console=console)
    if _speaks_for_all():
        table = before_and_after(out)
        console.show(replace(table, note=""))
        if table.note:  # a sentence, which would be squeezed below a narrow table
            console.print(table.note, highlight=False)
        console.print(f"model: {out}, described in {out / 'MODEL_CARD.md'}", highlight=False, soft_wrap=True)


def export(
    model: ModelPath,
    out: Path = Path("model.onnx"),
    format: Annotated[Literal["onnx", "pt2"] | None, tyro.conf.arg(help_behavior_hint="(default: by --out)")] = None,
    step: OptionalStep = None,
) -> None:
    """Write a model for other runtimes: ONNX, or PyTorch's own exported program (pt2).

    Batch and image size stay open, the class names are in the file. What was written is run on images of several sizes
    and compared with PyTorch before it counts as done.

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        out: the file to write.
        format: onnx or pt2.
        step: which step of a run.
    """
    from incseg.deploy.export import export as write
    from incseg.deploy.model import open_model

    difference = write(open_model(model, step, "cpu"), out, format)
    said = f"{out} is written and says what PyTorch says: logits differ by at most {difference:.1e}."
    Console().print(said, highlight=False, soft_wrap=True)


def serve(
    models: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    host: str = "127.0.0.1",
    port: Annotated[
        int | None, tyro.conf.arg(metavar="PORT", help_behavior_hint="(default: the first free of 7860 …)")
    ] = None,
    device: str = "auto",
) -> None:
    """Show models on a local page: drop an image, switch classes on and off, compare the steps.

    All finished steps of a run can be chosen from; several models can be compared, as in
    'incseg serve runs/mine runs/bigger'. Needs the extra: pip install 'incseg[serve]'.

    Args:
        models: folders of runs, step-K folders, or .safetensors files.
        host: address to listen at; other machines reach the page only if you give one of yours, such as 0.0.0.0.
        port: port to listen at.
        device: auto, cpu, cuda or mps.
    """
    from incseg.deploy.serve import serve as open_page

    if not models:
        raise InputError("name at least one model: incseg serve MODEL.")
    open_page(models, host, port, device)


def show_list(what: tyro.conf.Positional[Literal["methods", "protocols", "recipes", "settings", "tables"]]) -> None:
    """What there is to choose from.

    Args:
        what: methods, protocols, recipes, settings or tables.
    """
    from incseg import catalogue

    for table in catalogue.TABLES[what]():
        Console().show(table)


def bench(
    what: tyro.conf.Positional[Literal["contrastive", "step"]],
    out: Path = Path("benchmarks/results"),
    sizes: tuple[int, ...] = (),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    method: tuple[str, ...] = ("mib", "mib+ucd"),
    recipe: str = "shapes/4-2/overlapped",
    data_root: OptionalFolder = None,
) -> None:
    """Measure on this machine, side by side in one run.

    'contrastive' is forward and backward of the UCD loss: dense as in the authors' release, eager, chunked, triton; it
    writes a table and a plot with date and hardware. 'step' is a training iteration of each method beside ft.

    Args:
        what: what to measure.
        out: contrastive: folder for the table and the plot.
        sizes: contrastive: numbers of anchor pixels (default: 2048 to 49152 on a GPU, 1024 to 4096 on a CPU).
        device: where to measure.
        method: step: the methods to compare with ft.
        recipe: step: the protocol or recipe that says network, crop and batch.
        data_root: step: folder of its dataset.
    """
    if what == "contrastive":
        from incseg.bench.contrastive_loss import benchmark_contrastive

        benchmark_contrastive(out, sizes or None, device)
    else:
        from incseg.bench.iteration import benchmark_step

        Console().show(benchmark_step(method, recipe, data_root, device))


def data(
    arguments: tyro.conf.Positional[tuple[str, ...]] = (),
    settings: tyro.conf.Suppress[dict[str, Any] | None] = None,
) -> None:
    """Get a dataset, check it, see which images a step learns from: incseg data prepare, check, split.

    Args:
        arguments: one of these and its own arguments.
        settings: the dotted settings, which main() reads.
    """
    from incseg.data_cli import COMMANDS as DATA_COMMANDS

    description = (data.__doc__ or "").split("\n", 1)[0]
    _parse_and_call(DATA_COMMANDS, list(arguments) or ["--help"], settings or {}, "incseg data", description)


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "eval": evaluate,
    "report": report,
    "reproduce": reproduce,
    "extend": extend,
    "import": import_model,
    "predict": predict,
    "export": export,
    "serve": serve,
    "list": show_list,
    "bench": bench,
    "data": data,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: 0 done, 1 failed, 2 the input was wrong."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    plain: list[str] = []
    try:
        plain, settings = _split_settings(list(sys.argv[1:] if arguments is None else arguments))
        _run(plain or ["--help"], settings)
    except (InputError, TrainingError, IncompleteError) as error:
        if _speaks_for_all():
            errors.print(f"incseg: {error}", markup=False)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        goes_on = plain[:1] in (["demo"], ["train"], ["extend"], ["reproduce"])
        hint = "; run the same command again to go on from the last checkpoint" if goes_on else ""
        errors.print(f"incseg: interrupted{hint}.")
        return 1
    return 0


def _run(arguments: list[str], settings: dict[str, Any]) -> None:
    if arguments == ["--version"]:
        print(incseg.__version__)
        return
    if arguments[0] == "data":  # all that follows is for its own commands, --help too
        data(tuple(arguments[1:]), settings)
    else:
        _parse_and_call(COMMANDS, arguments, settings, "incseg", incseg.__doc__ or "")


def _parse_and_call(
    commands: dict[str, Callable[..., None]],
    arguments: list[str],
    settings: dict[str, Any],
    program: str,
    description: str,
) -> None:
    """Find the command in the arguments and call it."""
    # A command that takes settings, written --SECTION.NAME VALUE, says so by a parameter of that name.
    takers = [name for name, command in commands.items() if "settings" in inspect.signature(command).parameters]
    if settings and arguments[0] not in takers:
        named = ", ".join(f"'{program} {name}'" for name in takers)
        raise InputError(f"settings such as --{_first_name(settings)} are taken only by {named}.")
    informed = {name: partial(commands[name], settings=settings) for name in takers}
    tyro.extras.subcommand_cli_from_dict(
        {**commands, **informed},
        prog=program,
        description=description,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _split_settings(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Take every ``--SECTION.NAME VALUE`` out of the arguments; what they mean, the configuration decides."""
    plain: list[str] = []
    settings: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.partition("=")
        if not (name.startswith("--") and "." in name):
            plain.append(argument)
            continue
        if not equals:
            if not waiting or waiting[0].startswith("--"):
                raise InputError(f"{name} needs a value.")
            value = waiting.pop(0)
        section, _, key = name.removeprefix("--").partition(".")
        settings.setdefault(section, {})[key.replace("-", "_")] = _parsed(value)
    return plain, settings


def _parsed(text: str) -> Any:
    """Numbers, truth values and lists as YAML writes them; anything else is text."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _first_name(settings: dict[str, Any]) -> str:
    section, values = next(iter(settings.items()))
    return f"{section}.{next(iter(values))}"


def _speaks_for_all() -> bool:
    """Of several processes, the first prints; whoever launched them has told each its rank."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    return getattr(rank_zero_only, "rank", 0) in (0, None)


def _show(folders: Sequence[Path], page: Path, console: Console) -> None:
    """Print the table of some runs and write their page."""
    from incseg.report.page import write_report
    from incseg.report.summary import read_runs, summary_table

    console.show(summary_table(read_runs(folders)))
    write_report(folders, page)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
