"""What was submitted from outside: rows that anybody may insert, without a turn and in a transaction of their own.

Rules:
- A row is a unit to submit, one to cancel or retry, or a schedule to add or delete. Its JSON names what it says, so
  that any language can write it; what it does not name is as usual.
- A turn takes the rows that it sees, in the order of their numbers, and deletes them in its own transaction. The
  highest number is never remembered: rows appear in the order of their commits.
- A row that says something wrong of a unit makes that unit fail, so that it is seen; what is wrong with a schedule is
  its problem. A row of a kind that this release does not know, or without any sense, stays where it is, for one that
  can read it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from runcue.core.model import parse
from runcue.core.model.record import Record, Spec
from runcue.core.model.retry import retry_of_work
from runcue.core.schedule.plan import Cancel, Item, Post, PutSchedule, Revive, Submission, Submit, Unschedule
from runcue.errors import RuncueError, SubmitError, quoted
from runcue.stores.sql import codec, statements
from runcue.stores.sql.connection import rows_of
from runcue.stores.sql.session import Session
from runcue.stores.sql.unsettled import schedule_of

logger = logging.getLogger("runcue")

MOST: Final = 500
MOST_SIGNS: Final = 8_000_000
"""How many rows a turn takes, and how much text: the rest waits for the next turn."""
SUBMIT, CANCEL, RETRY, SCHEDULE, UNSCHEDULE = "submit", "cancel", "retry", "schedule", "unschedule"
"""The kinds of rows."""


# --- What a row says ------------------------------------------------------------------------------

_HINTS: Final = get_type_hints(Spec) | {
    "params": msgspec.Raw, "services": tuple[str, ...] | None, "retry": Any, "cost": dict[str, float],
}  # fmt: skip
_DEFAULTS: Final = dict(
    zip(Spec.__struct_fields__[-len(Spec.__struct_defaults__) :], Spec.__struct_defaults__, strict=True)
) | {"params": msgspec.Raw(b"{}"), "services": None, "cost": msgspec.field(default_factory=dict)}
_FIELDS: Final = [name for name in Spec.__struct_fields__ if name not in {"id", "is_named"}]
_Unit: Any = msgspec.defstruct(
    "_Unit",
    [
        (name, _HINTS[name], _DEFAULTS[name]) if name in _DEFAULTS else (name, _HINTS[name])
        for name in _FIELDS
    ],
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
)


class _Change(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    cascade: bool = False


class Row(NamedTuple):
    """What somebody inserts: a unit to submit, or one to cancel or retry."""

    kind: str
    id: str
    item: str


_encode = msgspec.json.Encoder().encode
_decode_unit = msgspec.json.Decoder(_Unit).decode
_decode_change = msgspec.json.Decoder(_Change).decode


def unit_row(spec: Spec, *, is_settled: bool) -> Row:
    """A unit to submit. Unless it is settled, its services are those of its task, and are left out."""
    values = {name: getattr(spec, name) for name in _FIELDS}
    values["params"] = msgspec.Raw(spec.params)
    values["cost"] = dict(spec.cost)
    values["services"] = spec.services if is_settled else None
    if spec.retry is not None:
        values["retry"] = codec.retry_fields(spec.retry)
    return Row(SUBMIT, spec.id, _encode(_Unit(**values)).decode())


def change_row(kind: str, id: str, *, cascade: bool) -> Row:
    """A unit to cancel or to retry."""
    return Row(kind, id, _encode(_Change(cascade)).decode())


def rows_text(rows: Sequence[Row]) -> str:
    """Rows as the one text that an INSERT is given."""
    return _encode([row._asdict() for row in rows]).decode()


def _submission(number: int, at: float, id: str, text: str) -> Submission:
    try:
        unit, problem = _decode_unit(text), None
    except msgspec.ValidationError as error:
        said = msgspec.json.decode(text)
        unit = _Unit(task=said["task"] if isinstance(said.get("task"), str) else "?")
        problem = str(error)
    spec = Spec("", "", b"{}", ())
    try:
        spec = _spec(parse.work_id(id), unit)
    except RuncueError as error:
        name = codec.same_name(unit.task if unit.task.isprintable() else "?")
        spec = Spec(id if id.isprintable() else f"submission {number}", name, b"{}", (), is_named=True)
        problem = problem or str(error)
    submit = Submit([spec], is_plain=False, has_cost=bool(spec.cost), at=at)
    return Submission(submit, unit.services is not None, problem)


def _spec(id: str, unit: Any) -> Spec:
    values = {name: getattr(unit, name) for name in _FIELDS}
    params = bytes(unit.params)
    if params.lstrip()[:1] != b"{":
        raise SubmitError("Its params are no JSON object.")
    values["params"] = params
    values["task"] = codec.same_name(parse.name(unit.task, "task"))
    values["queue"] = codec.same_name(parse.name(unit.queue, "queue"))
    values["on_failed"] = codec.same_name(unit.on_failed)
    values["services"] = codec.same_names(unit.services or ())
    values["depends_on"] = tuple(parse.work_id(one) for one in unit.depends_on)
    values["cost"] = tuple(unit.cost.items())
    if unit.retry is not None:
        values["retry"] = retry_of_work(unit.retry)
    if unit.idempotency_key is not None:
        parse.key(unit.idempotency_key)
    return Spec(id=id, is_named=True, **values)


# --- The rows -------------------------------------------------------------------------------------


class Submissions:
    """The rows that a turn takes, and those that no turn has taken yet."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._taken: list[int] = []
        self._unfamiliar: set[int] = set()
        self.has_more = False
        """True when there may be more rows than the last turn took."""

    @property
    def are_taken(self) -> bool:
        """True when this turn took any."""
        return bool(self._taken)

    def take(self) -> list[Post]:
        """What was submitted, in order, as a post that no process left. The turn deletes it."""
        limit = MOST + len(self._unfamiliar)
        items: list[Item] = []
        number = signs = 0
        self._taken, self.has_more = [], False
        rows = rows_of(
            self._session.connection, self._session.dialect.submissions, (limit,), statements.SUBMISSION
        )
        for number, (row, at, kind, id, text) in enumerate(rows, 1):
            signs += len(text)
            if number > 1 and signs > MOST_SIGNS:
                self.has_more = True
                break
            item = self._item(row, at, kind, id, text)
            if item is not None:
                items.append(item)
                self._taken.append(row)
        self.has_more |= number >= limit
        return [Post("", 0, items)] if items else []

    def _item(self, number: int, at: float, kind: str, id: str, text: str) -> Item | None:
        try:
            if kind == SUBMIT:
                return _submission(number, at, id, text)
            if kind == SCHEDULE:
                return PutSchedule(schedule_of(id, text))
            if kind == UNSCHEDULE:
                return Unschedule(id)
            change = _decode_change(text)
            if kind in {CANCEL, RETRY}:
                return Cancel(id, change.cascade) if kind == CANCEL else Revive(id, change.cascade)
            problem = f"it is of the kind {quoted(kind)}"
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
            problem = str(error)
        if number not in self._unfamiliar:
            self._unfamiliar.add(number)
            logger.error("row %s of what was submitted from outside is left to others: %s", number, problem)
        return None

    def delete(self) -> None:
        """Delete the rows that this turn took."""
        if self._taken:
            self._session.executemany(
                self._session.dialect.delete_submission, [(number,) for number in self._taken]
            )

    def turn_over(self) -> None:
        """The turn was committed, or not: what it took is deleted, or is taken again."""
        self._taken = []

    # looking ----------------------------------------------------------------------------------------------

    def records(self, seq: int) -> list[Record]:
        """The units that no turn has taken, with the numbers after that one."""
        rows = self._session.execute(statements.SUBMITTED_OUTSIDE)
        return [_record(spec, at, seq + place) for place, (at, spec) in enumerate(_specs(rows), 1)]

    def record(self, id: str, seq: int) -> Record | None:
        """The unit of that id, if no turn has taken it."""
        rows = self._session.execute(statements.SUBMITTED_OUTSIDE_ONE, (id,))
        return next((_record(spec, at, seq) for at, spec in _specs(rows)), None)


def _specs(rows: Any) -> Iterator[tuple[float, Spec]]:
    for number, at, id, text in rows:
        try:
            yield at, _submission(number, at, id, text).submit.specs[0]
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError):  # a turn reports it
            continue


def _record(spec: Spec, at: float, seq: int) -> Record:
    return Record(spec.id, spec, seq, at, at, since=at)
