"""Files that others may remove or rename while they are open, and locks that end with their process.

- A lock is one byte far beyond the end of a file: Windows lets nobody else read or write a locked byte.
- A lock of a process that was killed is freed a moment after its end. Who is told that it is held asks again anyway.
- Who may use a file is said by the access control lists of the folder, which a user's own folder has from the start:
  nothing of that is checked here. The bits of a mode say nothing.
- What somebody has open cannot be replaced or removed for a moment (a virus scanner, say): it is tried again.
"""

from __future__ import annotations

import ctypes
import msvcrt
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from ctypes import byref
from ctypes.wintypes import HANDLE
from pathlib import Path
from typing import Final, TypeVar

from runcue.host.windows import kernel

assert sys.platform == "win32"

T = TypeVar("T")
OTHERS_WRITE: Final = 0
"""The bits of a mode that let other users write."""
OTHERS_READ: Final = 0
"""The bits of a mode that let other users do anything."""
OPEN_TO_ALL: Final = stat.S_ISVTX
"""The mode of a folder in which everybody may create files, and remove his own: none has it here."""
CAN_SLEEP_FOR_LOCKS: Final = False
"""SQLite asks for a lock again and again: under Wine, who sleeps until it is free sleeps until the time is up."""
FIRST_PAUSE: Final = 0.001
PATIENCE: Final = 2.0
"""Seconds for which a file that somebody has open is tried again."""
LOCKED: Final = 1 << 62
"""The byte of a file that is locked."""

sync = os.fsync
"""Have what was written to a file reach the disk."""


def user() -> int:
    """The user that this process runs as, as `st_uid` of a file names it: the same for all files."""
    return 0


def has_user(name: str) -> bool:
    """Whether there is a user of that name: nobody asks on Windows, which has no system crontabs."""
    return False


# --- Opening --------------------------------------------------------------------------------------


def open_file(path: str | Path, flags: int) -> int:
    """A descriptor that no child inherits, of a file that others may remove or rename meanwhile."""
    name = os.fspath(path)
    if "\0" in name:
        raise ValueError("embedded null character")
    kind = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    access = 0 if kind == os.O_WRONLY and not flags & os.O_APPEND else kernel.GENERIC_READ
    if kind != os.O_RDONLY:
        # Who may read and append appends wherever the end is by then, and may lock the file.
        access |= kernel.FILE_APPEND_DATA if flags & os.O_APPEND else kernel.GENERIC_WRITE
    if flags & os.O_CREAT:
        how = kernel.CREATE_NEW if flags & os.O_EXCL else kernel.OPEN_ALWAYS
        how = kernel.CREATE_ALWAYS if flags & os.O_TRUNC and how == kernel.OPEN_ALWAYS else how
    else:
        how = kernel.TRUNCATE_EXISTING if flags & os.O_TRUNC else kernel.OPEN_EXISTING
    return _descriptor(_opened(name, access, how, kernel.FILE_ATTRIBUTE_NORMAL), kind | flags & os.O_APPEND)


def _opened(name: str, access: int, how: int, attributes: int) -> int:
    handle = kernel.CreateFile(name, access, kernel.SHARE_ALL, None, how, attributes, None)
    if handle == ctypes.c_void_p(-1).value:
        error = kernel.failure(name)
        if kernel.LastStatus() == kernel.STATUS_DELETE_PENDING:  # it is gone when its last handle is
            raise FileNotFoundError(0, error.strerror, name, kernel.ERROR_FILE_NOT_FOUND) from error
        raise error
    return int(handle)


def _descriptor(handle: int, flags: int) -> int:
    return msvcrt.open_osfhandle(handle, flags | os.O_BINARY | os.O_NOINHERIT)


def open_to_sync(path: str) -> int:
    """A descriptor with which the file can be synced: here it has to be open for writing."""
    return open_file(path, os.O_RDWR)


def open_log(path: Path) -> int:
    """A descriptor to append to a file, which is created if it is missing."""
    return open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def open_door(directory: Path) -> int:
    """A descriptor whose lock is the lock of that directory: of a file in it, as a directory cannot be locked."""
    return open_file(directory / "door", os.O_RDWR | os.O_CREAT)


def make_private(descriptor: int) -> None:
    """Nothing: a file has the rights of its folder."""


def set_times(descriptor: int, accessed: int, modified: int) -> None:
    """Set the times of an open file, in nanoseconds."""
    first, second = _file_time(accessed), _file_time(modified)
    kernel.checked(kernel.SetFileTime(_handle(descriptor), None, byref(first), byref(second)))


def _file_time(nanoseconds: int) -> kernel.FileTime:
    ticks = nanoseconds // 100 + 116444736000000000
    return kernel.FileTime(ticks & 0xFFFFFFFF, ticks >> 32)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has that name; its volume cannot change by renaming."""
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except OSError:
        return False


def replace(source: str | Path, target: str | Path) -> None:
    """Give a file its new name, whatever had that name before."""
    _patiently(lambda: os.replace(source, target))  # noqa: PTH105 (as on the other system)


def remove(path: str | Path) -> None:
    """Remove a file, open or not, if it is there."""
    _patiently(lambda: Path(path).unlink(missing_ok=True))


def _patiently(action: Callable[[], T]) -> T:
    """Try again for a while what fails because somebody has the file open."""
    until = time.monotonic() + PATIENCE
    pause = FIRST_PAUSE
    while True:
        try:
            return action()
        except PermissionError as error:
            is_open = error.winerror in {kernel.ERROR_ACCESS_DENIED, kernel.ERROR_SHARING_VIOLATION}
            if not is_open or time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def read_at(descriptor: int, size: int, start: int) -> bytes:
    """Read from there; the descriptor is one thread's at a time."""
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, size)


def write_at(descriptor: int, data: bytes, start: int) -> int:
    """Write there; the descriptor is one thread's at a time."""
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.write(descriptor, data)


def first_data(descriptor: int, start: int) -> int:
    """The first position from `start` on that is not in a hole: files have none here."""
    return start


def sync_path(path: str | Path) -> None:
    """Sync the file of that name; a folder cannot be opened, and keeps the names of its files by itself."""
    if not Path(path).is_dir():
        descriptor = open_file(path, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Nothing: the file system keeps its journal of names by itself."""


def is_only_read(descriptor: int) -> bool:
    """False: a program that is started here has its output where it writes to."""
    return False


# --- What commands print --------------------------------------------------------------------------


def create_anew(path: str) -> int:
    """Create a file to append to, and replace one that is there."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    try:
        return open_file(path, flags)
    except FileExistsError:
        remove(path)
        return open_file(path, flags)


def open_nameless(folder: str) -> tuple[int, int] | None:
    """Nothing: files have names here."""
    return None


def give_name(descriptor: int, path: str) -> None:
    """Not called, as every file has its name from the start."""


def open_temporary() -> tuple[int, int]:
    """Create a file that is gone when it is closed, to read and to append to."""
    made, name = tempfile.mkstemp(prefix="runcue-")
    os.close(made)
    reading = _opened(
        name, kernel.GENERIC_READ | kernel.GENERIC_WRITE, kernel.OPEN_EXISTING, kernel.GONE_WHEN_CLOSED
    )
    try:
        return _descriptor(reading, os.O_RDWR), open_file(name, os.O_WRONLY | os.O_APPEND)
    except OSError:
        kernel.CloseHandle(reading)
        raise


def punch(descriptor: int, start: int, size: int) -> bool:
    """False: a part of a file cannot be given back."""
    return False


def put_label(descriptor: int, label: bytes) -> None:
    """Nothing: what a command started ends with the worker, and need not be found."""


def take_label(descriptor: int) -> None:
    """Nothing: there is no label."""


# --- Locks ----------------------------------------------------------------------------------------


def lock(descriptor: int) -> None:
    """Lock a file, and wait for it however long that takes."""
    kernel.checked(_locked(descriptor, kernel.LOCK_EXCLUSIVE))


def try_lock(descriptor: int) -> bool:
    """Lock a file; False when somebody else has it locked."""
    return _is_free(descriptor, kernel.LOCK_EXCLUSIVE)


def unlock(descriptor: int) -> None:
    """Let the next one have the lock."""
    kernel.checked(kernel.UnlockFileEx(_handle(descriptor), 0, 1, 0, byref(_place())))


def is_locked(descriptor: int) -> bool:
    """Whether somebody else has that file locked; two who ask do not see each other."""
    if not _is_free(descriptor, 0):
        return True
    unlock(descriptor)
    return False


def _is_free(descriptor: int, how: int) -> bool:
    if _locked(descriptor, how | kernel.LOCK_NOW):
        return True
    error = kernel.failure()
    if error.winerror != kernel.ERROR_LOCK_VIOLATION:
        raise error
    return False


def _locked(descriptor: int, how: int) -> bool:
    return bool(kernel.LockFileEx(_handle(descriptor), how, 0, 1, 0, byref(_place())))


def _place() -> kernel.Overlapped:
    return kernel.Overlapped(offset=LOCKED & 0xFFFFFFFF, offset_high=LOCKED >> 32)


def _handle(descriptor: int) -> HANDLE:
    return HANDLE(msvcrt.get_osfhandle(descriptor))


# --- Disks ----------------------------------------------------------------------------------------


def file_system(path: str) -> str | None:
    """`network drive` for a path on one; None for any other."""
    real = os.path.realpath(path)
    if real.startswith("\\\\") and not real.startswith("\\\\?\\"):
        return "network drive"
    volume = ctypes.create_unicode_buffer(len(real) + 260)
    if not kernel.GetVolumePath(real, volume, len(volume)):
        return None
    return "network drive" if kernel.GetDriveType(volume.value) == kernel.DRIVE_REMOTE else None


def free_space(path: Path) -> tuple[int, bool]:
    """The bytes that are free where that is, and that there is room for the name of another file."""
    return shutil.disk_usage(path).free, True
