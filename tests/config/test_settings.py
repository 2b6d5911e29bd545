from pathlib import Path

import pytest

from incseg.config import (
    DataConfig,
    EngineConfig,
    ModelConfig,
    OptimConfig,
    Section,
    as_text,
    read_setting,
    section_types,
    setting_names,
    validate,
)
from incseg.errors import InputError


def test_every_default_reads_back_as_it_is_written() -> None:
    for section, kind in section_types().items():
        for key, field in kind.model_fields.items():
            default = field.get_default(call_default_factory=True)
            assert read_setting(kind, f"{section}.{key}", as_text(default)) == default


@pytest.mark.parametrize(
    ("section", "name", "text", "value"),
    [
        (OptimConfig, "optim.epochs", "10", 10),
        (OptimConfig, "optim.learning_rate", "1e-3", 0.001),
        (EngineConfig, "engine.deterministic", "true", True),
        (EngineConfig, "engine.checkpoint_every", "none", None),
        (EngineConfig, "engine.loggers", "none", ()),
        (EngineConfig, "engine.loggers", "wandb, mlflow", ("wandb", "mlflow")),
        (DataConfig, "data.class_order", "a, b", ("a", "b")),
        (ModelConfig, "model.decoder_options", "{decoder_channels: 16}", {"decoder_channels": 16}),
        (ModelConfig, "model.decoder_options", '{"decoder_channels": [1, 2]}', {"decoder_channels": [1, 2]}),
        (DataConfig, "data.root", "2012", Path("2012").resolve()),
    ],
)
def test_text_is_read_by_the_type_of_the_setting(section: type[Section], name: str, text: str, value: object) -> None:
    assert read_setting(section, name, text) == value


@pytest.mark.parametrize("loggers", [None, "none", ()])
def test_a_recipe_may_ask_for_no_loggers(loggers: object) -> None:
    assert validate({"protocol": "shapes/4-2", "engine": {"loggers": loggers}}).engine.loggers == ()


def test_weights_may_be_called_none() -> None:
    assert validate({"protocol": "shapes/4-2", "model": {"weights": "none"}}).model.weights == "none"


def test_an_item_of_a_list_that_is_wrong_is_named_without_its_place() -> None:
    with pytest.raises(InputError, match=r"the setting engine\.loggers cannot be 'x': Input should be 'tensorboard'"):
        read_setting(EngineConfig, "engine.loggers", "wandb,x")


def test_setting_names_are_dotted() -> None:
    assert {"seed", "optim.epochs", "engine.devices"} <= set(setting_names())
