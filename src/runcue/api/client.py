"""Client: submits to a queue without an event loop, without a thread, and without being one of its processes.

Rules:
- Whatever changes something is an INSERT of a row that the deciding process takes (stores/sql/submissions.py). Nobody
  answers: what is refused becomes a failed unit.
- Nothing is opened before it is used, so a Client may be made before a fork. What a process has opened, its children
  refuse to use.
- Behind a pooler each transaction may have another session, so nothing is kept in one.
"""

from __future__ import annotations

import builtins
import os
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from runcue.api import connections
from runcue.api.outbox import Outbox
from runcue.api.places import Inserter, grant_at, inserter_at, snapshots_at
from runcue.api.signature import OUTBOX
from runcue.api.unsettled import Unsettled
from runcue.core.model import parse
from runcue.core.model.parse import optional_duration
from runcue.core.model.record import Record, Work, WorkState, view
from runcue.declare import arguments
from runcue.declare.options import choice, flag
from runcue.declare.unit import Unit
from runcue.engine.queries import ending_of
from runcue.errors import ConfigError, ForkedConnection, RuncueError, StoreError, WorkNotFound, quoted
from runcue.host.address import is_server, plain
from runcue.stores.postgres.address import DEFAULT
from runcue.stores.sql.snapshot_reader import SnapshotReader
from runcue.stores.sql.submissions import CANCEL, RETRY, Row, change_row, rows_text

if TYPE_CHECKING:
    from runcue.api.signature import Duration, SubmitOptions, Where

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.25
"""Seconds between two looks at a unit that is waited for: they grow from one to the other."""


class Client:
    """Submits to a queue in a file or in PostgreSQL from plain code, and looks at what becomes of it.

    `client = runcue.Client("queue.db")`, or `runcue.Client("postgresql://user@host/database", name="default")`. Any
    thread may call it.
    """

    def __init__(self, store: str | os.PathLike[str], *, name: str = DEFAULT, insecure: bool = False) -> None:
        self._place = arguments.stored_queue(
            store,
            "submit to {}: a Client submits to a queue in a file or in PostgreSQL",
            "Give its path, or an address such as 'postgresql://user@host/database'.",
        )
        self._name = parse.name(name, "queue")
        self._insecure = flag(insecure, "insecure")
        self._unsettled = Unsettled()
        self._one_at_a_time = threading.Lock()
        self._pid = 0
        """The process that has opened the queue."""
        self._inserter: Inserter | None = None
        self._snapshots: SnapshotReader | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Client {quoted(plain(self._place))}{' closed' if self._is_closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened."""
        with self._one_at_a_time:
            self._is_closed = True
            if self._pid == os.getpid():
                if self._snapshots is not None:
                    self._snapshots.close()
                if self._inserter is not None:
                    self._inserter.close()
                self._snapshots = self._inserter = None

    # submitting -------------------------------------------------------------------------------------------

    def submit(self, task: str | Unit[Any], **options: Unpack[SubmitOptions]) -> str:
        """Submit a unit and return its id, with the options of `cue.submit()`. It is accepted or refused afterwards.

        With a `connection` it exists once the transaction of that is committed.
        """
        given: dict[str, Any] = {**options}
        connection = given.pop("connection", None)
        row = self._unsettled.row(task, given)
        self._insert([row], connection)
        return row.id

    def submit_many(
        self, items: Iterable[Mapping[str, Any] | Unit[Any]], *, connection: Any = None
    ) -> builtins.list[str]:
        """Submit many units in one transaction: dicts of `submit`'s arguments, or units. Returns the ids in order."""
        rows = self._unsettled.rows(items)
        self._insert(rows, connection)
        return [row.id for row in rows]

    def cancel(self, work_id: str, *, cascade: bool = False, connection: Any = None) -> None:
        """Ask that a pending or running unit is cancelled."""
        self._insert([change_row(CANCEL, arguments.work_id(work_id), cascade=cascade)], connection)

    def retry(self, work_id: str, *, cascade: bool = False, connection: Any = None) -> None:
        """Ask that a failed or cancelled unit is tried again with all its attempts."""
        self._insert([change_row(RETRY, arguments.work_id(work_id), cascade=cascade)], connection)

    def relay(self, connection: Any, *, table: str = OUTBOX) -> int:
        """Move what an Outbox has gathered on that connection into this queue; how many rows, 500 at most.

        The connection is committed. A unit that is moved twice is one unit all the same.
        """
        outbox = Outbox(connection, table=table)
        try:
            waiting = outbox.waiting()
        except Exception as error:
            raise StoreError(
                f"The outbox {table} cannot be read: {type(error).__name__}: {error}. If it has no table yet, make "
                "it once, with runcue.Outbox(connection).create()."
            ) from error
        self._insert([one.row for one in waiting], None)
        outbox.delete(waiting)
        return len(waiting)

    def grant(self, role: str, *, tables: bool = False) -> None:
        """Let a role of PostgreSQL submit by the SQL functions of the queue. Only its owner can.

        With `tables` also by a Client, and by a Cue on connections of the role's own.
        """
        role, with_tables = parse.name(role, "role"), flag(tables, "tables")
        if not is_server(self._place):
            raise ConfigError(
                f"Roles submit to queues in PostgreSQL, and {quoted(plain(self._place))} is a file: whoever may "
                "write to it submits."
            )
        grant_at(self._place, self._name, role, with_tables=with_tables)

    def _insert(self, rows: builtins.list[Row], connection: Any) -> None:
        if not rows:
            return
        with self._one_at_a_time:
            inserter = self._opened_inserter()
            insertion = inserter.insertion
            if connection is None:
                inserter.insert(rows_text(rows))
        if connection is not None:  # whatever that waits for, other threads go on
            connections.insert_now(connection, insertion, rows_text(rows))

    # looking ----------------------------------------------------------------------------------------------

    def get(self, work_id: str) -> Work | None:
        """One unit as it stands, or None when the id is unknown or no longer kept."""
        record = self._record(arguments.work_id(work_id))
        return None if record is None else view(record)

    def list(
        self,
        state: WorkState | str | None = None,
        task: str | None = None,
        limit: int = 100,
        **where: Unpack[Where],
    ) -> builtins.list[Work]:
        """The latest units of that state, task and so on, newest first, chosen as by a Reader."""
        query = arguments.query(state, task, limit, **where)
        return [view(record) for record in self._read(lambda tables: tables.units.latest(query))]

    def status(self) -> dict[WorkState, int]:
        """How many units there are in each state, forgotten ones included."""
        head = self._read(lambda tables: tables.units.counted())
        return {state: getattr(head, state.value) for state in WorkState}

    def wait(self, work_id: str, timeout: Duration | None = None) -> Work:
        """Block until a unit has ended, in whatever state, and return it. It is looked at four times a second."""
        work_id, seconds = arguments.work_id(work_id), optional_duration(timeout, "timeout")
        until = None if seconds is None else time.monotonic() + seconds
        pause = FIRST_PAUSE
        while True:
            record = self._record(work_id)
            if record is None:
                raise WorkNotFound(
                    work_id, self._read(lambda tables: bool(tables.records.forgotten([work_id])))
                )
            if record.state.is_final:
                return view(record)
            left = pause if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"Unit {work_id!r} has not ended within {seconds:g} s: it is {record.state}."
                )
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def result(self, work_id: str, timeout: Duration | None = None) -> Any:
        """Block until a unit has ended and return its result; raise the error that tells why there is none."""
        work = self.wait(work_id, timeout)
        if work.state is not WorkState.COMPLETED:
            raise ending_of(work)
        return work.result

    def results(
        self, ids: Iterable[str], timeout: Duration | None = None, *, errors: str = "raise"
    ) -> builtins.list[Any]:
        """Block until units have ended and return their results, in the order of their ids.

        The first error is raised, or (`errors="return"`) each takes its place among the results.
        """
        should_raise = choice(errors, "errors", ("raise", "return")) == "raise"
        seconds = optional_duration(timeout, "timeout")
        until = None if seconds is None else time.monotonic() + seconds
        found: builtins.list[Any] = []
        for work_id in arguments.work_ids(ids) or ():
            try:
                found.append(
                    self.result(work_id, None if until is None else max(0.0, until - time.monotonic()))
                )
            except RuncueError as error:
                if should_raise:
                    raise
                found.append(error)
        return found

    def _record(self, work_id: str) -> Record | None:
        record: Record | None = self._read(lambda tables: tables.units.one(work_id))
        return record

    def _read(self, look: Any) -> Any:
        with self._one_at_a_time:
            if not is_server(self._place):  # it makes the file, if there is none
                self._opened_inserter()
            self._check_process()
            self._snapshots = self._snapshots or snapshots_at(
                self._place, self._name, insecure=self._insecure, is_pooled=True
            )
            return self._snapshots.read(look)

    # opening ----------------------------------------------------------------------------------------------

    def _opened_inserter(self) -> Inserter:
        self._check_process()
        self._inserter = self._inserter or inserter_at(self._place, self._name, insecure=self._insecure)
        return self._inserter

    def _check_process(self) -> None:
        """Refuse a Client that is closed, and in a child what its parent has opened."""
        where = plain(self._place)
        if self._is_closed:
            raise StoreError(f"This Client of {quoted(where)} is closed. Make a new one.", where)
        if self._pid not in {0, os.getpid()}:
            raise ForkedConnection(
                f"{quoted(where)} was used before a fork. Make a Client in each process, or use it after forking.",
                where,
            )
        self._pid = os.getpid()
