"""Syncs the write-ahead log of a queue file after the turn, and before anybody acts on what was committed.

By default SQLite syncs its log within the commit, while all processes that want the next turn wait. Here a commit
only writes the log; the turn goes to the next process, and then the log is synced. Rules:
- A process syncs before it acts on or reports what it has read, even if it wrote nothing: it sees the commits of
  others at once, whose own syncs may still be under way.
- One sync covers everything that was committed before it began. The log is written in order, and SQLite uses a torn
  log up to the tear: a commit lasts only if everything before it lasts.
- A failed sync is not repeated: the kernel may have dropped the pages that it could not write, and reports success
  from then on. A process whose sync failed reports nothing more and decides nothing until it has rewritten the whole
  log from what all processes see of it. (The kernel reports the failure to every process that has the log open.)
- Copying the log into the file is SQLite's own: it syncs the log before that, and the file before it reuses the log.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Final

from runcue.errors import StoreError
from runcue.host.system import files
from runcue.stores.sqlite.file import replaced
from runcue.stores.sqlite.schema import shown

CHUNK: Final = 1024 * 1024


class Disk:
    """The log of one queue file, for all threads of a process.

    They share one descriptor, and sync one after the other: the kernel reports a failure once to each descriptor
    that was open when it happened.
    """

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        self._path = os.path.realpath(path)
        self._lock = threading.Lock()
        self._lasting = -1
        """The last revision that is known to be on the disk."""
        self.has_failed = False
        """True from a failed sync until the log has been rewritten."""

    def open(self) -> int:
        """The descriptor of the log. It is the same file as long as any process has the queue open."""
        if self._descriptor is None:
            self._descriptor = files.open_to_sync(f"{self._path}-wal")
        return self._descriptor

    def close(self) -> None:
        """Close the log, which is opened again when it is needed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:  # SQLite closes its own descriptors in the same way
        self.close()

    def sync(self, revision: int | None, *, has_more: bool = False) -> None:
        """Sync the log up to a revision, or raise; with None or `has_more`, everything that is there."""
        with self._lock:
            if revision is not None and revision <= self._lasting and not has_more:
                return
            if self.has_failed:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            descriptor = self.open()
            try:
                files.sync(descriptor)
            except OSError:
                self.has_failed = True
                raise
            if revision is not None:
                self._lasting = max(self._lasting, revision)

    def write_anew(self) -> None:
        """Rewrite the log as it is, and sync it. Only while this process holds the file's lock."""
        with self._lock:
            descriptor = files.open_file(f"{self._path}-wal", os.O_RDWR)
            try:
                if not os.path.sameopenfile(descriptor, self.open()):
                    raise replaced(self._path)
                place = 0
                while data := files.read_at(descriptor, CHUNK, place):
                    place += files.write_at(descriptor, data, place)
                files.sync(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self.close()  # this descriptor may still report the failure that is repaired now
            self._descriptor = descriptor
            self.has_failed = False


def untold(path: str, error: OSError) -> StoreError:
    """The error of a read whose answer may not be on the disk."""
    return StoreError(
        f"The last commits in {shown(path)} may not be on the disk ({error.strerror}). Check the disk; read again.",
        path,
    )
