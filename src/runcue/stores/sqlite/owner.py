"""Whose the files of a queue are: who can write to them decides what runs with the rights of its workers.

Rules:
- Whatever belongs to a queue (its file, its log, the folders beside it) belongs to this user or to root, and nobody
  else may write to it, nor may a group. Else nothing of it is read.
- That is asked before SQLite opens the file, and again when it has: where everybody may create files, somebody may
  have made a log meanwhile.
- A link that somebody else put where everybody may create files is not followed. Linux has that rule, too, but not
  for who looks up where a link leads and goes there.
- The folder that all of it lies in may be anybody's: whoever exchanges a file there leaves one of his own.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from runcue.errors import StorageInsecure
from runcue.stores.sqlite.schema import shown

BESIDE: Final = ("-wal", "-shm", "-journal", ".runcue", ".files")
"""What lies beside the file of a queue, by the end of its name."""
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
OPEN_TO_ALL: Final = stat.S_ISVTX | stat.S_IWOTH
"""The mode of a folder in which everybody may create files, and remove his own."""


def is_trusted(user: int) -> bool:
    """Whether that user may decide what this process runs: itself, and root, who decides anyway."""
    return user in {os.geteuid(), 0}


def check_queue(path: str, real: str) -> None:
    """Refuse a queue of which anything is somebody else's or is open to others; `real` is where `path` leads."""
    _check_link(path)
    for suffix in ("", *BESIDE):
        name = real + suffix
        try:
            found = os.lstat(name)
        except OSError:  # it is not there; or whoever opens it says why it cannot be asked for
            continue
        if suffix or stat.S_ISREG(found.st_mode):  # what is no file is refused for that
            check_found(name, found)


def accept_any(path: str, real: str) -> None:
    """Take a queue as it is, for who knows why."""


def check_found(name: str, found: os.stat_result) -> None:
    """Refuse what is there under that name, if it belongs to somebody else or is open to others."""
    if not is_trusted(found.st_uid):
        raise belongs_to_another(name, found.st_uid)
    mode = stat.S_IMODE(found.st_mode)
    if mode & OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):  # the mode of a link says nothing
        raise StorageInsecure(
            f"Other users may write to {shown(name)} (mode {mode:04o}), and could make you run anything. Take that "
            "right away (chmod go-w) once you know what is in it.",
            name,
        )


def belongs_to_another(name: str, user: int) -> StorageInsecure:
    """The error of a file or folder of another user."""
    return StorageInsecure(
        f"{shown(name)} belongs to user {user}, who could make you run anything; this process runs as user "
        f"{os.geteuid()}. Run all processes of a queue as one user, or choose another place for it.",
        name,
    )


def _check_link(path: str) -> None:
    """Refuse to follow a link that another user put where everybody may create files."""
    try:
        found = os.lstat(path)
        if not stat.S_ISLNK(found.st_mode) or is_trusted(found.st_uid):
            return
        folder = Path(path).absolute().parent.stat()
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return
    if folder.st_mode & OPEN_TO_ALL == OPEN_TO_ALL and folder.st_uid != found.st_uid:
        raise belongs_to_another(path, found.st_uid)
