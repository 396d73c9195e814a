"""What a queue file keeps besides work, as rows: counters, services with their circuits, grants, workers.

The struct of each is in core/model/state.py. What makes no sense is refused by name.
"""

from __future__ import annotations

from typing import Any, Final, get_type_hints

import msgspec

from runcue.core.model.parse import Rate
from runcue.core.model.state import (
    Adaptive,
    BreakerState,
    Grant,
    Head,
    Limits,
    Quantity,
    ServiceState,
    Worker,
)
from runcue.errors import quoted
from runcue.stores.sql.codec import damaged, read_with, value_of
from runcue.stores.sql.connection import Row

_encode = msgspec.json.Encoder().encode
_decode_rates = msgspec.json.Decoder(tuple[Rate, ...]).decode


def head_row(head: Head, turn: str) -> Row:
    """The values of HEAD_UPDATE."""
    return (*msgspec.structs.astuple(head), turn)


def read_head(row: Row) -> Head:
    """The counters in a row of HEAD_SELECT."""
    return value_of(Head, row, "head")


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


def grant_row(grant: Grant) -> Row:
    """The values of GRANT_INSERT."""
    return grant.service, grant.at, grant.amount, grant.quantity or None, grant.work_id


def read_grant(row: Row) -> Grant:
    """The grant in a row of GRANT_SELECT."""
    return value_of(Grant, row, "service_log")


_WORKER_JSON: Final[dict[str, Any]] = {
    name: msgspec.json.Decoder(kind).decode
    for name, kind in get_type_hints(Worker).items()
    if kind not in {str, int, float, bool}
}
"""The fields of a worker that are stored as JSON, each with what reads it."""


def worker_row(worker: Worker) -> Row:
    """The values of WORKER_UPSERT."""
    values = zip(Worker.__struct_fields__, msgspec.structs.astuple(worker), strict=True)
    return tuple(
        _encode(value).decode() if name in _WORKER_JSON and value is not None else value
        for name, value in values
    )


def read_worker(row: Row) -> Worker:
    """The worker in a row of WORKER_SELECT."""
    what = f"worker {quoted(row[0])}"
    values: list[Any] = []
    for name, value in zip(Worker.__struct_fields__, row, strict=True):
        if name in _WORKER_JSON and value is not None:
            values.append(read_with(_WORKER_JSON[name], value, what))
        else:
            values.append(value == 1 if name in {"is_serving", "hears"} else value)
    return value_of(Worker, tuple(values), what)
