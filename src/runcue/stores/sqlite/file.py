"""Opens a queue file, refuses what is none, and turns SQLite's errors into ours.

Rules:
- A refused file is left as it is, to the byte. Its kind and its header are checked before SQLite opens it, and
  nothing is checkpointed until the file is known to be ours.
- Python never opens a file that may be a database: closing it would drop the locks of every other connection of
  this process. Its header is read by SQLite's own file layer, which avoids that.
- A missing or empty file becomes a new queue, for its owner alone. It gets its tables before it gets a write-ahead
  log, so that a header without our mark is never ours, whenever the process that made it was killed.
- A file that belongs to another user, or that others may write to, is not read at all (owner.py).
- A log without its file is what remains of a lost queue: no new queue is made over it.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from runcue.errors import (
    ForkedConnection,
    RuncueError,
    StorageBusy,
    StorageCorrupt,
    StorageFull,
    StorageReplaced,
    StoreError,
    quoted,
)
from runcue.host.shortage import no_files, no_memory
from runcue.host.system import files
from runcue.stores.sqlite.fork_guard import check_inherited, connect
from runcue.stores.sqlite.owner import accept_any, check_queue
from runcue.stores.sqlite.schema import (
    ADVICE,
    VERSION,
    check_header,
    check_tables,
    migrate,
    shown,
    version_of,
)
from runcue.stores.sqlite.wal_guard import check_pair

logger = logging.getLogger("runcue")

OLDEST_SQLITE: Final = (3, 51, 3)
PATIENCE: Final = 10.0
"""Seconds until a lock that another process holds becomes StorageBusy."""
OPENING: Final = 3.0
"""Seconds to wait for a lock while a file is opened: that happens on the loop, which stands still meanwhile."""
LONGEST_LOG: Final = 64 * 1024 * 1024
"""Bytes that the write-ahead log is cut back to after it has grown beyond them."""
CHECKPOINT_PAGES: Final = 1000
STATEMENTS: Final = 512
"""Places for prepared statements. Each row that `executemany` writes takes the next one, round and round: with few,
the rows of one turn would push all other statements out, and each turn would prepare them anew."""
LONGEST_PATH: Final = 480
LONGEST_NAME: Final = 240
"""Bytes; SQLite takes 512 and file systems 255, and what lies beside the file has a longer name."""

KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
SHARED_FILE_SYSTEMS: Final = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
    "network drive", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf",
    "virtiofs", "vmhgfs",
})  # fmt: skip
"""File systems on which locks or shared memory work on one machine at most."""

MAGIC: Final = b"SQLite format 3\0"
HEADER_LENGTH: Final = 100
"""The first bytes of a SQLite file, and the length of its header."""

_opening = threading.Lock()


def open_file(
    path: str,
    *,
    read_only: bool = False,
    insecure: bool = False,
    probe: Callable[[str], str | None] | None = None,
) -> apsw.Connection:
    """A connection to the queue in that file, which is made or migrated unless `read_only`.

    With `insecure` it may be anybody's, and anybody may write to it.
    """
    _check_library()
    check_owner = accept_any if insecure else check_queue
    try:
        real = _resolved(path)
        check_inherited(real)
        _check_place(real, probe or files.file_system)
        check_owner(path, real)
        check_pair(real)
        with _opening:  # one thread at a time: _create closes the new file
            if not read_only:
                _create(real)
        check_owner(path, real)  # another user may have made it meanwhile
        connection = _opened_to_read(real) if read_only else _opened(real)
        try:
            check_owner(path, real)
            _warn_of_links(real)
        except BaseException:
            connection.close()
            raise
    except (apsw.Error, OSError, UnicodeError) as error:
        raise translate(error, path) from error
    return connection


def open_beside(path: str, expected: tuple[int, int]) -> apsw.Connection:
    """Another connection to a queue that this process has open already, which cannot write."""
    check_same(path, expected)
    try:
        connection = _connected(_resolved(path), apsw.SQLITE_OPEN_READWRITE)
    except (apsw.Error, OSError, UnicodeError) as error:
        check_same(path, expected)
        raise translate(error, path) from error
    try:
        connection.execute("PRAGMA query_only = ON")
        be_patient(connection, PATIENCE)
        check_same(path, expected)
    except BaseException:
        connection.close()
        raise
    return connection


def identity(path: str) -> tuple[int, int]:
    """Device and inode of a file. If they are others later, the file was replaced."""
    try:
        found = os.stat(path)  # noqa: PTH116 (asked all the time, and a Path costs more than the call)
    except FileNotFoundError as error:
        raise replaced(path) from error
    except OSError as error:
        raise translate(error, path) from error
    return found.st_dev, found.st_ino


def check_same(path: str, expected: tuple[int, int]) -> None:
    """Refuse another file than the one that was opened."""
    if identity(path) != expected:
        raise replaced(path)


# --- What is there --------------------------------------------------------------------------------


def _check_library() -> None:
    version = tuple(map(int, apsw.sqlite_lib_version().split(".")))
    if version < OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {apsw.sqlite_lib_version()} can lose a commit when several processes write. "
            f"Install an apsw that brings {'.'.join(map(str, OLDEST_SQLITE))} or newer."
        )


def _resolved(path: str) -> str:
    if not path or "\0" in path:
        raise StoreError(f"{shown(path)} is no name of a file. Give the path of the queue file.", path)
    real = os.path.realpath(path)
    name = real.encode()  # SQLite's names of files are UTF-8
    if len(name) > LONGEST_PATH or len(Path(real).name.encode()) > LONGEST_NAME:
        raise _too_long(path)
    return real


def _check_place(path: str, probe: Callable[[str], str | None]) -> None:
    folder = Path(path).parent
    if not folder.is_dir():
        raise StoreError(
            f"Cannot open {shown(path)}: {shown(str(folder))} is no directory. Make it first, or choose another.",
            path,
        )
    kind = probe(path)
    if kind is not None and (kind in SHARED_FILE_SYSTEMS or kind.startswith("fuse.")):
        raise StoreError(
            f"{shown(path)} is on a shared file system ({kind}), where locks are not reliable and the queue would "
            "be damaged. Put it on a local disk.",
            path,
        )


def _size_of(path: str) -> int:
    """The size of a file, 0 when there is none; refuses what is no plain file."""
    log = bytes_in(f"{path}-wal")
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        size = 0
    else:
        kind = stat.S_IFMT(found.st_mode)
        if kind != stat.S_IFREG:
            raise StoreError(f"{shown(path)} is {KINDS.get(kind, 'no file')}. Choose another path.", path)
        size = found.st_size
    if log and not size:
        raise StorageCorrupt(
            f"{shown(path)} is empty or gone, but its log {shown(path + '-wal')} is not. Restore a backup, or "
            "delete the log to begin anew.",
            path,
        )
    return size


def _warn_of_links(path: str) -> None:
    links = Path(path).stat().st_nlink
    if links > 1:
        logger.warning(
            "%s has %d names (hard links). Use only this one: by another its log would not be found, and the queue "
            "would be damaged.",
            shown(path),
            links,
        )


def bytes_in(path: str) -> int:
    """How long a file is, links followed; 0 when there is none."""
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _create(path: str) -> None:
    if not Path(path).exists():
        _size_of(path)
        try:
            descriptor = files.open_file(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        except FileExistsError:
            return  # another process was faster
        try:
            files.make_private(descriptor)  # whatever the umask takes away
        finally:
            os.close(descriptor)


def _check_header(path: str) -> None:
    """Refuse what is no SQLite file, is not ours or is too new, without taking a lock or changing a byte."""
    size, header = 0, b""
    for _ in _tries(1.0):
        size = _size_of(path)
        if not size:
            return
        header = _header_of(path)
        is_whole = len(header) == HEADER_LENGTH and header.startswith(MAGIC)
        # With a journal, another process may be writing the header now.
        if is_whole or not Path(path + "-journal").exists():
            break
    if len(header) < HEADER_LENGTH or not header.startswith(MAGIC):
        raise StorageCorrupt(
            f"{shown(path)} is no SQLite file, or its beginning is damaged. Choose another. {ADVICE}",
            path,
        )
    page = int.from_bytes(header[16:18])
    # SQLite would take what is missing for zeros.
    if page > 1 and size % page and not bytes_in(f"{path}-wal"):
        raise StorageCorrupt(
            f"{shown(path)} is damaged: it ends in the middle of a page. {ADVICE}",
            path,
        )
    version = int.from_bytes(header[60:64], signed=True)
    application = int.from_bytes(header[68:72], signed=True)
    check_header(path, application, version)


def _header_of(path: str) -> bytes:
    file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        return bytes(file.xRead(HEADER_LENGTH, 0))
    finally:
        file.xClose()


# --- Opening --------------------------------------------------------------------------------------


def _opened(path: str) -> apsw.Connection:
    _check_header(path)
    connection = _connected(path, apsw.SQLITE_OPEN_READWRITE)
    try:
        if connection.readonly("main"):
            raise _not_writable(path)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        version_of(connection)
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection)
        _keep_log(connection)
        connection.execute(
            f"PRAGMA journal_size_limit = {LONGEST_LOG}; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}"
        ).fetchall()
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        be_patient(connection, PATIENCE)
    except apsw.Error as error:
        problem = translate(error, path, connection)  # the connection knows the cause until it is closed
        connection.close()
        raise problem from error
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(name: str, flags: int) -> apsw.Connection:
    connection = connect(name, flags, STATEMENTS)
    be_patient(connection, OPENING)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else SQLite plans anew for each value of a LIMIT
    connection.execute(
        "PRAGMA foreign_keys = OFF; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; "
        "PRAGMA temp_store = MEMORY"
    ).fetchall()
    return connection


def be_patient(connection: apsw.Connection, seconds: float) -> None:
    """Make a connection wait that long for locks of others."""
    connection.set_busy_timeout(int(seconds * 1000))
    if "ENABLE_SETLK_TIMEOUT" in apsw.compile_options:
        sleep = seconds if files.CAN_SLEEP_FOR_LOCKS else 0.0
        connection.setlk_timeout(int(sleep * 1000), 0)  # blocking on connect would know no time limit


def undo(connection: apsw.Connection) -> None:
    """Roll back, unless SQLite has done so itself, as it does after errors such as a full disk."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _keep_log(connection: apsw.Connection) -> None:
    """Switch to a write-ahead log. SQLite does not wait for others here, whatever its timeout."""
    for _ in _tries(OPENING):
        try:
            [(mode,)] = connection.execute("PRAGMA journal_mode = WAL")
        except apsw.BusyError:
            continue
        if mode == "wal":
            return
        raise StoreError(
            f"{shown(connection.filename)} cannot have a write-ahead log here (SQLite chose {quoted(mode)}). "
            "Put it on a local disk.",
            connection.filename,
        )
    raise _busy(connection.filename)


def _tries(seconds: float) -> Iterator[None]:
    """Once, and time after time until the seconds are over."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _opened_to_read(path: str) -> apsw.Connection:
    if not _size_of(path):
        raise StoreError(
            f"{shown(path)} holds no queue yet. Check the path, or submit something first.", path
        )
    _check_header(path)
    try:
        connection = _read_through(path, apsw.SQLITE_OPEN_READONLY)
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        if bytes_in(f"{path}-wal"):
            raise StoreError(
                f"{shown(path)} cannot be read: its log needs {shown(path + '-shm')}, which cannot be made here. "
                "Read it as its owner, or copy it with its log.",
                path,
            ) from error
        logger.warning(
            "%s is read as it stands now, since nothing can be written beside it. Open it anew to see changes.",
            shown(path),
        )
        name = f"file:{quote(path)}?immutable=1"
        connection = _read_through(name, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    return connection


def _read_through(name: str, flags: int) -> apsw.Connection:
    connection = _connected(name, flags)
    try:
        version = version_of(connection)
        path = connection.filename
        if version < VERSION:
            raise StoreError(
                f"{shown(path)} was made by an older runcue (schema {version}, now {VERSION}). Open it once with "
                "a Cue, or any queuectl command that changes something, to bring it up to date.",
                path,
            )
        check_tables(connection)
        be_patient(connection, PATIENCE)
    except BaseException:
        connection.close()
        raise
    return connection


# --- Errors ---------------------------------------------------------------------------------------

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_ALLOWED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def translate(error: Exception, path: str, connection: apsw.Connection | None = None) -> Exception:
    """Our error for one of SQLite or of the system; any other is returned as it is.

    SQLite reports some full disks as a failed write; the connection tells them apart.
    """
    number, said = None, str(error)
    if isinstance(error, OSError):
        number, said = error.errno, error.strerror or said
    elif isinstance(error, apsw.IOError | apsw.CantOpenError) and connection is not None:
        number = connection.system_errno
    if isinstance(error, RuncueError):
        return error
    if isinstance(error, apsw.FullError) or number in NO_ROOM:
        return StorageFull(f"No room left to write {shown(path)} ({said}). Free some space.", path)
    if (
        isinstance(error, OSError | apsw.CantOpenError)
        and (lack := no_files(number, shown(path), path)) is not None
    ):
        return lack
    if isinstance(error, MemoryError | apsw.NoMemError):
        return no_memory(shown(path), path)
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError):
        return StorageCorrupt(
            f"{shown(path)} is damaged ({said}). {ADVICE}",
            path,
        )
    if isinstance(error, UnicodeEncodeError):
        return StoreError(f"The name {shown(path)} is no valid Unicode. Rename the file.", path)
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return _busy(path)
    if isinstance(error, apsw.ReadOnlyError):
        if getattr(error, "extendedresult", None) == apsw.SQLITE_READONLY_DBMOVED:
            return replaced(path)
        return _not_writable(path)
    if isinstance(error, apsw.ForkingViolationError):
        return ForkedConnection(
            f"{shown(path)} was opened before a fork. Open it after, or start a new process.",
            path,
        )
    if number == errno.ENAMETOOLONG:
        return _too_long(path)
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError) or number in NOT_ALLOWED:
        return StoreError(
            f"{shown(path)} cannot be opened ({said}). Check its permissions and its directory's.", path
        )
    if isinstance(error, apsw.Error | OSError):
        return StoreError(
            f"{shown(path)} cannot be read or written ({said}). Check the disk and try again.", path
        )
    return error


def _too_long(path: str) -> StoreError:
    return StoreError(
        f"The path {shown(path)} is too long: it may have {LONGEST_PATH} bytes in all and {LONGEST_NAME} in its "
        "last part. Choose a shorter one.",
        path,
    )


def _busy(path: str) -> StorageBusy:
    return StorageBusy(
        f"{shown(path)} is locked by another program, and waiting did not help. Close what holds it, mostly a tool "
        "with an open transaction, and try again.",
        path,
    )


def replaced(path: str) -> StorageReplaced:
    """The error of a file that is no longer the one that was opened."""
    return StorageReplaced(
        f"{shown(path)} was deleted or exchanged while it was open. Put it back, or delete its log before you open "
        "another.",
        path,
    )


def _not_writable(path: str) -> StoreError:
    return StoreError(f"{shown(path)} is read-only. Change its permissions, or open it with read_only.", path)
