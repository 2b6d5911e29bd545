"""``incseg list``: methods, protocols, recipes, settings and the tables of the paper, each as a table."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import tyro

from incseg.config import as_text, load_recipe, published_presets, recipe_names, section_types
from incseg.console import Console, Table
from incseg.without_torch import without_torch


def show_list(what: tyro.conf.Positional[Literal["methods", "protocols", "recipes", "settings", "tables"]]) -> None:
    """What there is to choose from.

    Args:
        what: methods, protocols, recipes, settings or tables.
    """
    for table in TABLES[what]():
        Console().show(table)


def methods() -> list[Table]:
    """Every method with what it does, needs and can be told."""
    from incseg.methods import describe_methods

    rows = [
        [
            entry.name,
            entry.summary,
            "\n".join(entry.needs) or "–",
            "\n".join(
                f"--{entry.name}.{key.replace('_', '-')} {as_text(value)}" for key, value in entry.settings.items()
            )
            or "–",
            entry.paper,
        ]
        for entry in describe_methods()
    ]
    note = "Methods can be summed: --method mib+ucd. One provides the loss on the labels, the others add terms."
    return [
        Table("methods", ["name", "what it does", "needs", "settings and defaults", "paper"], rows, note, prose=True)
    ]


def protocols() -> list[Table]:
    """Every dataset with the tasks published for it."""
    from incseg.datasets import describe_datasets

    rows = [
        [
            entry.name,
            "\n".join([", ".join(entry.tasks) or "any", *(f"{task} (domain)" for task in entry.domain_tasks)]),
            entry.summary,
        ]
        for entry in describe_datasets()
    ]
    note = (
        "A protocol is DATASET/TASK/SETTING, for example voc/15-5/overlapped. TASK A-B learns A classes, then B at a "
        "time; 'offline' learns all at once; 4-2-2 names every step. SETTING overlapped: a step sees all images with "
        "one of its new classes; disjoint: of those, the ones without a class of a later step (ade20k and cityscapes: "
        "each image in one step only); sequential: as disjoint, with the old classes labelled too; partitioned: each "
        "image in the step of one class it shows, drawn by chance; domain: all classes from step 0 on, and A-B counts "
        "domains, the cities of cityscapes or the subfolders of a folder."
    )
    return [Table("protocols", ["dataset", "tasks", "what it is"], rows, note, prose=True)]


def recipes() -> list[Table]:
    """Every published recipe with its main settings, and the presets that change one."""
    rows = []
    for name in recipe_names():
        config = load_recipe(name)
        network = f"{config.model.decoder}\n{config.model.encoder}"
        protocol = "" if config.protocol == name else config.protocol
        if config.data.class_order is not None:
            protocol = f"{protocol.rpartition('/')[0]} in class order {', '.join(config.data.class_order)}"
        optim = config.optim
        training = f"{optim.epochs} epochs, batch {optim.batch_size}, lr {optim.learning_rate:g} / "
        rows.append([name, network, training + f"{optim.incremental_learning_rate:g}", protocol])
    note = "Run one with: incseg train NAME. A recipe of your own is a YAML file with any of 'incseg list settings'."
    return [
        Table(
            "recipes",
            ["name", "network", "training (lr of step 0 / later)", "protocol, if not its name"],
            rows,
            note,
            prose=True,
        ),
        _presets(),
    ]


def _presets() -> Table:
    rows = [
        [name, dataset, "\n".join(f"{key} {as_text(value)}" for key, value in values.items())]
        for name, dataset, values in published_presets()
    ]
    note = "Add one with: incseg train RECIPE --preset NAME. docs/reproduce.md says where each comes from."
    return Table("presets", ["name", "datasets", "settings"], rows, note, prose=True)


def settings() -> list[Table]:
    """Every setting with its default and meaning, section by section."""
    return [
        Table(
            (kind.__doc__ or section).strip(),
            ["setting", "default", "meaning"],
            [
                [
                    f"--{section}.{name.replace('_', '-')}",
                    as_text(field.get_default(call_default_factory=True)),
                    " ".join((field.description or "").split()),
                ]
                for name, field in kind.model_fields.items()
            ],
            prose=True,
        )
        for section, kind in section_types().items()
    ]


def tables() -> list[Table]:
    """Every table of the paper that can be reproduced."""
    from incseg.paper import read_tables

    rows = [
        [
            table.name,
            str(table.number or "–"),
            table.title,
            "\n".join(row.name for row in table.planned_rows),
            "\n".join(block.protocol for block in table.blocks),
        ]
        for table in read_tables().values()
    ]
    note = "Reproduce one with: incseg reproduce NAME. A table without a number is the experiment behind a figure."
    return [Table("tables of the paper", ["name", "no.", "what", "rows", "columns"], rows, note, prose=True)]


TABLES: dict[str, Callable[[], list[Table]]] = {
    "methods": partial(without_torch, methods),  # the only one that imports PyTorch
    "protocols": protocols,
    "recipes": recipes,
    "settings": settings,
    "tables": tables,
}
