"""Opens a queue by its place, a file or an address: here alone it is known which stores there are.

A store is imported where it is first used, because its driver may be missing, and is slow to import.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from runcue.declare.arguments import NEEDS_PSYCOPG
from runcue.errors import ConfigError
from runcue.host.address import is_server
from runcue.stores.postgres.address import address_of

if TYPE_CHECKING:
    from runcue.ports import Insertion
    from runcue.stores.sql.snapshot_reader import SnapshotReader
    from runcue.stores.sql.store import SqlStore


class Inserter(Protocol):
    """Inserts rows into a queue, on a connection of its own."""

    @property
    def insertion(self) -> Insertion:
        """How anybody submits to this queue."""
        ...

    def insert(self, rows: str) -> None:
        """Insert rows and commit them."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def store_at(place: str, name: str, *, insecure: bool, **given: Any) -> SqlStore:
    """The store of a process that takes part in a queue."""
    if not is_server(place):
        from runcue.stores.sqlite.store import sqlite_store

        return sqlite_store(place, insecure=insecure, **given)
    address = address_of(place, name)
    with _driver():
        from runcue.stores.postgres.store import postgres_store
    return postgres_store(address, **given)


def snapshots_at(place: str, name: str, *, insecure: bool, is_pooled: bool = False) -> SnapshotReader:
    """What looks at a queue from outside; with `is_pooled` it keeps nothing in a session of the server."""
    if not is_server(place):
        from runcue.stores.sqlite.snapshot_reader import FileSnapshotReader

        return FileSnapshotReader(place, insecure=insecure)
    address = address_of(place, name)
    with _driver():
        from runcue.stores.postgres.sessionless import connected
        from runcue.stores.postgres.snapshot_reader import PostgresSnapshotReader
    return PostgresSnapshotReader(address, connected if is_pooled else None)


def inserter_at(place: str, name: str, *, insecure: bool) -> Inserter:
    """What submits to a queue from outside, on a connection of its own; a file is made where there is none."""
    if not is_server(place):
        from runcue.stores.sqlite.inserter import FileInserter

        return FileInserter(place, insecure=insecure)
    address = address_of(place, name)
    with _driver():
        from runcue.stores.postgres.sessionless import PostgresInserter
    return PostgresInserter(address)


def grant_at(place: str, name: str, role: str, *, with_tables: bool) -> None:
    """Let a role submit to a queue in PostgreSQL."""
    with _driver():
        from runcue.stores.postgres.script import grant
        from runcue.stores.postgres.sessionless import connected
    with closing(connected(address_of(place, name))) as link:
        grant(link, role, with_tables=with_tables)


@contextmanager
def _driver() -> Iterator[None]:
    """Say which package is missing where an import fails."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(NEEDS_PSYCOPG) from error
