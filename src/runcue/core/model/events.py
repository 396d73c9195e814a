"""The events: one table of all types, and the value that a listener gets.

A turn emits short drafts, because most events are never read; the bus makes an `Event` of each that is. For everyday
events (queued, started, completed) the record alone is emitted: its state says which event it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from runcue.core.model.record import Record, WorkState

EVENTS: dict[str, str] = {
    "queued": "A new unit was accepted.",
    "edited": "What a unit was submitted with was changed, by `edit` or by a duplicate of it (`unique=`).",
    "started": "A handler is about to be called.",
    "completed": "The handler returned; the result is stored.",
    "failed": "An attempt failed; `final` tells whether it was the last.",
    "retrying": "A failed attempt will be followed by another, at `next_retry_at`.",
    "cancelled": "The unit was cancelled.",
    "skipped": "The output was already valid, so the handler was not called.",
    "progress": "A handler reported how far it is.",
    "stale_completion": "An attempt that no longer counts came back; its answer was dropped.",
    "group_done": "All units of a group have ended: `completed`, `failed`, `cancelled` say how many did how.",
    "schedule_fired": "A schedule submitted the unit of a slot, or one that was asked for by hand (no `slot`).",
    "schedule_skipped": "A schedule left slots out, from `slot` until `until`: its last unit had not ended "
    "(`overlap`), or nothing ran when they came (`missed`).",
    "schedule_changed": "A schedule was added, changed, paused, resumed, removed, held back, or refused.",
    "queue_status": "How many units are in each state, every second while busy.",
    "service_status": "A service was declared or changed, or it became available or unavailable (paused, throttled, "
    "circuit).",
    "service_rate_limited": "A service allows no start, because of its rate or because it asked for a pause.",
    "circuit_opened": "Too many failures in a row: nothing starts on this service.",
    "circuit_half_open": "One probe tries a service that failed.",
    "circuit_closed": "The probe succeeded: the service is used again.",
    "backpressure_active": "The queue passed 80 % of `max_queued`, became full, or went below one of these again.",
    "callback_failed": "A callback of the application raised, overran or answered nonsense.",
    "lease_lost": "The worker that ran this unit died or fell silent; `crashes` counts how often that happened.",
    "task_changed": "A program declared a task differently than before; the new declaration holds.",
    "pending_warning": "A unit has been pending for longer than `pending_warn_after`.",
    "stall_warning": "Nothing has started or finished for longer than `stall_warn_after`.",
    "gap": "This reader fell behind: `missed` events were dropped.",
}

WORK_EVENTS = frozenset(
    {"queued", "edited", "started", "completed", "failed", "retrying", "cancelled", "skipped", "progress",
     "stale_completion"}
)  # fmt: skip
FINAL_EVENTS = frozenset({"completed", "failed", "cancelled", "skipped"})


class EventDraft(msgspec.Struct, frozen=True, gc=False):
    """An event before it is published: its type, the record as it was then, and further data."""

    type: str
    at: float
    record: Record | None = None
    data: dict[str, Any] | None = None


News = EventDraft | Record
"""Something to publish. A record alone means that its unit was just accepted, started or completed."""


def draft_of(news: News) -> EventDraft:
    """The draft of an event, also where a record alone was emitted."""
    if isinstance(news, EventDraft):
        return news
    if news.state is WorkState.PENDING:
        return EventDraft("queued", news.created_at, news)
    if news.state is WorkState.RUNNING:
        return EventDraft("started", news.started_at or 0.0, news)
    return EventDraft("completed", news.completed_at or 0.0, news)


class Event(msgspec.Struct, frozen=True):
    """Something that happened, published after it was committed. `seq` is a place to go on reading from."""

    type: str
    seq: int
    at: float
    work_id: str | None = None
    task: str | None = None
    attempt: int | None = None
    final: bool = False
    result: Any = None
    error: str | None = None
    will_retry: bool | None = None
    duration: float | None = None
    service: str | None = None
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    group: str | None = None
    """The group of its unit, or the group that it is about."""

    @property
    def name(self) -> str:
        """The long name: `work_completed` for `completed`; the type itself for events that are not about a unit."""
        return f"work_{self.type}" if self.type in WORK_EVENTS else self.type

    @property
    def task_type(self) -> str | None:
        """The older name of `task`."""
        return self.task

    def __getattr__(self, name: str) -> Any:
        """Further data of this event as attributes: `event.depth`, `event.fraction`, …"""
        if not name.startswith("_") and name in self.data:
            return self.data[name]
        raise AttributeError(f"a {self.type!r} event has no {name!r}")


class EventFilter(msgspec.Struct, frozen=True):
    """Which events a reader wants: of some types, about one unit, about one group. What is None asks nothing."""

    types: frozenset[str] | None = None
    work_id: str | None = None
    group: str | None = None

    def takes(self, type: str, work_id: str | None, group: str | None) -> bool:
        """True for an event that the reader wants. What it missed it always wants to know."""
        return type == "gap" or (
            (self.types is None or type in self.types)
            and (self.work_id is None or work_id == self.work_id)
            and (self.group is None or group == self.group)
        )

    def takes_news(self, news: News) -> bool:
        """`takes`, of an event that was not made yet."""
        if isinstance(news, Record):
            return self.takes(draft_of(news).type if self.types else "", news.id, news.spec.group)
        data, record = news.data or {}, news.record
        if record is None:
            return self.takes(news.type, data.get("work_id"), data.get("group"))
        return self.takes(news.type, record.id, record.spec.group)


EVERY_EVENT = EventFilter()


class Passage(NamedTuple):
    """A part of all events, in order: those of it that a reader wants."""

    events: list[Event]
    until: int
    """The number of the last event that was looked at."""


def is_final(draft: EventDraft) -> bool:
    """True for the last event of a unit (unless it is retried by hand)."""
    record = draft.record
    return draft.type in FINAL_EVENTS and record is not None and record.state.is_final


def make_event(seq: int, news: News) -> Event:
    """The event that listeners get for what was emitted."""
    draft = draft_of(news)
    type, at, record, data = draft.type, draft.at, draft.record, draft.data or {}
    if record is None:
        return Event(type, seq, at, data.get("work_id"), data.get("task"), error=data.get("error"),
                     service=data.get("service"), data=data, group=data.get("group"))  # fmt: skip
    began, ended = record.started_at, record.completed_at
    attempt = data.get("attempt", record.attempt)
    result = record.result if type == "completed" else None
    error = record.error if type in ("failed", "cancelled") else None
    duration = data.get("duration", None if began is None or ended is None else ended - began)
    service = data.get("service") or next(iter(record.services), None)
    return Event(type, seq, at, record.id, record.spec.task, attempt, is_final(draft), result, error,
                 data.get("will_retry"), duration, service, data, record.spec.group)  # fmt: skip
