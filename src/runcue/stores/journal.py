"""Events in a file: those of one turn in one row, in few words, because most are never read again.

What an event says that the record of its work says too is not repeated; a result is looked up when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from runcue.core.events import Event, News, make_event
from runcue.core.model import Record
from runcue.errors import StorageCorrupt, quoted

EVERYDAY: Final = ("queued", "started", "completed")
_codes = {"pending": 0, "running": 1, "completed": 2}
_encode = msgspec.json.Encoder().encode
_encode_any = msgspec.json.Encoder(enc_hook=repr).encode
_decode = msgspec.json.Decoder().decode


def pack(events: Iterable[News]) -> bytes:
    """The events of one turn as they are stored."""
    rows = [_words(news) for news in events]
    try:
        return _encode(rows)
    except TypeError:  # such as what an application reported as progress
        return _encode_any(rows)


def _words(news: News) -> list[Any]:
    if isinstance(news, Record):
        spec = news.spec
        duration = None
        if news.completed_at is not None and news.started_at is not None:
            duration = news.completed_at - news.started_at
        return [_codes[news.state], news.id, spec.task, news.attempt, spec.services[:1], duration]
    event = make_event(0, news)
    data = {name: value for name, value in event.data.items() if name != "exception"}
    return [event.type, event.work_id, event.task, event.attempt, event.final, event.error, event.will_retry,
            event.duration, event.service, data]  # fmt: skip


def unpack(body: bytes, first_seq: int, at: float, result_of: Callable[[str], Any]) -> list[Event]:
    """The events of one turn again."""
    try:
        return [_event(first_seq + place, at, words, result_of) for place, words in enumerate(_decode(body))]
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        raise StorageCorrupt(
            f"The stored events from number {quoted(first_seq)} on are damaged ({error}). Restore a backup, or go on "
            "after them."
        ) from error


def _event(seq: int, at: float, words: list[Any], result_of: Callable[[str], Any]) -> Event:
    if isinstance(words[0], int):
        code, work_id, task, attempt, services, duration = words
        is_over = code == 2
        return Event(EVERYDAY[code], seq, at, work_id, task, attempt, is_over,
                     result_of(work_id) if is_over else None, duration=duration if is_over else None,
                     service=services[0] if services else None)  # fmt: skip
    type, work_id, task, attempt, final, error, will_retry, duration, service, data = words
    return Event(
        type, seq, at, work_id, task, attempt, final, None, error, will_retry, duration, service, data
    )
