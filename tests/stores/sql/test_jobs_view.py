"""The view `jobs`: work in the words of queuectl, the same for a SQLite tool and for a Reader."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

import runcue
from runcue import Cue, Reader, Retry
from runcue.errors import InvalidOption
from runcue.stores.sql import jobs_view
from runcue.stores.sqlite.schema import JOBS
from runcue.testing import run, settle
from tests.engine.seen import epoch
from tests.handlers import no_op
from tests.queues import make_empty
from tests.stores.hands import change

WORDS = ("pending", "processing", "completed", "failed", "dead", "cancelled")
RETRY = Retry(3, "fixed", 60, jitter=False)


def view(path: Path, where: str = "1", *bindings: Any) -> dict[str, dict[str, Any]]:
    """Rows of the view by their ids, as somebody with a SQLite tool sees them."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = connection.execute(f"SELECT * FROM jobs WHERE {where}", bindings).fetchall()
        names = [name for (_, name, *_) in connection.execute("PRAGMA table_info(jobs)")]
    finally:
        connection.close()
    assert names == list(jobs_view.COLUMNS)
    return {str(row[0]): dict(zip(names, row, strict=True)) for row in rows}


def program(path: Path) -> Cue:
    """A program with a task for commands, of which some fail and some take long, and with another task."""
    cue = Cue(path, age_step=None)

    @cue.task
    async def shell(work: runcue.Work) -> None:
        command = str(work.params.get("command", ""))
        if command.startswith("sleep"):
            await asyncio.sleep(3600)
        if command.startswith("false"):
            raise OSError("x" * 2000 if command == "false --loudly" else "no luck")

    cue.task("note")(no_op)
    return cue


def used(path: Path, look: Callable[[Cue], None] | None = None) -> None:
    """A queue with a work of each of the six states, and some more, at the 100th second; look at it then."""

    async def main() -> None:
        cue = program(path)
        async with cue:
            await cue.submit("shell", id="done", params={"command": "true"}, retry=RETRY, priority=2)
            await cue.submit("shell", id="lost", params={"command": "false --loudly"}, retry=Retry(1))
            await cue.submit("shell", id="shaky", params={"command": "false"}, retry=RETRY)
            await cue.submit("shell", id="dropped", params={"command": "true"}, delay=9000, queue="night")
            await cue.submit("note", id="noted")
            await asyncio.sleep(100)
            await cue.cancel("dropped")
            await cue.submit("shell", id="again", params={"command": "false"}, retry=RETRY, queue="night")
            await cue.submit("shell", id="busy", params={"command": "sleep 9"}, retry=RETRY, priority=-1.5)
            await settle()
            await cue.pause("default")
            await cue.pause("night")
            await cue.submit("shell", id="next", params={"command": "true"}, run_at=epoch() + 50)
            await cue.submit("shell", id="soon", params={"command": "true"}, delay=20, queue="night")
            await cue.submit("note", id="last", params={"page": 1})
            await settle()
            if look is not None:
                look(cue)
            await cue.cancel("busy")
        await cue.close()

    run(main(), limit=1000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That queue, which nobody has open any more."""
    path = tmp_path_factory.mktemp("made") / "queue.db"
    used(path)
    return path


@pytest.fixture
def left(made: Path, path: Path) -> Path:
    """A copy of it."""
    shutil.copyfile(made, path)
    return path


def seconds(text: str) -> float:
    """The moment that a column tells, as it is written."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()


# --- What the columns say ---------------------------------------------------------------------------


def test_each_state_has_its_word(path: Path) -> None:
    def look(cue: Cue) -> None:
        found = view(path)
        assert {work_id: row["state"] for work_id, row in found.items()} == {
            "done": "completed", "lost": "dead", "shaky": "failed", "dropped": "cancelled", "noted": "completed",
            "again": "failed", "busy": "processing", "next": "pending", "soon": "pending", "last": "pending",
        }  # fmt: skip
        assert {row["state"] for row in found.values()} == set(WORDS)

    used(path, look)


def test_attempts_are_those_that_failed_and_max_retries_those_there_may_be(path: Path) -> None:
    def look(cue: Cue) -> None:
        found = {work_id: (row["attempts"], row["max_retries"]) for work_id, row in view(path).items()}
        assert found == {
            "done": (0, 3), "lost": (1, 1), "shaky": (2, 3), "dropped": (0, 1), "noted": (0, 1), "again": (1, 3),
            "busy": (0, 3), "next": (0, 1), "soon": (0, 1), "last": (0, 1),
        }  # fmt: skip

    used(path, look)


def test_a_whole_priority_is_a_whole_number(left: Path) -> None:
    found = view(left)
    assert [repr(found[work_id]["priority"]) for work_id in ("done", "busy", "last")] == ["2", "-1.5", "0"]


def test_times_are_utc_and_to_the_millisecond(path: Path) -> None:
    def look(cue: Cue) -> None:
        now = epoch()
        found = view(path)
        for row in found.values():
            assert all(isinstance(row[name], str) for name in ("created_at", "updated_at", "next_run_at"))
        then = now - 100
        times = {
            work_id: [seconds(row[name]) for name in ("created_at", "updated_at", "next_run_at")]
            for work_id, row in found.items()
        }
        assert times["done"] == [then, then, then]
        assert times["shaky"] == [then, then + 60, then + 120]
        assert times["dropped"] == [then, now, then + 9000]
        assert times["again"] == [now, now, now + 60]
        assert times["busy"] == [now, now, now]
        assert times["next"] == [now, now, now + 50]
        assert times["soon"] == [now, now, now + 20]

    used(path, look)


def test_the_last_error_is_there_as_far_as_a_line_can_hold(left: Path) -> None:
    found = view(left)
    assert found["lost"]["last_error"] == f"OSError: {'x' * 503}"
    assert len(found["lost"]["last_error"]) == 512
    assert found["again"]["last_error"] == "OSError: no luck"
    assert (found["done"]["last_error"], found["dropped"]["last_error"]) == (None, "cancelled")


def test_a_worker_is_named_only_while_it_runs_the_job(path: Path) -> None:
    def look(cue: Cue) -> None:
        with Reader(path) as reader:
            [me] = reader.workers()
        assert {work_id: row["worker_id"] for work_id, row in view(path).items() if row["worker_id"]} == {
            "busy": me["id"]
        }

    used(path, look)
    assert [row["worker_id"] for row in view(path).values() if row["worker_id"]] == []


def test_a_worker_whose_code_still_runs_for_work_that_waits_or_ended_is_not_named(left: Path) -> None:
    change(left, "UPDATE work_units SET leased_by = 'somebody' WHERE id IN ('again', 'lost')")
    assert [row["worker_id"] for row in view(left).values() if row["worker_id"]] == []


def test_the_command_of_a_job_is_its_command_and_of_other_work_its_task(left: Path) -> None:
    found = view(left)
    assert found["lost"]["command"] == "false --loudly"
    assert (found["noted"]["command"], found["last"]["command"]) == ("note", "note")


@pytest.mark.parametrize(
    ("params", "command"),
    [
        ("{", "shell"),
        ("", "shell"),
        ("[1]", "shell"),
        ("null", "shell"),
        ("\0", "shell"),
        ('{"command":null}', "shell"),
        ('{"command":["ls","-l"]}', '["ls","-l"]'),
        ('{"command":{"a":1}}', '{"a":1}'),
        ('{"command":7}', 7),
        ('{"command":"ü 🎈\\n"}', "ü 🎈\n"),
        ("[" * 5000, "shell"),
    ],
)
def test_whatever_the_params_are_the_view_can_be_read(left: Path, params: str, command: object) -> None:
    change(left, "UPDATE work_units SET params = ? WHERE id = 'done'", params)
    found = view(left)
    assert (len(found), found["done"]["command"], found["lost"]["command"]) == (10, command, "false --loudly")
    with Reader(left) as reader:
        assert [row["command"] for row in reader.jobs(ids=["done"])] == [command]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("retry", "{"), ("retry", "7"), ("retry", b"\xff"), ("params", b"\xff\0"), ("priority", "high"),
        ("created_at", "long ago"), ("created_at", 1e300), ("updated_at", -1e300), ("run_at", "soon"),
        ("last_error", b"\xff\xfe"), ("failures", "many"), ("token", "x"), ("state", "parked"), ("task_type", b"\0"),
    ],
)  # fmt: skip
def test_a_damaged_row_does_not_hide_the_others(left: Path, column: str, value: object) -> None:
    change(left, f"UPDATE work_units SET {column} = ? WHERE id = 'done'", value)
    found = view(left)
    assert len(found) == 10
    assert found["lost"]["state"] == "dead"
    with Reader(left) as reader:
        assert len(reader.jobs()) == 10


# --- The same from a Reader -------------------------------------------------------------------------


def test_a_reader_gives_the_rows_of_the_view(path: Path) -> None:
    def look(cue: Cue) -> None:
        found = view(path)
        with Reader(path) as reader:
            assert reader.jobs() == [
                found[work_id]
                for work_id in (
                    "last",
                    "soon",
                    "next",
                    "busy",
                    "again",
                    "noted",
                    "dropped",
                    "shaky",
                    "lost",
                    "done",
                )
            ]
            assert [tuple(row) for row in reader.jobs()] == [jobs_view.COLUMNS] * 10
            for word in WORDS:
                assert reader.jobs(word) == [row for row in reader.jobs() if row["state"] == word]
                assert reader.jobs(word) != []
            assert {row["id"] for row in reader.jobs(queue="night")} == {"dropped", "again", "soon"}
            assert {row["id"] for row in reader.jobs(queue="default")} == found.keys() - {
                "dropped",
                "again",
                "soon",
            }
            assert [row["id"] for row in reader.jobs("failed", queue="night")] == ["again"]
            assert reader.jobs(queue="nobody") == []
            assert [row["id"] for row in reader.jobs(ids=["done", "nobody", "last", "done"])] == [
                "last",
                "done",
            ]
            assert [row["id"] for row in reader.jobs("dead", ids=["done", "lost"])] == ["lost"]
            assert reader.jobs(ids=[]) == []
            assert [row["id"] for row in reader.jobs(limit=2)] == ["last", "soon"]
            assert [row["id"] for row in reader.jobs("failed", limit=1)] == ["again"]
            assert [row["id"] for row in reader.jobs(ids=iter(["lost", "done"]), limit=1)] == ["lost"]

    used(path, look)


def test_the_counts_of_the_states_are_those_of_the_view(path: Path) -> None:
    def look(cue: Cue) -> None:
        with Reader(path) as reader:
            counted = Counter(row["state"] for row in view(path).values())
            assert reader.job_counts() == {word: counted[word] for word in WORDS}
            assert list(reader.job_counts()) == list(WORDS)

    used(path, look)


def test_an_empty_queue_has_no_jobs(path: Path) -> None:
    async def main() -> None:
        await make_empty(path)

    run(main())
    with Reader(path) as reader:
        assert (reader.jobs(), reader.job_counts()) == ([], dict.fromkeys(WORDS, 0))


def many(path: Path, amount: int) -> None:
    """A queue of that many works, the first of which is `w0`."""

    async def main() -> None:
        cue = program(path)
        await cue.submit_many({"task": "note", "id": f"w{number}"} for number in range(amount))
        await cue.close()

    run(main())


def test_more_ids_than_fit_into_one_question_are_found(path: Path) -> None:
    many(path, 1201)
    with Reader(path) as reader:
        found = reader.jobs(ids=[f"w{number}" for number in range(2000)], limit=5000)
        assert {row["id"] for row in found} == {f"w{number}" for number in range(1201)}
        assert len(found) == 1201


def test_more_ids_than_fit_into_one_question_come_newest_first(path: Path) -> None:
    many(path, 1201)
    with Reader(path) as reader:
        found = reader.jobs(ids=[f"w{number}" for number in range(1201)], limit=3)
        assert [row["id"] for row in found] == ["w1200", "w1199", "w1198"]


@pytest.mark.parametrize("wrong", ["running", "queued", "", "Dead", 7])
def test_a_word_that_is_none_is_refused(left: Path, wrong: Any) -> None:
    with Reader(left) as reader, pytest.raises(InvalidOption, match="pending, processing, completed"):
        reader.jobs(wrong)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3", None])
def test_a_limit_that_is_none_is_refused(left: Path, wrong: Any) -> None:
    with Reader(left) as reader, pytest.raises(InvalidOption, match="limit"):
        reader.jobs(limit=wrong)


# --- How they are found -----------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["pending", "processing", "failed", "dead", "cancelled"])
def test_jobs_of_a_state_are_found_by_an_index(left: Path, word: str) -> None:
    connection = apsw.Connection(str(left), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        query = f"EXPLAIN QUERY PLAN {JOBS} WHERE {jobs_view.WHERE[word]} ORDER BY seq DESC LIMIT 10"
        steps = [row[3] for row in connection.execute(query)]
    finally:
        connection.close()
    assert "USING INDEX work_units_" in steps[0]
