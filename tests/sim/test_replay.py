"""A real queue becomes a workload: what is taken from it, and that it goes the same way again."""

import asyncio
import re
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue.sim.config import BadConfig, Config, with_changes
from runcue.sim.metrics import Metrics, Summary
from runcue.sim.mocks import ERROR, PERMANENT, RETURNED
from runcue.sim.replay import MOST_KINDS, Recording, check, read
from runcue.sim.workload import Arrival, Submission
from runcue.sim.world import Simulation
from runcue.testing import kill, run
from tests.handlers import taking

Play = Callable[[runcue.Cue], Awaitable[None]]


def recorded(path: Path, play: Play, **options: Any) -> Recording:
    """What can be read of a queue in which that happened."""

    async def main() -> None:
        cue = runcue.Cue(path, durability="relaxed", **options)
        await play(cue)
        await cue.close()

    run(main())
    return read(path)


def replayed(recording: Recording, *changes: str) -> Summary:
    config = with_changes(recording.config(), changes)
    metrics = Metrics(config)
    simulation = Simulation(config, arrivals=recording.arrivals(config), keep_calls=False)
    simulation.listeners.append(metrics)
    return metrics.finish(run(simulation.run()))


def works(recording: Recording) -> dict[str, Submission]:
    config = recording.config()
    return {work.id: work for arrival in recording.arrivals(config) for work in arrival.works}


async def shop(cue: runcue.Cue) -> None:
    """Sixty orders in a minute, each fetched under limits and then filed; some fail once, one for good."""
    cue.service("api", rate="30/10s", concurrent=3, circuit_threshold=9, circuit_timeout=40)
    cue.service("disk", concurrent=1)

    @cue.task(uses="api", retry=runcue.Retry(max_attempts=3, base_delay=2, jitter=False), timeout=30)
    async def fetch(work: runcue.RunningWork) -> str:
        number = work.params["number"]
        await asyncio.sleep(0.5 + number % 7 / 10)
        if number % 10 == 3 and work.attempt == 1:
            raise OSError("busy")
        if number == 41:
            raise runcue.Permanent("gone")
        return "x" * 500

    @cue.task(uses="disk")
    async def file(work: runcue.RunningWork) -> None:
        await asyncio.sleep(0.25)

    async with cue:
        for number in range(60):
            first = await cue.submit(fetch, params={"number": number}, priority=number % 3, id=f"f{number}")
            await cue.submit(file, depends_on=[first], id=f"d{number}")
            await asyncio.sleep(1)
        await cue.join()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("replay") / "shop.db", shop)


# what is taken ----------------------------------------------------------------------------------------------


def test_services_and_their_limits_are_those_of_the_file(recording: Recording) -> None:
    config = recording.config()
    api = config.services["api"]
    assert (api.concurrent, api.rates, api.circuit_threshold, api.circuit_timeout) == (3, ["30/10s"], 9, 40.0)
    assert config.services["disk"].concurrent == 1
    assert config.uses() == {"fetch": ["api"], "file": ["disk"]}
    assert config.name == "shop"


def test_works_come_when_they_came_with_what_belongs_to_them(recording: Recording) -> None:
    arrivals: list[Arrival] = list(recording.arrivals(recording.config()))
    assert [arrival.at for arrival in arrivals] == pytest.approx([float(n) for n in range(60)], abs=1e-3)
    assert [[work.id for work in arrival.works] for arrival in arrivals[:2]] == [["f0", "d0"], ["f1", "d1"]]
    found = works(recording)
    assert (found["f5"].priority, found["f5"].task, found["d5"].needs) == (2.0, "fetch", ("f5",))


def test_attempts_take_as_long_as_they_took_and_end_as_they_ended(recording: Recording) -> None:
    found = works(recording)
    assert [how for _, how in found["f13"].script] == [ERROR, RETURNED]
    assert [seconds for seconds, _ in found["f13"].script] == pytest.approx([1.1, 1.1], abs=1e-3)
    assert [how for _, how in found["f41"].script] == [PERMANENT]
    assert [how for _, how in found["f2"].script] == [RETURNED]


def test_the_facts_are_those_of_the_file(recording: Recording) -> None:
    facts = recording.facts
    assert (facts.works, facts.completed, facts.failed) == (120, 118, 2)  # with 41 its file failed too
    assert facts.attempts == 59 + 60 + 6
    assert 59 < facts.lasted < 70
    assert recording.left_out == {}
    assert recording.config().retry.max_attempts == 2
    assert recording.config().retry.base_delay == pytest.approx(2.0, abs=0.01)


# going the same way again -----------------------------------------------------------------------------------


def test_a_replay_of_what_was_goes_as_it_went(recording: Recording) -> None:
    summary, facts = replayed(recording), recording.facts
    assert (summary.completed, summary.failed, summary.retries) == (facts.completed, facts.failed, 6)
    assert summary.took == pytest.approx(facts.lasted, abs=0.1)
    assert summary.latency.p50 == pytest.approx(facts.p50, rel=0.02)
    assert summary.latency.p95 == pytest.approx(facts.p95, rel=0.02)


def test_another_limit_shows_what_would_have_been(recording: Recording) -> None:
    tighter = replayed(recording, "api.rate=20/min")
    assert tighter.completed == recording.facts.completed
    assert tighter.took > 2.5 * recording.facts.lasted
    assert tighter.latency.p95 > 10 * recording.facts.p95


def test_the_same_replay_twice_is_the_same(recording: Recording) -> None:
    assert replayed(recording, "disk.concurrent=4") == replayed(recording, "disk.concurrent=4")


def test_its_configuration_can_be_changed_and_read_like_any_other(recording: Recording) -> None:
    changed = with_changes(recording.config(), ["api.concurrent=1", "retry.max_attempts=5"])
    assert isinstance(changed, Config)
    assert changed.services["api"].concurrent == 1


def test_a_number_of_works_takes_the_first_of_them(recording: Recording) -> None:
    config = with_changes(recording.config(), ["workload.count=5"])
    taken = [work.id for arrival in recording.arrivals(config) for work in arrival.works]
    assert taken == ["f0", "d0", "f1", "d1", "f2"]
    check(recording.config(), config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "workload.submit_rate=9",
            "workload.submit_rate: expected no change: --replay takes it from the file",
        ),
        ("workload.priorities=[1, 2]", "workload.priorities: expected no change"),
        (
            "api.latency=1s",
            "services.api.behaviour.latency: expected no change: --replay takes it from the file",
        ),
        ("api.error_rate=0.5", "services.api.behaviour.error_rate: expected no change"),
        (
            "api.tokens=100/min",
            "services.api.tokens: expected no quantity: the file does not say what units cost",
        ),
        ("api.allows={tokens: 5/s}", "services.api.tokens: expected no quantity"),
    ],
)
def test_a_change_that_would_be_ignored_is_refused(recording: Recording, change: str, message: str) -> None:
    base = recording.config()
    with pytest.raises(BadConfig, match=re.escape(message)):
        check(base, with_changes(base, [change]))


@pytest.mark.parametrize(
    "change",
    ["api.rate=1/s", "api.outages=[{at: 5, for: 5}]", "retry=5", "workload.uses.file=[api]", "nodes=1"],
)
def test_a_change_that_makes_a_difference_is_not(recording: Recording, change: str) -> None:
    base = recording.config()
    check(base, with_changes(base, [change]))


def test_a_queue_that_is_written_is_read_as_it_was_when_reading_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "live.db"

    async def go_on(first: int) -> None:
        cue = runcue.Cue(path, durability="relaxed")

        @cue.task(retry=1)
        async def step(work: runcue.RunningWork) -> None:
            await asyncio.sleep(1)
            if work.params["number"] == 3:
                raise OSError("later")

        async with cue:
            for number in range(first, first + 2):
                await cue.submit(step, params={"number": number}, id=f"w{number}")
            await cue.submit(step, params={"number": first + 2}, id=f"w{first + 2}", delay=5)
            if first:
                await cue.join()
            else:
                await asyncio.sleep(2)

    run(go_on(0))
    still = read(path)
    events = runcue.Reader.events
    is_late = False

    def meanwhile(reader: runcue.Reader, *given: Any) -> Any:
        nonlocal is_late
        if not is_late:
            is_late = True
            run(go_on(3), epoch=1_700_000_100.0)
        return events(reader, *given)

    monkeypatch.setattr(runcue.Reader, "events", meanwhile)
    found = read(path)
    assert is_late
    assert found.works == still.works
    assert found.facts == still.facts
    assert found.left_out == {}
    assert read(path).facts.works == 6


# what is not as usual ---------------------------------------------------------------------------------------


def test_work_on_several_services_takes_its_time_once(tmp_path: Path) -> None:
    async def play(cue: runcue.Cue) -> None:
        cue.service("a")
        cue.service("b")

        @cue.task(uses=["a", "b"])
        async def both(work: runcue.RunningWork) -> None:
            await asyncio.sleep(4)

        async with cue:
            await cue.submit(both)
            await cue.join()

    found = recorded(tmp_path / "both.db", play)
    assert replayed(found).latency.p50 == pytest.approx(4.0, abs=0.01)


def test_one_task_on_different_services_becomes_several(tmp_path: Path) -> None:
    async def play(cue: runcue.Cue) -> None:
        for host in ("one", "two"):
            cue.service(f"ssh_{host}", concurrent=1)

        @cue.task(uses="ssh_{host}")
        async def copy(work: runcue.RunningWork) -> None:
            await asyncio.sleep(1)

        async with cue:
            for host in ("one", "two", "one"):
                await cue.submit(copy, params={"host": host})
            await cue.join()

    config = recorded(tmp_path / "hosts.db", play).config()
    assert config.uses() == {"copy": ["ssh_one"], "copy on ssh_two": ["ssh_two"]}


def test_work_without_a_service_runs_on_one_without_limits(tmp_path: Path) -> None:
    async def play(cue: runcue.Cue) -> None:
        cue.task("free")(taking(2))
        async with cue:
            await cue.submit_many([{"task": "free"}] * 50)
            await cue.join()

    found = recorded(tmp_path / "free.db", play)
    assert found.config().services["local"].concurrent is None
    assert replayed(found).took == pytest.approx(2.0, abs=0.01)


def test_what_has_not_ended_takes_as_long_as_others_did(tmp_path: Path) -> None:
    async def play(cue: runcue.Cue) -> None:
        @cue.task
        async def slow(work: runcue.RunningWork) -> None:
            await asyncio.sleep(3)

        cue.start()
        await cue.submit(slow, id="ended")
        await asyncio.sleep(3.5)
        await cue.submit(slow, id="running")
        await cue.submit(slow, id="later", delay=3600)
        await asyncio.sleep(1)
        kill(cue)

    found = works(recorded(tmp_path / "open.db", play))
    assert list(found["running"].script) == [(pytest.approx(3.0, abs=0.01), RETURNED)]
    assert list(found["later"].script) == [(pytest.approx(3.0, abs=0.01), RETURNED)]


def test_skipped_and_cancelled_work_is_counted_and_left_out(tmp_path: Path) -> None:
    async def play(cue: runcue.Cue) -> None:
        @cue.task
        async def step(work: runcue.RunningWork) -> None:
            await asyncio.sleep(1)

        cue.is_stale(lambda work: work.target != "there")
        await cue.submit(step, id="cancelled", delay=60)
        await cue.cancel("cancelled")
        async with cue:
            await cue.submit(step, id="skipped", target="there")
            await cue.submit(step, id="after", depends_on=["skipped"])
            await cue.join()

    found = recorded(tmp_path / "left.db", play)
    assert found.left_out == {"cancelled": 1, "skipped": 1}
    assert found.lines()[0].startswith("  recorded    1 unit · 1 completed · 0 failed · 1 attempt in ")
    assert found.lines()[-1].strip() == "not replayed: 1 cancelled, 1 skipped"
    assert list(works(found)) == ["after"]
    assert works(found)["after"].needs == ()


def test_an_attempt_that_timed_out_fails_after_as_long(tmp_path: Path) -> None:
    async def play(cue: runcue.Cue) -> None:
        @cue.task(timeout=5)
        async def hang(work: runcue.RunningWork) -> None:
            await asyncio.sleep(100)

        async with cue:
            await cue.submit(hang, id="hangs")
            await cue.join()

    found = recorded(tmp_path / "hang.db", play)
    assert list(works(found)["hangs"].script) == [(pytest.approx(5.0, abs=0.01), ERROR)]
    assert replayed(found).failed == 1


def test_rare_kinds_are_put_together(tmp_path: Path) -> None:
    async def play(cue: runcue.Cue) -> None:
        async def any_task(work: runcue.RunningWork) -> None: ...

        for number in range(MOST_KINDS + 20):
            cue.task(f"task{number}")(any_task)
        async with cue:
            await cue.submit_many([{"task": f"task{number}"} for number in range(MOST_KINDS + 20)])
            await cue.join()

    found = recorded(tmp_path / "kinds.db", play)
    assert len(found.kinds) == MOST_KINDS
    assert replayed(found).completed == MOST_KINDS + 20


def test_a_queue_in_which_nothing_happened_is_refused(tmp_path: Path) -> None:
    async def nothing(cue: runcue.Cue) -> None:
        await cue.count()

    with pytest.raises(BadConfig, match="something has happened"):
        recorded(tmp_path / "empty.db", nothing)


def test_a_file_that_is_no_queue_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("hello" * 100)
    with pytest.raises(runcue.StoreError):
        read(tmp_path / "text.db")
    with pytest.raises(runcue.StoreError):
        read(tmp_path / "missing.db")


def test_too_much_is_refused_before_it_is_all_read(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "shop.db"
    recorded(path, shop)
    with pytest.raises(BadConfig, match="at most 50 units"):
        read(path, most=50)


def test_large_params_and_results_take_no_room(tmp_path: Path) -> None:
    async def play(cue: runcue.Cue) -> None:
        @cue.task
        async def heavy(work: runcue.RunningWork) -> str:
            return "r" * 50_000

        async with cue:
            for _ in range(10):
                await cue.submit_many([{"task": "heavy", "params": {"text": "p" * 50_000}}] * 20)
            await cue.join()

    recorded(tmp_path / "heavy.db", play)
    tracemalloc.start()
    try:
        found = read(tmp_path / "heavy.db")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.works) == 200
    assert kept < 1_000_000  # the file holds twenty times as much
