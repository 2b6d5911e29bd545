"""From a configuration to a trainer: the one place below the command line that reads it."""

import copy
import os
import platform
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric import Fabric

import incseg
from incseg import methods
from incseg.config import RunConfig, differing_setting, flat_settings, from_yaml, to_yaml
from incseg.console import Console
from incseg.curriculum.curriculum import Curriculum, LabelPolicy, ProtocolCurriculum
from incseg.curriculum.extension import Extension
from incseg.datasets import dataset_entry, open_source
from incseg.engine.first_step import GivenModel, check_first_step, check_given_model, copy_first_step
from incseg.engine.journal import Journal
from incseg.engine.loggers import require_packages
from incseg.engine.trainer import Habits, Schedule, Trainer
from incseg.errors import InputError
from incseg.files import replacing, usable_folder
from incseg.loading.transforms import CentreCrop
from incseg.models import Architecture, Segmenter
from incseg.models.pretrained import load_encoder
from incseg.protocol import Protocol
from incseg.run_folder import RunFolder
from incseg.seeding import seed_from

NAMED = ("protocol", "method", "seed")  # what a result says of itself before its settings


def launch(config: RunConfig) -> Fabric:
    """Start the processes the configuration asks for; in a single process, nothing more than a handle."""
    if config.engine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when the device wakes up
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        fabric = Fabric(
            accelerator=config.engine.accelerator,
            devices=config.engine.devices,
            num_nodes=config.engine.nodes,
            precision=config.engine.precision,
        )
    except (RuntimeError, ValueError) as error:
        engine = config.engine
        raise InputError(
            f"this machine cannot run on {engine.devices} × '{engine.accelerator}' in {engine.precision}: {error}"
        ) from error
    fabric.launch()
    return fabric


def train(
    config: RunConfig,
    out: Path,
    first_step: Path | None = None,
    console: Console | None = None,
    given: GivenModel | None = None,
) -> dict[str, Any]:
    """Run a configuration in a folder, or finish what an earlier call began there; returns the result.

    Step 0 may come from another run (``first_step``), or be a model that was learnt anywhere (``given``).
    """
    _check(config, out)
    if given is None and (config.data.known or config.data.validation):
        raise InputError(
            "data.known and data.validation belong to 'incseg extend': a run that begins anew has neither."
        )
    fabric = launch(config)
    trainer = build(config, out, fabric, console, given)
    if first_step is not None:
        check_first_step(first_step, config, trainer.method, trainer.curriculum)
    if fabric.is_global_zero:
        # Only now, that nothing more can be wrong with the input, is the folder this run's.
        if not trainer.folder.config.exists():
            with replacing(trainer.folder.config) as temporary:
                temporary.write_text(to_yaml(config), encoding="utf-8")
        if first_step is not None:
            copy_first_step(first_step, trainer.folder)
    fabric.barrier()
    try:
        with trainer.journal:
            return trainer.run()
    finally:
        if torch.distributed.is_initialized():  # left to the interpreter's end, its threads may be cut off
            torch.distributed.destroy_process_group()


def build(
    config: RunConfig, out: Path, fabric: Fabric, console: Console | None = None, given: GivenModel | None = None
) -> Trainer:
    """Assemble everything a run needs; whatever is wrong with the input is found here, before training starts."""
    curriculum = build_curriculum(config, console if fabric.is_global_zero else None)
    method = methods.parse(config.method, config.settings)
    method.check(curriculum.steps, curriculum.classes)
    if given is None:
        student = _student(config, curriculum.steps[0].num_classes, pretrained=not RunFolder(out).has_begun)
    else:
        check_given_model(given, RunFolder(out), method)
        student = copy.deepcopy(given.segmenter).cpu()
        method.load_memory(dict(given.memory))
    _try_out(student, config.data.crop_size)
    header = run_header(config, fabric)
    return Trainer(
        fabric=fabric,
        curriculum=curriculum,
        method=method,
        student=student,
        first_step_given=given is not None,
        history=given.history if given is not None else (),
        schedule=Schedule(crop_size=config.data.crop_size, **config.optim.model_dump()),
        habits=Habits(
            workers=loading_processes(config),
            checkpoint_every=config.engine.checkpoint_every,
            log_every=config.engine.log_every,
            score_batch_size=config.engine.score_batch_size,
            pictures=config.engine.pictures,
        ),
        folder=RunFolder(out),
        journal=Journal(
            out,
            header,
            last_step=curriculum.steps[-1].index,
            loggers=config.engine.loggers,
            active=fabric.is_global_zero,
            console=console,
        ),
        seed=config.seed,
        header=header,
    )


def loading_processes(config: RunConfig) -> int:
    """As many as were asked for, but at most one per core."""
    return min(config.data.workers, os.cpu_count() or 1)


def build_curriculum(config: RunConfig, console: Console | None = None) -> Curriculum:
    """Open the dataset and check every mask against the protocol."""

    def progress(done: int, total: int) -> None:
        if console is not None and done % 2000 == 0:
            console.say(f"reading which classes each mask shows: {done} of {total}")

    data, protocol = config.data, Protocol.parse(config.protocol)
    source = open_source(protocol.dataset, data.root)
    if data.known is not None:
        return Extension(data.known, source, data.validation, data.void, progress)
    shortfall = dataset_entry(protocol.dataset).shortfall(source)
    if shortfall and console is not None:
        console.say(shortfall)
    return ProtocolCurriculum(
        source,
        protocol,
        wanted_order=data.class_order,
        lists=data.splits,
        policy=LabelPolicy(data.void, data.scored_void, data.future, data.background, data.score_on == "all"),
        scored_crop=CentreCrop(data.crop_size) if data.scoring == "paper" else None,
        progress=progress,
    )


def _check(config: RunConfig, out: Path) -> None:
    """What can be refused before any process is started."""
    methods.parse(config.method, config.settings)
    require_packages(config.engine.loggers)
    usable_folder(out)
    there = RunFolder(out).config
    difference = differing_setting(from_yaml(there), config) if there.exists() else ""
    if difference:
        raise InputError(
            f"{out} holds another run ({difference}); choose another --out, or delete that folder to start anew."
        )
    batch_size, devices = config.optim.batch_size, config.engine.devices * config.engine.nodes
    if batch_size % devices or batch_size < 2 * devices:
        raise InputError(
            f"optim.batch_size {batch_size} cannot be shared by {devices} device(s): each needs the same number of "
            "images, and at least two for its batch normalisation."
        )


def _student(config: RunConfig, num_classes: int, *, pretrained: bool) -> Segmenter:
    torch.manual_seed(seed_from(config.seed, "student"))
    model = config.model
    architecture = Architecture(
        encoder=model.encoder,
        decoder=model.decoder,
        output_stride=model.output_stride,
        decoder_options=model.decoder_options,
    )
    student = Segmenter(architecture, [num_classes])
    load_encoder(student, model.weights if pretrained else "none")
    return student


def _try_out(student: Segmenter, crop_size: int) -> None:
    """Some encoders want one size, some decoders a certain depth; better to know now than after the first epoch."""
    try:
        with torch.no_grad():
            student.eval()(torch.zeros(1, 3, crop_size, crop_size, dtype=torch.uint8))
    except Exception as error:
        architecture = student.architecture
        raise InputError(
            f"'{architecture.decoder}' on '{architecture.encoder}' cannot see images of {crop_size}×{crop_size}: "
            f"{' '.join(str(error).split())}"
        ) from error


def run_header(config: RunConfig, fabric: Fabric) -> dict[str, Any]:
    """What was run, and with what: the head of ``result.json``."""
    device = torch.cuda.get_device_name() if fabric.device.type == "cuda" else platform.machine()
    return {
        "protocol": config.protocol,
        "method": config.method,
        "seed": config.seed,
        "settings": {name: value for name, value in flat_settings(config).items() if name not in NAMED},
        "environment": {
            "incseg": incseg.__version__,
            "torch": torch.__version__,
            "lightning": lightning.__version__,
            "python": platform.python_version(),
            "device": f"{fabric.device.type} ({device}) × {fabric.world_size}",
        },
    }
