"""What a queue file keeps besides work, as rows: counters, services with their circuits, grants, workers.

The struct of each is in core/model/state.py. What makes no sense is refused by name.
"""

from __future__ import annotations

from typing import Final

import msgspec

from runcue.core.model.parse import Rate
from runcue.core.model.state import (
    Adaptive,
    BreakerState,
    Grant,
    Head,
    Limits,
    Overdue,
    Quantity,
    ServiceState,
    Worker,
)
from runcue.errors import quoted
from runcue.stores.sql.codec import (
    Row,
    damaged,
    fields_of,
    insert_into,
    read_with,
    set_of,
    upsert_into,
    value_of,
)

_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_rates = msgspec.json.Decoder(tuple[Rate, ...]).decode
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode
_decode_overdue = msgspec.json.Decoder(tuple[Overdue, ...]).decode

HEAD: Final = ", ".join(fields_of(Head))
HEAD_SELECT: Final = f"SELECT {HEAD} FROM head"
HEAD_UPDATE: Final = f"UPDATE head SET {set_of((*fields_of(Head), 'turn'))}"
"""Writes `turn`, too: who wrote last, and in which of its turns."""


def head_row(head: Head, turn: str) -> Row:
    """The values of HEAD_UPDATE."""
    return (*msgspec.structs.astuple(head), turn)


def read_head(row: Row) -> Head:
    """The counters in a row of HEAD_SELECT."""
    return value_of(Head, row, "head")


_SERVICE = ("name", "concurrent", "rates", "circuit_threshold", "circuit_timeout", "is_paused", "throttled_until",
            "throttle_streak", "extra")  # fmt: skip
_CIRCUIT = ("service", *fields_of(BreakerState))
SERVICE_SELECT: Final = (
    f"SELECT {', '.join((*_SERVICE, *(f'circuit_state.{name}' for name in _CIRCUIT)))} "
    "FROM services LEFT JOIN circuit_state ON service = name"
)
"""Services with their circuits."""
SERVICE_UPSERT: Final = upsert_into("services", (*_SERVICE, "revision"))
CIRCUIT_UPSERT: Final = upsert_into("circuit_state", (*_CIRCUIT, "revision"))
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
        _service_extra(service),
        revision,
    )


class _ServiceExtra(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What few services have, in one column."""

    quantities: tuple[Quantity, ...] = ()
    adaptive: Adaptive | None = None
    each: Limits | None = None
    width: float | None = None
    narrowed_at: float = 0.0
    declared: Limits | None = None


_NO_EXTRA = _ServiceExtra()
_decode_service_extra = msgspec.json.Decoder(_ServiceExtra).decode


def _service_extra(service: ServiceState) -> str | None:
    limits = service.limits
    extra = _ServiceExtra(limits.quantities, limits.adaptive, limits.each, service.width, service.narrowed_at,
                          service.declared)  # fmt: skip
    return None if extra == _NO_EXTRA else _encode(extra).decode()


def circuit_row(service: ServiceState, revision: int) -> Row | None:
    """The values of CIRCUIT_UPSERT; None for a service without a breaker, whose row is to be deleted."""
    if service.breaker is None:
        return None
    return (service.limits.name, *msgspec.structs.astuple(service.breaker), revision)


def read_service(row: Row) -> ServiceState:
    """The service in a row of SERVICE_SELECT."""
    name, concurrent, rates, threshold, timeout, is_paused, until, streak, more, has_circuit, *circuit = row
    what = f"service {quoted(name)}"
    extra = _NO_EXTRA if more is None else read_with(_decode_service_extra, more, what)
    fields = {
        "limits": {
            "name": name,
            "concurrent": concurrent,
            "rates": read_with(_decode_rates, rates, what),
            "circuit_threshold": threshold,
            "circuit_timeout": timeout,
            "quantities": extra.quantities,
            "adaptive": extra.adaptive,
            "each": extra.each,
        },
        "is_paused": bool(is_paused),
        "throttled_until": until,
        "throttle_streak": streak,
        "breaker": None
        if has_circuit is None
        else value_of(BreakerState, tuple(circuit), f"circuit of {what}"),
        "width": extra.width,
        "narrowed_at": extra.narrowed_at,
        "declared": extra.declared,
    }
    try:
        return msgspec.convert(fields, ServiceState)
    except msgspec.MsgspecError as error:
        raise damaged(what, error) from error


GRANT: Final = ("service", "started_at", "amount", "key", "work_id")
GRANT_INSERT: Final = insert_into("service_log", GRANT)
GRANT_SELECT: Final = "SELECT service, started_at, amount, coalesce(key, ''), work_id FROM service_log"

STARTS: Final = (
    "SELECT service, started_at, CAST(sum(amount) AS double precision), coalesce(key, ''), NULL "
    "FROM service_log "
    "WHERE {} AND started_at > ? GROUP BY service, started_at, coalesce(key, '') HAVING sum(amount) > 0 "
    "ORDER BY started_at"
)
"""What is left of all grants of some services that count from the same moment on."""

SPENT: Final = (
    "SELECT key, CAST(sum(amount) AS double precision) FROM service_log "
    "WHERE service = ? AND started_at >= ? AND work_id = ? AND key IS NOT NULL GROUP BY key"
)
"""How much of each quantity of a service was counted for a work."""

STARTED: Final = (
    "WITH RECURSIVE started (name) AS (SELECT min(service) FROM service_log UNION ALL "
    "SELECT (SELECT min(service) FROM service_log WHERE service > name) FROM started WHERE name IS NOT NULL) "
    "SELECT name FROM started WHERE name IS NOT NULL"
)
"""From each name on to the next by the index: the log may be long, and the names are few."""


def grant_row(grant: Grant) -> Row:
    """The values of GRANT_INSERT."""
    return grant.service, grant.at, grant.amount, grant.quantity or None, grant.work_id


def read_grant(row: Row) -> Grant:
    """The grant in a row of GRANT_SELECT."""
    return value_of(Grant, row, "service_log")


_WORKER = fields_of(Worker)
WORKER_SELECT: Final = f"SELECT {', '.join(_WORKER)} FROM workers"
WORKER_UPSERT: Final = upsert_into("workers", _WORKER)


def worker_row(worker: Worker) -> Row:
    """The values of WORKER_UPSERT."""
    queues = None if worker.queues is None else _encode(worker.queues).decode()
    return (
        worker.id,
        worker.host,
        worker.boot,
        worker.pid,
        worker.started_at,
        queues,
        worker.is_serving,
        _encode(worker.tasks).decode(),
        _encode(worker.room).decode(),
        worker.hears,
        _encode(worker.callbacks).decode(),
        _encode(worker.overdue).decode(),
    )


def read_worker(row: Row) -> Worker:
    """The worker in a row of WORKER_SELECT."""
    *plain, queues, is_serving, tasks, room, hears, callbacks, overdue = row
    what = f"worker {quoted(row[0])}"
    fields = (
        *plain,
        None if queues is None else read_with(_decode_names, queues, what),
        is_serving == 1,
        read_with(_decode_names, tasks, what),
        read_with(_decode_counts, room, what),
        hears == 1,
        read_with(_decode_names, callbacks, what),
        read_with(_decode_overdue, overdue, what),
    )
    return value_of(Worker, fields, what)
