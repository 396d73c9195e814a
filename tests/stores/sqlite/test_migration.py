"""A file of the first version becomes one of this version: once, whole, and with everything that was in it.

The old file is made from the first step of MIGRATIONS alone. What is in it was written by this version and is copied
column by column, so that every table has rows that make sense.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

import runcue
from runcue import Cue, Reader, Work, WorkState
from runcue.errors import StoreError
from runcue.stores.sqlite import file as files
from runcue.stores.sqlite import fork_guard, schema
from runcue.stores.sqlite.file import open_file
from runcue.testing import run, settle

PATIENCE = 240.0

OPENER = """
import asyncio, sys
import runcue

async def main():
    cue = runcue.Cue(sys.argv[1])

    @cue.task
    async def call(work): ...

    print("ready", flush=True)
    sys.stdin.readline()
    await cue.submit("call", id=sys.argv[2], retry=4)
    print((await cue.get(sys.argv[2])).retry.max_attempts, flush=True)
    await cue.close()

asyncio.run(main())
"""
BY_HAND = {
    "config": "VALUES ('colour', 'green'), ('number', 7)",
    "forgotten": "VALUES ('long ago', 'failed')",
    "mail": "VALUES (1, 'somebody', 41)",
    "paused_queues": "VALUES ('night')",
    "set_aside": "VALUES (999, 'ready/call', NULL)",
    "workers": "SELECT id, host, boot, pid, started_at, queues, '{}', 1 FROM made.workers",
}
"""Rows of tables that the program below leaves empty, or that looked otherwise."""
RENAMED = {
    "shelves": "index_heads", "set_aside": "quarantine", "shelf": "index_key", "place": "sort_key",
    "told": "last_event_seq",
}  # fmt: skip
"""What tables and columns of the first version are called now."""


def program(path: Path) -> Cue:
    """A program whose tasks do all that work can do."""
    cue = Cue(path)
    cue.service("api", rate="1000/min", circuit_threshold=50)

    @cue.task(uses="api", retry={"max_attempts": 2, "backoff": "fixed", "base_delay": 60, "jitter": False})
    async def call(work: Work) -> str:
        if work.params.get("fails", 0) >= work.attempt:
            raise OSError("no line")
        await asyncio.sleep(work.params.get("seconds", 0))
        return "good"

    return cue


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of this version with work in all states, as it would be if its program were killed."""
    folder = tmp_path_factory.mktemp("left")

    async def main() -> None:
        cue = program(folder / "queue.db")
        async with cue:
            await cue.submit("call", id="completed", idempotency_key="k", target="there")
            await cue.submit("call", id="cancelled", delay=60)
            await cue.cancel("cancelled")
            await cue.submit("call", id="failed", params={"fails": 9})
            await cue.wait("failed")
            await cue.submit("call", id="retrying", params={"fails": 1})
            await cue.submit("call", id="running", params={"seconds": 60})
            await cue.submit("call", id="waiting", depends_on=["retrying", "running"])
            await cue.submit("call", id="later", delay=3600, queue="other")
            await settle()
            looked(folder / "queue.db", "VACUUM INTO ?", str(folder / "copy.db"))
            await cue.cancel("running")
        await cue.close()

    run(main(), limit=1000)
    return folder / "copy.db"


def make_old(source: Path, path: Path) -> dict[str, list[Any]]:
    """Copy a queue into a new file of the first version; what is in each of its tables."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute(schema.MIGRATIONS[0]).fetchall()
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1")
    connection.execute("ATTACH ? AS made; DELETE FROM head", (str(source),))
    for table in columns():
        names = [str(row[1]) for row in connection.execute(f"PRAGMA main.table_info({table})")]
        if table in BY_HAND:
            connection.execute(f"INSERT INTO main.{table} {BY_HAND[table]}")
        else:
            connection.execute(
                f"INSERT INTO main.{table} ({', '.join(names)}) "
                f"SELECT {', '.join(map(called, names))} FROM made.{called(table)}"
            )
    connection.execute("DETACH made")
    rows = contents(connection)
    connection.close()
    assert [table for table, found in rows.items() if not found] == []
    return rows


def called(name: str) -> str:
    """What a table or column of the first version is called now."""
    return RENAMED.get(name, name)


def columns() -> dict[str, list[str]]:
    """What the tables of the first version have that they still have, by their names in it; nothing for those that
    are gone."""
    found: list[dict[str, list[str]]] = []
    for version in (1, schema.VERSION):
        made = apsw.Connection(":memory:")
        for step in schema.MIGRATIONS[:version]:
            made.execute(step).fetchall()
        names = [str(name) for (name,) in made.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found.append(
            {one: [str(row[1]) for row in made.execute(f"PRAGMA table_info({one})")] for one in names}
        )
    first, last = found
    return {
        table: [one for one in first[table] if called(one) in last.get(called(table), ())]
        for table in sorted(first)
    }


@pytest.fixture
def old(left: Path, path: Path) -> dict[str, list[Any]]:
    return make_old(left, path)


def contents(connection: apsw.Connection) -> dict[str, list[Any]]:
    """All rows of all tables that the first version had and that there still are, by their names in it."""
    is_old = connection.execute("PRAGMA user_version").fetchall() == [(1,)]
    name = str if is_old else called
    return {
        table: connection.execute(f"SELECT {', '.join(map(name, names))} FROM {name(table)}").fetchall()
        for table, names in columns().items()
        if names
    }


def looked(path: Path, question: str, *bindings: Any) -> list[Any]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute(question, bindings).fetchall()
    finally:
        connection.close()


def version(path: Path) -> int:
    number: int = looked(path, "PRAGMA user_version")[0][0]
    return number


# --- Everything is there ----------------------------------------------------------------------------


def test_opening_a_file_brings_it_to_this_version_and_changes_nothing_in_it_but_the_events(
    path: Path, old: dict[str, list[Any]]
) -> None:
    assert version(path) == 1
    connection = open_file(str(path))
    assert contents(connection) == {**old, "events": []}
    connection.close()
    assert version(path) == schema.VERSION
    assert looked(path, "SELECT DISTINCT retry FROM work_units") == [(None,)]
    assert looked(path, "SELECT is_serving FROM workers") == [(0,)]
    assert looked(path, "PRAGMA integrity_check") == [("ok",)]
    assert len(looked(path, "SELECT * FROM jobs")) == len(old["work_units"]) == 7


def test_a_migrated_file_has_what_a_new_one_has(
    path: Path, old: dict[str, list[Any]], tmp_path: Path
) -> None:
    def parts(path: Path) -> dict[str, Any]:
        connection = open_file(str(path))
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema ORDER BY name")]
        columns = {name: connection.execute(f"PRAGMA table_info('{name}')").fetchall() for name in names}
        connection.close()
        return columns

    assert parts(path) == parts(tmp_path / "new.db")


def test_whoever_reads_the_events_of_an_old_file_is_told_how_many_are_gone(
    path: Path, old: dict[str, list[Any]]
) -> None:
    told = sum(amount for _, _, _, amount, _ in old["events"])
    open_file(str(path)).close()
    with Reader(path) as reader:
        [gap] = reader.events()
        assert (gap.type, gap.seq, gap.data["missed"]) == ("gap", told, told)
        assert list(reader.events(since=told)) == []

    async def main() -> None:
        cue = program(path)
        await cue.submit("call", id="new")
        await cue.close()

    run(main())
    with Reader(path) as reader:
        events = list(reader.events(since=told))
    assert [event.seq for event in events] == list(range(told + 1, told + 1 + len(events)))
    assert [event.work_id for event in events if event.type == "queued"] == ["new"]


def test_work_of_an_old_file_is_there_and_goes_on(path: Path, old: dict[str, list[Any]]) -> None:
    async def main() -> None:
        cue = program(path)
        states = {work.id: work.state.value for work in await cue.list()}
        assert states == {
            "completed": "completed", "cancelled": "cancelled", "failed": "failed", "retrying": "pending",
            "running": "running", "waiting": "pending", "later": "pending",
        }  # fmt: skip
        failed = await cue.get("failed")
        assert failed is not None
        assert (failed.error, len(failed.history), failed.retry) == ("OSError: no line", 2, None)
        assert await cue.get_config() == {"colour": "green"}
        assert await cue.submit("call", idempotency_key="k") == "completed"
        with pytest.raises(runcue.WorkNotFound) as caught:
            await cue.wait("long ago")
        assert caught.value.forgotten
        async with cue:
            await cue.join()
            assert {(await cue.result(one)) for one in ("retrying", "running", "waiting", "later")} == {
                "good"
            }
            assert await cue.retry("failed") is True
            assert (await cue.wait("failed")).state == "failed"
            assert await cue.purge("failed") is True
            await cue.wait(await cue.submit("call", id="failed", params={"fails": 1}, retry=1))
        assert {state.value: amount for state, amount in (await cue.count()).items() if amount} == {
            "completed": 5, "failed": 1, "cancelled": 1,
        }  # fmt: skip
        await cue.close()

    run(main(), limit=100_000)
    with Reader(path) as reader:
        assert reader.count()[WorkState.PENDING] == 0
        assert reader.health()["problems"] == []
        assert reader.paused() == ["night"]


# --- A Reader cannot do it --------------------------------------------------------------------------


def test_a_reader_says_in_one_line_what_to_do_with_an_old_file(path: Path, old: dict[str, list[Any]]) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreError, match="older runcue") as caught:
        Reader(path)
    said = str(caught.value)
    assert "\n" not in said
    assert str(path)[-20:] in said
    assert f"schema 1, now {schema.VERSION}" in said
    assert "with a Cue" in said
    assert path.read_bytes() == before
    assert version(path) == 1


def test_a_reader_that_came_before_sees_the_file_once_it_is_migrated(
    path: Path, old: dict[str, list[Any]]
) -> None:
    with pytest.raises(StoreError):
        Reader(path)
    open_file(str(path)).close()
    with Reader(path) as reader:
        assert len(reader.jobs()) == 7


# --- All of it or nothing ---------------------------------------------------------------------------


STATEMENTS = [part for part in schema.MIGRATIONS[1].split(";") if part.strip()]


@pytest.mark.parametrize("place", range(len(STATEMENTS)))
def test_a_migration_that_is_killed_leaves_the_first_version(
    path: Path, old: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    parts = [*STATEMENTS[: place + 1], "SELECT killed()", *STATEMENTS[place + 1 :]]

    class Killed(BaseException):
        """Nothing that anybody would handle."""

    def killed(*_: Any) -> None:
        raise Killed

    connect = fork_guard.connect

    def armed(*arguments: Any, **options: Any) -> apsw.Connection:
        connection = connect(*arguments, **options)
        connection.create_scalar_function("killed", killed, 0)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (schema.MIGRATIONS[0], ";".join(parts), *schema.MIGRATIONS[2:]))
        patch.setattr(files, "connect", armed)
        with pytest.raises(Killed):
            open_file(str(path))
    assert version(path) == 1
    connection = apsw.Connection(str(path))
    assert contents(connection) == old
    assert connection.execute("SELECT name FROM sqlite_schema WHERE name = 'jobs'").fetchall() == []
    connection.close()
    connection = open_file(str(path))
    assert contents(connection) == {**old, "events": []}
    connection.close()
    assert version(path) == schema.VERSION


def test_many_processes_that_open_an_old_file_at_once_all_find_the_new_one(
    path: Path, old: dict[str, list[Any]]
) -> None:
    names = [f"new{number}" for number in range(8)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", OPENER, str(path), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in names
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        assert version(path) == 1
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(PATIENCE)
    assert said == [("4\n", "")] * 8
    assert version(path) == schema.VERSION
    with Reader(path) as reader:
        assert {row["id"] for row in reader.jobs("pending")} >= set(names)
        assert len(reader.jobs()) == 7 + 8
