"""The server that the tests of PostgreSQL are run with does what they rely on."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.pg import fixtures, server
from tests.pg.server import GUARDED, PASSWORD, Databases, Server, installations, moved, named

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0
CHILD = """
import sys
from tests.pg.server import Server
server = Server()
server.start()
print(server._keeper.pid, server.pid, server.folder, flush=True)
sys.stdin.read()
"""


def rows(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert found is not None
    return int(found[0])


def fill(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 100)")


def segments() -> list[str]:
    """The keys of all shared memory here."""
    return [line.split()[0] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]


@pytest.fixture
def ours(pg_server: Databases) -> Server:
    """The server for all, where it is not a given one."""
    if not isinstance(pg_server, Server):
        pytest.skip("the server that was named is not ours")
    return pg_server


def test_two_databases_know_nothing_of_each_other(pg: str, pg_server: Databases) -> None:
    other = pg_server.database()
    fill(pg)
    with pytest.raises(psycopg.errors.UndefinedTable):
        rows(other)
    pg_server.drop(other)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        rows(other)
    assert rows(pg) == 100


def test_a_database_can_be_a_copy_of_another(pg: str, pg_server: Databases) -> None:
    fill(pg)
    copy = pg_server.database(template=pg)
    assert rows(copy) == 100
    pg_server.drop(copy)


def test_what_was_committed_survives_a_crash_and_what_was_not_is_gone(pg_own: Server) -> None:
    dsn = pg_own.database()
    fill(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO kept VALUES (101)")
        before = pg_own.pid
        os.kill(connection.info.backend_pid, signal.SIGSTOP)  # so that it cannot end by itself
        pg_own.crash()
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    with pytest.raises(psycopg.OperationalError):
        rows(dsn)
    pg_own.start()
    assert pg_own.pid != before
    assert rows(dsn) == rows(pg_own.dsn(dsn, tcp=True)) == 100
    pg_own.halt()
    pg_own.start()
    assert rows(dsn) == 100
    os.kill(pg_own.pid, signal.SIGKILL)  # by somebody else
    pg_own.start()
    assert rows(dsn) == 100


def test_one_user_needs_a_password_and_has_no_rights(ours: Server) -> None:
    for tcp in (False, True):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(ours.dsn(tcp=tcp, user=GUARDED, password="wrong"))
        with (
            psycopg.connect(ours.dsn(tcp=tcp, user=GUARDED, password=PASSWORD)) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("CREATE TABLE kept ()")


def test_a_failed_start_says_why_and_nothing_is_left_even_of_a_crash() -> None:
    broken = Server(settings={"no_such_setting": "1"})
    with pytest.raises(RuntimeError, match="no_such_setting"):
        broken.start()
    assert broken.folder == Path()

    crashed = Server()
    crashed.start()
    folder = crashed.folder
    memory = (crashed.data / "postmaster.pid").read_text().splitlines()[6].split()[0]
    crashed.crash()
    assert memory in segments()
    crashed.stop()
    crashed.stop()
    assert not folder.exists()
    assert memory not in segments()


@pytest.fixture
def strict_umask() -> Iterator[None]:
    """Nobody else may read what is made meanwhile."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_programs_that_its_user_cannot_read_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "_readable", lambda self: False)
    with Server() as copied:
        command = Path(f"/proc/{copied.pid}/cmdline")
        if command.exists():
            assert command.read_text().startswith(str(copied.folder))
        fill(copied.dsn())


def test_a_server_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], PATIENCE)[0]
        keeper, pid, folder = child.stdout.readline().split()
        assert Path(folder).exists()
        process, other = os.pidfd_open(int(keeper)), os.pidfd_open(int(pid))
        child.send_signal(signal.SIGKILL)
        for handle in (process, other):
            assert select.select([handle], [], [], PATIENCE)[0], "the server is still there"
            os.close(handle)
    assert not Path(folder).exists()


def test_without_programs_tests_are_skipped_but_not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "installations", list)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="No PostgreSQL for tests"):
        fixtures._started()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="No PostgreSQL for tests"):
        fixtures._started()


def test_a_server_that_is_there_already_is_used(ours: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNCUE_TEST_PG_DSN", ours.dsn(tcp=True))
    found = server.given()
    assert found is not None
    dsn = found.database()
    assert f"@127.0.0.1:{ours.port}/" in dsn
    fill(dsn)
    found.stop()
    assert rows(dsn) == 100
    found.drop(dsn)


def programs(folder: Path, version: str) -> Path:
    """Programs that say no more than their version."""
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_of_several_servers_the_oldest_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [programs(tmp_path / one, one) for one in ("18.1", "14.9 (Debian 14.9-1)", "15.18", "16beta2")]
    monkeypatch.setattr(server, "installations", lambda: found)
    assert server.oldest() == found[1]


def test_a_new_server_is_not_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "installations", lambda: [programs(tmp_path / "bin", "16.2")])
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"older than 16 .* tools/postgres\.sh"):
        fixtures._started(is_oldest=True)


def test_programs_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNCUE_TEST_PG_PROGRAMS", str(programs(tmp_path / "bin", "13.0")))
    assert installations()[0] == tmp_path / "bin"


def test_the_wheel_comes_before_the_system() -> None:
    assert installations(), "the test group brings programs"
    assert installations()[0].parent.name.startswith("pginstall")


@pytest.mark.parametrize(
    ("dsn", "elsewhere"),
    [
        ("postgresql://me@/here?host=/tmp/x&port=5", "postgresql://me@127.0.0.1:7/here"),
        ("postgresql:///here?host=/tmp/x&sslmode=disable", "postgresql://127.0.0.1:7/here?sslmode=disable"),
        ("postgresql://me:word@far:5432/here", "postgresql://me:word@127.0.0.1:7/here"),
    ],
)
def test_a_url_can_be_moved_to_another_place(dsn: str, elsewhere: str) -> None:
    assert moved(dsn, 7) == elsewhere
    assert named(dsn, "there") == dsn.replace("/here", "/there")
