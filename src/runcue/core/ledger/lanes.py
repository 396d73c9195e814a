"""Which rules hold for a unit, and which lane it belongs to by them."""

from __future__ import annotations

from collections.abc import Iterable

from runcue.core.ledger.fleet import Fleet
from runcue.core.model.record import Record, Spec
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Questions, Rule, Settings
from runcue.core.schedule.lane import Lane
from runcue.core.schedule.line import Line
from runcue.core.schedule.ready import Ready

NOBODY = Spec("", "", b"", ())


class Lanes:
    """The rules of all tasks that are known, and the lanes that follow from them."""

    __slots__ = (
        "_fleet",
        "_last_lane",
        "_last_spec",
        "_looked_through",
        "_ready",
        "_records",
        "rules",
        "settings",
    )

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
        self._last_spec = NOBODY
        self._last_lane: Lane
        self._looked_through = (0, 0)

    # rules --------------------------------------------------------------------------------------------------

    def declare(self, rules: dict[str, Rule]) -> None:
        """These rules hold for their tasks from now on."""
        self.rules.update(rules)

    def questions_of(self, task: str) -> Questions:
        """What callbacks are asked about units of that task."""
        rule = self.rules.get(task)
        return self._ready.questions if rule is None or rule.questions is None else rule.questions

    def retry_of(self, task: str) -> Retry:
        """What follows a failed attempt at a unit of that task."""
        rule = self.rules.get(task)
        return Retry() if rule is None else rule.retry

    def implicit_of(self, task: str) -> tuple[str, ...]:
        """What its executor uses besides the services of a unit."""
        rule = self.rules.get(task)
        return () if rule is None else rule.implicit

    def settings_of(self, task: str) -> Settings:
        """The options that hold for units of that task."""
        rule = self.rules.get(task)
        return self.settings if rule is None or rule.settings is None else rule.settings

    def tasks(self) -> Iterable[str]:
        """The tasks that somebody can run."""
        if self._fleet is None:
            return self.rules
        return {task for member in self._fleet.members.values() for task in member.worker.tasks}

    def has_questions(self) -> bool:
        """True when callbacks are asked about units of some task."""
        return bool(self._ready.questions) or any(rule.questions for rule in self.rules.values())

    # lanes --------------------------------------------------------------------------------------------------

    def lane_of(self, spec: Spec) -> Lane:
        """The lane of a unit. Units mostly come in runs of one kind, so the last lane is kept at hand."""
        last = self._last_spec
        if spec.task is last.task and spec.services is last.services and spec.queue is last.queue:
            return self._last_lane
        self._last_spec = spec
        self._last_lane = self._ready.lane(spec, self.rules[spec.task])
        return self._last_lane

    def find(self, spec: Spec) -> Lane | None:
        """The lane of a unit; None for a task that nobody has declared, or that uses a service nobody declared."""
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
        if lane is None:  # nobody knows its task any more: it counts where it can
            assert self._fleet is not None
            known = (self._ready.services.find(name) for name in spec.services)
            services = tuple(one for one in known if one is not None)
            crew = self._fleet.crew(spec.task, spec.queue, ())
            return Lane(spec.task, self._ready.queue(spec.queue), services, Line(self._records), crew=crew)
        member = None if chosen is None else self._ready.services.get(chosen)
        return lane if lane.group is None or member is None else lane.on(member)

    def forget(self, running: Iterable[Lane]) -> None:
        """Lanes were dropped, but for those of `running` units: look each up again, and drop unused crews."""
        self._last_spec = NOBODY
        if self._fleet is not None:
            lanes = (*self._ready.lanes.values(), *running)
            self._fleet.drop_crews(lane.crew for lane in lanes)

    def look_through_again(self) -> None:
        """Index keys have to be compared with the lanes anew."""
        self._looked_through = (0, 0)

    def have_changed(self) -> bool:
        """True when tasks or services became known since this was last asked."""
        before, self._looked_through = self._looked_through, (len(self.rules), self._ready.services.declared)
        return before != self._looked_through
