"""The public API as a type checker sees it. Never run: checkers read it, and every call here has to be right.

What is wrong, and has to be refused, is in wrong.py. `make typing` asks several checkers about the built wheel.

`assert_type` says what a user gets back; tests/test_public_api.py checks that nothing public is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, TextIO, assert_type

import runcue
import runcue.models
import runcue.testing

assert_type(runcue.__version__, str)

cue = runcue.Cue()
runcue.Cue(
    Path(":memory:"), pool_size=4, lease=30, retention="7d", service_log_retention=86400, durability="full"
)
runcue.Cue(
    ":memory:", max_queued=100, reject_policy="block", block_timeout="5s", age_step=None, insecure=True
)

# services and tasks

cue.service("api", rate="60/min", concurrent=5, circuit_threshold=5, circuit_timeout=timedelta(minutes=5))
cue.service("old", rate_limit=(60, 60), max_concurrent=5)
cue.service(
    "llm", rate="500/min", tokens="200k/min", usd=["5/h", (50, 86400)], concurrent=runcue.adaptive(max=50)
)
cue.service("hosts", concurrent=2, per="host", total={"concurrent": 20, "rate": "100/min"})
cue.service("users", rate="5/s", per=lambda work: str(work.params["user"]), total=50)
cue.service("several", rate=["10/s", "1000/h"])


@cue.task
async def bare(work: runcue.Work) -> int:
    return work.attempt


@cue.task("named", uses=["api", "old"], retry=3, timeout="90s")
def named(work: runcue.RunningWork) -> str:
    work.progress(0.5, "half way")
    assert_type(work.cancelled, bool)
    assert_type(work.service, str | None)
    raise runcue.RateLimited(retry_after=12, service="api")


@cue.task(uses="llm", cost=lambda work: {"tokens": len(work.params["prompt"])})
async def dear(work: runcue.RunningWork) -> None:
    work.charge(tokens=500, usd=0.01)
    work.observe({"x-ratelimit-remaining": "5"}, service="llm")


@cue.task(uses="ssh_*", cost={"tokens": 5})
async def anywhere(work: runcue.Work) -> None: ...


@cue.task(name="by keyword", timeout=5)
async def by_keyword(work: runcue.Work) -> None: ...


@cue.task(
    retry=runcue.Retry(max_attempts=3, backoff="linear", base_delay="1s", retry_on=[OSError]),
    retry_delay=lambda work: "5m",
)
async def tuned(work: runcue.Work) -> None:
    if work.params:
        raise runcue.RetryLater(after=30)
    if work.target:
        raise runcue.Snooze(timedelta(seconds=30))
    raise runcue.Permanent("no use")


@cue.task(inputs="pages/{page}.png", outputs=[Path("text/{page}.txt"), "index"], max_age="24h")
def with_files(work: runcue.Work) -> None:
    with runcue.write_output("text/1.txt") as text:
        assert_type(text, TextIO)
    with runcue.write_output(Path("text/1.bin"), "wb") as binary:
        assert_type(binary, BinaryIO)


@cue.task(inputs=lambda work: Path("pages") / work.id, outputs=lambda work: ["a", "b"])
def with_functions(work: runcue.Work) -> None: ...


@cue.task(executor="subprocess", shell=True)
def with_command(work: runcue.Work) -> runcue.Command:
    return runcue.Command("make", shell=True, check=False, cwd=Path("src"), env={"A": "1"})


async def are_functions_still(work: runcue.RunningWork) -> None:
    assert_type(await bare(work), int)
    assert_type(named(work), str)
    assert_type(with_command(work).shell, bool | None)


@cue.every("5m", jitter="10s", name="sweeping")
async def sweep(limit: int = 10) -> int:
    return limit


@cue.cron("0 3 * * 1-5", tz="Europe/Zurich", missed="all", params={"page": 1})
@cue.task(retry=3)
def nightly(page: int) -> str:
    return str(page)


assert_type(cue.get_task("named").name, str)
assert_type(cue.get_task("named").services, tuple[str, ...])

# callbacks


@cue.is_ready
def is_ready(work: runcue.Work) -> bool:
    return Path(work.params["input"]).exists()


@cue.is_stale
async def is_stale(work: runcue.Work) -> bool:
    return work.target is None


@cue.priority
def priority(ctx: runcue.PriorityContext) -> float:
    assert_type(ctx.work, runcue.Work)
    assert_type(ctx.service_pressure, dict[str, float])
    return 0.5 + min(ctx.wait_time / 3600, 0.4) - ctx.queue_depth * 1e-9


@cue.dependency_satisfied
def dependency_satisfied(work_id: str) -> bool:
    return bool(work_id)


@cue.on_start
def on_start(work: runcue.Work) -> None: ...


@cue.on_complete
async def on_complete(work: runcue.Work, result: Any, duration: float) -> None: ...


@cue.on_failure
def on_failure(work: runcue.Work, error: Exception, will_retry: bool) -> None: ...


@cue.on_skip
def on_skip(work: runcue.Work) -> None: ...


@cue.on_cancel
def on_cancel(work: runcue.Work) -> None: ...


@cue.on_backpressure
def on_backpressure(depth: int, limit: int) -> None: ...


@cue.on_pending_warning
def on_pending_warning(work: runcue.Work, seconds: float) -> None: ...


@cue.on_group_done
def on_group_done(group: str, counts: dict[str, int]) -> None: ...


@cue.on_stall_warning
def on_stall_warning(seconds: float, pending: int) -> None: ...


assert_type(on_skip(runcue.Work(id="a", task="named", params={"page": 1})), None)
assert_type(is_ready(runcue.WorkUnit(id="a", task="named")), bool)
cue.priority(runcue.priority_by_wait_time)
cue.priority(runcue.priority_constant(0.5))
cue.dependency_satisfied(runcue.dependency_check_file("done/{id}.json", base=Path("out")))
cue.dependency_satisfied(runcue.dependency_check_db("results", "work_id", database="results.db"))


# tasks as functions


class Database:
    """What handlers share."""


@dataclass
class Page:
    """Params."""

    number: int


@cue.resource
async def database() -> AsyncIterator[Database]:
    yield Database()


@cue.task(uses="llm", retry=3)
async def summarize(page: int, style: str = "short") -> bytes:
    return f"{page} {style}".encode()


@cue.task
def sizes(work: runcue.RunningWork, parts: list[bytes]) -> tuple[int, ...]:
    assert_type(runcue.current(), runcue.RunningWork)
    return tuple(map(len, parts))


HANDED_IN: Any = None


@cue.task
async def stored(page: int, db: Database = HANDED_IN) -> str:
    return f"{page} {db}"


async def method_of(page: int) -> float:
    return page / 2


async def call_them() -> None:
    unit = await summarize.submit(page=3)
    assert_type(unit, runcue.Handle[bytes])
    assert_type(await unit.result(timeout="5s"), bytes)
    assert_type(await unit.wait(), runcue.Work)
    assert_type(await unit.get(), runcue.Work | None)
    assert_type(await unit.cancel(cascade=True), bool)
    assert_type(await unit.explain(), runcue.Explanation)
    assert_type(unit.is_duplicate, bool)
    assert_type(await cue.get(unit), runcue.Work | None)
    assert_type(await summarize(3), bytes)
    assert_type(await (await stored.submit(page=3)).result(), str)
    urgent = summarize.options(priority=5, idempotency_key="p3")
    assert_type(await (await urgent.submit(3, style="long")).result(), bytes)
    assert_type(await summarize.submit_many([{"page": 1}]), list[runcue.Handle[bytes]])
    first = summarize.unit(page=1)
    assert_type(first, runcue.Unit[bytes])
    assert_type(runcue.output(first), bytes)
    assert_type(runcue.output(unit), bytes)
    both = await cue.submit_many([first, summarize.unit(page=2)])
    assert_type(both, list[runcue.Handle[bytes]])
    last = await sizes.submit(parts=[runcue.output(first), runcue.output(unit)])
    assert_type(await last.result(), tuple[int, ...])
    assert_type(await cue.submit(first), runcue.Handle[bytes])
    assert_type(await cue.submit(sizes, params={"parts": []}), runcue.Handle[tuple[int, ...]])
    assert_type(await cue.submit(method_of, params={"page": 3}), runcue.Handle[float])
    await cue.submit("named", params=Page(number=3))
    assert_type(await cue.results([unit, last], "1m", errors="return"), list[Any])
    async for work in summarize.map([1, 2], key="page"):
        assert_type(work, runcue.Work)
    assert_type(cue.get_task("summarize").schema, dict[str, Any])
    assert_type(runcue.map(method_of, [1]), list[float])


async def any_task(task: runcue.TaskFunction[[int], bytes]) -> runcue.Handle[bytes]:
    return await task.submit(3)


async def work_with_it() -> None:
    assert_type(await cue.submit("named"), runcue.Handle[Any])
    assert_type(
        await cue.submit(
            bare,
            params={"page": 1},
            target=Path("page.png"),
            queue="night",
            depends_on=["other"],
            timeout="90s",
            dependency_timeout=timedelta(hours=1),
            idempotency_key="page-1",
            on_failed="return",
            id="page-1",
            priority=2.5,
            run_at=datetime.now(UTC),
        ),
        runcue.Handle[int],
    )
    await cue.submit(task_type="named", delay="5m", retry=runcue.Retry(5, "power", 2, jitter=False))
    assert_type(
        await cue.submit_many([{"task": "named"}, {"task": "bare", "params": {}}]), list[runcue.Handle[Any]]
    )
    assert_type(await cue.get("a"), runcue.Work | None)
    assert_type(await cue.list(state=runcue.WorkState.FAILED, task="named", limit=5), list[runcue.Work])
    assert_type(await cue.list(state="queued"), list[runcue.Work])
    assert_type(await cue.dead(), list[runcue.Work])
    assert_type(await cue.count(), dict[runcue.WorkState, int])
    assert_type(await cue.cancel("a", cascade=True), bool)
    assert_type(await cue.retry("a", cascade=True), bool)
    assert_type(await cue.edit("a", params={"page": 2}, priority=3), None)
    await cue.submit(
        "named", unique=runcue.Unique(by=["page"], within="10m", on_conflict="replace"), expires="2h"
    )
    runcue.Unique(
        by=lambda params: params["page"], while_active=True, on_conflict="extend", at_most=timedelta(hours=1)
    )
    assert_type(await cue.cancel(group="g", tags={"run": "nightly"}, state="pending"), int)
    assert_type(await cue.retry(task="named", since=0, until=9.5, key="k"), int)
    assert_type(await cue.purge("a"), bool)
    assert_type(await cue.purge_dead("named"), int)
    assert_type(await cue.wait("a", timeout="1m"), runcue.Work)
    assert_type(await cue.result("a", timeout=60), Any)
    await cue.join(["a", "b"], timeout=60)
    await cue.join("a")


async def run_it() -> None:
    cue.start()
    cue.start(queues=["night"])
    await cue.stop(timeout=5)
    await cue.close()
    async with cue as same:
        assert_type(same, runcue.Cue)
    assert_type(cue.loop, asyncio.AbstractEventLoop | None)
    assert_type(cue.path, str | None)


async def look_at_it(work: runcue.Work) -> None:
    events = cue.events(types=["completed", "failed"], since=10)
    assert_type(events, AsyncIterator[runcue.Event])
    async for event in events:
        assert_type(event.name, str)
        assert_type(event.work_id, str | None)
        assert_type(event.final, bool)
    explanation = await cue.explain("a")
    assert_type(explanation, runcue.Explanation)
    assert_type(explanation.until, float | None)
    forecast = await cue.forecast()
    assert_type(forecast, runcue.Forecast)
    assert_type(forecast.seconds, float | None)
    async with runcue.progress(cue, total=3):
        async for done in cue.map("named", [{"page": 1}], key="page", window=100):
            assert_type(done, runcue.Work)
    assert_type(runcue.map(str, [1, 2], rate="60/min", errors="return"), list[Any])
    assert_type(await cue.debug_blocked(), list[dict[str, Any]])
    assert_type(await cue.services(), list[dict[str, Any]])
    await cue.pause("api")
    await cue.resume("api")
    await cue.set_config({"key": "text", "other": None})
    await cue.set_limits("api", rate="30/min", concurrent=None, circuit_timeout="1m", tokens="200k/min")
    await cue.set_limits("api", concurrent=runcue.adaptive(max=9), tokens=None)
    assert_type(await cue.paused(), list[str])
    assert_type(await cue.now(), float)
    assert_type(await cue.last_event(), int)
    assert_type(await cue.tally(), dict[str, dict[str, int]])
    cue.wake()
    await cue.relay(object, table="outbox", every="5s")
    assert_type(await cue.dependents("a", limit=5), list[runcue.Work])
    assert_type(await cue.explain_many(["a"]), dict[str, runcue.Explanation])
    assert_type(await cue.schedules(), list[runcue.ScheduleInfo])
    await cue.schedule("nightly", "extract", cron="0 3 * * *", tz="UTC", params={"page": 3}, overlap="queue")
    assert_type(await cue.run_now("nightly"), runcue.Handle[Any])
    try:
        await cue.schedules.pause("nightly")
        await cue.schedules.resume("nightly")
    except runcue.UnknownSchedule as missing:
        assert_type(missing.known, tuple[str, ...])
    except runcue.ScheduleConflict as taken:
        assert_type(taken.source, str | None)
    assert_type(await cue.unschedule("nightly"), bool)
    group = cue.group("g")
    assert_type(group, runcue.Group)
    assert_type(await group.counts(), dict[runcue.WorkState, int])
    assert_type(await group.progress(), runcue.GroupCounts)
    assert_type(await group.wait(timeout="1h"), runcue.GroupCounts)
    assert_type(await group.results(), dict[str, Any])
    assert_type(await group.list("failed"), list[runcue.Work])
    assert_type(await group.cancel(), int)
    assert_type(await group.retry(), int)
    assert_type(await cue.count(tags={"run": "nightly"}), dict[runcue.WorkState, int])
    cue.events("completed", work="a", group="g")
    try:
        await group.wait()
    except runcue.GroupNotFound as error:
        assert_type(error.name, object)
    assert_type(await cue.list(queue="night", service="api", search="x", before="a"), list[runcue.Work])
    assert_type(await runcue.Metrics(cue).scrape(), bytes)
    assert_type(await cue.get_config(), dict[str, str])
    assert_type(work.state, runcue.WorkState)
    assert_type(work.state.is_final, bool)
    assert_type(work.params, dict[str, Any])
    assert_type(work.progress.fraction, float | None)
    assert_type(work.progress.text, str | None)
    assert_type(work.history, tuple[runcue.Attempt, ...])
    assert_type(runcue.models.WorkUnit(id="a", task="b").last_error, str | None)


def in_another_thread() -> None:
    assert_type(cue.sync.submit("named", params={"page": 1}), str)
    assert_type(cue.sync.submit(task_type="named", delay="5m"), str)
    assert_type(cue.sync.submit(summarize.unit(page=3)), str)
    assert_type(cue.sync.get("a"), runcue.Work | None)
    assert_type(cue.sync.cancel("a"), bool)
    assert_type(cue.sync.edit("a", priority=2), None)
    assert_type(cue.sync.group("g").wait(timeout=5), runcue.GroupCounts)
    assert_type(cue.sync.group("g").cancel(), int)
    assert_type(cue.sync.wait("a", timeout=5), runcue.Work)
    assert_type(cue.sync.result("a"), Any)


def submit_from_outside() -> None:
    with runcue.Client("queue.db", insecure=True) as client:
        assert_type(client, runcue.Client)
        assert_type(client.submit("named", params={"page": 1}, connection=None), str)
        assert_type(client.submit_many([{"task": "named"}]), list[str])
        assert_type(client.get("a"), runcue.Work | None)
        assert_type(client.list("failed", limit=10), list[runcue.Work])
        assert_type(client.status(), dict[runcue.WorkState, int])
        assert_type(client.wait("a", timeout="5s"), runcue.Work)
        assert_type(client.result("a"), Any)
        assert_type(client.results(["a"], errors="return"), list[Any])
        client.cancel("a", cascade=True)
        client.retry("a")
        outbox = runcue.Outbox(object(), table="outbox")
        outbox.create()
        assert_type(outbox.submit("named", params={"page": 1}), str)
        outbox.cancel("a", cascade=True)
        outbox.retry("a")
        assert_type(client.relay(object(), table="outbox"), int)
        client.grant("web", tables=True)
    assert_type(runcue.postgres_schema("mail", after=3), str)


def look_from_outside() -> None:
    with runcue.Reader("queue.db", lease="30s", insecure=True) as reader:
        assert_type(reader, runcue.Reader)
        assert_type(reader.get("a"), runcue.Work | None)
        assert_type(reader.list(state="failed", task="named", limit=10), list[runcue.Work])
        assert_type(reader.dead(), list[runcue.Work])
        assert_type(reader.count(), dict[runcue.WorkState, int])
        assert_type(reader.explain("a"), runcue.Explanation)
        assert_type(reader.events("completed", since=10), Iterator[runcue.Event])
        assert_type(reader.services(), list[dict[str, Any]])
        assert_type(reader.workers(), list[dict[str, Any]])
        assert_type(reader.jobs("dead", queue="night", ids=["a"], limit=5), list[dict[str, Any]])
        assert_type(reader.job_counts(), dict[str, int])
        assert_type(reader.explain_many(["a"]), dict[str, runcue.Explanation])
        assert_type(reader.output("a", "stderr", attempt=1, start=10, limit=100).data, bytes)
        assert_type(reader.paused(), list[str])
        assert_type(reader.last_event(), int)
        assert_type(reader.tally(), dict[str, dict[str, int]])
        assert_type(reader.group("g"), runcue.GroupCounts)
        assert_type(reader.groups(limit=5), dict[str, runcue.GroupCounts])
        assert_type(reader.list("failed", tags={"run": "nightly"}), list[runcue.Work])
        assert_type(reader.dependents("a", limit=5), list[runcue.Work])
        assert_type(runcue.Metrics(reader, prefix="runcue_").text(), bytes)
        assert_type(reader.config(), dict[str, str])
        assert_type(reader.now(), float)
        assert_type(reader.health(), dict[str, Any])
    reader.close()


@cue.around
@contextmanager
def timed(work: runcue.Work) -> Generator[None]:
    yield


class Heard:
    def heard(self, plan: object) -> None: ...
    def called(self, callback: str, seconds: float) -> None: ...
    def complained(self, callback: str) -> None: ...


assert_type(cue.observe(Heard()), Callable[[], None])
runcue.trace(cue)
logging.StreamHandler().setFormatter(runcue.JsonFormatter())
assert_type(runcue.mask({"password": "x"}), Any)


async def on_virtual_time() -> float:
    await runcue.testing.settle()
    return asyncio.get_running_loop().time()


assert_type(runcue.testing.run(on_virtual_time()), float)


def mend() -> None:
    rescue = runcue.recover("queue.db", force=True)
    assert_type(rescue, runcue.Rescue)
    assert_type(rescue.tables, dict[str, int])


def mistakes(error: BaseException) -> Callable[[], object] | str:
    match error:
        case runcue.UnknownTask() | runcue.UnknownService() | runcue.UnknownOption():
            return str(error.name)
        case runcue.InvalidRate() | runcue.InvalidOption():
            return error.given
        case runcue.InvalidParams():
            return error.path
        case runcue.QueueFull():
            return f"{error.pending} of {error.limit}"
        case runcue.DependencyCycle():
            return " → ".join(error.cycle)
        case runcue.DuplicateWork():
            return error.work_id
        case runcue.CueClosed():
            return error.action
        case runcue.WorkNotFound():
            return str(error.forgotten)
        case runcue.WorkNotEditable():
            return error.state
        case runcue.WorkTimedOut() | runcue.WorkExpired() | runcue.WorkFailed() | runcue.WorkCancelled():
            return error.work.id
        case (
            runcue.StorageBusy()
            | runcue.StorageCorrupt()
            | runcue.StorageFull()
            | runcue.StorageInsecure()
            | runcue.StorageReplaced()
            | runcue.SchemaTooNew()
            | runcue.ForkedConnection()
        ):
            return error.store or ""
        case runcue.StoreError():
            return error.store or ""
        case runcue.CommandFailed():
            assert_type(error.result, dict[str, Any] | None)
            return error.reason
        case runcue.BadCommand() | runcue.Unreachable() | runcue.WorkerLost():
            return str(error)
        case runcue.ResourceFailed():
            return error.name
        case runcue.WrongResult():
            return error.work_id
        case runcue.ConfigError() | runcue.SubmitError() | runcue.WrongThread() | runcue.RuncueError():
            return str(error)
        case _:
            return lambda: None
