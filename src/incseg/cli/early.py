"""What can be refused at once: PyTorch takes seconds to import, and a misspelt name should not."""

import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from incseg.config import DataConfig, Layer, RunConfig, from_yaml, load_recipe, merge
from incseg.engine.admission import check_first_step_is_done, check_run, check_weights_file
from incseg.errors import InputError
from incseg.model_header import read_header, refuse_statistics, require_description
from incseg.protocol import Protocol, Setting, class_order
from incseg.run_folder import RunFolder, model_file, statistics_file
from incseg.without_torch import without_torch

if TYPE_CHECKING:
    from incseg.datasets import Source
    from incseg.study.comparison_plan import Entrant

HIGHEST_PORT = 65535
DEVICES = re.compile(r"auto|cpu|mps|(cuda|xpu|hpu)(:\d+)?")


def refuse_methods(
    recipes: Sequence[str], read_entrants: "Callable[[], Sequence[Entrant]]", settings: Layer, *, trust: bool
) -> None:
    """Refuse sums that cannot be with their settings: those of a recipe, those for all methods, and their own."""

    def check() -> None:
        from incseg.study.comparison_plan import check_methods

        check_methods(recipes, read_entrants(), settings, trust=trust)

    without_torch(check)


def refuse_missing_data(config: RunConfig) -> None:
    """Refuse a dataset that does not exist, files that are not there, and a task or class order that does not fit."""
    from incseg.datasets import open_source
    from incseg.datasets.listed import check_lists

    protocol = Protocol.parse(config.protocol)
    source = open_source(protocol.dataset, config.data.root, config.data)
    if config.data.known is None and protocol.setting is not Setting.DOMAIN:  # these have steps of other kinds
        class_order(source.classes, config.data.class_order, source.orders)
        protocol.steps(len(source.classes) - 1)
    if config.data.splits is not None:
        check_lists(config.data.splits)
    _refuse_missing_maps(config.data.saliency)


def _refuse_missing_maps(folder: Path | None) -> None:
    from incseg.datasets.saliency import require_folder

    if folder is not None:
        require_folder(folder)


def refuse_missing_data_of(run: Path, data_root: Path | None) -> None:
    """The same for the dataset of a trained run, which may have moved."""
    config = from_yaml(RunFolder(run).config)
    data = config.data.after_training
    moved = data if data_root is None else data.model_copy(update={"root": data_root})
    refuse_missing_data(config.model_copy(update={"data": moved}))


def refuse_run(config: RunConfig, out: Path, first_step: Path | None) -> None:
    """Refuse a training that cannot begin."""
    check_run(config, out)
    refuse_missing_data(config)
    if first_step is not None:
        check_first_step_is_done(first_step)
    if not RunFolder(out).has_weights:
        check_weights_file(config.model.weights)

    def check() -> None:
        from incseg.engine.method_check import check_method

        check_method(config)

        from incseg.models.building import check_network  # only now: timm takes a while, a refusal above should not

        check_network(config.model)

    without_torch(check)


def refuse_extension(model: Path, step: int | None, method: str, settings: Layer, *, has_old_images: bool) -> None:
    """Refuse a method that cannot extend a model."""
    config = load_recipe("folder/1-1/overlapped", merge({"method": method}, settings))

    def check() -> None:
        from incseg.engine.first_step import check_extends, remembered_by
        from incseg.methods import parse

        remembered = remembered_by(model_file(model, step))
        check_extends(parse(config.method, config.settings), remembered, has_old_images=has_old_images)

    without_torch(check)


def refuse_kind(kind: str | None, encoder: str) -> None:
    """Refuse a network of another library that does not exist."""

    def check() -> None:
        from incseg.deploy.import_model import check_kind

        check_kind(kind, encoder)

    without_torch(check)


def refuse_folders(settings: Layer, **folders: Path | None) -> "dict[str, Source]":
    """Open folders of images, by the name of their option; refuses what is not there or not as it should be."""
    from incseg.datasets import open_source
    from incseg.datasets.folder import LAYOUT

    given = {name: value for name, value in settings.get("data", {}).items() if name in DataConfig.READING}
    opened = {}
    for option, folder in folders.items():
        if folder is not None and not folder.is_dir():
            raise InputError(f"--{option} {folder} is not a folder; it must hold {LAYOUT}.")
        if folder is not None:
            opened[option] = open_source("folder", folder, DataConfig(**given))
    _refuse_missing_maps(settings.get("data", {}).get("saliency"))
    return opened


def refuse_device(name: str) -> None:
    """Refuse what is no device; whether this machine has it, only PyTorch knows."""
    if not DEVICES.fullmatch(name):
        raise InputError(f"there is no device '{name}': use auto, cpu, cuda or mps.")


def refuse_address(host: str, port: int | None) -> None:
    """Refuse an address at which this machine cannot listen: a server would try every port, and wait."""
    try:
        if port is not None and not 0 <= port <= HIGHEST_PORT:  # the system would take what is left after division
            raise OverflowError(f"ports go up to {HIGHEST_PORT}")
        (family, _, _, _, address), *_ = socket.getaddrinfo(host or None, port or 0, type=socket.SOCK_STREAM)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"this machine cannot listen at {host!r}, port {port or 'any'} ({reason}): use 127.0.0.1, 0.0.0.0 or an "
            "address of its own, and a free port."
        ) from None


def refuse_missing_models(*paths: Path, step: int | None = None) -> list[list[str]]:
    """Refuse a path that holds no model, and a step that it does not have; returns the classes of each model."""
    found = []
    for path in paths:
        file = model_file(path, step)
        described = require_description(file, read_header(file).description)
        found.append([str(name) for name in described.get("classes", ())])
    return found


def refuse_gathered(model: Path, step: int | None) -> None:
    """Refuse a model that has statistics already."""
    file = statistics_file(model_file(model, step))
    if file.is_file():
        refuse_statistics(file, read_header(file).tensors)
