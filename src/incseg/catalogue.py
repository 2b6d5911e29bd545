"""What there is to choose from, as tables: methods, protocols, recipes, settings, and the tables of the paper."""

from collections.abc import Callable

from incseg.config import RunConfig, Section, load_recipe, recipe_names
from incseg.console import Table
from incseg.datasets import describe_datasets
from incseg.methods import describe_methods
from incseg.paper import read_tables


def methods() -> list[Table]:
    """Every method with what it does, needs and can be told."""
    rows = [
        [
            entry.name,
            entry.summary,
            ", ".join(entry.needs) or "–",
            "\n".join(f"--{entry.name}.{key.replace('_', '-')} {value}" for key, value in entry.settings.items())
            or "–",
            entry.paper,
        ]
        for entry in describe_methods()
    ]
    note = "Methods can be summed: --method mib+ucd. One of them brings the loss on the labels, all add theirs."
    return [
        Table("methods", ["name", "what it does", "needs", "settings and defaults", "paper"], rows, note, prose=True)
    ]


def protocols() -> list[Table]:
    """Every dataset with the tasks published for it."""
    rows = [[entry.name, ", ".join(entry.tasks) or "any", entry.summary] for entry in describe_datasets()]
    note = (
        "A protocol is DATASET/TASK/SETTING, for example voc/15-5/overlapped. TASK A-B learns A classes, then B at a "
        "time; 'offline' learns all at once; 4-2-2 names every step. SETTING overlapped: a step sees all images with "
        "one of its new classes; disjoint: of those, the ones without a class of a later step (ade20k and cityscapes: "
        "each image in one step only)."
    )
    return [Table("protocols", ["dataset", "tasks", "what it is"], rows, note, prose=True)]


def recipes() -> list[Table]:
    """Every published recipe with its main settings."""
    rows = []
    for name in recipe_names():
        config = load_recipe(name)
        network = f"{config.model.decoder}, {config.model.encoder}"
        protocol = "" if config.protocol == name else config.protocol
        if config.data.class_order is not None:
            protocol += f", class order {', '.join(config.data.class_order)}"
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
        )
    ]


def settings() -> list[Table]:
    """Every setting with its default and meaning, section by section."""
    tables = []
    for section, field in RunConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            rows = [
                [
                    f"--{section}.{name.replace('_', '-')}",
                    _written(inner.default),
                    " ".join((inner.description or "").split()),
                ]
                for name, inner in field.annotation.model_fields.items()
                if inner.default_factory is None
            ]
            title = (field.annotation.__doc__ or section).strip()
            tables.append(Table(title, ["setting", "default", "meaning"], rows, prose=True))
    return tables


def _written(value: object) -> str:
    """A default as one would write it after the setting."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def tables() -> list[Table]:
    """Every table of the paper that can be repeated."""
    rows = [
        [
            table.name,
            str(table.number or "–"),
            table.title,
            ", ".join(row.name for row in table.rows),
            ", ".join(block.protocol for block in table.blocks),
        ]
        for table in read_tables().values()
    ]
    note = "Repeat one with: incseg reproduce NAME. A table without a number is the experiment behind a figure."
    return [Table("tables of the paper", ["name", "number", "what", "rows", "columns"], rows, note, prose=True)]


TABLES: dict[str, Callable[[], list[Table]]] = {
    "methods": methods,
    "protocols": protocols,
    "recipes": recipes,
    "settings": settings,
    "tables": tables,
}
