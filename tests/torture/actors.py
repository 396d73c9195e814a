"""What the processes of a round do: workers, submitters, and the one that drains the queue in the end.

They use the public API alone, and write down what they see: a submitter each call and its answer, a worker each
start and end of a handler. A work's `params` say what its handler shall do and carry the `tag` it is known by.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import msgspec

import runcue
from runcue.host.system import processes
from tests.torture.history import Log, now
from tests.torture.seen import Circuit, Limits, Policy, Rate, Service

Role = Literal["worker", "submitter", "drain"]

BASE_DELAY: Final = 0.06
RETRY: Final = runcue.Retry(max_attempts=3, backoff="fixed", base_delay=BASE_DELAY)
STOP_WITHIN: Final = 0.3
LIMITS: Final = Limits(
    services={
        "api": Service(rates=(Rate(80, 1.0), Rate(12, 0.1)), concurrent=5),
        "meter": Service(rates=(Rate(8, 0.25),)),
        "disk": Service(concurrent=2),
        "down": Service(concurrent=1, circuit=Circuit(threshold=3, timeout=0.2)),
    },
    tasks={name: Policy(RETRY.max_attempts, BASE_DELAY / 2) for name in ("call", "both", "blocking")},
    stop_within=STOP_WITHIN,
)
"""What every round declares, and is held to. Jitter may halve a delay; tasks not named are tried once."""

TASKS: Final = ("plain", "metered", "metered", "call", "call", "both", "blocking")
STRANDS: Final = 3
"""How many calls a submitter has under way at once: they share commits."""
SHARED_KEYS: Final = 25
CALLS_DOWN: Final = 6
"""How much work there is for the service that is down: each probe of its circuit waits for longer."""
LONGEST_BREAK: Final = 0.08
"""Seconds between two calls of a strand, at most: what is submitted shall be done within seconds."""
SCHEDULES: Final[dict[str, dict[str, Any]]] = {"tick": {"every": "1s"}, "second": {"cron": "* * * * * *"}}
"""Each has a slot every second, which counts whenever somebody decides about it."""
DRAIN_WITHIN: Final = 100.0
DUMP: Final = "dump.json"
MOST_ROWS: Final = 1_000_000


class Job(msgspec.Struct, frozen=True):
    """What one process is to do."""

    role: Role
    actor: str
    folder: str
    """Where histories are kept."""
    database: str
    seed: int
    calls: int = 1_000_000
    """After so many a submitter ends."""
    crash_at: str = ""
    """What RUNCUE_CRASH_AT says to this process."""
    lifetime: int = 300
    """Seconds after which the kernel ends it, whatever happens."""
    poison: bool = True
    """Whether there is work that kills its worker."""
    longest_break: float = LONGEST_BREAK


class Dump(msgspec.Struct):
    """What the last process found in the queue."""

    rows: list[dict[str, Any]]
    events: list[tuple[int, str, str, bool, float]]
    has_old_events: bool
    """True when what was told before this process began could be read as well."""


def main(job: Job) -> None:
    """Be that actor until the end."""
    if sys.platform != "win32":
        signal.alarm(job.lifetime)
    roles: dict[Role, Callable[[Job], Awaitable[None]]] = {
        "worker": worker,
        "submitter": submitter,
        "drain": drain,
    }

    async def play() -> None:
        await roles[job.role](job)

    asyncio.run(play())


def heed(told: asyncio.Event) -> None:
    """Notice when this process is told to end: by SIGTERM, on Windows by the end of its input."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        threading.Thread(target=_until_closed, args=(loop, told), daemon=True).start()
    else:
        loop.add_signal_handler(signal.SIGTERM, told.set)


def _until_closed(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(told.set)


async def pause(seconds: float) -> None:
    """Take that long, as a call to somewhere does."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


# --- workers --------------------------------------------------------------------------------------


def opened(job: Job, log: Log) -> runcue.Cue:
    """The queue as every process of a round declares it."""
    cue = runcue.Cue(job.database)
    cue.service("api", rate=["80/s", "12/100ms"], concurrent=5)
    cue.service("meter", rate="8/250ms")
    cue.service("disk", concurrent=2)
    cue.service("down", concurrent=1, circuit_threshold=3, circuit_timeout=0.2)
    tokens = count(1)

    def began(work: Any, t: float) -> tuple[str, Callable[[str], None]]:
        token = f"{job.actor}.{next(tokens)}"
        log.write("info", "start", work=work.id, attempt=work.attempt, token=token, services=work.services, t=t,
                  tag=tag_of(work), task=work.task)  # fmt: skip

        def ended(outcome: str) -> None:
            log.write("info", "end", work=work.id, attempt=work.attempt, token=token, outcome=outcome)

        return token, ended

    async def handle(work: Any) -> str:
        token, ended = began(work, now())
        outcome = "stopped"
        try:
            await pause(work.params.get("seconds", 0))
            outcome = "fail" if work.attempt <= work.params.get("fails", 0) else "ok"
        finally:
            ended(outcome)
        if outcome == "fail":
            raise ConnectionError("as its params say")
        return token

    def block(work: Any) -> str:
        token, ended = began(work, now())
        threading.Event().wait(work.params.get("seconds", 0))
        outcome = "fail" if work.attempt <= work.params.get("fails", 0) else "ok"
        ended(outcome)
        if outcome == "fail":
            raise ConnectionError("as its params say")
        return token

    async def kill_worker(work: Any) -> str:
        token, _ = began(work, now())
        processes.end_self()
        return token

    cue.task("plain")(handle)
    cue.task("down", uses="down")(handle)
    cue.task("metered", uses="meter")(handle)
    cue.task("call", uses="api", retry=RETRY)(handle)
    cue.task("both", uses=["api", "disk"], retry=RETRY)(handle)
    cue.task("blocking", uses="disk", retry=RETRY)(block)
    cue.task("poison")(kill_worker)

    async def slot(work: Any) -> str:
        return await handle(work)

    cue.task("slot")(slot)
    for name, timing in SCHEDULES.items():
        when: dict[str, Any] = {"name": name, "overlap": "queue", "missed": "all"}
        (cue.every if "every" in timing else cue.cron)(*timing.values(), **when)(slot)
    return cue


async def worker(job: Job) -> None:
    """Run work until told to end (SIGTERM)."""
    log = Log(Path(job.folder), job.actor)
    told = asyncio.Event()
    heed(told)
    cue = opened(job, log)
    cue.start()
    log.write("info", "up")
    await told.wait()
    log.write("info", "down")
    await cue.stop(timeout=STOP_WITHIN)
    await cue.close()


async def drain(job: Job) -> None:
    """Run work until nothing is pending or running; then write down how everything stands."""
    log = Log(Path(job.folder), job.actor)
    cue = opened(job, log)
    seen: list[runcue.Event] = []

    async def listen() -> None:
        async for event in cue.events(since=0):
            seen.append(event)  # noqa: PERF401 (a comprehension would hand over nothing when it is cancelled)

    cue.start()
    for name in SCHEDULES:
        await cue.schedules.pause(name)
    log.write("info", "up")
    listener = asyncio.create_task(listen())
    began = now()
    while now() < began + DRAIN_WITHIN:
        counts = await cue.count()
        if not counts.get(runcue.WorkState.PENDING) and not counts.get(runcue.WorkState.RUNNING):
            break
        await pause(0.02)
    works = await cue.list(limit=MOST_ROWS)
    log.write("info", "down")
    await cue.stop(timeout=STOP_WITHIN)
    await asyncio.wait([listener], timeout=DRAIN_WITHIN)  # it ends by itself once it has read everything
    listener.cancel()
    rows = [row_of(work) for work in works]
    events = [(e.seq, e.type, e.work_id, e.final, e.at) for e in seen if e.work_id is not None]
    queued = {event.work_id for event in seen if event.type == "queued"}
    dump = Dump(rows, events, bool(rows) and all(row["id"] in queued for row in rows))
    (Path(job.folder) / DUMP).write_bytes(msgspec.json.encode(dump))
    await cue.close()


def tag_of(work: Any) -> str:
    """What a work is known by: a unit of a schedule by its slot."""
    return str(work.params.get("tag") or work.idempotency_key)


def row_of(work: runcue.Work) -> dict[str, Any]:
    """What the checker wants to know of a work."""
    return {
        "id": work.id,
        "tag": tag_of(work),
        "task": work.task,
        "state": work.state.value,
        "attempt": work.attempt,
        "result": work.result,
        "error": work.error,
        "depends_on": work.depends_on,
        "services": work.services,
        "skipped": work.skipped,
    }


# --- submitters -----------------------------------------------------------------------------------


async def submitter(job: Job) -> None:
    """Submit, look and cancel until that is done or until told to end (SIGTERM)."""
    log = Log(Path(job.folder), job.actor)
    told = asyncio.Event()
    heed(told)
    cue = opened(job, log)
    hands = Submitting(job, cue, log)

    async def strand(number: int) -> None:
        random = Random(f"{job.seed}/{job.actor}/{number}")
        while hands.calls < job.calls and not told.is_set():
            hands.calls += 1
            await hands.call(random)
            await pause(random.uniform(0, job.longest_break))

    await asyncio.gather(*map(strand, range(STRANDS)))
    await cue.close()


class Submitting:
    """What a submitter does, one call after the other, each written down with its answer."""

    def __init__(self, job: Job, cue: runcue.Cue, log: Log) -> None:
        self.calls = 0
        self._job = job
        self._cue = cue
        self._log = log
        self._numbers = count(1)
        self._accepted: list[str] = []

    async def call(self, random: Random) -> None:
        """Do one thing, by lot."""
        lot = random.random()
        if lot < 0.08:
            await self._cancel(random)
        elif lot < 0.2:
            await self._look(random)
        elif lot < 0.24:
            await self._survey()
        elif lot < 0.34:
            await self._submit_once(random)
        elif lot < 0.44:
            await self._submit(*(self._item(random) for _ in range(random.randint(2, 6))))
        elif lot < 0.48:
            await self._submit_forward(random)
        elif lot < 0.485 and self._job.poison:
            await self._submit(self._item(random) | {"task": "poison"})
        else:
            await self._submit(self._item(random))

    def _item(self, random: Random) -> dict[str, Any]:
        params = {
            "tag": f"{self._job.actor}-{next(self._numbers)}",
            "seconds": random.choice((0, 0, 0.005, 0.02, 0.05)),
            "fails": random.choice((0, 0, 0, 0, 0, 1, 1, 3)),
        }
        item: dict[str, Any] = {
            "task": random.choice(TASKS),
            "params": params,
        }
        if random.random() < 0.2 and self._accepted:
            item["depends_on"] = random.sample(self._accepted[-30:], min(len(self._accepted), 2))
        if random.random() < 0.1:
            item["delay"] = random.uniform(0.0, 0.2)
        if (
            random.random() < 0.3 and item["task"] == "plain"
        ):  # of what is limited, the oldest always goes first
            item["priority"] = random.randint(-2, 2)
        return item

    async def _submit_once(self, random: Random) -> None:
        """Work that other submitters ask for as well: it is to be there once."""
        if random.random() < 0.3:
            key, task, fails = f"down-{random.randrange(CALLS_DOWN)}", "down", 100
        else:
            key, task, fails = f"key-{random.randrange(SHARED_KEYS)}", "plain", 0
        params = {"tag": key, "fails": fails}
        await self._submit({"task": task, "params": params, "idempotency_key": key, "on_failed": "return"})

    async def _submit(self, *items: dict[str, Any]) -> None:
        log, key = self._log, items[0].get("idempotency_key")
        call = log.invoke("submit", tags=[item["params"]["tag"] for item in items], key=key)
        try:
            ids = (
                await self._cue.submit_many(items) if len(items) > 1 else [await self._cue.submit(**items[0])]
            )
        except runcue.StoreError as error:
            log.write("info", "submit", call=call, error=repr(error))
        except runcue.RuncueError as error:
            log.write("fail", "submit", call=call, error=repr(error))
        else:
            accepted = [str(one) for one in ids]
            log.write("ok", "submit", call=call, ids=accepted)
            if key is None:
                self._accepted += accepted

    async def _submit_forward(self, random: Random) -> None:
        """Work that waits for work which is submitted only afterwards."""
        name = f"{self._job.actor}-named-{next(self._numbers)}"
        early = self._item(random) | {"depends_on": [name], "dependency_timeout": 1.0}
        await self._submit(early)
        await self._submit(self._item(random) | {"id": name})

    async def _cancel(self, random: Random) -> None:
        if not self._accepted:
            return
        work = random.choice(self._accepted[-40:])
        call = self._log.invoke("cancel", work=work)
        try:
            answer = await self._cue.cancel(work, cascade=random.random() < 0.3)
        except runcue.RuncueError as error:
            self._log.write("info", "cancel", call=call, work=work, error=repr(error))
        else:
            self._log.write("ok", "cancel", call=call, work=work, answer=answer)

    async def _look(self, random: Random) -> None:
        if not self._accepted:
            return
        work = random.choice(self._accepted[-60:])
        try:
            found = await self._cue.get(work)
        except runcue.RuncueError as error:
            self._log.write("info", "get", work=work, error=repr(error))
        else:
            state = "gone" if found is None else found.state.value
            self._log.write("ok", "look", work=work, state=state, result=found and found.result)

    async def _survey(self) -> None:
        """Ask what nothing is checked against: it must not fail, nor harm."""
        try:
            await self._cue.list(limit=20)
            await self._cue.count()
        except runcue.RuncueError as error:
            self._log.write("info", "survey", error=repr(error))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Job))
