"""The turn under way: its time, its plan, where to read more, and which process brought what is being decided."""

from __future__ import annotations

from typing import Any

from runcue.core.model.events import EventDraft, is_final
from runcue.core.model.record import Record
from runcue.core.schedule.plan import Plan, TurnReader


class CurrentTurn:
    """What every part of the ledger needs to know of the turn."""

    __slots__ = ("now", "origin", "plan", "reader", "wall", "worker")

    def __init__(self, worker: str) -> None:
        self.worker = worker
        """This process."""
        self.origin = worker
        """The process that brought what is being decided: it gets the events of it."""
        self.begin(0.0, 0.0)

    def begin(self, now: float, wall: float, reader: TurnReader | None = None) -> None:
        """Begin a turn at this moment, with an empty plan."""
        self.now, self.wall = now, wall
        self.plan = Plan()
        self.reader = reader
        """Where to read records that are not loaded; None where all of them are."""

    def act_for(self, worker: str) -> None:
        """Attribute what is decided from now on to that process."""
        self.origin = worker

    def act_for_itself(self) -> None:
        """Attribute what is decided from now on to this process."""
        self.origin = self.worker

    def attribute(self, amount: int) -> None:
        """Address the next so many events of the plan to the process that brought them about."""
        if self.origin != self.worker:
            plan = self.plan
            places = range(len(plan.events), len(plan.events) + amount)
            plan.foreign.update(dict.fromkeys(places, self.origin))

    def emit(
        self, type: str, record: Record | None = None, exception: BaseException | None = None, **data: Any
    ) -> None:
        """Plan an event, which is published once the turn is committed. An exception is handed on and not stored."""
        draft = EventDraft(type, self.now, record, data or None)
        plan = self.plan
        self.attribute(1)
        if exception is not None:
            plan.errors[len(plan.events)] = exception
        if is_final(draft):
            plan.finals[len(plan.events)] = draft
        plan.events.append(draft)
        plan.is_notable = True
