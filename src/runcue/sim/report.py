"""What a run is reported as: some lines for a terminal, and one JSON document for programs.

Rules:
- The same run gives the same bytes: no clock, no path, no version, nothing of this machine.
- The lines leave out figures that are zero or empty; JSON has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from runcue.sim.check import Violation
from runcue.sim.config import Config
from runcue.sim.histogram import Spread
from runcue.sim.metrics import ServiceSummary, Summary
from runcue.sim.reading import amount, pretty_rate, span
from runcue.sim.world import Outcome

FORM = 1
"""The form of the JSON document; it changes when something that was there is no longer."""

WIDEST_LABEL = 20


class Run(msgspec.Struct):
    """One run and its results."""

    summary: Summary
    outcome: Outcome
    config: Config
    violations: Sequence[Violation] | None = None
    """None where nothing was checked."""
    name: str = ""
    """Tells two runs apart: `base` and `changed`."""


def document(
    summary: Summary,
    config: Config,
    violations: Sequence[object] | None = None,
    more: dict[str, Any] | None = None,
) -> bytes:
    """The JSON report: the configuration, all metrics, and what `--check` found if it was asked."""
    content: dict[str, Any] = {"form": FORM, "config": config, "summary": summary}
    if violations is not None:
        content["violations"] = list(violations)
    return encode({**content, **(more or {})})


def encode(content: object) -> bytes:
    """Values of the simulator as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def lines(summary: Summary) -> list[str]:
    """The summary for a terminal: ten to twenty aligned lines."""
    kills = f"{amount(summary.kills, 'node')} killed · {_none_or(summary.lost, 'attempt')} lost"
    rebuilds = f"{summary.rebuilds:,} · {amount(summary.skipped, 'unit')} skipped, being valid"
    rejected = ", ".join(f"{count:,} {why}" for why, count in summary.rejected.items())
    errors = ", ".join(f"{count:,} × {text}" for text, count in list(summary.errors.items())[:3])
    rows = [
        ("units", _joined(_units(summary))),
        ("throughput", f"{summary.throughput:,.1f}/min"),
        ("latency", _spread(summary.latency)),
        ("waiting", _spread(summary.wait)),
        ("attempts", _joined(_attempts(summary))),
        ("queue", _queue(summary)),
        ("priorities", _joined(_priorities(summary))),
        *((name, _joined(_service(service))) for name, service in summary.services.items()),
        *([("schedules", _joined(_schedules(summary)))] if summary.schedules else []),
        *([("crashes", kills)] if summary.kills else []),
        *([("rebuilds", rebuilds)] if summary.rebuilds else []),
        *([("rejected", rejected)] if rejected else []),
        *([("errors", errors)] if errors else []),
    ]
    if summary.missed:
        rows.append(("incomplete", f"{amount(summary.missed, 'event')} came too fast to be counted"))
    rows.append(("bottleneck", summary.bottleneck))
    title = f"{summary.name} · seed {summary.seed} · {span(summary.took)} simulated"
    return [title, "", *aligned(rows)]


def aligned(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Labels and what belongs to them, in two columns."""
    rows = list(rows)
    width = max(len(_label(label)) for label, _ in rows) + 2
    return [f"  {_label(label):<{width}}{text}" for label, text in rows]


def _label(text: str) -> str:
    return text if len(text) <= WIDEST_LABEL else text[: WIDEST_LABEL - 1] + "…"


def _units(summary: Summary) -> list[str]:
    states = ("submitted", "completed", "skipped", "failed", "cancelled", "unfinished")
    counts = {state: getattr(summary, state) for state in states}
    always = {"submitted", "completed", "failed"}
    return [f"{count:,} {state}" for state, count in counts.items() if count or state in always]


def _priorities(summary: Summary) -> list[str]:
    found = [_none_or(summary.inversions, "inversion")]
    if len(summary.waits) > 1:
        worst = ", ".join(f"{span(spread.max)} at {priority}" for priority, spread in summary.waits.items())
        found += [_none_or(summary.out_of_order_starts, "out-of-order start"), f"longest wait {worst}"]
    return found


def _attempts(summary: Summary) -> list[str]:
    found = [f"{summary.attempts:,}", _none_or(summary.retries, "retry", "retries")]
    if summary.retried:
        found[1] += f" ({summary.retry_rate:.1%})"
        share = f"{summary.success_after_retry:.0%}"
        found.append(f"{summary.recovered:,} of {summary.retried:,} completed after a retry ({share})")
    return found


def _queue(summary: Summary) -> str:
    return (
        f"peak {summary.depth_peak:,} at {span(summary.depth_peak_at)} · mean {summary.depth_mean:,.1f} · "
        f"{summary.depth_end:,} at the end"
    )


def _spread(spread: Spread) -> str:
    if not spread.count:
        return "none"
    names = ("p50", "p95", "p99", "max")
    return " · ".join(f"{name} {span(getattr(spread, name))}" for name in names)


def _service(service: ServiceSummary) -> list[str]:
    most = "" if service.concurrent is None else f" of {service.concurrent:,}"
    found = [amount(service.starts, "start"), f"up to {service.running_peak:,}{most} at once"]
    if service.rates:
        rates = ", ".join(map(pretty_rate, service.rates))
        found.append(f"{service.rate_share:.0%} of {rates}")
        limited = f"rate-limited {span(service.rate_limited)} ({service.rate_limited_share:.0%})"
        found.append(limited if service.rate_limited else "never rate-limited")
    for name, one in service.quantities.items():
        rates = ", ".join(map(pretty_rate, one.rates))
        found.append(f"{one.used:,.10g} {name}, {one.share:.0%} of {rates}")
    if service.refused:
        found.append(f"{service.refused:,} refused by the service")
    if service.circuit:
        words = ", ".join(
            f"{word.replace('_', '-')} {service.circuit[word]}×"
            for word in ("opened", "half_open", "closed")
            if word in service.circuit
        )
        found.append(f"circuit {words}, open {span(service.circuit_open)}")
    return found


def _schedules(summary: Summary) -> list[str]:
    found = []
    for name, one in summary.schedules.items():
        left_out = [
            f"{count:,} left out ({why})"
            for why, count in (("overlap", one.overlap), ("missed", one.missed))
            if count
        ]
        found.append(", ".join([f"{name} {one.fired:,}×", *left_out]))
    return found


def _none_or(count: int, one: str, many: str | None = None) -> str:
    return amount(count, one, many) if count else f"no {many or f'{one}s'}"


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(parts)
