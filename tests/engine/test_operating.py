"""What an operator does to a queue: purging dead letters, texts kept with it, retries of one work, room in a process.

What several processes see of each other is tried with two Cues on one file.
"""

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import runcue
from runcue import Cue, DuplicateWork, Retry, SubmitError, Work, WorkNotFound, WorkState
from runcue.errors import ConfigError, InvalidOption
from runcue.testing import settle
from tests.engine.seen import clock, epoch


async def counted(cue: Cue) -> dict[str, int]:
    """How many works there are, of each state that has some."""
    return {state.value: amount for state, amount in (await cue.count()).items() if amount}


def failing(**options: Any) -> Cue:
    """A program whose task `call` fails as often as a work says, and first takes as long as it says."""
    cue = Cue(**options)

    @cue.task
    async def call(work: Work) -> str:
        await asyncio.sleep(work.params.get("seconds", 0))
        if work.params.get("fails", 0) >= work.attempt:
            raise OSError("no line")
        return "good"

    @cue.task
    async def other(work: Work) -> None:
        raise OSError("no line")

    return cue


BAD = {"fails": 100}


# --- Purging ----------------------------------------------------------------------------------------


async def test_only_work_that_failed_for_good_is_purged() -> None:
    cue = failing()
    async with cue:
        await cue.submit("call", id="failed", params=BAD)
        await cue.submit("call", id="completed")
        await cue.submit("call", id="cancelled", delay=60)
        await cue.cancel("cancelled")
        await cue.wait("failed")
        await cue.wait("completed")
        await cue.submit("call", id="retrying", params=BAD, retry={"max_attempts": 9, "base_delay": 60})
        await settle()
        await cue.submit("call", id="running", params={"seconds": 60})
        await cue.submit("call", id="pending", delay=60)
        await settle()
        ids = ("completed", "cancelled", "retrying", "running", "pending", "unknown", "failed", "failed")
        assert [await cue.purge(work_id) for work_id in ids] == [*[False] * 6, True, False]
        assert await cue.get("failed") is None
        assert await counted(cue) == {"completed": 1, "cancelled": 1, "pending": 2, "running": 1}
        for work_id in ids[:5]:
            assert await cue.get(work_id) is not None
        await cue.cancel("retrying")


async def test_nothing_knows_purged_work_any_more() -> None:
    cue = failing()
    async with cue:
        await cue.wait(await cue.submit("call", id="a", params=BAD))
        assert await cue.purge("a") is True
        assert await cue.dead() == []
        assert await counted(cue) == {}
        for question in (cue.wait("a"), cue.result("a"), cue.explain("a"), cue.retry("a"), cue.join(["a"])):
            with pytest.raises(WorkNotFound) as caught:
                await question
            assert not caught.value.forgotten
        assert await cue.cancel("a") is False


async def test_a_file_keeps_no_row_of_purged_work(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    cue = failing(store=path)
    async with cue:
        await cue.wait(await cue.submit("call", id="need"))
        retry = {"max_attempts": 2, "base_delay": 1}
        await cue.wait(await cue.submit("call", id="a", params=BAD, depends_on=["need"], retry=retry))
        assert await cue.purge("a") is True
    await cue.close()
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    for question in (
        "SELECT 1 FROM work_units WHERE id = 'a'",
        "SELECT 1 FROM attempts WHERE work_id = 'a'",
        "SELECT 1 FROM dependencies WHERE work_id = 'a'",
        "SELECT 1 FROM forgotten",
    ):
        assert connection.execute(question).fetchall() == []
    connection.close()


async def test_what_depends_on_purged_work_afterwards_does_not_run_as_if_it_had_succeeded() -> None:
    cue = failing()
    async with cue:
        made = await cue.submit("call", params=BAD)
        await cue.wait(made)
        assert await cue.purge(made) is True
        dependent = await cue.wait(await cue.submit("call", depends_on=[made]))
        assert (dependent.state, dependent.error) == ("failed", "prerequisite_failed")


async def test_its_id_and_its_key_are_free_again() -> None:
    cue = failing()
    async with cue:
        await cue.wait(await cue.submit("call", id="a", params=BAD, idempotency_key="k"))
        with pytest.raises(DuplicateWork):
            await cue.submit("call", id="a")
        with pytest.raises(DuplicateWork):
            await cue.submit("call", params={"fails": 0}, idempotency_key="k")
        await cue.purge("a")
        assert await cue.submit("call", id="a", params={"fails": 0}, idempotency_key="k") == "a"
        work = await cue.wait("a")
        assert (work.state, work.attempt, work.history) == ("completed", 1, ())
        assert await cue.submit("call", params={"fails": 0}, idempotency_key="k") == "a"
    assert await counted(cue) == {"completed": 1}


async def test_a_purge_and_a_retry_at_once_leave_nothing_half_there() -> None:
    cue = failing()
    async with cue:
        for is_purge_first in (True, False):
            await cue.wait(await cue.submit("call", id="a", params={"fails": 1}))
            questions = [cue.purge("a"), cue.retry("a")]
            answers = await asyncio.gather(*questions[:: 1 if is_purge_first else -1], return_exceptions=True)
            if is_purge_first:
                assert answers[0] is True
                assert isinstance(answers[1], WorkNotFound)
                assert (await cue.get("a"), await counted(cue)) == (None, {})
            else:
                assert answers == [True, False]
                assert (await cue.wait("a")).state == "completed"
                assert await counted(cue) == {"completed": 1}


async def test_a_purge_and_a_submission_of_its_id_at_once_make_new_work() -> None:
    cue = failing()
    async with cue:
        await cue.wait(await cue.submit("call", id="a", params=BAD, idempotency_key="k"))
        is_purged, work_id = await asyncio.gather(cue.purge("a"), cue.submit("call", id="a"))
        assert (is_purged, work_id) == (True, "a")
        work = await cue.wait("a")
        assert (work.state, work.attempt, work.idempotency_key) == ("completed", 1, None)
        assert await counted(cue) == {"completed": 1}


async def test_a_purge_and_a_retry_with_dependents_at_once_do_not_disturb_each_other() -> None:
    cue = failing()
    async with cue:
        await cue.submit("call", id="a", params={"fails": 1})
        await cue.submit("call", id="b", depends_on=["a"])
        await cue.wait("b")
        assert await asyncio.gather(cue.purge("b"), cue.retry("a", cascade=True)) == [True, True]
        assert (await cue.wait("a")).state == "completed"
        assert await cue.get("b") is None


async def test_all_dead_letters_are_purged_however_many() -> None:
    cue = failing()
    amount = 2 * 1000 + 1
    async with cue:
        await cue.submit("call", id="good")
        await cue.submit("other", id="of another task")
        await cue.submit_many({"task": "call", "params": BAD} for _ in range(amount))
        await cue.join()
        assert await counted(cue) == {"completed": 1, "failed": amount + 1}
        assert await cue.purge_dead("nobody") == 0
        assert await cue.purge_dead("call") == amount
        assert [work.id for work in await cue.dead()] == ["of another task"]
        assert await cue.purge_dead() == 1
        assert await cue.purge_dead() == 0
        assert await counted(cue) == {"completed": 1}


@pytest.mark.memory
async def test_purged_work_does_not_count_among_the_last_that_are_kept() -> None:
    cue = failing(keep_finished=3)
    async with cue:
        for work_id in "abc":
            await cue.wait(await cue.submit("call", id=work_id, params=BAD))
        await cue.purge("b")
        await cue.wait(await cue.submit("call", id="d"))
        assert [work.id for work in await cue.list()] == ["d", "c", "a"]
        await cue.wait(await cue.submit("call", id="e"))
        assert [work.id for work in await cue.list()] == ["e", "d", "c"]
        assert await cue.purge("a") is False


@pytest.mark.parametrize("wrong", ["", None, 7, "a\nb", b"a"])
async def test_what_is_no_id_is_refused(wrong: Any) -> None:
    cue = failing()
    with pytest.raises(InvalidOption, match="id"):
        await cue.purge(wrong)


# --- Texts kept with a queue ------------------------------------------------------------------------


async def test_texts_are_kept_changed_and_deleted() -> None:
    cue = Cue()
    assert await cue.get_config() == {}
    await cue.set_config({"colour": "green", "leer": "", "ü.x-y_z": "1\n2\0\U0001f388"})
    assert await cue.get_config() == {"colour": "green", "leer": "", "ü.x-y_z": "1\n2\0\U0001f388"}
    await cue.set_config({"colour": "blue", "leer": None, "never": None})
    assert await cue.get_config() == {"colour": "blue", "ü.x-y_z": "1\n2\0\U0001f388"}
    await cue.set_config({})
    (await cue.get_config())["colour"] = "red"
    assert (await cue.get_config())["colour"] == "blue"


async def test_the_last_of_several_at_once_counts() -> None:
    cue = Cue()
    await asyncio.gather(*[cue.set_config({"number": str(number), f"n{number}": "x"}) for number in range(9)])
    found = await cue.get_config()
    assert (found["number"], len(found)) == ("8", 10)


@pytest.mark.parametrize(
    "wrong",
    [None, "a", ["a"], {"a": 1}, {"a": b"x"}, {1: "a"}, {"": "a"}, {"a": True}, {"good": "1", "bad": 2}],
)
async def test_what_is_no_text_is_refused_and_nothing_is_kept(wrong: Any) -> None:
    cue = Cue()
    with pytest.raises(ConfigError):
        await cue.set_config(wrong)
    assert await cue.get_config() == {}


async def test_texts_are_for_all_who_share_a_file_and_survive_them(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    one, other = Cue(path), Cue(path)
    await one.set_config({"colour": "green", "size": "9"})
    assert await other.get_config() == {"colour": "green", "size": "9"}
    await other.set_config({"size": None})
    assert await one.get_config() == {"colour": "green"}
    with runcue.Reader(path) as reader:
        assert reader.config() == {"colour": "green"}
    await one.close()
    await other.close()
    with runcue.Reader(path) as reader:
        assert reader.config() == {"colour": "green"}
    late = Cue(path)
    assert await late.get_config() == {"colour": "green"}
    await late.close()


# --- Retries of one work ----------------------------------------------------------------------------


class Noted:
    """A handler that always fails, and writes down when it was called for each work."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.at: dict[str, list[float]] = {}

    async def __call__(self, work: Work) -> None:
        self.at.setdefault(work.id, []).append(clock())
        raise self.error


OWN = Retry(3, "linear", 10, jitter=False)


async def test_a_works_own_retries_win_over_those_of_its_task() -> None:
    cue, handler = Cue(), Noted(OSError("no"))
    cue.task("call", retry=Retry(2, "fixed", 1, jitter=False))(handler)
    async with cue:
        await cue.submit("call", id="own", retry=OWN)
        await cue.submit("call", id="dict", retry={"max_attempts": 2, "base_delay": "5s", "jitter": False})
        await cue.submit("call", id="number", retry=1)
        await cue.submit_many([{"task": "call", "id": "item", "retry": 1}, {"task": "call", "id": "plain"}])
        await cue.join()
    assert handler.at == {"own": [0, 10, 30], "dict": [0, 5], "number": [0], "item": [0], "plain": [0, 1]}
    work = await cue.get("own")
    assert work is not None
    assert (work.retry, work.failures, work.attempt) == (OWN, 3, 3)
    plain = await cue.get("plain")
    assert plain is not None
    assert (plain.retry, plain.failures) == (None, 2)


async def test_what_the_task_does_not_retry_on_is_not_retried() -> None:
    cue = Cue()
    cue.task("net", retry=Retry(retry_on=OSError))(one := Noted(ValueError("no")))
    cue.task("net2", retry=Retry(retry_on=OSError))(two := Noted(ConnectionError("no")))
    async with cue:
        await cue.submit("net", id="hopeless", retry=OWN)
        await cue.submit("net2", id="hopeful", retry=OWN)
        await cue.join()
    assert (one.at, two.at) == ({"hopeless": [0]}, {"hopeful": [0, 10, 30]})


@pytest.mark.parametrize(
    "wrong",
    [Retry(retry_on=OSError), {"retry_on": [OSError]}, -1, 1.5, "3", {"backoff": "never"}, {"tries": 3}],
)
async def test_wrong_retries_are_refused_and_nothing_is_queued(wrong: Any) -> None:
    cue = failing()
    with pytest.raises(ConfigError):
        await cue.submit("call", retry=wrong)
    with pytest.raises(ConfigError, match=r"items\[1\]"):
        await cue.submit_many([{"task": "call"}, {"task": "call", "retry": wrong}])
    assert await counted(cue) == {}


async def test_a_retry_by_hand_gives_a_work_its_own_budget_anew() -> None:
    cue, handler = Cue(), Noted(OSError("no"))
    cue.task("call")(handler)
    async with cue:
        await cue.wait(await cue.submit("call", id="a", retry=OWN))
        assert await cue.retry("a") is True
        revived = await cue.get("a")
        assert revived is not None
        assert (revived.failures, revived.retry) == (0, OWN)
        work = await cue.wait("a")
    assert handler.at == {"a": [0, 10, 30, 30, 40, 60]}
    assert (work.failures, work.attempt, len(work.history)) == (3, 6, 6)


async def test_a_works_own_retries_survive_the_program(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    first, handler = Cue(path), Noted(OSError("no"))
    first.task("call", retry=9)(handler)
    async with first:
        await first.submit("call", id="a", retry=OWN)
        await settle()
    await first.close()
    second = Cue(path)
    second.task("call", retry=9)(handler)
    async with second:
        work = await second.wait("a")
    assert (work.retry, work.failures, work.state) == (OWN, 3, "failed")
    assert handler.at == {"a": [0, 10, 30]}
    await second.close()


# --- Room in one process ----------------------------------------------------------------------------


class Crowd:
    """A handler that takes ten seconds, and knows how many are inside and how many there were at most."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0

    async def __call__(self, work: Work) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(10)
        self.inside -= 1


def crowded(cue: Cue, crowd: Crowd) -> Cue:
    cue.service("api", concurrent=9)
    cue.task("one", uses="api")(crowd)
    cue.task("two")(crowd)
    return cue


@pytest.mark.parametrize(("most", "seconds"), [(1, 40), (2, 20), (3, 20), (None, 10)])
async def test_no_more_than_that_run_at_once_whatever_they_are(most: int | None, seconds: float) -> None:
    crowd = Crowd()
    cue = crowded(Cue(max_running=most), crowd)
    async with cue:
        await cue.submit_many({"task": task} for task in ("one", "two", "one", "two"))
        await cue.join()
    assert (crowd.most, clock()) == (most or 4, seconds)


async def test_work_that_waits_for_room_says_so() -> None:
    cue = crowded(Cue(max_running=1), Crowd())
    async with cue:
        await cue.submit("one", id="a")
        await cue.submit("two", id="b")
        await cue.submit("one", id="c")
        await settle()
        assert (await cue.explain("a")).reason == "running"
        why = await cue.explain("c")
        assert (why.reason, why.service, why.until, why.ahead) == ("max_running", None, None, 1)
        assert [one["reason"] for one in await cue.debug_blocked()] == ["max_running"] * 2
        assert [service["name"] for service in await cue.services()] == ["api"]


async def test_each_process_on_a_file_has_room_of_its_own(tmp_path: Path) -> None:
    path, crowd = tmp_path / "shared.db", Crowd()
    one, other = (crowded(Cue(path, max_running=1), crowd) for _ in range(2))
    async with one, other:
        await one.submit_many({"task": task, "id": f"{task}{n}"} for task in ("one", "two") for n in range(2))
        await one.join()
        assert (crowd.most, clock()) == (2, 20)
    await one.close()
    await other.close()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", True])
def test_room_is_a_whole_number(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="max_running"):
        Cue(max_running=wrong)


# --- Services that only the file knows --------------------------------------------------------------


def choosing(cue: Cue, crowd: Crowd) -> Cue:
    """A program that lets each work say what it uses, and declares nothing."""
    cue.task("call", uses=lambda work: work.params["uses"])(crowd)
    cue.task("named", uses="printer_{floor}")(crowd)
    return cue


async def test_a_service_that_another_program_declared_can_be_used_and_limits(tmp_path: Path) -> None:
    path, crowd = tmp_path / "shared.db", Crowd()
    owner = Cue(path)
    owner.service("printer_2", concurrent=1)
    await owner.count()
    cue = choosing(Cue(path), crowd)
    async with cue:
        await cue.submit_many({"task": "call", "params": {"uses": "printer_2"}} for _ in range(2))
        await cue.submit("named", params={"floor": 2}, id="last")
        await settle()
        assert (await cue.explain("last")).service == "printer_2"
        await cue.join()
        assert (crowd.most, clock()) == (1, 30)
        await owner.pause("printer_2")
        await cue.submit("call", params={"uses": ["printer_2"]}, id="paused")
        await settle()
        assert (await cue.explain("paused")).reason == "paused"
        await owner.close()
        await cue.cancel("paused")
    await cue.close()


@pytest.mark.parametrize("task", ["call", "named"])
async def test_a_service_that_nobody_declared_is_refused_and_nothing_is_queued(task: str, store: str) -> None:
    cue = choosing(Cue(), Crowd())
    cue.service("printer_1")
    params = {"uses": ["printer_1", "printer_9"], "floor": 9}
    with pytest.raises(SubmitError, match="'printer_9'") as caught:
        await cue.submit(task, params=params)
    assert "printer_1" in str(caught.value)
    assert "#" not in str(caught.value)
    good = {"uses": "printer_1", "floor": 1}
    with pytest.raises(SubmitError, match="'printer_9'"):
        await cue.submit_many([{"task": task, "params": good}, {"task": task, "params": params}])
    assert await counted(cue) == {}
    if store == "memory":  # nobody else could declare it: the choice itself is refused
        assert "uses=" in str(caught.value)


async def test_what_is_declared_later_is_known_when_services_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    owner, cue = Cue(path), choosing(Cue(path), Crowd())
    with pytest.raises(SubmitError):
        await cue.submit("call", params={"uses": "printer"})
    await owner.count()
    owner.service("printer", concurrent=2)
    assert [service["name"] for service in await owner.services()] == ["printer"]
    await cue.submit("call", params={"uses": "printer"}, id="a")
    with runcue.Reader(path) as reader:
        work = reader.get("a")
        assert work is not None
        assert work.services == ("printer",)
    await owner.close()
    await cue.close()


async def test_a_service_that_is_named_for_the_whole_task_has_to_be_declared_here(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    owner, cue = Cue(path), Cue(path)
    owner.service("printer")
    await owner.count()
    with pytest.raises(runcue.UnknownService):
        cue.task("call", uses="printer")(Crowd())
    await owner.close()
    await cue.close()


# --- What a work says of itself ---------------------------------------------------------------------


async def test_a_work_says_who_runs_it_and_how_often_it_failed(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    cue = failing(store=path)
    async with cue:
        began = epoch()
        await cue.submit("call", id="a", params={"fails": 1, "seconds": 5}, retry=OWN)
        await settle()
        with runcue.Reader(path) as reader:
            running = reader.get("a")
            [me] = reader.workers()
        assert running is not None
        assert (running.state, running.worker, running.failures) == (WorkState.RUNNING, me["id"], 0)
        assert (me["serving"], running.started_at) == (True, began)
        await asyncio.sleep(6)
        waiting = await cue.get("a")
        assert waiting is not None
        assert (waiting.state, waiting.worker, waiting.failures) == (WorkState.PENDING, None, 1)
        assert (await cue.wait("a")).worker is None
    await cue.close()


async def test_a_program_that_only_submits_serves_nobody(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    cue = failing(store=path)
    await cue.submit("call", id="a")
    with runcue.Reader(path) as reader:
        assert [worker["serving"] for worker in reader.workers()] == [False]
        assert reader.explain("a").reason == "not_started"
        cue.start()
        await cue.wait("a")
        assert [worker["serving"] for worker in reader.workers()] == [True]
    await cue.stop()
    await cue.close()
