"""Files that are no queue, were one once, or are wanted by many at the same time."""

import hashlib
import json
import logging
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from runcue import Cue
from runcue.core.model.record import Record, Spec
from runcue.errors import (
    ForkedConnection,
    SchemaTooNew,
    StorageBusy,
    StorageCorrupt,
    StorageFull,
    StorageReplaced,
    StoreError,
)
from runcue.host.posix import files as system
from runcue.stores.sql import codec, statements
from runcue.stores.sqlite import file as files
from runcue.stores.sqlite import schema
from runcue.stores.sqlite.file import identity, open_file, translate
from tests.stores.hands import change

PATIENCE = 240.0

# --- Other processes ------------------------------------------------------------------------------

CHILD = """
import ctypes, json, os, resource, signal, sys
import apsw
from runcue.errors import RuncueError
from runcue.host.posix import files as system
from runcue.stores.sql import codec, statements
from runcue.stores.sqlite import schema
from runcue.stores.sqlite.file import open_file, translate
path = sys.argv[1]

def say(value):
    print(json.dumps(value), flush=True)

def powerless():
    # The superuser may write anywhere: give that up, so that the permissions of files count.
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")

"""


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test started: whatever happens, none outlives it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate(timeout=PATIENCE)


def start(children: list[subprocess.Popen[str]], code: str, path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD + code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children.append(child)
    return child


def told(child: subprocess.Popen[str]) -> Any:
    """What a child said last before it ended by itself."""
    out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, err
    return json.loads(out.splitlines()[-1])


# --- Files ----------------------------------------------------------------------------------------


def work(number: int) -> Record:
    spec = Spec(f"w{number:04}", "extract", b'{"page":1}', ("api",), idempotency_key=f"key{number}")
    return Record(
        spec.id, spec, number, float(number), 1.0, index_key="ready/extract", sort_key=float(number)
    )


WORKS = {record.id: record for record in map(work, range(1, 301))}


def fill(connection: apsw.Connection) -> None:
    with connection:
        connection.executemany(
            statements.INSERT, [codec.insert_row(record, 1.0) for record in WORKS.values()]
        )


def everything(path: Path) -> dict[str, Record]:
    """All work in a file, found along every way there is."""
    connection = open_file(str(path))
    try:
        found: dict[str, Record] = {}
        for way in ("NOT INDEXED", "INDEXED BY work_units_by_index_key", "INDEXED BY work_units_by_key"):
            where = "WHERE index_key IS NOT NULL AND idempotency_key IS NOT NULL"
            records = [
                codec.read_row(row) for row in connection.execute(f"{statements.SELECT} {way} {where}")
            ]
            assert len(records) == len(WORKS)
            found |= {record.id: record for record in records}
        return found
    except apsw.Error as error:
        raise translate(error, str(path), connection) from error
    finally:
        connection.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A queue with some work in it, closed and in one file."""
    path = tmp_path_factory.mktemp("whole") / "queue.db"
    connection = open_file(str(path))
    fill(connection)
    connection.close()
    assert not Path(f"{path}-wal").exists()
    assert everything(path) == WORKS
    return path.read_bytes()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def other_application(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute("INSERT INTO theirs VALUES (2)")
    connection.close()


def newer(path: Path) -> None:
    open_file(str(path)).close()
    change(path, f"PRAGMA user_version = {schema.VERSION + 1}")


def version_in_its_log(path: Path, version: int) -> None:
    """A version that stands in the log alone."""
    open_file(str(path)).close()
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def newer_in_its_log(path: Path) -> None:
    version_in_its_log(path, schema.VERSION + 1)


def of_no_version(path: Path) -> None:
    open_file(str(path)).close()
    change(path, "PRAGMA user_version = -1")


def of_version_zero(path: Path) -> None:
    version_in_its_log(path, 0)


def without_a_table(path: Path) -> None:
    open_file(str(path)).close()
    change(path, "DROP TABLE index_heads; PRAGMA journal_mode = DELETE")


def text(path: Path) -> None:
    path.write_text("Dear diary,\n" * 1000)


def one_byte(path: Path) -> None:
    path.write_bytes(b"S")


def magic_alone(path: Path) -> None:
    path.write_bytes(files.MAGIC)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(8192))


def garbage_with_a_journal(path: Path) -> None:
    path.write_bytes(b"x" * 8192)
    Path(f"{path}-journal").write_bytes(b"y" * 100)


NOT_OURS = {
    other_application: StorageCorrupt,
    newer: SchemaTooNew,
    newer_in_its_log: SchemaTooNew,
    of_no_version: StorageCorrupt,
    of_version_zero: StorageCorrupt,
    without_a_table: StorageCorrupt,
    text: StorageCorrupt,
    one_byte: StorageCorrupt,
    magic_alone: StorageCorrupt,
    zeros: StorageCorrupt,
    garbage_with_a_journal: StorageCorrupt,
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(("make", "kind"), NOT_OURS.items(), ids=[make.__name__ for make in NOT_OURS])
def test_a_file_that_is_not_ours_is_refused_in_one_line_and_left_as_it_is(
    make: Any, kind: type[StoreError], read_only: bool, tmp_path: Path
) -> None:
    path = tmp_path / "queue.db"
    make(path)
    before = digest(path)
    with pytest.raises(kind) as caught:
        open_file(str(path), read_only=read_only)
    assert type(caught.value) is kind
    assert "queue.db" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.store is not None
    assert digest(path) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_what_is_no_file_is_refused_and_a_fifo_does_not_hang(
    tmp_path: Path, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket may have little more than a hundred characters
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name in ("fifo", "directory", "socket"):
            with pytest.raises(StoreError, match=rf"is a {name}|is a FIFO"):
                open_file(str(tmp_path / name), read_only=read_only)
    with pytest.raises(StoreError, match="is a device"):
        open_file("/dev/null", read_only=read_only)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["directory", "fifo", "socket"]


def test_an_empty_file_becomes_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    path.touch()
    connection = open_file(str(path))
    assert connection.execute("SELECT count(*) FROM work_units").fetchall() == [(0,)]
    connection.close()


@pytest.mark.parametrize("umask", [0, 0o022, 0o277])
def test_a_new_file_and_its_log_are_for_their_owner_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        connection = open_file(str(tmp_path / "queue.db"))
    finally:
        os.umask(before)
    fill(connection)
    modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.iterdir()}
    connection.close()
    assert modes == {"queue.db": 0o600, "queue.db-shm": 0o600, "queue.db-wal": 0o600}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_log_without_its_file_is_no_place_for_a_new_queue(tmp_path: Path, is_there: bool) -> None:
    path, log = tmp_path / "queue.db", tmp_path / "queue.db-wal"
    log.write_bytes(b"the rest of a queue")
    if is_there:
        path.touch()
    with pytest.raises(StorageCorrupt, match=r"its log .* is not"):
        open_file(str(path))
    assert log.read_bytes() == b"the rest of a queue"
    assert path.exists() is is_there


# --- Damage ---------------------------------------------------------------------------------------


def refusal(path: Path, data: bytes) -> StoreError | None:
    """How a file with that in it is refused; if it is not, all its work must be as it was."""
    path.write_bytes(data)
    try:
        assert everything(path) == WORKS
    except StoreError as error:
        return error
    finally:
        for beside in (f"{path}-wal", f"{path}-shm", f"{path}-journal"):
            Path(beside).unlink(missing_ok=True)
    return None


def is_refused(path: Path, data: bytes) -> bool:
    """Whether that is refused as corrupt, in one line, and left as it is."""
    error = refusal(path, data)
    if error is None:
        return False
    assert isinstance(error, StorageCorrupt), error
    assert "\n" not in str(error)
    assert path.read_bytes() == data
    return True


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "queue.db"
    lengths = range(512, len(whole), 512)
    assert len(lengths) > 100
    assert [length for length in lengths if not is_refused(path, whole[:length])] == []


@pytest.mark.parametrize("filling", ["zeros", "ones", "noise"])
def test_no_page_of_garbage_is_taken_for_work(tmp_path: Path, whole: bytes, filling: str) -> None:
    path, chance = tmp_path / "queue.db", random.Random(1)
    pages = len(whole) // 4096
    refused = 0
    for page in range(pages):
        garbage = {"zeros": bytes(4096), "ones": b"\xff" * 4096, "noise": chance.randbytes(4096)}[filling]
        refused += is_refused(path, whole[: page * 4096] + garbage + whole[(page + 1) * 4096 :])
    assert refused > pages // 3  # the rest are pages of tables that hold no work


def test_a_changed_byte_in_the_header_never_ends_in_anything_but_a_clear_refusal(
    tmp_path: Path, whole: bytes
) -> None:
    path = tmp_path / "queue.db"
    refused = 0
    for place in range(100):
        error = refusal(path, whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        if error is not None:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 30


def test_text_that_is_no_unicode_is_damage(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(whole.replace(b'{"page":1}', b'{"page\xff:1}'))
    with pytest.raises((StorageCorrupt, UnicodeDecodeError)) as caught:
        everything(path)
    assert isinstance(translate(caught.value, str(path)), StorageCorrupt)


# --- Names and places -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["with space", "new\nline", "ünïcödé", "a?b#c%20&mode=ro", "~", "file:x", "x" * 240]
)
def test_a_queue_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    connection = open_file(str(path))
    fill(connection)
    assert connection.filename == str(path)
    reader = open_file(str(path), read_only=True)
    assert reader.execute("SELECT count(*) FROM work_units").fetchall() == [(len(WORKS),)]
    reader.close()
    connection.close()
    assert [one.name for one in tmp_path.iterdir() if not one.name.endswith(("-wal", "-shm"))] == [name]


def test_a_relative_name_is_meant_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    connection = open_file("queue.db")
    assert connection.filename == str(tmp_path / "queue.db")
    connection.close()


@pytest.mark.parametrize(
    "name", ["missing/queue.db", "queue.txt/queue.db", "x" * 241, "y/" * 2100, "\udcff.db"]
)
def test_a_place_that_cannot_be_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "queue.txt").write_text("no directory")
    with pytest.raises(StoreError) as caught:
        open_file(str(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["queue.txt"]


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match="no name of a file"):
        open_file(name)


def test_symbolic_links_lead_to_one_queue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "link").symlink_to("target")
    first = open_file(str(tmp_path / "link"))
    fill(first)
    second = open_file(str(tmp_path / "target"))
    assert first.filename == second.filename == str(tmp_path / "target")
    assert second.execute("SELECT count(*) FROM work_units").fetchall() == [(len(WORKS),)]
    first.close()
    second.close()
    assert caplog.records == []


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match="symbolic links"):
        open_file(str(tmp_path / "loop"))


def test_a_file_of_two_names_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_file(str(tmp_path / "queue.db")).close()
    (tmp_path / "other.db").hardlink_to(tmp_path / "queue.db")
    open_file(str(tmp_path / "queue.db")).close()
    [line] = caplog.records
    assert (line.name, line.levelno) == ("runcue", logging.WARNING)
    assert "2 names" in line.getMessage()


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse", "ceph", "virtiofs"]
)
def test_a_shared_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StoreError, match=rf"shared file system \({kind}\)"):
        open_file(str(tmp_path / "queue.db"), probe=lambda _: kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "overlay", "fuseblk", None])
def test_a_local_file_system_is_taken(tmp_path: Path, kind: str | None) -> None:
    open_file(str(tmp_path / "queue.db"), probe=lambda _: kind).close()


def test_the_innermost_and_latest_mount_tells_the_type() -> None:
    table = rb"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /mnt rw - nfs4 host:/export rw
31 30 0:31 / /mnt/local\040disk rw shared:2 master:3 - xfs /dev/vdb rw
32 22 0:32 / /twice rw - ext4 /dev/vdc rw
33 22 0:33 / /twice rw - fuse.sshfs host: rw
nonsense
"""
    kinds = {
        b"/home/queue.db": "ext4",
        b"/mntx/queue.db": "ext4",
        b"/mnt/queue.db": "nfs4",
        b"/mnt/local disk/queue.db": "xfs",
        b"/twice/queue.db": "fuse.sshfs",
    }
    assert {path: system.mounted(table, path) for path in kinds} == kinds
    assert system.mounted(b"", b"/queue.db") is None


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="needs Linux")
def test_the_type_of_a_real_file_system_is_known(tmp_path: Path) -> None:
    assert system.file_system("/proc/version") == "proc"
    assert system.file_system(str(tmp_path / "queue.db")) is not None


# --- Options and connections ----------------------------------------------------------------------


def test_a_connection_keeps_a_log_and_is_durable(tmp_path: Path) -> None:
    connection = open_file(str(tmp_path / "queue.db"))
    settings = {
        name: connection.execute(f"PRAGMA {name}").fetchall()[0][0]
        for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys", "journal_size_limit")
    }
    connection.close()
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "busy_timeout": files.PATIENCE * 1000,
        "foreign_keys": 0,
        "journal_size_limit": files.LONGEST_LOG,
    }


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(StoreError, match=r"SQLite 3\.51\.2 .* 3\.51\.3 or newer"):
        open_file(str(tmp_path / "queue.db"))


def test_a_log_is_written_back_when_the_last_connection_closes(tmp_path: Path) -> None:
    connection = open_file(str(tmp_path / "queue.db"))
    fill(connection)
    connection.close()
    assert [one.name for one in tmp_path.iterdir()] == ["queue.db"]


def test_opening_again_takes_no_lock_away_from_the_first_connection(
    tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "queue.db"
    first = open_file(str(path))
    fill(first)
    open_file(str(path)).close()
    first.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(SchemaTooNew):
        open_file(str(path))
    child = start(
        children,
        """
import fcntl
file = os.open(path, os.O_RDWR)
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # where SQLite's readers have theirs
    say("free")
except OSError:
    say("held")
""",
        path,
    )
    assert told(child) == "held"
    first.close()


def test_a_file_that_somebody_holds_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "queue.db"
    path.touch()
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(files, "OPENING", 0.05)
    with pytest.raises(StorageBusy, match="locked by another program"):
        open_file(str(path))
    holder.execute("ROLLBACK")
    open_file(str(path)).close()
    holder.close()


def test_a_log_is_begun_when_those_who_write_without_one_have_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.db"
    open_file(str(path)).close()
    holder = apsw.Connection(str(path))
    holder.execute("PRAGMA journal_mode = DELETE").fetchall()
    holder.execute("BEGIN IMMEDIATE")
    tries = []

    def trace(_: object, sql: str, __: object) -> bool:
        if "journal_mode = WAL" in sql:
            tries.append(sql)
            if len(tries) == 3:
                holder.execute("ROLLBACK")
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    monkeypatch.setattr(apsw, "connection_hooks", [watch])
    connection = open_file(str(path))
    assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert len(tries) == 3
    connection.close()
    holder.close()


def test_a_replaced_file_has_another_identity(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    path.touch()
    before = identity(str(path))
    assert identity(str(path)) == before
    (tmp_path / "new").touch()
    (tmp_path / "new").replace(path)
    assert identity(str(path)) != before
    path.unlink()
    with pytest.raises(StorageReplaced):
        identity(str(path))


# --- Reading only ---------------------------------------------------------------------------------


def test_a_reader_makes_nothing_and_changes_nothing(tmp_path: Path, whole: bytes) -> None:
    for name in ("missing.db", "empty.db"):
        if name == "empty.db":
            (tmp_path / name).touch()
        with pytest.raises(StoreError, match="no queue yet"):
            open_file(str(tmp_path / name), read_only=True)
    assert [(one.name, one.stat().st_size) for one in tmp_path.iterdir()] == [("empty.db", 0)]
    path = tmp_path / "queue.db"
    path.write_bytes(whole)
    reader = open_file(str(path), read_only=True)
    with pytest.raises(apsw.ReadOnlyError) as caught:
        reader.execute("DELETE FROM work_units")
    reader.close()
    assert "read-only" in str(translate(caught.value, str(path)))
    assert path.read_bytes() == whole


def test_a_reader_sees_what_a_writer_commits(tmp_path: Path) -> None:
    writer = open_file(str(tmp_path / "queue.db"))
    reader = open_file(str(tmp_path / "queue.db"), read_only=True)
    fill(writer)
    assert reader.execute("SELECT count(*) FROM work_units").fetchall() == [(len(WORKS),)]
    reader.close()
    writer.close()


def test_a_reader_does_not_migrate_an_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "queue.db"
    open_file(str(path)).close()
    before = digest(path)
    monkeypatch.setattr(files, "VERSION", schema.VERSION + 1)
    with pytest.raises(StoreError, match="older runcue"):
        open_file(str(path), read_only=True)
    assert digest(path) == before


READ = """
powerless()
try:
    connection = open_file(path, read_only=%s)
    say(connection.execute("SELECT count(*) FROM work_units").fetchall()[0][0])
    connection.close()
except RuncueError as error:
    say([type(error).__name__, str(error)])
"""


def as_nobody(children: list[subprocess.Popen[str]], path: Path, *, read_only: bool) -> Any:
    return told(start(children, READ % read_only, path))


def test_a_read_only_file_is_read_and_not_written(
    tmp_path: Path, whole: bytes, children: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(whole)
    path.chmod(0o400)
    assert as_nobody(children, path, read_only=True) == len(WORKS)
    kind, message = as_nobody(children, path, read_only=False)
    assert kind == "StoreError"
    assert "read-only" in message
    assert path.read_bytes() == whole


def test_a_file_in_a_read_only_directory_is_read_as_it_stands(
    tmp_path: Path, whole: bytes, children: list[subprocess.Popen[str]]
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "queue.db").write_bytes(whole)
    (folder / "queue.db").chmod(0o400)
    folder.chmod(0o500)
    try:
        assert as_nobody(children, folder / "queue.db", read_only=True) == len(WORKS)
        kind, message = as_nobody(children, folder / "queue.db", read_only=False)
        assert (kind, "\n" in message) == ("StoreError", False)
        kind, message = as_nobody(children, folder / "new.db", read_only=False)
        assert (kind, "permissions" in message) == ("StoreError", True)
        assert [one.name for one in folder.iterdir()] == ["queue.db"]
    finally:
        folder.chmod(0o700)


def test_a_log_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    path = folder / "queue.db"
    connection = open_file(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    fill(connection)
    connection.close()
    Path(f"{path}-shm").unlink(missing_ok=True)
    assert Path(f"{path}-wal").stat().st_size
    folder.chmod(0o500)
    try:
        kind, message = as_nobody(children, path, read_only=True)
        assert (kind, "queue.db-shm" in message) == ("StoreError", True)
    finally:
        folder.chmod(0o700)
    assert as_nobody(children, path, read_only=True) == len(WORKS)


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, whole: bytes, children: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(whole)
    path.chmod(0)
    for read_only in (False, True):
        kind, message = as_nobody(children, path, read_only=read_only)
        assert (kind, "permissions" in message) == ("StoreError", True)


# --- A full disk ----------------------------------------------------------------------------------


def test_a_file_that_may_not_grow_is_full_and_can_still_be_read(
    tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    child = start(
        children,
        """
from runcue import Cue
from runcue.core.model.record import Record, Spec
connection = open_file(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
kept = 0
for number in range(1, 10_000):
    spec = Spec(f"w{number}", "extract", b'{"text":"' + b"x" * 5000 + b'"}', ())
    try:
        connection.execute(statements.INSERT, codec.insert_row(Record(spec.id, spec, number, 1.0, 1.0), 1.0))
    except apsw.Error as error:
        translated = translate(error, path, connection)
        break
    kept += 1
found = connection.execute("SELECT count(*) FROM work_units").fetchall()[0][0]
say([type(translated).__name__, "No room" in str(translated), kept > 0, found == kept])
""",
        tmp_path / "queue.db",
    )
    assert told(child) == ["StorageFull", True, True, True]


# --- Many at once ---------------------------------------------------------------------------------

RACE = """
say("ready")
sys.stdin.readline()
connection = open_file(path)
version = connection.execute("PRAGMA schema_version").fetchall()[0][0]
amount = connection.execute("SELECT count(*) FROM work_units").fetchall()[0][0]
connection.execute("INSERT INTO config VALUES (?, 1)", (str(os.getpid()),))
connection.close()
say([version, amount])
"""


def race(children: list[subprocess.Popen[str]], path: Path, amount: int, code: str = RACE) -> list[Any]:
    """What that many processes say that do the same at the same time."""
    runners = [start(children, code, path) for _ in range(amount)]
    for child in runners:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline()) == "ready"
    for child in runners:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return [told(child) for child in runners]


@pytest.mark.parametrize("is_there", [True, False])
def test_eight_processes_make_one_queue(
    tmp_path: Path, is_there: bool, children: list[subprocess.Popen[str]]
) -> None:
    alone = open_file(str(tmp_path / "alone.db"))
    once = alone.execute("PRAGMA schema_version").fetchall()[0][0]
    alone.close()
    path = tmp_path / "queue.db"
    if is_there:
        path.touch()
    assert race(children, path, 8) == [[once, 0]] * 8
    connection = open_file(str(path))
    assert connection.execute("SELECT count(*) FROM config").fetchall() == [(8,)]
    connection.close()


LATER = """
schema.MIGRATIONS += ("CREATE TABLE later (x); INSERT INTO later VALUES (1); CREATE TABLE latest (x)",)
schema.VERSION += 1
schema.TABLES |= {"later", "latest"}
"""


def test_eight_processes_migrate_once_and_keep_what_is_there(
    tmp_path: Path, whole: bytes, children: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(whole)
    said = race(children, path, 8, LATER + RACE)
    assert len({version for version, _ in said}) == 1
    assert {amount for _, amount in said} == {len(WORKS)}
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT x FROM later").fetchall() == [(1,)]
    connection.close()


def test_sixteen_processes_open_a_file_whose_last_user_was_killed(
    tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "queue.db"
    connection = open_file(str(path))
    fill(connection)
    connection.close()
    killed = start(
        children,
        """
connection = open_file(path)
connection.execute("DELETE FROM work_units WHERE seq <= 100")
os.kill(os.getpid(), signal.SIGKILL)
""",
        path,
    )
    killed.communicate(timeout=PATIENCE)
    assert Path(f"{path}-wal").stat().st_size
    said = race(children, path, 16)
    assert {amount for _, amount in said} == {len(WORKS) - 100}


KILLED = """
def statements():
    # Every statement that opening executes, up to the one before which the process is killed.
    def trace(cursor, sql, bindings):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return True
    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))

def look():
    connection = apsw.Connection(path)
    version = connection.execute("PRAGMA user_version").fetchall()[0][0]
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    return version, names

seen = set()
before = open(path, "rb").read()
for place in range(1000):
    for beside in ("-wal", "-shm", "-journal"):
        if os.path.exists(path + beside):
            os.unlink(path + beside)
    open(path, "wb").write(before)
    child = os.fork()
    if child == 0:
        left = place
        statements()
        try:
            open_file(path).close()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    version, names = look()
    tables = schema.TABLES if version == schema.VERSION else OLD if version else set()
    assert names == tables, (place, version, names ^ tables)
    seen.add(version)
    again = open_file(path)
    assert again.execute("PRAGMA user_version").fetchall()[0][0] == schema.VERSION
    assert again.execute("SELECT count(*) FROM work_units").fetchall()[0][0] == AMOUNT
    again.close()
    if not os.WIFSIGNALED(status):
        assert os.waitstatus_to_exitcode(status) == 0
        break
say([place > 20, sorted(seen)])
"""


def test_a_process_killed_at_any_statement_of_making_a_queue_leaves_nothing_half_done(
    tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "queue.db"
    path.touch()
    child = start(children, f"OLD, AMOUNT = set(), 0\n{KILLED}", path)
    assert told(child) == [True, [0, schema.VERSION]]


def test_a_process_killed_at_any_statement_of_a_migration_leaves_the_old_or_the_new(
    tmp_path: Path, whole: bytes, children: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(whole)
    code = f"OLD, AMOUNT = schema.TABLES, {len(WORKS)}\n{LATER}{KILLED.replace('place > 20', 'place > 8')}"
    child = start(children, code, path)
    assert told(child) == [True, [schema.VERSION, schema.VERSION + 1]]


# --- What complaints mean -------------------------------------------------------------------------


def complaint(kind: type[Exception], extended: int | None = None) -> Exception:
    error = kind("as SQLite says it")
    if extended is not None:
        error.extendedresult = extended  # type: ignore[attr-defined]  # set by SQLite's own errors
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (complaint(apsw.FullError), StorageFull),
        (OSError(28, "No space left on device"), StorageFull),
        (OSError(122, "Disk quota exceeded"), StorageFull),
        (complaint(apsw.CorruptError), StorageCorrupt),
        (complaint(apsw.NotADBError), StorageCorrupt),
        (complaint(apsw.BusyError), StorageBusy),
        (complaint(apsw.LockedError), StorageBusy),
        (complaint(apsw.ProtocolError), StorageBusy),
        (complaint(apsw.ReadOnlyError, apsw.SQLITE_READONLY_DBMOVED), StorageReplaced),
        (complaint(apsw.ReadOnlyError, apsw.SQLITE_READONLY), StoreError),
        (complaint(apsw.ForkingViolationError), ForkedConnection),
        (complaint(apsw.CantOpenError), StoreError),
        (complaint(apsw.IOError), StoreError),
        (complaint(apsw.SQLError), StoreError),
        (PermissionError(13, "Permission denied"), StoreError),
        (OSError(36, "File name too long"), StoreError),
        (OSError(5, "Input/output error"), StoreError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
def test_every_complaint_becomes_one_line_of_ours(error: Exception, kind: type[StoreError]) -> None:
    translated = translate(error, "/some/queue.db")
    assert type(translated) is kind
    assert isinstance(translated, StoreError)
    assert translated.store == "/some/queue.db"
    assert "queue.db" in str(translated)
    assert "\n" not in str(translated)


def test_a_long_path_is_told_by_its_end() -> None:
    message = str(translate(apsw.FullError("full"), f"/{'deep/' * 50}queue.db"))
    assert "deep/queue.db'" in message
    assert len(message) < 200


def test_what_is_no_complaint_of_the_store_comes_back_as_it_is() -> None:
    for error in (ValueError("mine"), StorageFull("ours already")):
        assert translate(error, "queue.db") is error


def test_a_moved_file_is_noticed_by_sqlite_itself(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE x (x)")
    path.rename(tmp_path / "moved.db")
    with pytest.raises(apsw.ReadOnlyError) as caught:
        connection.execute("INSERT INTO x VALUES (1)")
    connection.close()
    assert isinstance(translate(caught.value, str(path)), StorageReplaced)


def test_work_of_a_file_is_what_was_put_there(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    connection = open_file(str(path))
    fill(connection)
    connection.execute(statements.UPDATE, codec.update_row(replace(work(1), failures=1), 2.0))
    connection.close()
    assert everything(path) == WORKS | {"w0001": replace(work(1), failures=1)}


async def test_one_damaged_work_holds_up_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """DK15."""
    path = tmp_path / "queue.db"

    async def call(work: Any) -> int:
        return 1

    first = Cue(path)
    first.task("call")(call)
    await first.submit("call", id="bad")
    await first.submit("call", id="good")
    await first.close()
    change(path, "UPDATE work_units SET state = 'parked' WHERE id = 'bad'")
    cue = Cue(path)
    cue.task("call")(call)
    async with cue:
        assert await cue.result("good", timeout=PATIENCE) == 1
        assert await cue.result(await cue.submit("call", id="new"), timeout=PATIENCE) == 1
        assert [work.id for work in await cue.list()] == ["new", "good"]
        with pytest.raises(StorageCorrupt, match="'bad'"):
            await cue.get("bad")
    await cue.close()
    assert len([record for record in caplog.records if "'bad'" in record.getMessage()]) == 1
    connection = open_file(str(path), read_only=True)
    assert connection.execute("SELECT state FROM work_units WHERE id = 'bad'").fetchall() == [("parked",)]
    connection.close()
