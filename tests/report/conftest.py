"""Two made-up runs that most tests of the report read."""

import pytest

from incseg.report.summary import read_runs
from incseg.results import Run
from sample_runs import write_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return read_runs([write_run(folder / name, name) for name in ("ft", "mib")])
