"""Random traces of public calls, and what becomes of them on virtual time: the same on every store."""

import asyncio
import inspect
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple
from zlib import crc32

import pytest

import runcue
from runcue.api import wiring
from runcue.testing import VirtualLoop, run

Step = tuple[float, str, dict[str, Any]]
HORIZON = 400.0
"""Virtual seconds after the last call: retries, windows and circuits come to rest meanwhile."""


TRAITS = frozenset({
    "callbacks", "dependency_timeout", "pending_timeout", "stall_timeout", "drop_oldest", "unique", "expires", "edit",
})  # fmt: skip
"""What a trace may have besides the everyday."""


class Trace(NamedTuple):
    """The options of a Cue, and the calls of its program with the seconds before each."""

    options: dict[str, Any]
    steps: list[Step]
    has_callbacks: bool = False


class Seen(NamedTuple):
    """What a program saw."""

    answers: list[Any]
    works: list[runcue.Work]
    events: list[tuple[Any, ...]]
    counts: dict[str, int]
    services: list[dict[str, Any]]


# --- Making one -----------------------------------------------------------------------------------


def options(random: Random, traits: frozenset[str]) -> dict[str, Any]:
    """The options of a Cue, mostly none."""
    chosen: dict[str, Any] = {}
    if random.random() < 0.4:
        chosen["max_queued"] = random.randint(3, 12)
    if "max_queued" in chosen and random.random() < 0.5 and "drop_oldest" in traits:
        chosen["reject_policy"] = "drop_oldest"
    if random.random() < 0.2:
        chosen["age_step"] = None
    if random.random() < 0.2 and "pending_timeout" in traits:
        chosen["pending_timeout"] = random.choice([20, 60])
    if random.random() < 0.2 and "stall_timeout" in traits:
        chosen["stall_timeout"] = random.choice([15, 50])
    return chosen


def item(random: Random, number: int, known: list[str], traits: frozenset[str]) -> dict[str, Any]:
    """The arguments of one submission; ids that were or will be given are in `known`."""
    task = random.choice(["call", "call", "save", "flaky", "slow", "note", "late"])
    params: dict[str, Any] = {"sleep": random.choice([0, 0.5, 1.5, 3])}
    if random.random() < 0.5:
        params |= {
            "fails": random.randint(1, 3),
            "kind": random.choice(["error", "error", "permanent", "snooze", "throttle", "later"]),
        }
    given: dict[str, Any] = {"task": task, "params": params}
    if random.random() < 0.6:
        given["id"] = f"w{number}"
    if random.random() < 0.3:
        given["depends_on"] = random.sample(known, min(len(known), random.randint(1, 3)))
        if random.random() < 0.3 and "dependency_timeout" in traits:
            given["dependency_timeout"] = random.choice([2, 30])
    if random.random() < 0.25:
        given["priority"] = random.choice([-1, 1, 2.5])
    if random.random() < 0.1:
        given["delay"] = random.choice([1, 7.5])
    if random.random() < 0.1:
        given["run_at"] = 1_700_000_000 + random.randint(1, 120)
    if random.random() < 0.15:
        given["idempotency_key"] = f"k{random.randint(1, 3)}"
        given["on_failed"] = random.choice(["resubmit", "return", "reject"])
    if random.random() < 0.15:
        given["timeout"] = random.choice([0.25, 2])
    if random.random() < 0.15:
        given["queue"] = random.choice(["default", "side"])
    return given


def refined(given: dict[str, Any], more: Random, traits: frozenset[str]) -> dict[str, Any]:
    """A submission with what makes it the duplicate of another, and with a time in which it has to start."""
    if more.random() < 0.25 and "unique" in traits and "idempotency_key" not in given:
        on_conflict: Any = more.choice(["return", "raise", "replace", "replace", "extend", "extend"])
        how: dict[str, Any] = more.choice([{"within": 4}, {"within": 30}, {"while_active": True}])
        if on_conflict == "extend":
            how = {**how, "at_most": 10}
            given = {**given, "delay": more.choice([1, 4])}
            given.pop("run_at", None)
        given = {**given, "unique": runcue.Unique(by=["sleep"], on_conflict=on_conflict, **how)}
    if more.random() < 0.15 and "expires" in traits:
        given = {**given, "expires": more.choice([2, 10, 25])}
    return given


def edit(recent: list[str], more: Random) -> Step:
    """The edit of one of these."""
    arguments: dict[str, Any] = {"work_id": more.choice(recent)}
    if more.random() < 0.7:
        arguments["params"] = {"sleep": more.choice([0, 0.5, 3])}
    if more.random() < 0.5:
        arguments["priority"] = more.choice([-2, 2])
    return more.uniform(0.01, 0.5), "edit", arguments


def make(seed: int, length: int = 40, traits: frozenset[str] = TRAITS) -> Trace:
    """The trace of that number."""
    random, more = Random(seed), Random(f"{seed} more")
    known = [f"w{number}" for number in range(1, 3 * length)]
    numbers = iter(range(1, 10**6))
    steps: list[Step] = []
    for _ in range(length):
        recent = known[: max(3, min(len(known), next(numbers) + 2))]
        name = random.choices(
            ["submit", "submit_many", "cancel", "retry", "pause", "resume", "service"],
            [50, 12, 12, 12, 3, 5, 4],
        )[0]
        arguments: dict[str, Any] = {}
        if name == "submit":
            arguments = refined(item(random, next(numbers), recent, traits), more, traits)
        elif name == "submit_many":
            batch = [item(random, next(numbers), recent, traits) for _ in range(random.randint(1, 8))]
            arguments = {"items": [refined(one, more, traits) for one in batch]}
        elif name in ("cancel", "retry"):
            arguments = {"work_id": random.choice(recent), "cascade": random.random() < 0.3}
        elif name in ("pause", "resume"):
            arguments = {"name": random.choice(["api", "db", "side", "default"])}
        else:
            arguments = {
                "name": "api",
                "concurrent": random.randint(1, 4),
                "rate": random.choice(["3/10s", "9/20s"]),
            }
        steps.append((random.uniform(0.01, 2.5), name, arguments))
        if more.random() < 0.15 and "edit" in traits:
            steps.append(edit(recent, more))
    steps += [(0.5, "resume", {"name": name}) for name in ("api", "db", "side", "default")]
    has_callbacks = random.random() < 0.3 and "callbacks" in traits
    return Trace(options(random, traits), steps, has_callbacks)


# --- Running one ----------------------------------------------------------------------------------


def program(target: Path | str | None, trace: Trace) -> runcue.Cue:
    """A Cue whose handlers do what their params say, and whose callbacks go by the id."""
    cue = runcue.Cue(target, **trace.options)
    cue.service("api", rate="5/10s", concurrent=2)
    cue.service("db", concurrent=1)
    cue.service("flaky", circuit_threshold=2, circuit_timeout=20)

    put_off: Counter[str] = Counter()

    async def handle(work: runcue.Work) -> Any:
        work.progress(work.params["sleep"] / 4, f"attempt {work.attempt}")
        await asyncio.sleep(work.params["sleep"])
        if work.params.get("fails", 0) >= work.attempt:
            kind = work.params["kind"]
            if kind == "permanent":
                raise runcue.Permanent("never")
            if kind == "later":
                raise runcue.RetryLater(2.5)
            if kind == "error":
                raise ConnectionError(f"attempt {work.attempt}")
            put_off[work.id] += 1  # these two count no attempt
            if put_off[work.id] < 3:
                raise runcue.Snooze(1.25) if kind == "snooze" else runcue.RateLimited(2)
        return {"of": work.id, "attempt": work.attempt}

    cue.task("call", uses="api", retry=3)(handle)
    cue.task("save", uses=["api", "db"], retry=2)(handle)
    cue.task("flaky", uses="flaky", retry=2)(handle)
    cue.task("slow", uses="db", timeout=2)(handle)
    cue.task("note")(handle)
    cue.task("late", uses=lambda work: "db" if work.params["sleep"] > 1 else "api")(handle)
    if trace.has_callbacks:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        cue.is_ready(lambda work: loop.now() >= work.created_at + crc32(work.id.encode()) % 4)
        cue.is_stale(lambda work: crc32(work.id.encode()) % 5 != 0)
        cue.priority(lambda ctx: crc32(ctx.work.id.encode()) % 10 / 10)
        cue.dependency_satisfied(lambda work_id: crc32(work_id.encode()) % 3 != 0)
    return cue


async def play(trace: Trace, target: Path | str | None) -> Seen:
    """Make these calls, wait until nothing moves any more, and tell what was seen."""
    cue = program(target, trace)
    answers: list[Any] = []
    async with cue:
        for pause, name, arguments in trace.steps:
            await asyncio.sleep(pause)
            answers.append(await _answer(cue, name, arguments))
        await asyncio.sleep(HORIZON)
        counts = {state.value: amount for state, amount in (await cue.count()).items()}
        works = await cue.list(limit=10_000)
        services = await cue.services()
    events = [
        (
            event.at,
            event.type,
            event.work_id,
            event.attempt,
            event.error,
            event.result,
            event.final,
            event.duration,
        )
        async for event in cue.events()
        # Which turn of one moment takes a report in is left open; what was reported last is in the works.
        if event.type != "progress"
    ]
    await cue.close()
    return Seen(answers, works, events, counts, services)


async def _answer(cue: runcue.Cue, name: str, arguments: dict[str, Any]) -> Any:
    try:
        answer = getattr(cue, name)(**arguments)
        return await answer if inspect.isawaitable(answer) else answer
    except (runcue.RuncueError, TimeoutError) as error:
        return type(error).__name__, str(error)


def played(trace: Trace, target: Path | str | None, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The same with ids that do not change from run to run: jitter is made from them."""
    monkeypatch.setattr(wiring, "secrets", SimpleNamespace(token_hex=lambda size: "00" * size))
    return run(play(trace, target), limit=10_000, max_idle_real=5.0)
