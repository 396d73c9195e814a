"""Mistakes that several kinds of tests plant, each to be found by what it tests."""

from __future__ import annotations

import pytest

from runcue.core.schedule.plan import Plan
from runcue.core.schedule.scheduler import Scheduler
from runcue.stores.sql.mailbox import Letter, Mailbox


def given_to_two(patch: pytest.MonkeyPatch) -> None:
    """A start is given to two processes."""
    finish = Scheduler.finish

    def generous(self: Scheduler) -> Plan:
        plan, fleet = finish(self), self.ledger.fleet
        others = (
            [] if fleet is None else [one.id for one in fleet.serving() if one.id != self.ledger.turn.worker]
        )
        if others and plan.start:
            plan.part(others[0]).start.append(plan.start[0])
        return plan

    patch.setattr(Scheduler, "finish", generous)


def letters_kept(patch: pytest.MonkeyPatch) -> None:
    """A letter is not deleted when it is first read."""
    claim = Mailbox.claim
    before: dict[Mailbox, list[Letter]] = {}

    def again(self: Mailbox) -> list[Letter]:
        old = before.get(self, [])
        before[self] = claim(self)
        return [*old, *before[self]]

    patch.setattr(Mailbox, "claim", again)
