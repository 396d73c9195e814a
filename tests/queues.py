"""Queues that tests begin with."""

from pathlib import Path
from typing import Any

from runcue import Cue


async def make_empty(target: str | Path, **options: Any) -> None:
    """Make a queue with nothing in it, which nobody has open."""
    cue = Cue(target, **options)
    await cue.count()
    await cue.close()
