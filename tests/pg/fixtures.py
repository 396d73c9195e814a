"""A PostgreSQL server for the tests that ask for one: one for each process that runs tests, a database for each test.

To be imported by a conftest.py. Without a server, tests are skipped on a laptop and fail where `CI` is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pg.proxy import Proxy
    from tests.pg.server import Given, Server


def _started(*, is_oldest: bool = False) -> Server:
    """A server, or no test."""
    from tests.pg.server import Missing, Server, oldest

    try:
        server = Server(binaries=oldest() if is_oldest else None)
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    server.start()
    return server


@cache
def _shared() -> Server | Given:
    """The same for every conftest.py that imports the fixtures."""
    from tests.pg.server import given

    return given() or _started()


@pytest.fixture(scope="session")
def pg_server() -> Iterator[Server | Given]:
    """One server for all tests: nobody crashes or stops it."""
    server = _shared()
    yield server
    server.stop()


@pytest.fixture
def pg(pg_server: Server | Given) -> Iterator[str]:
    """The URL of a fresh database."""
    dsn = pg_server.database()
    yield dsn
    pg_server.drop(dsn)


@pytest.fixture(scope="session")
def pg_oldest_server() -> Iterator[Server]:
    """The oldest server that can be had."""
    server = _started(is_oldest=True)
    yield server
    server.stop()


@pytest.fixture
def pg_oldest(pg_oldest_server: Server) -> Iterator[str]:
    """The URL of a fresh database on the oldest server that can be had."""
    dsn = pg_oldest_server.database()
    yield dsn
    pg_oldest_server.drop(dsn)


@pytest.fixture
def pg_own() -> Iterator[Server]:
    """A server for one test, which may crash it."""
    server = _started()
    yield server
    server.stop()


@pytest.fixture
def pg_proxy(pg: str) -> Iterator[Proxy]:
    """A proxy in front of the server for all: `pg_proxy.dsn(pg)` is the way through it."""
    from psycopg.conninfo import conninfo_to_dict

    from tests.pg.proxy import Proxy

    place = conninfo_to_dict(pg)
    with Proxy(int(place.get("port") or 5432), str(place.get("host") or "127.0.0.1")) as proxy:
        yield proxy
