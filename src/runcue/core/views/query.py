"""Which units a list shows, newest first. Every store finds the same ones: `Query.finds` says which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from runcue.core.model.record import Record, Spec, WorkState

SEARCHED = 200_000
"""A text is searched among so many of the newest units."""


GROUP: Final = ""
"""The tag under which stores keep the group of a unit, so that both are found alike: no tag has an empty name."""

Tag = tuple[str, str]
"""A name and a value."""


class Query(msgspec.Struct, frozen=True):
    """Units of that state, task, queue, service, group and so on in which a text occurs, older than the one with that
    number. What is None or empty asks nothing."""

    state: WorkState | None = None
    task: str | None = None
    limit: int = 100
    queue: str | None = None
    service: str | None = None
    search: str | None = None
    before: int | None = None
    tags: tuple[Tag, ...] = ()
    group: str | None = None
    key: str | None = None
    """The idempotency key."""
    since: float | None = None
    """Submitted then or later."""
    until: float | None = None
    """Submitted before that moment."""

    @property
    def marks(self) -> tuple[Tag, ...]:
        """The tags that a unit must have, with its group as one of them."""
        return self.tags if self.group is None else ((GROUP, self.group), *self.tags)

    def finds(self, record: Record) -> bool:
        """True when the query finds that record."""
        spec = record.spec
        return (
            (self.state is None or record.state is self.state)
            and (self.task is None or spec.task == self.task)
            and (self.queue is None or spec.queue == self.queue)
            and (self.service is None or _uses(record, self.service))
            and (self.before is None or record.seq < self.before)
            and (self.group is None or spec.group == self.group)
            and (not self.tags or set(self.tags) <= set(spec.tags))
            and (self.key is None or spec.idempotency_key == self.key)
            and (self.since is None or record.created_at >= self.since)
            and (self.until is None or record.created_at < self.until)
            and (self.search is None or _has(record, self.search))
        )


def marks_of(spec: Spec) -> tuple[Tag, ...]:
    """By what a unit is found: its tags, with its group as one of them."""
    return spec.tags if spec.group is None else ((GROUP, spec.group), *spec.tags)


def by_task(numbers: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """How many units of each task are pending and running, from numbers by state and task."""
    found: dict[str, dict[str, int]] = {"pending": {}, "running": {}}
    for state, task, number in numbers:
        if state in found:
            found[str(state)][task] = number
    return found


class Row(NamedTuple):
    """Tells when a unit was given its number: not before it was created, and not after it last became pending."""

    seq: int
    created_at: float
    since: float


def first_since(at: float, newest: int, row_from: Callable[[int], Row | None]) -> int:
    """A number before which no unit was submitted at that moment or later, found in a few steps: units are numbered
    in the order they came. `row_from` reads the first row from a number on.

    A unit that was retried by hand has a new number; where it cannot be told, more units are looked at than needed.
    """
    low, high = 0, newest + 1
    while low < high:
        middle = (low + high) // 2
        row = row_from(middle)
        if row is None or row.since >= at:
            high = middle
        else:
            low = row.seq + 1
    return low


def _uses(record: Record, service: str) -> bool:
    """True for a unit that uses this service, or the part of a key of it."""
    return any(name == service or name.startswith(f"{service}[") for name in record.spec.services)


def _has(record: Record, text: str) -> bool:
    """True when the text occurs in the params, the id, the key, the label, the target or the error, without regard
    to ASCII case."""
    spec, wanted = record.spec, text.encode().lower()
    texts = (spec.id, spec.idempotency_key or "", spec.label or "", spec.target or "", record.error or "")
    return wanted in spec.params.lower() or any(wanted in one.encode().lower() for one in texts)
