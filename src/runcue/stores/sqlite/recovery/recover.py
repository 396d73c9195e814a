"""Making a queue again of what can be read of a damaged file.

Rules:
- Nothing is destroyed. The damaged file, its log and its journal stay beside the new one, as they were, to the byte.
- If `recover` is interrupted, the file under the queue's name still has all that can be read, and it can be called
  again: the log is deleted only when the file holds its pages, and the new file takes the name in one step.
- No process may have the queue open. This process holds a lock meanwhile like any other.
- Rows are taken from the pages themselves (pages.py, copy.py): a page that leads to others may be gone while those
  others are sound. What follows from other rows is not copied but made anew (rebuild.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import apsw
import msgspec

from runcue.errors import StorageBusy, StorageCorrupt, StoreError
from runcue.host.address import advice, is_address, plain
from runcue.host.system import files
from runcue.stores.presence import presence
from runcue.stores.sqlite.file import MAGIC, bytes_in, open_file, translate
from runcue.stores.sqlite.owner import check_queue
from runcue.stores.sqlite.recovery.copy import Copy, Shape, shapes
from runcue.stores.sqlite.recovery.pages import Log, Pages, Tree
from runcue.stores.sqlite.recovery.rebuild import Rebuild
from runcue.stores.sqlite.schema import APPLICATION_ID, FORMER_NAMES, SINCE, TABLES, check_header, shown

KEPT: Final = ("", "-wal", "-journal")
BESIDE: Final = ("-wal", "-journal", "-shm")
"""What SQLite keeps beside a file; the last is made anew from the others."""
WORDS: Final = 3
"""How many findings of SQLite's integrity check are reported."""
SOME: Final = 1024 * 1024


class Rescue(msgspec.Struct, frozen=True):
    """What became of a damaged queue file."""

    path: str
    kept_as: str
    """Where the damaged file is now; its log has the same name with `-wal` behind it."""
    tables: dict[str, int]
    """How many rows each table has in the new file."""
    lost: dict[str, int]
    """What could not be kept of each table: units, where their number is known, else rows and pages."""
    problems: tuple[str, ...]
    """What was wrong and what follows from it, a sentence each."""


def recover(path: str | os.PathLike[str], *, force: bool = False, insecure: bool = False) -> Rescue:
    """Make a new queue file of what can be read of a damaged one, which is kept beside it.

    Raises StorageBusy while a process has the queue open, StorageCorrupt when nothing can be kept or the file is
    not runcue's, SchemaTooNew when a newer runcue made it, StorageInsecure when it is not its owner's alone, unless
    `insecure`, and StoreError when it is not damaged, unless `force`.
    """
    name = os.fspath(path)
    if not name or "\0" in name:
        raise StoreError(f"{shown(name)} is no name of a file. Give the path of the queue file.", name)
    if is_address(name):
        what = advice(path) or "Give the path of the queue file."
        raise StoreError(
            f"{shown(plain(name))} is an address, and only a file can be recovered. {what}", plain(name)
        )
    try:
        real = os.path.realpath(name)
        _check_file(real)
        if not insecure:
            check_queue(name, real)
        _check_alone(real)
        with ExitStack() as stack:
            image, known = _Image(real, stack), shapes()
            roots = image.roots(known)
            stack.enter_context(_shown_to_others(real))
            _sweep(real, image.scratch)
            return _recover(image, known, roots, force)
    except (apsw.Error, OSError, UnicodeError) as error:
        raise translate(error, name) from error


def _check_file(path: str) -> None:
    try:
        found = Path(path).stat()
    except FileNotFoundError as error:
        raise StoreError(f"{shown(path)} does not exist. Check the path.", path) from error
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{shown(path)} is no file. Give the path of the queue file.", path)


def _check_alone(path: str, but: str = "") -> None:
    """Refuse a queue that a process has open."""
    directory = presence.side_directory(path)
    ids = [one for one in presence.workers(directory) if one != but and presence.is_alive(directory, one)]
    if ids:
        pids = ", ".join(sorted({one.partition("-")[0] for one in ids}, key=len))
        raise StorageBusy(
            f"{shown(path)} is open in process {pids}. Stop every worker and program that uses it, and try again.",
            path,
        )


@contextmanager
def _shown_to_others(path: str) -> Iterator[None]:
    """Hold a lock like any process on the queue, so that two do not recover at once."""
    sign = presence.Presence(presence.side_directory(path), presence.new_worker_id())
    try:
        _check_alone(path, but=sign.worker_id)
        yield
    finally:
        sign.close()


def _sweep(path: str, ours: str) -> None:
    """Remove the files of a recovery that was killed."""
    real = Path(path)
    for found in real.parent.iterdir():
        if found.name.startswith(f"{real.name}.rescue-") and not str(found).startswith(ours):
            found.unlink(missing_ok=True)


# --- The damaged file -----------------------------------------------------------------------------


class _Image:
    """The damaged file, with the pages of its log. Closing the stack deletes the files that this makes beside it."""

    def __init__(self, path: str, stack: ExitStack) -> None:
        self.path = path
        self.stamp = _stamp(path)
        self.problems: list[str] = []
        self.is_current = True
        """False when commits are known to be missing."""
        self.is_sorted = True
        """False when the list of free pages cannot be relied on."""
        self.scratch = f"{path}.rescue-{presence.new_worker_id()}"
        stack.callback(_remove, self.scratch)
        self.merged = ""
        """A copy of the file with the pages of its log, where there is a log."""
        if bytes_in(f"{path}-wal"):
            self._merge(stack)
        self.pages = Pages(self.merged or path)
        stack.callback(self.pages.close)

    def _merge(self, stack: ExitStack) -> None:
        with Path(self.path + "-wal").open("rb") as file:
            log = Log(file)
            if not log.is_whole:
                self.is_current = False
                self.problems.append("Its log is damaged: what was committed after that place is lost")
            if not log.places:
                return
            self.merged = f"{self.scratch}-merged"
            stack.callback(_remove, self.merged)
            _copy(self.path, self.merged)
            with Path(self.merged).open("r+b") as target:
                target.truncate(log.count * log.size)
                for number in log.places:
                    if number <= log.count:
                        target.seek((number - 1) * log.size)
                        target.write(log.page(number))
        _sync(self.merged)

    def complaints(self) -> list[str]:
        """What SQLite's integrity check finds."""
        name = f"file:{quote(self.merged or self.path)}?immutable=1"
        try:
            connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            try:
                rows = connection.execute(f"PRAGMA integrity_check({WORDS})")
                said = [str(line).splitlines()[-1] for (line,) in rows]
            finally:
                connection.close()
        except (apsw.Error, UnicodeError) as error:
            return [str(error)]
        return [] if said == ["ok"] else said

    def roots(self, known: dict[str, Shape]) -> dict[str, int]:
        """Where each table and index begins: as the file says, or where it would in a new one.

        Refuses a file that is not ours, or too new. What a file of its version does not have is no longer `known`.
        """
        tree = Tree(self.pages, 1, True, lambda values: len(values) == 5)
        found = {
            FORMER_NAMES.get(values[1], values[1]): values[3]
            for _, values in tree.rows()
            if isinstance(values[1], str)
        }
        roots = {name: found[name] for name in known if isinstance(found.get(name), int)}
        for name, shape in known.items():
            if not tree.is_whole and name not in roots and shape.root not in roots.values():
                roots[name] = shape.root
        self._check_ours(set(found), known["head"], roots.get("head", 0))
        for name, since in SINCE.items():
            if name not in found and 0 < self._version < since:
                known.pop(name, None)
        return roots

    @property
    def _version(self) -> int:
        return int.from_bytes(self.pages.header[60:64], signed=True)

    def _check_ours(self, names: set[str], head: Shape, root: int) -> None:
        """Refuse a file that is no queue by its header, else the names of its tables, else the row of counters."""
        header = self.pages.header
        version = self._version
        application = int.from_bytes(header[68:72], signed=True)
        if header.startswith(MAGIC) and application == APPLICATION_ID and version > 0:
            check_header(self.path, application, version)
            return
        if application != APPLICATION_ID and len(names & TABLES) <= len(TABLES) // 2:
            if header.startswith(MAGIC):
                check_header(self.path, application, version)
            if not any(Tree(self.pages, root, True, head.fits).rows()):
                raise StorageCorrupt(
                    f"{shown(self.path)} is no SQLite file, or too little is left of it to tell that it was a queue. "
                    "Nothing was changed; restore a backup.",
                    self.path,
                )
        self.problems.append("Its header is damaged")
        self.is_sorted = False


def _stamp(path: str) -> list[tuple[int, int] | None]:
    """Size and time of change of a file and its log: when they differ later, somebody has written."""
    found: list[tuple[int, int] | None] = []
    for suffix in KEPT:
        try:
            state = Path(path + suffix).stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((state.st_size, state.st_mtime_ns))
    return found


# --- The new file ---------------------------------------------------------------------------------


def _recover(image: _Image, known: dict[str, Shape], roots: dict[str, int], force: bool) -> Rescue:
    path, said = image.path, image.complaints()
    connection = open_file(image.scratch)
    try:
        connection.execute("BEGIN IMMEDIATE")
        copy = Copy(image.pages, known, connection)
        copy.run(roots, image.is_sorted)
        rebuild = Rebuild(connection, copy.head, image.is_current)
        rebuild.run(copy.ids)
        connection.execute("COMMIT")
        tables = _checked(connection, path)
    finally:
        connection.close()
    problems = image.problems + copy.problems + rebuild.problems + [f"SQLite said: {line}" for line in said]
    if not problems and not force:
        raise StoreError(f"{shown(path)} is not damaged. Nothing was changed.", path)
    if copy.broken and not any(amount for name, amount in tables.items() if name != "head"):
        raise StorageCorrupt(
            f"Nothing can be read in {shown(path)}, and nothing was changed. Restore a backup.", path
        )
    kept_as = _exchange(path, image)
    return Rescue(path, kept_as, tables, _lost(copy, rebuild), tuple(problems))


def _lost(copy: Copy, rebuild: Rebuild) -> dict[str, int]:
    lost = dict(copy.broken)
    for name, amount in rebuild.refused.items():
        lost[name] = lost.get(name, 0) + amount
    if rebuild.lost_units or copy.has_all_ids:
        lost["work_units"] = len(rebuild.lost_units)
    return {name: lost[name] for name in sorted(lost) if lost[name]}


def _checked(connection: apsw.Connection, path: str) -> dict[str, int]:
    """The number of rows of each table of the new file; raises when SQLite finds damage in it."""
    said = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(1)")]
    if said != ["ok"]:
        raise StoreError(
            f"What was saved of {shown(path)} is not sound ({said[0]}). Nothing was changed.", path
        )
    tables = {}
    for name in sorted(TABLES):
        row: Any = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        tables[name] = int(row[0])
    return tables


def _exchange(path: str, image: _Image) -> str:
    """Keep the damaged files under another name, and give the new one theirs."""
    kept_as, folder = _unused(path), str(Path(path).parent)
    image.pages.close()  # an open file cannot be replaced everywhere
    _sync(image.scratch)
    for suffix in KEPT:
        if Path(path + suffix).exists():
            _keep(path + suffix, kept_as + suffix)
    _sync(folder)
    if _stamp(path) != image.stamp:
        raise StorageBusy(f"{shown(path)} was changed meanwhile. Close what uses it, and try again.", path)
    if image.merged:
        files.replace(image.merged, path)  # from here on the log has nothing that the file lacks
        _sync(folder)
    for suffix in BESIDE:
        Path(path + suffix).unlink(missing_ok=True)
    _sync(folder)
    files.replace(image.scratch, path)
    _sync(folder)
    return kept_as


def _unused(path: str) -> str:
    """A name for the damaged file, with the time in it."""
    name = base = f"{path}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    number = 1
    while any(Path(name + suffix).exists() for suffix in KEPT):
        number += 1
        name = f"{base}-{number}"
    return name


def _keep(path: str, name: str) -> None:
    """Give a file a second name; a copy takes it where the file system has no links."""
    try:
        Path(name).hardlink_to(path)
    except OSError:
        _copy(path, name)
        _sync(name)


def _copy(path: str, name: str) -> None:
    descriptor = files.open_file(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    with os.fdopen(descriptor, "wb") as target:
        files.make_private(descriptor)
        pages = Pages(path)
        try:
            while data := pages.read(target.tell(), SOME):
                target.write(data)
        finally:
            pages.close()


def _sync(path: str) -> None:
    files.sync_path(path)


def _remove(path: str) -> None:
    for suffix in ("", *BESIDE):
        Path(path + suffix).unlink(missing_ok=True)
