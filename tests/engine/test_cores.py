import pytest

from incseg.config import RunConfig, load_recipe
from incseg.engine import cores
from incseg.engine.cores import FIRST_STEP_THREADS, SHARE, share_of_cores, usable_cores
from incseg.engine.evaluator import loading_processes


def test_there_is_a_core_to_use() -> None:
    assert usable_cores() >= 1


def test_several_processes_share_the_cores_unless_the_person_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    shares = [share_of_cores(jobs) for jobs in (2, 3, 20)]
    assert shares == [{SHARE: n, "OMP_NUM_THREADS": n} for n in ("4", "2", "1")]
    assert share_of_cores(1) == {}
    alone = share_of_cores(2, waited_for=True)
    assert alone == {SHARE: "4", "OMP_NUM_THREADS": "4", FIRST_STEP_THREADS: "8"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for waited_for in (False, True):
        assert share_of_cores(2, waited_for=waited_for) == {SHARE: "4", "OMP_NUM_THREADS": "3"}


@pytest.mark.parametrize(("share", "expected"), [("3", 3), ("100", 6), ("0", 1), ("many", 6), ("", 6)])
def test_a_run_of_a_study_loads_images_with_its_share(
    share: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(6), raising=False)
    monkeypatch.setenv(SHARE, share)
    config: RunConfig = load_recipe("voc/15-5/overlapped")
    assert usable_cores() == expected
    assert loading_processes(config) == expected


@pytest.mark.parametrize(("own", "expected"), [(16, 4), (8, 8)])
def test_devices_of_a_machine_share_its_cores_unless_each_has_its_own(
    own: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHARE, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(own), raising=False)
    assert loading_processes(load_recipe("voc/15-5/overlapped", {"engine": {"devices": 4}})) == expected
