import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from incseg.report.figures import old_and_new, over_the_steps
from incseg.report.summary import read_runs
from incseg.results import Run
from made_up import write_result


@pytest.mark.parametrize("draw", [over_the_steps, old_and_new])
@pytest.mark.parametrize("number", [1, 30])
def test_every_run_is_in_the_picture_by_name(draw: Callable[[Sequence[Run]], str], number: int, tmp_path: Path) -> None:
    weights = [{"ucd": {"weight": 0.5 + k}} for k in range(number)]
    folders = [
        write_result(tmp_path / str(k), "voc/15-5/overlapped", "mib+ucd", lambda *_: 0.5, overrides=each)
        for k, each in enumerate(weights)
    ]
    runs = read_runs(folders)
    picture = ET.fromstring(draw(runs))
    height = float(picture.attrib["viewBox"].split()[3])
    entries = [group for group in picture.iter() if "translate" in group.attrib.get("transform", "")]
    named = {"".join(entry.itertext()): entry.attrib["transform"] for entry in entries}
    assert {run.label for run in runs} <= named.keys()
    assert all(float(re.findall(r"[\d.]+", named[run.label])[1]) < height for run in runs)
