"""Every test of the engine runs on virtual time, and on both stores: in memory and in a file."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

import runcue.cue
from runcue.connect import file_of
from runcue.testing import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture(autouse=True, params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a Cue() keeps its queue. Tests of what only memory promises are marked `memory`."""
    if request.param == "file":
        if request.node.get_closest_marker("memory"):
            pytest.skip("a rule of the store in memory")
        numbers = count()

        def in_a_file(target: object) -> str | None:
            return file_of(target) or str(tmp_path / f"queue{next(numbers)}.db")

        monkeypatch.setattr(runcue.cue, "file_of", in_a_file)
    yield request.param
