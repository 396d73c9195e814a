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
import threading
from collections.abc import Callable
from typing import Final

from runcue.errors import StoreError
from runcue.stores.sqlite.file import replaced
from runcue.stores.sqlite.schema import shown

CHUNK: Final = 1024 * 1024
FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW

_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class Disk:
    """The log of one queue file, for all threads of a process.

    They share one descriptor, and sync one after the other: the kernel tells of a failure once for each descriptor,
    and only one that was open by then.
    """

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        self._path = os.path.realpath(path)
        self._lock = threading.Lock()
        self._lasting = -1
        """The last revision that is known to be on the disk."""
        self.has_failed = False
        """True after a sync that failed, until the log was written anew."""

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

    def sync(self, revision: int | None, *, has_more: bool = False) -> None:
        """Have everything on the disk up to that revision, or raise; with None, or `has_more`, whatever there is."""
        with self._lock:
            if revision is not None and revision <= self._lasting and not has_more:
                return
            if self.has_failed:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            descriptor = self.open()
            try:
                _sync(descriptor)
            except OSError:
                self.has_failed = True
                raise
            if revision is not None:
                self._lasting = max(self._lasting, revision)

    def write_anew(self) -> None:
        """Write the log once more, as it is, and sync that. For who holds the file's lock: nobody else may write."""
        with self._lock:
            descriptor = os.open(f"{self._path}-wal", os.O_RDWR | FLAGS)
            try:
                if not os.path.sameopenfile(descriptor, self.open()):
                    raise replaced(self._path)
                place = 0
                while data := os.pread(descriptor, CHUNK, place):
                    place += os.pwrite(descriptor, data, place)
                _sync(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self.close()  # it may still have something to tell of what is mended now
            self._descriptor = descriptor
            self.has_failed = False


def untold(path: str, error: OSError) -> StoreError:
    """For who asks while nobody can say what of the queue is going to last."""
    return StoreError(
        f"What {shown(path)} says may not be on the disk ({error.strerror}), and is told once it is. Check the disk.",
        path,
    )
