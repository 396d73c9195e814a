"""Looking at a queue in PostgreSQL from outside.

Rules:
- The session can only read, and each look is one snapshot. A standby will do, and so will a user who may only SELECT.
- A connection that was lost is made anew once for each look.
- Nothing is made on this host either: where its processes keep their locks is looked up, and may not be there.
- Processes of this host live as long as their locks are held. Those elsewhere are gone when they have given no sign
  of life for a lease, while the server was up. A standby has no such signs: there nobody can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from runcue.core.model.state import Head, Worker
from runcue.errors import StorageReplaced
from runcue.stores.postgres import schema
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import ONE_MOMENT, Link, cause_of, is_gone, translate
from runcue.stores.postgres.place import boot_of, check_place, place_of
from runcue.stores.postgres.statements import POSTGRES
from runcue.stores.postgres.texts import escaped
from runcue.stores.presence import presence
from runcue.stores.sql import health, jobs_view
from runcue.stores.sql.jobs_view import JobQuery
from runcue.stores.sql.snapshot_reader import Life, life_here
from runcue.stores.sql.tables import Tables

T = TypeVar("T")
FIRST: Final = (
    "SELECT (SELECT identity FROM head), (SELECT clock_offset FROM head), "
    "extract(epoch FROM clock_timestamp())::float8, extract(epoch FROM pg_postmaster_start_time())::float8, "
    "pg_is_in_recovery()"
)
"""Which queue this is, how far the server's clock is from queue time, what it says, and when the server came up."""
SIZE: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
    "WHERE relnamespace = $1::regnamespace AND relkind = 'r'"
)


class PostgresSnapshotReader:
    """A queue in PostgreSQL."""

    def __init__(self, address: Address, connect: Callable[[Address], Any] | None = None) -> None:
        """`connect` makes a connection to a queue that is there, if not one of a session of its own."""
        self.where = address.plain
        self._address = address
        self._connect = connect or _connected
        self._link: Any = None
        self._identity: str | None = None
        self._offset = self._server = self._up_since = 0.0
        self._is_standby = False
        self.read(lambda tables: None)  # what is wrong with it is told at once

    @property
    def beside(self) -> str:
        """A place of this host for that queue, which is there once a process of this user opened it here."""
        assert self._identity is not None, "it is known since the first look"
        local = place_of(self._identity)
        check_place(local)
        return local

    def read(self, look: Callable[[Tables], T]) -> T:
        """An answer that was true at one moment; asked once more when the connection was lost meanwhile."""
        for is_last in (False, True):
            try:
                link = self._link = self._link or self._connect(self._address)
                try:
                    self._begin(link)
                    found = look(Tables(link, POSTGRES))
                except BaseException:
                    link.undo()
                    raise
                link.leave()
                return found
            except psycopg.Error as error:
                self.close()
                if is_last or not (is_gone(error) or isinstance(error, errors.UndefinedTable)):
                    raise translate(error, self._address) from cause_of(error, self._address)
        raise AssertionError("the second try returns or raises")

    def _begin(self, link: Link) -> None:
        row = link.begin_with(ONE_MOMENT, FIRST)
        identity, self._offset, self._server, self._up_since, self._is_standby = row
        if identity != (self._identity or identity):
            where = self._address.shown
            raise StorageReplaced(f"{where} holds another queue now. Make a new Reader.", where)
        self._identity = identity

    def times(self, tables: Tables, head: Head) -> tuple[float, float]:
        """Both by the server's clock."""
        return max(head.now, self._server + self._offset), self._server

    def lives(self, tables: Tables, workers: Sequence[Worker], lease: float) -> list[Life]:
        """Here the locks tell, elsewhere the signs of life."""
        directory = presence.side_directory(self.beside)
        boot = boot_of(directory)
        beats: dict[str, float] | None = None
        if any(one.boot != boot for one in workers) and not self._is_standby:
            beats = dict(tables.connection.execute("SELECT worker, at FROM beats").fetchall())
        return [
            life_here(directory, one.id, lease) if one.boot == boot else self._life(one, beats, lease)
            for one in workers
        ]

    def _life(self, worker: Worker, beats: dict[str, float] | None, lease: float) -> Life:
        if beats is None:
            return "unknown", None
        seen_at = max(beats.get(worker.id, worker.started_at - self._offset), self._up_since)
        silent_for = max(0.0, self._server - seen_at)
        return ("alive", silent_for) if silent_for < lease else ("gone", None)

    def jobs(self, tables: Tables, wanted: JobQuery) -> list[dict[str, Any]]:
        """The jobs that are wanted, newest first."""
        ids = None if wanted.ids is None else [escaped(one) for one in wanted.ids]
        statement, bindings = jobs_view.statement(jobs_view.RAW, wanted, ("id = ANY({})", ids))
        return [jobs_view.row_of(row) for row in tables.connection.execute(statement, bindings).fetchall()]

    def health(self, tables: Tables, head: Head) -> dict[str, Any]:
        """How the database is, as far as that can be told without reading all of it."""
        link: Link = tables.connection
        [(version, fsync)] = link.execute(
            "SELECT current_setting('server_version'), current_setting('fsync')"
        ).fetchall()
        [(size,)] = link.execute(SIZE, (self._address.schema,)).fetchall()
        problems = health.quarantined(link) or health.miscounted(link, head)
        if fsync != "on":
            problems.append("fsync is off: what was accepted may be lost with the machine")
        return {
            "postgresql": version.split()[0],
            "schema": schema.VERSION,
            "size": size,
            "problems": problems,
        }

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _connected(address: Address) -> Link:
    link = Link(address, read_only=True)
    try:
        schema.check_server(link, to_read=True)
        schema.check_to_read(link)
    except BaseException:
        link.close()
        raise
    return link
