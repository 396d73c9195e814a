"""Makes the rows of a queue agree again after some of them were lost.

Rules:
- What follows from other rows is made anew from them: counters, index heads, edges, the length of histories.
- No number is given out twice: where the last ones are not known, the next are far beyond all that can have been.
- A unit that ran stays running, under a worker that is gone: the next process ends what is left of it and takes it
  over.
- A unit that depends on a lost one fails, for a person to decide: a lost unit does not count as completed.
- A row that the codec refuses is deleted, and counted.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import apsw
import msgspec
from msgspec.structs import replace

from runcue.core.ledger.ledger import HELD
from runcue.core.ledger.timers import BLOCKED, LATER, WALL
from runcue.core.model.events import EventDraft
from runcue.core.model.record import HISTORY_KEPT, WorkState
from runcue.core.model.state import Head, Worker
from runcue.core.schedule.line import READY, index_key_of, index_key_parts
from runcue.errors import StorageCorrupt, listed
from runcue.stores.presence import presence
from runcue.stores.sql import codec, columns, journal, statements, states, wire

Row = tuple[Any, ...]
REBUILT: Final = frozenset(
    {"dependencies", "index_heads", "letters", "quarantine", "tasks", "unit_groups", "unit_tags", "workers"}
)
"""Tables that are not copied: they follow from the others, or each process writes its own rows again."""
LEAP: Final = 1_000_000
"""How many numbers are skipped after the last known one when later ones may have been given out."""
LARGEST: Final = 2**53
YEAR: Final = 366 * 86400.0
DAY: Final = 86400.0
LONGEST_OUTAGE: Final = 30 * DAY
LOST: Final = "prerequisite_lost"
NOBODY: Final = "lost"
"""The worker of a running unit that names none."""

_made = re.compile(r"[0-9a-f]{27}")  # an id that runcue made: nothing depends on it before the unit exists


def _unpacked(row: Row) -> None:
    revision, body, first, at, amount = row
    if not (0 < revision <= LARGEST and 0 < first <= LARGEST):
        raise StorageCorrupt(f"The stored events from number {first} on have a number that cannot be.")
    if len(journal.unpack(body, first, at, lambda _: None)) != amount or amount < 1:
        raise StorageCorrupt(f"The stored events from number {first} on are not as many as they should be.")


def _accepted(body: str) -> None:
    try:
        wire.read_items(body)
    except wire.Unfamiliar:  # a newer release can read it
        return


READ: Final[dict[str, tuple[str, str, Callable[[Row], object]]]] = {
    "work_units": (
        "seq",
        f"SELECT seq, * FROM ({statements.SELECT})",
        lambda row: codec.read_row(row[1:]),
    ),
    "attempts": (
        "id",
        "SELECT id, work_id, number, at, duration, error, worker FROM attempts",
        lambda row: codec.read_attempts(row[1], [row[2:]]),
    ),
    "forgotten": ("id", "SELECT id, state FROM forgotten", lambda row: codec.read_state(*row)),
    "services": (
        "name",
        f"SELECT name, {', '.join(statements.SERVICE)}, NULL FROM services",
        lambda row: states.read_service(row[1:]),
    ),
    "circuit_state": (
        "service",
        f"SELECT service, {statements.SERVICE_COLUMNS} FROM services JOIN circuit_state ON service = name",
        lambda row: states.read_service(row[1:]),
    ),
    "service_log": (
        "id",
        "SELECT id, service, started_at, amount, coalesce(key, ''), work_id FROM service_log",
        lambda row: states.read_grant(row[1:]),
    ),
    "inbox": ("id", "SELECT id, body FROM inbox", lambda row: _accepted(row[1])),
    "events": (
        "revision",
        "SELECT revision, body, first_seq, at, amount FROM events",
        _unpacked,
    ),
}
"""For each table: its key, the statement that reads it, and the function that refuses a row which makes no sense."""


class Rebuild:
    """Makes a queue of the rows that could be copied into a new file."""

    def __init__(self, connection: apsw.Connection, head: dict[str, Any] | None, is_current: bool) -> None:
        """`head` is the row of counters, if it was found; `is_current` is False when commits are missing."""
        self._connection = connection
        self._execute = connection.execute
        self._is_current = is_current
        self._stored = head
        self._before = _sound_head(head)
        self.refused: dict[str, int] = {}
        """Rows of each table that were copied and could not be kept."""
        self.lost_units: set[str] = set()
        """The ids of units that existed and could not be kept."""
        self.problems: list[str] = []

    def run(self, known_ids: set[str]) -> None:
        """Rebuild everything; `known_ids` are the ids of the units that existed, as far as they are known."""
        for table in READ:
            self._drop_refused(table)
        kept = {name for (name,) in self._execute("SELECT id FROM work_units")}
        self.lost_units = known_ids - kept
        self._drop_leftovers()
        head = self._numbers()
        if self.lost_units:
            self.problems.append(f"{many(len(self.lost_units), 'unit')} lost: {listed(self.lost_units)}")
        self._write_edges(head.now)
        self._assign_workers(head)
        self._assign_index_keys(head.revision)
        self._fill_gaps(head)
        self._count(head)
        self._write_tags(head.now)

    # rows -------------------------------------------------------------------------------------------------

    def _drop_refused(self, table: str) -> None:
        key, select, read = READ[table]
        bad = []
        for row in self._execute(select):
            try:
                read(row)
            except StorageCorrupt:
                bad.append((row[0],))
        self._connection.executemany(f"DELETE FROM {table} WHERE {key} = ?", bad)
        if bad:
            self.refused[table] = len(bad)
            self.problems.append(f"{many(len(bad), 'row')} of table {table} made no sense, and was left out")

    def _drop_leftovers(self) -> None:
        """Delete rows that belong to rows which were lost."""
        self._execute(
            "DELETE FROM attempts WHERE work_id NOT IN (SELECT id FROM work_units); "
            "DELETE FROM circuit_state WHERE service NOT IN (SELECT name FROM services); "
            "DELETE FROM forgotten WHERE id IN (SELECT id FROM work_units); "
            "DELETE FROM config WHERE typeof(key) != 'text'; "
            "DELETE FROM paused_queues WHERE typeof(name) != 'text'"
        ).fetchall()
        self._execute(
            "UPDATE work_units SET history = min(?1, (SELECT count(*) FROM attempts WHERE work_id = work_units.id)) "
            "WHERE history != min(?1, (SELECT count(*) FROM attempts WHERE work_id = work_units.id))",
            (HISTORY_KEPT,),
        )

    # numbers ----------------------------------------------------------------------------------------------

    def _numbers(self) -> Head:
        """The counters to go on from: none is below what is in use."""
        self._renumber()
        before = self._before or Head()
        is_known = self._before is not None and self._is_current
        seq, token, event, revision, latest = self._one(
            "SELECT (SELECT max(seq) FROM work_units), (SELECT max(token) FROM work_units), "
            "(SELECT max(first_seq + amount - 1) FROM events), (SELECT max(revision) FROM events), "
            "(SELECT max(updated_at) FROM work_units WHERE updated_at < ?)",
            (time.time() + DAY,),
        )
        head = Head(
            revision=max(before.revision, revision or 0),
            seq=max(before.seq, seq or 0),
            token=max(before.token, token or 0),
            last_event_seq=max(before.last_event_seq, event or 0),
            now=max(before.now, _clock(self._stored or {}, before.now)),
            completed=before.completed,
            cancelled=before.cancelled,
        )
        if is_known:
            return head
        self.problems.append(
            f"The last counters are lost: new units, attempts and events get numbers {LEAP:,} after the last known"
        )
        return replace(
            head,
            revision=head.revision + LEAP,
            seq=head.seq + LEAP,
            token=max(head.token, head.last_event_seq) + LEAP,  # each attempt has emitted an event
            last_event_seq=head.last_event_seq + LEAP,
            now=max(head.now, latest or 0.0, 0.0 if self._before else time.time()),
        )

    def _renumber(self) -> None:
        """Replace impossible numbers, which would otherwise be the highest."""
        self._execute(
            "UPDATE work_units SET token = 0, lease_expires_at = NULL WHERE state != 'running' AND token"
        )
        self._execute("UPDATE work_units SET token = 0 WHERE token NOT BETWEEN 0 AND ?", (LARGEST,))
        wrong: list[Any] = self._execute(
            "SELECT seq FROM work_units WHERE seq NOT BETWEEN 1 AND ?", (LARGEST,)
        ).fetchall()
        for (seq,) in wrong:
            self._execute(
                "UPDATE work_units SET seq = "
                "(SELECT coalesce(max(seq), 0) + 1 FROM work_units WHERE seq BETWEEN 0 AND ?) WHERE seq = ?",
                (LARGEST, seq),
            )

    def _count(self, head: Head) -> None:
        """Write the counters. More units may have completed than are kept."""
        found: dict[str, int] = dict(self._execute("SELECT state, count(*) FROM work_units GROUP BY state"))
        gone: dict[str, int] = dict(self._execute("SELECT state, count(*) FROM forgotten GROUP BY state"))
        counts = {state.value: found.get(state.value, 0) for state in WorkState}
        for state in (WorkState.COMPLETED, WorkState.CANCELLED):
            ever = counts[state] + gone.get(state, 0) if self._before is None else 0
            counts[state] = max(counts[state], getattr(head, state.value), ever)
        [blocked] = self._one(
            "SELECT count(*) FROM work_units WHERE missing > 0 AND state IN ('pending', 'running')"
        )
        [token] = self._one("SELECT coalesce(max(token), 0) FROM work_units")
        head = replace(head, **counts, blocked=blocked, token=max(head.token, token))
        before = self._before
        if before is not None and not self.problems and _live(before) != _live(head):
            self.problems.append("The counters did not fit what is there, and were counted anew")
        self._execute(statements.HEAD_UPDATE, states.head_row(head, ""))
        self._execute("UPDATE services SET revision = ?1", (head.revision,))
        self._execute("UPDATE circuit_state SET revision = ?1", (head.revision,))

    def _write_tags(self, now: float) -> None:
        """Write the tags of units and the counters of groups; units that are no longer kept cannot be counted."""
        found = self._execute(
            "SELECT group_name, extra, state, seq FROM work_units WHERE group_name IS NOT NULL OR extra IS NOT NULL"
        )
        rows = [
            (*mark, columns.ENDINGS.get(state, 0), seq)
            for group, extra, state, seq in found
            for mark in codec.read_marks(group, extra)
        ]
        self._connection.executemany(statements.TAG_INSERT, rows)
        states_of = ", ".join(f"sum(state = '{state}')" for state in columns.GROUP[1:-2])
        self._execute(
            f"INSERT INTO unit_groups SELECT group_name, {states_of}, min(created_at), "
            "CASE WHEN sum(state IN ('pending', 'running')) = 0 THEN ?1 END "
            "FROM work_units WHERE group_name IS NOT NULL GROUP BY group_name",
            (now,),
        )

    # who waits for whom -----------------------------------------------------------------------------------

    def _write_edges(self, now: float) -> None:
        """Write the edges, and count what each unit waits for; one that waits for a lost or failed unit fails."""
        rows: list[Any] = self._execute(
            "SELECT id, depends_on FROM work_units WHERE depends_on IS NOT NULL"
        ).fetchall()
        edges = [(need, name) for name, text in rows for need in msgspec.json.decode(text)]
        self._connection.executemany("INSERT OR IGNORE INTO dependencies VALUES (?, ?)", edges)
        self._execute(
            "UPDATE work_units SET missing = 0 "
            "WHERE missing != 0 AND (depends_on IS NULL OR state NOT IN ('pending', 'running'))"
        )
        todo = [name for name, _ in rows]
        failed: list[str] = []
        while todo:
            name = todo.pop()
            error = self._error_of(name)
            if error is not None:
                self._fail(name, error, now)
                failed.append(name)
                todo += [
                    one
                    for (one,) in self._execute("SELECT work_id FROM dependencies WHERE needs = ?", (name,))
                ]
        if failed:
            self.problems.append(
                f"{many(len(failed), 'unit')} failed, because what it depends on is lost or has failed: "
                f"{listed(failed)}. Retry it when it may run all the same"
            )

    def _error_of(self, name: str) -> str | None:
        """Count what a unit waits for; returns the error with which it has to fail, if it has to."""
        state, text, missing = self._one(
            "SELECT state, depends_on, missing FROM work_units WHERE id = ?", (name,)
        )
        if state not in {WorkState.PENDING, WorkState.RUNNING}:
            return None
        needs = dict.fromkeys(msgspec.json.decode(text))
        states = {need: self._state_of(need) for need in needs}
        unknown = [need for need, found in states.items() if found is None]
        awaited = sum(found in {WorkState.PENDING, WorkState.RUNNING} for found in states.values())
        absent = min(max(0, missing - awaited), len(unknown))  # the others have completed, and are not kept
        self._execute("UPDATE work_units SET missing = ? WHERE id = ?", (awaited + absent, name))
        if state == WorkState.RUNNING:
            return None
        if WorkState.FAILED in states.values():
            return "prerequisite_failed"
        if WorkState.CANCELLED in states.values():
            return "prerequisite_cancelled"
        may_come = [need for need in unknown if need not in self.lost_units and not _made.fullmatch(need)]
        return LOST if absent > len(may_come) or (absent and self.lost_units & {*unknown}) else None

    def _state_of(self, name: str) -> str | None:
        for table in ("work_units", "forgotten"):
            row: Any = self._execute(f"SELECT state FROM {table} WHERE id = ?", (name,)).fetchone()
            if row is not None:
                return str(row[0])
        return None

    def _fail(self, name: str, error: str, now: float) -> None:
        self._execute(
            "UPDATE work_units SET state = 'failed', last_error = ?, completed_at = ?, updated_at = ?, missing = 0, "
            "next_retry_at = NULL, index_key = NULL, sort_key = 0, watch_at = NULL, token = 0, leased_by = NULL, "
            "lease_expires_at = NULL WHERE id = ?",
            (error, now, now, name),
        )

    # workers and index keys -------------------------------------------------------------------------------

    def _assign_workers(self, head: Head) -> None:
        """Give each running unit a worker, a token of its own, and the index key of that worker."""
        self._execute(
            "UPDATE work_units SET token = 0, lease_expires_at = NULL WHERE state != 'running' AND token"
        )
        running: list[Any] = self._execute(
            "SELECT seq, token, leased_by FROM work_units WHERE state = 'running'"
        ).fetchall()
        tokens, highest = set(), head.token
        for seq, token, owner in running:
            if token <= 0 or token in tokens:
                highest = token = highest + 1
            tokens.add(token)
            owner = owner if presence.WORKER_ID.fullmatch(owner or "") else NOBODY
            self._execute(
                "UPDATE work_units SET token = ?, leased_by = ?, index_key = ? WHERE seq = ?",
                (token, owner, f"running/{owner}", seq),
            )
        owners: Iterable[Any] = self._execute(
            "SELECT DISTINCT substr(index_key, instr(index_key, '/') + 1) FROM work_units "
            "WHERE index_key GLOB 'running/*' OR index_key GLOB 'held/*'"
        ).fetchall()
        for (owner,) in owners:
            gone = Worker(owner, presence.host_name(), "", 0, head.now)
            self._execute(statements.WORKER_UPSERT, states.worker_row(gone))

    def _assign_index_keys(self, revision: int) -> None:
        """Give pending units the index keys under which they are found, and take them from final ones."""
        self._execute(
            "UPDATE work_units SET index_key = NULL, sort_key = 0, watch_at = NULL "
            "WHERE state NOT IN ('pending', 'running') AND (index_key IS NOT NULL OR watch_at IS NOT NULL)"
        )
        kinds: list[Any] = self._execute(
            "SELECT DISTINCT index_key, queue, task_type, missing > 0 FROM work_units WHERE state = 'pending'"
        ).fetchall()
        for index_key, queue, task, is_blocked in kinds:
            if not _belongs(index_key, queue, task, is_blocked):
                self._place_anew(index_key, queue, task, is_blocked)
        firsts: list[Any] = self._execute(
            "SELECT index_key, sort_key, min(seq), ?1 FROM work_units JOIN "
            "(SELECT index_key AS name, min(sort_key) AS first FROM work_units WHERE state = 'pending' "
            "GROUP BY index_key) ON index_key = name AND sort_key = first "
            "WHERE state = 'pending' GROUP BY index_key",
            (revision,),
        ).fetchall()
        self._connection.executemany("INSERT INTO index_heads VALUES (?, ?, ?, ?)", firsts)

    def _place_anew(self, index_key: str | None, queue: str, task: str, is_blocked: bool) -> None:
        rows: list[Any] = self._execute(
            f"{statements.SELECT} WHERE state = 'pending' AND index_key IS ? AND queue = ? AND task_type = ? "
            "AND (missing > 0) = ?",
            (index_key, queue, task, is_blocked),
        ).fetchall()
        for row in rows:
            record = codec.read_row((*row[:-1], 0))
            spec = record.spec
            if record.missing:
                keys = BLOCKED, record.rank
            elif record.next_retry_at is not None:
                keys = LATER, record.next_retry_at
            elif spec.run_at is not None and record.started_at is None:
                keys = WALL, spec.run_at
            elif spec.delay:
                keys = LATER, record.created_at + spec.delay
            else:
                keys = index_key_of(spec.task, spec.queue, spec.services), record.rank
            self._execute(
                "UPDATE work_units SET index_key = ?, sort_key = ?, leased_by = NULL WHERE seq = ?",
                (*keys, record.seq),
            )

    # events -----------------------------------------------------------------------------------------------

    def _fill_gaps(self, head: Head) -> None:
        """Put a `gap` event where events are lost, between others or after all others."""
        rows: list[Any] = self._execute(
            "SELECT revision, first_seq, amount, at FROM events ORDER BY first_seq"
        ).fetchall()
        following = [*rows[1:], (head.revision + 1, head.last_event_seq + 1, 0, head.now)] if rows else []
        missed = 0
        for (_, first, amount, _), (revision, after, _, at) in zip(rows, following, strict=True):
            hole = after - first - amount
            if hole > 0:
                missed += hole
                body = journal.pack([EventDraft("gap", at, data={"missed": hole})])
                self._execute(
                    "INSERT OR IGNORE INTO events VALUES (?, ?, ?, 1, ?)", (revision - 1, at, after - 1, body)
                )
        if missed:
            self.problems.append(f"{many(missed, 'event')} lost, or never published: readers see a gap")

    def _one(self, statement: str, bindings: Row = ()) -> Row:
        row: Any = self._execute(statement, bindings).fetchone()
        return tuple(row)


def _belongs(index_key: str | None, queue: str, task: str, is_blocked: bool) -> bool:
    """Whether pending units of that kind may have that index key."""
    if index_key is None:
        return False
    if index_key.startswith(HELD):
        return presence.WORKER_ID.fullmatch(index_key.removeprefix(HELD)) is not None
    if index_key == BLOCKED:
        return is_blocked
    if not index_key.startswith(READY):
        return index_key in {LATER, WALL}
    try:
        parts = index_key_parts(index_key)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return False
    return parts is not None and parts[:2] == (queue, task)


def many(amount: int, what: str) -> str:
    """So many of something, in words."""
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"


def _live(head: Head) -> tuple[int, int, int]:
    return head.pending, head.running, head.failed


def _sound_head(stored: dict[str, Any] | None) -> Head | None:
    """The counters that were found; None when they cannot be right."""
    if stored is None:
        return None
    try:
        head = states.read_head(tuple(stored.get(name) for name in Head.__struct_fields__))
    except StorageCorrupt:
        return None
    numbers = msgspec.structs.astuple(replace(head, decider=None, wake_at=None))[:-2]
    is_sound = all(0 <= number <= LARGEST for number in numbers) and head.now < time.time() + YEAR
    return head if is_sound else None


def _clock(stored: dict[str, Any], now: float) -> float:
    """Queue time at this moment, if it can be told by the clock of this boot; else `now`."""
    epoch, boottime = stored.get("anchor_epoch"), stored.get("anchor_boottime")
    if stored.get("boot") != presence.boot_id() or not isinstance(epoch, float | int):
        return now
    if not isinstance(boottime, float | int) or not math.isfinite(epoch - boottime):
        return now
    moment = epoch - boottime + presence.boottime()
    return moment if now <= moment <= now + LONGEST_OUTAGE else now
