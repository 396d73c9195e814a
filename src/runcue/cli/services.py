"""Services as people and programs see them: their limits, how much of them is used, what holds them back."""

from __future__ import annotations

from typing import Any

from runcue.cli.screen import clean, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

HEADS = ("SERVICE", "RUNNING", "RATE", "CIRCUIT", "NOW")
CIRCUIT = HEADS.index("CIRCUIT")


def services(reader: runcue.Reader) -> list[dict[str, Any]]:
    """All of them, each with the `seconds` that it is still held back, in place of a time only the queue knows."""
    now = reader.now()
    return [_timed(one, now) for one in reader.services()]


def _timed(one: dict[str, Any], now: float) -> dict[str, Any]:
    left = None if one["until"] is None else round(max(0.0, one["until"] - now), 3)
    return {**{name: value for name, value in one.items() if name != "until"}, "seconds": left}


def as_table(
    found: list[dict[str, Any]], *, all_columns: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows; without the circuits where no service has one, unless all columns are wanted."""
    rows = [_row(one) for one in found]
    if all_columns or any(one["circuit"] for one in found):
        return HEADS, rows
    return _cut(HEADS), [_cut(row) for row in rows]


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    limit = "" if one["concurrent"] is None else f"/{one['concurrent']}"
    left = "" if one["seconds"] is None else f", {span(one['seconds'])}"
    return (
        clean(one["name"]),
        f"{one['running']}{limit}",
        ", ".join(f"{rate['used']} of {rate['rate']}" for rate in one["rates"]) or "-",
        one["circuit"] or "-",
        "paused" if one["paused"] else f"{one['blocked']}{left}" if one["blocked"] else "ready",
    )


def _cut(row: tuple[str, ...]) -> tuple[str, ...]:
    return row[:CIRCUIT] + row[CIRCUIT + 1 :]
