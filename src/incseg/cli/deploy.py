"""Using a trained model: ``incseg extend``, ``import``, ``predict``, ``export``, ``serve``."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

import incseg
from incseg.cli.arguments import DEFAULT, OptionalFolder, takes_settings
from incseg.config import Layer
from incseg.console import Console, is_rank_zero
from incseg.errors import InputError

OptionalStep = Annotated[int | None, tyro.conf.arg(metavar="K", help_behavior_hint="(default: the last)")]
ModelPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


@takes_settings("data.crop_size", "data.workers", "data.void", "optim.", "engine.")
def extend(
    model: ModelPath,
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    method: Annotated[str, tyro.conf.arg(metavar="METHOD")] = DEFAULT.method,
    validation: OptionalFolder = None,
    step: OptionalStep = None,
    seed: int = DEFAULT.seed,
    settings: Layer | None = None,
) -> None:
    """Teach a trained model new classes from images and masks of only those; no old data needed.

    Epochs, batch size, crop size and learning rate are chosen from the amount of data and from how the model was
    trained; each can be set as with 'incseg train': --optim.epochs 20. Resumes from the last checkpoint when the same
    command is run again. The result is the folder of a run with a MODEL_CARD.md: it can be given to 'predict',
    'export', 'serve', 'report', 'eval' and a further 'extend'.

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        data: folder with images/, masks/ (0: not a new class) and classes.txt (background, then the new classes).
        out: folder of the result.
        method: a method or a sum of methods; 'incseg list methods' shows them.
        validation: folder like --data, with labels of old or new classes to measure the model on (default: only the
            new classes are measured).
        step: which step of a run.
        seed: every random choice follows from it.
        settings: any of the settings below, by section and name.
    """
    from incseg.engine.extend import before_and_after

    console = Console()
    given = incseg.load(model, step, "cpu")
    incseg.extend(given, data, out, method=method, validation=validation, seed=seed, settings=settings, console=console)
    if is_rank_zero():
        console.show(before_and_after(out))
        console.say(f"model: {out}, described in {out / 'MODEL_CARD.md'}")


def import_model(
    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")],
    classes: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    kind: Annotated[str | None, tyro.conf.arg(metavar="KIND", help_behavior_hint="")] = None,
    encoder: str = "resnet34",
    mean: Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: ImageNet's)")] = (),
    std: Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: ImageNet's)")] = (),
) -> None:
    """Import a model trained elsewhere: any smp model, torchvision's deeplabv3 and fcn.

    The imported model is checked to give the same outputs as the original, and can then be extended, used and exported
    like any other.

    Examples: incseg import deeplab.pth --kind torchvision:deeplabv3_resnet50 --classes classes.txt --out models/mine;
    incseg import unet.pth --kind smp:unet --encoder resnet18 --classes classes.txt --out models/mine

    Args:
        checkpoint: a state dict (.pth or .safetensors), or a folder written by smp's save_pretrained.
        classes: text file with the names of its output channels, one per line, background first.
        out: folder of the result.
        kind: smp:DECODER or torchvision:NAME; not needed for a folder of save_pretrained.
        encoder: encoder of an smp model.
        mean: mean per channel with which images, scaled to 0 … 1, are normalised.
        std: standard deviation per channel, likewise.
    """
    from incseg.datasets.source import read_lines
    from incseg.deploy.import_model import read_checkpoint
    from incseg.deploy.model_card import write_card
    from incseg.files import usable_folder

    usable_folder(out)
    model = read_checkpoint(checkpoint, kind, encoder, read_lines(classes), mean or None, std or None)
    model.save(out / "model.safetensors")
    write_card(model, out)
    known = f"{len(model.classes) - 1} classes and background"
    Console().say(f"{out} is written, with {known}; its outputs equal those of {checkpoint}.")


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

    A file that cannot be read is named and skipped; the exit code is then 1.

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        images: files, folders (with their subfolders) or patterns such as 'photos/**/*.jpg'.
        out: folder for the results.
        step: which step of a run.
        device: auto, cpu, cuda or mps.
        batch_size: images of the same size that go through the network together.
        tile: images with a longer side are segmented in tiles of this size.
    """
    from incseg.deploy.model import open_model
    from incseg.deploy.predict import predict_files

    predict_files(open_model(model, step, device), images, out, batch_size=batch_size, tile=tile, console=Console())


def export(
    model: ModelPath,
    out: Path = Path("model.onnx"),
    format: Annotated[Literal["onnx", "pt2"] | None, tyro.conf.arg(help_behavior_hint="(default: by --out)")] = None,
    step: OptionalStep = None,
) -> None:
    """Write a model for other runtimes: ONNX, or PyTorch's own exported program (pt2).

    The file accepts any batch and image size and contains the class names. Before the command ends, the file is run on
    images of several sizes and its outputs are compared with PyTorch's.

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        out: the file to write.
        format: onnx or pt2.
        step: which step of a run.
    """
    from incseg.deploy.export import export as write
    from incseg.deploy.model import open_model

    difference = write(open_model(model, step, "cpu"), out, format)
    Console().say(f"{out} is written; its logits differ from PyTorch's by at most {difference:.1e}.")


def serve(
    models: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    host: str = "127.0.0.1",
    port: Annotated[
        int | None, tyro.conf.arg(metavar="PORT", help_behavior_hint="(default: the first free of 7860 …)")
    ] = None,
    device: str = "auto",
) -> None:
    """Show models on a local page: drop an image, switch classes on and off, compare the steps.

    The page offers every finished step of a run, and compares several models:
    'incseg serve runs/mine runs/bigger'. Needs an extra package: pip install 'incseg[serve]'.

    Args:
        models: folders of runs, step-K folders, or .safetensors files.
        host: address to listen on; with 127.0.0.1 only this machine can open the page, with 0.0.0.0 others can too.
        port: port to listen on.
        device: auto, cpu, cuda or mps.
    """
    from incseg.deploy.serve import serve as open_page

    if not models:
        raise InputError("name at least one model: incseg serve MODEL.")
    open_page(models, host, port, device)
