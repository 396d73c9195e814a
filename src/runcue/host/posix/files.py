"""Files for one user alone, and locks that the kernel frees when their process ends.

A lock is `flock`: it belongs to the open file description, which a child inherits only if it is told to.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

assert sys.platform != "win32"

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
"""The bits of a mode that let other users write."""
OTHERS_READ: Final = stat.S_IRWXG | stat.S_IRWXO
"""The bits of a mode that let other users do anything."""
OPEN_TO_ALL: Final = stat.S_ISVTX | stat.S_IWOTH
"""The mode of a folder in which everybody may create files, and remove his own."""

sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
"""Have what was written to a file reach the disk."""
read_at = os.pread
write_at = os.pwrite
replace = os.replace
"""Give a file its new name, whatever had that name before."""


def user() -> int:
    """The user that this process runs as, as `st_uid` of a file names it."""
    return os.geteuid()


# --- Opening --------------------------------------------------------------------------------------


def open_file(path: str | Path, flags: int) -> int:
    """A descriptor that no child inherits; links are not followed, and nothing is waited for."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def open_to_sync(path: str) -> int:
    """A descriptor with which the file can be synced."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def open_door(directory: Path) -> int:
    """A descriptor whose lock is the lock of that directory."""
    return open_file(directory, os.O_RDONLY | os.O_DIRECTORY)


def make_private(descriptor: int) -> None:
    """Let nobody but its owner use that file, whatever the umask takes away or leaves."""
    os.fchmod(descriptor, 0o600)


def set_times(descriptor: int, accessed: int, modified: int) -> None:
    """Set the times of an open file, in nanoseconds."""
    os.utime(descriptor, ns=(accessed, modified))


def remove(path: str | Path) -> None:
    """Remove a file, open or not, if it is there."""
    Path(path).unlink(missing_ok=True)


def sync_path(path: str | Path) -> None:
    """Sync the file or folder of that name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that a new name in it is on the disk, where folders can be opened and synced."""
    try:
        sync_path(folder)
    except OSError as error:
        # The file is in its place; this file system cannot sync folders.
        if error.errno not in {errno.EACCES, errno.EINVAL, errno.ENOTSUP}:
            raise


def first_data(descriptor: int, start: int) -> int:
    """The first position from `start` on that is not in a hole."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except AttributeError:  # no holes on this system
        return start
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return start


# --- Locks ----------------------------------------------------------------------------------------


def lock(descriptor: int) -> None:
    """Lock a file, and wait for it however long that takes."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_lock(descriptor: int) -> bool:
    """Lock a file; False when somebody else has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Let the next one have the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_locked(descriptor: int) -> bool:
    """Whether somebody else has that file locked; two who ask do not see each other. Close the descriptor then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


# --- Disks ----------------------------------------------------------------------------------------


def file_system(path: str) -> str | None:
    """The type of the file system that a path is on, or None where that cannot be told."""
    try:
        table = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return None
    return mounted(table, os.fsencode(path))


def mounted(table: bytes, path: bytes) -> str | None:
    """The type of the innermost mount that a path is in (proc(5): the types come after a lone dash)."""
    found, depth = None, -1
    for line in table.splitlines():
        place, dash, kind = line.partition(b" - ")
        fields = place.split(b" ")
        if not dash or len(fields) < 5:
            continue
        point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), fields[4]).rstrip(b"/")
        if len(point) >= depth and (path == point or path.startswith(point + b"/")):
            found, depth = kind.partition(b" ")[0].decode(errors="replace"), len(point)
    return found


def free_space(path: Path) -> tuple[int, bool]:
    """The bytes that are free where that is, and whether there is room for the name of another file."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, not found.f_files or bool(found.f_favail)
