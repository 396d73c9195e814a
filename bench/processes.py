"""Measured: four processes that run no-ops from one file (full sync) against one, and what idle ones do.

Each has 100 in flight, on a service of its own, and counts what it starts within the same seconds; how they get on
when all use one service is shown for comparison. Beside four busy ones, a fifth submits one unit after the other; so
does one beside a process whose handlers never let its loop rest. An idle process is watched while nothing happens,
alone and with a peer, and while a peer submits now and then.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from bench import raw
from bench.child import LONGEST, answers, ready
from bench.measure import Line, run
from bench.rows import filled
from runcue import Cue, WorkState

CONCURRENT = 100
WARM_UP = 0.1
"""How long it runs before anything counts, as a part of how long it runs then."""
PAUSE = 0.01
"""Seconds between two submits, or a little more."""
FEWEST = 5
"""Submits without which there is nothing to say about them."""
LAST = -1
"""The page of a submitter's last unit."""
HELD = 0.002
"""Seconds for which a busy handler holds its loop."""


async def until(moment: float) -> None:
    """Sleep until then."""
    await asyncio.sleep(max(0.0, moment - perf_counter()))


# --- In processes of their own --------------------------------------------------------------------


def worker(path: str, service: str, seconds: float, held: float = 0.0) -> int:
    """How many units it starts in so many seconds, each holding the loop for a while."""

    async def main() -> int:
        started = 0

        async def handler(work: Any) -> int:
            nonlocal started
            started += 1
            end = perf_counter() + held
            while held and perf_counter() < end:
                pass
            return raw.RESULT

        cue = Cue(path)
        cue.service(service, concurrent=CONCURRENT)
        cue.task("work", uses=service)(handler)
        await cue.count()
        began = ready()
        await until(began)
        cue.start()
        await until(began + WARM_UP * seconds)
        before = started
        await until(began + (1 + WARM_UP) * seconds)
        counted = started - before
        left = (await cue.count())[WorkState.PENDING]
        await cue.close()
        if not left:
            raise RuntimeError("the units ran out before the time: nothing to measure")
        return counted

    return run(main)


def submitter(path: str, seconds: float) -> list[tuple[float, float]]:
    """Submits one unit after the other: when each was called, and how long it took."""

    async def main() -> list[tuple[float, float]]:
        cue = Cue(path)
        cue.task("other")(until)
        await cue.count()
        times: list[tuple[float, float]] = []
        began = ready()
        await until(began + WARM_UP * seconds)
        while (called := perf_counter()) < began + seconds or len(times) < FEWEST:
            await cue.submit("other", params={"page": len(times)})
            times.append((called, perf_counter() - called))
            await asyncio.sleep(PAUSE + len(times) % 7 / 1000)
        await cue.submit("other", params={"page": LAST})
        await cue.close()
        return times

    return run(main)


def listener(path: str) -> list[float]:
    """When the units of another process entered their handler, in their order."""

    async def main() -> list[float]:
        entered: dict[int, float] = {}
        is_over = asyncio.Event()

        async def handler(work: Any) -> None:
            page = work.params["page"]
            if page == LAST:
                is_over.set()
            else:
                entered[page] = perf_counter()

        cue = Cue(path)
        cue.task("other")(handler)
        await cue.count()
        ready()
        cue.start()
        async with asyncio.timeout(LONGEST):
            await is_over.wait()
        await cue.close()
        return [entered[page] for page in sorted(entered)]

    return run(main)


def idler(path: str, seconds: float) -> float:
    """The share of a core, in per cent, that a process with nothing to do takes."""

    async def main() -> float:
        async with Cue(path) as cue:
            await cue.count()
            await until(ready() + WARM_UP * seconds)
            began, used = perf_counter(), process_time()
            await asyncio.sleep(seconds)
            share = 100 * (process_time() - used) / (perf_counter() - began)
        await cue.close()
        return share

    return run(main)


# --- The measures ---------------------------------------------------------------------------------


class Trial:
    """Runs so many seconds in a directory of its own, with a file deep enough for that."""

    def __init__(self, seconds: float, depth: int) -> None:
        self.seconds = seconds
        self._depth = depth

    def counts(self, *services: str) -> list[int]:
        """What as many workers start, each on the service named for it."""
        with TemporaryDirectory() as directory:
            path = filled(str(Path(directory, "queue.db")), self._depth)
            return answers(*((__name__, "worker", path, service, self.seconds) for service in services))

    def submits(self, *services: str, held: float = 0.0) -> list[float]:
        """How long the submits of a process beside such workers take."""
        with TemporaryDirectory() as directory:
            path = filled(str(Path(directory, "queue.db")), self._depth)
            workers = [(__name__, "worker", path, service, self.seconds, held) for service in services]
            *_, times = answers(*workers, (__name__, "submitter", path, self.seconds))
            return [took for _, took in times]

    def seen(self) -> list[float]:
        """Seconds from the call of submit in one process to the handler's first line in another that was idle."""
        with TemporaryDirectory() as directory:
            path = str(Path(directory, "queue.db"))
            entered, times = answers(
                (__name__, "listener", path), (__name__, "submitter", path, self.seconds)
            )
        if len(entered) != len(times):
            raise RuntimeError(f"{len(entered)} of {len(times)} units were seen: nothing to measure")
        return [there - called for there, (called, _) in zip(entered, times, strict=True)]


def idle(processes: int, seconds: float) -> float:
    """What the most expensive of so many idle processes takes."""
    with TemporaryDirectory() as directory:
        path = str(Path(directory, "queue.db"))
        return float(max(answers(*[(__name__, "idler", path, seconds)] * processes)))


def measure(quick: bool) -> list[Line]:
    """Do processes that share a file get in each other's way?"""
    seconds, depth, rounds, resting = (0.1, 6_000, 1, 0.1) if quick else (3.0, 150_000, 3, 10.0)
    own = [f"outside-{number}" for number in range(2 if quick else 4)]
    trial = Trial(seconds, depth)
    alone, together, sharing, beside, held = [], [], [], [], []
    for _ in range(rounds):
        alone.append(trial.counts("outside"))
        together.append(trial.counts(*own))
        sharing.append(trial.counts(*["outside"] * len(own)))
        beside += trial.submits(*own)
        held += trial.submits("outside", held=HELD)
    single, many, shared = (max(runs, key=sum) for runs in (alone, together, sharing))
    found = trial.seen()

    def ratio(name: str, counts: list[int], at_least: float | None) -> Line:
        note = f"{sum(counts) / seconds:,.0f}/s, one {sum(single) / seconds:,.0f}"
        return Line(name, sum(counts) / max(1, sum(single)), "×", at_least=at_least, note=note)

    def share(name: str, runs: list[list[int]], at_least: float | None) -> Line:
        worst = min(runs, key=lambda counts: min(counts) / max(1, *counts))
        return Line(name, min(worst) / max(1, *worst), "×", at_least=at_least, note=f"worst run {worst}")

    def p99(name: str, times: list[float], below: float) -> Line:
        note = f"p50 {1e3 * median(times):.1f}, worst {1e3 * max(times):.1f}, {len(times):,} submits"
        return Line(name, 1e3 * quantiles(times, n=100, method="inclusive")[98], "ms", below=below, note=note)

    amount = len(own)
    return [
        ratio(f"{amount} processes against one", many, 1.0),
        share(f"{amount} processes, least share of most", together, 0.9),
        ratio(f"{amount} on one service of {CONCURRENT}", shared, None),
        share(f"{amount} on one service, least of most", sharing, None),
        p99(f"submit beside {amount}, p99", beside, 100),
        p99("submit beside a busy loop, p99", held, 50),
        Line("idle, alone", idle(1, resting), "% of a core", below=0.5),
        Line("idle, with a peer", idle(2, resting), "% of a core", below=0.5),
        Line(
            "idle sees foreign work, p50", 1e3 * median(found), "ms", below=50, note=f"{len(found):,} units"
        ),
        Line("idle sees foreign work, worst", 1e3 * max(found), "ms", below=50),
    ]
