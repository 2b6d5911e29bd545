"""Build a trainer from a configuration, and run it."""

import copy
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy

from incseg import methods
from incseg.config import RunConfig, result_settings, to_yaml
from incseg.console import Console, is_rank_zero
from incseg.curriculum import build_curriculum
from incseg.datasets import dataset_entry
from incseg.engine.admission import check_run, refuse_another_run
from incseg.engine.fingerprint import check_data, fingerprint, record_data
from incseg.engine.first_step import GivenModel, check_first_step, check_given_model, copy_first_step
from incseg.engine.image_cache import ImageCache
from incseg.engine.input_scale import remember_scale, scale_warning
from incseg.engine.journal import Journal
from incseg.engine.lock import only_writer
from incseg.engine.machine import enough_memory, keep_freed_memory, require_space, together
from incseg.engine.method_check import check_method
from incseg.engine.precision import precision_here, with_precision
from incseg.engine.provenance import environment
from incseg.engine.recovery import recover
from incseg.engine.signals import StopRequests
from incseg.engine.trainer import Trainer
from incseg.errors import InputError
from incseg.files import replacing
from incseg.loading import none_killed
from incseg.models import Architecture, Segmenter
from incseg.models.devices import placed
from incseg.models.gather import ORIGINAL_STAGES
from incseg.models.pretrained import load_encoder
from incseg.protocol import Protocol, Step
from incseg.run_folder import RunFolder
from incseg.seeding import seed_from

LINEAGE = ("colours", "extends")  # what a result says of where its model comes from; evaluating again keeps it
MOST_REPEATS = 32  # of an image in one batch
OF_EXTENSIONS = ("known", "validation", "replay", "replayed_images")  # settings of the data


def launch(config: RunConfig) -> Fabric:
    """Start the processes the configuration asks for."""
    engine = config.engine
    if engine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when CUDA starts
        torch.use_deterministic_algorithms(True, warn_only=True)
    several, precision = engine.devices * engine.nodes > 1, precision_here(engine)
    for name in ("lightning.fabric", "lightning.pytorch"):  # or each start says, and advises on, a precision we choose
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        fabric = Fabric(
            accelerator=engine.accelerator,
            devices=engine.devices,
            num_nodes=engine.nodes,
            precision=precision,
            # Batch normalisation sends its statistics itself.
            strategy=DDPStrategy(timeout=timedelta(seconds=engine.timeout), broadcast_buffers=False)
            if several
            else "auto",
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"this machine cannot run on {engine.devices} × '{engine.accelerator}' in {precision}: {error}"
        ) from error
    fabric.launch()
    if fabric.device.type == "cpu":
        keep_freed_memory()
    return fabric


def train(
    config: RunConfig,
    out: Path,
    first_step: Path | None = None,
    console: Console | None = None,
    given: GivenModel | None = None,
) -> dict[str, Any]:
    """Train a configuration in a folder, or resume what an earlier call began there; returns the result.

    Step 0 may be that of another run (``first_step``), or a model trained anywhere (``given``).
    """
    config = with_precision(config)
    _check(config, out)
    if given is None and (named := [name for name in OF_EXTENSIONS if getattr(config.data, name)]):
        raise InputError(f"settings such as data.{named[0]} belong to 'incseg extend': 'incseg train' takes none.")
    stop = StopRequests()
    with (
        stop.heard(config.engine.max_time),
        _prepared(config, out, console),
        together(config.engine),
        enough_memory(config),
        none_killed(),
    ):
        trainer = build(config, out, launch(config), console, given)
        trainer.stop = stop
        data = _check_begin(trainer, first_step)
        with trainer.journal:  # a service that cannot be reached is refused before the run has begun
            _begin(trainer, first_step, data)
            return trainer.run()


@contextmanager
def _prepared(config: RunConfig, out: Path, console: Console | None) -> Iterator[None]:
    """The folder of a run, written by this process only, and with nothing damaged in it; the first process sees to it.

    The others find it so: they meet only after that, when all are launched.
    """
    if not is_rank_zero():
        yield
        return
    folder, say = RunFolder(out), (console or Console()).say
    with only_writer(folder, say):
        refuse_another_run(config, out)  # it may have begun since the first look
        recover(folder, say)
        yield


def _check_begin(trainer: Trainer, first_step: Path | None) -> dict[str, Any]:
    """Refuse what can be told only with the data at hand; returns the fingerprint of the data."""
    config, folder = trainer.config, trainer.folder
    trainer.iterations.check(trainer.student)
    check_repeats(config.optim.batch_size, [len(indices) for indices in trainer.curriculum.indices])
    if first_step is not None:
        check_first_step(first_step, config, trainer.method, trainer.curriculum)
    data = fingerprint(trainer.curriculum, config.data.root)
    check_data(folder, data, accept=config.data.changed == "accept")
    require_space(folder, trainer.student, len(trainer.curriculum.steps))
    return data


def check_repeats(batch_size: int, images: Sequence[int]) -> None:
    """A batch may repeat images, as a step may have few; not so often that a number must have been mistyped."""
    fewest = min((number for number in images if number), default=1)
    if batch_size > MOST_REPEATS * fewest:
        raise InputError(
            f"optim.batch_size {batch_size} is far above the {fewest} images of step {images.index(fewest)}: "
            f"give at most {MOST_REPEATS * fewest}."
        )


def _begin(trainer: Trainer, first_step: Path | None, data: dict[str, Any]) -> None:
    """Write what a run begins with; only now, when nothing more can be wrong with the input."""
    config, folder = trainer.config, trainer.folder
    if trainer.fabric.is_global_zero:
        if not folder.config.exists():
            with replacing(folder.config) as temporary:
                temporary.write_text(to_yaml(config), encoding="utf-8")
        record_data(folder, data)
        if first_step is not None:
            trainer.first_step_copied = copy_first_step(first_step, folder, trainer.method)
    trainer.fabric.barrier()


def build(
    config: RunConfig, out: Path, fabric: Fabric, console: Console | None = None, given: GivenModel | None = None
) -> Trainer:
    """Build everything a run needs, so that whatever is wrong with the input is found before training starts."""
    config = with_precision(config)  # losses ask for it
    heard = console if fabric.is_global_zero else None
    say, mention = (heard.say, heard.mention) if heard is not None else (None, None)
    method, folder = _method(config), RunFolder(out)
    if given is not None:
        check_given_model(given, folder, method, has_old_images=config.data.replay is not None)
        method.load_memory({name: placed(tensor, fabric.device) for name, tensor in given.memory.items()})
        if method.lacks_statistics:
            raise InputError(
                f"'{method.name}' adds classes to the statistics of a model's training images, and this model has "
                "none: gather them with 'incseg statistics MODEL --data DIR' while these images are at hand, or choose "
                "a --method that trains."
            )
    data = method.used(config.data)
    if say is not None and data.saliency != config.data.saliency:
        say(f"'{config.method}' uses no saliency maps: --data.saliency {config.data.saliency} is left aside.")
    curriculum = build_curriculum(Protocol.parse(config.protocol), data, say, mention)
    method.check(curriculum.steps, curriculum.classes)
    if given is None:
        student = _student(config, curriculum.steps[0].num_classes, pretrained=not folder.has_weights)
    else:
        student = copy.deepcopy(given.segmenter).cpu()
    remember_scale(student, curriculum)
    warning = scale_warning(student, curriculum)
    if say is not None and warning:
        say(f"warning: {warning}")
    _try_out(student, config.data.crop_size)
    method.check_network(student)
    header = run_header(config, fabric, _lineage(config, given))
    journal = Journal(
        folder,
        header,
        last_step=curriculum.steps[-1].index,
        loggers=config.engine.loggers,
        active=fabric.is_global_zero,
        console=console,
    )
    return Trainer(
        config=config,
        fabric=fabric,
        curriculum=curriculum,
        method=method,
        student=student,
        first_step_given=given is not None,
        history=given.history if given is not None else (),
        folder=folder,
        journal=journal,
        cache=ImageCache(config, fabric, curriculum, journal, folder, partial(_reads_again, method)),
        header=header,
    )


def _method(config: RunConfig) -> methods.Method:
    """The method of a run; one that trains also gathers statistics for later extensions, unless switched off.

    Where old images are given, a method that does not replay any by itself replays these.
    """
    method = methods.parse(config.method, config.settings)
    if method.solves:
        return method
    original = ORIGINAL_STAGES if config.engine.original_encoder else 0
    carried = methods.ClosedForm(stages=None, original=original, carried=True)
    more: list[methods.Part] = [carried] if config.engine.statistics else []
    if config.data.replay is not None and not method.rehearses:
        if method.replays:
            raise InputError(f"'{method.name}' replays pictures of its own: leave --replay out, or use another method.")
        more = [methods.GivenOldImages(), *more]
    return replace(method, parts=(*method.parts, *more))


def _reads_again(method: methods.Method, step: Step) -> bool:
    """Whether the images of a finished step may be loaded again: by later steps, or for the head of a copied step 0."""
    by_later_steps = method.keeps_data or method.rehearses or method.replays
    return by_later_steps or (step.index == 0 and method.lacks_statistics)


def _check(config: RunConfig, out: Path) -> None:
    """Refuse what can be refused before any process is started."""
    check_method(config)
    check_run(config, out)


def _student(config: RunConfig, num_classes: int, *, pretrained: bool) -> Segmenter:
    torch.manual_seed(seed_from(config.seed, "student"))
    never_background = not config.data.has_background
    architecture = Architecture.of(config.model, config.data.crop_size, never_background=never_background)
    student = Segmenter(architecture, [num_classes])
    load_encoder(student, config.model.weights if pretrained else "none")
    return student


def _try_out(student: Segmenter, crop_size: int) -> None:
    """Refuse a network that cannot process the crops: some encoders need one size, some decoders a certain depth."""
    try:
        with torch.no_grad():
            student.eval()(torch.zeros(1, 3, crop_size, crop_size, dtype=torch.uint8))
    except Exception as error:
        architecture = student.architecture
        raise InputError(
            f"'{architecture.decoder}' on '{architecture.encoder}' cannot process images of {crop_size}×{crop_size}: "
            f"{' '.join(str(error).split())}"
        ) from error


def _lineage(config: RunConfig, given: GivenModel | None) -> dict[str, Any]:
    """The palette of the classes, and for an extension which model is extended."""
    if given is not None:
        return {"colours": given.colours, "extends": given.name}
    return {"colours": dataset_entry(Protocol.parse(config.protocol).dataset).colours}


def run_header(config: RunConfig, fabric: Fabric, lineage: Mapping[str, Any]) -> dict[str, Any]:
    """The head of ``result.json``: what was run, on which machine and with which versions."""
    return {
        "protocol": config.protocol,
        "method": config.method,
        "seed": config.seed,
        **lineage,
        "scored_as": config.scored_as,
        "settings": result_settings(config),
        "environment": environment(fabric),
    }
