"""The turn under way: its time, its plan, where to read more, and for which process something is decided."""

from __future__ import annotations

from typing import Any

from runcue.core.model.events import EventDraft, is_final
from runcue.core.model.record import Record
from runcue.core.schedule.plan import Plan, TurnReader


class CurrentTurn:
    """What every part of the ledger needs of the present turn."""

    __slots__ = ("now", "origin", "plan", "reader", "wall", "worker")

    def __init__(self, worker: str) -> None:
        self.worker = worker
        """This process."""
        self.origin = worker
        """The process that brought what is being decided: its callbacks and its log hear of it."""
        self.begin(0.0, 0.0)

    def begin(self, now: float, wall: float, reader: TurnReader | None = None) -> None:
        """A turn begins at this moment, with an empty plan."""
        self.now, self.wall = now, wall
        self.plan = Plan()
        self.reader = reader
        """Where to read records that are not loaded; None for a store that nobody shares."""

    def act_for(self, worker: str) -> None:
        """What is decided from now on was brought by that process."""
        self.origin = worker

    def act_for_itself(self) -> None:
        """What is decided from now on was brought by this process."""
        self.origin = self.worker

    def attribute(self, amount: int) -> None:
        """So many events that are about to be added are for whoever brought them about."""
        if self.origin != self.worker:
            plan = self.plan
            places = range(len(plan.events), len(plan.events) + amount)
            plan.foreign.update(dict.fromkeys(places, self.origin))

    def emit(
        self, type: str, record: Record | None = None, exception: BaseException | None = None, **data: Any
    ) -> None:
        """Publish an event once the turn is committed. An exception goes to callbacks, and is not stored."""
        told = EventDraft(type, self.now, record, data or None)
        plan = self.plan
        if self.origin != self.worker:
            plan.foreign[len(plan.events)] = self.origin
        if exception is not None:
            plan.errors[len(plan.events)] = exception
        if is_final(told):
            plan.finals[len(plan.events)] = told
        plan.events.append(told)
        plan.is_notable = True
