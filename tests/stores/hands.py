"""A store in a file whose turns a test takes by hand, and changes that are made to the file beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from runcue.stores.sqlite.store import SqliteStore
from runcue.testing.manual_turns import Hand


def opened(path: Path, **options: Any) -> SqliteStore:
    """A store on that file."""
    return SqliteStore(str(path), **{"durability": "relaxed", "lease": 30.0, **options})


@asynccontextmanager
async def hand_on(path: Path, **options: Any) -> AsyncIterator[tuple[Hand, SqliteStore]]:
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
