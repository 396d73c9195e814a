"""Every statement that is the same text for SQLite and PostgreSQL, by name, and what is said in the words of each.

Rules:
- A value is bound as $1, $2 and so on. PostgreSQL numbers them so; to SQLite they are names, which it numbers as they
  first appear. So they first appear in order in every statement; a test sees to that.
- What the databases are asked in different words is a field of `Dialect`: stores/sqlite/statements.py has SQLite's,
  stores/postgres/statements.py PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from runcue.core.model.record import WorkState
from runcue.core.model.state import BreakerState, Head, Worker
from runcue.stores.sql import columns
from runcue.stores.sql.connection import Connection, Row


def set_of(names: Sequence[str]) -> str:
    """`name = $n` for each of these columns."""
    return ", ".join(f"{name} = ${number}" for number, name in enumerate(names, 1))


def insert_into(table: str, names: Iterable[str], usual: Mapping[str, Any] | None = None) -> str:
    """INSERT of a row with these columns, and with others that hold the same in every row."""
    names, fixed = list(names), usual or {}
    values = (*(f"${number}" for number in range(1, len(names) + 1)), *map(literal, fixed.values()))
    return f"INSERT INTO {table} ({', '.join((*names, *fixed))}) VALUES ({', '.join(values)})"


def upsert_into(table: str, names: Sequence[str]) -> str:
    """INSERT of a row with these columns, or an update of the row that has the first of them already."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    return f"{insert_into(table, names)} ON CONFLICT ({names[0]}) DO UPDATE SET {changes}"


def literal(value: str | int) -> str:
    """A plain word or a number in SQL."""
    return f"'{value}'" if isinstance(value, str) else str(value)


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What one database is asked in its own words."""

    many: Callable[[Connection], Callable[[Any, Iterable[Row]], Any]]
    """What sends the statements for `executemany` through a connection."""
    insert: Any
    """INSERT of units; this and the next eleven are for `executemany`."""
    insert_plain: Any
    """INSERT of units of which most columns are as usual (columns.PLAIN)."""
    start: Any
    finish: Any
    update: Any
    edit: Any
    """UPDATE of what units were submitted with."""
    insert_attempt: Any
    insert_grant: Any
    insert_letter: Any
    insert_tag: Any
    end_tag: Any
    """UPDATE of how the units of tags have ended."""
    delete_post: Any
    delete_submission: Any

    page: str
    """The next rows under an index key ($1) after a sort key ($2) and a number ($3), $4 at most."""
    oldest: str
    """The first pending units after a number ($1), $2 at most."""
    submitted: str
    """The posts whose text has $1 in it."""
    submissions: str
    """The first rows of what was submitted from outside, $1 at most."""
    config: str
    """What the application stored, but for what is no text."""
    ask: Callable[[Connection, Sequence[str]], list[list[Any]]]
    """The rows that each of some statements finds."""
    spare: int | None
    """How many more rows than it needs a list asks for, since some may be damaged; None where rows are read one by
    one, and it asks for all."""
    newest_of: Callable[[Iterable[str]], Iterator[tuple[str, Row]]]
    """Conditions that find the newest unit with each of some unique keys, as many in each as one statement may name,
    with what is bound."""
    any_of: Callable[..., Iterator[tuple[str, Row]]]
    """Conditions under which a column is one of some texts, as many in each as one statement may name, with what is
    bound, which begins with $1 or another number: `any_of(column, texts, first=1)`."""
    by_state: Mapping[WorkState | None, str]
    """The WHERE that finds units in a state: few run at any time, and most of what there is has completed."""
    service: str
    """The condition that a service, given as JSON ({0}), or a key of it is among a unit's."""
    search: str
    """The condition that a text ({0}) occurs in a unit."""

    @property
    def tally(self) -> str:
        """How many units of each task are pending and running."""
        return " UNION ALL ".join(
            f"SELECT '{state.value}', task_type, count(*) FROM work_units {self.by_state[state]} GROUP BY task_type"
            for state in (WorkState.PENDING, WorkState.RUNNING)
        )


# --- Units ----------------------------------------------------------------------------------------

SELECT: Final = f"SELECT {', '.join(columns.COLUMNS)} FROM work_units"
SELECT_ONE: Final = f"{SELECT} WHERE id = $1"
SELECT_NUMBER: Final = f"{SELECT} WHERE seq = $1"
SELECT_DEPENDENTS: Final = (
    f"{SELECT} WHERE id IN (SELECT work_id FROM dependencies WHERE needs = $1) ORDER BY seq"
)
SELECT_RUNNING: Final = f"{SELECT} WHERE index_key = $1 ORDER BY seq"
INSERT: Final = insert_into("work_units", columns.WRITTEN)
INSERT_PLAIN: Final = insert_into("work_units", columns.PLAIN, columns.USUAL)
START: Final = (
    f"UPDATE work_units SET {set_of(columns.STARTED)} "
    f"WHERE seq = ${len(columns.STARTED) + 1} AND id = ${len(columns.STARTED) + 2}"
)
FINISH: Final = (
    f"UPDATE work_units SET {set_of(columns.FINISHED)} "
    f"WHERE seq = ${len(columns.FINISHED) + 1} AND id = ${len(columns.FINISHED) + 2}"
)
UPDATE: Final = f"UPDATE work_units SET {set_of(columns.CHANGED)} WHERE id = ${len(columns.CHANGED) + 1}"
EDIT: Final = f"UPDATE work_units SET {set_of(columns.SUBMITTED)} WHERE id = ${len(columns.SUBMITTED) + 1}"
SELECT_TAGGED: Final = (
    f"SELECT {', '.join(columns.COLUMNS)} FROM unit_tags CROSS JOIN work_units WHERE seq = unit"
)
NEXT_NUMBER: Final = "SELECT seq, created_at, since FROM work_units WHERE seq >= $1 ORDER BY seq LIMIT 1"
HAS_UNIT: Final = "SELECT 1 FROM work_units WHERE id = $1"
RENEW_LEASES: Final = "UPDATE work_units SET lease_expires_at = $1 WHERE index_key = $2 RETURNING 1"
WATCHED: Final = (
    f"{SELECT} WHERE watch_at >= $1 AND (watch_at > $1 OR seq > $2) AND watch_at <= $3 "
    "ORDER BY watch_at, seq LIMIT $4"
)
NEXT_WATCH: Final = "SELECT min(watch_at) FROM work_units WHERE watch_at > $1"
FIRST_WATCH: Final = "SELECT min(watch_at) FROM work_units WHERE watch_at > 0.0"
DEPENDENTS: Final = (
    "SELECT work_id FROM dependencies JOIN work_units ON id = work_id WHERE needs = $1 ORDER BY seq"
)
INSERT_DEPENDENCY: Final = "INSERT INTO dependencies VALUES ($1, $2) ON CONFLICT DO NOTHING"
FORGOTTEN: Final = "SELECT id, state FROM forgotten WHERE {}"

ATTEMPT_INSERT: Final = insert_into("attempts", columns.ATTEMPT)
ATTEMPT_SELECT: Final = (
    "SELECT number, at, duration, error, worker FROM "
    "(SELECT * FROM attempts WHERE work_id = $1 ORDER BY id DESC LIMIT $2) AS latest ORDER BY id"
)
"""The lines of one history, oldest first; the limit is row[-1] of its unit's row."""
HISTORY_LENGTH: Final = "SELECT history FROM work_units WHERE id = $1"
NEWEST_ATTEMPT: Final = "SELECT number, at FROM attempts WHERE work_id = $1 ORDER BY id DESC LIMIT 1"
OLD_ATTEMPTS: Final = (
    "DELETE FROM attempts WHERE work_id = $1 AND id < "
    "(SELECT id FROM attempts WHERE work_id = $1 ORDER BY id DESC LIMIT 1 OFFSET $2)"
)
"""Deletes all but the newest lines of a history."""

# --- Tags and groups ------------------------------------------------------------------------------

TAG_INSERT: Final = insert_into("unit_tags", columns.TAG)
TAG_END: Final = "UPDATE unit_tags SET ending = $1 WHERE tag = $2 AND value = $3 AND ending = 0 AND unit = $4"
TAG_DELETE: Final = "DELETE FROM unit_tags WHERE tag = $1 AND value = $2 AND ending = $3 AND unit = $4"
TAGS_DELETE: Final = "DELETE FROM unit_tags WHERE unit = $1"
"""Reads all tags: for a unit that is damaged, whose tags cannot be told."""
TAG_COUNT: Final = "SELECT ending, count(*) FROM unit_tags WHERE tag = $1 AND value = $2 GROUP BY ending"
NUMBER_AND_STATE: Final = "SELECT seq, state FROM work_units WHERE id = $1"
GROUPS: Final = f"SELECT {', '.join(columns.GROUP)} FROM unit_groups WHERE {{}}"
GROUP_NAMES: Final = "SELECT name FROM unit_groups ORDER BY name LIMIT $1"
GROUPS_LATEST: Final = (
    "SELECT name FROM (SELECT name, 1 AS place, NULL AS done_at FROM unit_groups WHERE done_at IS NULL "
    "UNION ALL SELECT name, 2, done_at FROM unit_groups WHERE done_at IS NOT NULL) AS found "
    "ORDER BY place, done_at DESC, name LIMIT $1"
)
GROUP_UPSERT: Final = upsert_into("unit_groups", columns.GROUP)
GROUP_DELETE: Final = "DELETE FROM unit_groups WHERE name = $1"

# --- Index keys, events, settings -----------------------------------------------------------------

INDEX_HEADS: Final = "SELECT name, sort_key, seq FROM index_heads"
INDEX_HEAD: Final = "SELECT sort_key, seq FROM work_units WHERE index_key = $1 ORDER BY sort_key, seq LIMIT 1"
INDEX_HEAD_UPSERT: Final = (
    f"INSERT INTO index_heads SELECT $1, sort_key, seq, $2 FROM (SELECT 1) AS one LEFT JOIN ({INDEX_HEAD}) AS first "
    "ON true WHERE true "
    "ON CONFLICT (name) DO UPDATE SET sort_key = excluded.sort_key, seq = excluded.seq, revision = excluded.revision "
    "RETURNING sort_key, seq"
)
"""Stores which record is the first under an index key, if there is one, and says which it is."""
EVENT_INSERT: Final = "INSERT INTO events VALUES ($1, $2, $3, $4, $5)"
EVENT_FIRST: Final = "SELECT first_seq, at FROM events ORDER BY first_seq LIMIT 1"
EVENTS: Final = (
    "SELECT body, first_seq, at, amount FROM events WHERE first_seq + amount > $1 AND first_seq > "
    "coalesce((SELECT max(first_seq) FROM events WHERE first_seq <= $1), 0) - 1 ORDER BY first_seq LIMIT $2"
)
"""The events of whole turns from a number on."""
EVENTS_FROM: Final = "SELECT first_seq, at FROM events WHERE first_seq >= $1 ORDER BY first_seq LIMIT 1"
PAUSED: Final = "SELECT name FROM paused_queues ORDER BY name"
PAUSE: Final = "INSERT INTO paused_queues VALUES ($1) ON CONFLICT DO NOTHING"
RESUME: Final = "DELETE FROM paused_queues WHERE name = $1"
CONFIG_DELETE: Final = "DELETE FROM config WHERE key = $1"
CONFIG_INSERT: Final = "INSERT INTO config VALUES ($1, $2)"
SCHEDULES: Final = "SELECT name, body FROM schedules ORDER BY name"
SCHEDULE_UPSERT: Final = upsert_into("schedules", ("name", "body"))
SCHEDULE_DELETE: Final = "DELETE FROM schedules WHERE name = $1"
TASKS: Final = "SELECT name, rule FROM tasks"
TASK_UPSERT: Final = upsert_into("tasks", ("name", "rule"))

# --- Counters, services, grants -------------------------------------------------------------------

HEAD: Final = ", ".join(Head.__struct_fields__)
HEAD_SELECT: Final = f"SELECT {HEAD} FROM head"
HEAD_UPDATE: Final = f"UPDATE head SET {set_of((*Head.__struct_fields__, 'turn'))}"
"""Writes `turn`, too: which process wrote last, and in which of its turns."""
REVISION: Final = "SELECT revision FROM head"
FLEET_CHANGED: Final = "UPDATE head SET fleet = fleet + 1"
"""Tells the others that workers came, went or changed."""
DECIDER_GONE: Final = "UPDATE head SET decider = NULL WHERE decider = $1"

SERVICE: Final = ("name", "concurrent", "rates", "circuit_threshold", "circuit_timeout", "is_paused",
                  "throttled_until", "throttle_streak", "extra")  # fmt: skip
CIRCUIT: Final = ("service", *BreakerState.__struct_fields__)
SERVICE_COLUMNS: Final = ", ".join((*SERVICE, *(f"circuit_state.{name}" for name in CIRCUIT)))
SERVICE_SELECT: Final = f"SELECT {SERVICE_COLUMNS} FROM services LEFT JOIN circuit_state ON service = name"
"""Services with their circuits."""
SERVICE_UPSERT: Final = upsert_into("services", (*SERVICE, "revision"))
CIRCUIT_UPSERT: Final = upsert_into("circuit_state", (*CIRCUIT, "revision"))
CIRCUIT_DELETE: Final = "DELETE FROM circuit_state WHERE service = $1"

GRANT_INSERT: Final = insert_into("service_log", columns.GRANT)
GRANT_SELECT: Final = "SELECT service, started_at, amount, coalesce(key, ''), work_id FROM service_log"
STARTS: Final = (
    "SELECT service, started_at, CAST(sum(amount) AS double precision), coalesce(key, ''), NULL "
    "FROM service_log "
    "WHERE started_at > $1 AND {} GROUP BY service, started_at, coalesce(key, '') HAVING sum(amount) > 0 "
    "ORDER BY started_at"
)
"""What is left of all grants of some services that count from the same moment on."""
SPENT: Final = (
    "SELECT coalesce(key, ''), CAST(sum(amount) AS double precision), started_at FROM service_log "
    "WHERE service = $1 AND started_at >= $2 AND work_id = $3 GROUP BY key, started_at ORDER BY min(id)"
)
"""How many calls ('') and how much of each quantity of a service were counted for each start of a unit, the latest
start last."""
STARTED: Final = (
    "WITH RECURSIVE started (name) AS (SELECT min(service) FROM service_log UNION ALL "
    "SELECT (SELECT min(service) FROM service_log WHERE service > name) FROM started WHERE name IS NOT NULL) "
    "SELECT name FROM started WHERE name IS NOT NULL"
)
"""From each name on to the next by the index: the log may be long, and the names are few."""

# --- Workers, posts, letters ----------------------------------------------------------------------

WORKER_SELECT: Final = f"SELECT {', '.join(Worker.__struct_fields__)} FROM workers"
WORKER_UPSERT: Final = upsert_into("workers", Worker.__struct_fields__)
WORKER_DELETE: Final = "DELETE FROM workers WHERE id = $1"
WORKER_SIGN_OFF: Final = (
    "DELETE FROM workers WHERE id = $1 "
    "AND NOT EXISTS (SELECT 1 FROM work_units WHERE index_key IN ('running/' || $1, 'held/' || $1)) RETURNING 1"
)
"""Deletes a worker of which nothing runs any more."""
POST: Final = "INSERT INTO inbox (worker, number, at, body) VALUES ($1, $2, $3, $4)"
UNREAD: Final = "SELECT number FROM inbox WHERE worker = $1"
POST_DELETE: Final = "DELETE FROM inbox WHERE id = $1"
SUBMISSION: Final = ("number", "at", "kind", "id", "item")
SUBMISSIONS: Final = f"SELECT {', '.join(SUBMISSION)} FROM submissions ORDER BY number LIMIT $1"
SUBMISSION_DELETE: Final = "DELETE FROM submissions WHERE number = $1"
SUBMITTED_OUTSIDE: Final = (
    "SELECT number, at, id, item FROM submissions WHERE kind = 'submit' ORDER BY number"
)
SUBMITTED_OUTSIDE_ONE: Final = (
    "SELECT number, at, id, item FROM submissions WHERE kind = 'submit' AND id = $1 ORDER BY number LIMIT 1"
)
FIRST_SUBMISSION: Final = "SELECT (SELECT min(number) FROM submissions), decider FROM head"
"""Whether something was submitted from outside, and which process decides."""
LETTER: Final = insert_into("letters", columns.LETTER)
CLAIM: Final = "DELETE FROM letters WHERE worker = $1 RETURNING id, kind, body"
UNSTARTED: Final = "SELECT body FROM letters WHERE worker = $1 AND kind = 'start'"
TAKE_BACK: Final = "DELETE FROM letters WHERE worker = $1 AND kind = 'start' RETURNING body"
LETTERS_DELETE: Final = "DELETE FROM letters WHERE worker = $1"
GLIMPSE: Final = f"SELECT EXISTS (SELECT 1 FROM letters WHERE worker = $1), fleet, {HEAD} FROM head"
"""Whether there is anything for a worker, how often workers changed, and the counters."""

EVERYTHING: Final = (INDEX_HEADS, SERVICE_SELECT, WORKER_SELECT, TASKS, PAUSED, FIRST_WATCH)
"""What a process reads that has not decided last."""

# --- Damaged units --------------------------------------------------------------------------------

QUARANTINED: Final = "SELECT seq, index_key, watch_at FROM quarantine"
QUARANTINE: Final = (
    "INSERT INTO quarantine SELECT seq, index_key, watch_at FROM work_units "
    "WHERE seq = $1 AND index_key IS NOT NULL ON CONFLICT DO NOTHING RETURNING 1"
)
QUARANTINE_END: Final = "DELETE FROM quarantine WHERE seq = $1"
INDEX_KEY_DROP: Final = "UPDATE work_units SET index_key = NULL, watch_at = NULL WHERE seq = $1"
INDEX_KEY_RESTORE: Final = "UPDATE work_units SET index_key = $1, watch_at = $2 WHERE seq = $3"

# --- Deleting what is old -------------------------------------------------------------------------

OVER: Final = ("id", "attempt", "depends_on", "seq", "state", "group_name", "extra")
DELETABLE: Final = f"SELECT {', '.join(OVER)} FROM work_units WHERE id = $1"
PRUNABLE: Final = (
    f"SELECT {', '.join(OVER)} FROM work_units WHERE state IN ('completed', 'cancelled') AND completed_at < $1 "
    "AND NOT EXISTS (SELECT 1 FROM dependencies JOIN work_units AS other ON other.id = work_id "
    "WHERE needs = work_units.id AND other.state IN ('pending', 'running')) ORDER BY completed_at LIMIT $2"
)
OLD_GROUPS: Final = (
    "DELETE FROM unit_groups WHERE name IN (SELECT name FROM unit_groups WHERE done_at < $1 "
    "AND NOT EXISTS (SELECT 1 FROM unit_tags WHERE tag = '' AND value = unit_groups.name) "
    "ORDER BY done_at LIMIT $2) RETURNING 1"
)
"""Those that were done long ago and of which no unit is kept."""
OLD_EVENTS: Final = (
    "DELETE FROM events WHERE revision IN "
    "(SELECT revision FROM (SELECT revision, at FROM events ORDER BY revision LIMIT $1) AS first WHERE at < $2) "
    "RETURNING 1"
)
"""Reads the first few only: they were written in the order of time."""
OLD_GRANTS: Final = (
    "DELETE FROM service_log WHERE id IN "
    "(SELECT id FROM (SELECT id, started_at FROM service_log ORDER BY id LIMIT $1) AS first "
    "WHERE started_at < $2 AND id < (SELECT max(id) FROM service_log)) RETURNING 1"
)
"""Reads the first few only: they were written in the order of time. The last stays, so that no number comes
twice: processes remember up to which they have read."""
OLD_INDEX_HEADS: Final = (
    "DELETE FROM index_heads WHERE name IN (SELECT name FROM index_heads WHERE sort_key IS NULL "
    "AND revision < (SELECT revision FROM head) - $1 LIMIT $2) RETURNING 1"
)
"""Empty ones; a process that has not heard that one of them is empty finds nothing on it."""
OLD_SERVICES: Final = "SELECT name FROM services WHERE revision < (SELECT revision FROM head) - $1"
_KEEP_STATE: Final = "ON CONFLICT (id) DO UPDATE SET state = excluded.state"
REMEMBER: Final = (
    "INSERT INTO forgotten SELECT id, state FROM work_units "
    f"WHERE id = $1 AND (is_named = 1 OR state != 'completed') {_KEEP_STATE}"
)
REMEMBER_MADE: Final = (
    f"INSERT INTO forgotten SELECT id, state FROM work_units WHERE id = $1 AND is_named = 0 {_KEEP_STATE}"
)
DELETE_UNIT: Final = "DELETE FROM work_units WHERE id = $1"
DELETE_ATTEMPTS: Final = "DELETE FROM attempts WHERE work_id = $1"
DELETE_EDGE: Final = "DELETE FROM dependencies WHERE needs = $1 AND work_id = $2"
"""By its whole key: a file has no index of the units that depend, and SQLite would read all edges."""
DELETE_EDGES: Final = "DELETE FROM dependencies WHERE work_id = $1"
DELETE_SERVICE: Final = "DELETE FROM services WHERE name = $1"
DELETE_CIRCUITS: Final = "DELETE FROM circuit_state WHERE service NOT IN (SELECT name FROM services)"
DELETE_LETTERS: Final = "DELETE FROM letters WHERE worker NOT IN (SELECT id FROM workers)"
