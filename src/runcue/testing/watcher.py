"""Passes on every event of a Cue in memory, for programs that must not miss any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runcue.core.model.events import Event, make_event

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.core.schedule.plan import Plan


def watch(cue: Cue, hear: Callable[[Event], None]) -> None:
    """Call `hear` with every event of a Cue from now on, in order, right after its turn.

    Unlike a reader of `events()` it cannot fall behind. Only for a queue in memory: a queue in a file keeps its
    events, and a reader misses none.
    """
    if cue.path is not None:
        raise ValueError("watch() is for a queue in memory. Read the events() of one in a file.")
    bus = cue._open("watch").bus

    def emit(plan: Plan) -> None:
        first = bus.next_seq - len(plan.events)
        for place, news in enumerate(plan.events):
            hear(make_event(first + place, news))

    bus.listeners.append(emit)
