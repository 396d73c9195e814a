"""Hear everything that a Cue in memory tells, for programs that have to count it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runcue.core.model.events import Event, make_event

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.core.schedule.plan import Plan


def watch(cue: Cue, hear: Callable[[Event], None]) -> None:
    """Call `hear` with every event of that Cue from now on, in order, as soon as it is true.

    Unlike a reader of `events()` it cannot fall behind. Only for a queue in memory: one in a file keeps its events.
    """
    if cue.path is not None:
        raise ValueError("watch() is for a queue in memory. Read the events() of one in a file.")
    bus = cue._open("watch").bus

    def told(plan: Plan) -> None:
        first = bus.next_seq - len(plan.events)
        for place, news in enumerate(plan.events):
            hear(make_event(first + place, news))

    bus.listeners.append(told)
