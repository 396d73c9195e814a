"""Submits on a connection of the user's own, in the user's transaction: the units exist if that is committed.

Rules:
- A connection is known by where its class comes from. No driver is imported here.
- One statement is executed on it, an INSERT, and nothing else is asked or changed.
- Outside of a transaction the INSERT would be committed at once. That is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final, NoReturn

from runcue.errors import StoreError, SubmitError
from runcue.ports import Insertion, SharedStore
from runcue.stores.sql.submissions import Row, rows_text

KNOWN: Final = (
    "a connection of psycopg, asyncpg, SQLAlchemy or Django to the queue's database, a session of SQLAlchemy, or a "
    "connection of apsw to the queue's file"
)
ABORTED: Final = "25P02"
NOT_THERE: Final = ("42P01", "3F000")
FORBIDDEN: Final = "42501"
AUTOCOMMIT: Final = (
    "The connection is in no transaction: what is submitted on it would exist at once, whatever becomes of the rest. "
    "Begin a transaction first, or leave connection= out."
)


async def insert(connection: Any, store: object, rows: Sequence[Row]) -> None:
    """Leave these rows for the queue in that store, in the transaction that the connection is in."""
    if not isinstance(store, SharedStore):
        raise SubmitError(
            "connection= needs a queue in the database of the connection: Cue('postgresql://…') or Cue('queue.db'). "
            "A queue in memory has no part in any transaction."
        )
    insertion = store.insertion
    with _explained(insertion):
        amount = _execute(connection, insertion, rows_text(rows))
        _check(await amount if isawaitable(amount) else amount, insertion)


def insert_now(connection: Any, insertion: Insertion, rows: str) -> None:
    """Insert these rows, in the transaction that the connection is in, without an event loop."""
    with _explained(insertion):
        amount = _execute(connection, insertion, rows)
        if isawaitable(amount):
            amount.close()  # type: ignore[attr-defined] # it is a coroutine, and never awaited
            raise SubmitError(
                f"A Client cannot await {type(connection).__name__}. Give it a connection without async, or submit "
                "with a Cue."
            )
        _check(amount, insertion)


@contextmanager
def _explained(insertion: Insertion) -> Iterator[None]:
    """Raise what users can make sense of instead of a driver's error."""
    try:
        yield
    except Exception as error:
        refusal = _refusal(error, insertion)
        if refusal is None:
            raise
        raise refusal from error


def _check(amount: int, insertion: Insertion) -> None:
    """Refuse a connection on which nothing was inserted."""
    if amount == 0:
        raise StoreError(
            f"The connection leads to another queue than {insertion.where}. Give a connection to the same "
            f"{'file' if insertion.database == 'SQLite' else 'database'}.",
            insertion.where,
        )


def _execute(connection: Any, insertion: Insertion, rows: str) -> int | Awaitable[int]:
    """How many rows were inserted, or will have been."""
    origins = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    for origin, execute in DRIVERS.items():
        if origin in origins:
            return execute(connection, insertion, insertion.values(rows))
    raise SubmitError(f"connection= takes {KNOWN}, not {type(connection).__name__}.")


def _refusal(error: Exception, insertion: Insertion) -> Exception | None:
    """What to raise instead of a driver's error; None where that says enough."""
    code = _code(error)
    if code == ABORTED:
        return SubmitError(
            "The transaction of the connection has failed already. Roll it back, and submit in a new one."
        )
    if code == FORBIDDEN:
        return StoreError(
            f"The user of the connection may not submit to {insertion.where}. Have the owner of the queue grant it "
            "INSERT on the table submissions and SELECT on the table head.",
            insertion.where,
        )
    if code in NOT_THERE or "no such table: " in str(error):
        return StoreError(
            f"The connection leads to a database without the queue {insertion.where}. Give a connection to the "
            "database that the Cue was made with.",
            insertion.where,
        )
    return None


def _code(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, which may be the cause of another's."""
    for one in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if code is not None:
            return str(code)
    return None


def _text(insertion: Insertion, placeholder: Callable[[int], str]) -> str:
    count = insertion.statement.count("{}")
    return insertion.statement.format(*(placeholder(number) for number in range(1, count + 1)))


def _need(insertion: Insertion, database: str) -> None:
    """Refuse a connection to a database of another kind."""
    if insertion.database != database:
        raise StoreError(
            f"The connection leads to {database}, and the queue {insertion.where} is in {insertion.database}. Give a "
            "connection to the queue's own database.",
            insertion.where,
        )


def _refuse_sqlite3(insertion: Insertion) -> NoReturn:
    """Refuse another copy of SQLite than ours: when it closes a file, the locks of ours are gone."""
    _need(insertion, "SQLite")
    raise SubmitError(
        "Python's sqlite3 is another copy of SQLite than the one that runcue uses. Two copies in one process drop "
        f"each other's locks, and {insertion.where} would be damaged. Use a connection of apsw, or keep your data in "
        "a file of its own and submit through runcue.Outbox."
    )


# --- Drivers --------------------------------------------------------------------------------------


def _psycopg(connection: Any, insertion: Insertion, values: Sequence[Any]) -> int | Awaitable[int]:
    """psycopg, sync or async, and psycopg2."""
    _need(insertion, "PostgreSQL")
    if connection.autocommit and not connection.info.transaction_status:
        raise SubmitError(AUTOCOMMIT)
    cursor, statement = connection.cursor(), _text(insertion, lambda number: "%s")
    if not iscoroutinefunction(cursor.execute):
        cursor.execute(statement, values)
        return _counted(cursor)

    async def executed() -> int:
        async with cursor:
            await cursor.execute(statement, values)
            return int(cursor.rowcount)

    return executed()


def _counted(cursor: Any) -> int:
    amount = int(cursor.rowcount)
    cursor.close()
    return amount


async def _asyncpg(connection: Any, insertion: Insertion, values: Sequence[Any]) -> int:
    _need(insertion, "PostgreSQL")
    if not connection.is_in_transaction():
        raise SubmitError(AUTOCOMMIT)
    status: str = await connection.execute(_text(insertion, lambda number: f"${number}"), *values)
    return int(status.rpartition(" ")[2])


def _sqlalchemy(connection: Any, insertion: Insertion, values: Sequence[Any]) -> int | Awaitable[int]:
    """SQLAlchemy: a connection or a session, sync or async."""
    if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):

        async def executed() -> int:
            one = await connection.connection() if hasattr(connection, "sync_session") else connection
            amount = await one.run_sync(lambda sync: _sqlalchemy(sync, insertion, values))
            return int(amount)

        return executed()
    one = connection if hasattr(connection, "dialect") else connection.connection()
    if one.dialect.name == "sqlite":
        _refuse_sqlite3(insertion)
    _need(insertion, "PostgreSQL" if one.dialect.name == "postgresql" else one.dialect.name)
    raw = one.connection.dbapi_connection
    if getattr(raw, "autocommit", None) is True or getattr(raw, "isolation_level", "") == "autocommit":
        raise SubmitError(AUTOCOMMIT)  # psycopg says it by itself, asyncpg by the level
    statement = sys.modules["sqlalchemy"].text(_text(insertion, lambda number: f":v{number}"))
    bound = {f"v{number}": value for number, value in enumerate(values, 1)}
    return int(one.execute(statement, bound).rowcount)


def _django(connection: Any, insertion: Insertion, values: Sequence[Any]) -> int:
    if connection.vendor == "sqlite":
        _refuse_sqlite3(insertion)
    _need(insertion, "PostgreSQL" if connection.vendor == "postgresql" else connection.vendor)
    if not connection.in_atomic_block and connection.get_autocommit():
        raise SubmitError(AUTOCOMMIT)
    cursor = connection.cursor()
    cursor.execute(_text(insertion, lambda number: "%s"), values)
    return _counted(cursor)


def _sqlite3(connection: Any, insertion: Insertion, values: Sequence[Any]) -> int:
    _refuse_sqlite3(insertion)


def _apsw(connection: Any, insertion: Insertion, values: Sequence[Any]) -> int:
    _need(insertion, "SQLite")
    if not connection.in_transaction:
        raise SubmitError(AUTOCOMMIT)
    connection.execute(_text(insertion, lambda number: "?"), values)
    return int(connection.changes())


DRIVERS: Final[dict[str, Callable[[Any, Insertion, Sequence[Any]], int | Awaitable[int]]]] = {
    "sqlalchemy": _sqlalchemy,
    "django": _django,
    "asyncpg": _asyncpg,
    "psycopg": _psycopg,
    "psycopg2": _psycopg,
    "sqlite3": _sqlite3,
    "apsw": _apsw,
}
"""By the package that the class of a connection, or of one that it is derived from, comes from."""
