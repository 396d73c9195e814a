"""Every test of the engine runs on virtual time, and on each store: in memory, in a file and in PostgreSQL."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg
import pytest

from runcue.declare import arguments
from runcue.stores.postgres import schema
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.store import PostgresDatabase
from runcue.stores.sql.database import Database, StoreOptions
from runcue.stores.sql.store import SqlStore
from runcue.testing import VirtualLoop
from tests.pg.fixtures import pg_server
from tests.pg.server import Given, Server
from tests.sample import ALL

__all__ = ["pg_server"]

STORES = ("memory", "file", "postgres")
LARGE = frozenset({
    "test_a_chain_of_three_thousand_runs_to_its_end",
    "test_thousands_of_dependents_fail_in_one_go",
    "test_fan_out_and_fan_in_of_three_thousand",
    "test_all_dead_letters_are_purged_however_many",
})  # fmt: skip
"""What takes thousands of turns: too long where each of them asks a server."""
COVERING = frozenset({"test_forecast.py", "test_quantities.py"})
"""Tried in memory and in a file at any rate: together they take branches of core (COVERED in the Makefile)."""


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of what only one of them promises are marked with its name."""
    stores = [one for one in STORES if metafunc.definition.get_closest_marker(one)] or [*STORES]
    if len(stores) > 1:
        stores = _stores_for(metafunc.function, is_for_all=ALL or metafunc.definition.path.name in COVERING)
    metafunc.parametrize("store", stores, indirect=True)


def _stores_for(function: Any, *, is_for_all: bool) -> list[str]:
    """All of them with `make test-all`. Else one by its name: PostgreSQL for every ninth (with `make postgres` for
    all), in memory or in a file for the others.

    Tests that make up many examples open a queue for each, and PostgreSQL has few connections.
    """
    number = crc32(function.__name__.encode())
    is_for_postgres = not hasattr(function, "hypothesis") and function.__name__ not in LARGE
    if is_for_all:
        return [*STORES] if is_for_postgres and (ALL or number % 9 == 0) else ["memory", "file"]
    return ["postgres"] if is_for_postgres and number % 9 == 0 else [("memory", "file")[number % 2]]


@cache
def _database(server: Server | Given) -> str:
    """One database for all tests: to empty its tables is cheaper than to make others."""
    return server.database()


def _emptied(url: str, schema: str) -> None:
    """Take away what an earlier test left."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("SELECT relname FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace "
                                    "WHERE relkind = 'r' AND nspname = %s", (schema,)).fetchall()  # fmt: skip
        statements = [f"DELETE FROM {schema}.{name}" for (name,) in tables if name not in {"about", "head"}]
        if statements:
            counters = ("revision", "seq", "token", "last_event_seq", "now", "pending", "running", "completed",
                        "failed", "cancelled", "blocked", "clock_offset")  # fmt: skip
            statements.append(f"UPDATE {schema}.head SET {', '.join(f'{name} = 0' for name in counters)}")
            connection.execute(";".join(statements).encode())


@pytest.fixture(autouse=True)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a Cue() is like: "memory", or "file" for what several processes may share, in PostgreSQL as well.

    Few tests close theirs: what it holds is let go of afterwards.
    """
    where: str = request.param
    stores: list[SqlStore] = []
    numbers = count()
    url = _database(request.getfixturevalue("pg_server")) if where == "postgres" else ""
    original = arguments.queue_place

    def shared(target: object) -> str | None:
        return original(target) or url or str(tmp_path / f"queue{next(numbers)}.db")

    make, open_database = SqlStore.__init__, PostgresDatabase.__init__

    def remembered(store: SqlStore, database: Database, options: StoreOptions) -> None:
        make(store, database, options)
        stores.append(store)

    def emptied(database: PostgresDatabase, address: Address, options: StoreOptions) -> None:
        address = Address(address.url, f"t{next(numbers)}")
        _emptied(address.url, address.schema)
        open_database(database, address, options)

    if where != "memory":
        monkeypatch.setattr(arguments, "queue_place", shared)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr(
            schema, "check_server", lambda link: []
        )  # it runs without fsync, and would be warned of
        monkeypatch.setattr(SqlStore, "__init__", remembered)
        monkeypatch.setattr(PostgresDatabase, "__init__", emptied)
    yield "memory" if where == "memory" else "file"
    for one in stores:
        one.abandon()
