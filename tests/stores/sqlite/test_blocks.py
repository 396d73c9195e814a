"""Rows that are written several at a time are the very rows that are written one by one."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from runcue.stores.sql import columns, statements
from runcue.stores.sqlite.blocks import SIZE, Blocks, in_blocks
from runcue.stores.sqlite.schema import migrate
from runcue.stores.sqlite.statements import SQLITE

UNITS, GRANTS = (
    "SELECT * FROM work_units ORDER BY seq",
    "SELECT service, started_at, amount, key, work_id FROM service_log ORDER BY id",
)


def unit(number: int, **fields: Any) -> tuple[Any, ...]:
    """The values of INSERT_PLAIN."""
    kinds = {column.name: column.plain_kind for column in columns.EVERY}
    usual = {str: "x", int: 0, float: 1.5, bool: 0}
    row = {name: usual[kinds[name]] for name in columns.PLAIN}
    row |= {
        "id": f"u{number}",
        "seq": number,
        "params": f'{{"page":{number}}}',
        "token": 7 * number,
        **fields,
    }
    return tuple(row.values())


def written(write: str, rows: list[tuple[Any, ...]], statement: Any, read: str) -> list[Any]:
    connection = apsw.Connection(":memory:")
    migrate(connection)
    send = connection.executemany if write == "one by one" else in_blocks(connection)
    send(statement, iter(rows))
    return connection.execute(read).fetchall()


@pytest.mark.parametrize("amount", [0, 1, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE])
@pytest.mark.parametrize("others", [(), (0,), (1,), (SIZE,), (2 * SIZE + 1,)])
def test_blocks_write_what_single_rows_write(amount: int, others: tuple[int, ...]) -> None:
    rows = [unit(n, **({"queue": "night", "leased_by": None} if n in others else {})) for n in range(amount)]
    found = written("in blocks", rows, SQLITE.insert_plain, UNITS)
    assert found == written("one by one", rows, statements.INSERT_PLAIN, UNITS)
    assert len(found) == amount


@pytest.mark.parametrize("amount", [1, SIZE, 2 * SIZE + 1])
def test_grants_that_differ_in_their_units_alone_share_the_rest(amount: int) -> None:
    rows = [("api", 1.5, 1, None, f"u{n}") for n in range(amount)]
    assert written("in blocks", rows, SQLITE.insert_grant, GRANTS) == rows


def test_what_the_rows_of_a_block_share_is_bound_once() -> None:
    blocks = SQLITE.insert_plain
    assert isinstance(blocks, Blocks)
    own, names = 4, len(columns.PLAIN)
    rows = [unit(n) for n in range(SIZE)]
    assert len(blocks.sent(rows)[1]) == names - own + SIZE * own
    rows[3] = unit(3, queue="night")
    assert len(blocks.sent(rows)[1]) == SIZE * names


def test_other_statements_go_to_the_connection_as_they_are() -> None:
    rows = [("api", 1.5, 1, None, "u1")]
    assert written("in blocks", rows, statements.GRANT_INSERT, GRANTS) == rows
