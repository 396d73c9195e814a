"""Files for one user alone, and locks that the kernel frees when their process ends.

A lock is `flock`: it belongs to the open file description, which a child inherits only if it is told to.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import stat
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

assert sys.platform != "win32"

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
"""The bits of a mode that let other users write."""
OTHERS_READ: Final = stat.S_IRWXG | stat.S_IRWXO
"""The bits of a mode that let other users do anything."""
OPEN_TO_ALL: Final = stat.S_ISVTX | stat.S_IWOTH
"""The mode of a folder in which everybody may create files, and remove his own."""
CAN_SLEEP_FOR_LOCKS: Final = True
"""Whether SQLite may have the kernel wake it when it gets a lock, instead of asking for it again and again."""
LABEL: Final = "user.runcue"
"""The extended attribute by which output of commands is known."""
_TMPFILE: Final[int | None] = getattr(os, "O_TMPFILE", None)
_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE

sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
"""Have what was written to a file reach the disk."""
read_at = os.pread
write_at = os.pwrite
replace = os.replace
"""Give a file its new name, whatever had that name before."""


def user() -> int:
    """The user that this process runs as, as `st_uid` of a file names it."""
    return os.geteuid()


def has_user(name: str) -> bool:
    """Whether there is a user of that name."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


# --- Opening --------------------------------------------------------------------------------------


def open_file(path: str | Path, flags: int) -> int:
    """A descriptor that no child inherits; links are not followed, and nothing is waited for."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def open_to_sync(path: str) -> int:
    """A descriptor with which the file can be synced."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def open_log(path: Path) -> int:
    """A descriptor to append to a file, for its owner alone, which is created if it is missing."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def open_door(directory: Path) -> int:
    """A descriptor whose lock is the lock of that directory."""
    return open_file(directory, os.O_RDONLY | os.O_DIRECTORY)


def make_private(descriptor: int) -> None:
    """Let nobody but its owner use that file, whatever the umask takes away or leaves."""
    os.fchmod(descriptor, 0o600)


def set_times(descriptor: int, accessed: int, modified: int) -> None:
    """Set the times of an open file, in nanoseconds."""
    os.utime(descriptor, ns=(accessed, modified))


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    try:
        ours, there = os.fstat(descriptor), path.stat()
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


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


def is_only_read(descriptor: int) -> bool:
    """Whether a descriptor is open, and nothing can be written to it."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    except OSError:
        return False


# --- What commands print --------------------------------------------------------------------------


def create_anew(path: str) -> int:
    """Create a file to append to, and replace one that is there."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        return os.open(path, flags, 0o600)


def open_nameless(folder: str) -> tuple[int, int] | None:
    """Create a file without a name, to read and to append to; None where the system has none."""
    if _TMPFILE is None:
        return None
    reading = -1
    try:
        reading = os.open(folder, _TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        return reading, os.open(f"/proc/self/fd/{reading}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError as error:
        if reading != -1:
            os.close(reading)
        if error.errno in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            return None
        raise


def give_name(descriptor: int, path: str) -> None:
    """Give a file without a name its name, which is taken from another."""
    source = f"/proc/self/fd/{descriptor}"
    try:
        os.link(source, path, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        os.link(source, path, src_dir_fd=descriptor, follow_symlinks=True)


def open_temporary() -> tuple[int, int]:
    """Create a file that is gone when it is closed, to read and to append to."""
    import tempfile  # imported only where the folder of outputs cannot be used

    reading, name = tempfile.mkstemp(prefix="runcue-")
    try:
        return reading, os.open(name, os.O_CLOEXEC | os.O_NOFOLLOW | os.O_WRONLY | os.O_APPEND)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.unlink(name)  # noqa: PTH108


@cache
def _fallocate() -> Callable[..., int] | None:
    import ctypes  # imported only for commands that print a lot

    try:
        library = ctypes.CDLL(None, use_errno=True)
        function: Any = getattr(library, "fallocate64", None) or library.fallocate
    except (OSError, AttributeError):  # not Linux
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    called: Callable[..., int] = function
    return called


def punch(descriptor: int, start: int, size: int) -> bool:
    """Give a part of a file back to the file system; False where that is not possible."""
    function = _fallocate()
    return function is not None and function(descriptor, _PUNCH_HOLE, start, size) == 0


def put_label(descriptor: int, label: bytes) -> None:
    """Mark a file as output of a job."""
    try:
        os.setxattr(descriptor, LABEL, label)
    except (AttributeError, OSError):  # no extended attributes here: recovery goes by the locks alone
        return


def take_label(descriptor: int) -> None:
    """Remove the mark: recovery no longer ends processes that write to this file."""
    try:
        os.removexattr(descriptor, LABEL)
    except (AttributeError, OSError):  # it never had one
        return


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
