import base64
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from incseg.report.album import LONGEST_SIDE, collect_album
from incseg.report.summary import read_runs
from incseg.results import Run
from sample_runs import write_run


def test_label_maps_survive_the_packing(runs: list[Run]) -> None:
    album = collect_album(runs)
    assert [picture.name for picture in album.images] == ["00", "01"]
    for run, packed in zip(runs, album.images[1].predictions, strict=True):
        for step, text in enumerate(packed):
            with Image.open(run.folder / f"step-{step}" / "predictions" / "01.prediction.png") as file:
                expected = np.asarray(file)
            unpacked = np.frombuffer(zlib.decompress(base64.b64decode(text or "")), np.uint8)
            assert np.array_equal(unpacked.reshape(expected.shape), expected)


def test_large_pictures_are_made_smaller_without_mixing_labels(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path / "run", pictures=1, size=1000))
    picture = collect_album([run]).images[0]
    assert (picture.width, picture.height) == (LONGEST_SIDE, LONGEST_SIDE)
    unpacked = np.frombuffer(zlib.decompress(base64.b64decode(picture.truth[1] or "")), np.uint8)
    assert set(unpacked.tolist()) == {0, 1, 2, 3, 4}


def test_runs_that_kept_different_pictures_share_a_page(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "a", "ft", pictures=1), write_run(tmp_path / "b", "mib", pictures=2)]
    album = collect_album(read_runs(folders))
    assert [len(picture.truth) for picture in album.images] == [2, 2]
    assert album.images[1].predictions[0] == [None, None]
    assert None not in album.images[1].predictions[1]
