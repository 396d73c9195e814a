"""Records and the other values of a queue as rows of its tables, and back.

Rules:
- A value comes back equal to what was written. What cannot be right (an unknown state, text where a number
  belongs, broken JSON) raises StorageCorrupt with the id of the row, and nothing is guessed.
- A start and a successful finish write only the columns they change, and the INSERT of plain work has only those
  values that differ: that is most of what a queue writes.
- The types of a row are checked all at once, by a struct of its columns: that costs less than looking at a few.
- Names and lists of services come back as the same objects for the same text: they are compared by identity.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from runcue.core.model.failure import describe
from runcue.core.model.parse import LARGEST_INT, SMALLEST_INT, encode_params
from runcue.core.model.record import Attempt, Record, Spec, WorkState
from runcue.core.model.retry import Retry, retry_of_work
from runcue.errors import ConfigError, InvalidParams, Permanent, StorageCorrupt, quoted

Row = tuple[Any, ...]
K = TypeVar("K")
V = TypeVar("V")

MOST_REMEMBERED: Final = 10_000

COLUMNS: Final[tuple[str, ...]] = (
    "id", "seq", "task_type", "queue", "target", "params", "services", "depends_on", "priority", "run_at", "delay",
    "timeout", "dependency_timeout", "idempotency_key", "on_failed", "is_named", "retry", "extra", "state", "rank",
    "since", "shelf", "place", "watch_at", "missing", "attempt", "spent", "failures", "crashes", "token", "leased_by",
    "created_at", "started_at", "completed_at", "next_retry_at", "throttled_since", "skipped", "result", "last_error",
    "traceback", "history",
)  # fmt: skip
"""What makes up a record, in the order of SELECT; `history` is the last, so that a reader sees it as row[-1]."""

_NULLABLE = {
    float: ("run_at", "delay", "timeout", "dependency_timeout", "watch_at", "started_at", "completed_at",
            "next_retry_at", "throttled_since"),
    str: ("target", "depends_on", "idempotency_key", "retry", "extra", "shelf", "leased_by", "result", "last_error",
          "traceback"),
}  # fmt: skip
_REQUIRED = {
    float: ("priority", "rank", "since", "place", "created_at"),
    str: ("id", "task_type", "queue", "params", "services", "on_failed", "state"),
    int: (
        "seq",
        "is_named",
        "missing",
        "attempt",
        "spent",
        "failures",
        "crashes",
        "token",
        "skipped",
        "history",
    ),
}
_TYPES: dict[str, Any] = {
    **{name: kind | None for kind, names in _NULLABLE.items() for name in names},
    **{name: kind for kind, names in _REQUIRED.items() for name in names},
}
_Columns = msgspec.defstruct(
    "_Columns",
    [(name, _TYPES[name]) for name in COLUMNS],
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
)

WRITTEN: Final[tuple[str, ...]] = (*COLUMNS, "lease_expires_at", "updated_at")
"""What a new row holds. Like the lists below, in the order of the values of its statement."""
PLAIN: Final[tuple[str, ...]] = (
    "id", "seq", "task_type", "queue", "params", "services", "priority", "timeout", "state", "rank", "since", "shelf",
    "place", "token", "leased_by", "created_at", "started_at", "lease_expires_at", "updated_at",
)  # fmt: skip
"""The columns of most new work that are not as in any other."""
AT_FIRST: Final[dict[str, str]] = {
    "on_failed": "'resubmit'",
    "attempt": "1",
    **dict.fromkeys(("is_named", "missing", "spent", "failures", "crashes", "skipped", "history"), "0"),
}
"""What the others are, in SQL; all else is NULL."""
STARTED = ("state", "attempt", "token", "leased_by", "lease_expires_at", "started_at", "next_retry_at", "shelf",
           "place", "watch_at", "updated_at")  # fmt: skip
FINISHED = ("state", "spent", "token", "leased_by", "lease_expires_at", "completed_at", "result", "last_error",
            "traceback", "shelf", "place", "watch_at", "updated_at")  # fmt: skip
CHANGED = ("seq", "state", "rank", "since", "shelf", "place", "watch_at", "missing", "attempt", "spent", "failures",
           "crashes", "token", "leased_by", "started_at", "completed_at", "next_retry_at", "throttled_since",
           "skipped", "result", "last_error", "traceback", "history", "extra", "lease_expires_at",
           "updated_at")  # fmt: skip


def set_of(columns: Iterable[str]) -> str:
    """`name = ?` for each of these columns."""
    return ", ".join(f"{name} = ?" for name in columns)


def insert_into(table: str, columns: Sequence[str], others: Mapping[str, str] | None = None) -> str:
    """INSERT of a row with these columns, and others that are the same in each, as SQL says them."""
    fixed = others or {}
    values = (*("?" * len(columns)), *fixed.values())
    return f"INSERT INTO {table} ({', '.join((*columns, *fixed))}) VALUES ({', '.join(values)})"


def upsert_into(table: str, columns: Sequence[str]) -> str:
    """The same, or an update of the row that has the first of them."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
    return f"{insert_into(table, columns)} ON CONFLICT ({columns[0]}) DO UPDATE SET {changes}"


SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM work_units"
INSERT: Final = insert_into("work_units", WRITTEN)
INSERT_PLAIN: Final = insert_into("work_units", PLAIN, AT_FIRST)
START: Final = f"UPDATE work_units SET {set_of(STARTED)} WHERE seq = ? AND id = ?"
FINISH: Final = f"UPDATE work_units SET {set_of(FINISHED)} WHERE seq = ? AND id = ?"
UPDATE: Final = f"UPDATE work_units SET {set_of(CHANGED)} WHERE id = ?"

SELECT_PAGE: Final = (
    f"{SELECT} WHERE shelf = ?1 AND place = ?2 AND seq > ?3 "
    f"UNION ALL {SELECT} WHERE shelf = ?1 AND place > ?2 ORDER BY place, seq LIMIT ?4"
)
"""The next rows of a shelf after (place, seq): in two parts, since one comparison of pairs would walk through all
rows of the same place (a whole batch has one) again for each page."""

_convert = msgspec.convert
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_well_formed = msgspec.json.Decoder(msgspec.Raw).decode

_STATES = {state.value: state for state in WorkState}
_names: dict[str, str] = {}
_lists: dict[str, tuple[str, ...]] = {"[]": ()}
_texts: dict[tuple[str, ...], str] = {(): "[]"}
_policies: dict[Retry, str] = {}
_retries: dict[str, Retry] = {}


# --- Results ------------------------------------------------------------------------------------------

LARGEST_RESULT: Final = 1024 * 1024
SHORT: Final = 10_000


def stored_result(result: Any) -> Any:
    """A copy of a result as JSON gives it back; refuses what is none, by the rules for params."""
    kind = type(result)
    if (
        result is None
        or kind is bool
        or (kind is int and SMALLEST_INT <= result <= LARGEST_INT)
        or (kind is str and len(result) <= SHORT and result.isascii())
    ):
        return result
    try:
        data = encode_params({"result": result}, sys.maxsize)
    except InvalidParams as error:
        raise Permanent(f"its result cannot be kept: {str(error).removeprefix('params.')}") from error
    except BaseException as error:
        # Whatever a value raises when it is looked at, another attempt would pay for the same again.
        raise Permanent(
            f"its result is no JSON ({describe(error)}): return plain values, or a file's path"
        ) from error
    size = len(data) - len(b'{"result":}')
    if size > LARGEST_RESULT:
        raise Permanent(
            f"its result takes {size:,} bytes, more than {LARGEST_RESULT:,}: return a file's path"
        )
    return _decode(data)["result"]


# --- Work: writing --------------------------------------------------------------------------------


def insert_row(record: Record, now: float, lease_until: float | None = None) -> Row:
    """The values of INSERT."""
    spec = record.spec
    result = record.result
    depends_on = spec.depends_on
    return (
        record.id,
        record.seq,
        spec.task,
        spec.queue,
        spec.target,
        spec.params.decode(),
        _texts.get(spec.services) or _text_of(spec.services),
        _encode(depends_on).decode() if depends_on else None,
        spec.priority,
        spec.run_at,
        spec.delay,
        spec.timeout,
        spec.dependency_timeout,
        spec.idempotency_key,
        spec.on_failed,
        spec.is_named,
        None if spec.retry is None else _policies.get(spec.retry) or _policy_text(spec.retry),
        _extra_text(record) if spec.cost or record.chosen else None,
        record.state,
        record.rank,
        record.since,
        record.shelf,
        record.place,
        record.watch_at,
        record.missing,
        record.attempt,
        record.spent,
        record.failures,
        record.crashes,
        record.token,
        record.worker,
        record.created_at,
        record.started_at,
        record.completed_at,
        record.next_retry_at,
        record.throttled_since,
        record.skipped,
        None if result is None else _encode(result).decode(),
        record.error,
        record.traceback,
        len(record.history),
        lease_until,
        now,
    )


def is_plain(record: Record) -> bool:
    """True for work that INSERT_PLAIN can write."""
    spec = record.spec
    return not (
        record.spent
        or record.failures
        or record.missing
        or record.crashes
        or record.skipped
        or record.history
        or record.attempt != 1
        or record.completed_at is not None
        or record.next_retry_at is not None
        or record.throttled_since is not None
        or record.result is not None
        or record.error is not None
        or record.traceback is not None
        or record.watch_at is not None
        or record.chosen is not None
        or spec.is_named
        or spec.depends_on
        or spec.cost
        or spec.target is not None
        or spec.run_at is not None
        or spec.delay is not None
        or spec.dependency_timeout is not None
        or spec.idempotency_key is not None
        or spec.retry is not None
        or spec.on_failed != "resubmit"
    )


def plain_row(record: Record, now: float, lease_until: float | None = None) -> Row:
    """The values of INSERT_PLAIN, for work that is plain."""
    spec = record.spec
    return (
        record.id,
        record.seq,
        spec.task,
        spec.queue,
        spec.params.decode(),
        _texts.get(spec.services) or _text_of(spec.services),
        spec.priority,
        spec.timeout,
        record.state,
        record.rank,
        record.since,
        record.shelf,
        record.place,
        record.token,
        record.worker,
        record.created_at,
        record.started_at,
        lease_until,
        now,
    )


def start_row(record: Record, now: float, lease_until: float | None = None) -> Row:
    """The values of START."""
    return (
        record.state,
        record.attempt,
        record.token,
        record.worker,
        lease_until,
        record.started_at,
        record.next_retry_at,
        record.shelf,
        record.place,
        record.watch_at,
        now,
        record.seq,
        record.id,
    )


def finish_row(record: Record, now: float) -> Row:
    """The values of FINISH."""
    result = record.result
    return (
        record.state,
        record.spent,
        record.token,
        record.worker,
        None,
        record.completed_at,
        None if result is None else _encode(result).decode(),
        record.error,
        record.traceback,
        record.shelf,
        record.place,
        record.watch_at,
        now,
        record.seq,
        record.id,
    )


def update_row(record: Record, now: float, lease_until: float | None = None) -> Row:
    """The values of UPDATE."""
    result = record.result
    return (
        record.seq,
        record.state,
        record.rank,
        record.since,
        record.shelf,
        record.place,
        record.watch_at,
        record.missing,
        record.attempt,
        record.spent,
        record.failures,
        record.crashes,
        record.token,
        record.worker,
        record.started_at,
        record.completed_at,
        record.next_retry_at,
        record.throttled_since,
        record.skipped,
        None if result is None else _encode(result).decode(),
        record.error,
        record.traceback,
        len(record.history),
        _extra_text(record) if record.spec.cost or record.chosen else None,
        lease_until,
        now,
        record.id,
    )


class _Extra(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What few works have, in one column."""

    cost: tuple[tuple[str, float], ...] = ()
    chosen: str | None = None


_NOTHING = _Extra()
_decode_extra = msgspec.json.Decoder(_Extra).decode


def _extra_text(record: Record) -> str:
    return _encode(_Extra(record.spec.cost, record.chosen)).decode()


def _text_of(services: tuple[str, ...]) -> str:
    text = _encode(services).decode()
    _keep(_texts, services, text)
    _keep(_lists, text, services)  # what is read later is then the very tuple that was written
    return text


def _policy_text(retry: Retry) -> str:
    fields = {name: getattr(retry, name) for name in retry.__struct_fields__ if name != "retry_on"}
    return _keep(_policies, retry, _encode(fields).decode())


def _policy(text: str) -> Retry:
    return _keep(_retries, text, retry_of_work(_decode(text)))


def _keep(memory: dict[K, V], key: K, value: V) -> V:
    """Remember that, and forget all else when it has become too much."""
    if len(memory) >= MOST_REMEMBERED:
        memory.clear()
    return memory.setdefault(key, value)


# --- Work: reading --------------------------------------------------------------------------------


def read_row(row: Row, history: tuple[Attempt, ...] = ()) -> Record:
    """The record in a row of SELECT; `history` as `read_attempts` made it, when row[-1] says that there is one."""
    try:
        _convert(row, _Columns)
    except msgspec.ValidationError as cause:
        _refuse(row[0], f"its columns make no sense ({_named(cause)})")
    (id, seq, task, queue, target, params, services, depends_on, priority, run_at, delay, timeout, dependency_timeout,
     key, on_failed, is_named, retry, more, state, rank, since, shelf, place, watch_at, missing, attempt, spent,
     failures, crashes, token, worker, created_at, started_at, completed_at, next_retry_at, throttled_since, skipped,
     result, error, traceback, _) = row  # fmt: skip
    try:
        data = params.encode()
        if data != b"{}":
            _well_formed(data)
            if data.lstrip()[:1] != b"{":
                _refuse(id, "its params are no JSON object")
        extra = _NOTHING if more is None else _decode_extra(more)
        spec = Spec(
            id,
            _names.get(task) or _same(task),
            data,
            names if (names := _lists.get(services)) is not None else _list_of(services),
            _names.get(queue) or _same(queue),
            target,
            () if depends_on is None else _decode_names(depends_on),
            priority,
            run_at,
            delay,
            timeout,
            dependency_timeout,
            key,
            _names.get(on_failed) or _same(on_failed),
            is_named == 1,
            None if retry is None else _retries.get(retry) or _policy(retry),
            extra.cost,
        )
        return Record(
            id,
            spec,
            seq,
            rank,
            created_at,
            _STATES[state],
            attempt,
            spent,
            failures,
            token,
            started_at,
            completed_at,
            next_retry_at,
            throttled_since,
            skipped == 1,
            None if result is None else _decode(result),
            error,
            traceback,
            history,
            crashes,
            worker if worker is None else _names.get(worker) or _same(worker),
            missing,
            since,
            shelf if shelf is None else _names.get(shelf) or _same(shelf),
            place,
            watch_at,
            extra.chosen,
        )
    except KeyError:
        _refuse(id, f"its state is {quoted(state)}")
    except ConfigError as cause:
        _refuse(id, f"its retry makes no sense ({cause})")
    except (msgspec.MsgspecError, RecursionError) as cause:
        _refuse(id, f"its JSON cannot be read ({cause})")


def _named(error: Exception) -> str:
    """What msgspec found, with the name of the column instead of its number."""
    return re.sub(r"\$\[(\d+)\]", lambda found: COLUMNS[int(found[1])], str(error))


def _refuse(id: object, problem: str) -> NoReturn:
    raise StorageCorrupt(
        f"The stored work {quoted(id)} is damaged: {problem}. Restore a backup, or delete that work."
    )


def _same(name: str) -> str:
    return _keep(_names, name, name)


def same_name(name: str) -> str:
    """That name, as the object that stands for it here."""
    return _names.get(name) or _same(name)


def same_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of services, as the object that stands for them here."""
    text = _texts.get(names) or _text_of(names)
    return found if (found := _lists.get(text)) is not None else _list_of(text)


def _list_of(text: str) -> tuple[str, ...]:
    return _keep(_lists, text, tuple(map(_same, _decode_names(text))))


def read_state(id: str, text: object) -> WorkState:
    """How a work ended that is no longer kept."""
    state = _STATES.get(text) if isinstance(text, str) else None
    if state is None:
        raise StorageCorrupt(
            f"What is left of work {quoted(id)} is damaged: its state is {quoted(text)}. Restore a backup."
        )
    return state


# --- The attempts of a work -----------------------------------------------------------------------

ATTEMPT: Final = ("work_id", "number", "at", "duration", "error", "worker")
ATTEMPT_INSERT: Final = insert_into("attempts", ATTEMPT)
ATTEMPT_SELECT: Final = (
    "SELECT number, at, duration, error, worker FROM "
    "(SELECT * FROM attempts WHERE work_id = ? ORDER BY id DESC LIMIT ?) AS latest ORDER BY id"
)
"""The lines of one work, oldest first; the limit is row[-1] of its row."""


def attempt_rows(record: Record) -> list[Row]:
    """The values of ATTEMPT_INSERT for each line of the history."""
    return [
        (record.id, line.number, line.at, line.duration, line.error, line.worker) for line in record.history
    ]


def read_attempts(id: str, rows: Iterable[Row]) -> tuple[Attempt, ...]:
    """The history of a work in rows of ATTEMPT_SELECT."""
    return tuple(value_of(Attempt, row, f"history of work {quoted(id)}") for row in rows)


# --- For any table ------------------------------------------------------------------------------------


def fields_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of a struct's fields."""
    return kind.__struct_fields__


def value_of(kind: type[V], row: Row, what: str) -> V:
    """A struct from a row that holds its fields in their order."""
    try:
        return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)  # type: ignore[attr-defined]
    except ValueError as error:  # msgspec's own is one, too
        raise damaged(what, error) from error


def read_with(decode: Callable[[str], V], text: str, what: str) -> V:
    """What that text says, or an error that names what is damaged."""
    try:
        return decode(text)
    except (TypeError, msgspec.MsgspecError) as error:
        raise damaged(what, error) from error


def damaged(what: str, error: Exception) -> StorageCorrupt:
    """What to say of something stored that makes no sense."""
    return StorageCorrupt(f"The stored {what} is damaged ({error}). Restore a backup.")
