"""What was committed to a queue file gets onto the disk after the turn, and before anybody hears of it.

Left to itself SQLite syncs its log within the commit, while all who want the next turn wait. Here a commit only
writes the log; the turn goes to the next process, and then the log is synced. Rules:
- Whoever saw something syncs before acting on it or telling it, also who wrote nothing: what another process
  committed is seen at once, and its own sync may still be under way.
- One sync is good for everything that was committed before it began. The log is written in order, and of a torn one
  SQLite uses what comes before the tear: nothing lasts unless all that it was built on lasts.
- A sync that failed is not repeated: the kernel may have given up what it could not write, and calls it clean from
  then on. A process that was told so tells nothing more and builds on nothing, until it has written all of the log
  anew, from what everybody sees of it. (The kernel tells everybody who had the log open at that time.)
- The log goes back into the file as ever: SQLite syncs it before it copies, and the file before it starts over.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

from runcue.stores.file import replaced

CHUNK: Final = 1024 * 1024
FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW

_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class Known:
    """What the threads of a process know of a log, all of them together."""

    __slots__ = ("is_hurt", "lasting")

    def __init__(self) -> None:
        self.lasting = -1
        """The last revision that is known to be on the disk."""
        self.is_hurt = False
        """True after a sync that failed, until the log was written anew."""


class Disk:
    """The log of one queue file, for one thread that makes it last."""

    def __init__(self, path: str, known: Known | None = None) -> None:
        self._descriptor: int | None = None
        self._path = os.path.realpath(path)
        self._known = known or Known()
        self._is_behind = False

    def beside(self) -> Disk:
        """The same for another thread."""
        return Disk(self._path, self._known)

    @property
    def is_hurt(self) -> bool:
        """True when the log has to be written anew."""
        return self._known.is_hurt

    def open(self) -> int:
        """The log that SQLite has open: it is the same file as long as anybody has the queue open."""
        if self._descriptor is None:
            self._descriptor = os.open(f"{self._path}-wal", os.O_RDONLY | FLAGS)
        return self._descriptor

    def close(self) -> None:
        """Let go of the log. It is opened again when there is need."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:  # as SQLite's own descriptors, if nobody has closed them
        self.close()

    def written(self) -> None:
        """Something was committed in this thread, be it of a new revision or not."""
        self._is_behind = True

    def sync(self, revision: int | None) -> None:
        """Have everything on the disk up to that revision, or raise; with None whatever there is."""
        known = self._known
        if revision is not None and revision <= known.lasting and not self._is_behind:
            return
        if known.is_hurt:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        descriptor = self.open()
        try:
            _sync(descriptor)
        except OSError:
            known.is_hurt = True
            raise
        self._is_behind = False
        if revision is not None:
            known.lasting = max(known.lasting, revision)

    def write_anew(self) -> None:
        """Write the log once more, as it is, and sync that. For who holds the file's lock: nobody else may write."""
        descriptor = os.open(f"{self._path}-wal", os.O_RDWR | FLAGS)  # the old ones were told what went wrong
        try:
            if not os.path.sameopenfile(descriptor, self.open()):
                raise replaced(self._path)
            place = 0
            while data := os.pread(descriptor, CHUNK, place):
                place += os.pwrite(descriptor, data, place)
            _sync(descriptor)
        finally:
            os.close(descriptor)
        self._known.is_hurt = False
