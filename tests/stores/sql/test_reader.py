"""A Reader tells what a Cue would tell, with nobody there or beside others, and leaves no trace."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import runcue
from runcue import Cue, Reader, WorkNotFound, WorkState
from runcue.errors import (
    ConfigError,
    ForkedConnection,
    InvalidOption,
    StorageBusy,
    StorageCorrupt,
    StorageReplaced,
    StoreError,
)
from runcue.executors.command.output import stem
from runcue.stores.presence import presence
from runcue.stores.sql.records import Records
from runcue.stores.sql.tables import Tables
from runcue.stores.sql.units import Units
from runcue.stores.sqlite.schema import VERSION
from runcue.stores.sqlite.statements import SQLITE
from runcue.testing import run, settle
from tests.handlers import no_op
from tests.stores.beside import PATIENCE, hanging
from tests.stores.hands import change

POWERLESS = """
import ctypes, json, sys
header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the superuser may write anywhere: give that up
if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
    raise OSError(ctypes.get_errno(), "capset")
import runcue
with runcue.Reader(sys.argv[1]) as reader:
    print(json.dumps([reader.count(), [work.id for work in reader.list()], len(list(reader.events()))]))
"""


@pytest.fixture
def worker(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process whose only work never ends."""
    with hanging(str(path)) as process:
        yield process


def queue(path: Path) -> Cue:
    """A program with two tasks."""
    cue = Cue(path)
    cue.service("api", rate="10/min", concurrent=3)

    @cue.task(uses="api", retry={"max_attempts": 2, "backoff": "fixed", "base_delay": 5, "jitter": False})
    async def call(work: runcue.Work) -> Any:
        if work.params.get("fails", 0) >= work.attempt:
            raise ConnectionError("no line")
        return {"page": work.params.get("page")}

    cue.task("note")(no_op)
    return cue


def used(path: Path) -> None:
    """Leave a queue with work in every state but running, and nobody there."""

    async def main() -> None:
        cue = queue(path)
        async with cue:
            await cue.submit("call", params={"page": 1}, id="good")
            await cue.submit("call", params={"fails": 2}, id="bad")
            await cue.submit("call", params={"fails": 1}, id="shaky", idempotency_key="k", target="there")
            await cue.submit("note", id="gone", delay=3600)
            await cue.cancel("gone")
            await cue.join()
        await cue.submit_many({"task": "call", "id": f"p{n}", "priority": n} for n in range(3))
        await cue.close()

    run(main())


def trace(folder: Path) -> dict[str, str]:
    """Everything in a folder, to the byte."""
    return {
        str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() if one.is_file() else "-"
        for one in sorted(folder.rglob("*"))
    }


async def together(path: Path, look: Callable[[Cue, Reader], Coroutine[Any, Any, None]]) -> None:
    """Look at a queue of which a Cue is open."""
    cue = queue(path)
    await cue.count()
    with Reader(path) as reader:
        await look(cue, reader)
    await cue.close()


# --- The same as a Cue says -----------------------------------------------------------------------


def test_works_are_those_that_a_cue_shows(path: Path) -> None:
    used(path)

    async def look(cue: Cue, reader: Reader) -> None:
        assert await cue.count() == reader.count()
        assert await cue.list() == reader.list()
        assert len(reader.list()) == 7
        assert await cue.list("failed") == reader.list("failed") == reader.dead()
        assert await cue.list(task="call", limit=2) == reader.list(task="call", limit=2)
        for work_id in ("good", "bad", "shaky", "gone", "p1"):
            assert reader.get(work_id) == await cue.get(work_id)
        assert [line.error for line in reader.dead()[0].history] == ["ConnectionError: no line"] * 2
        assert reader.get("nobody") is None

    run(together(path, look))


def test_services_are_those_that_a_cue_shows(path: Path) -> None:
    used(path)

    async def look(cue: Cue, reader: Reader) -> None:
        assert await cue.services() == reader.services()
        await cue.pause("api")
        [api] = reader.services()
        assert (api["paused"], api["blocked"], api["running"]) == (True, "paused", 0)
        assert api["rates"] == [{"rate": "10/min", "used": 5, "limit": 10}]

    run(together(path, look))


def test_no_more_of_a_rate_is_shown_as_used_than_there_is(path: Path) -> None:
    """A start is kept with the latest moment at which it may begin, and one before it may be over by then."""
    used(path)
    change(path, "UPDATE service_log SET amount = 11 WHERE id = (SELECT max(id) FROM service_log)")
    with Reader(path) as reader:
        [api] = reader.services()
    assert api["rates"] == [{"rate": "10/min", "used": 10, "limit": 10}]


def test_events_are_those_that_a_cue_told(path: Path) -> None:
    used(path)

    async def look(cue: Cue, reader: Reader) -> None:
        cue.start()
        await cue.join()
        await cue.stop()
        assert [event async for event in cue.events(since=0)] == list(reader.events())

    run(together(path, look))
    with Reader(path) as reader:
        events = list(reader.events())
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert list(reader.events(since=events[4].seq)) == events[5:]
        assert list(reader.events("work_failed")) == [event for event in events if event.type == "failed"]
        assert list(reader.events(since=events[-1].seq)) == []


def test_more_events_than_are_read_at_once_come_in_order(path: Path) -> None:
    async def main() -> None:
        cue = queue(path)
        async with cue:
            for _ in range(3):
                await cue.submit_many({"task": "note"} for _ in range(300))
                await cue.join()
        await cue.close()

    run(main())
    with Reader(path) as reader:
        assert [event.seq for event in reader.events("completed")] == sorted(
            event.seq for event in reader.events(["completed"])
        )
        assert sum(event.type == "completed" for event in reader.events()) == 900


# --- Why work waits -------------------------------------------------------------------------------


def test_why_work_waits_is_told_as_a_cue_tells_it(path: Path) -> None:
    async def look(cue: Cue, reader: Reader) -> None:
        cue.start()
        await cue.submit_many({"task": "call", "id": f"w{n}"} for n in range(13))
        await cue.submit("note", id="later", delay=60)
        await cue.submit("note", id="after", depends_on=["w12", "never"])
        await cue.wait("w9")
        for work_id in ("w0", "w10", "w12", "later", "after"):
            mine, its = reader.explain(work_id), await cue.explain(work_id)
            assert (mine.reason, mine.details, mine.ahead, mine.service, mine.waits_for) == (
                its.reason,
                its.details,
                its.ahead,
                its.service,
                its.waits_for,
            )
        assert reader.explain("w12").reason == "rate"
        assert reader.explain("w12").ahead == 2
        assert reader.explain("later").until == (await cue.explain("later")).until
        assert reader.explain("after").waits_for == ("w12", "never")
        await cue.cancel("after")
        await cue.pause("default")
        assert reader.explain("w12").reason == "paused"
        await cue.stop()

    run(together(path, look), limit=30)


def test_with_nobody_there_nothing_starts(path: Path) -> None:
    used(path)
    with Reader(path) as reader:
        why = reader.explain("p0")
        assert (why.reason, why.details, why.ahead) == ("not_started", "no process has the queue open", 2)
        assert reader.explain("good").reason == "completed"
        assert reader.explain("bad").details == "ConnectionError: no line"
        with pytest.raises(WorkNotFound):
            reader.explain("nobody")


def test_not_all_of_a_long_queue_is_read_to_explain_its_last_work(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        cue = queue(path)
        await cue.submit_many({"task": "call", "id": f"w{n}"} for n in range(1000))
        await cue.submit_many({"task": "note", "id": f"n{n}", "delay": 100} for n in range(1000))
        await cue.close()

    run(main())
    page, read = Records.page, 0

    def counted(records: Records, *wanted: Any) -> Any:
        nonlocal read
        found = page(records, *wanted)
        read += len(found)
        return found

    monkeypatch.setattr(Records, "page", counted)
    with Reader(path) as reader:
        assert (reader.explain("w10").ahead, read < 600) == (10, True)
        assert reader.explain("w999").ahead == 999
        monkeypatch.setattr("runcue.api.reader.MOST_AHEAD", 300)
        read = 0
        assert (reader.explain("w999").ahead, read < 600) == (300, True)


def test_many_are_explained_at_once_as_if_there_were_no_others(path: Path) -> None:
    async def look(cue: Cue, reader: Reader) -> None:
        cue.start()
        await cue.submit_many({"task": "call", "id": f"w{n}"} for n in range(13))
        await cue.submit("note", id="later", delay=60)
        await cue.submit("note", id="after", depends_on=["w12", "later"])
        await cue.wait("w9")
        found = reader.explain_many(["after", "w12", "nobody", "w0", "later", "w11", "w12"])
        assert {work_id: (why.reason, why.ahead) for work_id, why in found.items()} == {
            "after": ("dependency", 0), "w12": ("rate", 1), "w0": ("completed", 0), "later": ("scheduled", 0),
            "w11": ("rate", 0),
        }  # fmt: skip
        for work_id, why in found.items():
            alone = reader.explain(work_id)
            assert (why.state, why.reason, why.service, why.waits_for) == (
                alone.state,
                alone.reason,
                alone.service,
                alone.waits_for,
            )
        until = found["w12"].until
        assert until is not None
        assert until > reader.now()
        assert reader.explain_many([]) == {}
        await cue.cancel("later")
        await cue.stop()

    run(together(path, look), limit=30)


def test_with_nobody_there_nothing_of_many_starts(path: Path) -> None:
    used(path)
    with Reader(path) as reader:
        found = reader.explain_many(["p0", "good", "bad"])
    assert {work_id: (why.reason, why.details) for work_id, why in found.items()} == {
        "p0": ("not_started", "no process has the queue open"),
        "good": ("completed", ""),
        "bad": ("failed", "ConnectionError: no line"),
    }


def test_works_of_one_task_that_use_different_services_are_explained_each_by_its_own(path: Path) -> None:
    async def main() -> None:
        cue = Cue(path)
        cue.service("full", concurrent=1)
        cue.service("free")

        @cue.task(uses=lambda work: work.params["uses"])
        async def call(work: runcue.Work) -> None:
            await asyncio.sleep(60)

        async with cue:
            for service in ("full", "free"):
                for number in range(2):
                    await cue.submit(call, id=f"{service}{number}", params={"uses": service})
            await settle()
            with Reader(path) as reader:
                found = reader.explain_many(["free1", "full1", "full0"])
            assert {work_id: (why.reason, why.service) for work_id, why in found.items()} == {
                "free1": ("running", None),
                "full1": ("concurrency", "full"),
                "full0": ("running", None),
            }
        await cue.close()

    run(main(), limit=1000)


# --- What is kept beside the work -----------------------------------------------------------------


def test_schedules_are_shown_with_what_they_did(path: Path) -> None:
    used(path)

    async def look(cue: Cue, reader: Reader) -> None:
        assert reader.schedules() == []
        await cue.schedule("nightly", "note", cron="0 3 * * *", tz="Europe/Zurich", params={"page": 1})
        await cue.schedule("beat", "note", every="5m", overlap="queue")
        await cue.schedules.pause("beat")
        latest = await cue.run_now("nightly")
        beat, nightly = reader.schedules()
        assert [beat, nightly] == await cue.schedules()
        assert (beat.name, beat.when, beat.paused, beat.next_at, beat.runs) == (
            "beat",
            "every 5m",
            True,
            None,
            0,
        )
        assert (nightly.when, nightly.params) == ("0 3 * * * Europe/Zurich", {"page": 1})
        assert (nightly.last_id, nightly.runs) == (latest, 1)
        assert [work.id for work in reader.list(tags={"schedule": "nightly"})] == [latest]

    run(together(path, look))


def test_held_back_queues_and_kept_texts_are_shown(path: Path) -> None:
    used(path)

    async def look(cue: Cue, reader: Reader) -> None:
        assert (reader.paused(), reader.config()) == ([], {})
        await cue.pause("night")
        await cue.pause("default")
        await cue.pause("api")
        await cue.set_config({"b": "2", "a": "1"})
        assert (reader.paused(), reader.config()) == (["default", "night"], {"a": "1", "b": "2"})
        await cue.resume("default")
        assert reader.paused() == ["night"]

    run(together(path, look))
    change(path, "INSERT INTO config VALUES ('odd', 7), ('blob', x'ff')")
    with Reader(path) as reader:
        assert reader.config() == {"a": "1", "b": "2"}


def test_the_time_of_the_queue_never_lies_before_what_was_written_last(path: Path) -> None:
    used(path)
    with Reader(path) as reader:
        last = max(event.at for event in reader.events())
        first, second = reader.now(), reader.now()
    assert last <= first <= second


# --- What commands printed ------------------------------------------------------------------------


def printed(path: Path, work_id: str, attempt: int = 1, ending: str = "out") -> Path:
    """The file of what an attempt printed, in a folder that is there."""
    folder = path.with_name(f"{path.name}.files")
    folder.mkdir(exist_ok=True)
    return folder / f"{stem(work_id, attempt)}.{ending}"


def test_what_a_command_printed_is_read_in_pieces(path: Path) -> None:
    used(path)
    text = bytes(range(256)) * 40
    printed(path, "good").write_bytes(text)
    with Reader(path) as reader:
        whole = reader.output("good")
        assert (whole.data, whole.start, whole.end, whole.attempt) == (text, 0, len(text), 1)
        found, start = b"", 0
        for _ in range(20):
            piece = reader.output("good", start=start, limit=1000)
            assert (piece.start, piece.end) == (start, start + len(piece.data))
            if not piece.data:
                break
            assert len(piece.data) <= 1000
            found, start = found + piece.data, piece.end
        assert (found, start) == (text, len(text))
        assert reader.output("good", start=250, limit=3).data == text[250:253]


def test_what_is_printed_while_somebody_follows_is_read_from_where_he_was(path: Path) -> None:
    used(path)
    file = printed(path, "good")
    with Reader(path) as reader:
        assert reader.output("good").data == b""
        at, seen = 0, []
        for words in (b"one ", b"two ", b"three"):
            with file.open("ab") as writing:
                writing.write(words)
            piece = reader.output("good", start=at)
            seen.append(piece.data)
            at = piece.end
            again = reader.output("good", start=at)
            assert (again.data, again.start, again.end) == (b"", at, at)
        assert seen == [b"one ", b"two ", b"three"]


def test_each_stream_and_each_attempt_has_its_own(path: Path) -> None:
    used(path)
    for attempt in (1, 2):
        for ending in ("out", "err"):
            printed(path, "shaky", attempt, ending).write_text(f"{ending} {attempt}")
    with Reader(path) as reader:
        last = reader.output("shaky")
        assert (last.data, last.attempt) == (b"out 2", 2)
        assert reader.output("shaky", "stderr").data == b"err 2"
        assert reader.output("shaky", "stderr", attempt=1).data == b"err 1"
        assert reader.output("shaky", "stdout", attempt=1).data == b"out 1"
        missing = reader.output("shaky", attempt=3, start=5)
        assert (missing.data, missing.start, missing.end, missing.attempt) == (b"", 5, 5, 3)


def test_where_nothing_was_printed_there_is_nothing(path: Path) -> None:
    used(path)
    with Reader(path) as reader:
        for work_id in ("good", "p0", "nobody"):
            found = reader.output(work_id)
            assert (found.data, found.start, found.end, found.attempt) == (b"", 0, 0, 1)
    assert not path.with_name(f"{path.name}.files").exists()


def test_what_is_no_longer_kept_of_a_long_output_is_passed_over(path: Path) -> None:
    used(path)
    hole, text = 1 << 20, b"the end of it" * 1000
    with printed(path, "good").open("wb") as writing:
        writing.seek(hole)
        writing.write(text)
    with Reader(path) as reader:
        found = reader.output("good")
        assert (found.data, found.start, found.end) == (text, hole, hole + len(text))
        assert reader.output("good", start=hole // 2, limit=5).data == text[:5]
        later = reader.output("good", start=hole + 4, limit=3)
        assert (later.data, later.start) == (text[4:7], hole + 4)
        assert reader.output("good", start=found.end).data == b""


def test_an_output_that_became_shorter_is_read_from_its_beginning(path: Path) -> None:
    used(path)
    file = printed(path, "good")
    file.write_bytes(b"a long text")
    with Reader(path) as reader:
        at = reader.output("good").end
        file.write_bytes(b"new")
        found = reader.output("good", start=at)
        assert (found.data, found.start, found.end) == (b"new", 0, 3)
        file.write_bytes(b"")
        assert reader.output("good", start=3).data == b""


@pytest.mark.parametrize(
    "work_id",
    ["../../etc/passwd", "../queue", "/etc/passwd", ".", "..", "a/b", "~root", "a b", "ü", "=abc", "a.1.out"],
)
def test_no_id_leads_out_of_the_folder(path: Path, work_id: str) -> None:
    used(path)
    for outside in (path.parent / "passwd", path.parent / "queue.1.out", path.parent / "etc"):
        outside.write_text("secret")
    file = printed(path, work_id)
    assert file.parent == path.with_name(f"{path.name}.files")
    with Reader(path) as reader:
        assert reader.output(work_id).data == b""
        file.write_text("mine")
        assert reader.output(work_id).data == b"mine"


def test_no_link_in_the_folder_is_followed(path: Path) -> None:
    used(path)
    secret = path.parent / "secret"
    secret.write_text("secret")
    printed(path, "good").symlink_to(secret)
    with Reader(path) as reader, pytest.raises(StoreError, match="symbolic link"):
        reader.output("good")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
def test_what_is_no_file_in_the_folder_is_not_read(path: Path, make: Callable[[Path], None]) -> None:
    used(path)
    make(printed(path, "good"))
    with Reader(path) as reader, pytest.raises(StoreError, match="is not a regular file"):
        reader.output("good")


@pytest.mark.parametrize(
    "wrong",
    [
        {"work_id": ""},
        {"stream": "stdin"},
        {"attempt": 0},
        {"attempt": "1"},
        {"start": -1},
        {"start": 0.5},
        {"limit": 0},
    ],
    ids=str,
)
def test_wrong_questions_about_output_are_refused(path: Path, wrong: dict[str, Any]) -> None:
    used(path)
    with Reader(path) as reader, pytest.raises(InvalidOption):
        reader.output(**{"work_id": "good", **wrong})


# --- How the file is ------------------------------------------------------------------------------


def problems(path: Path) -> list[str]:
    with Reader(path) as reader:
        found: list[str] = reader.health()["problems"]
    return found


def test_a_sound_file_has_no_problems_and_says_how_large_it_is(path: Path) -> None:
    used(path)
    with Reader(path) as reader:
        assert reader.health() == {
            "sqlite": apsw.sqlite_lib_version(),
            "schema": VERSION,
            "size": path.stat().st_size,
            "log_size": 0,
            "problems": [],
        }


def test_a_file_that_is_in_use_has_a_log_and_no_problems(path: Path) -> None:
    async def look(cue: Cue, reader: Reader) -> None:
        await cue.submit("note", delay=60)
        found = reader.health()
        assert (found["problems"], found["log_size"] > 0) == ([], True)

    run(together(path, look))


@pytest.mark.parametrize(
    ("counter", "said"),
    [
        ("pending", "pending units: 3, but the counter says 8"),
        ("running", "running units: 0, but the counter says 5"),
        ("failed", "failed units: 1, but the counter says 6"),
    ],
)
def test_counters_that_are_wrong_are_named(path: Path, counter: str, said: str) -> None:
    used(path)
    change(path, f"UPDATE head SET {counter} = {counter} + 5")
    assert problems(path) == [said]


def test_what_retention_deleted_is_no_problem(path: Path) -> None:
    used(path)
    change(path, "DELETE FROM work_units WHERE state IN ('completed', 'cancelled')")
    assert problems(path) == []


def test_damaged_work_that_was_set_aside_is_counted(path: Path) -> None:
    used(path)
    change(path, "UPDATE work_units SET services = 'x' WHERE id IN ('p0', 'p2')")

    async def main() -> None:
        cue = queue(path)
        async with cue:
            await cue.join()
        await cue.close()

    run(main())
    assert problems(path) == ["damaged units in quarantine, which do not run: 2"]


def test_damage_that_sqlite_finds_is_told_in_its_words(path: Path) -> None:
    used(path)
    swap = "UPDATE sqlite_schema SET sql = replace(sql, 'failed''', 'completed''')"
    change(path, f"PRAGMA writable_schema = ON; {swap} WHERE name = 'work_units_failed'")
    found = problems(path)
    assert found
    assert all(line.startswith("SQLite: ") for line in found)
    assert "work_units_failed" in found[0]


def test_damage_that_cannot_be_read_past_is_an_error_that_names_the_file(path: Path) -> None:
    used(path)
    connection = apsw.Connection(str(path))
    place: Any = connection.execute(
        "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = 'events'"
    ).fetchall()[0]
    connection.close()
    page, size = place
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))
    with Reader(path) as reader, pytest.raises(StorageCorrupt, match="malformed"):
        reader.health()


# --- Leaving no trace -----------------------------------------------------------------------------


def everything(reader: Reader) -> list[Any]:
    """Ask all there is to ask."""
    return [reader.count(), reader.list(), reader.get("good"), reader.dead(), list(reader.events()),
            reader.services(), reader.workers(), reader.explain("p0"), reader.explain_many(["p0", "good"]),
            reader.jobs(), reader.job_counts(), reader.paused(), reader.config(), reader.health(),
            reader.schedules(), reader.output("good"), reader.now() > 0]  # fmt: skip


def test_nothing_is_created_or_changed_while_nobody_is_there(path: Path) -> None:
    used(path)
    before = trace(path.parent)
    with Reader(path) as reader:
        everything(reader)
        assert trace(path.parent) == before
    assert trace(path.parent) == before


def test_a_read_only_file_in_a_read_only_directory_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    path = folder / "queue.db"
    used(path)
    before = trace(folder)
    path.chmod(0o400)
    folder.chmod(0o500)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", POWERLESS, str(path)],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    finally:
        folder.chmod(0o700)
    assert (done.returncode, done.stderr) == (0, "")
    counts, ids, events = json.loads(done.stdout)
    assert (counts["pending"], counts["failed"], len(ids)) == (3, 1, 7)
    assert events > 10
    path.chmod(0o600)
    assert trace(folder) == before


def test_no_snapshot_is_held_between_two_calls(path: Path) -> None:
    async def main() -> None:
        cue = queue(path)
        await cue.submit("note")
        with Reader(path) as reader:
            assert reader.count()[WorkState.PENDING] == 1
            events = reader.events()
            next(events)
            await cue.submit_many({"task": "note"} for _ in range(100))
            assert reader.count()[WorkState.PENDING] == 101
            checkpoint = Tables(cue._system.store._tables.connection, SQLITE)  # type: ignore[union-attr]
            busy, log, moved = checkpoint.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            assert (busy, log, moved) == (0, 0, 0)
        await cue.close()

    run(main())


# --- Others come and go ---------------------------------------------------------------------------


def test_a_reader_sees_what_changes_while_others_come_and_go(path: Path) -> None:
    used(path)
    with Reader(path) as reader:
        assert reader.count()[WorkState.PENDING] == 3

        async def main() -> None:
            cue = queue(path)
            await cue.submit("note", id="new")
            assert reader.count()[WorkState.PENDING] == 4
            async with cue:
                await cue.join()
            assert reader.get("new") == await cue.get("new")
            await cue.close()

        run(main())
        assert reader.count()[WorkState.PENDING] == 0
        used(path.with_name("other.db"))
        assert reader.get("new") is not None


def test_what_changes_under_a_readers_eyes_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used(path)
    find, looks = Units.latest, 0

    async def change() -> None:
        cue = queue(path)
        await cue.submit("note", id="new")
        await cue.close()

    def looked(units: Units, *wanted: Any) -> Any:
        nonlocal looks
        looks += 1
        found = find(units, *wanted)
        if looks == 1:
            run(change())
        return found

    monkeypatch.setattr(Units, "latest", looked)
    with Reader(path) as reader:
        assert reader.list(limit=1)[0].id == "new"
        assert looks == 2


def test_a_file_that_never_rests_is_an_error_in_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used(path)
    times = iter(range(1, 10**6))
    find = Units.latest

    def touched(units: Units, *wanted: Any) -> Any:
        os.utime(path, ns=(0, next(times)))
        return find(units, *wanted)

    monkeypatch.setattr(Units, "latest", touched)
    with Reader(path) as reader, pytest.raises(StorageBusy, match="changes faster"):
        reader.list()


def test_a_living_worker_a_silent_one_and_a_dead_one(path: Path, worker: subprocess.Popen[str]) -> None:
    with Reader(path) as reader:
        [one] = reader.workers()
        assert (one["state"], one["pid"], one["running"], one["services"], one["host"]) == (
            "alive", worker.pid, 1, {"api": 1}, presence.host_name(),
        )  # fmt: skip
        assert reader.explain("stuck").reason == "running"
        assert reader.services()[0]["running"] == 1
        worker.send_signal(signal.SIGSTOP)
        with Reader(path, lease="1ms") as impatient:
            [one] = impatient.workers()
            assert one["state"] == "unresponsive"
            assert one["silent_for"] >= 0.001
        worker.kill()
        worker.wait(PATIENCE)
        [one] = reader.workers()
        assert (one["state"], one["silent_for"], one["running"]) == ("gone", None, 1)
        stuck = reader.get("stuck")
        assert stuck is not None
        assert stuck.state is WorkState.RUNNING


def test_workers_of_an_earlier_boot_are_gone(
    path: Path, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "boot_id", lambda: "another")
    with Reader(path) as reader:
        assert [one["state"] for one in reader.workers()] == ["gone"]


def test_where_one_may_not_look_nobody_is_called_dead(
    path: Path, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(directory: Path, worker_id: str) -> bool:
        raise StoreError("not yours")

    monkeypatch.setattr(presence, "is_alive", denied)
    with Reader(path) as reader:
        assert [one["state"] for one in reader.workers()] == ["unknown"]


# --- What is no queue -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["x" * 241, "x" * 300, "y/" * 300, "queue\0.db", "\ud800.db"], ids=lambda name: ascii(name)[:9]
)
def test_a_name_that_no_queue_can_have_is_refused_in_our_words(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError):
        Reader(f"{tmp_path}/{name}")


def test_a_ring_of_links_is_refused_in_our_words(path: Path) -> None:
    path.symlink_to(path)
    with pytest.raises(StoreError, match="symbolic links"):
        Reader(path)


def test_links_that_become_a_ring_are_an_exchanged_file(path: Path) -> None:
    used(path.with_name("real.db"))
    path.symlink_to(path.with_name("real.db"))
    with Reader(path) as reader:
        path.unlink()
        path.symlink_to(path)
        for look in (reader.workers, reader.count):
            with pytest.raises(StoreError, match="symbolic links"):
                look()


@pytest.mark.parametrize("target", [":memory:", "mysql://host/queue", None, 7, b"queue.db"])
def test_what_is_no_path_is_refused(target: Any) -> None:
    with pytest.raises(ConfigError, match="Cannot read"):
        Reader(target)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: None, StoreError),
        (lambda path: path.touch(), StoreError),
        (lambda path: path.mkdir(), StoreError),
        (os.mkfifo, StoreError),
        (lambda path: path.write_text("no database at all " * 100), StorageCorrupt),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(4080)), StorageCorrupt),
    ],
)
def test_what_is_no_queue_is_refused_and_left_alone(
    make: Callable[[Path], Any], kind: type[StoreError], path: Path
) -> None:
    make(path)
    before = trace(path.parent)
    with pytest.raises(kind):
        Reader(path)
    assert trace(path.parent) == before


def test_a_file_that_was_exchanged_or_removed_is_not_mixed_up(path: Path) -> None:
    used(path)
    used(path.with_name("other.db"))
    with Reader(path) as reader:
        path.with_name("other.db").replace(path)
        with pytest.raises(StorageReplaced, match="another file"):
            reader.count()
        path.unlink()
        with pytest.raises(StorageReplaced):
            reader.count()


def test_wrong_questions_are_refused(path: Path) -> None:
    used(path)
    with Reader(path) as reader:
        for wrong in (
            lambda: reader.get(""),
            lambda: reader.list("sleeping"),
            lambda: reader.list(limit=0),
            lambda: reader.events("exploded"),
            lambda: reader.events(since="soon"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidOption):
                wrong()
    with pytest.raises(InvalidOption, match="lease"):
        Reader(path, lease=-1)


# --- One Reader, many threads, one process --------------------------------------------------------


def test_a_closed_reader_says_so(path: Path) -> None:
    used(path)
    reader = Reader(path)
    assert repr(reader) == f"<Reader {str(path)!r}>" or "…" in repr(reader)
    reader.close()
    reader.close()
    assert repr(reader).endswith(" closed>")
    with pytest.raises(StoreError, match="closed"):
        reader.count()


def test_a_reader_is_not_carried_over_a_fork(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used(path)
    with Reader(path) as reader:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            with pytest.raises(ForkedConnection, match="start a new process"):
                reader.count()
        assert reader.count()[WorkState.PENDING] == 3


def test_threads_may_share_a_reader(path: Path) -> None:
    used(path)
    found: list[Any] = []
    with Reader(path) as reader:
        expected = everything(reader)[:3]
        threads = [
            threading.Thread(target=lambda: found.extend(everything(reader)[:3] for _ in range(20)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert found == [expected] * 80


def test_a_reader_needs_no_asyncio(path: Path) -> None:
    used(path)
    code = "import sys, runcue\nruncue.Reader(sys.argv[1]).list()\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert {"asyncio", "sqlite3", "rich"}.isdisjoint(done.stdout.split())


def test_a_reader_works_on_a_running_loop(path: Path) -> None:
    used(path)

    async def main() -> dict[WorkState, int]:
        with Reader(path) as reader:
            return reader.count()

    assert asyncio.run(main())[WorkState.PENDING] == 3
