"""Events as rows: those of one turn in one row, kept short because most are never read.

What the record of a unit says is not repeated; a result is looked up when the event is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from runcue.core.model.events import EVERY_EVENT, Event, EventDraft, EventFilter, News, make_event
from runcue.core.model.record import Record, WorkState
from runcue.errors import StorageCorrupt, quoted

EVERYDAY: Final = ("queued", "started", "completed")
COMPLETED: Final = WorkState.COMPLETED
_codes = {"pending": 0, "running": 1, "completed": 2}
_encode = msgspec.json.Encoder().encode
_encode_any = msgspec.json.Encoder(enc_hook=repr).encode
_decode = msgspec.json.Decoder().decode


def pack(events: Iterable[News]) -> bytes:
    """The events of one turn as they are stored, those that differ only in their ids together.

    Values are compared by identity, which is cheap: the records that one turn changes share the same objects.
    """
    rows: list[list[Any]] = []
    state = task = services = chosen = began = ended = attempt = group = None
    ids: list[str] = []
    add = ids.append
    groups: dict[int, str] = {}
    for news in events:
        if type(news) is Record:
            spec = news.spec
            if (
                news.state is not state
                or spec.task is not task
                or spec.services is not services
                or news.attempt is not attempt
                or news.chosen is not chosen
                or (spec.group is not group and spec.group != group)
                or (state is COMPLETED and (news.started_at is not began or news.completed_at is not ended))
            ):
                state, began, ended, attempt = news.state, news.started_at, news.completed_at, news.attempt
                task, services, chosen, group = spec.task, spec.services, news.chosen, spec.group
                duration = None if began is None or ended is None else ended - began
                ids = []
                add = ids.append
                rows.append([_codes[state], task, news.services[:1], attempt, duration, ids])
                if group is not None:
                    groups[len(rows) - 1] = group
            add(news.id)
        else:
            assert isinstance(news, EventDraft)
            state = None
            rows.append(_words(news))
    for row in rows:
        if type(row[0]) is int:
            row[-1:] = _shortened(row[-1])
    for place, name in groups.items():
        rows[place].append(name)
    try:
        return _encode(rows)
    except TypeError:  # such as what an application reported as progress
        return _encode_any(rows)


def _shortened(ids: list[str]) -> tuple[str, list[str]]:
    """The common beginning of some ids, and the rest of each: ids made by runcue differ only at their end."""
    first, last = min(ids), max(ids)
    same = len(first)
    while not last.startswith(start := first[:same]):
        same -= 1
    ends = "\n".join(("", *ids)).split("\n" + start)[1:]  # an id has no line break
    if len(ends) != len(ids):  # but for one that somebody has put into the table
        ends = [work_id[same:] for work_id in ids]
    return start, ends


def _words(news: EventDraft) -> list[Any]:
    event = make_event(0, news)
    data = {name: value for name, value in event.data.items() if name != "exception"}
    return [event.type, event.work_id, event.task, event.attempt, event.final, event.error, event.will_retry,
            event.duration, event.service, data, *([] if event.group is None else [event.group])]  # fmt: skip


def unpack(
    body: bytes,
    first_seq: int,
    at: float,
    result_of: Callable[[str], Any],
    wanted: EventFilter = EVERY_EVENT,
) -> list[Event]:
    """The events of one turn from a stored row, as far as they are wanted."""
    found: list[Event] = []
    seq = first_seq
    try:
        for words in _decode(body):
            if isinstance(words[0], int):
                found += _everyday(seq, at, words, result_of, wanted)
                seq += len(words[6])
            else:
                event = _event(seq, at, words)
                if wanted.takes(event.type, event.work_id, event.group):
                    found.append(event)
                seq += 1
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        raise StorageCorrupt(
            f"The stored events from number {quoted(first_seq)} on are damaged ({error}). Restore a backup, or go on "
            "after them."
        ) from error

    return found


def _everyday(
    seq: int, at: float, words: list[Any], result_of: Callable[[str], Any], wanted: EventFilter
) -> list[Event]:
    code, task, services, attempt, duration, start, ends, *more = words
    is_over = code == 2
    group = more[0] if more else None
    if not wanted.takes(EVERYDAY[code], wanted.work_id, group):
        return []
    places: Iterable[int] = range(len(ends))
    if wanted.work_id is not None:
        end = wanted.work_id.removeprefix(start)
        is_here = wanted.work_id.startswith(start) and end in ends
        places = (ends.index(end),) if is_here else ()
    service = services[0] if services else None
    return [
        Event(
            EVERYDAY[code],
            seq + place,
            at,
            start + ends[place],
            task,
            attempt,
            is_over,
            result_of(start + ends[place]) if is_over else None,
            duration=duration if is_over else None,
            service=service,
            group=group,
        )
        for place in places
    ]


def _event(seq: int, at: float, words: list[Any]) -> Event:
    type, work_id, task, attempt, final, error, will_retry, duration, service, data, *more = words
    return Event(type, seq, at, work_id, task, attempt, final, None, error, will_retry, duration, service, data,
                 *more)  # fmt: skip
