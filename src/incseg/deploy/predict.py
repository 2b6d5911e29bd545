"""``incseg predict``: segment many files; a file that cannot be read does not stop the others."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from incseg.console import Console, progress_of, publish
from incseg.deploy.asked import check_prediction
from incseg.deploy.model import Model
from incseg.errors import IncompleteError, InputError
from incseg.images import ImageFile, Pixels, read_image
from incseg.sizes import TILE

PATIENCE = 5.0  # seconds before a log is told how far it is


@dataclass
class Tally:
    """How many files were segmented, and which could not be read."""

    written: int = 0
    failed: list[str] = field(default_factory=list)


def predict_files(
    model: Model,
    images: Sequence[str | Path],
    out: Path,
    *,
    batch_size: int = 8,
    tile: int = TILE,
    longest_side: int | None = None,
    confidence: bool = False,
    console: Console | None = None,
) -> None:
    """Segment files, folders and patterns; per image three files are written to ``out``, or four with ``confidence``.

    Images are reduced to the longest side that the model remembers, or to the one given. A file that cannot be read is
    reported at once, and again at the end in an :class:`IncompleteError`.
    """
    files = check_prediction(images, out, batch_size=batch_size, tile=tile, longest_side=longest_side)
    if longest_side is not None:
        model = model.limited_to(longest_side)
    console = console or Console()
    tally, warning = Tally(), ""
    with progress_of("predicting", console, patience=PATIENCE) as advance:
        for batch in _batches(files, batch_size, tally, console):
            warning = warning or _warned(model, batch, console)
            predictions = model.predict_all([pixels for _, pixels in batch], tile, confidence=confidence)
            for (file, _), prediction in zip(batch, predictions, strict=True):
                prediction.save(out / file.name)
                tally.written += 1
            advance(tally.written + len(tally.failed), len(files))
    publish(out=out, images=[file.name for file in files if str(file.path) not in tally.failed], failed=tally.failed)
    console.say(f"{tally.written} of {len(files)} images segmented: {out}")
    if tally.failed:
        raise IncompleteError(
            f"{len(tally.failed)} of {len(files)} images could not be read: {', '.join(tally.failed)}"
        )


def _warned(model: Model, batch: Sequence[tuple[ImageFile, Pixels]], console: Console) -> str:
    """Say of the first image whose scale is far from the training's that it is."""
    for file, pixels in batch:
        sentence = model.far_from_training(pixels, "with --longest-side {}")
        if sentence:
            console.say(f"warning: {file.path} has {sentence}")
            return sentence
    return ""


def _batches(
    files: Sequence[ImageFile], size: int, tally: Tally, console: Console
) -> Iterator[list[tuple[ImageFile, Pixels]]]:
    """Read the next batch while the model works on the last one; report files that cannot be read."""

    def read(file: ImageFile) -> Pixels | InputError:
        try:
            return read_image(file.path)
        except InputError as error:
            return error

    with ThreadPoolExecutor(max_workers=size) as pool:
        chunks = [files[start : start + size] for start in range(0, len(files), size)]
        waiting = [pool.submit(read, file) for file in chunks[0]]
        for chunk, following in zip(chunks, [*chunks[1:], []], strict=True):
            results = [future.result() for future in waiting]
            waiting = [pool.submit(read, file) for file in following]
            batch = []
            for file, result in zip(chunk, results, strict=True):
                if isinstance(result, InputError):
                    tally.failed.append(str(file.path))
                    console.say(f"left out: {result}")
                else:
                    batch.append((file, result))
            if batch:
                yield batch
