"""What a trained model knows: ``incseg extend``, ``memory``, ``statistics``, ``merge``, ``forget``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

import incseg
from incseg.cli.arguments import DEFAULT, ModelPath, OptionalFolder, OptionalStep, takes_settings
from incseg.cli.early import (
    refuse_device,
    refuse_extension,
    refuse_folders,
    refuse_gathered,
    refuse_missing_data_of,
    refuse_missing_models,
)
from incseg.config import Layer
from incseg.console import Console, Table, is_rank_zero, percent, publish
from incseg.datasets.class_names import channels_by_name, known_class, new_classes
from incseg.engine.admission import check_extension_settings, check_memory, check_memory_run, check_weights_file
from incseg.errors import IncompleteError, InputError
from incseg.files import usable_folder
from incseg.results import Run
from incseg.run_folder import run_with_steps

if TYPE_CHECKING:  # PyTorch is loaded where it is needed
    from incseg.deploy.model import Model


@takes_settings(
    "data.crop_size",
    "data.longest_side",
    "data.workers",
    "data.cache",
    "data.void",
    "data.sampling",
    "data.on_error",
    "data.changed",
    "data.complete",
    "optim.",
    "engine.",
)
def extend(
    model: ModelPath,
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    method: Annotated[
        str | None, tyro.conf.arg(metavar="METHOD", help_behavior_hint="(default: by what the model carries)")
    ] = None,
    validation: OptionalFolder = None,
    replay: OptionalFolder = None,
    memory: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: all)")] = None,
    min_agreement: Annotated[float | None, tyro.conf.arg(metavar="PERCENT", help_behavior_hint="")] = None,
    step: OptionalStep = None,
    seed: int = DEFAULT.seed,
    settings: Layer | None = None,
) -> None:
    """Teach a trained model new classes from images and masks of only those; no old data needed.

    A model that carries statistics of its training images, as 'incseg train' and 'incseg statistics' leave them, learns
    in closed form: one pass over the new images, in seconds. Any other is trained: epochs, batch size, crop size and
    learning rate are chosen from the amount of data and from how the model was trained; each can be set as with
    'incseg train': --optim.epochs 20. Resumes from the last checkpoint when the same command is run again. The result
    is the folder of a run with a MODEL_CARD.md: it can be given to 'predict', 'export', 'serve', 'report', 'eval' and a
    further 'extend'.

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        data: folder with images/, masks/ (0: none of these classes) and classes.txt (background, then the new classes;
            known ones may be among them).
        out: folder of the result.
        method: a method or a sum of methods; 'incseg list methods' shows them. By default analytic, in closed form, if
            the model carries statistics; if not, mib+ucd, trained (ucd if the model's head is sigmoid,
            ssul if it is branched).
        validation: folder like --data, with labels of old or new classes to measure the model on (default: only the
            new classes are measured).
        replay: folder like --data with old images and their labels, if some are left: half of every batch is taken
            from it. In closed form only a model without statistics needs them.
        memory: use at most so many of these, balanced by class.
        min_agreement: fail with exit code 1, though the model is kept, if it agrees with the model before on the old
            classes by less than this, in the mean; for pipelines.
        step: which step of a run.
        seed: every random choice follows from it.
        settings: any of the settings below, by section and name.
    """
    if min_agreement is not None and not 0 <= min_agreement <= 100:
        raise InputError(f"--min-agreement {min_agreement:g} is no percentage: give a number from 0 to 100.")
    (known,) = refuse_missing_models(model, step=step)
    check_memory(memory, replay)
    check_extension_settings(settings or {})
    usable_folder(out)
    new_classes(known, refuse_folders(settings or {}, data=data, validation=validation, replay=replay)["data"])
    if method is not None:
        refuse_extension(model, step, method, settings or {}, has_old_images=replay is not None)

    from incseg.engine.extend import before_and_after
    from incseg.report.differences import agreement_table

    console = Console()
    given = incseg.load(model, step, "cpu")
    incseg.extend(
        given,
        data,
        out,
        method=method,
        validation=validation,
        replay=replay,
        memory=memory,
        seed=seed,
        settings=settings,
        console=console,
    )
    if is_rank_zero():
        console.show(before_and_after(out))
        result = Run.read(out)
        if (agreement := agreement_table(result)) is not None:
            console.show(agreement)
        console.say(f"model: {out}, described in {out / 'MODEL_CARD.md'}")
        publish(model=out, run=result.result)
        _require_agreement(result, min_agreement)


def _require_agreement(run: Run, least: float | None) -> None:
    """Fail for a pipeline where the old classes have changed too much, or where that cannot be told."""
    reached = run.agreement["mean"] if run.agreement is not None else None
    if least is None or (reached is not None and 100 * reached >= least):
        return
    if reached is None:
        raise IncompleteError(
            f"--min-agreement {least:g}: the model before sees hardly any old class on these images, so agreement "
            "cannot be told; measure with --validation DIR instead."
        )
    raise IncompleteError(
        f"the extended model agrees with the model before by {percent(reached)} % on the old classes, below "
        f"--min-agreement {least:g}; it is kept in {run.folder}."
    )


def memory(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    keep: int,
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: RUN/memory)")] = None,
    data_root: OptionalFolder = None,
) -> None:
    """Choose a few training images of a run to keep, so that every class has its share; 'extend --replay' takes them.

    Writes images/, masks/ and classes.txt, with the labels that the run saw. The same images are chosen every time: the
    class with the fewest so far takes the next one, the rarest of equals first.

    Example: incseg memory runs/mine --keep 100 --out kept

    Args:
        run: folder of a run.
        keep: how many images.
        out: folder to write, which must not exist yet or be empty.
        data_root: folder of the run's dataset, if it has moved since the training.
    """
    check_memory_run(run, keep, out or run / "memory")
    refuse_missing_data_of(run, data_root)

    from incseg.engine.memory import keep_images

    console = Console()
    kept = keep_images(run, keep, out or run / "memory", data_root, console)
    rows = [[name, str(count)] for name, count in kept.per_class.items()]
    console.show(Table(f"{kept.images} of {kept.of} images kept", ["class", "images that show it"], rows))
    publish(memory=kept.folder, images=kept.images, classes=kept.per_class)
    console.say(f"memory: {kept.folder}; use it with: incseg extend MODEL --data DIR --replay {kept.folder} --out DIR")


def statistics(
    model: ModelPath,
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    step: OptionalStep = None,
    weights: Annotated[str, tyro.conf.arg(metavar="none|imagenet|FILE")] = "none",
    overwrite: bool = False,
    device: str = "auto",
    workers: int = DEFAULT.data.workers,
) -> None:
    """Gather what 'incseg extend' needs to add classes in seconds, while the training images are at hand.

    For a model that was trained elsewhere or earlier: 'incseg train' leaves statistics by itself. They are sums over
    all training pixels, without any image, in a file beside the model, which stays as it is. At the end, the head with
    which an extension in closed form begins is compared with the model's own.

    New classes are learnt better if the head also sees the encoder as it was before training: say with --weights what
    it began with, and the model keeps that too.

    Examples: incseg statistics models/mine --data mydata; incseg statistics mine.safetensors --data mydata
    --weights imagenet

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        data: folder with images/, masks/ and classes.txt, which names the model's classes, in any order.
        step: which step of a run.
        weights: with which the training of its encoder began: imagenet, or a .safetensors or .pth file. The model's
            file is written again, with the encoder that these give beside its own (+22 MB for a ResNet-18).
        overwrite: replace statistics that the model has already.
        device: auto, cpu, cuda or mps.
        workers: processes that load images.
    """
    (known,) = refuse_missing_models(model, step=step)
    refuse_device(device)
    if not overwrite:
        refuse_gathered(model, step)
    check_weights_file(weights)
    channels_by_name(refuse_folders({}, data=data)["data"].classes, data, known)

    from incseg.deploy.statistics import gather_statistics

    given, processes = incseg.load(model, step, device), min(workers, os.cpu_count() or 1)
    gather_statistics(given, data, Console(), weights=weights, overwrite=overwrite, workers=processes)


def merge(
    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A")],
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="B")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    base: Annotated[
        Path | None, tyro.conf.arg(metavar="MODEL", help_behavior_hint="(default: what both runs began with)")
    ] = None,
) -> None:
    """Make one model of two that were extended in closed form from the same base, at two places; no image travels.

    The result knows the classes of both, as if the base had been extended by the images of both at once. A class that
    both added under one name is one class, and nearly what it would be then.

    Example: incseg merge runs/site-a runs/site-b --out models/both

    Args:
        first: a model extended in closed form: folder of a run, a step-K folder, or a .safetensors file.
        second: another, extended from the same base.
        out: folder of the result, a model like any other.
        base: the model that both were extended from.
    """
    _refuse_existing(out)
    refuse_missing_models(first, second, *([] if base is None else [base]))

    from incseg.deploy.merging import merge as merged

    one, two = (incseg.load(path, device="cpu") for path in (first, second))
    result = merged(one, two, None if base is None else incseg.load(base, device="cpu"))
    _write(result, out, f"Merged from {first} and {second} by adding their statistics; no image was needed.")


def forget(
    model: ModelPath,
    classes: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CLASS")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    learnt_in: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="RUN...", help_behavior_hint="(default: the run of MODEL)")
    ] = (),
    before: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="MODEL...", help_behavior_hint="")] = (),
) -> None:
    """Take a class away again: subtract from a model's statistics what the images of that class had added.

    Possible for classes learnt in closed form, a whole step at a time: the sums of one step do not tell its classes
    apart. The given model and its run stay as they are: delete them if the images are to be forgotten for good.

    Example: incseg forget runs/bigger ring --out models/without-ring

    Args:
        model: folder of a run, a step-K folder, or a .safetensors file.
        classes: all classes that a step learnt.
        out: folder of the result, a model like any other.
        learnt_in: the run that learnt them, if the model has been extended again since; all of them, if it was merged
            from several. With --before, also the file of a model that learnt them in Python.
        before: for classes that were learnt in Python, of which there is no run: the model just before it learnt them.
            Several if it was merged from such models.
    """
    if not classes:
        raise InputError("name the class to forget: incseg forget MODEL CLASS --out DIR.")
    _refuse_existing(out)
    (known,) = refuse_missing_models(model)
    for name in classes:
        known_class(name, known)
    refuse_missing_models(*before, *(learnt_in if before else ()))
    for run in () if before else learnt_in:
        run_with_steps(run, "--learnt-in")

    from incseg.deploy.forgetting import forget as without

    earlier = [incseg.load(path, device="cpu") for path in before]
    result = without(incseg.load(model, device="cpu"), classes, learnt_in, earlier)
    _write(result.model, out, result.remark)


def _refuse_existing(out: Path) -> None:
    """A folder that holds a model is not overwritten."""
    from incseg.run_folder import MODEL_FILE, RunFolder

    usable_folder(out)
    if (out / MODEL_FILE).exists() or RunFolder(out).finished_steps:
        raise InputError(f"{out} holds a model already: choose another --out, or delete that folder.")


def _write(model: "Model", out: Path, remark: str) -> None:
    """A folder with a model, its statistics and its card."""
    from incseg.deploy.model_card import write_card
    from incseg.run_folder import MODEL_FILE, RunFolder

    model.save(out / MODEL_FILE)
    write_card(model, out, remark=remark)
    console = Console()
    console.say(remark)
    publish(model=out, classes=model.classes, remark=remark)
    console.say(f"model: {out}, with {', '.join(model.classes[1:])}; described in {RunFolder(out).model_card}")
