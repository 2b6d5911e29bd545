"""A web of our own for what would be downloaded."""

from collections.abc import Iterator

import pytest

from incseg.datasets import archives
from web import Web, serving


@pytest.fixture(autouse=True)
def _impatient_and_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web({})) as web:
        yield web
