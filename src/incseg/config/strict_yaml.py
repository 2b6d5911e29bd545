"""YAML files of people: whatever is wrong with one is said in a sentence, and nothing in it is run or multiplied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from incseg.errors import InputError
from incseg.files import read_text

LARGEST = 1 << 20  # bytes: a configuration has a few thousand


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which builds plain values only; a name that is given twice is refused, as is an alias:
    ten lines of these can stand for more values than fit into memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse an alias (``*name``)."""
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases are not read: write the values out", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a name that is given twice: the first value would be lost without a word."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for (key, _), name in zip(node.value, names, strict=False):
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"'{name}' is given twice", key.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, check: Callable[[str, Path], None] = lambda *_: None) -> dict[str, Any]:
    """The settings in a file by name; ``check`` may refuse its text."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: give a YAML file of settings.")
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    if path.stat().st_size > LARGEST:
        raise InputError(f"{path} has {path.stat().st_size} bytes: a file of settings has at most {LARGEST}.")
    text = read_text(path)
    check(text, path)
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InputError(f"{path} must hold settings by name, such as 'protocol: voc/15-5/overlapped'.")
    return values


def parse_yaml(text: str, name: str) -> Any:
    """The values in a text; ``name`` is what to call it if it is wrong."""
    try:
        return yaml.load(text, StrictLoader)
    except RecursionError:
        raise InputError(f"{name} is not valid YAML: its values are nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that there is not
        raise InputError(f"{name} is not valid YAML: {' '.join(str(error).split())}.") from None
