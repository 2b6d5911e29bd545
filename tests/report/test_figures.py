import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from incseg.report.figures import old_and_new, over_the_steps, principal
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


def test_of_the_variants_of_a_method_one_is_chosen(tmp_path: Path) -> None:
    variants = [("mib", 42, {}), ("mib+ucd", 42, {"ucd": {"weight": 0.5}}), ("mib+ucd", 42, {}), ("cd", 42, {}),
                ("cd", 42, {"cd": {"weight": 0.5}}), ("cd", 43, {"cd": {"weight": 0.5}})]  # fmt: skip
    runs = read_runs(
        [
            write_result(tmp_path / str(k), "voc/15-5/overlapped", method, lambda *_: 0.5, seed=seed, overrides=own)
            for k, (method, seed, own) in enumerate(variants)
        ]
    )
    assert [run.label for run in principal(runs)] == ["mib", "mib+ucd", *["cd (cd.weight 0.5)"] * 2]


def test_the_legend_is_in_the_order_of_the_chart(tmp_path: Path) -> None:
    values = {"mib": 0.2, "cd": 0.7, "ucd": 0.5}

    def folder(method: str) -> Path:
        return write_result(tmp_path / method, "voc/15-5/overlapped", method, lambda *_: values[method])

    picture = over_the_steps(read_runs([folder(method) for method in values]))
    entries = [group for group in ET.fromstring(picture).iter() if "translate" in group.attrib.get("transform", "")]
    assert ["".join(entry.itertext()) for entry in entries][-3:] == ["cd", "ucd", "mib"]


def test_a_method_looks_alike_in_all_charts_of_the_same_runs(tmp_path: Path) -> None:
    values = {"mib": (0.2, 0.7), "cd": (0.7, 0.1), "ucd": (0.5, 0.6)}  # old classes in one order, new ones in another

    def folder(method: str) -> Path:
        old, new = values[method]
        return write_result(tmp_path / method, "voc/15-5/overlapped", method, lambda _, c: new if c > 15 else old)

    runs, looks = read_runs([folder(method) for method in values]), []
    for draw in (over_the_steps, old_and_new):
        groups = (
            group for group in ET.fromstring(draw(runs)).iter() if "translate" in group.attrib.get("transform", "")
        )
        looks.append({"".join(entry.itertext()): entry.attrib.get("class") for entry in groups})
    assert {name: looks[0][name] for name in values} == {name: looks[1][name] for name in values}
    assert len({looks[0][name] for name in values}) == len(values)
