"""A statement is planned when a connection first sees it, and not again for each value that is bound to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from runcue.stores.sql import statements
from runcue.stores.sqlite.file import identity, open_beside, open_file
from runcue.stores.sqlite.statements import SQLITE

STATEMENTS: dict[str, tuple[tuple[Any, ...], ...]] = {
    SQLITE.page: (("a", 1.0, 2, 5), ("a", 1.0, 2, 5), ("b", 3.0, 4, 50)),
    statements.WATCHED: ((1.0, 1, 2.0, 5), (1.0, 1, 2.0, 5), (2.0, 2, 9.0, 50)),
    SQLITE.oldest: ((1, 5), (1, 5), (7, 50)),
}
OPENED: dict[str, Callable[[str], apsw.Connection]] = {
    "to write": open_file,
    "beside": lambda path: open_beside(path, identity(path)),
    "to read": lambda path: open_file(path, read_only=True),
}


@pytest.mark.parametrize("how", OPENED)
def test_what_is_bound_does_not_have_a_statement_planned_anew(how: str, tmp_path: Path) -> None:
    path = str(tmp_path / "queue.db")
    open_file(path).close()
    connection = OPENED[how](path)
    asked: list[int] = []

    def may(action: int, *_: object) -> int:
        """SQLite asks while it plans, and only then."""
        asked.append(action)
        return apsw.SQLITE_OK

    connection.authorizer = may
    try:
        for statement, (first, *others) in STATEMENTS.items():
            connection.execute(statement, first).fetchall()
            assert asked, "it was planned once"
            asked.clear()
            for values in others:
                connection.execute(statement, values).fetchall()
            assert asked == []
    finally:
        connection.authorizer = None
        connection.close()
