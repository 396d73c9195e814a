"""What was read from the store for the turn under way, so that nothing is read twice."""

from __future__ import annotations

from collections.abc import Iterable

from runcue.core.ledger.current import CurrentTurn
from runcue.core.model.record import Record
from runcue.core.schedule.plan import ReadRequest, ReadResult, Revive


class Lookups:
    """Stored records, and which unit has which key. Forgotten when the next turn begins."""

    __slots__ = ("_ids", "_is_used", "_keys", "_turn", "_unique_keys", "_walks", "found")

    def __init__(self, turn: CurrentTurn) -> None:
        self._turn = turn
        self._is_used = True
        self.begin()

    def begin(self) -> None:
        """Begin a turn: forget what was read for an earlier one."""
        if self._is_used:
            self._is_used = False
            self.found = ReadResult()
            self._ids: set[str] = set()
            self._keys: set[str] = set()
            self._unique_keys: set[str] = set()
            self._walks: dict[Revive, tuple[list[str], set[str]]] = {}

    def unread(self, wanted: ReadRequest) -> ReadRequest:
        """The part of a request that was not read yet in this turn."""
        wanted.ids -= self._ids
        wanted.keys -= self._keys | self.found.keys.keys()
        wanted.unique_keys -= self._unique_keys | self.found.unique_keys.keys()
        return wanted

    def absorb(self, wanted: ReadRequest, found: ReadResult) -> None:
        """Take in what the store had of a request."""
        self._is_used = True
        self._ids |= wanted.ids
        self._keys |= wanted.keys
        self._unique_keys |= wanted.unique_keys
        known = self.found
        known.records.update(found.records)
        known.keys.update(found.keys)
        known.unique_keys.update(found.unique_keys)
        for record in found.unique_keys.values():
            known.records[record.id] = record
            self._ids.add(record.id)
        known.dependents.update(found.dependents)
        for dependents in found.dependents.values():
            known.records.update((record.id, record) for record in dependents)
        known.forgotten.update(found.forgotten)

    def has(self, work_id: str) -> bool:
        """True when that unit was asked for in this turn, whether it was found or not."""
        return work_id in self._ids

    def look_up(self, work_id: str) -> Record | None:
        """The stored record of a unit, read now if it was not read yet."""
        reader = self._turn.reader
        if work_id not in self._ids and reader is not None:
            wanted = ReadRequest(ids={work_id})
            self.absorb(wanted, reader.read(wanted))
        return self.found.records.get(work_id)

    def look_up_all(self, ids: Iterable[str]) -> None:
        """Read these units at once, as far as they were not read yet."""
        unknown = [one for one in ids if one not in self._ids]
        if unknown and self._turn.reader is not None:
            self._is_used = True
            self._ids.update(unknown)
            self.found.records.update(self._turn.reader.by_id(unknown))

    def note_keys(self, record: Record) -> None:
        """Note that a unit is the one that its idempotency key and its unique key name from now on."""
        spec = record.spec
        if spec.idempotency_key is not None:
            self.found.keys[spec.idempotency_key] = record
        if spec.unique_key is not None:
            self.found.unique_keys[spec.unique_key] = record
        self._is_used = True

    def walk(self, item: Revive) -> tuple[list[str], list[str], set[str]]:
        """How far the search for the units that are revived with another has got: ids to look at now, ids to look at
        when more was read, and all ids that were met."""
        todo, seen = self._walks.get(item, ([item.id], {item.id}))
        again: list[str] = []
        self._walks[item] = again, seen
        self._is_used = True
        return todo, again, seen

    def forget(self, record: Record) -> None:
        """Forget a stored unit that this turn deletes: later lookups find nothing."""
        found = self.found
        del found.records[record.id]
        # else `WorkingSet.state_of` would take the id for a unit that ended well
        if not record.spec.is_named:
            found.forgotten[record.id] = record.state
        for owners in (found.keys, found.unique_keys):
            for key in [key for key, owner in owners.items() if owner.id == record.id]:
                del owners[key]
        for dependents in found.dependents.values():
            dependents[:] = [one for one in dependents if one.id != record.id]
