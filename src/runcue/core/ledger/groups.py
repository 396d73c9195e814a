"""How many units of each group are in each state, and when a group is done. Notes tagged units, too.

A group is counted only in turns that move units of it: its stored counts are read once a turn at most, and written
with the turn. Those of groups with live units stay known from turn to turn. Only this process moves units, and counts
are deleted only of groups that are done: so what is known is never outdated.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from runcue.core.ledger.current import CurrentTurn
from runcue.core.model.group import GroupCounts
from runcue.core.model.record import Record, Spec, WorkState

MOST_KNOWN = 1000
"""How many groups stay known from turn to turn where a shared store has them all."""
NO_UNITS = GroupCounts()


class Groups:
    """The groups that this process has counted."""

    __slots__ = ("_ended_by", "_gone", "_known", "_moves", "_turn")

    def __init__(self, turn: CurrentTurn) -> None:
        self._turn = turn
        self._known: dict[str, GroupCounts] = {}
        self._gone: Counter[str] = Counter()
        """How many units of a group are no longer kept, for a queue in memory."""
        self._moves: dict[str, Counter[WorkState]] = {}
        """What this turn has moved so far."""
        self._ended_by: dict[str, str] = {}
        """The process that brought about the last end of a unit in this turn."""

    def begin(self) -> None:
        """Begin a turn, in which nothing was moved yet."""
        if self._moves:
            self._moves = {}
            self._ended_by = {}

    def joined(self, name: str, state: WorkState = WorkState.PENDING) -> None:
        """A unit in that state belongs to this group from now on."""
        self._moves_of(name)[state] += 1

    def moved(self, name: str, before: WorkState, after: WorkState) -> None:
        """A unit of this group has moved from one state to another."""
        moves = self._moves_of(name)
        moves[before] -= 1
        moves[after] += 1
        if after.is_final:
            self._ended_by[name] = self._turn.origin

    def left(self, name: str, state: WorkState) -> None:
        """A unit in that state belongs to this group no longer, or was deleted without a trace."""
        self._moves_of(name)[state] -= 1

    def note_new(self, record: Record) -> None:
        """Plan what a new unit is found by, and count it in its group."""
        spec = record.spec
        if spec.group is not None:
            self.joined(spec.group)
        if spec.group is not None or spec.tags:
            self._turn.plan.tagged.append(record.id)

    def note_move(self, record: Record, after: WorkState) -> None:
        """Note that a unit, which may have a group or tags, moves to another state."""
        spec = record.spec
        if spec.group is not None:
            self.moved(spec.group, record.state, after)
        if (after.is_final or record.state.is_final) and (spec.group is not None or spec.tags):
            self._turn.plan.tagged.append(record.id)

    def note_change(self, record: Record, spec: Spec) -> None:
        """Note that a unit gets another spec, maybe with another group or other tags."""
        before, plan = record.spec, self._turn.plan
        if (spec.group, spec.tags) == (before.group, before.tags):
            return
        plan.retagged.setdefault(record.id, record)
        plan.tagged.append(record.id)
        if spec.group != before.group:
            if before.group is not None:
                self.left(before.group, record.state)
            if spec.group is not None:
                self.joined(spec.group, record.state)

    def forgot(self, record: Record) -> None:
        """The record of an ended unit is no longer kept. A group is forgotten with the last record of its units."""
        name = record.spec.group
        if name is not None:
            self._gone[name] += 1
            self._moves_of(name)

    def _moves_of(self, name: str) -> Counter[WorkState]:
        found = self._moves.get(name)
        if found is None:
            found = self._moves[name] = Counter()
        return found

    def settle(self) -> None:
        """At the end of a turn: plan the counts that have changed, and emit which groups are done."""
        if not self._moves:
            return
        turn, known = self._turn, self._known
        unknown = [name for name in self._moves if name not in known]
        if unknown and turn.reader is not None:
            known.update(turn.reader.groups(unknown))
        for name, moves in self._moves.items():
            counts = known.get(name, NO_UNITS).moved(moves, turn.now)
            if counts.is_done and name in self._ended_by:
                turn.act_for(self._ended_by[name])
                numbers: dict[str, Any] = {state.value: number for state, number in counts.by_state.items()}
                turn.emit("group_done", group=name, total=counts.total, **numbers)
                turn.act_for_itself()
            self._keep(name, counts)
        while turn.reader is not None and len(known) > MOST_KNOWN:
            del known[next(iter(known))]

    def _keep(self, name: str, counts: GroupCounts) -> None:
        groups, is_shared = self._turn.plan.groups, self._turn.reader is not None
        if counts.is_done and counts.total <= self._gone.get(name, 0):
            self._known.pop(name, None)
            self._gone.pop(name, None)
            groups[name] = None
            return
        groups[name] = counts
        if counts.is_done and is_shared:
            self._known.pop(name, None)
        else:
            self._known[name] = counts
