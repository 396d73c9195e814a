"""The report as one HTML page: figures, plots, limits, violations, and how to repeat the run.

Rules:
- One file without any external resource: style, script and plots are in it. Its content security policy forbids
  everything else, so that a name from a configuration could do nothing even if it were not escaped.
- The same run gives the same bytes: no date, no version, no path.
- Words repeat what colours say. The script only shows values under the pointer; without it nothing is missing.
- It stays small however long the run was and however many services it has.
- Of two runs it shows the changed one, and compares it with the base: in a table, and as a line in the plots.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from runcue.sim.again import as_yaml, command_of
from runcue.sim.check import Violation
from runcue.sim.compare import cells
from runcue.sim.config import Config
from runcue.sim.metrics import Series, ServiceSummary, Summary
from runcue.sim.plots import Band, Line, Point, chart, moment, said
from runcue.sim.reading import amount, pretty_rate, rate_of, span
from runcue.sim.report import Run
from runcue.sim.world import Outcome

MOST_PLOTTED = 12
"""Services that get plots: the busiest. The others get a line in a table."""

MOST_SHOWN = 50
"""Violations, and lines of a table."""

MOST_CHANGES = 12
"""Changes of one circuit that are told one by one."""

FINEST = 400
"""Bands closer than this part of the whole run are drawn as one."""

LONGEST = 600


def page(
    summary: Summary,
    outcome: Outcome,
    config: Config,
    *,
    violations: Sequence[Violation] | None = None,
    command: str | None = None,
    before: Run | None = None,
    changes: Sequence[str] = (),
) -> str:
    """The report of one run; `violations` is None when nobody checked, `command` what was typed to get it.

    `before` is the run without the `changes`, which this one is compared with.
    """
    base = None if before is None else before.summary
    script = _part("page.js")
    # the page's policy allows the script with this digest and no other
    digest = hashlib.sha256(f"\n{script}".encode()).digest()
    end = max(summary.took, 0.001 if base is None else base.took, 0.001)
    bands = _bands(summary, end)
    services = sorted(summary.services.items(), key=lambda pair: (-pair[1].starts, pair[0]))
    parts = {
        "hash": f"sha256-{base64.b64encode(digest).decode()}",
        "title": f"{escape(config.name)} · runcue-sim",
        "style": _part("page.css"),
        "script": script,
        "name": escape(config.name),
        "subtitle": escape(_subtitle(summary, outcome, config)),
        "verdict": _verdicts(summary, outcome, violations, before, changes),
        "figures": _figures(summary),
        "compared": _compared(summary, before),
        "plots": _plots(summary, base, end, _merged(band for some in bands.values() for band in some)),
        "services": "\n".join(_service(name, one, bands.get(name, []), summary, end, base)
                              for name, one in services[:MOST_PLOTTED]) + _others(services[MOST_PLOTTED:]),
        "details": _priorities(summary) + _errors(summary),
        "repeat": _repeat(config, command) if before is None else _repeat(before.config, command, changes),
    }  # fmt: skip
    return _filled(_part("page.html"), parts)


def _part(name: str) -> str:
    return files("runcue.sim").joinpath(name).read_text(encoding="utf-8")


def _filled(template: str, parts: dict[str, str]) -> str:
    """Put the parts in their places of the template; a part is not searched for places."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


# head -----------------------------------------------------------------------------------------------------


def _subtitle(summary: Summary, outcome: Outcome, config: Config) -> str:
    where = "queue in a file" if config.store == "file" else "queue in memory"
    nodes = f"{config.nodes} nodes on one file" if config.nodes > 1 else where
    times = f"{span(config.duration)} of arrivals · {span(summary.took)} in all"
    parts = [times, nodes, f"seed {config.seed}"]
    if summary.kills:
        parts.append(f"{summary.kills} killed" if summary.kills > 1 else "one node killed")
    if not outcome.is_whole:
        parts.append("left before its end")
    return " · ".join(parts)


def _verdicts(
    summary: Summary,
    outcome: Outcome,
    violations: Sequence[Violation] | None,
    before: Run | None,
    changes: Sequence[str],
) -> str:
    """The verdict of the check and the bottleneck, of each run where there are two."""
    if before is None:
        return _verdict(violations, outcome) + _fact("Bottleneck", summary.bottleneck)
    return (
        _fact("Changed", ", ".join(changes))
        + _verdict(before.violations, before.outcome, "Base: ")
        + _verdict(violations, outcome, "Changed: ")
        + _fact("Bottleneck of the base", before.summary.bottleneck)
        + _fact("Bottleneck of the changed run", summary.bottleneck)
    )


def _compared(summary: Summary, before: Run | None) -> str:
    if before is None:
        return ""
    heads = ("", "base", "changed", "difference")
    return _table("Base and changed", heads, cells(before.summary, summary)) + (
        '<p class="hint">The figures above and the plots below are of the changed run; '
        "dashed lines are the base, which has the same seed.</p>"
    )


def _verdict(violations: Sequence[Violation] | None, outcome: Outcome, run: str = "") -> str:
    if violations is None:
        return ""
    if not violations:
        return f'<p class="verdict">{run}<strong>Checked:</strong> every promise was kept.</p>'
    items = ""
    for one in violations[:MOST_SHOWN]:  # their times are queue time, or seconds of the run
        at = moment(max(0.0, one.at - outcome.began_at if one.at >= outcome.began_at else one.at))
        items += f"<li><strong>{escape(one.rule)}</strong> <span>at {at}</span> "
        items += f"{escape(_cut(one.text))}{_works(one.work_ids)}</li>"
    more = len(violations) - MOST_SHOWN
    rest = f"<p>… and {more:,} more</p>" if more > 0 else ""
    many = "1 promise was" if len(violations) == 1 else f"{len(violations):,} promises were"
    return f'<div class="verdict bad">{run}<strong>{many} not kept.</strong><ol>{items}</ol>{rest}</div>'


def _works(ids: Sequence[str]) -> str:
    if not ids:
        return ""
    named = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return f" <span>({escape(named)})</span>"


def _fact(title: str, text: str) -> str:
    return f'<p class="fact"><span>{title}</span> {escape(_cut(text))}</p>'


def _figures(summary: Summary) -> str:
    latency = summary.latency
    retried = _percent(summary.success_after_retry) if summary.retried else "–"
    figures = [
        ("completed", f"{summary.completed:,}", f"of {summary.submitted:,}"),
        ("throughput", said(summary.throughput, "minute"), ""),
        *((f"latency {name}", said(getattr(latency, name), "seconds"), "") for name in ("p50", "p95", "p99")),
        ("success", _percent(summary.success_rate), ""),
        ("failed", f"{summary.failed:,}", ""),
        ("retries", f"{summary.retries:,}", ""),
        ("success after retry", retried, ""),
        ("peak depth", f"{summary.depth_peak:,}", f"at {moment(summary.depth_peak_at)}"),
        ("priority inversions", f"{summary.inversions:,}", ""),
        ("out-of-order starts", f"{summary.out_of_order_starts:,}", ""),
    ]
    more = {"unfinished": summary.unfinished, "skipped": summary.skipped, "cancelled": summary.cancelled,
            "rejected": sum(summary.rejected.values()), "attempts lost with a node": summary.lost,
            "rebuilds": summary.rebuilds}  # fmt: skip
    figures += [(name, f"{amount:,}", "") for name, amount in more.items() if amount]
    bad = {name for name in ("failed", "unfinished") if getattr(summary, name)}
    rows = "\n".join(_figure(*figure, is_bad=figure[0] in bad) for figure in figures)
    return f'<dl class="figures">\n{rows}\n</dl>'


def _figure(name: str, value: str, note: str, *, is_bad: bool) -> str:
    kind = ' class="bad"' if is_bad else ""
    small = f" <small>{escape(note)}</small>" if note else ""
    return f"<div{kind}><dt>{escape(name)}</dt><dd>{escape(value)}{small}</dd></div>"


# plots ----------------------------------------------------------------------------------------------------


def _plots(summary: Summary, base: Summary | None, end: float, bands: Sequence[Band]) -> str:
    step = summary.step
    colored = " · shaded: a circuit is open" if bands else ""

    def of(
        run: Summary, name: str, series: Series, tone: str, filled: bool = False, peak: float | None = None
    ) -> Line:
        return Line(name, _middle(series, run.step, run.took), tone, filled, peak)

    depth = [of(summary, "waiting", summary.depth, "a", True, summary.depth_peak)]
    completed = [of(summary, "completed", summary.completed_per_minute, "d", True),
                 of(summary, "failed", summary.failed_per_minute, "b")]  # fmt: skip
    latency = [of(summary, "p99", summary.latency_p99, "c"), of(summary, "p95", summary.latency_p95, "b"),
               of(summary, "p50", summary.latency_p50, "a")]  # fmt: skip
    if base is not None:
        depth.insert(0, of(base, "base", base.depth, "was", peak=base.depth_peak))
        completed.insert(0, of(base, "base", base.completed_per_minute, "was"))
        latency.insert(0, of(base, "base p95", base.latency_p95, "was"))
    return "\n".join([
        chart("Queue depth", depth, end=end, bands=bands, note=f"units that wait, mean of {span(step)}{colored}"),
        chart("Throughput", completed, end=end, unit="minute", bands=bands,
              note=f"units completed, attempts failed, mean of {span(step)}"),
        chart("Latency", latency, end=end, unit="seconds", bands=bands,
              note=f"from submission to completion, of what completed in {span(step)}"),
    ])  # fmt: skip


def _middle(series: Series, step: float, end: float) -> list[Point]:
    """The points in the middle of the time they stand for; where one is missing there is a hole.

    A stretch of time that the run did not last to the end of says nothing, unless it is the only one.
    """
    points: list[Point] = []
    for at, value in series:
        if points and at + step > end + 1e-9:
            break
        if points and at + step / 2 - points[-1][0] > 1.5 * step:
            points.append((points[-1][0], None))
        points.append((min(at + step / 2, end), value))
    return points


def _used(series: Series, step: float, limit: int, per: float) -> Series:
    """Starts in the window before each point: never more than really were in one window."""
    amounts = [value * step / 60 for _, value in series]
    if step > per:
        return [
            (at, min(amount * per / step, float(limit)))
            for (at, _), amount in zip(series, amounts, strict=True)
        ]
    size, total, found = int(per / step + 1e-9), 0.0, []
    for place, (at, _) in enumerate(series):
        total += amounts[place] - (amounts[place - size] if place >= size else 0.0)
        found.append((at, float(round(total))))
    return found


# services -------------------------------------------------------------------------------------------------


def _service(
    name: str,
    one: ServiceSummary,
    bands: Sequence[Band],
    summary: Summary,
    end: float,
    base: Summary | None,
) -> str:
    drawn, was = _merged(bands, end), None if base is None else base.services.get(name)
    running = [Line("running", _middle(one.running, summary.step, summary.took), "a", True, one.running_peak)]
    if base is not None and was is not None:
        points = _middle(was.running, base.step, base.took)
        running.insert(0, Line("base", points, "was", peak=was.running_peak))
    charts = [
        chart("At once", running, end=end, bands=drawn, limit=one.concurrent, is_small=True,
              note=f"mean of {span(summary.step)}")
    ]  # fmt: skip
    plotted = [("Starts", "started", "d", one.starts_per_minute, rate) for rate in one.rates[:4]]
    plotted += [(quantity, "used", "c", use.per_minute, rate)
                for quantity, use in list(one.quantities.items())[:4] for rate in use.rates[:2]]  # fmt: skip
    for what, label, tone, series, text in plotted:
        limit, per = rate_of(text)
        points = _middle(_used(series, summary.step, int(limit), per), summary.step, summary.took)
        # where a point stands for more than one window it is their mean
        note = f"mean of {span(summary.step)}" if summary.step > per else f"in the last {span(per)}"
        title = f"{what} per {pretty_rate(text).partition('/')[2]}"
        charts.append(chart(title, [Line(label, points, tone, True)], end=end, bands=drawn, limit=limit,
                            is_small=True, note=note))  # fmt: skip
    limits = [f"{one.concurrent} at once"] if one.concurrent is not None else []
    limits += [pretty_rate(rate) for rate in one.rates]
    full = f"{_percent(one.full_share)} of the time full"
    facts = [amount(one.starts, "start"), f"{one.failed:,} failed", full]
    if one.rate_limited:
        share = _percent(one.rate_limited_share)
        facts.append(f"held back by its rate for {span(one.rate_limited)} ({share})")
    for quantity, use in one.quantities.items():
        limits += [f"{quantity} {pretty_rate(rate)}" for rate in use.rates]
        facts.append(f"{use.used:,.10g} {quantity} ({_percent(use.share)})")
    if one.refused:
        facts.append(f"{one.refused:,} refused by the service")
    circuit = f'<p class="changes">{escape(_changes(name, summary, one))}</p>' if bands else ""
    return (
        f'<div class="service"><h3>{escape(name)}</h3>'
        f'<p class="limits">{escape(" · ".join(limits) or "no limits")}<br>{escape(" · ".join(facts))}</p>'
        f'<div class="pair">{"".join(charts)}</div>{circuit}</div>'
    )


def _others(services: Sequence[tuple[str, ServiceSummary]]) -> str:
    if not services:
        return ""
    rows = []
    for name, one in services[:MOST_SHOWN]:
        shares = _percent(one.full_share), _percent(one.rate_limited_share)
        rows.append((name, f"{one.starts:,}", f"{one.failed:,}", *shares))
    more = len(services) - MOST_SHOWN
    note = f'<p class="hint">… and {more:,} more</p>' if more > 0 else ""
    return _table("Other services", ("service", "starts", "failed", "full", "held back by rate"), rows) + note


def _bands(summary: Summary, end: float) -> dict[str, list[Band]]:
    """When each circuit was open or half open."""
    found: dict[str, list[Band]] = {}
    since: dict[str, tuple[float, str]] = {}
    for at, name, state in summary.circuits:
        if name in since:
            began_at, was = since.pop(name)
            found.setdefault(name, []).append(Band(began_at, at, was))
        if state != "closed":
            since[name] = (at, "open" if state == "opened" else state)
    for name, (began_at, was) in since.items():
        found.setdefault(name, []).append(Band(began_at, max(end, began_at), was))
    return found


def _merged(bands: Iterable[Band], end: float | None = None) -> list[Band]:
    """Sort bands, and merge those that overlap or are too close to be told apart."""
    ordered = sorted(bands)
    length = max([band.end for band in ordered], default=0.0) if end is None else end
    found: list[Band] = []
    for band in ordered:
        last = found[-1] if found else None
        gap = length if last is None else band.begin - last.end
        is_same = last is not None and (band.state == last.state or band.end - band.begin < length / FINEST)
        if last is not None and (gap < 0 or (gap < length / FINEST and is_same)):
            found[-1] = Band(last.begin, max(last.end, band.end), last.state)
        else:
            found.append(band)
    return found


def _changes(name: str, summary: Summary, one: ServiceSummary) -> str:
    """What a circuit did, in words."""
    times = [
        f"{state.replace('_', ' ')} at {moment(at)}" for at, who, state in summary.circuits if who == name
    ]
    told, more = ", ".join(times[:MOST_CHANGES]), len(times) - MOST_CHANGES
    told += f" and {more:,} more" if more > 0 else ""
    return f"Circuit not closed for {span(one.circuit_open)} ({_percent(one.circuit_open_share)}): {told}."


# tables ---------------------------------------------------------------------------------------------------


def _priorities(summary: Summary) -> str:
    if len(summary.waits) < 2:
        return ""
    rows = []
    for name, wait in list(summary.waits.items())[:MOST_SHOWN]:
        times = (said(value, "seconds") for value in (wait.p50, wait.p95, wait.p99, wait.max))
        rows.append((name, f"{wait.count:,}", *times))
    heads = ("priority", "units", "p50", "p95", "p99", "most")
    return _table("Wait until the first start, by priority", heads, rows)


def _errors(summary: Summary) -> str:
    if not summary.errors:
        return ""
    rows = [(_cut(text), f"{amount:,}") for text, amount in list(summary.errors.items())[:MOST_SHOWN]]
    return _table("Why attempts failed", ("error", "attempts"), rows)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<section><h2>{escape(title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div></section>"
    )


# the same again -------------------------------------------------------------------------------------------


def _repeat(config: Config, command: str | None, changes: Sequence[str] = ()) -> str:
    text = as_yaml(config)
    typed = command or " ".join([command_of(config), *(f"--set {shlex.quote(change)}" for change in changes)])
    note = "<p>The configuration below is <code>run.yaml</code>.</p>" if "run.yaml" in typed else ""
    return (
        f'<pre tabindex="0">{escape(typed)}</pre>{note}'
        f'<details><summary>Configuration</summary><pre tabindex="0">{escape(text)}</pre></details>'
    )


# words ----------------------------------------------------------------------------------------------------


def _percent(share: float) -> str:
    amount = 100 * share
    if 99 < amount < 100:
        return f"{min(amount, 99.99):.2f} %"
    return f"{amount:.1f} %" if 0.05 <= amount < 9.95 else f"{amount:.0f} %"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
