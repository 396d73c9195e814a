"""What SQLite itself does for the life of a unit: the same rows by the same statements, and nothing else.

No scheduler, no events, no counters, no thread, no loop: rows are made by cutting up one that the codec made, written
by `executemany`, a transaction for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import apsw
from msgspec import json

from runcue.core.model.record import Record, Spec, WorkState
from runcue.core.model.state import Grant
from runcue.stores.sql import codec, columns, statements, states
from runcue.stores.sqlite.file import open_file

BATCH = 100
RESULT = 1
Rows = list[tuple[Any, ...]]
_encode = json.Encoder().encode


class Mould:
    """Makes the rows of one life, from three that the codec made of a typical record."""

    def __init__(self, record: Record) -> None:
        now = record.created_at
        running = Record(record.id, record.spec, 1, now, now, WorkState.RUNNING, token=-1, started_at=now,
                         worker="worker", index_key="running/worker", since=now)  # fmt: skip
        final = Record(record.id, record.spec, 1, now, now, WorkState.COMPLETED, spent=1, started_at=now,
                       completed_at=now, result=RESULT, since=now)  # fmt: skip
        self._insert = codec.plain_row(record, now)
        self._start = codec.start_row(running, now, now + 30)
        self._finish = codec.finish_row(final, now)
        self._token = self._start.index(-1)

    def inserts(self, numbers: Sequence[int]) -> Rows:
        """The rows of INSERT."""
        place = columns.PLAIN.index("params")
        before, after = self._insert[2:place], self._insert[place + 1 :]
        return [
            (name(number), number, *before, _encode({"page": number}).decode(), *after) for number in numbers
        ]

    def starts(self, numbers: Sequence[int]) -> Rows:
        """The rows of START."""
        before, after = self._start[: self._token], self._start[self._token + 1 : -2]
        return [(*before, number, *after, number, name(number)) for number in numbers]

    def finishes(self, numbers: Sequence[int]) -> Rows:
        """The rows of FINISH."""
        before = self._finish[:-2]
        return [(*before, number, name(number)) for number in numbers]


def name(number: int) -> str:
    """An id as long as runcue's own."""
    return f"0199aabbccd0badcafe{number:08x}"


def typical() -> Record:
    """A pending unit as `submit("work", params={"page": 1})` leaves it."""
    now = 1.8e9
    spec = Spec(name(1), "work", b'{"page":1}', ("outside",))
    return Record(spec.id, spec, 1, now, now, since=now, index_key='ready ["default","work"]', sort_key=now)


def batches(count: int) -> Iterator[range]:
    """The numbers 1 … count, a hundred at a time."""
    for first in range(1, count + 1, BATCH):
        yield range(first, min(first + BATCH, count + 1))


def lives(path: str, count: int, *, in_one: bool) -> float:
    """Seconds for so many lives; `in_one` writes all three of a batch in one transaction instead of three."""

    def write(connection: apsw.Connection, mould: Mould) -> None:
        for numbers in batches(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(statements.INSERT_PLAIN, mould.inserts(numbers))
            if not in_one:
                connection.execute("COMMIT; BEGIN IMMEDIATE")
            start(connection, mould, numbers)
            if not in_one:
                connection.execute("COMMIT; BEGIN IMMEDIATE")
            connection.executemany(statements.FINISH, mould.finishes(numbers))
            connection.execute("COMMIT")

    return timed(path, count, write)


def lives_in_line(path: str, count: int) -> float:
    """The same three writes, but everything is inserted before the first is started: the queue is full at first."""

    def write(connection: apsw.Connection, mould: Mould) -> None:
        for numbers in batches(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(statements.INSERT_PLAIN, mould.inserts(numbers))
            connection.execute("COMMIT")
        for numbers in batches(count):
            connection.execute("BEGIN IMMEDIATE")
            start(connection, mould, numbers)
            connection.execute("COMMIT; BEGIN IMMEDIATE")
            connection.executemany(statements.FINISH, mould.finishes(numbers))
            connection.execute("COMMIT")

    return timed(path, count, write)


def start(connection: apsw.Connection, mould: Mould, numbers: Sequence[int]) -> None:
    """Claim these, with the grant that their service is to know of."""
    connection.executemany(statements.START, mould.starts(numbers))
    connection.execute(statements.GRANT_INSERT, states.grant_row(Grant("outside", 1.8e9, len(numbers))))


def timed(path: str, count: int, write: Callable[[apsw.Connection, Mould], None]) -> float:
    """Seconds for what writes so many lives into a new file."""
    connection = open_file(path)
    try:
        mould = Mould(typical())
        began = perf_counter()
        write(connection, mould)
        took = perf_counter() - began
        check(connection, count)
    finally:
        connection.close()
    return took


def check(connection: apsw.Connection, count: int) -> None:
    """Say so when that many units did not complete."""
    [(found,)] = connection.execute(
        "SELECT count(*) FROM work_units WHERE state = 'completed' AND result = '1'"
    )
    if found != count:
        raise RuntimeError(f"{found:,} of {count:,} units completed: nothing to measure")
