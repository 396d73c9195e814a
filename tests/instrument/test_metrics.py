"""Metrics: what is counted, under which labels, and how it is shown."""

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import runcue
from runcue import ConfigError, Cue, CueClosed, Reader, RunningWork, Work
from runcue.instrument import sources
from runcue.instrument.prometheus import FAMILIES, Metrics
from runcue.ports import Observer
from tests.handlers import no_op
from tests.instrument.seen import BOUND, modules_after, numbers, until


@pytest.fixture(params=["memory", "file"])
async def cue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cue]:
    one = Cue() if request.param == "memory" else Cue(tmp_path / "queue.db")
    yield one
    await one.close()


# what is counted -----------------------------------------------------------------------------------------


async def test_totals_are_what_ended_by_task(cue: Cue) -> None:
    metrics = Metrics(cue)
    cue.task("good")(no_op)

    @cue.task(retry=runcue.Retry(max_attempts=3, base_delay=0.0))
    async def bad(work: RunningWork) -> None:
        raise OSError

    async with cue:
        await cue.submit_many({"task": task} for task in ("good", "good", "bad"))
        await cue.submit("good", id="never", delay=3600)
        await cue.cancel("never")
        await cue.join(timeout=BOUND)
        said = numbers(await metrics.scrape())
    assert said["work_units_completed_total{good}"] == 2
    assert said["work_units_failed_total{good}"] == 0
    assert said["work_units_completed_total{bad}"] == 0
    assert said["work_units_failed_total{bad}"] == 1


async def test_skipped_work_is_complete(cue: Cue) -> None:
    metrics = Metrics(cue)

    @cue.task
    async def write(work: RunningWork) -> None: ...

    @cue.is_stale
    def is_stale(work: Work) -> bool:
        return False

    async with cue:
        await cue.submit(write)
        await cue.join(timeout=BOUND)
        assert numbers(await metrics.scrape())["work_units_completed_total{write}"] == 1


async def test_every_attempt_is_a_request_on_each_of_its_services(cue: Cue) -> None:
    metrics = Metrics(cue)
    cue.service("api", concurrent=5, per="user")
    cue.service("disk", concurrent=5)

    @cue.task(uses=["api", "disk"], retry=runcue.Retry(max_attempts=2, base_delay=0.0))
    async def call(work: RunningWork) -> None:
        if work.params["user"] == "ann" and work.attempt == 1:
            raise OSError

    async with cue:
        await cue.submit_many({"task": "call", "params": {"user": user}} for user in ("ann", "ann", "bob"))
        await cue.join(timeout=BOUND)
        text = await metrics.scrape()
    assert numbers(text)["service_requests_total{api}"] == 5
    assert numbers(text)["service_requests_total{disk}"] == 5
    assert b"ann" not in text


async def test_gauges_are_how_the_queue_stands_now(cue: Cue) -> None:
    metrics = Metrics(cue)
    cue.service("api", concurrent=runcue.adaptive(min=1, start=2, max=9), circuit_threshold=3)
    go = asyncio.Event()

    @cue.task(uses="api")
    async def call(work: RunningWork) -> None:
        await go.wait()

    async with cue:
        await cue.submit_many([{"task": "call"}] * 5)
        await until(cue, "started", 2)
        said = numbers(await metrics.scrape())
        assert said["work_units_queued{call}"] == 3
        assert said["work_units_running{call}"] == 2
        assert said["service_running{api}"] == 2
        assert said["service_places{api}"] == 2
        assert said["circuit_breaker_open{api}"] == 0
        go.set()
        await cue.join(timeout=BOUND)
        said = numbers(await metrics.scrape())
    assert (
        said["work_units_queued{call}"]
        == said["work_units_running{call}"]
        == said["service_running{api}"]
        == 0
    )
    [api] = await cue.services()
    assert said["service_places{api}"] == api["concurrent"]


async def test_an_open_circuit_and_a_busy_far_side_are_seen(cue: Cue) -> None:
    metrics = Metrics(cue)
    cue.service("down", circuit_threshold=1, circuit_timeout=3600)
    cue.service("busy", rate="1000/s")

    @cue.task(uses="down")
    async def fall(work: RunningWork) -> None:
        raise OSError

    @cue.task(uses="busy")
    async def wait(work: RunningWork) -> None:
        raise runcue.RateLimited(3600)

    async with cue:
        await cue.submit(fall)
        await cue.submit(wait)
        await until(cue, "circuit_opened")
        await until(cue, "service_rate_limited")
        said = numbers(await metrics.scrape())
    assert said["circuit_breaker_open{down}"] == 1
    assert said["service_rate_limited_total{busy}"] == 1
    assert said["service_rate_limited_total{down}"] == 0


async def test_the_keys_of_a_service_are_added_up(cue: Cue) -> None:
    metrics = Metrics(cue)
    cue.service("api", concurrent=2, per="user", circuit_threshold=1, circuit_timeout=3600)
    cue.service("shared", concurrent=2, per="user", total=3)
    go = asyncio.Event()

    @cue.task(uses=["api", "shared"])
    async def call(work: RunningWork) -> None:
        if work.params["user"] == "cid":
            raise OSError
        await go.wait()

    async with cue:
        await cue.submit(call, params={"user": "cid"})
        await until(cue, "circuit_opened")
        await cue.submit_many({"task": "call", "params": {"user": user}} for user in ("ann", "ann", "bob"))
        await until(cue, "started", 4)
        said = numbers(await metrics.scrape())
        go.set()
    assert said["service_running{api}"] == said["service_running{shared}"] == 3
    assert said["service_places{api}"] == 6
    assert said["service_places{shared}"] == 3
    assert said["circuit_breaker_open{api}"] == 1


async def test_callbacks_are_timed_and_their_errors_counted(cue: Cue) -> None:
    metrics = Metrics(cue)
    cue.task("step")(no_op)

    @cue.is_ready
    async def is_ready(work: Work) -> bool:
        return True

    @cue.priority
    def priority(ctx: runcue.PriorityContext) -> float:
        raise LookupError

    @cue.on_start
    def on_start(work: Work) -> None:
        raise LookupError

    @cue.on_complete
    async def on_complete(work: Work, result: object, duration: float) -> None:
        await asyncio.sleep(0)

    async with cue:
        await cue.submit_many([{"task": "step"}] * 3)
        await cue.join(timeout=BOUND)
        await cue.stop()
        said = numbers(await metrics.scrape())
    assert said["callback_duration_seconds_count{on_complete}"] == 3
    for callback, errors in (("is_ready", 0), ("priority", 3), ("on_start", 3)):
        assert said[f"callback_duration_seconds_count{{{callback}}}"] >= 3, callback
        assert said.get(f"callback_errors_total{{{callback}}}", 0) >= errors, callback
    assert said["callback_errors_total{on_start}"] == 3
    assert "callback_errors_total{is_ready}" not in said


async def test_no_id_is_a_label(cue: Cue) -> None:
    metrics = Metrics(cue)

    @cue.task
    async def step(work: RunningWork) -> None: ...

    async with cue:
        ids = [await cue.submit(step), await cue.submit(step, id="mine", params={"secret": "canary"})]
        await cue.join(timeout=BOUND)
        text = (await metrics.scrape()).decode()
    assert not [one for one in (*ids, "canary") if one in text]


async def test_names_that_need_quoting_can_be_read_back(cue: Cue) -> None:
    metrics = Metrics(cue)
    name = 'a "b" \\c {d=e} ✓'
    cue.task(name)(no_op)
    async with cue:
        await cue.submit(name)
        await cue.join(timeout=BOUND)
        assert numbers(await metrics.scrape())[f"work_units_completed_total{{{name}}}"] == 1


async def test_what_schedules_submit_is_counted(cue: Cue) -> None:
    metrics = Metrics(cue)
    cue.task("step")(no_op)
    async with cue:
        await cue.schedule("nightly", "step", cron="0 3 * * *")
        await cue.run_now("nightly")
        await cue.run_now("nightly")
        await cue.join(timeout=BOUND)
        said = numbers(await metrics.scrape())
    assert said["schedule_fired_total{nightly}"] == 2
    assert said["schedule_skipped_total{nightly}"] == 0


async def test_every_metric_is_there_from_the_beginning(cue: Cue) -> None:
    text = Metrics(cue).text().decode()
    for name, (kind, _, told) in FAMILIES.items():
        shown = f"{name}_total" if kind == "counter" else name
        assert f"# HELP {shown} {told}\n# TYPE {shown} {kind}\n" in text


# who asks, and from where --------------------------------------------------------------------------------


async def test_asking_opens_nothing(cue: Cue) -> None:
    metrics = Metrics(cue)
    assert numbers(await metrics.scrape()) == numbers(metrics.text()) == {"queue_scrape_errors_total": 0}
    assert cue.loop is None


@contextlib.asynccontextmanager
async def one_waiting(cue: Cue) -> AsyncIterator[None]:
    """That Cue with one work that waits, and nothing that happens."""

    @cue.task
    async def step(work: RunningWork) -> None: ...

    async with cue:
        await cue.submit(step, delay=3600)
        yield


async def test_another_thread_gets_the_numbers_of_now(cue: Cue) -> None:
    metrics = Metrics(cue)
    async with one_waiting(cue):
        text = await asyncio.to_thread(metrics.text)
    assert numbers(text)["work_units_queued{step}"] == 1


async def test_another_loop_gets_the_numbers_of_now(cue: Cue) -> None:
    metrics = Metrics(cue)
    async with one_waiting(cue):
        text = await asyncio.to_thread(asyncio.run, metrics.scrape())
    assert numbers(text)["work_units_queued{step}"] == 1


async def test_on_its_own_loop_a_queue_in_memory_answers_at_once() -> None:
    cue = Cue()
    metrics = Metrics(cue)
    async with one_waiting(cue):
        assert numbers(metrics.text())["work_units_queued{step}"] == 1


async def test_on_its_own_loop_a_file_is_as_it_was_at_the_scrape_before(tmp_path: Path) -> None:
    cue = Cue(tmp_path / "queue.db")
    metrics = Metrics(cue)
    async with one_waiting(cue):
        assert "work_units_queued{step}" not in numbers(metrics.text())
        await asked_in_passing()
        assert numbers(metrics.text())["work_units_queued{step}"] == 1
        await asked_in_passing()
    await cue.close()
    assert numbers(metrics.text())["work_units_queued{step}"] == 1
    with pytest.raises(CueClosed):
        await asked_in_passing()
    with pytest.raises(CueClosed):
        metrics.text()


async def asked_in_passing() -> None:
    """What a scrape asked for the next one."""
    [asked] = [task for task in asyncio.all_tasks() if task.get_name() == "runcue metrics"]
    await asked


async def test_a_cue_that_is_closed_fails_no_registry(cue: Cue, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(cue, registry=registry)

    @cue.task
    async def step(work: RunningWork) -> None: ...

    async with cue:
        await cue.submit(step)
        await cue.join(timeout=BOUND)
    await cue.close()
    with pytest.raises(CueClosed):
        await metrics.scrape()
    said = numbers(await asyncio.to_thread(generate_latest, registry))
    assert said["work_units_completed_total{step}"] == 1
    assert said["queue_scrape_errors_total"] == 1
    assert "work_units_queued{step}" not in said
    assert "metrics without gauges: Cannot" in caplog.text


async def test_a_loop_that_does_not_answer_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANSWER_WITHIN", 0.01)
    cue = Cue()
    metrics = Metrics(cue)
    async with one_waiting(cue):
        with ThreadPoolExecutor() as threads:
            error = threads.submit(metrics.text).exception(BOUND)  # which holds the loop
    assert repr(error) == "TimeoutError('the event loop did not answer within 0.01 s')"


async def test_a_loop_that_ends_before_it_answers_fails_no_registry() -> None:
    class Stuck(Cue):
        async def tally(self) -> dict[str, dict[str, int]]:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    asked = asyncio.Event()
    cue = Stuck()
    registry = CollectorRegistry()
    Metrics(cue, registry=registry)
    async with one_waiting(cue):
        here = asyncio.all_tasks()
        scraped = asyncio.create_task(asyncio.to_thread(generate_latest, registry))
        await asked.wait()
        for task in asyncio.all_tasks() - here - {scraped}:  # as asyncio.run does at its end
            task.cancel()
        assert numbers(await scraped)["queue_scrape_errors_total"] == 1


def test_after_its_loop_ended_a_cue_is_as_it_was_last_seen() -> None:
    cue = Cue()
    metrics = Metrics(cue)

    async def main() -> None:
        async with one_waiting(cue):
            await metrics.scrape()

    asyncio.run(main())
    assert numbers(metrics.text())["work_units_queued{step}"] == 1


async def test_an_error_that_no_further_scrape_asks_for_is_no_alarm(tmp_path: Path) -> None:
    alarms: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, alarm: alarms.append(alarm))
    cue = Cue(tmp_path / "queue.db")
    metrics = Metrics(cue)
    async with one_waiting(cue):
        pass
    await cue.close()
    metrics.text()
    await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "runcue metrics"])
    del metrics, cue
    gc.collect()
    assert alarms == []


def test_much_waiting_work_is_not_counted_for_every_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FEW", 4)
    monkeypatch.setattr(sources, "REST", 1e9)

    class Fake:
        asked = 0
        waiting = 4

        def services(self) -> list[dict[str, object]]:
            return []

        def schedules(self) -> list[runcue.ScheduleInfo]:
            return []

        def count(self) -> dict[runcue.WorkState, int]:
            return dict.fromkeys(runcue.WorkState, 0)

        def tally(self) -> dict[str, dict[str, int]]:
            self.asked += 1
            return {"pending": {"step": self.waiting}, "running": {}}

    fake = Fake()
    metrics = Metrics(fake)
    assert [numbers(metrics.text())["work_units_queued{step}"] for _ in range(2)] == [4, 4]
    assert fake.asked == 2
    fake.waiting = 5
    assert [numbers(metrics.text())["work_units_queued{step}"] for _ in range(3)] == [5, 5, 5]
    assert fake.asked == 3


# a queue in a file -----------------------------------------------------------------------------------------


async def test_a_reader_tells_what_the_file_tells(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    cue = Cue(path)
    cue.service("api", concurrent=3, circuit_threshold=1, circuit_timeout=3600)

    @cue.task
    async def good(work: RunningWork) -> None: ...

    @cue.task(uses="api")
    async def bad(work: RunningWork) -> None:
        raise OSError

    async with cue:
        await cue.submit_many([{"task": "good"}, {"task": "good"}, {"task": "bad"}])
        await cue.join(timeout=BOUND)
        await cue.submit(good, delay=3600)
        await cue.schedule("nightly", "good", cron="0 3 * * *")
    await cue.close()
    before = path.read_bytes()
    with Reader(path) as reader:
        metrics = Metrics(reader, prefix="runcue_")
        said = numbers(metrics.text())
        assert said == numbers(await metrics.scrape())
    assert said == {
        "runcue_work_units_queued{good}": 1,
        "runcue_work_units_running{good}": 0,
        "runcue_work_units_completed_total": 2,
        "runcue_work_units_failed_total": 1,
        "runcue_service_running{api}": 0,
        "runcue_service_places{api}": 3,
        "runcue_circuit_breaker_open{api}": 1,
        "runcue_schedule_fired_total{nightly}": 0,
        "runcue_schedule_skipped_total{nightly}": 0,
        "runcue_queue_scrape_errors_total": 0,
    }
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_read_fails_no_registry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "queue.db"

    async def make() -> None:
        async with Cue(path) as cue:
            await cue.count()
        await cue.close()

    asyncio.run(make())
    with Reader(path) as reader:
        registry = CollectorRegistry()
        metrics = Metrics(reader, registry=registry)
        path.write_bytes(b"no queue at all" * 1000)
        with pytest.raises(runcue.StoreError):
            metrics.text()
        assert numbers(generate_latest(registry)) == {"queue_scrape_errors_total": 1}
    assert "metrics without gauges" in caplog.text


# registries, names, and what it costs ------------------------------------------------------------------------


async def test_a_registry_of_the_application_shows_them(cue: Cue) -> None:
    registry = CollectorRegistry(auto_describe=True)
    one = Metrics(cue, "one_", registry)
    Metrics(Cue(), "two_", registry)
    async with one_waiting(cue):
        await one.scrape()
        said = numbers(await asyncio.to_thread(generate_latest, registry))
    assert said["one_work_units_queued{step}"] == 1
    assert said["two_queue_scrape_errors_total"] == 0


def test_two_queues_of_one_name_in_a_registry_are_refused_and_change_nothing() -> None:
    registry = CollectorRegistry()
    Metrics(Cue(), registry=registry)
    shown = generate_latest(registry)
    watched: list[object] = []

    class Seen(Cue):
        def observe(self, observer: Observer) -> Callable[[], None]:
            watched.append(observer)
            return watched.clear

    with pytest.raises(ConfigError, match=r"(?s)Duplicated.*One registry holds one queue for each prefix\."):
        Metrics(Seen(), registry=registry)
    assert watched == []
    assert generate_latest(registry) == shown


async def test_after_close_nothing_is_counted_and_the_registry_is_free(cue: Cue) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(cue, registry=registry)

    @cue.task
    async def step(work: RunningWork) -> None: ...

    async with cue:
        await cue.submit(step)
        await cue.join(timeout=BOUND)
        metrics.close()
        metrics.close()
        await cue.submit(step)
        await cue.join(timeout=BOUND)
        assert numbers(await metrics.scrape())["work_units_completed_total{step}"] == 1
    assert generate_latest(registry) == b""
    Metrics(cue, registry=registry)


@pytest.mark.parametrize("prefix", ["my-", "1", "a b", "ä_", "{"])
def test_a_prefix_that_prometheus_would_refuse_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="The prefix of metrics is like 'runcue_', not "):
        Metrics(Cue(), prefix)


def test_only_a_cue_or_a_reader_has_metrics() -> None:
    with pytest.raises(ConfigError, match="Metrics are taken of a Cue or a Reader, not of 'queue'"):
        Metrics("queue")  # type: ignore[arg-type]  # (that is the mistake)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError) as caught:
        Metrics(Cue())
    assert str(caught.value) == 'Metrics need prometheus-client: pip install "runcue[metrics]"'


def test_who_asks_for_no_metrics_loads_nothing_for_them() -> None:
    code = """
import asyncio, runcue
cue = runcue.Cue()
@cue.task
async def step(work): ...
async def main():
    async with cue:
        await cue.submit(step)
        await cue.join()
asyncio.run(main())
"""
    loaded = modules_after(code)
    assert not loaded & {
        "prometheus_client",
        "opentelemetry",
        "runcue.instrument.counters",
        "runcue.host.masking",
    }
