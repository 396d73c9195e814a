"""Records and the other values of a queue as rows of its tables, and back.

Rules:
- A value comes back equal to what was written. What cannot be right (an unknown state, text where a number
  belongs, broken JSON) raises StorageCorrupt with the id of the row, and nothing is guessed.
- A start and a successful finish write only the columns they change: that is most of what a queue writes.
- The types of a row are checked all at once, by a struct of its columns: that costs less than looking at a few.
- Names and lists of services come back as the same objects for the same text: they are compared by identity.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from runcue.core.model import Attempt, Record, Spec, WorkState
from runcue.core.parse import LARGEST_INT, SMALLEST_INT, Rate, encode_params
from runcue.core.retry import Retry
from runcue.core.state import BreakerState, Grant, Head, ServiceState, Worker
from runcue.errors import ConfigError, InvalidParams, Permanent, StorageCorrupt, quoted

Row = tuple[Any, ...]
K = TypeVar("K")
V = TypeVar("V")

MOST_REMEMBERED: Final = 10_000

COLUMNS: Final[tuple[str, ...]] = (
    "id", "seq", "task_type", "queue", "target", "params", "services", "depends_on", "priority", "run_at", "delay",
    "timeout", "dependency_timeout", "idempotency_key", "on_failed", "is_named", "retry", "state", "rank", "since",
    "shelf", "place", "watch_at", "missing", "attempt", "spent", "failures", "crashes", "token", "leased_by",
    "created_at", "started_at", "completed_at", "next_retry_at", "throttled_since", "skipped", "result", "last_error",
    "traceback", "history",
)  # fmt: skip
"""What makes up a record, in the order of SELECT; `history` is the last, so that a reader sees it as row[-1]."""

_NULLABLE = {
    float: ("run_at", "delay", "timeout", "dependency_timeout", "watch_at", "started_at", "completed_at",
            "next_retry_at", "throttled_since"),
    str: ("target", "depends_on", "idempotency_key", "retry", "shelf", "leased_by", "result", "last_error",
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

_WRITTEN = (*COLUMNS, "lease_expires_at", "updated_at")
_STARTED = ("state", "attempt", "token", "leased_by", "lease_expires_at", "started_at", "next_retry_at", "shelf",
            "place", "watch_at", "updated_at")  # fmt: skip
_FINISHED = ("state", "spent", "token", "leased_by", "lease_expires_at", "completed_at", "result", "last_error",
             "traceback", "shelf", "place", "watch_at", "updated_at")  # fmt: skip
_CHANGED = ("seq", "state", "rank", "since", "shelf", "place", "watch_at", "missing", "attempt", "spent", "failures",
            "crashes", "token", "leased_by", "started_at", "completed_at", "next_retry_at", "throttled_since",
            "skipped", "result", "last_error", "traceback", "history", "lease_expires_at", "updated_at")  # fmt: skip


def _set(columns: Iterable[str]) -> str:
    return ", ".join(f"{name} = ?" for name in columns)


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _upsert(table: str, columns: Sequence[str]) -> str:
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
    return f"{_insert(table, columns)} ON CONFLICT ({columns[0]}) DO UPDATE SET {changes}"


SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM work_units"
INSERT: Final = _insert("work_units", _WRITTEN)
START: Final = f"UPDATE work_units SET {_set(_STARTED)} WHERE seq = ? AND id = ?"
FINISH: Final = f"UPDATE work_units SET {_set(_FINISHED)} WHERE seq = ? AND id = ?"
UPDATE: Final = f"UPDATE work_units SET {_set(_CHANGED)} WHERE id = ?"

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
_decode_rates = msgspec.json.Decoder(tuple[Rate, ...]).decode
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode
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


def check_result(result: Any) -> None:
    """Refuse a result that JSON would not give back as it is: the rules are those for params."""
    kind = type(result)
    if (
        result is None
        or kind is bool
        or (kind is int and SMALLEST_INT <= result <= LARGEST_INT)
        or (kind is str and len(result) <= SHORT and result.isascii())
    ):
        return
    try:
        data = encode_params({"result": result}, sys.maxsize)
        if data != b'{"result":%b}' % _encode(result):  # what is stored is made without that rule
            raise TypeError("it changes when it is read back")
    except InvalidParams as error:
        raise Permanent(f"its result cannot be kept: {str(error).removeprefix('params.')}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise Permanent(f"its result is no JSON ({error}): return plain values, or a file's path") from error
    size = len(data) - len(b'{"result":}')
    if size > LARGEST_RESULT:
        raise Permanent(
            f"its result takes {size:,} bytes, more than {LARGEST_RESULT:,}: return a file's path"
        )


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
        lease_until,
        now,
        record.id,
    )


def _text_of(services: tuple[str, ...]) -> str:
    text = _encode(services).decode()
    _keep(_texts, services, text)
    _keep(_lists, text, services)  # what is read later is then the very tuple that was written
    return text


def _policy_text(retry: Retry) -> str:
    fields = {name: getattr(retry, name) for name in retry.__struct_fields__ if name != "retry_on"}
    return _keep(_policies, retry, _encode(fields).decode())


def _policy(text: str) -> Retry:
    return _keep(_retries, text, Retry.of_work(_decode(text)))


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
     key, on_failed, is_named, retry, state, rank, since, shelf, place, watch_at, missing, attempt, spent, failures,
     crashes, token, worker, created_at, started_at, completed_at, next_retry_at, throttled_since, skipped, result,
     error, traceback, _) = row  # fmt: skip
    try:
        data = params.encode()
        if data != b"{}":
            _well_formed(data)
            if data.lstrip()[:1] != b"{":
                _refuse(id, "its params are no JSON object")
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

ATTEMPT_INSERT: Final = _insert("attempts", ("work_id", "number", "at", "duration", "error", "worker"))
ATTEMPT_SELECT: Final = (
    "SELECT number, at, duration, error, worker FROM "
    "(SELECT * FROM attempts WHERE work_id = ? ORDER BY id DESC LIMIT ?) ORDER BY id"
)
"""The lines of one work, oldest first; the limit is row[-1] of its row."""


def attempt_rows(record: Record) -> list[Row]:
    """The values of ATTEMPT_INSERT for each line of the history."""
    return [
        (record.id, line.number, line.at, line.duration, line.error, line.worker) for line in record.history
    ]


def read_attempts(id: str, rows: Iterable[Row]) -> tuple[Attempt, ...]:
    """The history of a work in rows of ATTEMPT_SELECT."""
    return tuple(_value(Attempt, row, f"history of work {quoted(id)}") for row in rows)


# --- Everything else ------------------------------------------------------------------------------


def _fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return kind.__struct_fields__


def _value(kind: type[V], row: Row, what: str) -> V:
    """A struct from a row that holds its fields in their order."""
    try:
        return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)  # type: ignore[attr-defined]
    except ValueError as error:  # msgspec's own is one, too
        raise _damaged(what, error) from error


def _read(decode: Callable[[str], V], text: str, what: str) -> V:
    try:
        return decode(text)
    except (TypeError, msgspec.MsgspecError) as error:
        raise _damaged(what, error) from error


def _damaged(what: str, error: Exception) -> StorageCorrupt:
    return StorageCorrupt(f"The stored {what} is damaged ({error}). Restore a backup.")


HEAD_SELECT: Final = f"SELECT {', '.join(_fields(Head))} FROM head"
HEAD_UPDATE: Final = f"UPDATE head SET {_set((*_fields(Head), 'turn'))}"
"""Writes `turn`, too: who wrote last, and in which of its turns."""


def head_row(head: Head, turn: str) -> Row:
    """The values of HEAD_UPDATE."""
    return (*msgspec.structs.astuple(head), turn)


def read_head(row: Row) -> Head:
    """The counters in a row of HEAD_SELECT."""
    return _value(Head, row, "head")


_SERVICE = ("name", "concurrent", "rates", "circuit_threshold", "circuit_timeout", "is_paused", "throttled_until",
            "throttle_streak")  # fmt: skip
_CIRCUIT = ("service", *_fields(BreakerState))
SERVICE_SELECT: Final = (
    f"SELECT {', '.join((*_SERVICE, *(f'circuit_state.{name}' for name in _CIRCUIT)))} "
    "FROM services LEFT JOIN circuit_state ON service = name"
)
"""Services with their circuits; WHERE services.revision > ? finds the changed ones."""
SERVICE_UPSERT: Final = _upsert("services", (*_SERVICE, "revision"))
CIRCUIT_UPSERT: Final = _upsert("circuit_state", (*_CIRCUIT, "revision"))
CIRCUIT_DELETE: Final = "DELETE FROM circuit_state WHERE service = ?"


def service_row(service: ServiceState, revision: int) -> Row:
    """The values of SERVICE_UPSERT."""
    limits = service.limits
    return (
        limits.name,
        limits.concurrent,
        _encode(limits.rates).decode(),
        limits.circuit_threshold,
        limits.circuit_timeout,
        service.is_paused,
        service.throttled_until,
        service.throttle_streak,
        revision,
    )


def circuit_row(service: ServiceState, revision: int) -> Row | None:
    """The values of CIRCUIT_UPSERT; None for a service without a breaker, whose row is to be deleted."""
    if service.breaker is None:
        return None
    return (service.limits.name, *msgspec.structs.astuple(service.breaker), revision)


def read_service(row: Row) -> ServiceState:
    """The service in a row of SERVICE_SELECT."""
    name, concurrent, rates, threshold, timeout, is_paused, until, streak, has_circuit, *circuit = row
    what = f"service {quoted(name)}"
    fields = {
        "limits": {
            "name": name,
            "concurrent": concurrent,
            "rates": _read(_decode_rates, rates, what),
            "circuit_threshold": threshold,
            "circuit_timeout": timeout,
        },
        "is_paused": bool(is_paused),
        "throttled_until": until,
        "throttle_streak": streak,
        "breaker": None
        if has_circuit is None
        else _value(BreakerState, tuple(circuit), f"circuit of {what}"),
    }
    try:
        return msgspec.convert(fields, ServiceState)
    except msgspec.MsgspecError as error:
        raise _damaged(what, error) from error


GRANT_INSERT: Final = _insert("service_log", ("service", "started_at", "amount"))
GRANT_SELECT: Final = "SELECT service, started_at, amount FROM service_log"
"""WHERE id > ? finds those that came since."""


def grant_row(grant: Grant) -> Row:
    """The values of GRANT_INSERT."""
    return grant.service, grant.at, grant.amount


def read_grant(row: Row) -> Grant:
    """The grant in a row of GRANT_SELECT."""
    return _value(Grant, row, "service_log")


_WORKER = _fields(Worker)
WORKER_SELECT: Final = f"SELECT {', '.join(_WORKER)} FROM workers"
WORKER_UPSERT: Final = _upsert("workers", (*_WORKER, "revision"))
ACTIVE_UPDATE: Final = "UPDATE workers SET active = ?, revision = ? WHERE id = ?"


def worker_row(worker: Worker, revision: int) -> Row:
    """The values of WORKER_UPSERT."""
    *plain, queues, is_serving, active = msgspec.structs.astuple(worker)
    names = None if queues is None else _encode(queues).decode()
    return (*plain, names, is_serving, _encode(active).decode(), revision)


def active_row(id: str, active: dict[str, int], revision: int) -> Row:
    """The values of ACTIVE_UPDATE: what a worker takes up changes with most turns, all else never."""
    return _encode(active).decode(), revision, id


def read_worker(row: Row) -> Worker:
    """The worker in a row of WORKER_SELECT."""
    *plain, queues, is_serving, active = row
    what = f"worker {quoted(row[0])}"
    names = None if queues is None else _read(_decode_names, queues, what)
    return _value(Worker, (*plain, names, is_serving == 1, _read(_decode_counts, active, what)), what)
