"""What becomes of a new unit that has the unique key of another one, and of that other one.

Whose duplicate a unit is follows from what it was submitted with (`Uniqueness`), and from the newest unit that has
its key. Several in one submission behave as if each had been submitted by itself.

return    the other one stays as it is, and its id is the answer
raise     the submission is refused
replace   a pending one becomes what was submitted now, under its own id; one that has started stays as it is
extend    a pending one becomes what was submitted now, and waits for its delay once more, but never until more than
          `at_most` after it came. One that has started does not count: the last of many is never left out
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from runcue.core.ledger.ledger import Ledger, expiry
from runcue.core.model.record import Record, Spec, Uniqueness, WorkState
from runcue.core.schedule.editing import change
from runcue.errors import DuplicateWork

LOST: Final = frozenset({WorkState.FAILED, WorkState.CANCELLED})
"""Units in these states count as nobody's original: what they were to do was not done."""


class Duplicates:
    """The duplicates in one submission, which changes nothing before it is accepted as a whole."""

    __slots__ = ("_changed", "_latest", "_ledger")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._latest: dict[str, Record] = {}
        """By unique key: the units that the submission has changed or brought so far."""
        self._changed: dict[str, Record] = {}
        """Those of them that were there before."""

    def find(self, spec: Spec, fresh: dict[str, Spec]) -> str | None:
        """The id of the unit that a new one is a duplicate of; None where it is new. `fresh` are the new units of its
        submission so far; raises where the submission has to be refused."""
        key, rule, now = spec.unique_key, _rule_of(spec), self._ledger.turn.now
        assert key is not None
        known = self._known(key)
        if known is None or not _counts(known, rule, now):
            self._latest[key] = Record(spec.id, spec, 0, 0.0, now)
            return None
        if rule.on_conflict == "raise":
            raise DuplicateWork(known.id, state=known.state.value, is_unique=True)
        if rule.on_conflict in ("replace", "extend") and known.state is WorkState.PENDING:
            changed = replace(known, spec=_merged(known, spec, rule, now))
            self._latest[key] = changed
            if known.id in fresh:
                fresh[known.id] = changed.spec
            else:
                self._changed[known.id] = changed
        return known.id

    def _known(self, key: str) -> Record | None:
        """The newest unit that has that key, as it stands."""
        working = self._ledger.working
        stored = self._ledger.lookups.found.unique_keys.get(key)
        return self._latest.get(key) or (None if stored is None else working.latest(stored.id) or stored)

    def were_dropped(self) -> bool:
        """True when a unit that would be changed has failed since it was found."""
        latest = (self._ledger.working.latest(work_id) for work_id in self._changed)
        return any(record is not None and record.state.is_final for record in latest)

    def apply(self) -> None:
        """Change the pending units that were there before: each has come anew, but for its id and its age."""
        ledger = self._ledger
        for changed in self._changed.values():
            record = ledger.working.live(changed.id)
            assert record is not None
            expires_at = expiry(changed.spec, ledger.turn.now)
            ledger.turn.emit("edited", change(ledger, record, changed.spec, expires_at))


def _rule_of(spec: Spec) -> Uniqueness:
    assert spec.extras is not None
    assert spec.extras.unique is not None
    return spec.extras.unique


def _counts(known: Record, rule: Uniqueness, now: float) -> bool:
    """True when a unit that comes now is a duplicate of the known one."""
    if rule.within is not None and now - known.created_at >= rule.within:
        return False
    if rule.on_conflict == "extend":
        return known.state is WorkState.PENDING
    if rule.within is None:
        return not known.state.is_final
    return known.state not in LOST


def _merged(known: Record, spec: Spec, rule: Uniqueness, now: float) -> Spec:
    """What was submitted now, as the spec of a unit that came earlier: its delay counts from now."""
    before = known.spec
    if set(spec.depends_on) != set(before.depends_on):
        raise DuplicateWork(known.id, differs="other depends_on", is_unique=True)
    delay = spec.delay
    if delay:
        delay += now - known.created_at
        if rule.at_most is not None:
            delay = min(delay, rule.at_most)
    return replace(spec, id=known.id, is_named=before.is_named, depends_on=before.depends_on, delay=delay)
