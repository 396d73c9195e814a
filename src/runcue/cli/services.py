"""Services in lists: their limits, how much of them is used, and what holds a service back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runcue.cli.screen import clean, counted, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

HEADS = ("SERVICE", "RUNNING", "RATE", "CIRCUIT", "NOW")
CIRCUIT = HEADS.index("CIRCUIT")


def services(reader: runcue.Reader) -> list[dict[str, Any]]:
    """Every service as data, with `seconds`, the time that it is still held back, in place of `until`."""
    now, found = reader.now(), reader.services()
    for one in found:
        until = one.pop("until")
        one["seconds"] = None if until is None else round(max(0.0, until - now), 3)
    return found


def as_table(
    found: list[dict[str, Any]], *, all_columns: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows of a table; without the column of circuits where no service has one, unless `all_columns`."""
    rows = [_row(one) for one in found]
    if all_columns or any(one["circuit"] for one in found):
        return HEADS, rows
    return _without_circuit(HEADS), [*map(_without_circuit, rows)]


HELD = {"rate": "rate used up", "concurrency": "all slots taken", "throttled": "asked for a pause"}
"""What holds a service back, in words; other reasons are shown as they are."""


def standing(one: dict[str, Any]) -> str:
    """The state of a service, and how long it lasts: `ready`, `paused`, `rate used up, 53 s`."""
    if one["paused"] or not one["blocked"]:
        return "paused" if one["paused"] else "ready"
    circuit = str(one["circuit"]).replace("_", " ")
    what = f"circuit {circuit}" if one["blocked"] == "circuit" else HELD.get(one["blocked"], one["blocked"])
    return what if one["seconds"] is None else f"{what}, {span(one['seconds'])}"


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    limit = "" if one["concurrent"] is None else f"/{one['concurrent']}"
    return (
        clean(one["name"]),
        f"{one['running']}{limit}",
        ", ".join(used_of(one)) or "-",
        one["circuit"] or "-",
        clean(standing(one)),
    )


def _without_circuit(row: tuple[str, ...]) -> tuple[str, ...]:
    return row[:CIRCUIT] + row[CIRCUIT + 1 :]


def used_of(service: Mapping[str, Any]) -> list[str]:
    """How much of each rate and quantity is used."""
    rates = [f"{rate['used']} of {rate['rate']}" for rate in service["rates"]]
    return rates + [
        f"{one['used']:,} of {one['limit']:,} {clean(one['name'])}" for one in service["quantities"]
    ]


def limits_of(service: dict[str, Any]) -> str:
    """The limits of a service in one line."""
    parts = [rate["rate"] for rate in service["rates"]]
    parts += [amount_of(one) for one in service["quantities"]]
    adaptive = service["adaptive"]
    if adaptive is not None:
        parts.append(f"{adaptive['min']:,} to {adaptive['max']:,} at once, as it answers")
    elif service["concurrent"] is not None:
        parts.append(f"{service['concurrent']:,} at once")
    if service["circuit"] is not None:
        rest = span(service["circuit_timeout"])
        parts.append(f"rests {rest} after {counted(service['circuit_threshold'], 'failure')} in a row")
    return clean(", ".join(parts)) or "no limits"


def amount_of(quantity: dict[str, Any]) -> str:
    """How much of a quantity may be used in which time: 200,000 tokens per 1 m."""
    return f"{quantity['limit']:,} {quantity['name']} per {span(quantity['per'])}"
