"""What PostgreSQL is asked in its own words: many rows at once, a turn's first question, exchanges in one statement.

SQLite likes one statement for each row, and costs nothing between two statements; PostgreSQL has to be asked seldom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from runcue.core.model.record import WorkState
from runcue.stores.postgres.bulk import ByKey, inserting, updating
from runcue.stores.postgres.texts import escaped
from runcue.stores.sql import columns, statements
from runcue.stores.sql.connection import Connection, Row
from runcue.stores.sql.inbox import MOST_SIGNS
from runcue.stores.sql.statements import SELECT, Dialect

_decode = msgspec.json.Decoder(list[list[dict[str, Any]] | None]).decode


def any_of(column: str, texts: Iterable[str], first: int = 1) -> Iterator[tuple[str, Row]]:
    """The condition under which a column is one of these texts; `first` is the number of what is bound."""
    wanted = [escaped(text) for text in texts]
    if wanted:
        yield f"{column} = ANY(${first})", (wanted,)


def newest_of(keys: Iterable[str]) -> Iterator[tuple[str, Row]]:
    """The condition that finds the newest unit with each of these unique keys."""
    wanted = [escaped(key) for key in keys]
    if wanted:
        newest = "(SELECT max(seq) FROM work_units WHERE unique_key = wanted.key)"
        yield f"seq IN (SELECT {newest} FROM unnest($1::text[]) AS wanted (key))", (wanted,)


def ask(connection: Connection, questions: Sequence[str]) -> list[list[Any]]:
    """All in one statement, as one text: each statement of its own would cost as much as all of them."""
    parts = ", ".join(f"(SELECT json_agg(q) FROM ({statement}) AS q)" for statement in questions)
    [(text,)] = connection.execute(f"SELECT json_build_array({parts})::text").fetchall()
    return [[tuple(found.values()) for found in answer or ()] for answer in _decode(text)]


def _first_of(table: str, names: Sequence[str]) -> str:
    """The first rows of a table, in the order of their first column, as many as are not too much in their last."""
    said, key, text = ", ".join(names), names[0], names[-1]
    return (
        f"SELECT {said} FROM (SELECT {said}, sum(length({text})) OVER (ORDER BY {key}) - length({text}) AS before "
        f"FROM (SELECT * FROM {table} ORDER BY {key} LIMIT ${{}}) AS first) AS found "
        f"WHERE before <= {MOST_SIGNS} ORDER BY {key}"
    )


_INBOX: Final = _first_of("inbox", ("id", "worker", "number", "body"))
INBOX: Final = _INBOX.format(1)
"""As many posts as one turn may take."""
_KEYS: Final = ("seq", "id")
POSTGRES: Final = Dialect(
    many=lambda connection: connection.executemany,
    insert=inserting("work_units", columns.WRITTEN),
    insert_plain=inserting(
        "work_units", columns.PLAIN, columns.USUAL, own=[("id", "seq", "params", "token")]
    ),
    start=updating(
        "work_units",
        columns.STARTED,
        _KEYS,
        own=[("token", *_KEYS), ("token", "leased_by", "index_key", *_KEYS)],
    ),
    finish=updating("work_units", columns.FINISHED, _KEYS, own=[("result", *_KEYS)]),
    update=updating("work_units", columns.CHANGED, ("id",)),
    edit=updating("work_units", columns.SUBMITTED, ("id",)),
    insert_attempt=inserting("attempts", columns.ATTEMPT),
    insert_grant=inserting("service_log", columns.GRANT),
    insert_letter=inserting("letters", columns.LETTER),
    insert_tag=inserting("unit_tags", columns.TAG, own=[("unit",)]),
    end_tag=updating("unit_tags", ("ending",), ("tag", "value", "unit"), also="unit_tags.ending = 0"),
    delete_post=ByKey("DELETE FROM inbox WHERE id = ANY($1)"),
    delete_submission=ByKey("DELETE FROM submissions WHERE number = ANY($1)"),
    # By `work_units_by_index_key` alone: of two parts joined, PostgreSQL would read and sort all that is left.
    page=f"{SELECT} WHERE index_key = $1 AND (sort_key, seq) > ($2, $3) ORDER BY sort_key, seq LIMIT $4",
    oldest=f"{SELECT} WHERE seq > $1 AND state = 'pending' ORDER BY seq LIMIT $2",
    submitted="SELECT at, body FROM inbox WHERE strpos(body, $1) > 0 ORDER BY id",
    submissions=_first_of("submissions", statements.SUBMISSION).format(1),
    config="SELECT key, value FROM config WHERE value IS NOT NULL",
    ask=ask,
    spare=20,
    any_of=any_of,
    newest_of=newest_of,
    by_state={
        None: "WHERE true",
        **{state: f"WHERE state = '{state.value}'" for state in WorkState},
        WorkState.RUNNING: "WHERE index_key >= 'running/' AND index_key < 'running0' AND state = 'running'",
    },
    service="(strpos(services, {0}) > 0 OR strpos(services, left({0}, -1) || '[') > 0)",
    search="strpos(lower(concat_ws(chr(10), id, idempotency_key, label, target, last_error, params)), lower({0})) "
    "> 0",
)

BEGIN: Final = f"{statements.HEAD}, identity, clock_offset, extract(epoch FROM clock_timestamp())::float8"
"""The counters, which queue this is, how far the server's clock is from queue time, and what that clock says."""
OPENING: Final = (
    f"SELECT {BEGIN}, CASE WHEN revision = $1 AND decider = $2 "
    f"THEN (SELECT json_agg(q) FROM ({_INBOX.format(3)}) AS q)::text END, "
    "EXISTS (SELECT 1 FROM submissions) FROM head"
)
"""All that a turn has to know of who goes on deciding: the counters, what others left for it, and whether anything
was submitted from outside."""
_KEPT: Final = (
    "ON CONFLICT (worker) DO UPDATE SET turn = excluded.turn "
    "WHERE commits.turn < excluded.turn RETURNING turn"
)
_UNREAD: Final = "ARRAY(SELECT number FROM inbox WHERE worker = $1)"
POST: Final = (
    f"WITH kept AS (INSERT INTO commits SELECT $1::text, $2::bigint FROM head WHERE identity = $3::text {_KEPT}), "
    "posted AS (INSERT INTO inbox (worker, number, at, body) "
    "SELECT $1, $4::bigint, $5::float8, $6::text FROM kept) "
    f"SELECT (SELECT turn FROM kept), {_UNREAD}, EXISTS (SELECT 1 FROM letters WHERE worker = $1), "
    f"fleet, {BEGIN} FROM head"
)
"""Leaves a post: $1 is whose it is, $2 twice the number of its commit, $4 to $6 are the post. Finds whether there are
letters, too. In another queue than $3 it does nothing, nor when it comes late, after its answer was given up and
asked for (FENCE)."""
TAKE: Final = (
    "WITH kept AS (INSERT INTO commits SELECT $1::text, $2::bigint + 1 FROM head WHERE identity = $3::text "
    f"AND EXISTS (SELECT 1 FROM letters WHERE worker = $1) {_KEPT}), "
    "taken AS (DELETE FROM letters WHERE worker = $1 AND EXISTS (SELECT 1 FROM kept) RETURNING id, kind, body), "
    f"given AS ({SELECT} WHERE index_key = 'running/' || $1 AND token > $4::bigint "
    "AND EXISTS (SELECT 1 FROM taken WHERE kind = 'start')) "
    f"SELECT (SELECT turn FROM kept), {_UNREAD}, "
    "CASE WHEN row_number() OVER () = 1 THEN (SELECT json_agg(t ORDER BY id) FROM taken AS t)::text END, "
    "CASE WHEN NOT EXISTS (SELECT 1 FROM letters WHERE worker = $1 AND kind = 'start') "
    "THEN set_config('synchronous_commit', 'off', true) END, "
    f"stand.*, given.* FROM (SELECT fleet, {BEGIN} FROM head) AS stand LEFT JOIN given ON true"
)
"""Takes the letters of a worker, if there are any; $1 to $3 are as in POST, but that `commits` gets one more than $2.
With starts come the units that this worker runs, from the token $4 on, each in a row beside the other answers.
The reading of starts is synced, as a post is: otherwise a server that crashes would give them out once more, to this
worker or, taken back, to another. The reading of other letters is not: this worker knows those it has read lately
when they come again (`_unseen`)."""
FENCE: Final = (
    "INSERT INTO commits VALUES ($1, $2) ON CONFLICT (worker) DO UPDATE SET turn = excluded.turn "
    "WHERE commits.turn < excluded.turn - 1 RETURNING xmax = 0"
)
"""Finds a row when an exchange has not taken place, and never will; waits for one that is under way. True when
nothing was known of this worker: what it had committed, if anything, was forgotten."""
COMMITTED: Final = (
    "INSERT INTO commits VALUES ($1, $2) ON CONFLICT (worker) DO UPDATE SET turn = excluded.turn"
)
LAST_COMMIT: Final = "SELECT turn FROM commits WHERE worker = $1"
FORGET: Final = ("DELETE FROM commits WHERE worker = ANY($1)", "DELETE FROM beats WHERE worker = ANY($1)")
"""What is stored of workers besides their row."""
BEAT: Final = (
    "INSERT INTO beats VALUES ($1, extract(epoch FROM clock_timestamp())) "
    "ON CONFLICT (worker) DO UPDATE SET at = excluded.at"
)
SEEN: Final = (
    "SELECT workers.id, coalesce(beats.at, 0)::float8 FROM workers LEFT JOIN beats ON worker = workers.id "
    "WHERE boot != $1"
)
"""Every worker elsewhere, with its last sign of life."""
CLOCK_OFFSET: Final = "UPDATE head SET clock_offset = $1"
NOTIFY: Final = "SELECT pg_notify($1, $2)"
