"""Says what a history and the final database have to do with each other: the invariants, as pure functions.

Acknowledgements and witnesses are believed; the database is compared with them. A call without an answer may or may
not have happened. Work is known by its `tag`, which the submitter made up and every witness repeats, so that a
submission whose answer was lost is still known. The result of a handler is the token of its start.

    I1   accepted work is there and, after the drain, final; a batch is there whole or not at all
    I2   nothing runs and nothing is stored that nobody submitted, and nothing twice
    I3   one result is accepted, that of the latest start; what is final stays as it is
    I4   every start but the last ended in a way that calls for another, within the budgets
    I5   two starts of one work never overlap
    I6   no window of a rate holds more starts than it may, wherever it begins
    I7   no more run at once than a service allows
    I8   work starts after everything it depends on was completed, or never
    I9   each slot of a schedule has one unit, and none is left out between two others
    I10  the work of a dead owner starts again in time
    I11  every start that counts has a number of its own; retries wait as their policy says
    I12  what was told about one work is a possible life, and how it ended was told
    I14  the file is sound and private
    LM11 after a failed probe nothing starts until the circuit's wait is over, in any process
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from tests.torture.history import Line
from tests.torture.seen import NEVER, Limits, Policy, Rate, Row, Run, Seen

FINAL: Final = frozenset({"completed", "failed", "cancelled"})
ROUNDING: Final = 1e-6
"""What times kept as seconds since 1970 lose in a float."""
MOST_TEXTS: Final = 20
"""How many violations of one invariant are put into words."""

FOLLOWS: Final[dict[str | None, frozenset[str]]] = {
    None: frozenset({"queued"}),
    "queued": frozenset({"started", "skipped", "failed", "cancelled"}),
    "started": frozenset({"started", "completed", "failed", "cancelled", "retrying"}),
    "failed": frozenset({"retrying"}),
    "retrying": frozenset({"started", "skipped", "failed", "cancelled"}),
}
"""Which event may come after which; an event that is final is followed by nothing."""
ASIDES: Final = frozenset({"progress", "stale_completion", "lease_lost", "pending_warning"})
"""Events that are no move."""
SLOT: Final = re.compile(r"schedule/(\w+)/(.+)").fullmatch
"""The tag of a unit that a schedule submitted: its name, and a slot in every second."""
ENDINGS: Final = {
    "completed": "completed",
    "skipped": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


class Violation(NamedTuple):
    """An invariant that does not hold, and what shows it."""

    invariant: str
    text: str


class Grant(NamedTuple):
    """A permission that the store counted."""

    service: str
    t: float
    amount: int = 1
    work: str = ""


class EventDraft(NamedTuple):
    """An event as a reader saw it."""

    seq: int
    type: str
    work: str
    final: bool = False
    at: float = 0.0


class Storage(msgspec.Struct, frozen=True):
    """What SQLite and the file system say about the file."""

    integrity: tuple[str, ...] = ("ok",)
    foreign_keys: tuple[str, ...] = ()
    version: int = 0
    expected_version: int | None = None
    modes: dict[str, int] = {}
    """Permissions of each file; a folder's name ends with a slash."""


def check(
    history: Sequence[Line],
    dump: Sequence[Row],
    limits: Limits,
    *,
    grants: Iterable[Grant] = (),
    events: Sequence[EventDraft] | None = None,
    storage: Storage | None = None,
) -> list[Violation]:
    """Every violation that the history and the final database show; none for a queue that kept its promises."""
    seen = Seen(history, dump, limits)
    found: list[Violation] = []
    for name, rule in RULES.items():
        found += _some(name, rule(seen))
    found += _some("I6", grants_over_rate(grants, limits, events or ()))
    if events is not None:
        found += _some("I12", impossible_lives(events, seen))
    if storage is not None:
        found += _some("I14", unsound_storage(storage))
    return found


def recoveries(seen: Seen) -> list[float]:
    """For each start that its owner's death cut short: how long until the work started again."""
    return [waited for _, waited, _ in _recovered(seen)]


def _some(name: str, texts: Iterable[str]) -> list[Violation]:
    """The first violations of one invariant, and how many more there are."""
    every = list(texts)
    shown = [Violation(name, text) for text in every[:MOST_TEXTS]]
    if len(every) > MOST_TEXTS:
        shown.append(Violation(name, f"… and {len(every) - MOST_TEXTS} more"))
    return shown


# --- I1, I2: what was accepted is there, and nothing else -----------------------------------------


def lost_work(seen: Seen) -> Iterator[str]:
    """I1."""
    tags = {row["tag"] for row in seen.dump}
    for t, wanted, key, answer in seen.submissions:
        if answer is not None and answer.kind == "ok":
            yield from _lost(seen, wanted, answer)
        elif key is None:
            there = sum(tag in tags for tag in wanted)
            if answer is not None and answer.kind == "fail" and there:
                yield f"{wanted} was refused at {answer.t:.6f} and is there all the same"
            elif 0 < there < len(wanted):
                yield f"of the batch {wanted}, submitted at {t:.6f}, only {there} are there"
    for line in seen.history:
        if line.op == "look" and line.data["state"] == "gone":
            yield f"work {line.work}, which had been accepted, was not found at {line.t:.6f}"
    for row in seen.dump:
        if row["state"] not in FINAL:
            yield f"work {row['id']} ({row['tag']}) is {row['state']} after the drain"


def _lost(seen: Seen, wanted: tuple[str, ...], answer: Line) -> Iterator[str]:
    ids = answer.data["ids"]
    if len(ids) != len(wanted):
        yield f"{len(wanted)} submitted, {len(ids)} ids answered at {answer.t:.6f}"
    for tag, work in zip(wanted, ids, strict=False):
        row = seen.rows.get(work)
        if row is None:
            yield f"work {work} ({tag}) was accepted at {answer.t:.6f} and is gone"
        elif row["tag"] != tag:
            yield f"work {work} was accepted as {tag} and is {row['tag']}"


def ghosts(seen: Seen) -> Iterator[str]:
    """I2."""
    asked: dict[str, float] = {}
    answers: dict[str, set[str]] = defaultdict(set)
    for t, wanted, _, answer in seen.submissions:
        for tag in wanted:
            asked[tag] = min(t, asked.get(tag, NEVER))
        if answer is not None and answer.kind == "ok":
            for tag, work in zip(wanted, answer.data["ids"], strict=False):
                answers[tag].add(work)
    stored: dict[str, list[str]] = defaultdict(list)
    for row in seen.dump:
        stored[row["tag"]].append(row["id"])
    for tag, works in stored.items():
        if tag not in asked and not SLOT(tag):
            yield f"{works} ({tag}) is stored, and nobody submitted it"
        if len(works) > 1:
            yield f"{tag} is stored {len(works)} times: {works}"
    for tag, answered in answers.items():
        if len(answered) > 1:
            yield f"{tag} was accepted under several ids: {sorted(answered)}"
    for run in seen.runs:
        if asked.get(run.tag, NEVER) > run.start and not SLOT(run.tag):
            yield f"work {run.work} ({run.tag}) started at {run.start:.6f}, before anybody submitted it"
        if run.work not in seen.rows:
            yield f"work {run.work} ({run.tag}) ran and is not stored"


def broken_schedules(seen: Seen) -> Iterator[str]:
    """I9."""
    slots: dict[str, list[datetime]] = defaultdict(list)
    for row in seen.dump:
        if (found := SLOT(row["tag"])) is not None:
            slots[found[1]].append(datetime.fromisoformat(found[2]))
    for name, moments in slots.items():
        for before, after in pairwise(sorted(moments)):
            seconds = (after - before).total_seconds()
            if seconds == 0:
                yield f"slot {before} of schedule {name} has two units"
            elif seconds > 1.5:
                yield f"schedule {name} has no slot between {before} and {after}"


# --- I3, I4, I5, I11: starts ----------------------------------------------------------------------


def doubtful_results(seen: Seen) -> Iterator[str]:
    """I3. A start that was granted before a cancel may be witnessed a little after it."""
    for row in seen.dump:
        yield from _doubtful_row(seen, row)
    for line in seen.history:
        if line.kind != "ok" or line.work is None:
            continue
        row = seen.rows.get(line.work, {})
        state = row.get("state", "gone")
        later = (
            [] if state == "cancelled" else [x for x in seen.runs_of.get(line.work, ()) if x.start > line.t]
        )
        if line.op == "look" and line.data["state"] in FINAL:
            if state != line.data["state"] or row.get("result") != line.data.get("result"):
                yield f"work {line.work} was seen {line.data['state']} at {line.t:.6f} and is {state}"
            if later:
                yield f"work {line.work} was seen {line.data['state']} and started again at {later[0].start:.6f}"
        elif line.op == "cancel":
            if line.data["answer"] and state != "cancelled":
                yield f"cancel of work {line.work} was confirmed at {line.t:.6f}, and it is {state}"
            elif later and not line.data["answer"]:
                yield f"work {line.work} was said to be over at {line.t:.6f} and started at {later[0].start:.6f}"


def _doubtful_row(seen: Seen, row: Row) -> Iterator[str]:
    runs = seen.runs_of.get(row["id"], [])
    if row["state"] == "completed" and not row.get("skipped"):
        run = seen.run_by_token.get(row["result"] or "")
        if run is None or run.work != row["id"]:
            yield f"work {row['id']} is completed with the result {row['result']!r}, which no start of it gave"
        elif run.outcome != "ok":
            yield f"work {row['id']} is completed by start {run.token}, which ended {run.outcome}"
        elif run is not runs[-1]:
            yield f"work {row['id']} is completed by start {run.token}, though {runs[-1].token} came after it"
    elif (
        row["state"] == "failed"
        and runs
        and runs[-1].outcome == "ok"
        and not _was_lost(seen, runs[-1], NEVER)
    ):
        yield f"work {row['id']} failed, though its last start {runs[-1].token} succeeded"


def needless_starts(seen: Seen) -> Iterator[str]:
    """I4."""
    for work, runs in seen.runs_of.items():
        for run, following in pairwise(runs):
            if run.outcome == "fail" or seen.was_put_back(run) or _was_lost(seen, run, following.start):
                continue
            yield f"work {work} started again at {following.start:.6f}; nothing had happened to start {run.token}"
        policy = seen.limits.tasks.get(runs[0].task, Policy())
        cut = sum(seen.is_cut(run) for run in runs)
        failed = sum(
            run.outcome == "fail" and not seen.is_crashed(run.actor) and not seen.was_put_back(run)
            for run in runs
        )
        if cut > seen.limits.crashes:
            yield f"work {work} was started {cut} times by owners that died in it; {seen.limits.crashes} are allowed"
        if failed > policy.attempts:
            yield f"work {work} failed {failed} times; {policy.attempts} attempts are allowed"


def _was_lost(seen: Seen, run: Run, until: float) -> bool:
    """True when others could take that start for lost, whatever became of it."""
    if seen.died_before(run, until):
        return True
    if seen.limits.one_host:
        return False
    since = run.start - seen.limits.after_pause
    return any(begin < until and end > since for begin, end in seen.pauses.get(run.actor, ()))


def overlaps(seen: Seen) -> Iterator[str]:
    """I5."""
    if not seen.limits.one_host:
        return
    for work, runs in seen.runs_of.items():
        for run, following in pairwise(runs):
            if following.start < seen.over(run):
                yield f"work {work}: {following.token} started at {following.start:.6f} while {run.token} was running"


def miscounted_attempts(seen: Seen) -> Iterator[str]:
    """I11."""
    for work, runs in seen.runs_of.items():
        policy = seen.limits.tasks.get(runs[0].task, Policy())
        for run, following in pairwise(runs):
            least = run.attempt + (not seen.was_put_back(run))
            if following.attempt < least:
                yield f"work {work}: start {following.token} is attempt {following.attempt}, expected {least} or more"
            if run.outcome == "fail" and run.end is not None and not _was_lost(seen, run, following.start):
                waited = following.start - run.end
                if waited < policy.delay - ROUNDING:
                    yield f"work {work} was retried after {waited:.6f} s, expected {policy.delay:g} or more"
        row = seen.rows.get(work)
        if row is None:
            continue
        if row["attempt"] < runs[-1].attempt:
            yield f"work {work} has attempt {row['attempt']} stored, but {runs[-1].attempt} was seen"
        accepted = seen.run_by_token.get(row["result"] or "") if row["state"] == "completed" else None
        if accepted is not None and row["attempt"] != accepted.attempt:
            yield f"work {work} has attempt {row['attempt']} stored, but {accepted.attempt} completed it"
        if row["attempt"] > runs[-1].attempt + len(seen.deaths):
            yield f"work {work} has attempt {row['attempt']} stored, far more than {runs[-1].attempt}, the last seen"


# --- I6, I7, LM11: limits -------------------------------------------------------------------------


def windows_exceeded(times: Sequence[float], rate: Rate, tolerance: float) -> list[tuple[float, float]]:
    """Where more than `rate` allows lie in one window: each such stretch's first moment and its length."""
    ordered = sorted(times)
    return [
        (first, last - first)
        for first, last in zip(ordered, ordered[rate.most :], strict=False)
        if last - first < rate.window - tolerance
    ]


def witnesses_over_rate(seen: Seen) -> Iterator[str]:
    """I6, as the far side of each service saw it."""
    times: dict[str, list[float]] = defaultdict(list)
    for run in seen.runs:
        if not _just_woke(seen, run):
            for service in run.services:
                times[service].append(run.start)
    for name, declared in seen.limits.services.items():
        for rate in declared.rates:
            yield from _told_windows(name, "starts", times[name], rate, seen.limits.tolerance)


def grants_over_rate(
    grants: Iterable[Grant], limits: Limits, events: Iterable[EventDraft] = ()
) -> Iterator[str]:
    """I6, as the store counted it: exact, at the moments when the starts were granted, of which events tell.

    What is stored with a grant is when the call had to have begun: later, by how busy the machine was just then.
    Others count it from there, who granted it from when it did begin. So stored times may lie nearer to each other
    than a window is long, as soon as the machine is less busy (tests/core/limits/test_lag.py). But nobody grants a
    start while as many as may be were granted within the window before it.
    """
    told: dict[str, list[float]] = defaultdict(list)
    for event in sorted(events):
        if event.type == "started":
            told[event.work].append(event.at)
    granted: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    counts: Counter[tuple[str, str, float]] = Counter()
    for service, t, amount, work in grants:
        counts[service, work, t] += amount  # less than none for what was granted and not used
        pairs = granted[service, work]
        for _ in range(amount):
            moments = told.get(work, [])[len(pairs) :]
            pairs.append((t, moments[0] if moments else t))
    times: dict[str, list[float]] = defaultdict(list)
    for (service, work), pairs in granted.items():
        if work in told and len(pairs) != len(told[work]):
            yield f"work {work} was started {len(told[work])} times; service {service} counted {len(pairs)}"
        for counted_at, at in pairs:
            if at > counted_at:
                yield f"work {work} was started at {at:.6f}, but service {service} counts it from {counted_at:.6f}"
            if counts[service, work, counted_at] > 0:
                counts[service, work, counted_at] -= 1
                times[service].append(at)
    for name, declared in limits.services.items():
        for rate in declared.rates:
            yield from _told_windows(name, "grants", times[name], rate, ROUNDING)


def _told_windows(name: str, what: str, times: list[float], rate: Rate, tolerance: float) -> Iterator[str]:
    for first, length in windows_exceeded(times, rate, tolerance):
        yield f"service {name}: {rate.most + 1} {what} within {length:.6f} s from {first:.6f}, {rate} allowed"


def _just_woke(seen: Seen, run: Run) -> bool:
    return any(
        begin <= run.start <= end + seen.limits.after_pause for begin, end in seen.pauses.get(run.actor, ())
    )


def crowds(seen: Seen) -> Iterator[str]:
    """I7."""
    for name, service in seen.limits.services.items():
        if service.concurrent is None:
            continue
        steps = [
            step
            for run in seen.runs
            if name in run.services
            for step in ((run.start, 1), (seen.over(run), -1))
        ]
        at_once = 0
        for t, more in sorted(steps):
            at_once += more
            if more > 0 and at_once > service.concurrent:
                yield f"service {name}: {at_once} at once at {t:.6f}, {service.concurrent} allowed"


def early_probes(seen: Seen) -> Iterator[str]:
    """LM11: failures whose commit is certain are counted; a start that a death cut short proves nothing."""
    for name, service in seen.limits.services.items():
        if service.circuit is None or service.concurrent != 1:
            continue
        runs = [run for run in seen.runs if name in run.services]
        failures = 0
        for run, following in pairwise(runs):
            if run.end is None or _was_lost(seen, run, following.start) or seen.was_put_back(run):
                continue
            failures = failures + 1 if run.outcome == "fail" else 0
            waited = following.start - run.end
            if failures >= service.circuit.threshold and waited < service.circuit.timeout - ROUNDING:
                yield (
                    f"service {name}: {following.token} started {waited:.6f} s after failure {failures} in a row, "
                    f"expected {service.circuit.timeout:g} or more"
                )


# --- I8, I10: order and recovery ------------------------------------------------------------------


def early_dependents(seen: Seen) -> Iterator[str]:
    """I8."""
    for row in seen.dump:
        runs = seen.runs_of.get(row["id"])
        if not runs:
            continue
        for parent_id in row["depends_on"]:
            parent = seen.rows.get(parent_id)
            if parent is None or parent["state"] != "completed":
                state = "unknown" if parent is None else parent["state"]
                yield f"work {row['id']} started, though {parent_id}, on which it depends, is {state}"
                continue
            accepted = seen.run_by_token.get(parent["result"] or "")
            if accepted is not None and seen.over(accepted) > runs[0].start:
                yield f"work {row['id']} started at {runs[0].start:.6f}, before {parent_id} was completed"


def _recovered(seen: Seen) -> Iterator[tuple[Run, float, bool]]:
    """Each cut start whose work was to run again: how long it took, and whether it did at all."""
    last = seen.history[-1].t if seen.history else 0.0
    for work, runs in seen.runs_of.items():
        for run, following in pairwise([*runs, None]):
            assert run is not None
            if not seen.is_cut(run):
                continue
            died = seen.deaths[run.actor].t
            if following is not None:
                yield run, seen.available(died, max(died, following.start)), True
            elif seen.rows.get(work, {"state": "gone"})["state"] not in FINAL:
                yield run, seen.available(died, last), False


def slow_recoveries(seen: Seen) -> Iterator[str]:
    """I10."""
    for run, waited, has_started in _recovered(seen):
        if waited > seen.limits.recovery:
            end = (
                f"started again after {waited:.3f} s"
                if has_started
                else f"had not started after {waited:.3f} s"
            )
            yield f"work {run.work}, whose owner {run.actor} died, {end} in which it could have"


# --- I12, I14: what was told, and the file --------------------------------------------------------


def impossible_lives(events: Sequence[EventDraft], seen: Seen) -> Iterator[str]:
    """I12."""
    lives: dict[str, list[EventDraft]] = defaultdict(list)
    for told in sorted(events):
        if told.type not in ASIDES:
            lives[told.work].append(told)
    for work, life in lives.items():
        before: EventDraft | None = None
        for told in life:
            allowed = FOLLOWS.get(before.type if before else None, frozenset())
            if (before is not None and before.final) or told.type not in allowed:
                yield f"work {work}: {told.type} (event {told.seq}) came after {before and before.type}"
            before = told
    for work, row in seen.rows.items():
        told_of = lives.get(work, [])
        if row["state"] in FINAL and (not told_of or ENDINGS.get(told_of[-1].type) != row["state"]):
            last = told_of[-1].type if told_of else "nothing"
            yield f"work {work} is {row['state']}, and the last that was told of it is {last}"


def unsound_storage(storage: Storage) -> Iterator[str]:
    """I14."""
    if storage.integrity != ("ok",):
        yield f"integrity_check: {', '.join(storage.integrity)}"
    if storage.foreign_keys:
        yield f"foreign_key_check: {', '.join(storage.foreign_keys)}"
    if storage.expected_version is not None and storage.version != storage.expected_version:
        yield f"user_version is {storage.version}, expected {storage.expected_version}"
    for name, mode in storage.modes.items():
        expected = 0o700 if name.endswith("/") else 0o600
        if mode & 0o777 != expected:
            yield f"{name} has mode {mode & 0o777:o}, expected {expected:o}"


RULES: Final[dict[str, Callable[[Seen], Iterator[str]]]] = {
    "I1": lost_work,
    "I2": ghosts,
    "I3": doubtful_results,
    "I4": needless_starts,
    "I5": overlaps,
    "I6": witnesses_over_rate,
    "I7": crowds,
    "I8": early_dependents,
    "I9": broken_schedules,
    "I10": slow_recoveries,
    "I11": miscounted_attempts,
    "LM11": early_probes,
}
"""The invariants that a history and a dump are enough for."""

INVARIANTS: Final = (*RULES, "I12", "I14")
