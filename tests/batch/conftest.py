"""Maps run on virtual time; those that ask for `cue` run on both stores, in memory and in a file."""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from runcue import Cue
from runcue.testing import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where a queue is kept."""
    return None if request.param == "memory" else tmp_path / "queue.db"


@pytest.fixture
async def cue(path: Path | None) -> AsyncIterator[Cue]:
    """A Cue that is closed in the end."""
    one = Cue(path)
    yield one
    await one.close()
