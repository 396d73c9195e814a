"""Compares two runs of the same seed: what one change did.

Arrivals, and what each call does, follow from the seed alone; so the difference between the runs comes from the
change and not from chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runcue.sim.metrics import Summary
from runcue.sim.reading import span

Read = Callable[[Summary], float]
Show = Callable[[float], str]


class Row(msgspec.Struct, frozen=True):
    """One metric of both runs."""

    metric: str
    base: float
    changed: float
    difference: float


def _amount(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.1f}/min"


def _share(value: float) -> str:
    return f"{value:.1%}"


METRICS: dict[str, tuple[Read, Show]] = {
    "completed": (lambda summary: summary.completed, _amount),
    "failed": (lambda summary: summary.failed, _amount),
    "unfinished": (lambda summary: summary.unfinished, _amount),
    "throughput": (lambda summary: summary.throughput, _rate),
    "latency p50": (lambda summary: summary.latency.p50, span),
    "latency p95": (lambda summary: summary.latency.p95, span),
    "latency p99": (lambda summary: summary.latency.p99, span),
    "waiting p95": (lambda summary: summary.wait.p95, span),
    "retries": (lambda summary: summary.retries, _amount),
    "success after retry": (lambda summary: summary.success_after_retry, _share),
    "queue peak": (lambda summary: summary.depth_peak, _amount),
    "priority inversions": (lambda summary: summary.inversions, _amount),
    "out-of-order starts": (lambda summary: summary.out_of_order_starts, _amount),
}
OF_SERVICE: dict[str, tuple[Callable[[Any], float], Show]] = {
    "rate-limited": (lambda service: service.rate_limited, span),
    "at its cap": (lambda service: service.full_share, _share),
    "circuit open": (lambda service: service.circuit_open, span),
}


def compare(base: Summary, changed: Summary) -> list[Row]:
    """All metrics of two runs."""
    return [row for row, _ in _pairs(base, changed)]


def cells(base: Summary, changed: Summary) -> list[tuple[str, str, str, str]]:
    """Rows of text: the metric, both values and their difference, without metrics that are 0 in both."""
    return [
        (row.metric, show(row.base), show(row.changed), _difference(row, show))
        for row, show in _pairs(base, changed)
        if row.base or row.changed or row.metric == "failed"
    ]


def lines(base: Summary, changed: Summary, changes: list[str]) -> list[str]:
    """A table of both runs for a terminal."""
    table = [("", "base", "changed", "difference"), *cells(base, changed)]
    widths = [max(len(row[place]) for row in table) for place in range(4)]
    title = f"{base.name} · seed {base.seed} · {span(base.duration)} · changed: {', '.join(changes)}"
    rows = [
        "  "
        + "  ".join(
            [
                label.ljust(widths[0]),
                *(cell.rjust(size) for cell, size in zip(values, widths[1:], strict=True)),
            ]
        )
        for label, *values in table
    ]
    ends = [f"  bottleneck  base: {base.bottleneck}", f"              changed: {changed.bottleneck}"]
    return [title, "", *(row.rstrip() for row in rows), "", *ends]


def _pairs(base: Summary, changed: Summary) -> list[tuple[Row, Show]]:
    found = [(_row(name, read(base), read(changed)), show) for name, (read, show) in METRICS.items()]
    for service in base.services:
        if service in changed.services:
            pair = base.services[service], changed.services[service]
            found += [
                (_row(f"{service} {name}", read(pair[0]), read(pair[1])), show)
                for name, (read, show) in OF_SERVICE.items()
            ]
    return found


def _row(metric: str, base: float, changed: float) -> Row:
    return Row(metric, base, changed, float(f"{changed - base:.6g}"))


def _difference(row: Row, show: Show) -> str:
    if not row.difference:
        return "same"
    sign = "+" if row.difference > 0 else "-"
    share = f" ({row.difference / row.base:+.0%})" if row.base else ""
    return f"{sign}{show(abs(row.difference))}{share}"
