"""Faults on virtual time: several Cues on one loop and one file stand for processes; these functions make them fail.

    async def main() -> None:
        one, other = make_cue("queue.db"), make_cue("queue.db")
        one.start(), other.start()
        ...
        fail_commit(one, took_place=True)   # the disk reports an error, but the commit is there
        kill(other)                         # like kill -9: nothing of it runs any more

    run(main())

On a `VirtualLoop` a store in a file takes its turns on the loop itself, so that one seed gives one run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from runcue.errors import ConfigError

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.stores.sql.store import SqlStore


def kill(cue: Cue) -> None:
    """End a Cue as the death of its process would: at once, without a message to the others.

    Its handlers are cancelled; whatever they do or return after that is lost. The other Cues on the file take it for
    dead, and take over its running units. The file stays as the last commit left it.
    """
    system = cue._system
    cue._is_closed = True
    if system is not None:
        system.abandon()


def fail_commit(cue: Cue, *, took_place: bool, times: int = 1) -> None:
    """Make the next commits of a Cue fail with a disk error; `took_place` says whether they are written anyway."""
    store = _store_of(cue)
    failing = _FailingConnection(store._tables.connection, "COMMIT" if took_place else "ROLLBACK", times)
    store._tables.use(failing)


def fill_disk(cue: Cue, *, times: int = 1) -> None:
    """Make the next commits of a Cue fail because the disk is full."""
    store = _store_of(cue)
    store._tables.use(_FailingConnection(store._tables.connection, "ROLLBACK", times, apsw.FullError))


def _store_of(cue: Cue) -> SqlStore:
    # Imported here: virtual time works also on systems where a queue in a file does not.
    from runcue.stores.sql.store import SqlStore
    from runcue.stores.sqlite.store import FileDatabase

    store = None if cue._system is None else cue._system.store
    if not (isinstance(store, SqlStore) and isinstance(store._database, FileDatabase)):
        raise ConfigError("Disk faults need an open Cue with a queue in a file.")
    return store


class _FailingConnection:
    """A connection whose next commits fail as on a failing disk."""

    def __init__(
        self,
        connection: apsw.Connection,
        instead: str,
        times: int,
        error: type[apsw.Error] = apsw.IOError,
    ) -> None:
        self._connection = connection
        self._instead = instead
        self._times = times
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, bindings: Any = ()) -> Any:
        """Run a statement; a commit fails while `times` is not used up."""
        if statement == "COMMIT" and self._times > 0:
            self._times -= 1
            self._connection.execute(self._instead)
            raise self._error("disk I/O error" if self._error is apsw.IOError else "database or disk is full")
        return self._connection.execute(statement, bindings)
