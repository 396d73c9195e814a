"""Plots for a page: lines over time as inline SVG, with the words around them as HTML.

Rules:
- The path of a line holds its data unscaled, as seconds and values; a transform puts it in place. So the script of
  the page can read the values, and no value is in the page twice.
- Text is never inside the SVG, which is stretched to whatever room there is; strokes keep their width.
- A line has at most `MOST_POINTS` points: of each stretch of time the lowest and the highest are kept, so that no
  peak is lost.
- Names are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from runcue.sim.reading import span

Point = tuple[float, float | None]

MOST_POINTS = 480
LABEL_GAP = 10.5
"""How far apart the labels beside a plot have to be, in percent of its height."""

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Line(NamedTuple):
    """Values over time; None is a hole. The tone is one of a, b, c, d, or `was` for another run to compare with."""

    name: str
    points: Sequence[Point]
    tone: str = "a"
    filled: bool = False
    peak: float | None = None
    """The highest value there was, where the points are means and do not show it."""


class Band(NamedTuple):
    """A stretch of time in which a circuit was `open` or `half_open`."""

    begin: float
    end: float
    state: str


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    end: float,
    unit: str = "count",
    limit: float | None = None,
    bands: Sequence[Band] = (),
    note: str = "",
    is_small: bool = False,
) -> str:
    """One plot from second 0 to `end`; `limit` is drawn as a line of its own, `note` stands beside the title."""
    end = end if end > 0 else 1.0
    lines = [
        line._replace(points=thin(line.points, MOST_POINTS // 2 if is_small else MOST_POINTS))
        for line in lines
    ]
    highest = max([value for line in lines for _, value in line.points if value is not None], default=0.0)
    top, marks = scale(max(highest, limit or 0.0), unit)
    if limit is not None:  # it has a label of its own
        marks = [mark for mark in marks if abs(mark - limit) > top / 14]
    grid = "".join(f"M0 {number(top - mark)}H{number(end)}" for mark in marks)
    drawn = [_bands(bands, "open", end, top), _bands(bands, "half_open", end, top)]
    drawn.append(f'<path class="grid" d="{grid}"/>')
    if limit is not None:
        drawn.append(f'<path class="limit" d="M0 {number(top - limit)}H{number(end)}"/>')
    place = f"matrix(1 0 0 -1 0 {number(top)})"
    drawn += [f'<g transform="{place}">', *(_path(line) for line in lines), "</g>"]
    level_marks = "".join(
        f'<span class="y" style="bottom:{number(100 * mark / top)}%">{escape(said(mark, unit))}</span>'
        for mark in marks
    )
    names = [(line.name, line.tone, _last(line.points)) for line in lines]
    if limit is not None:
        names.append((f"limit {said(limit, unit)}", "limit", limit))
    head = "h4" if is_small else "h3"
    subtitle = f"<p>{escape(note)}</p>" if note else ""
    return (
        f'<figure class="chart" tabindex="0" data-end="{number(end)}" data-unit="{unit}">'
        f"<figcaption><{head}>{escape(title)}</{head}>{subtitle}{_readout(lines, unit)}</figcaption>"
        f'<div class="room"><div class="plot">'
        f'<svg viewBox="0 0 {number(end)} {number(top)}" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(drawn)}</svg>{level_marks}<i></i></div>{_labels(names, top)}</div>{_times(end)}</figure>"
    )


# parts of a plot ------------------------------------------------------------------------------------------


def _bands(bands: Sequence[Band], state: str, end: float, top: float) -> str:
    """All bands of one state as one shape; none is too narrow to be seen."""
    shapes = []
    for band in bands:
        if band.state == state:
            begin = max(0.0, band.begin)
            wide = number(max(min(end, band.end) - begin, end / 600))
            shapes.append(f"M{number(begin)} 0h{wide}v{number(top)}h-{wide}z")
    return f'<path class="{state}" d="{"".join(shapes)}"/>' if shapes else ""


def _path(line: Line) -> str:
    tone, name = escape(line.tone), escape(line.name)
    steps = path(line.points)
    area = ""
    if line.filled and line.points and all(value is not None for _, value in line.points):
        first, last = line.points[0][0], line.points[-1][0]
        area = f'<path class="area {tone}" d="{steps}L{number(last)} 0L{number(first)} 0Z"/>'
    return f'{area}<path class="line {tone}" data-name="{name}" d="{steps}"/>'


def path(points: Sequence[Point]) -> str:
    """The points as the `d` of an SVG path; a hole begins it anew, and a point between two holes is a dot."""
    pieces: list[str] = []
    length = 0
    for at, value in [*points, (0.0, None)]:
        if value is not None:
            pieces.append(f"{'L' if length else 'M'}{number(at)} {number(value)}")
            length += 1
        else:
            if length == 1:
                pieces.append("h0")
            length = 0
    return "".join(pieces)


def _readout(lines: Sequence[Line], unit: str) -> str:
    """What a reader without a pointer sees: the peak of each line."""
    said_of = []
    for line in lines:
        values = [value for _, value in line.points if value is not None]
        highest = max(values, default=None) if line.peak is None else line.peak
        peak = "none" if highest is None else said(highest, unit)
        said_of.append(f'<b class="{escape(line.tone)}">{escape(line.name)}</b> <span>{escape(peak)}</span>')
    return f'<p class="readout"><span class="at">peak</span> {" ".join(said_of)}</p>'


def _labels(names: Sequence[tuple[str, str, float | None]], top: float) -> str:
    """Names beside the ends of their lines, moved apart where they would touch."""
    places = sorted((100 * value / top, name, tone) for name, tone, value in names if value is not None)
    heights, lowest = [], 0.0
    for place, _, _ in places:
        heights.append(max(place, lowest))
        lowest = heights[-1] + LABEL_GAP
    above = 100.0
    for number_of, height in reversed(list(enumerate(heights))):
        heights[number_of] = min(height, above)
        above = heights[number_of] - LABEL_GAP
    spans = "".join(
        f'<span class="{escape(tone)}" style="bottom:{number(height)}%">{escape(name)}</span>'
        for height, (_, name, tone) in zip(heights, places, strict=True)
    )
    return f'<div class="names" aria-hidden="true">{spans}</div>'


def _times(end: float) -> str:
    step = next((step for step in STEPS if end / step <= 6), None) or 86400 * math.ceil(end / 86400 / 6)
    if end < 3:
        step = 1 if end > 1 else 0
    ticks = [0.0] if not step else [float(step * n) for n in range(int(end / step) + 1)]
    spans = "".join(
        f'<span style="left:{number(100 * tick / end)}%">{tick_text(tick, step)}</span>' for tick in ticks
    )
    return f'<div class="x" aria-hidden="true">{spans}</div>'


def _last(points: Sequence[Point]) -> float | None:
    return next((value for _, value in reversed(points) if value is not None), None)


# numbers --------------------------------------------------------------------------------------------------


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most about that many points: of each stretch of time the lowest and the highest, in their order."""
    if len(points) <= most:
        return list(points)
    kept: list[Point] = []
    stretches = most // 2
    for n in range(stretches):
        piece = points[n * len(points) // stretches : (n + 1) * len(points) // stretches]
        values = [point for point in piece if point[1] is not None]
        if not values:
            kept.append(piece[0])
            continue
        low = min(values, key=lambda point: point[1] or 0.0)
        high = max(values, key=lambda point: point[1] or 0.0)
        kept += [low] if low == high else sorted((low, high), key=lambda point: point[0])
    return kept


def scale(highest: float, unit: str) -> tuple[float, list[float]]:
    """The top of an axis that is a little above the highest value, and two to four round marks below it."""
    if highest <= 0:
        return 1.0, [1.0] if unit == "count" else []
    power = 10.0 ** math.floor(math.log10(highest))
    for factor in (0.2, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0):
        step = factor * power
        if unit == "count" and (step < 1 or step != int(step)):
            continue
        if highest / step <= 4:
            break
    else:
        step = max(1.0, power)
    marks = [step * n for n in range(1, int(highest / step + 1e-9) + 1)]
    return highest * 1.08, [round(mark, 12) for mark in marks]


def number(value: float) -> str:
    """A number in as few characters as its meaning needs: six digits."""
    text = f"{value:.6g}"
    if "e" in text:
        text = f"{value:.6f}".rstrip("0").rstrip(".") if abs(value) < 1 else f"{value:.0f}"
    return "0" if text == "-0" else text


def said(value: float, unit: str) -> str:
    """A value with its unit, for people."""
    if unit == "seconds":
        if value < 1:
            return f"{number(float(f'{1000 * value:.3g}'))} ms"
        return f"{number(float(f'{value:.3g}'))} s" if value < 120 else span(value)
    if unit == "minute":
        return f"{_plain(value)}/min"
    return _plain(value)


def _plain(value: float) -> str:
    rounded = round(value, 1) if value < 100 else round(value)
    return f"{int(rounded):,}" if rounded == int(rounded) else f"{rounded:,.1f}"


def tick_text(at: float, step: float) -> str:
    """A mark of the time axis, in the unit of its step."""
    if not at:
        return "0"
    if step < 60:
        return f"{number(at)} s"
    if step < 3600:
        return f"{number(at / 60)} min"
    return f"{number(at / 3600)} h" if step < 86400 else f"{number(at / 86400)} d"


def moment(at: float) -> str:
    """A time of the run as a clock shows it: 1:02:03."""
    whole = int(at)
    hours, rest = divmod(whole, 3600)
    clock = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return clock if at == whole or hours else f"{clock}.{int(at * 10) % 10}"
