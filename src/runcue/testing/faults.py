"""Faults on virtual time: Cues on one loop and one file stand for processes, and things happen to them.

    async def main() -> None:
        one, other = make_cue("queue.db"), make_cue("queue.db")
        one.start(), other.start()
        ...
        fail_commit(one, took_place=True)   # the disk says no, though the commit is there
        kill(other)                         # as by kill -9: nothing of it runs any more

    run(main())

On a `VirtualLoop` a store in a file takes its turns on the loop itself, so that one seed gives one run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from runcue.errors import ConfigError

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.stores.sqlite.store import SqliteStore


def kill(cue: Cue) -> None:
    """End that Cue as the death of its process would: at once, and nobody is told.

    Its handlers are cancelled. What they do about that, and what they return, reaches nobody; to the other Cues on
    the file it is dead, and they take over what it ran. The file stays as its last commit left it.
    """
    system = cue._system
    cue._is_closed = True
    if system is not None:
        system.abandon()


def fail_commit(cue: Cue, *, took_place: bool, times: int = 1) -> None:
    """Have the next commits of that Cue fail with an error of the disk, whether or not they take place."""
    store = _store_of(cue)
    ailing = _Ailing(store._tables.connection, "COMMIT" if took_place else "ROLLBACK", times)
    store._tables.use(ailing)


def fill_disk(cue: Cue, *, times: int = 1) -> None:
    """Have the next commits of that Cue fail because the disk is full."""
    store = _store_of(cue)
    store._tables.use(_Ailing(store._tables.connection, "ROLLBACK", times, apsw.FullError))


def _store_of(cue: Cue) -> SqliteStore:
    from runcue.stores.sqlite.store import SqliteStore  # not on every system; virtual time is

    store = None if cue._system is None else cue._system.store
    if not isinstance(store, SqliteStore):
        raise ConfigError("Only an opened Cue in a file can have trouble with its disk.")
    return store


class _Ailing:
    """A connection whose next commits fail as they do when the disk does."""

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
        """As the connection does, but for a commit while it is unwell."""
        if statement == "COMMIT" and self._times > 0:
            self._times -= 1
            self._connection.execute(self._instead)
            raise self._error("disk I/O error" if self._error is apsw.IOError else "database or disk is full")
        return self._connection.execute(statement, bindings)
