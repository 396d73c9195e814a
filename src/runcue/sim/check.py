"""The promises of a queue, judged from outside: by its events and by the mock services' own log of calls.

    order         events come one by one, none is missing, time does not go back
    life          the events of a unit are in a possible order; none follow its end, unless it is retried by hand
    lost          an accepted unit ends or is still there; the answer that a caller got is true
    result        a result is that of the latest call, and that call had returned
    overlap       two calls of one unit never overlap, and none begins before its start was told
    attempts      starts are numbered rightly; no more failures than allowed, no more than three crashes
    retry         a retry waits as long as its policy says
    dependencies  nothing starts before all it depends on is complete; what ends badly takes its dependents along
    keys          one key, one unit: that is pending, running or complete
    circuit       nothing starts while a circuit is open, and one probe at a time while it is half-open
    priority      on one lane the better of two that could start starts first
    starvation    the same, where it is the better one because it has waited long
    rate          no window of a rate holds more calls than it may, wherever it begins
    concurrency   no more calls at once than a service allows
    amount        nothing starts that is expected to use more of a quantity than is left of it, as far as was known
    service       a call runs on the services its task names: on its key's part, on one that a pattern means
    slots         a slot of a schedule has one unit, unless it is left out by a rule; none is forgotten

Some facts are not in the events: the checker has to be told what was submitted (`submitted`), which node died, what
was retried by hand, how limits changed. A rule is not judged without the facts that it needs. Where the moment of a
change is not known, old and new limits are allowed: so every reported violation is real.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from runcue import Event, Retry
from runcue.sim import calling
from runcue.sim.config import Config
from runcue.sim.promise import (
    ROUNDING,
    Asked,
    Call,
    Circuit,
    Lane,
    Life,
    Limits,
    Rules,
    Task,
    Violation,
    fits,
    part_name,
    rules_of,
)
from runcue.sim.slots import Slots

__all__ = ["RULES", "Asked", "Checker", "Limits", "Rules", "Task", "Violation", "rules_of"]

MOST_CRASHES: Final = 3
LONGEST_WAIT: Final = 8
"""How many times its timeout a circuit waits at most, after probe upon probe failed."""
STRICT_STEP: Final = 1e10
"""Seconds that a point of priority is worth without ageing."""

LOST: Final = frozenset({"failed", "cancelled"})
FINAL: Final = LOST | {"completed"}
LIVES: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset({"queued"}),
    "pending": frozenset({"started", "skipped", "failed", "cancelled"}),
    "running": frozenset({"started", "skipped", "completed", "failed", "cancelled"}),
    "failing": frozenset({"retrying"}),
    "completed": frozenset(),
    "failed": frozenset({"queued"}),
    "cancelled": frozenset({"queued"}),
}
"""Which events may come next in a life. A start that its process did not survive is followed by another one."""


class Checker:
    """Hears every event of a queue, in order; `finish` says which promises were not kept."""

    def __init__(self, config: Config | Rules) -> None:
        rules = self._rules = config if isinstance(config, Rules) else rules_of(config)
        self._found: list[Violation] = []
        self._lives: dict[str, Life] = {}
        self._asked: dict[str, Asked] = {}
        self._dependents: dict[str, list[str]] = defaultdict(list)
        self._keys: dict[str, str] = {}
        self._accepted: dict[str, float] = {}
        self._cancelled: dict[str, float] = {}
        self._retried: set[str] = set()
        self._states: dict[str, str] | None = None
        self._deaths: dict[object, list[float]] = defaultdict(list)
        self._limits = {name: [(float("-inf"), limits, True)] for name, limits in rules.services.items()}
        self._circuits: dict[str, Circuit] = {}
        self._starts: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        """When each attempt was started, and by which event; a start that was given back happens again."""
        self._answers: dict[tuple[str, int], tuple[int, float]] = {}
        self._second_probes: list[calling.Probe] = []
        self._doomed: dict[str, tuple[str, float]] = {}
        self._adrift: dict[str, float] = {}
        """Units queued although a dependency had ended badly; the dependency may be retried at the same moment."""
        self._lanes: dict[tuple[str, ...], Lane] = defaultdict(Lane)
        self._seq: int | None = None
        self._now = float("-inf")
        self.slots = Slots(rules.schedules, self._state)

    # what the events do not say ---------------------------------------------------------------------------

    def submitted(self, asked: Asked) -> None:
        """Note a unit that is about to be submitted."""
        self._asked[asked.id] = asked

    def accepted(self, work_id: str, at: float) -> None:
        """Note that the submitter of a unit was told that it is accepted."""
        self._accepted.setdefault(work_id, at)

    def cancelled(self, work_id: str, at: float) -> None:
        """Note that a caller was told that a unit is cancelled."""
        self._cancelled[work_id] = at

    def retried(self, work_id: str) -> None:
        """Note that a unit is about to be retried by hand."""
        self._retried.add(work_id)

    def died(self, node: object, at: float) -> None:
        """Note that a node died; what it ran may run again."""
        self._deaths[node].append(at)

    def changed(self, service: str, limits: Limits, at: float, *, is_sure: bool = True) -> None:
        """Note the limits of a service from a moment on; not sure when the change may not have been stored."""
        self._limits[service].append((at, limits, is_sure))

    def stands(self, states: Mapping[str, str]) -> None:
        """Note the final state of every unit, after time enough for all of them to end."""
        self._states = dict(states)

    # events -----------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Hear the next event."""
        self._check_order(event)
        if event.at > self._now:
            self._now = event.at
            self._instant_over()
        if event.type in HEARD:
            self._hear(event)
        elif event.type in CIRCUITS and event.service is not None:
            circuit = self._circuit(event.service)
            if circuit is not None:
                self._turn_circuit(circuit, event.service, CIRCUITS[event.type])
        elif event.type.startswith("schedule_"):
            self._found += [Violation("slots", at, text) for text, at in self.slots.hear(event)]

    def finish(self, calls: Iterable[Call], counts: Mapping[str, int], ended_at: float) -> list[Violation]:
        """Judge the whole run by its calls and by how many units are in each state; violations in order of time."""
        self._now = max(self._now, ended_at)
        self._instant_over()
        self._check_calls(sorted(calls, key=lambda call: call.entered_at))
        self._check_ends(counts)
        self._found += [Violation("slots", at, text) for text, at in self.slots.finish(self._now)]
        return sorted(self._found, key=lambda one: one.at)

    def _say(self, rule: str, text: str, *work_ids: str, at: float | None = None) -> None:
        self._found.append(Violation(rule, self._now if at is None else at, text, work_ids))

    def _blame(self, rule: str, work_id: str, text: str, *others: str, at: float | None = None) -> None:
        self._say(rule, f"unit {work_id} {text}", work_id, *others, at=at)

    def _check_order(self, event: Event) -> None:
        if event.type == "gap":
            self._say("order", f"{event.data.get('missed')} events are gone")
        elif self._seq is not None and event.seq != self._seq + 1:
            text = f"event {event.seq} ({event.type}) came after event {self._seq}"
            self._say("order", text, event.work_id or "")
        if event.at < self._now:
            self._say("order", f"event {event.seq} is of {event.at:.6f}, earlier than the one before")
        self._seq = event.seq

    def _instant_over(self) -> None:
        """Judge what must be complete now that time has moved on."""
        for work_id, at in self._adrift.items():
            for parent in self._lives[work_id].asked_for():
                if self._state(parent) in LOST:
                    self._doomed[work_id] = (parent, at)
        self._adrift.clear()
        for work_id, (parent, at) in self._doomed.items():
            text = f"did not fail with {parent}, on which it depends"
            self._blame("dependencies", work_id, text, parent, at=at)
        self._doomed.clear()
        for name, circuit in self._circuits.items():
            if circuit.knocking is not None:
                work_id, at = circuit.knocking
                self._blame("circuit", work_id, f"started on {name}, whose circuit is open", at=at)
                circuit.knocking = None

    def _hear(self, event: Event) -> None:
        assert event.work_id is not None
        life = self._lives.get(event.work_id)
        if life is None:
            asked = self._asked.get(event.work_id)
            life = self._lives[event.work_id] = Life(event.work_id, event.task or "", len(self._lives), asked)
        if event.type not in LIVES[life.state]:
            was = life.state or "unknown"
            self._blame("life", life.id, f"was {was} before {event.type} (event {event.seq})")
        self._lanes[self._lane(life)].left(life)
        HEARD[event.type](self, life, event)

    def _uses(self, life: Life) -> tuple[str, ...]:
        """The services of a unit: patterns as they are, and before a service with keys the unit's own part."""
        if life.uses is None:
            task = self._rules.tasks.get(life.task)
            found: list[str] = []
            for name in () if task is None else task.uses:
                limits = self._rules.services.get(name)
                if limits is not None and limits.each is not None and life.asked is not None:
                    found.append(part_name(name, life.asked.keys.get(limits.per, "")))
                found.append(name)
            life.uses = tuple(found)
        return life.uses

    def _lane(self, life: Life) -> tuple[str, ...]:
        """The lane in which a unit must not overtake: its services, and its task where keys take turns."""
        uses = self._uses(life)
        return (life.task, *uses) if any(name.endswith("]") for name in uses) else uses

    def _limits_of(self, name: str) -> calling.Limited:
        """The limits that a service, or one key of a service, has had."""
        base = name.partition("[")[0]
        if name in self._limits or base not in self._limits:
            return self._limits.get(name, ())
        return [(since, limits.each, is_sure) for since, limits, is_sure in self._limits[base] if limits.each]

    def _circuit(self, name: str) -> Circuit | None:
        circuit = self._circuits.get(name)
        if circuit is None:
            limited = self._limits_of(name)
            timeout = limited[0][1].circuit_timeout if limited else None
            if timeout is not None:
                circuit = self._circuits[name] = Circuit(timeout)
        return circuit

    # one for each kind of event ---------------------------------------------------------------------------

    def _queued(self, life: Life, event: Event) -> None:
        asked = life.asked
        if life.state == "":
            if self._asked and asked is None:
                self._blame("lost", life.id, "was accepted, and nobody submitted it")
            step = STRICT_STEP if self._rules.age_step is None else self._rules.age_step
            life.rank = event.at - step * (0.0 if asked is None else asked.priority)
        elif life.id not in self._retried:
            self._blame("life", life.id, f"was {life.state} and is queued again, though nobody retried it")
        is_new, life.state = life.state == "", "pending"
        life.number = event.seq
        life.failures = life.crashes = 0
        life.completed_at = None
        if asked is not None:
            self._take_key(life, asked)
            life.missing = sum(self._state(parent) != "completed" for parent in asked.depends_on)
            for parent in asked.depends_on:
                if is_new:
                    self._dependents[parent].append(life.id)
                if self._state(parent) in LOST:
                    self._adrift[life.id] = event.at
        life.is_candidate = is_new and asked is not None and not asked.has_time
        self._offer(life)

    def _take_key(self, life: Life, asked: Asked) -> None:
        if asked.key is None:
            return
        other = self._keys.get(asked.key)
        if other is not None and other != life.id and self._state(other) not in LOST:
            text = f"has the key {asked.key!r} of {other}, which is {self._state(other)}"
            self._blame("keys", life.id, text, other)
        self._keys[asked.key] = life.id

    def _state(self, work_id: str) -> str:
        life = self._lives.get(work_id)
        return "" if life is None else life.state

    def _offer(self, life: Life, due: float | None = None) -> None:
        """Make a unit a candidate for its lane, from now on or from `due` on."""
        if life.is_candidate and not life.missing:
            self._lanes[self._lane(life)].join(life, due)

    def _started(self, life: Life, event: Event) -> None:
        attempt = event.attempt or 0
        self._check_attempt(life, attempt)
        if event.at < life.retry_at - ROUNDING:
            self._blame("retry", life.id, f"started {life.retry_at - event.at:.6f} s before its time")
        for parent in life.asked_for():
            if self._state(parent) != "completed":
                state = self._state(parent) or "not there"
                text = f"started, though {parent}, on which it depends, is {state}"
                self._blame("dependencies", life.id, text, parent)
        if life.is_candidate:
            self._check_choice(life)
        life.state, life.attempt, life.retry_at = "running", attempt, 0.0
        life.attempts[attempt] = event.at
        life.is_candidate = False
        self._starts[life.id, attempt].append((event.seq, event.at))
        for name in self._uses(life):
            service = (event.service or "") if "*" in name else name
            circuit = self._circuit(service)
            if circuit is not None and fits(service, name):
                self._pass_circuit(service, circuit, life)

    def _check_attempt(self, life: Life, attempt: int) -> None:
        if life.state == "running":  # its process died, or gave it back
            expected = {life.attempt, life.attempt + 1}
            if attempt == life.attempt + 1:
                life.crashes += 1
                life.lost.append((life.start, self._now))
        else:
            expected = {life.spent + 1} if life.is_sure else {life.attempt, life.attempt + 1}
        if attempt not in expected:
            said = " or ".join(map(str, sorted(expected)))
            self._blame("attempts", life.id, f"started as attempt {attempt}, expected {said}")
        if life.crashes >= MOST_CRASHES:
            self._blame("attempts", life.id, f"started again after {life.crashes} crashes")
        life.is_sure = True

    def _check_choice(self, life: Life) -> None:
        better = self._lanes[self._lane(life)].best(self._now)
        if better is None or (better.rank, better.number) >= (life.rank, life.number):
            return
        assert better.asked is not None
        assert life.asked is not None
        if better.asked.cost and not life.asked.cost:  # nothing of what the other may be waiting for
            return
        if _may_wait_behind(better, self._lives.values()):
            return
        rule = "starvation" if better.asked.priority < life.asked.priority else "priority"
        text = f"started before {better.id}, which comes first and could have started"
        self._blame(rule, life.id, text, better.id)

    def _completed(self, life: Life, event: Event) -> None:
        if event.attempt != life.attempt:
            text = f"completed as attempt {event.attempt}, started as {life.attempt}"
            self._blame("attempts", life.id, text)
        life.completed_at = event.at
        self._answers[life.id, life.attempt] = event.seq, event.at
        self._complete(life, event)

    def _complete(self, life: Life, _: Event) -> None:
        self._end(life, "completed")
        for dependent in map(self._lives.__getitem__, self._dependents.get(life.id, ())):
            dependent.missing -= 1
            if dependent.state == "pending":
                self._offer(dependent)

    def _failed(self, life: Life, event: Event) -> None:
        if life.state == "running":
            life.failures += 1
            if event.error != "timeout":  # after which it may go on, and say more
                self._answers[life.id, life.attempt] = event.seq, event.at
        if event.final:
            self._end(life, "failed")
            self._doom(life)
            return
        life.state, life.spent = "failing", life.attempt
        is_free = life.asked is not None and not life.asked.has_time
        # after a timeout it may have to wait for its code to end; and who killed two processes is not let in at once
        life.is_candidate = is_free and event.error != "timeout" and life.crashes < MOST_CRASHES - 1
        policy = self._policy(life)
        if policy is not None and life.failures >= policy.max_attempts:
            most = policy.max_attempts
            text = f"is tried again after {life.failures} failures, {most} attempts are allowed"
            self._blame("attempts", life.id, text)

    def _policy(self, life: Life) -> Retry | None:
        task = self._rules.tasks.get(life.task)
        return None if task is None else task.retry

    def _retrying(self, life: Life, event: Event) -> None:
        life.state = "pending"
        life.retry_at = float(event.data.get("next_retry_at") or event.at)
        policy = self._policy(life)
        if policy is not None:
            longest = min(backoff(policy, life.failures), policy.max_delay)
            shortest = longest / 2 if policy.jitter else longest
            waits = life.retry_at - event.at
            if not shortest - ROUNDING <= waits <= longest + ROUNDING:
                expected = f"{shortest:g} to {longest:g}"
                text = f"waits {waits:.6f} s after failure {life.failures}, expected {expected}"
                self._blame("retry", life.id, text)
        self._offer(life, life.retry_at)

    def _was_cancelled(self, life: Life, event: Event) -> None:
        self._end(life, "cancelled")
        self._doom(life)

    def _end(self, life: Life, state: str) -> None:
        if life.state == "running":
            life.spent, life.is_sure = life.attempt, state != "cancelled"
        life.state, life.is_candidate, life.retry_at = state, False, 0.0
        self._doomed.pop(life.id, None)
        self._adrift.pop(life.id, None)
        for circuit in self._circuits.values():
            if circuit.probe is not None and circuit.probe[0] == life.id:
                circuit.probe = None

    def _doom(self, life: Life) -> None:
        """Expect every dependent of a unit that ended badly to fail now."""
        for name in self._dependents.get(life.id, ()):
            if self._state(name) == "pending":
                self._doomed[name] = (life.id, self._now)

    # circuits ---------------------------------------------------------------------------------------------

    def _pass_circuit(self, name: str, circuit: Circuit, life: Life) -> None:
        if circuit.state == "open":
            waited = self._now - circuit.changed_at
            if circuit.knocking is not None or waited < circuit.wait - ROUNDING:
                expected = f"expected one after {circuit.wait:g}"
                text = f"started on {name} {waited:.6f} s after its circuit opened, {expected}"
                self._blame("circuit", life.id, text)
            else:
                circuit.knocking = (life.id, self._now)
        elif circuit.state == "half_open":
            if circuit.probe is not None and circuit.probe[0] != life.id:  # else it was given back
                self._second_probes.append((name, circuit.probe, self._now, life.id))
            circuit.probe = life.start

    def _turn_circuit(self, circuit: Circuit, name: str, state: str) -> None:
        if state == "open":
            is_again = circuit.state == "half_open"
            circuit.wait = (
                min(circuit.wait * 2, circuit.timeout * LONGEST_WAIT) if is_again else circuit.timeout
            )
            circuit.probe = None
        elif state == "half_open":
            if circuit.state != "open" or circuit.knocking is None:
                self._say("circuit", f"the circuit of {name} is half-open, and nothing was started on it")
            else:
                circuit.probe = self._lives[circuit.knocking[0]].start
        elif circuit.state != "half_open":
            self._say("circuit", f"the circuit of {name} closed, and had been {circuit.state}")
        if state == "closed":
            circuit.wait, circuit.probe = circuit.timeout, None
        circuit.state, circuit.changed_at, circuit.knocking = state, self._now, None

    # the end ----------------------------------------------------------------------------------------------

    def _check_calls(self, calls: list[Call]) -> None:
        found, deaths = self._found, self._deaths
        of_work = calling.by_work(calls)
        for work_id, life in self._lives.items():
            found += calling.judge_work(life, of_work.get(work_id, ()), deaths)
        used: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            if call.work_id not in self._lives:
                text = "was called, and was never accepted"
                self._blame("overlap", call.work_id, text, at=call.entered_at)
                continue
            uses = self._uses(self._lives[call.work_id])
            if len(uses) != len(call.services) or not all(map(fits, call.services, uses)):
                text = f"ran on {', '.join(call.services)}, expected {', '.join(uses)}"
                self._blame("service", call.work_id, text, at=call.entered_at)
            for name in call.services:
                used[name].append(call)
        for name, mine in used.items():
            limited = self._limits_of(name)
            if limited:
                found += calling.judge_service(name, limited, mine)
            if any(limits.quantities for _, limits, _ in limited):
                found += calling.judge_amounts(name, limited, self._amounts(mine))
        found += calling.judge_probes(self._second_probes, calls, deaths)

    def _amounts(self, calls: list[Call]) -> list[calling.Use]:
        """What these calls used, in the order of their starts."""
        found = []
        for call in calls:
            key, asked = (call.work_id, call.attempt), self._lives[call.work_id].asked
            starts = [one for one in self._starts[key] if one[1] <= call.entered_at + ROUNDING]
            if starts:  # else it was never started, which is said elsewhere
                number, at = starts[-1]
                answered, answered_at = self._answers.get(key, (None, 0.0))
                expected = {} if asked is None else asked.cost
                found.append(calling.Use(call, number, at, answered, answered_at + ROUNDING, expected))
        return sorted(found, key=lambda use: use.started)

    def _check_ends(self, counts: Mapping[str, int]) -> None:
        for work_id, at in self._accepted.items():
            if work_id not in self._lives:
                text = f"was accepted at {at:.6f}, and no event tells of it"
                self._blame("lost", work_id, text, at=at)
        for work_id, at in self._cancelled.items():
            if self._state(work_id) != "cancelled" and work_id not in self._retried:
                text = f"was cancelled at {at:.6f}, and is {self._state(work_id)}"
                self._blame("lost", work_id, text)
        if self._states is not None:
            self._check_states(self._states)
        ends = Counter(life.state for life in self._lives.values())
        for state in sorted(FINAL):
            if counts.get(state, 0) != ends[state]:
                self._say("lost", f"{counts.get(state, 0)} units are {state}, {ends[state]} by their events")
        if sum(counts.values()) != len(self._lives):
            self._say("lost", f"there are {sum(counts.values())} units, {len(self._lives)} were accepted")

    def _check_states(self, states: Mapping[str, str]) -> None:
        for work_id, life in self._lives.items():
            state = states.get(work_id, "gone")
            if state not in FINAL:
                self._blame("lost", work_id, f"is {state} in the end")
            elif state != life.state:
                self._blame("lost", work_id, f"is {state}, and {life.state} by its events")


def backoff(policy: Retry, failures: int) -> float:
    """How long work waits after so many failures, but for jitter and `max_delay`."""
    base = policy.base_delay
    if policy.backoff == "exponential":
        return base * 2.0 ** min(failures - 1, 1000)
    if policy.backoff == "linear":
        return base * failures
    if policy.backoff == "fixed" or base <= 0:
        return base
    return math.exp(min(failures * math.log(base), 700.0))


HEARD: Final = {
    "queued": Checker._queued,
    "started": Checker._started,
    "completed": Checker._completed,
    "skipped": Checker._complete,
    "failed": Checker._failed,
    "retrying": Checker._retrying,
    "cancelled": Checker._was_cancelled,
}
CIRCUITS: Final = {"circuit_opened": "open", "circuit_half_open": "half_open", "circuit_closed": "closed"}
RULES: Final = ("order", "life", "lost", "result", "overlap", "attempts", "retry", "dependencies", "keys", "circuit",
                "priority", "starvation", "rate", "concurrency", "amount", "service", "slots")  # fmt: skip


def _may_wait_behind(life: Life, lives: Iterable[Life]) -> bool:
    """True when an earlier unit of the same task, which may not be due yet, may have to wait for a quantity.

    A lane is served in order, so that unit may hold up this one."""
    return any(
        other.state == "pending" and not other.is_candidate and other.task == life.task
        and other.asked is not None and other.asked.cost
        and (other.rank, other.number) < (life.rank, life.number)
        for other in lives
    )  # fmt: skip
