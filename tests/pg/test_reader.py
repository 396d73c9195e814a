"""A Reader of a queue in PostgreSQL: it tells what a Cue tells, changes nothing, and says what is in the way."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from msgspec.structs import replace

import runcue
from runcue.core.schedule.plan import Plan
from runcue.executors.command.output import stem
from runcue.ports import Turn
from runcue.stores.postgres import schema, snapshot_reader
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.place import boot_of
from runcue.stores.postgres.store import postgres_store
from runcue.stores.sql import jobs_view
from runcue.stores.sql.store import SqlStore
from runcue.stores.sqlite.schema import JOBS
from runcue.testing.manual_turns import Hand, pending
from tests.handlers import no_op
from tests.pg.proxy import Proxy
from tests.pg.server import GUARDED, PASSWORD, Server
from tests.queues import make_empty
from tests.stores.beside import hanging

BOUND = 240.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this host, for this test alone."""
    found = tmp_path / "here"
    found.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(found))
    monkeypatch.setenv("TMPDIR", str(found))
    return found


@pytest.fixture
def worker(pg: str) -> Iterator[subprocess.Popen[str]]:
    """Another process of this host whose only work never ends."""
    with hanging(pg) as process:
        yield process


def admin(url: str, *statements: str) -> list[Any]:
    """Do something to the database, as its owner; the rows that the last of it found."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = [connection.execute(statement) for statement in statements][-1]
        return found.fetchall() if found.description else []


def queue(where: str | Path, **options: Any) -> runcue.Cue:
    """A program with two tasks."""
    cue = runcue.Cue(where, **options)
    cue.service("api", rate="10/min", concurrent=3)

    @cue.task(uses="api", retry={"max_attempts": 2, "backoff": "fixed", "base_delay": 0.01, "jitter": False})
    async def call(work: runcue.Work) -> Any:
        if work.params.get("fails", 0) >= work.attempt:
            raise ConnectionError("no line \uf8ff0")
        return {"page": work.params.get("page")}

    cue.task("note")(no_op)
    return cue


async def filled(where: str | Path, **options: Any) -> runcue.Cue:
    """A queue with work in every state but running; nobody starts any more of it."""
    cue = queue(where, **options)
    async with cue, asyncio.timeout(BOUND):
        await cue.submit("call", params={"page": 1, "command": ["a", 1]}, id="good")
        await cue.submit("call", params={"fails": 2, "command": "x \0 y"}, id="bad")
        await cue.submit("call", params={"fails": 1}, id="shaky", idempotency_key="k", target="there")
        await cue.submit("note", id="gone", delay=3600)
        await cue.cancel("gone")
        await cue.join()
    await cue.submit_many({"task": "call", "id": f"p{n}", "priority": n / 2} for n in range(3))
    await cue.submit("note", id="after", depends_on=["p0"], queue="night", retry=4)
    await cue.pause("night")
    await cue.schedule("nightly", "note", cron="0 3 * * *", tz="Europe/Zurich")
    await cue.set_config({"motto": "more \0 haste"})
    return cue


def test_it_tells_what_a_cue_tells(pg: str) -> None:
    tells_what_a_cue_tells(pg)


def tells_what_a_cue_tells(url: str) -> None:
    """Ask a Reader and a Cue everything there is to ask."""

    async def main() -> None:
        cue = await filled(url)
        with runcue.Reader(url) as reader:
            for work in await cue.list():
                assert reader.get(work.id) == work
            assert reader.list() == await cue.list()
            assert reader.list("pending", "call", 2) == await cue.list("pending", "call", 2)
            assert [one.id for one in reader.list("pending", before="p1")] == ["p0"]
            assert [one.id for one in reader.list(search="THERE")] == ["shaky"]
            assert [one.id for one in reader.list(service="api", queue="default", state="failed")] == ["bad"]
            assert reader.dead() == await cue.list("failed")
            assert reader.count() == await cue.count()
            assert reader.tally() == await cue.tally()
            assert reader.dependents("p0") == await cue.dependents("p0")
            assert reader.paused() == await cue.paused() == ["night"]
            assert reader.schedules() == await cue.schedules()
            assert [one.name for one in reader.schedules()] == ["nightly"]
            assert reader.config() == await cue.get_config() == {"motto": "more \0 haste"}
            assert reader.last_event() == await cue.last_event()
            kept = [event async for event in _told(cue, reader.last_event())]
            assert list(reader.events()) == kept
            assert [one.type for one in reader.events("cancelled")] == ["cancelled"]
            assert list(reader.events(since=reader.last_event())) == []
            mine, told = reader.services()[0], (await cue.services())[0]
            assert {**mine, "until": None} == {**told, "until": None}
            assert reader.explain("after").reason == (await cue.explain("after")).reason == "dependency"
            assert reader.explain("p1").ahead == 1
            assert set(reader.explain_many(["p0", "after", "nowhere"])) == {"p0", "after"}
            with pytest.raises(runcue.WorkNotFound):
                reader.explain("nowhere")
            await cue.close()
            assert reader.explain("p1").details == "no process has the queue open"

    asyncio.run(main())


async def _told(cue: runcue.Cue, last: int) -> Any:
    async for event in cue.events(since=0):
        yield event
        if event.seq >= last:
            return


def test_queue_time_is_the_server_s_clock_and_its_offset(pg: str) -> None:
    asyncio.run(make_empty(pg))
    clock = "SELECT extract(epoch FROM clock_timestamp())::float8 + 5000"
    admin(pg, "UPDATE runcue.head SET clock_offset = 5000")
    with runcue.Reader(pg) as reader:
        [(before,)] = admin(pg, clock)
        now = reader.now()
        [(after,)] = admin(pg, clock)
        assert before <= now <= after
        admin(pg, "UPDATE runcue.head SET now = 9e9")
        assert reader.now() == 9e9, "it never goes backwards"


def test_nothing_is_made_and_nothing_is_held(pg: str, folder: Path) -> None:
    with pytest.raises(runcue.StoreError, match="holds no queue 'default' yet"):
        runcue.Reader(pg)
    assert admin(pg, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'runcue%'") == []
    admin(pg, "CREATE SCHEMA runcue")
    with pytest.raises(runcue.StoreError, match="holds no queue 'default' yet"):
        runcue.Reader(pg)
    admin(pg, "DROP SCHEMA runcue")
    asyncio.run(make_empty(pg))
    for one in sorted(folder.rglob("*"), reverse=True):
        one.rmdir() if one.is_dir() else one.unlink()
    with runcue.Reader(pg) as reader:
        assert reader.workers() == []
        assert reader.output("any").data == b""
        reader.list()
        states = admin(
            pg,
            "SELECT state FROM pg_stat_activity WHERE application_name = 'runcue' AND datname = current_database()",
        )
        assert states == [("idle",)], "one connection, and no snapshot between two questions"
        with pytest.raises(runcue.StoreError, match="read-only"):
            reader._read(lambda tables: tables.connection.execute("DELETE FROM work_units"))
    assert list(folder.iterdir()) == []


def test_queues_in_one_database_are_told_apart_by_name(pg: str) -> None:
    async def main() -> None:
        await (await filled(pg, name="night")).close()
        await make_empty(pg)

    asyncio.run(main())
    with runcue.Reader(pg) as one, runcue.Reader(pg, name="night") as other:
        assert (len(one.list()), len(other.list())) == (0, 8)
    with pytest.raises(runcue.StoreError, match="no queue 'day' yet"):
        runcue.Reader(pg, name="day")
    for name in ("No Such", "", 7):
        with pytest.raises(runcue.ConfigError):
            runcue.Reader(pg, name=name)  # type: ignore[arg-type]


# who lives --------------------------------------------------------------------------------------------------


def test_a_process_of_this_host_lives_as_long_as_its_lock(pg: str, worker: subprocess.Popen[str]) -> None:
    with runcue.Reader(pg) as reader:
        [found] = reader.workers()
        assert (found["state"], found["pid"], found["running"]) == ("alive", worker.pid, 1)
        assert found["services"] == {"api": 1}
        assert reader.services()[0]["running"] == 1
        assert reader.explain("stuck").state is runcue.WorkState.RUNNING
        with runcue.Reader(pg, lease=0.001) as strict:
            assert strict.workers()[0]["state"] == "unresponsive"
        admin(pg, "UPDATE runcue.beats SET at = 0")
        assert reader.workers()[0]["state"] == "alive", "here the lock alone counts"
        worker.kill()
        worker.wait(BOUND)
        assert reader.workers()[0]["state"] == "gone"


async def test_the_files_of_this_host_are_where_its_processes_put_them(pg: str) -> None:
    store = postgres_store(Address(pg), durability="full", lease=30.0)
    with runcue.Reader(pg) as reader:
        assert reader._snapshots.beside == store.local
        assert boot_of(Path(f"{store.local}.runcue")) == store.me().boot
        folder = Path(f"{store.local}.files")
        folder.mkdir()
        (folder / f"{stem('some', 2)}.out").write_bytes(b"hello")
        assert reader.output("some", attempt=2).data == b"hello"
        assert reader.output("some", attempt=1).data == b""
    await store.close()


async def test_a_folder_of_this_host_that_others_may_write_to_is_refused(pg: str, folder: Path) -> None:
    store = postgres_store(Address(pg), durability="full", lease=30.0)
    await Hand(store, {}).write(pending(1))
    Path(store.local).parent.chmod(0o777)
    with runcue.Reader(pg) as reader:
        for look in (reader.workers, lambda: reader.output("w1")):
            with pytest.raises(runcue.StorageInsecure, match=r"chmod go-w.* Or set TMPDIR"):
                look()
    with pytest.raises(runcue.StorageInsecure, match=r"chmod go-w.* Or set TMPDIR"):
        postgres_store(Address(pg), durability="full", lease=30.0)
    Path(store.local).parent.chmod(0o700)
    await store.close()


@pytest.fixture
async def elsewhere(pg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker that serves a queue, on a host whose files this one does not see."""
    (tmp_path / "there").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "there"))
        store = postgres_store(Address(pg), durability="full", lease=30.0)
    hand = Hand(store, {})
    await hand.write(pending(1))

    def serve(plan: Plan, turn: Turn) -> None:
        plan.workers[store.worker] = replace(store.me(), is_serving=True)

    await hand.turn(serve)
    yield store
    await store.close()


async def test_a_process_elsewhere_lives_while_it_gives_signs_of_life(
    pg: str, elsewhere: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runcue.Reader(pg, lease=600) as reader:

        def state() -> str:
            [found] = reader.workers()
            assert found["id"] == elsewhere.worker
            assert (found["silent_for"] is None) == (found["state"] != "alive")
            return str(found["state"])

        def beat(at: str) -> None:
            admin(
                pg,
                "DELETE FROM runcue.beats",
                f"INSERT INTO runcue.beats VALUES ('{elsewhere.worker}', {at})",
            )

        def came_up(at: str) -> None:
            monkeypatch.setattr(snapshot_reader, "FIRST", first.replace("pg_postmaster_start_time()", at))

        first = snapshot_reader.FIRST
        beat("0")
        came_up("clock_timestamp()")
        assert state() == "alive", "the server was not up for a lease yet"
        came_up("to_timestamp(0)")
        assert state() == "gone"
        assert reader.explain("w1").details == "no process has the queue open"
        admin(pg, "DELETE FROM runcue.beats")
        assert state() == "alive", "it came a moment ago, and its first sign is on the way"
        admin(pg, "UPDATE runcue.workers SET started_at = 0")
        assert state() == "gone"
        beat("extract(epoch FROM clock_timestamp())")
        assert state() == "alive"
        assert reader.explain("w1").reason != "not_started"


async def test_on_a_standby_nobody_can_tell_who_lives_elsewhere(
    pg: str, elsewhere: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        snapshot_reader, "FIRST", snapshot_reader.FIRST.replace("pg_is_in_recovery()", "true")
    )
    with runcue.Reader(pg) as reader:
        assert (reader.workers()[0]["state"], reader.workers()[0]["silent_for"]) == ("unknown", None)


# jobs and health --------------------------------------------------------------------------------------------


def test_rows_of_jobs_are_those_of_the_view(tmp_path: Path) -> None:
    """The same columns, put into words by SQLite and by Python."""
    path = tmp_path / "queue.db"
    asyncio.run(_closed(path))
    with apsw.Connection(str(path)) as connection:
        connection.execute("UPDATE work_units SET params = '{', retry = '[]' WHERE id = 'p0'")
        connection.execute("UPDATE work_units SET created_at = 1e15, delay = NULL WHERE id = 'p1'")
        connection.execute("UPDATE work_units SET created_at = 1700000000.0006, token = 7 WHERE id = 'p2'")
        connection.execute("UPDATE work_units SET params = '{\"command\": {\"a\": [1]}}' WHERE id = 'after'")
        everything = jobs_view.JobQuery(None, None, None, None, 100), ("id = {}", None)
        raw = connection.execute(*jobs_view.statement(jobs_view.RAW, *everything)).fetchall()
        seen_rows = connection.execute(*jobs_view.statement(JOBS, *everything)).fetchall()
        told: dict[Any, dict[str, Any]] = {
            row[0]: dict(zip(jobs_view.COLUMNS, row, strict=True)) for row in seen_rows
        }
    for row in map(jobs_view.row_of, raw):
        seen = told[row["id"]]
        for name in ("created_at", "updated_at", "next_run_at"):  # SQLite counts them with fewer digits
            assert _close(row.pop(name), seen.pop(name)), name
        assert row == seen
    assert len(raw) == 8
    assert told["good"]["command"] == '["a",1]'


def _close(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    both = [datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z") for text in (one, other)]
    return abs(both[0] - both[1]) <= timedelta(milliseconds=1) and len(one) == len(other)


async def _closed(where: str | Path) -> None:
    await (await filled(where)).close()


def test_jobs_are_found_by_state_queue_and_id(pg: str) -> None:
    asyncio.run(_closed(pg))
    with runcue.Reader(pg) as reader:
        assert [row["id"] for row in reader.jobs(limit=2)] == ["after", "p2"]
        assert [row["id"] for row in reader.jobs("dead")] == ["bad"]
        assert reader.jobs("dead")[0]["last_error"] == "ConnectionError: no line \uf8ff0"
        assert (reader.jobs("dead")[0]["command"], reader.jobs("cancelled")[0]["id"]) == ("x \0 y", "gone")
        assert [row["id"] for row in reader.jobs("pending", queue="default")] == ["p2", "p1", "p0"]
        assert [row["id"] for row in reader.jobs(ids=["good", "p0", "\0"])] == ["p0", "good"]
        with pytest.raises(runcue.InvalidOption):
            reader.jobs("nonsense")
        assert reader.job_counts() == {
            "pending": 4, "processing": 0, "completed": 2, "failed": 0, "dead": 1, "cancelled": 1,
        }  # fmt: skip


def test_what_is_wrong_with_a_queue_is_told(pg: str) -> None:
    asyncio.run(_closed(pg))
    with runcue.Reader(pg) as reader:
        found = reader.health()
        assert (found["schema"], found["size"] > 100_000) == (schema.VERSION, True)
        assert all("fsync" in problem for problem in found["problems"])
        admin(pg, "UPDATE runcue.head SET pending = 7")
        assert "pending units: 4, but the counter says 7" in reader.health()["problems"]
        admin(pg, "INSERT INTO runcue.quarantine VALUES (1, 'x', NULL)")
        assert "damaged units in quarantine, which do not run: 1" in reader.health()["problems"]


def test_damaged_work_is_left_out(pg: str) -> None:
    asyncio.run(_closed(pg))
    admin(pg, "UPDATE runcue.work_units SET services = '{' WHERE id = 'p1'")
    with runcue.Reader(pg) as reader:
        assert [work.id for work in reader.list("pending")] == ["after", "p2", "p0"]
        with pytest.raises(runcue.StorageCorrupt):
            reader.get("p1")


# what is in the way -----------------------------------------------------------------------------------------


def refusal(url: str, kind: type[Exception] = runcue.StoreError, **options: Any) -> str:
    """What a Reader says that cannot be made, in one line without a password."""
    with pytest.raises(kind) as raised:
        runcue.Reader(url, **options)
    text = str(raised.value)
    assert "\n" not in text
    assert "swordfish" not in text
    return text


def test_an_address_that_leads_nowhere_is_refused(pg: str, pg_server: Server) -> None:
    assert "password authentication failed" in refusal(
        pg_server.dsn(pg, tcp=True, user=GUARDED, password="swordfish")
    )
    assert "cannot be reached" in refusal("postgresql://me:swordfish@127.0.0.1:1/queue")
    assert "is no address" in refusal("postgresql://me:swordfish@[::1/queue")
    assert "does not exist" in refusal(pg_server.dsn("nowhere"))
    assert "in a file or in PostgreSQL" in refusal("mysql://me:swordfish@host/queue", runcue.ConfigError)


def test_a_schema_that_is_no_queue_of_ours_is_refused(pg: str) -> None:
    admin(pg, "CREATE SCHEMA runcue", "CREATE TABLE runcue.theirs (a int)")
    assert "another application" in refusal(pg, runcue.StorageCorrupt)
    admin(pg, "DROP SCHEMA runcue CASCADE")
    asyncio.run(make_empty(pg))
    admin(pg, "UPDATE runcue.about SET version = 99")
    assert "newer runcue" in refusal(pg, runcue.SchemaTooNew)
    admin(pg, f"UPDATE runcue.about SET version = {schema.VERSION}", "DROP TABLE runcue.letters")
    assert "damaged" in refusal(pg, runcue.StorageCorrupt)


def test_an_older_queue_has_to_be_opened_by_a_cue_first(pg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(make_empty(pg))
    stored = schema.VERSION
    monkeypatch.setattr(schema, "VERSION", stored + 1)
    assert f"was made by an older runcue (schema {stored}, now {stored + 1})" in refusal(pg)


def test_without_psycopg_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("runcue.stores.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    text = refusal("postgresql://me:swordfish@host/queue", runcue.ConfigError)
    assert text == 'A queue in PostgreSQL needs psycopg: pip install "runcue[postgres]"'


def test_psycopg_is_imported_for_an_address_alone(tmp_path: Path) -> None:
    asyncio.run(_closed(tmp_path / "queue.db"))
    code = "import runcue, sys; runcue.Reader(sys.argv[1]).close(); print('psycopg' in sys.modules)"
    call = [sys.executable, "-c", code, str(tmp_path / "queue.db")]
    assert subprocess.run(call, capture_output=True, text=True, check=True, timeout=BOUND).stdout == "False\n"


def test_who_may_only_read_can_look(pg: str, pg_server: Server) -> None:
    asyncio.run(_closed(pg))
    guarded = pg_server.dsn(pg, tcp=True, user=GUARDED, password=PASSWORD)
    assert "may not do that" in refusal(guarded)
    admin(
        pg,
        f"GRANT USAGE ON SCHEMA runcue TO {GUARDED}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA runcue TO {GUARDED}",
    )
    with runcue.Reader(guarded) as reader:
        assert len(reader.list()) == 8
        assert reader.workers() == []
        assert reader.health()["schema"] == schema.VERSION
        assert PASSWORD not in repr(reader)


def test_a_connection_that_was_lost_is_made_anew(pg: str, pg_proxy: Proxy) -> None:
    asyncio.run(make_empty(pg))
    with runcue.Reader(pg_proxy.dsn(pg)) as reader:
        assert pg_proxy.cut_all() == 1
        assert sum(reader.count().values()) == 0
        pg_proxy.refuse()
        pg_proxy.cut_all()
        for _ in range(2):
            with pytest.raises(runcue.StoreError, match="cannot be reached"):
                reader.count()
        pg_proxy.allow()
        assert sum(reader.count().values()) == 0


def test_a_queue_that_was_dropped_or_exchanged_is_told(pg: str) -> None:
    asyncio.run(make_empty(pg))
    with runcue.Reader(pg) as reader:
        admin(pg, "DROP SCHEMA runcue CASCADE")
        with pytest.raises(runcue.StoreError, match="holds no queue 'default' yet"):
            reader.count()
        asyncio.run(make_empty(pg))
        with pytest.raises(runcue.StorageReplaced, match="another queue"):
            reader.count()


def test_a_closed_one_and_one_from_before_a_fork_are_refused(pg: str) -> None:
    asyncio.run(make_empty(pg))
    with runcue.Reader(pg) as reader:
        assert "closed" not in repr(reader)
        reader._pid = os.getpid() + 1
        with pytest.raises(runcue.ForkedConnection):
            reader.count()
        reader.close()
        reader._pid = os.getpid()
        assert reader._snapshots._link is not None, "a child leaves its parent's connection alone"  # type: ignore[attr-defined]
    with pytest.raises(runcue.StoreError, match="is closed"):
        reader.count()
    assert "closed" in repr(reader)


def test_threads_may_share_it(pg: str) -> None:
    asyncio.run(_closed(pg))
    found: list[int] = []
    with runcue.Reader(pg) as reader:
        threads = [
            threading.Thread(target=lambda: found.extend(len(reader.list()) for _ in range(20)))
            for _ in range(4)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(BOUND)
    assert found == [8] * 80
