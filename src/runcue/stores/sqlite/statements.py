"""What SQLite is asked in its own words. It is told which index to use where its planner would take another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from runcue.core.model.record import WorkState
from runcue.stores.sql import columns, statements
from runcue.stores.sql.connection import Row
from runcue.stores.sql.statements import SELECT, Dialect
from runcue.stores.sqlite.blocks import Blocks, in_blocks

DATA_VERSION: Final = "PRAGMA data_version"
"""Finds a number that changes when another connection has committed anything."""
MANY: Final = 500
"""How many texts one statement names."""


def _batches(texts: Iterable[str]) -> Iterator[Row]:
    wanted = list(texts)
    for start in range(0, len(wanted), MANY):
        yield tuple(wanted[start : start + MANY])


def any_of(column: str, texts: Iterable[str], first: int = 1) -> Iterator[tuple[str, Row]]:
    """Conditions under which a column is one of these texts; `first` is the number of the first that is bound."""
    for some in _batches(texts):
        yield f"{column} IN ({','.join('?' * len(some))})", some


def newest_of(keys: Iterable[str]) -> Iterator[tuple[str, Row]]:
    """Conditions that find the newest unit with each of these unique keys."""
    newest = "(SELECT max(seq) FROM work_units WHERE unique_key = column1)"
    for some in _batches(keys):
        yield f"seq IN (SELECT {newest} FROM (VALUES {','.join(['(?)'] * len(some))}))", some


SQLITE: Final = Dialect(
    many=in_blocks,
    insert=statements.INSERT,
    insert_plain=Blocks("work_units", columns.PLAIN, columns.USUAL, own=("id", "seq", "params", "token")),
    start=statements.START,
    finish=statements.FINISH,
    update=statements.UPDATE,
    edit=statements.EDIT,
    insert_attempt=statements.ATTEMPT_INSERT,
    insert_grant=Blocks("service_log", columns.GRANT, own=("work_id",)),
    insert_letter=statements.LETTER,
    insert_tag=statements.TAG_INSERT,
    end_tag=statements.TAG_END,
    delete_post=statements.POST_DELETE,
    delete_submission=statements.SUBMISSION_DELETE,
    # In two parts: one comparison of pairs would walk through all rows of one sort key, which a whole batch may have.
    page=f"{SELECT} WHERE index_key = $1 AND sort_key = $2 AND seq > $3 "
    f"UNION ALL {SELECT} WHERE index_key = $1 AND sort_key > $2 ORDER BY sort_key, seq LIMIT $4",
    oldest=f"{SELECT} INDEXED BY work_units_pending WHERE seq > $1 AND state = 'pending' ORDER BY seq LIMIT $2",
    submitted="SELECT at, body FROM inbox WHERE instr(body, $1) > 0 ORDER BY id",
    submissions=statements.SUBMISSIONS,
    config="SELECT key, value FROM config WHERE typeof(key) = 'text' AND typeof(value) = 'text'",
    ask=lambda connection, questions: [connection.execute(one).fetchall() for one in questions],
    spare=None,
    any_of=any_of,
    newest_of=newest_of,
    by_state={
        None: "WHERE true",
        WorkState.PENDING: "INDEXED BY work_units_pending WHERE state = 'pending'",
        WorkState.RUNNING: "WHERE index_key >= 'running/' AND index_key < 'running0' AND state = 'running'",
        WorkState.FAILED: "INDEXED BY work_units_failed WHERE state = 'failed'",
        WorkState.CANCELLED: "INDEXED BY work_units_cancelled WHERE state = 'cancelled'",
        WorkState.COMPLETED: "WHERE state = 'completed'",
    },
    service="(instr(services, {0}) OR instr(services, substr({0}, 1, length({0}) - 1) || '['))",
    search="instr(lower(concat_ws(char(10), id, idempotency_key, label, target, last_error, params)), lower({0}))",
)
