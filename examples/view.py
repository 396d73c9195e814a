"""What the demo shows: a live view in a terminal, a line a second elsewhere, and a summary at the end.

Everything comes from three calls that any application may make: `cue.events()`, `cue.services()`, `cue.join()`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runcue import Cue, Event

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

TASKS = ("split", "extract", "summarise")
FINAL = ("completed", "skipped", "failed", "cancelled")
STYLES = {"failed": "red", "retrying": "yellow", "throttled": "magenta", "completed": "green"}
EVENTS_SHOWN = 6
FRAMES = 10  # a second
WIDTH = 78  # of 80 columns: "^C" fits beside it, and the terminal need not break the line


class Tally:
    """Counts what happened, from the events."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.queued: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str]] = Counter()
        self.retries = 0
        self.failures: list[str] = []
        self.news: deque[tuple[float, str, str]] = deque(maxlen=EVENTS_SHOWN)
        self.is_interrupted = False
        self._finished_at: deque[float] = deque(maxlen=40)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def total(self) -> int:
        """How many units there are."""
        return self.queued.total()

    @property
    def done(self) -> int:
        """How many units have ended, in whatever way."""
        return self.ended.total()

    def of(self, state: str, task: str | None = None) -> int:
        """How many works, or those of one task, ended that way."""
        return sum(n for (name, end), n in self.ended.items() if end == state and task in (None, name))

    def eta(self) -> float | None:
        """Seconds to go at the pace of the last forty units; None while that says nothing."""
        recent = self._finished_at
        if len(recent) < 10:
            return None
        pace = (self.elapsed - recent[0]) / len(recent)
        return pace * (self.total - self.done)

    async def read(self, cue: Cue) -> None:
        """Take in what happens, from the first event until the Cue stops."""
        async for event in cue.events():
            self.add(event)

    def add(self, event: Event) -> None:
        """Take one event in."""
        name = event.work_id or event.service or ""
        text = f"{event.task} {name}"
        if event.type == "queued":
            self.queued[str(event.task)] += 1
        elif event.type == "retrying":
            self.retries += 1
            self._tell("retrying", text, f"in {event.next_retry_at - event.at:.1f} s")
        elif event.type == "service_rate_limited" and "slow down" in event.details:
            self._tell("throttled", name, f"paused for {event.until - event.at:.1f} s")
        elif event.type in FINAL and event.final:
            self.ended[str(event.task), event.type] += 1
            if event.type != "skipped":
                self._finished_at.append(self.elapsed)
            if event.type == "failed":
                self.failures.append(f"{name}: {event.error}")
                self._tell("failed", text, str(event.error))
            elif event.type == "completed" and event.task == "summarise":
                self._tell("completed", text)

    def _tell(self, what: str, text: str, more: str = "") -> None:
        self.news.append((self.elapsed, what, f"{text}: {more}" if more else text))


async def watch(cue: Cue, tally: Tally, plain: bool) -> None:
    """Show what happens until nothing is left to do."""
    joining = asyncio.create_task(cue.join())
    try:
        if plain or os.environ.get("NO_COLOR") or not sys.stdout.isatty() or not _speaks_unicode():
            await _show_plainly(joining, tally)
        else:
            await _show_live(cue, joining, tally)
    finally:
        joining.cancel()


def _speaks_unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


# ------------------------------------------------------------------------------------------------- plain


async def _show_plainly(joining: asyncio.Task[None], tally: Tally) -> None:
    while not joining.done():
        await asyncio.wait([joining], timeout=1)
        eta = tally.eta()
        print(
            f"{tally.elapsed:5.1f} s  {tally.done}/{tally.total} done: {tally.of('completed')} completed, "
            f"{tally.of('skipped')} skipped, {tally.of('failed')} failed; {tally.retries} retries"
            + ("" if eta is None or joining.done() else f"; {eta:.0f} s to go"),
            flush=True,
        )


# -------------------------------------------------------------------------------------------------- live


async def _show_live(cue: Cue, joining: asyncio.Task[None], tally: Tally) -> None:
    try:
        from rich.live import Live
    except ImportError:
        print('The live view needs rich: pip install "runcue[tui]". Going on in plain lines.')
        await _show_plainly(joining, tally)
        return
    with Live(auto_refresh=False, transient=True) as live:
        while not joining.done():
            live.update(frame(tally, await cue.services()), refresh=True)
            await asyncio.wait([joining], timeout=1 / FRAMES)


def frame(tally: Tally, services: list[dict[str, Any]]) -> RenderableType:
    """The whole view, for a terminal of 80 columns and 24 lines."""
    from rich import box
    from rich.console import Group
    from rich.panel import Panel

    parts = Group(_services(services), "", _progress(tally), "", _news(tally))
    title = f"[bold]runcue[/] · document pipeline · {_clock(tally.elapsed)}"
    return Panel(parts, title=title, title_align="left", box=box.ROUNDED, border_style="dim", width=WIDTH)


def _services(services: list[dict[str, Any]]) -> Table:
    """One line for each service: what runs, what of its rate is used, what it waits for."""
    table = _grid(10, 11, 6, 11, 11, 19)
    table.add_row("[dim]service", "[dim]running", "", "[dim]rate used", "", "[dim]waits for")
    for service in services:
        running, most = service["running"], service["concurrent"]
        row: list[Any] = [service["name"], _bar(running, most), f"{running}/{most}"]
        if service["rates"]:
            rate = service["rates"][0]
            row += [_bar(rate["used"], rate["limit"], "magenta"), f"{rate['used']} of {rate['rate']}"]
        else:
            row += ["", "[dim]no rate"]
        table.add_row(*row, _reason(service))
    return table


def _reason(service: dict[str, Any]) -> str:
    if service["blocked"] is None:
        return "[green]–"
    left = "" if service["until"] is None else f", {max(0.0, service['until'] - time.time()):.1f} s"
    colour = "magenta" if service["blocked"] == "throttled" else "yellow"
    return f"[{colour}]{service['blocked']}{left}"


def _progress(tally: Tally) -> RenderableType:
    """One bar for each task, one for all, and how the units ended."""
    from rich.console import Group
    from rich.text import Text

    table = _grid(10, 34, 9, 18)
    for task in TASKS:
        done, total = sum(tally.of(state, task) for state in FINAL), tally.queued[task]
        table.add_row(task, _bar(done, total, width=34), f"{done:>3}/{total}")
    eta = tally.eta()
    share = f"{100 * tally.done // max(1, tally.total):3} %" + (
        "" if eta is None else f", {_clock(eta)} to go"
    )
    table.add_row(
        "[bold]all", _bar(tally.done, tally.total, "green", 34), f"{tally.done:>3}/{tally.total}", share
    )
    counts = [f"{tally.of(state)} {state}" for state in ("completed", "skipped", "failed")]
    return Group(table, Text(f"{'':11}{' · '.join([*counts, f'{tally.retries} retries'])}", style="dim"))


def _news(tally: Tally) -> Table:
    """What happened last."""
    table = _grid(10, 10, 52)
    for at, what, text in tally.news:
        table.add_row(f"[dim]{at:6.1f} s", f"[{STYLES[what]}]{what}", text)
    for _ in range(EVENTS_SHOWN - len(tally.news)):
        table.add_row("")
    return table


def _grid(*widths: int) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    for width in widths:
        table.add_column(width=width, no_wrap=True, overflow="ellipsis")
    return table


def _bar(done: int, total: int, colour: str = "cyan", width: int = 11) -> RenderableType:
    """Thick for what is done and thin for the rest, so that it reads without colours too."""
    from rich.text import Text

    filled = width * min(done, total) // max(1, total)
    return Text.assemble(("━" * filled, colour), ("─" * (width - filled), "dim"))


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


# ----------------------------------------------------------------------------------------------- summary


def most_in_a_second(times: list[float]) -> int:
    """The most starts in any window of one second."""
    return max((bisect_left(times, first + 1.0) - i for i, first in enumerate(times)), default=0)


def summary(
    tally: Tally, documents: Mapping[str, int], starts: list[float], limit: int, refused: int, folder: Path
) -> str:
    """Ten lines of figures, and three commands to go on with."""
    seconds = tally.elapsed
    worked = tally.of("completed")
    head = "Interrupted" if tally.is_interrupted else "Done"
    left = tally.total - tally.done
    failures = tally.failures[0] if tally.failures else ""
    if len(tally.failures) > 1:
        failures += f", and {len(tally.failures) - 1} more"
    lines = [
        f"{head} after {seconds:.1f} s" + (f", {left} units left for the next run" if left else ""),
        "",
        f"  documents   {len(documents):5}   of {sum(documents.values())} pages in all",
        f"  completed   {worked:5}   units",
        f"  skipped     {tally.of('skipped'):5}   because their output was there",
        f"  failed      {tally.of('failed'):5}   {failures}".rstrip(),
        f"  retries     {tally.retries:5}   after errors that pass",
        f"  throttled   {refused:5}   time the OCR service said 429",
        f"  busiest     {most_in_a_second(starts):5}   OCR starts in any second, where {limit} are allowed",
        f"  duration    {seconds:5.1f} s",
        f"  throughput  {worked / seconds:5.1f} units a second",
        f"  output            {folder}",
        "",
        "Run it again and what is done is skipped. Next:",
        "  make demo                              only what is missing",
        "  make demo ARGS=--fresh                 from the beginning",
        "  .venv/bin/python examples/limits.py    several limits at once",
    ]
    return "\n".join(lines)
