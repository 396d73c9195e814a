"""A store in a file whose turns a test takes by hand, and changes that are made to the file beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from runcue.stores.sql.store import SqlStore
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing.manual_turns import Hand

BEFORE_STEP_6 = """
    DROP INDEX work_units_by_index_key;
    ALTER TABLE work_units RENAME COLUMN index_key TO shelf;
    ALTER TABLE work_units RENAME COLUMN sort_key TO place;
    CREATE INDEX work_units_on_shelf ON work_units (shelf, place) WHERE shelf IS NOT NULL;
    ALTER TABLE index_heads RENAME COLUMN sort_key TO place;
    ALTER TABLE index_heads RENAME TO shelves;
    ALTER TABLE quarantine RENAME COLUMN index_key TO shelf;
    ALTER TABLE quarantine RENAME TO set_aside;
    ALTER TABLE head RENAME COLUMN last_event_seq TO told;
    PRAGMA user_version = 5;
"""
"""Brings a file of this version back to version 5, which had other names."""


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
