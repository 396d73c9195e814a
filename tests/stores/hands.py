"""A store in a file whose turns a test takes by hand, and changes that are made to the file beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from runcue.stores.sql.store import SqlStore
from runcue.stores.sqlite import schema
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing.manual_turns import Hand

OLD_NAMES = {
    "shelves": "index_heads",
    "set_aside": "quarantine",
    "shelf": "index_key",
    "place": "sort_key",
    "told": "last_event_seq",
}
"""What tables and columns were called before step 6, and since."""
EMPTY = {"workers", "mail"}
"""Tables that are left empty in a file of an older version: those of processes, none of which has it open."""


def opened(path: Path, **options: Any) -> SqlStore:
    """A store on that file."""
    return sqlite_store(str(path), **{"durability": "relaxed", "lease": 30.0, **options})


def inside(store: SqlStore) -> Any:
    """The database behind a store, whose parts are private."""
    return store._database


@asynccontextmanager
async def hand_on(path: Path, **options: Any) -> AsyncIterator[tuple[Hand, SqlStore]]:
    """A hand that takes turns on that file, and its store."""
    store = opened(path, **options)
    try:
        yield Hand(store, {}), store
    finally:
        await store.close()


def change(path: Path, statement: str, *bindings: Any) -> None:
    """Change something by hand, which nobody should do."""
    connection = apsw.Connection(str(path))
    connection.execute(statement, bindings).fetchall()
    connection.close()


def take_back(path: Path, version: int) -> None:
    """Rewrite a file as that older version of the schema would have written it."""
    old = apsw.Connection(str(path) + ".old")
    for step in schema.MIGRATIONS[:version]:
        old.execute(step).fetchall()
    old.execute(
        f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = {version}"
    ).fetchall()
    old.execute("ATTACH ? AS new", (str(path),))
    tables = [str(name) for (name,) in old.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for table in tables:
        if table in EMPTY:
            continue
        source = table if version >= 6 else OLD_NAMES.get(table, table)
        known = _columns(old, "new", source)
        pairs = {
            name: name if version >= 6 else OLD_NAMES.get(name, name) for name in _columns(old, "main", table)
        }
        pairs = {name: source for name, source in pairs.items() if source in known}
        old.execute(f"DELETE FROM {table}").fetchall()
        old.execute(
            f"INSERT INTO {table} ({', '.join(pairs)}) SELECT {', '.join(pairs.values())} FROM new.{source}"
        ).fetchall()
    old.execute("DETACH new").fetchall()
    old.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.with_name(path.name + ".old").replace(path)


def _columns(connection: apsw.Connection, schema_name: str, table: str) -> list[str]:
    asked = connection.execute("SELECT name FROM pragma_table_info(?, ?)", (table, schema_name))
    return [str(name) for (name,) in asked]
