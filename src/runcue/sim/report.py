"""What a run is told as: some lines for a terminal, and one JSON document for programs.

Rules:
- The same run gives the same bytes: no clock, no path, no version, nothing of this machine.
- A number without anything to say is left out of the terminal's lines; JSON has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from runcue.sim.config import Config
from runcue.sim.histogram import Spread
from runcue.sim.metrics import ServiceSummary, Summary
from runcue.sim.reading import amount, pretty_rate, span

FORM = 1
"""The form of the JSON document; it changes when something that was there is no longer."""

WIDEST_LABEL = 20


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
    """Any of our values as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def lines(summary: Summary) -> list[str]:
    """The summary for a terminal: ten to twenty aligned lines."""
    rows = [
        ("works", _joined(_works(summary))),
        ("throughput", f"{summary.throughput:,.1f}/min"),
        ("latency", _spread(summary.latency)),
        ("waiting", _spread(summary.wait)),
        ("attempts", _joined(_attempts(summary))),
        ("queue", _queue(summary)),
    ]
    rows.append(("priorities", _joined(_priorities(summary))))
    rows += [(name, _joined(_service(service))) for name, service in summary.services.items()]
    if summary.kills:
        rows.append(
            ("crashes", f"{amount(summary.kills, 'node')} killed · {_none_or(summary.lost, 'attempt')} lost")
        )
    if summary.rebuilds:
        rows.append(
            ("rebuilds", f"{summary.rebuilds:,} · {amount(summary.skipped, 'work')} skipped, being valid")
        )
    if summary.rejected:
        rows.append(("rejected", ", ".join(f"{count:,} {why}" for why, count in summary.rejected.items())))
    if summary.errors:
        rows.append(
            ("errors", ", ".join(f"{count:,} × {text}" for text, count in list(summary.errors.items())[:3]))
        )
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


def _works(summary: Summary) -> list[str]:
    found = [f"{summary.submitted:,} submitted", f"{summary.completed:,} completed"]
    found += [f"{summary.skipped:,} skipped"] if summary.skipped else []
    found += [f"{summary.failed:,} failed"]
    found += [f"{summary.cancelled:,} cancelled"] if summary.cancelled else []
    return found + ([f"{summary.unfinished:,} unfinished"] if summary.unfinished else [])


def _priorities(summary: Summary) -> list[str]:
    if len(summary.waits) <= 1:
        return [_none_or(summary.inversions, "inversion")]
    worst = ", ".join(f"{span(spread.max)} at {priority}" for priority, spread in summary.waits.items())
    found = [_none_or(summary.inversions, "inversion")]
    found += [_none_or(summary.out_of_order_starts, "out-of-order start")]
    return [*found, f"longest wait {worst}"]


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
    found = [amount(service.starts, "start")]
    if service.concurrent is not None:
        found.append(f"up to {service.running_peak:,} of {service.concurrent:,} at once")
    else:
        found.append(f"up to {service.running_peak:,} at once")
    if service.rates:
        rates = ", ".join(map(pretty_rate, service.rates))
        found.append(f"{service.rate_share:.0%} of {rates}")
        limited = f"rate-limited {span(service.rate_limited)} ({service.rate_limited_share:.0%})"
        found.append(limited if service.rate_limited else "never rate-limited")
    for name, one in service.quantities.items():
        rates = ", ".join(map(pretty_rate, one.rates))
        found.append(f"{one.used:,.10g} {name}, {one.share:.0%} of {rates}")
    if service.refused:
        found.append(f"{service.refused:,} refused by the far side")
    if service.circuit:
        words = ", ".join(
            f"{word.replace('_', '-')} {service.circuit[word]}×"
            for word in ("opened", "half_open", "closed")
            if word in service.circuit
        )
        found.append(f"circuit {words}, open {span(service.circuit_open)}")
    return found


def _none_or(count: int, one: str, many: str | None = None) -> str:
    return amount(count, one, many) if count else f"no {many or f'{one}s'}"


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(parts)
