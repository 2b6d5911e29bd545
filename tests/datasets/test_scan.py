import json
import time
from pathlib import Path

import numpy as np
import pytest

from incseg.datasets import open_source, scan
from incseg.datasets.scan import class_presence
from incseg.images import index_image
from samples import write_folder


def test_presence_is_what_the_masks_show_and_comes_from_the_cache_the_second_time(tmp_path: Path) -> None:
    source = open_source("folder", write_folder(tmp_path / "data", train=5, val=2, size=32))
    seen: list[int] = []
    found = class_presence(source.train, source.classes, tmp_path, lambda done, _: seen.append(done))
    for index, ids in enumerate(found):
        assert ids == frozenset(source.train.mask(index).unique().tolist()) - {255}
    assert seen == [1, 2, 3, 4, 5]
    assert class_presence(source.train, source.classes, tmp_path, lambda done, _: seen.append(done)) == found
    assert len(seen) == 5, "the second scan must not read the masks again"


def test_a_changed_mask_is_scanned_again(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=3, val=1, size=32)
    source = open_source("folder", root)
    class_presence(source.train, source.classes, tmp_path)
    time.sleep(0.01)
    index_image(np.full((32, 32), 4, np.uint8)).save(root / "masks" / "000.png")
    assert class_presence(source.train, source.classes, tmp_path)[0] == frozenset({4})


@pytest.mark.parametrize(
    "left_there",
    [
        "[[1], [1], [1]]",  # as the first version wrote it
        json.dumps({"format": scan.CACHE_FORMAT + 1, "ids": [[1], [1], [1]]}),
        json.dumps({"format": scan.CACHE_FORMAT, "ids": [[1], [1], [1]]})[:20],  # cut off
    ],
)
def test_a_cache_of_another_version_is_built_anew(tmp_path: Path, left_there: str) -> None:
    source = open_source("folder", write_folder(tmp_path / "data", train=3, val=1, size=32))
    found = class_presence(source.train, source.classes, tmp_path)
    (cache,) = (tmp_path / "scans").iterdir()
    written = cache.read_text()
    cache.write_text(left_there)
    assert class_presence(source.train, source.classes, tmp_path) == found
    assert cache.read_text() == written


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    source = open_source("folder", write_folder(tmp_path / "data", train=2, val=1, size=32))
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert len(class_presence(source.train, source.classes, blocked)) == 2
