"""Rules that events alone cannot show, judged from the mock services' own log of calls.

Where the moment of a change of limits is unknown, old and new limits are allowed. A node's death ends its calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

import msgspec

from runcue.sim.promise import ROUNDING, Call, Life, Limits, Start, Violation

Deaths = Mapping[object, Sequence[float]]
"""When each node died."""
Limited = Sequence[tuple[float, Limits, bool]]
"""The limits of a service, since when, and whether that is sure."""
ANSWERED: Final = frozenset({"ok", "error", "permanent"})
"""How calls end that returned an answer."""
LATEST: Final = 5.0
"""Seconds after its start within which a handler is entered, if at all."""
HAIR: Final = 1e-6
"""The rounding error of a sum of fractions, as a share of the limit."""
Probe = tuple[str, Start, float, str]
"""A service, its probe, and when which other unit was started on that service."""


def judge_work(life: Life, calls: Sequence[Call], deaths: Deaths) -> Iterator[Violation]:
    """Judge the calls of one unit, in order: each was started, none overlap, the last one counts."""
    for call in calls:
        if call.attempt not in life.attempts:
            text = f"unit {life.id} was called as attempt {call.attempt}, which was not started"
            yield Violation("overlap", call.entered_at, text, (life.id,))
    for call, following in pairwise(calls):
        if call.left_at > following.entered_at:
            text = f"unit {life.id} was called on {following.node} while {call.node} was at it"
            yield Violation("overlap", following.entered_at, text, (life.id,))
    for start, at in life.lost:
        lost = _call_of(start, calls, at)
        if lost is not None and not has_died(lost, at, deaths):
            text = f"unit {life.id} was started again, though {lost.node} lived, which ran it"
            yield Violation("attempts", at, text, (life.id,))
    if life.completed_at is not None:
        last = calls[-1] if calls else None
        if last is None or last.attempt != life.attempt:
            text = f"unit {life.id} is complete by attempt {life.attempt}, which was not its last call"
            yield Violation("result", life.completed_at, text, (life.id,))
        elif last.how != "ok" or last.left_at > life.completed_at:
            text = f"unit {life.id} is complete, though its last call had not returned"
            yield Violation("result", life.completed_at, text, (life.id,))


def judge_probes(probes: Iterable[Probe], calls: Sequence[Call], deaths: Deaths) -> Iterator[Violation]:
    """Judge second probes: the first, or its node, must have ended before."""
    for service, probe, at, second in probes:
        call = _call_of(probe, calls, at, service)
        if call is None:  # its node died before it was called
            is_over = any(died <= at for times in deaths.values() for died in times)
        else:
            is_over = call.left_at <= at or has_died(call, at, deaths)
        if not is_over:
            text = f"unit {second} started on {service} while {probe[0]} was its probe"
            yield Violation("circuit", at, text, (second, probe[0]))


def judge_service(name: str, limited: Limited, calls: Sequence[Call]) -> Iterator[Violation]:
    """Judge all calls of one service, in order: no window exceeded, and not too many at once."""
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
        heappush(going_on, (call.left_at, call.work_id))
        if all(limits.concurrent is not None and len(going_on) > limits.concurrent for limits in allowed):
            text = f"{len(going_on)} calls of {name} at once, {allowed[0].concurrent} are allowed"
            yield Violation("concurrency", call.entered_at, text, tuple(work_id for _, work_id in going_on))


class Use(msgspec.Struct, frozen=True):
    """A call that uses a quantity, with the events that report its start and its answer."""

    call: Call
    started: int
    started_at: float
    answered: int | None
    answered_at: float
    expected: Mapping[str, float]

    def known(self, quantity: str, at: int) -> float:
        """The least amount of this call that a start at event `at` has to count.

        After the answer that is what was charged; before it, the estimate or what was charged so far.
        """
        charged = [amount for name, amount in self.call.charges if name == quantity]
        expected = self.expected.get(quantity, 0)
        if not charged:
            return expected
        has_answered = self.call.how in ANSWERED and self.call.left_at <= self.answered_at
        if self.answered is not None and self.answered < at and has_answered and self.call.is_kept:
            return sum(charged)
        return min(expected, charged[0])


def judge_amounts(name: str, limited: Limited, uses: Sequence[Use]) -> Iterator[Violation]:
    """Judge all uses of one service, in the order of their starts: each started only when its estimate fitted."""
    for place, use in enumerate(uses):
        allowed = list(in_force(limited, use.started_at))
        over = [_overdrawn(uses, place, limits.quantities) for limits in allowed]
        if all(over):
            yield Violation("amount", use.started_at, f"{name}: {over[0]}", (use.call.work_id,))


def _overdrawn(
    uses: Sequence[Use], place: int, quantities: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """Why the start at that place did not fit; empty when it did."""
    use = uses[place]
    for quantity, rates in quantities.items():
        expected = use.expected.get(quantity, 0)
        for most, window in rates if expected else ():
            since = use.started_at - window
            before = 0.0
            for other in reversed(uses[:place]):
                if other.started_at < since - LATEST:
                    break
                if other.call.entered_at > since + ROUNDING:
                    before += other.known(quantity, use.started)
            if before + expected > most * (1 + HAIR):
                return (
                    f"unit {use.call.work_id} was to use {expected:g} {quantity} besides {before:g}, "
                    f"{most:g} in {window:g} s are allowed"
                )
    return ""


def by_work(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """The calls of each unit."""
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
    """The first rate that the call at that place exceeds."""
    for most, window in rates:
        if place >= most and times[place] - times[place - most] < window - ROUNDING:
            return most, window
    return None


def _call_of(start: Start, calls: Iterable[Call], until: float, service: str | None = None) -> Call | None:
    """The call that a start led to, on `service` if given; None when the node died before it.

    A refused call may be followed at once by another one of the same attempt: the last of them counts.
    """
    work_id, attempt, since = start
    found = None
    for call in calls:
        is_its = call.work_id == work_id and call.attempt == attempt
        if is_its and since <= call.entered_at <= until and (service is None or service in call.services):
            found = call
    return found
