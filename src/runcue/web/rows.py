"""Turns units and services into what people are shown: times by the host's clock, bounded sizes, no secrets.

Masking long texts takes time. So lists mask only the beginning of a text, and code that makes many rows yields to the
event loop now and then: it may be the loop of the application that runs the queue.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from runcue import mask
from runcue.web.shapes import (
    Detail,
    Failures,
    Group,
    GroupProgress,
    HowFar,
    Reason,
    Row,
    Schedule,
    Service,
    Try,
    Why,
    Worker,
)

if TYPE_CHECKING:
    from runcue import Event, Explanation, GroupCounts, ScheduleInfo, Work

LONGEST_ERROR = 300
LONGEST_GROUP = 200
LONGEST_TITLE = 200
LOOKED_AT = 3
"""In a list, how many times the shown length of a text is searched for secrets."""
IN_A_ROW = 20
"""Units after which other tasks may run."""
LARGEST_VALUE = 1 << 20
"""Bytes of JSON up to which params and results are shown."""
MOST_NEEDS = 20
STEADY = 0.5
"""Seconds that the two clocks may drift apart before the offset is set anew."""

_CUT_URL = re.compile(r"://[^\s/@]*\Z")
"""The end of a text that may be the beginning of a password."""
_NUMBERS = re.compile(r"\b(?:0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*|\d+(?:\.\d+)?)\b")


class WallClock:
    """Turns queue time into wall-clock time."""

    def __init__(self) -> None:
        self._offset = 0.0

    def tell(self, now: float) -> float:
        """Learn the present queue time, and return it as wall-clock time."""
        offset = time.time() - now
        if abs(offset - self._offset) > STEADY:
            self._offset = offset
        return now + self._offset

    def at(self, moment: float | None) -> float | None:
        """A moment of queue time as wall-clock time."""
        return None if moment is None else moment + self._offset


# values ---------------------------------------------------------------------------------------------------


def shown(value: Any, largest: int = LARGEST_VALUE) -> Any:
    """Any value as plain JSON values without secrets; in place of one that is too large, a text that says so."""
    try:
        plain = mask(msgspec.to_builtins(value, str_keys=True, enc_hook=_described))
        size = len(encoded(plain))
    except Exception as error:  # noqa: BLE001 (an application's value may raise anything)
        return f"cannot be shown: {type(error).__name__}"
    return plain if size <= largest else f"too large to be shown: {size:,} bytes"


def _described(value: object) -> Any:
    """A value that JSON has no form for: a path and a model as they are stored, anything else as its text."""
    if isinstance(value, PurePath):
        return str(value)
    dump = getattr(type(value), "model_dump", None)
    return mask(repr(value)[:1000]) if dump is None else dump(value, mode="json")


def encoded(value: Any) -> bytes:
    """The JSON of a value, on one line; lone surrogates are escaped."""
    try:
        return msgspec.json.encode(value, enc_hook=_described)
    except UnicodeEncodeError:
        import json

        return json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=_described)).encode()


def words(text: str | None, longest: int | None = None) -> str | None:
    """A text without secrets, cut to `longest` characters."""
    if text is None:
        return None
    if longest is None or len(text) <= LOOKED_AT * longest:
        hidden = str(mask(text))
        return hidden if longest is None or len(hidden) <= longest else hidden[: longest - 1] + "…"
    beginning = _CUT_URL.sub("://", text[: LOOKED_AT * longest])
    return str(mask(beginning))[: longest - 1] + "…"


# units ----------------------------------------------------------------------------------------------------


def why_of(found: Explanation, clock: WallClock, now: float) -> Why:
    """Why a unit waits."""
    return Why(
        reason=found.reason,
        text=str(mask(found.brief)),
        details=str(mask(found.details)),
        until=clock.at(found.until),
        seconds=None if found.until is None else max(0.0, found.until - now),
        service=found.service,
        ahead=found.ahead,
        waits_for=list(found.waits_for[:MOST_NEEDS]),
    )


async def in_turns(works: Iterable[Work]) -> AsyncIterator[Work]:
    """The units one by one; after every `IN_A_ROW` other tasks may run."""
    for number, work in enumerate(works, 1):
        yield work
        if number % IN_A_ROW == 0:
            await asyncio.sleep(0)


async def rows_of(
    works: Iterable[Work], clock: WallClock, whys: Mapping[str, Why] | None = None
) -> list[Row]:
    """Rows for a list; `whys` has the reasons of units that wait, by id."""
    reasons = whys or {}
    return [Row(**_facts(work, clock, reasons.get(work.id))) async for work in in_turns(works)]


def has_text(work: Work, text: str) -> bool:
    """Whether a text occurs in what people are shown of a unit: never by a secret, which could else be guessed."""
    wanted = text.encode("utf-8", "replace").lower()
    texts = (words(one) or "" for one in (work.id, work.idempotency_key, work.label, work.target, work.error))
    return wanted in encoded(shown(work.params)).lower() or any(
        wanted in one.encode("utf-8", "replace").lower() for one in texts
    )


def detail_of(work: Work, clock: WallClock, why: Why | None) -> Detail:
    """A unit with all its fields."""
    return Detail(
        **_facts(work, clock, why) | {"error": words(work.error)},
        params=shown(work.params),
        result=shown(work.result),
        traceback=words(work.traceback),
        history=[
            Try(
                number=one.number,
                at=clock.at(one.at),
                duration=one.duration,
                error=words(one.error) or "",
                worker=one.worker,
            )
            for one in work.history
        ],
        timeout=work.timeout,
        retry=shown(work.retry),
        depends_on=list(work.depends_on),
        dependency_timeout=work.dependency_timeout,
        idempotency_key=words(work.idempotency_key),
        expires_at=clock.at(work.expires_at),
        progress=_how_far(work),
    )


def _how_far(work: Work) -> HowFar | None:
    fraction, text = work.progress.fraction, work.progress.text
    return None if fraction is None and text is None else HowFar(fraction=fraction, text=words(text))


def _facts(work: Work, clock: WallClock, why: Why | None) -> dict[str, Any]:
    began, ended = work.started_at, work.completed_at
    return {
        "id": work.id,
        "task": work.task,
        "target": words(work.target),
        "queue": work.queue,
        "state": work.state.value,
        "attempt": work.attempt,
        "failures": work.failures,
        "priority": work.priority,
        "created_at": clock.at(work.created_at),
        "started_at": clock.at(began),
        "completed_at": clock.at(ended),
        "next_retry_at": clock.at(work.next_retry_at),
        "run_at": work.run_at,
        "duration": None if began is None or ended is None else ended - began,
        "services": list(work.services),
        "worker": work.worker,
        "error": words(work.error, LONGEST_ERROR),
        "skipped": work.skipped,
        "title": words(work.title, LONGEST_TITLE) or "",
        "group": work.group,
        "tags": {name: words(value) or "" for name, value in work.tags.items()},
        "why": why,
    }


def reasons_of(whys: Iterable[Why]) -> list[Reason]:
    """How many units wait for each reason, the most frequent first."""
    counts: dict[str, tuple[int, float | None]] = {}
    for why in whys:
        count, soonest = counts.get(why.text, (0, None))
        if why.seconds is not None:
            soonest = why.seconds if soonest is None else min(soonest, why.seconds)
        counts[why.text] = count + 1, soonest
    ordered = sorted(counts.items(), key=lambda item: -item[1][0])
    return [Reason(text=text, count=count, seconds=seconds) for text, (count, seconds) in ordered]


def group_key(work: Work) -> tuple[str, str]:
    """The group of a dead letter: its task, and the first line of its error without the numbers."""
    lines = (work.error or "").splitlines()
    return work.task, _NUMBERS.sub("#", words(lines[0] if lines else "", LONGEST_GROUP) or "")


async def failures_of(dead: list[Work], clock: WallClock) -> Failures:
    """Dead letters by error, the largest group first."""
    groups: dict[tuple[str, str], list[Work]] = {}
    async for work in in_turns(dead):
        groups.setdefault(group_key(work), []).append(work)

    def group(task: str, error: str, works: list[Work]) -> Group:
        times = [work.completed_at for work in works if work.completed_at is not None]
        return Group(
            task=task,
            error=error,
            count=len(works),
            first_at=clock.at(min(times, default=None)),
            last_at=clock.at(max(times, default=None)),
            sample=works[0].id,
        )

    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return Failures(groups=[group(*key, works) for key, works in ordered], looked_at=len(dead))


# the rest -------------------------------------------------------------------------------------------------


def group_of(name: str, counts: GroupCounts) -> GroupProgress:
    """A group as it is shown."""
    numbers: dict[Any, int] = {str(state): number for state, number in counts.by_state.items()}
    return GroupProgress(name=name, text=counts.text, fraction=counts.fraction, counts=numbers)


def service_of(found: Mapping[str, Any], clock: WallClock) -> Service:
    """A service as it is shown."""
    return msgspec.convert({**found, "until": clock.at(found["until"])}, Service)


def schedule_of(one: ScheduleInfo, last: Work | None, clock: WallClock) -> Schedule:
    """A schedule as it is shown; `last` is its last unit, if that is still kept."""
    facts = {field: getattr(one, field) for field in one.__struct_fields__ if field != "params"}
    return Schedule(
        **facts
        | {
            "title": _title_of(one),
            # Slots of cron are moments of wall time already.
            "next_at": one.next_at if one.cron is not None else clock.at(one.next_at),
            "last_at": clock.at(one.last_at),
            "last_state": None if last is None else last.state.value,
        }
    )


def _title_of(one: ScheduleInfo) -> str:
    command = one.params.get("command")
    text = command if isinstance(command, str) else encoded(shown(one.params)).decode() if one.params else ""
    return words(text, LONGEST_TITLE) or ""


def worker_of(found: Mapping[str, Any], clock: WallClock) -> Worker:
    """A worker process as it is shown."""
    return msgspec.convert({**found, "started_at": clock.at(found["started_at"])}, Worker)


def event_line(event: Event, clock: WallClock) -> bytes:
    """An event as JSON on one line."""
    whole = {field: getattr(event, field) for field in event.__struct_fields__}
    whole |= {"name": event.name, "at": clock.at(event.at), "error": words(event.error)}
    whole |= {"result": shown(event.result, 1 << 16), "data": shown(event.data, 1 << 16)}
    return encoded(whole)
