"""The rules that tasks were declared with, and the lane that each unit belongs to by them."""

from __future__ import annotations

from collections.abc import Iterable

from runcue.core.ledger.fleet import Fleet
from runcue.core.model.record import Record, Spec
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Questions, Rule, Settings
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import Line
from runcue.core.schedule.ready import Ready

NO_SPEC = Spec("", "", b"", ())
NO_RULE = Rule(Retry())


class Lanes:
    """The rules of all known tasks, and the lanes that follow from them."""

    __slots__ = ("_fleet", "_known", "_last_lane", "_last_spec", "_ready", "_records", "rules",
                 "settings")  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        rules: dict[str, Rule],
        records: dict[str, Record],
        ready: Ready,
        fleet: Fleet | None,
    ) -> None:
        self.settings = settings
        """The options of this process's own Cue."""
        self.rules = rules
        self._records = records
        self._ready = ready
        self._fleet = fleet
        self._last_spec = NO_SPEC
        self._last_lane: Lane
        self._known = (0, 0)
        """How many tasks and services were known when `have_changed` was last asked."""

    # rules --------------------------------------------------------------------------------------------------

    def declare(self, rules: dict[str, Rule]) -> None:
        """Replace the rules of these tasks."""
        self.rules.update(rules)

    def rule_of(self, task: str) -> Rule:
        """The rule of a task; an empty one for a task that no process has declared."""
        return self.rules.get(task, NO_RULE)

    def questions_of(self, task: str) -> Questions:
        """Which callbacks are called about units of that task."""
        questions = self.rule_of(task).questions
        return self._ready.questions if questions is None else questions

    def settings_of(self, task: str) -> Settings:
        """The options that hold for units of that task."""
        settings = self.rule_of(task).settings
        return self.settings if settings is None else settings

    def tasks(self) -> Iterable[str]:
        """The tasks that some process has handlers for."""
        if self._fleet is None:
            return self.rules
        return {task for member in self._fleet.members.values() for task in member.worker.tasks}

    def has_questions(self) -> bool:
        """True when callbacks are called about units of some task."""
        return bool(self._ready.questions) or any(rule.questions for rule in self.rules.values())

    # lanes --------------------------------------------------------------------------------------------------

    def lane_of(self, spec: Spec) -> Lane:
        """The lane of a unit whose task and services are known. The last lane is remembered: many units are alike."""
        last = self._last_spec
        if spec.task is last.task and spec.services is last.services and spec.queue is last.queue:
            return self._last_lane
        self._last_spec = spec
        self._last_lane = self._ready.lane(spec, self.rules[spec.task])
        return self._last_lane

    def find(self, spec: Spec) -> Lane | None:
        """The lane of a unit; None when no process has declared its task, or a service that it uses."""
        rule = self.rules.get(spec.task)
        if rule is None:
            return None
        services = spec.services if rule.services is None else rule.services
        find = self._ready.services.find
        implicit = rule.implicit if self._fleet is None else rule.shared
        is_known = all(find(name) is not None for name in (*services, *implicit))
        return self.lane_of(spec) if is_known else None

    def of_running(self, spec: Spec, chosen: str | None) -> Lane:
        """The lane in which the attempt of a running unit is counted."""
        lane = self.find(spec)
        if lane is None:  # its task is not known any more: it counts in those of its services that are
            assert self._fleet is not None
            known = (self._ready.services.find(name) for name in spec.services)
            services = tuple(one for one in known if one is not None)
            crew = self._fleet.crew(spec.task, spec.queue, ())
            return Lane(spec.task, self._ready.queue(spec.queue), services, Line(self._records), crew=crew)
        member = None if chosen is None else self._ready.services.get(chosen)
        return lane if lane.group is None or member is None else lane.on(member)

    def forget(self, running: Iterable[Lane]) -> None:
        """Lanes were dropped, and only those of `running` units live on: forget the last one, and unused crews."""
        self._last_spec = NO_SPEC
        if self._fleet is not None:
            lanes = (*self._ready.lanes.values(), *running)
            self._fleet.drop_crews(lane.crew for lane in lanes)

    def set_changed(self) -> None:
        """Have `have_changed` say yes: index keys have to be compared with the lanes anew."""
        self._known = (0, 0)

    def have_changed(self) -> bool:
        """True when tasks or services became known since this was last asked."""
        before, self._known = self._known, (len(self.rules), self._ready.services.declared)
        return before != self._known
