"""Which units a list shows, newest first. Every store finds the same ones: `Query.finds` says which."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runcue.core.model.record import Record, WorkState

SEARCHED = 200_000
"""A text is searched among so many of the newest units."""


class Query(msgspec.Struct, frozen=True):
    """Units of that state, task, queue and service in which a text occurs, older than the one with that number."""

    state: WorkState | None = None
    task: str | None = None
    limit: int = 100
    queue: str | None = None
    service: str | None = None
    search: str | None = None
    before: int | None = None

    def finds(self, record: Record) -> bool:
        """True when the query finds that record."""
        spec = record.spec
        return (
            (self.state is None or record.state is self.state)
            and (self.task is None or spec.task == self.task)
            and (self.queue is None or spec.queue == self.queue)
            and (self.service is None or _uses(record, self.service))
            and (self.before is None or record.seq < self.before)
            and (self.search is None or _has(record, self.search))
        )


def by_task(numbers: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """How many units of each task are pending and running, from numbers by state and task."""
    found: dict[str, dict[str, int]] = {"pending": {}, "running": {}}
    for state, task, number in numbers:
        if state in found:
            found[str(state)][task] = number
    return found


def _uses(record: Record, service: str) -> bool:
    """True for a unit that uses this service, or the part of a key of it."""
    return any(name == service or name.startswith(f"{service}[") for name in record.spec.services)


def _has(record: Record, text: str) -> bool:
    """True when the text occurs in the params, the id, the target or the error, without regard to ASCII case."""
    spec, wanted = record.spec, text.encode().lower()
    texts = (spec.id, spec.target or "", record.error or "")
    return wanted in spec.params.lower() or any(wanted in one.encode().lower() for one in texts)
