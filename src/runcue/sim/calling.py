"""What the log of calls that the mock services keep says about a queue: the rules that events alone cannot show.

Where the moment of a change of limits is not known, both are allowed. A call of a node that died ended with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from runcue.sim.promise import ROUNDING, Call, Life, Limits, Start, Violation

Deaths = Mapping[object, Sequence[float]]
"""When each node died."""
Limited = Sequence[tuple[float, Limits, bool]]
"""From when on a service had which limits, and whether that is sure."""
Probe = tuple[str, Start, float, str]
"""A service, its probe, and when which other work was started on it."""


def judge_work(life: Life, calls: Sequence[Call], deaths: Deaths) -> Iterator[Violation]:
    """The calls of one work, in order: each was started, none overlap, none was taken away, the last one counts."""
    for call in calls:
        if call.attempt not in life.attempts:
            text = f"work {life.id} was called as attempt {call.attempt}, which was not started"
            yield Violation("overlap", call.entered_at, text, (life.id,))
    for call, following in pairwise(calls):
        if call.left_at is None or call.left_at > following.entered_at:
            text = f"work {life.id} was called on {following.node} while {call.node} was at it"
            yield Violation("overlap", following.entered_at, text, (life.id,))
    for start, at in life.lost:
        lost = _call_of(start, calls, at)
        if lost is not None and not has_died(lost, at, deaths):
            text = f"work {life.id} was started again, though {lost.node} lived, which ran it"
            yield Violation("attempts", at, text, (life.id,))
    if life.completed_at is not None:
        last = calls[-1] if calls else None
        if last is None or last.attempt != life.attempt:
            text = f"work {life.id} is complete by attempt {life.attempt}, which was not its last call"
            yield Violation("result", life.completed_at, text, (life.id,))
        elif last.how != "ok" or last.left_at is None or last.left_at > life.completed_at:
            text = f"work {life.id} is complete, though its last call had not returned"
            yield Violation("result", life.completed_at, text, (life.id,))


def judge_probes(probes: Iterable[Probe], calls: Sequence[Call], deaths: Deaths) -> Iterator[Violation]:
    """A second probe is right when the first was over, or its node was."""
    for service, probe, at, second in probes:
        call = _call_of(probe, calls, at)
        if call is None:  # its node died before it was called
            is_over = any(died <= at for times in deaths.values() for died in times)
        else:
            is_over = (call.left_at is not None and call.left_at <= at) or has_died(call, at, deaths)
        if not is_over:
            text = f"work {second} started on {service} while {probe[0]} was its probe"
            yield Violation("circuit", at, text, (second, probe[0]))


def judge_service(name: str, limited: Limited, calls: Sequence[Call]) -> Iterator[Violation]:
    """All calls of one service, in order: no window exceeded, and not too many at once."""
    times = [call.entered_at for call in calls]
    going_on: list[tuple[float, str]] = []
    for place, call in enumerate(calls):
        allowed = list(in_force(limited, call.entered_at))
        over = [exceeded(times, place, limits.rates) for limits in allowed]
        if all(over):
            most, window = over[0] or (0, 0.0)
            crowd = tuple(one.work_id for one in calls[place - most : place + 1])
            stretch = times[place] - times[place - most]
            text = f"{name} was called {most + 1} times within {stretch:.6f} s, {most} in {window:g} s are allowed"
            yield Violation("rate", call.entered_at, text, crowd)
        while going_on and going_on[0][0] <= call.entered_at:
            heappop(going_on)
        heappush(going_on, (float("inf") if call.left_at is None else call.left_at, call.work_id))
        if all(limits.concurrent is not None and len(going_on) > limits.concurrent for limits in allowed):
            text = f"{len(going_on)} calls of {name} at once, {allowed[0].concurrent} are allowed"
            yield Violation("concurrency", call.entered_at, text, tuple(work_id for _, work_id in going_on))


def by_work(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """The calls of each work."""
    found: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.work_id].append(call)
    return found


def has_died(call: Call, until: float, deaths: Deaths) -> bool:
    """True when the node of that call died after it began."""
    return any(call.entered_at <= died <= until for died in deaths.get(call.node, ()))


def in_force(limited: Limited, at: float) -> Iterator[Limits]:
    """The limits that may have been in force at that moment."""
    for since, limits, is_sure in reversed(limited):
        if since <= at:
            yield limits
            if is_sure and since < at:
                return


def exceeded(
    times: Sequence[float], place: int, rates: Iterable[tuple[int, float]]
) -> tuple[int, float] | None:
    """The first of the rates that the call at that place is one too many for."""
    for most, window in rates:
        if place >= most and times[place] - times[place - most] < window - ROUNDING:
            return most, window
    return None


def _call_of(start: Start, calls: Iterable[Call], until: float) -> Call | None:
    """The call that a start led to; None when its node died before that."""
    work_id, attempt, since = start
    for call in calls:
        if since <= call.entered_at <= until and call.work_id == work_id and call.attempt == attempt:
            return call
    return None
