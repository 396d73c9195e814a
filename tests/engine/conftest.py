"""Every test of the engine runs on virtual time, and on both stores: in memory and in a file."""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import pytest

import runcue.cue
from runcue.connect import file_of
from runcue.testing import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of what only memory promises are marked `memory`."""
    stores = ["memory"] if metafunc.definition.get_closest_marker("memory") else ["memory", "file"]
    metafunc.parametrize("store", stores, indirect=True)


@pytest.fixture(autouse=True)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a Cue() keeps its queue."""
    where: str = request.param
    if where == "file":
        numbers = count()

        def in_a_file(target: object) -> str | None:
            return file_of(target) or str(tmp_path / f"queue{next(numbers)}.db")

        monkeypatch.setattr(runcue.cue, "file_of", in_a_file)
    return where
