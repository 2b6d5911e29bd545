"""Hugging Face ``datasets``, saved to disk (Arrow) or as Parquet, with a column of images and one of masks."""

import io
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from incseg.datasets.formats.annotated import Annotated, Classes, Example, Ids, Size, Skipped, one_line, part_named
from incseg.datasets.formats.decoding import ByValue
from incseg.datasets.formats.extras import require
from incseg.datasets.formats.image_files import files_below
from incseg.datasets.formats.json_files import read_json
from incseg.datasets.source import read_lines
from incseg.errors import InputError

IMAGE_COLUMNS = ("image", "img", "pixel_values")
MASK_COLUMNS = ("mask", "label", "annotation", "segmentation_mask", "semantic_mask", "segmentation", "labels", "masks")
CLASS_MAP, CLASS_LIST = "id2label.json", "classes.txt"


def find_hugging_face(root: Path) -> list[Path]:
    """Arrow files beside dataset_info.json, or Parquet files."""
    files = files_below(root)
    arrows = [path for path in files if path.suffix == ".arrow" and (path.parent / "dataset_info.json").is_file()]
    return arrows or [path for path in files if path.suffix == ".parquet"]


def read_hugging_face(root: Path, files: Sequence[Path]) -> Annotated:
    """One example per row; the names of the classes are in id2label.json or classes.txt."""
    require("pyarrow", "parquet", "Hugging Face datasets")
    names, described = _names(root)
    classes = Classes.of(names.values(), described)
    decoder = ByValue({number: classes.ids[one_line(name)] for number, name in names.items()}, described)
    examples: list[Example] = []
    for path in files:
        part = part_named(path.stem, *reversed(path.relative_to(root).parts[:-1]))
        groups = _group_sizes(path)
        image, mask = (_column(path, columns) for columns in (IMAGE_COLUMNS, MASK_COLUMNS))
        for group, row in ((group, row) for group, size in enumerate(groups) for row in range(size)):
            paint = partial(_paint, decoder, (path, group, row, mask))
            read = partial(_bytes, path, group, row, image)
            examples.append(Example(f"{part or path.stem}-{len(examples):06d}", read, paint, part))
    if not examples:
        raise InputError(f"{files[0]} has no rows.")
    return Annotated(f"{len(files)} {files[0].suffix[1:]} file(s)", classes, examples, Skipped())


def _names(root: Path) -> tuple[dict[int, str], Path]:
    """Class names by the value in the masks; the columns themselves do not have them."""
    if (path := root / CLASS_MAP).is_file():
        content = read_json(path)
        if not isinstance(content, dict) or not all(str(key).isdigit() for key in content):
            raise InputError(f'{path} must be {{"0": "background", "1": "name", …}}.')
        return {int(number): str(name) for number, name in sorted(content.items(), key=lambda pair: int(pair[0]))}, path
    if (path := root / CLASS_LIST).is_file():
        return dict(enumerate(read_lines(path))), path
    raise InputError(
        f"{root} is a Hugging Face dataset, which does not name the classes of its masks: write them into "
        f'{root / CLASS_MAP} ({{"0": "background", "1": "name", …}}) or {root / CLASS_LIST} (one per line).'
    )


def _open(path: Path) -> Any:
    """A Parquet file, or the table of an Arrow file; neither is read into memory as a whole."""
    import pyarrow  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415

    try:
        if path.suffix == ".parquet":
            return parquet.ParquetFile(path)
        return pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))).read_all()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); is it complete?") from None


def _group_sizes(path: Path) -> list[int]:
    file = _open(path)
    if path.suffix != ".parquet":
        return [file.num_rows]
    return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]


@lru_cache(maxsize=2)
def _group(path: Path, group: int) -> Any:
    """A piece of a file as a table; rows are read one after the other, so that few pieces are held at a time."""
    return _open(path).read_row_group(group) if path.suffix == ".parquet" else _open(path)


def _column(path: Path, wanted: Sequence[str]) -> str:
    """The first column of these names that holds pictures."""
    schema = _open(path).schema_arrow if path.suffix == ".parquet" else _open(path).schema
    for name in wanted:
        if name in schema.names and str(schema.field(name).type).startswith(("struct", "binary", "large_binary")):
            return name
    raise InputError(
        f"{path} has no column of pictures called {', '.join(wanted[:-1])} or {wanted[-1]}; its columns are "
        f"{', '.join(schema.names)}."
    )


def _bytes(path: Path, group: int, row: int, column: str) -> bytes:
    cell = _group(path, group)[column][row].as_py()
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not content:
        raise InputError(f"'{column}' of row {row} in {path} holds no picture; embed the files before saving.")
    return bytes(content)


def _paint(decoder: ByValue, cell: tuple[Path, int, int, str], size: Size, blank: int) -> Ids:
    path, _, row, column = cell
    where = f"'{column}' of row {row} in {path}"
    try:
        with Image.open(io.BytesIO(_bytes(*cell))) as picture:
            values = np.array(picture)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
        raise InputError(f"{where} is not a picture.") from None
    if values.ndim == 3:
        if (values[..., :3] != values[..., :1]).any():
            raise InputError(f"{where} holds colours, not class ids.")
        values = values[..., 0]
    return decoder.decoded(values.astype(np.int32), where, size, blank)
