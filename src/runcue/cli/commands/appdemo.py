"""`runcue demo`: runs units against simulated services for a few seconds, in a temporary file."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from runcue.cli.commands.demo import PATIENCE, too_long, your_turn
from runcue.cli.failure import bad_input, conflict, misconfigured
from runcue.cli.groups import verb
from runcue.cli.screen import clean, counted, listed, quoted, say, shown, span, styled
from runcue.host.address import is_address, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue, Event, RunningWork

FILE = "demo.db"
PAGES = 24
PARCELS = 5
PACE = 6.0
"""Pages a second of a busy demo."""
LIMIT = "8/s"
LONGEST = 86_400.0


@verb("demo", examples=["runcue demo", "runcue demo --keep demo --busy 120"])
@click.option("--keep", metavar="DIR", help=f"Leave the queue there, as {FILE}.")
@click.option(
    "--busy", metavar="SECONDS", type=click.FloatRange(1, LONGEST), help="Keep it lively, to be looked at."
)
def command(keep: str | None, busy: float | None) -> None:
    """See limits, retries and a circuit at work, in a few seconds.

    Pages are read by a service that allows a few a second and fails now and then. Parcels go to one that is down
    for a while: its circuit opens and closes again. What runs is pretended; the queue is real.
    """
    import asyncio
    import logging

    logging.getLogger("runcue").addHandler(logging.NullHandler())
    with _folder(keep) as folder:
        path = folder / FILE
        say(f"A queue in {shown(path)}.")
        if busy is not None:
            watch = styled(f"runcue top {quoted(str(path))}", bold=True)
            say(f"Busy for {span(busy)}. In another terminal: {watch}")
        say()
        told = asyncio.run(_play(str(path), busy))
        say()
        for line in told:
            say(line)
    place = quoted(str(Path(keep) / FILE if keep else Path("demo") / FILE))
    if keep:
        commands = [f"status {place}", f"list {place} --state failed", f"top {place}"]
    else:
        commands = ["demo --keep demo --busy 60", f"top {place}", f"dashboard {place}"]
    your_turn("runcue", commands)


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    from tempfile import TemporaryDirectory

    if keep is None:
        with TemporaryDirectory(prefix="runcue-demo-") as name:
            yield Path(name)
        return
    if not keep:
        raise bad_input("--keep is empty. Name a directory, or leave it out.")
    if is_address(keep):
        raise bad_input(f"--keep is a directory, and {plain(keep)} is an address. Name a directory.")
    folder = Path(keep)
    if (folder / FILE).exists():
        raise conflict(f"{shown(folder / FILE)} is there already. Choose another directory, or move it away.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise misconfigured(f"{shown(folder)} cannot be made: {error.strerror or error}.") from error
    yield folder


class _World:
    """Simulated services: they answer slowly, fail now and then, or are down for a while."""

    def __init__(self) -> None:
        self._chance = random.Random(7)  # every demo runs alike
        self.is_depot_down = True
        self.calls = 0

    async def read(self, work: RunningWork) -> dict[str, int]:
        import asyncio

        await asyncio.sleep(self._chance.uniform(0.1, 0.3))
        page = int(work.params["page"])
        if page % 10 == 9:
            raise ValueError(f"page {page} is empty")
        if work.attempt == 1 and page % 7 == 3:
            raise ConnectionError("the connection was reset")
        return {"words": self._chance.randrange(100, 900)}

    async def ship(self, work: RunningWork) -> None:
        import asyncio

        self.calls += 1
        await asyncio.sleep(0.15)
        if self.is_depot_down:
            self.is_depot_down = self.calls < 3
            raise ConnectionError("no route to host")


def _declare(cue: Cue, world: _World) -> None:
    from runcue import Retry

    cue.service("reader", rate=LIMIT, concurrent=3)
    cue.service("depot", concurrent=1, circuit_threshold=3, circuit_timeout=1.5)
    again = Retry(3, backoff="fixed", base_delay=0.4, max_delay=0.4, jitter=False)
    often = Retry(6, backoff="fixed", base_delay=0.2, max_delay=0.2, jitter=False)
    cue.task("read", uses="reader", retry=again)(world.read)
    cue.task("ship", uses="depot", retry=often)(world.ship)

    @cue.task("report")
    async def report(work: RunningWork) -> str:
        return f"a report of {counted(int(work.params['pages']), 'page')}"


async def _play(path: str, busy: float | None) -> list[str]:
    """Run the demo; returns the lines of its summary."""
    import asyncio

    from runcue import Cue

    cue, world, began = Cue(path), _World(), time.monotonic()
    _declare(cue, world)
    try:
        async with asyncio.timeout(PATIENCE + (busy or 0.0)):
            async with cue:
                narrator = _Narrator()
                telling = asyncio.create_task(narrator.tell(cue))
                await _submit(cue)
                if busy is not None:
                    await _keep_busy(cue, world, busy)
                await cue.join()
            await telling  # it ends when all events are printed
            return await _summary(cue, narrator.seen, time.monotonic() - began)
    except TimeoutError:
        raise too_long() from None
    finally:
        await cue.close()


async def _submit(cue: Cue) -> None:
    good = [page for page in range(PAGES) if page % 10 != 9]
    await cue.submit_many([_page(page) for page in range(PAGES)])
    await cue.submit_many([{"task": "ship", "id": f"parcel-{number}"} for number in range(1, PARCELS + 1)])
    after = [f"page-{page}" for page in good]
    await cue.submit("report", id="report", params={"pages": len(good)}, depends_on=after)


def _page(page: int) -> dict[str, Any]:
    params = {"page": page, "api_key": "sk-demo"}
    return {"task": "read", "id": f"page-{page}", "params": params, "target": f"out/{page}.json"}


async def _keep_busy(cue: Cue, world: _World, seconds: float) -> None:
    """Submit more for that many seconds; the depot goes down now and then."""
    import asyncio

    until, page, pause = time.monotonic() + seconds, PAGES, 1 / PACE
    while time.monotonic() < until:
        await cue.submit(**_page(page))
        if page % 12 == 0:
            await cue.submit("ship", id=f"parcel-{page}")
        if page % 90 == 0:
            world.is_depot_down, world.calls = True, 0
        page += 1
        await asyncio.sleep(pause)


class _Narrator:
    """Prints what happens, and counts events."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._errors: dict[str, str] = {}
        self._began = time.monotonic()

    async def tell(self, cue: Cue) -> None:
        """Print lines about events until there are no more events."""
        async for event in cue.events():
            self.seen[event.type] += 1
            if line := self._line(event):
                say(f"{time.monotonic() - self._began:5.1f} s  {line}")

    def _line(self, event: Event) -> str:
        """A line about an event that is worth one, else ""."""
        id, done = event.work_id or "", self.seen["completed"]
        match event.type:
            case "failed":
                self._errors[id] = clean((event.error or "").partition("\n")[0])
                return f"{styled('failed', fg='red')}     {id}: {self._errors[id]}" if event.final else ""
            case "retrying":
                return f"{styled('retry', fg='yellow')}      {id}: {self._errors.get(id, '')}"
            case "circuit_opened":
                return f"{styled('circuit', fg='red')}    {event.service} is left alone for a while"
            case "circuit_closed":
                return f"{styled('circuit', fg='green')}    {event.service} answers again"
            case "completed" if id == "report":
                return f"{styled('completed', fg='green')}  report, after all the pages it needs"
            case "completed" if done % 10 == 0:
                return f"{styled('completed', fg='green')}  {done:,} so far"
            case _:
                return ""


async def _summary(cue: Cue, seen: Counter[str], seconds: float) -> list[str]:
    """Ten lines of figures about what happened."""
    counts = {str(state): number for state, number in (await cue.count()).items()}
    works = {work.id: work for work in await cue.list(limit=100_000)}
    pages = [work for work in works.values() if work.task == "read"]
    starts = sorted(work.started_at for work in pages if work.started_at is not None)
    busiest = max(sum(at <= other < at + 1 for other in starts) for at in starts)
    late = [work for work in pages if work.state == "completed" and work.attempt > 1]
    failed = await cue.dead(limit=1000)
    arrived = sum(work.state == "completed" for work in works.values() if work.task == "ship")
    report = works["report"]
    last = max(works[one].completed_at or 0.0 for one in report.depends_on)
    return [
        f"{styled(f'{len(works):,} units in {span(seconds)}', bold=True)}",
        f"completed  {counts['completed']:,}",
        f"failed     {counts['failed']:,}, after all their attempts: {listed([work.id for work in failed])}",
        f"retried    {seen['retrying']:,} times; {len(late):,} of the pages came through that way",
        f"reader     allows {LIMIT}: at most {busiest} of its last starts fell into one second",
        f"depot      was down: its circuit opened {counted(seen['circuit_opened'], 'time')}, and closed by itself",
        f"parcels    {arrived:,} arrived all the same",
        f"report     began {span(max(0.0, (report.started_at or last) - last))} after the last page it needed",
        f"events     {sum(seen.values()):,}, in the order in which they were committed",
        "secrets    api_key of every page is shown as *** by show, top and dashboard",
    ]
