"""Rows that differ in little and rows that differ in much are kept alike, though they travel in different ways."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from runcue.core.model.record import Record, Spec, WorkState
from runcue.stores.postgres import schema
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link
from runcue.stores.postgres.statements import POSTGRES
from runcue.stores.sql import codec
from runcue.stores.sql.columns import FINISHED, PLAIN, STARTED

NOW = 1.8e9
TEXTS = ('{"page":1}', '{"text":"\\u0000 and \uf8ff"}', '{"text":"\uf8ff0 ’"}')


def pending(number: int, **changes: Any) -> Record:
    spec = Spec(f"work {number}", "task", TEXTS[number % len(TEXTS)].encode(), ("api",))
    record = Record(spec.id, spec, number, NOW, NOW, since=NOW, index_key="ready", sort_key=NOW)
    return replace(record, **changes)


def kept(link: Link, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return link.execute(f"SELECT {', '.join(columns)} FROM work_units ORDER BY seq").fetchall()


ALIKE = [pending(number) for number in range(1, 8)]
DIFFERENT = [pending(number, rank=float(number), index_key=f"key {number}") for number in range(1, 8)]


@pytest.mark.parametrize("records", [ALIKE, DIFFERENT, ALIKE[:1]], ids=["alike", "different", "one"])
def test_rows_come_back_as_they_were_however_they_travelled(pg: str, records: list[Record]) -> None:
    with closing(Link(Address(pg))) as link:
        schema.migrate(link)
        rows = [codec.plain_row(record, NOW) for record in records]
        link.executemany(POSTGRES.insert_plain, rows)
        assert kept(link, PLAIN) == rows

        running = [replace(one, state=WorkState.RUNNING, token=one.seq, started_at=NOW) for one in records]
        link.executemany(POSTGRES.start, starts := [codec.start_row(one, NOW, NOW + 30) for one in running])
        assert kept(link, (*STARTED, "seq", "id")) == starts

        ended = [
            replace(
                one,
                state=WorkState.COMPLETED,
                token=0,
                completed_at=NOW,
                result=None if one.seq == 2 else "\0",
            )
            for one in running
        ]
        link.executemany(POSTGRES.finish, finishes := [codec.finish_row(one, NOW) for one in ended])
        assert kept(link, (*FINISHED, "seq", "id")) == finishes


def test_what_rows_share_travels_once() -> None:
    bulk = POSTGRES.insert_plain
    alike, texts = bulk.sent([codec.plain_row(record, NOW) for record in ALIKE])
    different, text = bulk.sent([codec.plain_row(record, NOW) for record in DIFFERENT])
    assert alike != different
    assert ["".join(texts).count('"task"'), "".join(text).count('"task"')] == [1, len(DIFFERENT)]
