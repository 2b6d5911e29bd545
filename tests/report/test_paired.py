"""Differences seed by seed, and their significance, against definitions that share nothing with the code."""

import math
from pathlib import Path

import pytest
import scipy.integrate  # type: ignore[import-untyped]
import scipy.stats  # type: ignore[import-untyped]

from incseg.errors import InputError
from incseg.report.page import render
from incseg.report.paired import PairedDifference, paired_differences, paired_table, two_sided_p
from incseg.report.summary import read_runs
from made_up import write_result


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30])
@pytest.mark.parametrize("t", [0.0, -0.3, 1.0, 4.7, 60.0])
def test_p_is_the_area_under_students_density(t: float, freedom: int) -> None:
    def density(x: float) -> float:
        norm = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
        return norm * math.pow(1 + x**2 / freedom, -(freedom + 1) / 2)

    tail, _ = scipy.integrate.quad(density, abs(t), math.inf)
    assert two_sided_p(t, freedom) == pytest.approx(2 * tail, abs=1e-7)


@pytest.mark.parametrize("values", [[1.2, 0.7, 2.9], [0.4, -0.3], [-3.0, -2.0, -4.5, -1.0, -2.2]])
def test_the_test_is_that_of_scipy(values: list[float]) -> None:
    difference = PairedDifference(values)
    assert difference.p == pytest.approx(scipy.stats.ttest_1samp(values, 0).pvalue, rel=1e-9)
    assert difference.deviation == pytest.approx(scipy.stats.tstd(values))


def test_what_no_test_can_tell_has_no_p() -> None:
    assert str(PairedDifference([])) == "–"
    assert str(PairedDifference([1.25])) == "+1.2"  # one seed: no spread, no test
    assert str(PairedDifference([0.0, 0.0])) == "+0.0 ± 0.0"
    assert str(PairedDifference([2.0, math.nan])) == "–"
    assert str(PairedDifference([-2.0, -2.0])) == "−2.0 ± 0.0 (p < 0.001)"


def made_up_runs(folder: Path) -> list[Path]:
    """mib is better by 4, 6 and 8 points on the classes of step 0; its seed 44 has no partner."""
    better = {42: 0.04, 43: 0.06, 44: 0.08}
    methods = [("ft", seed, 0.0) for seed in (43, 42)] + [("mib", seed, more) for seed, more in better.items()]

    def write(method: str, seed: int, more: float) -> Path:
        def iou(_: int, channel: int) -> float:
            return 0.5 + (more if 1 <= channel <= 15 else 0)

        return write_result(folder / f"{method}-{seed}", "voc/15-5/overlapped", method, iou, seed=seed)

    return [write(*each) for each in methods]


def test_runs_are_paired_by_seed(tmp_path: Path) -> None:
    runs = read_runs(made_up_runs(tmp_path))
    scores = paired_differences(runs, "ft")["mib"]
    assert sorted(scores["base"].values) == pytest.approx([4.0, 6.0])
    assert scores["later"].values == pytest.approx([0.0, 0.0])
    assert sorted(scores["all w/o bg"].values) == pytest.approx([3.0, 4.5])
    assert sorted(scores["all+bg"].values) == pytest.approx([4.0 * 15 / 21, 6.0 * 15 / 21])
    table = paired_table(runs, "mib")
    assert table is not None
    assert table.rows[0][:4] == ["ft", "2", "0", "−5.0 ± 1.4 (p 0.126)"]  # t = -5 with one degree of freedom
    assert "difference from ft" in render(runs)
    with pytest.raises(InputError, match="--against plop is none of the methods: choose from ft, mib"):
        paired_table(runs, "plop")


def test_one_seed_is_compared_only_when_asked(tmp_path: Path) -> None:
    folders = made_up_runs(tmp_path)
    runs = read_runs([folders[0], folders[3]])
    assert paired_table(runs) is None
    assert paired_table(runs, "ft").rows == [["mib", "1", "0", "+6.0", "+0.0", "+4.5", "+4.3"]]  # type: ignore[union-attr]
    assert paired_table(read_runs([folders[0], folders[4]]), "ft") is None  # no seed in common


def test_pairs_that_share_their_step_0_are_counted(tmp_path: Path) -> None:
    first = {("mib", 42): 0.5, ("mib", 43): 0.6, ("ucd", 42): 0.5, ("ucd", 43): 0.61}

    def write(method: str, seed: int) -> Path:
        def iou(step: int, _: int) -> float:
            return first[method, seed] if step == 0 else 0.4

        return write_result(tmp_path / f"{method}-{seed}", "voc/15-5/overlapped", method, iou, seed=seed)

    table = paired_table(read_runs([write(*each) for each in first]))
    assert table is not None
    assert list(table.headers[:3]) == ["method", "n", "same step 0"]
    assert table.rows[0][:3] == ["ucd", "2", "1"]
