"""Bars as an SVG picture that stands alone: readable at 700 pixels, in light and dark surroundings alike.

Rules:
- A bar says its value in words beside it; the length is only for the eye. Where values differ by powers of ten the
  scale is logarithmic, and the picture says so.
- What has no value is a row with its reason.
- Everything that is named by somebody else is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 700
NAMES = 200
"""Pixels for the names."""
WORDS = 160
"""Pixels for what stands beside a bar."""
ROW = 24
TOP = 64
ROOM = WIDTH - NAMES - WORDS
STYLE = """
svg { --paper: #fff; --ink: #1d1e22; --soft: #6a6c75; --rule: #e7e7ea; --a: #2a66c8; --b: #a9abb4; --mark: #c2571a; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #15161a; --ink: #e6e6ea; --soft: #9a9ca6; --rule: #2c2e35; --a: #76a8ff; --b: #5d606b; }
  svg { --mark: #f0965a; }
}
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
.title { font-size: 15px; font-weight: 600; }
.soft { fill: var(--soft); }
.paper { fill: var(--paper); }
.ours { fill: var(--a); }
.other { fill: var(--b); }
.rule { stroke: var(--rule); }
.mark { stroke: var(--mark); stroke-width: 2; }
"""


class Bar(NamedTuple):
    """One row: a name, how long its bar is, and what stands beside it; `mark` is a second value, drawn as a line."""

    name: str
    value: float | None
    words: str
    is_ours: bool = False
    mark: float | None = None


class Scale:
    """From values to pixels."""

    def __init__(self, values: Sequence[float], *, is_log: bool) -> None:
        self._is_log = is_log
        highest = max(values, default=1.0)
        self._low = 10 ** math.floor(math.log10(min(values, default=1.0))) if is_log else 0.0
        self._high = 10 ** math.ceil(math.log10(highest)) if is_log else highest
        if is_log and self._high <= self._low:
            self._high = self._low * 10
        if not is_log:
            self._step = _nice(highest / 4)
            self._high = self._step * math.ceil(highest / self._step)

    def at(self, value: float) -> float:
        """Pixels from the left end of the bars."""
        if not self._is_log:
            return ROOM * value / self._high
        return ROOM * max(0.0, math.log10(value / self._low)) / math.log10(self._high / self._low)

    def ticks(self) -> list[float]:
        """Values with a line of their own."""
        if not self._is_log:
            return [self._step * part for part in range(round(self._high / self._step) + 1)]
        powers = round(math.log10(self._high / self._low))
        return [self._low * 10**power for power in range(powers + 1)]


def bars(title: str, note: str, rows: Sequence[Bar], *, is_log: bool = False) -> str:
    """The picture."""
    values = [value for row in rows for value in (row.value, row.mark) if value is not None and value > 0]
    scale = Scale(values, is_log=is_log)
    height = TOP + ROW * len(rows) + 30
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        f'<text class="soft" x="12" y="44">{escape(note)}</text>',
    ]
    for tick in scale.ticks():
        x = NAMES + scale.at(tick)
        drawn.append(f'<path class="rule" d="M{x:.1f} {TOP - 6}V{height - 26}"/>')
        drawn.append(
            f'<text class="soft" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{_short(tick)}</text>'
        )
    for place, row in enumerate(rows):
        drawn += _row(row, TOP + place * ROW, scale)
    return "\n".join([*drawn, "</svg>", ""])


def _row(row: Bar, y: int, scale: Scale) -> list[str]:
    drawn = [f'<text x="{NAMES - 10}" y="{y + 13}" text-anchor="end">{escape(row.name)}</text>']
    end = 0.0
    if row.value is not None:
        end = max(2.0, scale.at(row.value))
        kind = "ours" if row.is_ours else "other"
        drawn.append(f'<rect class="{kind}" x="{NAMES}" y="{y}" width="{end:.1f}" height="17" rx="2"/>')
    if row.mark is not None:
        at = scale.at(row.mark)
        end = max(end, at)
        drawn.append(f'<path class="mark" d="M{NAMES + at:.1f} {y - 1}v19"/>')
    drawn.append(f'<text class="soft" x="{NAMES + end + 8:.1f}" y="{y + 13}">{escape(row.words)}</text>')
    return drawn


def _nice(least: float) -> float:
    """The smallest round number that is not less."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least)


def _short(value: float) -> str:
    """A number on the axis."""
    if value >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"
