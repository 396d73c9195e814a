"""Real processes that share a queue, in a file or on a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import stage
from tests.faults.stage import Stage
from tests.fleet.place import FilePlace, Place, PostgresPlace
from tests.pg.fixtures import pg, pg_server

__all__ = ["pg", "pg_server", "stage"]


@pytest.fixture
def file_place(stage: Stage, tmp_path: Path) -> Iterator[FilePlace]:
    yield FilePlace(stage, tmp_path)
    stage.clear()


@pytest.fixture
def server_place(stage: Stage, tmp_path: Path, pg: str) -> Iterator[PostgresPlace]:
    yield PostgresPlace(stage, tmp_path, pg)
    stage.clear()


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest) -> Place:
    """Either of them."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found
