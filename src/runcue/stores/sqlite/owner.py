"""Checks who may write to the files of a queue: that user decides what its workers run.

Rules:
- Whatever belongs to a queue (its file, its log, the folders beside it) belongs to this user or to root, and nobody
  else may write to it, nor may a group. Else nothing of it is read.
- That is checked before SQLite opens the file and again afterwards: where everybody may create files, another user
  may have made a log meanwhile.
- A link that somebody else put where everybody may create files is not followed. Linux has that rule, too, but not
  for a program that resolves the link first.
- The folder itself may be anybody's: a user who replaces a file there leaves one that belongs to him.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from runcue.errors import StorageInsecure
from runcue.host.system import files
from runcue.stores.sqlite.schema import shown

BESIDE: Final = ("-wal", "-shm", "-journal", ".runcue", ".files")
"""What lies beside the file of a queue, by the end of its name."""


def is_trusted(user: int) -> bool:
    """Whether that user may decide what this process runs: its own user, and root."""
    return user in {files.user(), 0}


def check_queue(path: str, real: str) -> None:
    """Refuse a queue of which anything is somebody else's or is open to others; `real` is where `path` leads."""
    _check_link(path)
    for suffix in ("", *BESIDE):
        name = real + suffix
        try:
            found = os.lstat(name)
        except OSError:  # it is missing or out of reach: opening it says why
            continue
        if suffix or stat.S_ISREG(found.st_mode):  # what is no file is refused for that
            check_found(name, found)


def accept_any(path: str, real: str) -> None:
    """Accept a queue whoever may write to it (`insecure=True`)."""


def check_found(name: str, found: os.stat_result) -> None:
    """Refuse what is there under that name, if it belongs to somebody else or is open to others."""
    if not is_trusted(found.st_uid):
        raise belongs_to_another(name, found.st_uid)
    mode = stat.S_IMODE(found.st_mode)
    if mode & files.OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):  # the mode of a link says nothing
        raise StorageInsecure(
            f"Other users may write to {shown(name)} (mode {mode:04o}), and could make you run anything. Take that "
            "right away (chmod go-w) once you know what is in it.",
            name,
        )


def belongs_to_another(name: str, user: int) -> StorageInsecure:
    """The error of a file or folder of another user."""
    return StorageInsecure(
        f"{shown(name)} belongs to user {user}, who could make you run anything; this process runs as user "
        f"{files.user()}. Run all processes of a queue as one user, or choose another place for it.",
        name,
    )


def _check_link(path: str) -> None:
    """Refuse to follow a link that another user put where everybody may create files."""
    try:
        found = os.lstat(path)
        if not stat.S_ISLNK(found.st_mode) or is_trusted(found.st_uid):
            return
        folder = Path(path).absolute().parent.stat()
    except (OSError, ValueError):  # opening it says what is wrong
        return
    if folder.st_mode & files.OPEN_TO_ALL == files.OPEN_TO_ALL and folder.st_uid != found.st_uid:
        raise belongs_to_another(path, found.st_uid)
