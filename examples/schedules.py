"""Schedules: three days in a second, with a change of the clocks, a run that takes too long, a night without power.

    python examples/schedules.py

The clock is virtual: it begins on Saturday, 28 March 2026, in Zurich. On Sunday clocks go forward. The queue is in a
file, so that the schedules are still there after the power was gone.
"""

import asyncio
import logging
import tempfile
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from runcue import Cue, Reader
from runcue.testing import kill, run

ZURICH = ZoneInfo("Europe/Zurich")
SATURDAY = datetime(2026, 3, 28, tzinfo=ZURICH)


def opened(path: Path) -> Cue:
    """A process of the program: it declares the same each time it starts."""
    # Without these options each virtual second of work is written to the disk: a real program needs neither.
    cue = Cue(path, durability="relaxed", status_interval="1h")

    @cue.cron("30 2 * * *", tz="Europe/Zurich")  # in the hour that Sunday does not have
    async def backup() -> None:
        await asyncio.sleep(60)

    @cue.cron("0 */12 * * *", tz="Europe/Zurich", missed="all", overlap="queue")  # each slot counts
    async def figures() -> None:
        await asyncio.sleep(60)

    @cue.every("6h", start=SATURDAY, jitter="10m")
    async def crawl() -> None:
        today = datetime.fromtimestamp(asyncio.get_running_loop().wall(), ZURICH)  # type: ignore[attr-defined]
        await asyncio.sleep(8 * 3600 if today.weekday() == 5 else 600)  # on Saturday there is a lot to read

    return cue


async def until(cue: Cue, *moment: int) -> None:
    """Let the program run until then."""
    loop = asyncio.get_running_loop()
    cue.start()
    await asyncio.sleep(datetime(*moment, tzinfo=ZURICH).timestamp() - loop.wall())  # type: ignore[attr-defined,misc,arg-type]


async def three_days(path: Path) -> None:
    cue = opened(path)
    await until(cue, 2026, 3, 29, 20)
    kill(cue)  # the power is gone, on Sunday at eight in the evening
    await asyncio.sleep(18 * 3600)
    async with opened(path) as cue:
        await until(cue, 2026, 3, 30, 18)


def told(path: Path) -> list[str]:
    """What became of the slots, by the clocks in Zurich."""
    lines = []
    with Reader(path) as reader:
        for event in reader.events(["schedule_fired", "schedule_skipped"]):
            at, slot = (
                moment.astimezone(ZURICH)
                for moment in (
                    datetime.fromtimestamp(event.at, ZURICH),
                    datetime.fromisoformat(event.data["slot"]),
                )
            )
            what = "" if event.type == "schedule_fired" else f" left out: {event.data['reason']}"
            lines.append(f"{at:%a %H:%M}  {event.data['schedule']:<8}of {slot:%a %H:%M}{what}")
    return lines


def main() -> None:
    logging.getLogger("runcue").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queue.db"
        run(three_days(path), epoch=SATURDAY.timestamp())
        print(*told(path), sep="\n")


if __name__ == "__main__":
    main()
