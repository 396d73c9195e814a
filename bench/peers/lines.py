"""The figures as lines for a terminal, runcue's beside those of each peer as a ratio."""

from __future__ import annotations

from typing import Any

from bench.measure import Line
from bench.peers.contenders import CONTENDERS, EVERYTHING

OURS, SERVED = "runcue, file", "runcue, PostgreSQL"
"""What peers are compared with: the other stores have lines of their own."""


def all_lines(found: dict[str, Any]) -> list[Line]:
    """Everything that was measured; who was not is a line with the reason."""
    makers = {"throughput": speeds, "latency": waits, "limits": limits, "recovery": recoveries}
    made = [line for measure, make in makers.items() for line in make(found.get(measure, []))]
    return [*made, *goals(found)]


def goals(found: dict[str, Any]) -> list[Line]:
    """runcue against the best of the others: units for each second of the processor, and the time to a start.

    Throughput is compared with queues that keep everything when the power fails, as runcue does in a file and in
    PostgreSQL; a start with that of every queue.
    """
    durable = {one.key for one in CONTENDERS if one.power == EVERYTHING}
    speeds = [row for row in found.get("throughput", []) if not row["error"] and row["key"] in durable]
    starts = [row for row in found.get("latency", []) if not row["error"]]
    made = []
    for key in (OURS, SERVED):
        cost = {row["key"]: row["client"] + row["server"] for row in speeds if row["name"] != "runcue"}
        mine = next((row["client"] + row["server"] for row in speeds if row["key"] == key), 0.0)
        if cost and mine:
            best = min(cost, key=cost.__getitem__)
            name, note = (
                f"{key}: units for each second of a core, to the best",
                f"the best of the others: {best}",
            )
            made.append(Line(name, cost[best] / mine, "×", at_least=1.0, note=note))
        waits = {row["key"]: row["p50"] for row in starts if row["name"] != "runcue"}
        wait = next((row["p50"] for row in starts if row["key"] == key), 0.0)
        if waits and wait:
            best = min(waits, key=waits.__getitem__)
            name, note = f"{key}: submit to start, to the best", f"the best of the others: {best}"
            made.append(Line(name, wait / waits[best], "×", at_most=1.2, note=note))
    return made


def ours(rows: list[dict[str, Any]], figure: str) -> float | None:
    """runcue's own figure, in a file."""
    return next((row.get(figure) for row in rows if row["key"] == OURS), None)


def _missing(name: str, row: dict[str, Any]) -> Line:
    return Line(f"{name} was not measured", 0, "", note=row["error"])


def speeds(rows: list[dict[str, Any]]) -> list[Line]:
    """Units a second."""
    mine = ours(rows, "speed")
    lines = []
    for row in rows:
        if row["error"]:
            lines.append(_missing(row["key"], row))
            continue
        note = f"processor {row['client'] * 1e6:,.0f} + server {row['server'] * 1e6:,.0f} µs"
        ratio = f"; runcue in a file is {mine / row['speed']:.1f} ×" if mine else ""
        lines.append(Line(f"throughput: {row['key']}", row["speed"], "/s", note=note + ratio))
    return lines


def waits(rows: list[dict[str, Any]]) -> list[Line]:
    """Milliseconds from submit to start."""
    return [
        _missing(row["key"], row)
        if row["error"]
        else Line(
            f"submit to start: {row['key']}", 1e3 * row["p50"], "ms", note=f"p99 {1e3 * row['p99']:.1f} ms"
        )
        for row in rows
    ]


def limits(rows: list[dict[str, Any]]) -> list[Line]:
    """Windows exceeded."""
    return [
        _missing(row["name"], row)
        if row["error"]
        else Line(
            f"{row['limit']}/s, windows exceeded: {row['name']}",
            row["exceeded"],
            "",
            note=f"most in one {row['worst']}; {row['used']:.1f} % used; processor {row['processor'] * 1e6:.0f} µs",
        )
        for row in rows
    ]


def recoveries(rows: list[dict[str, Any]]) -> list[Line]:
    """Units that ran again after a kill."""
    return [
        _missing(row["key"], row)
        if row["error"]
        else Line(
            f"run again after kill -9: {row['key']}", row["again"], f"of {row['works']}", note=_after(row)
        )
        for row in rows
    ]


def _after(row: dict[str, Any]) -> str:
    if row["again"] < row["works"]:
        return f"the others not within {row['bound']:g} s"
    return f"the last after {row['seconds']:.1f} s"
