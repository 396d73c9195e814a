"""Refuses a queue file that lies beside the log of another file.

SQLite takes any log that lies beside a file for the file's own. So if a backup replaces a file whose process was
killed, SQLite writes the last commits of the old file into the backup, and damages it. A process that opens a queue
stores the inode numbers of file and log, and refuses another file beside the same log. If both are new they were
copied together.
"""

from __future__ import annotations

import os
from pathlib import Path

from runcue.errors import StorageReplaced
from runcue.host.system import files
from runcue.stores.presence.presence import side_directory
from runcue.stores.sqlite.schema import shown

NOTE = "pair"


def note_pair(path: str) -> None:
    """Store that this file and its log belong together. Both are open."""
    path = os.path.realpath(path)
    pair = _numbers(path), _numbers(f"{path}-wal")
    note = side_directory(path) / NOTE
    if pair != _noted(note):
        text = " ".join(f"{device} {inode}" for device, inode in pair)
        descriptor = files.open_file(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            files.make_private(descriptor)
            os.write(descriptor, text.encode("ascii"))  # a torn note is ignored
        finally:
            os.close(descriptor)


def check_pair(path: str) -> None:
    """Refuse a file that lies beside the log of another one."""
    try:
        file, log = _numbers(path), _numbers(f"{path}-wal")
        is_empty = not Path(f"{path}-wal").stat().st_size
    except OSError:
        return  # one of them is missing or out of reach: opening it says why
    noted = _noted(side_directory(path) / NOTE)
    if noted is not None and noted[1] == log and noted[0] != file and not is_empty:
        raise StorageReplaced(
            f"{shown(path)} is not the file that its log belongs to, which would damage it. Put the old file back; "
            f"or, to go on with this one, delete {shown(path + '-wal')} and {shown(path + '-shm')}.",
            path,
        )


def _numbers(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 (as it is asked elsewhere)
    return found.st_dev, found.st_ino


def _noted(note: Path) -> tuple[tuple[int, int], tuple[int, int]] | None:
    try:
        one, two, three, four = map(int, note.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return (one, two), (three, four)
