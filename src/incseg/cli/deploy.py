"""Using a trained model: ``incseg import``, ``predict``, ``export``, ``serve``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro

from incseg.cli.arguments import ModelPath, OptionalFolder, OptionalStep
from incseg.cli.early import refuse_address, refuse_device, refuse_kind, refuse_missing_models
from incseg.console import Console, publish
from incseg.deploy.asked import check_export, check_prediction, check_quantising
from incseg.errors import InputError
from incseg.files import usable_folder
from incseg.hub import is_address
from incseg.protocol import count_classes


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
        classes: text file with the names of its output channels, one per line, background first; of a model with one
            channel for yes or no (sigmoid), the background and the class.
        out: folder of the result.
        kind: smp:DECODER or torchvision:NAME; not needed for a folder of save_pretrained.
        encoder: encoder of an smp model.
        mean: mean per channel with which images, scaled to 0 … 1, are normalised.
        std: standard deviation per channel, likewise.
    """
    from incseg.datasets.source import read_lines

    names = read_lines(classes)
    if not is_address(checkpoint) and not checkpoint.exists():
        raise InputError(
            f"there is no {checkpoint}: give a file of weights (.pth or .safetensors), or a folder written by smp's "
            "save_pretrained."
        )
    usable_folder(out)
    if checkpoint.is_file():
        refuse_kind(kind, encoder)

    from incseg.deploy.import_model import read_checkpoint
    from incseg.deploy.model_card import write_card

    model = read_checkpoint(checkpoint, kind, encoder, names, mean or None, std or None)
    model.save(out / "model.safetensors")
    write_card(model, out)
    publish(model=out, classes=model.classes)
    Console().say(f"{out} is written, with {count_classes(model.classes)}; its outputs equal those of {checkpoint}.")


def push(
    model: ModelPath,
    repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME")],
    step: OptionalStep = None,
    private: bool = False,
    license: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None,
) -> None:
    """Upload a model to the Hugging Face Hub, with its statistics and a card; others use it as hf://USER/NAME.

    Log in once with 'hf auth login'. No image is uploaded; the card names the classes, the data and the scores.

    Example: incseg push runs/mine me/shapes --license apache-2.0

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        repository: where to put it; made if there is none.
        step: which step of a run.
        private: a repository made now is visible to you only.
        license: for the card, as the Hub names it.
    """
    refuse_missing_models(model, step=step)

    from incseg.deploy.model import open_model

    place = open_model(model, step, "cpu").push_to_hub(repository, private=private, license=license)
    publish(repository=repository, address=place)
    Console().say(f"pushed to {place}; use it with: incseg predict hf://{repository} IMAGES")


def predict(
    model: ModelPath,
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")],
    out: Path = Path("predictions"),
    step: OptionalStep = None,
    device: str = "auto",
    batch_size: int = 8,
    tile: int = 1024,
    longest_side: Annotated[
        int | None, tyro.conf.arg(metavar="PIXELS", help_behavior_hint="(default: as in training)")
    ] = None,
    confidence: bool = False,
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
        longest_side: reduce larger images to this before they are segmented; results have the size of the image.
        confidence: also write NAME.confidence.png, how probable the class of each pixel is: black 0, white 1.
    """
    refuse_missing_models(model, step=step)
    refuse_device(device)
    check_prediction(images, out, batch_size=batch_size, tile=tile, longest_side=longest_side)

    from incseg.deploy.model import open_model
    from incseg.deploy.predict import predict_files

    predict_files(
        open_model(model, step, device),
        images,
        out,
        batch_size=batch_size,
        tile=tile,
        longest_side=longest_side,
        confidence=confidence,
        console=Console(),
    )


def export(
    model: ModelPath,
    out: Path = Path("model.onnx"),
    format: Annotated[Literal["onnx", "pt2"] | None, tyro.conf.arg(help_behavior_hint="(default: by --out)")] = None,
    step: OptionalStep = None,
    quantise: OptionalFolder = None,
) -> None:
    """Write a model for other runtimes: ONNX, or PyTorch's own exported program (pt2).

    The file accepts any batch and image size and contains the class names. Before the command ends, the file is run on
    images of several sizes and its outputs are compared with PyTorch's.

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        out: the file to write.
        format: onnx or pt2.
        step: which step of a run.
        quantise: folder of images like those the model is to be used on: writes an ONNX file that computes in 8 bits,
            with ranges measured on these images, and says what that costs: mIoU if the folder has masks (images/,
            masks/, classes.txt), else how many pixels get the same class.
    """
    refuse_missing_models(model, step=step)
    check_export(out, format) if quantise is None else check_quantising(out, quantise)

    from incseg.deploy.export import export as write
    from incseg.deploy.model import open_model

    if quantise is not None:
        from incseg.deploy.quantise import quantise as write_quantised

        found = write_quantised(open_model(model, step, "cpu"), out, quantise, Console())
        publish(file=out, **asdict(found))
        Console().say(f"{out} is written, in 8 bits: {found.sentence}")
        return
    difference = write(open_model(model, step, "cpu"), out, format)
    publish(file=out, largest_difference=difference)
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
    if not models:
        raise InputError("name at least one model: incseg serve MODEL.")
    refuse_missing_models(*models)
    refuse_device(device)
    refuse_address(host, port)

    from incseg.deploy.serve import serve as open_page

    open_page(models, host, port, device)
