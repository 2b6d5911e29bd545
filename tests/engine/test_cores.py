import pytest

from incseg.engine import cores
from incseg.engine.cores import share_of_cores, usable_cores


def test_there_is_a_core_to_use() -> None:
    assert usable_cores() >= 1


def test_several_processes_share_the_cores_unless_the_person_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [share_of_cores(jobs) for jobs in (2, 3, 20)] == [{"OMP_NUM_THREADS": str(n)} for n in (4, 2, 1)]
    assert share_of_cores(1) == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert share_of_cores(2) == {"OMP_NUM_THREADS": "3"}
