"""The fixtures for everything in this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.outside.inserting import Outsider, on_file, on_postgres
from tests.outside.mariadb import MariaDB, mariadb
from tests.pg.fixtures import pg, pg_own, pg_server

__all__ = ["pg", "pg_own", "pg_server"]


@pytest.fixture(scope="session")
def mysql() -> Iterator[MariaDB]:
    """A server for an application's own data."""
    with mariadb() as server:
        yield server


@pytest.fixture(params=["file", "postgres"])
def outsider(request: pytest.FixtureRequest, tmp_path: Path) -> Outsider:
    """A queue, and somebody who inserts into it and has no part in it."""
    if request.param == "file":
        return on_file(tmp_path / "queue.db")
    return on_postgres(request.getfixturevalue("pg"))
