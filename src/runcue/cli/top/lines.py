"""What the live screen shows, as lines of words and tones, independent of any terminal.

Rules:
- A line is never wider than the given width, and columns are aligned.
- Nothing is said by colour or by a special sign alone: a word says it, too. Without Unicode everything is ASCII.
- Names and errors come from elsewhere: they are cleaned of everything that a terminal would obey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runcue.cli.screen import GAP, clean, cut, cut_middle, fitting, padded, span, width_of
from runcue.cli.services import HELD, used_of
from runcue.cli.top.look import Item, Scene

Piece = tuple[str, str]
"""Some words and their tone: plain, soft, strong, good, warn, bad or chosen."""

Row = list[Piece]
BARS = "▁▂▃▄▅▆▇█"
LONGEST_TASK = 34
"""How many characters of a task are shown, to leave room for the reason why it waits."""
HEADS = {"services": ("SERVICE", "STATE", "RUNS", "NOW", "USED")}
TONES = {
    "running": "good", "processing": "good", "failed": "warn", "dead": "bad", "gone": "soft", "completed": "good",
    "cancelled": "soft", "open": "bad", "half open": "warn", "paused": "warn",
}  # fmt: skip
PLAIN = str.maketrans(
    {"█": "#", "░": ".", "●": "*", "◐": "o", "○": "x", "·": "-", "▸": ">", "…": ".", "–": "-", "×": "x"}
    | {bar: sign for bar, sign in zip(BARS, "_.-=+*#@", strict=True) if bar != "█"}
)


def overview(scene: Scene, width: int, dead: str) -> list[Row]:
    """Three lines: counts and workers; throughput and backlog; why units wait."""
    first: Row = []
    for state, number in scene.counts.items():
        tone = "bad" if state == dead and number else "strong" if number else "soft"
        first += [(f"{state} ", "soft"), (f"{number:,}  ", tone)]
    first += [(" workers ", "soft"), (str(scene.workers), "strong" if scene.workers else "warn")]
    pace = sum(scene.pace[-10:]) / len(scene.pace[-10:]) if scene.pace else 0.0
    done, depth = f"{pace:,.1f}/s", f"{scene.depth[-1]:,}" if scene.depth else "0"
    room = max(4, (width - 18 - len(done) - len(depth)) // 2)
    second: Row = [
        ("ended ", "soft"), (f"{done} ", "strong"), (spark(scene.pace, room), "good"),
        ("  waiting ", "soft"), (f"{depth} ", "strong"), (spark(scene.depth, room), "warn"),
    ]  # fmt: skip
    reasons = [_reason(one) for one in scene.waiting[:6]]
    reasons += [f"queue {clean(name)} paused" for name in scene.paused]
    third: Row = [("why ", "soft"), (cut(" · ".join(reasons) or "nothing waits", width - 4), "plain")]
    return [fit(first, width), fit(second, width), third]


def _reason(one: Mapping[str, Any]) -> str:
    number = next(value for key, value in one.items() if key not in {"reason", "seconds"})
    left = "" if one["seconds"] is None else f" ({span(one['seconds'])})"
    return f"{number:,} {clean(one['reason'])}{left}"


def spark(numbers: Sequence[float], width: int) -> str:
    """The latest numbers as a line of bars, the newest at the right; zero is the lowest bar."""
    shown = list(numbers[-width:])
    most = max(shown, default=0.0)
    if not most:
        return (BARS[0] * len(shown)).rjust(width)
    return "".join(BARS[min(7, int(8 * number / most))] for number in shown).rjust(width)


def services(scene: Scene, width: int) -> list[Row]:
    """A line for each service: a bar of running units, its fullest rate, and its health."""
    longest = max((len(clean(str(one["name"]))) for one in scene.services), default=0)
    wide = max(4, min(longest, 24, width - 52))
    return [fit(_service(one, wide), width) for one in scene.services]


def _service(one: Mapping[str, Any], wide: int) -> Row:
    running, most = int(one["running"]), one["concurrent"]
    if most is None:
        bar, use = " " * 12, f"{running} running"
    else:
        full = min(10, -(-10 * running // most)) if most else 0
        bar, use = f"[{'█' * full}{'░' * (10 - full)}]", f"{running}/{most} running"
    shares = [each["used"] / each["limit"] for each in (*one["rates"], *one["quantities"])]
    fullest = max(shares, default=0.0)
    rate = used_of(one)[shares.index(fullest)] if shares else "-"
    is_full = fullest >= 1
    sign, word, tone = health(one)
    return [
        (padded(cut(clean(str(one["name"])), wide), wide) + " ", "strong"), (bar, "plain"), (f" {use:<14}", "plain"),
        (f" {rate:<18}", "warn" if is_full else "plain"), (f" {sign} ", tone), (word, tone),
    ]  # fmt: skip


def health(one: Mapping[str, Any]) -> tuple[str, str, str]:
    """The health of a service: a sign, a word and a tone."""
    left = "" if one.get("seconds") is None else f" {span(one['seconds'])}"
    if one["paused"]:
        return "○", "PAUSED", "warn"
    if one["circuit"] == "open":
        return "○", f"OPEN{left}", "bad"
    if one["circuit"] == "half_open":
        return "◐", "HALF OPEN", "warn"
    if one["blocked"]:
        held = HELD.get(one["blocked"], one["blocked"])
        return "◐", f"{clean(str(held)).upper()}{left}", "warn"
    return "●", "OK", "good"


# the table ------------------------------------------------------------------------------------------------


def widths(items: Sequence[Item], width: int, heads: Sequence[str]) -> list[int]:
    """The widths of the columns, 0 for one that is left out; the last takes the room that the others leave."""
    rows = [(one.id, one.state, one.tries, one.what[:LONGEST_TASK], one.said) for one in items]
    shown = fitting(heads, [max(map(width_of, column)) for column in zip(heads, *rows, strict=True)], width)
    last = len(heads) - 1
    if last in shown:
        shown[last] += width - sum(shown.values()) - len(GAP) * (len(shown) - 1)
    return [shown.get(place, 0) for place in range(len(heads))]


def heads(view: str) -> tuple[str, ...]:
    """The headings of the columns."""
    return HEADS.get(view, ("ID", "STATE", "TRIES", "TASK", "WAITS FOR / ERROR"))


def line(item: Item, columns: Sequence[int], *, is_chosen: bool, is_kept: bool) -> Row:
    """One line of the table."""
    short = [cut_middle(clean(item.id), columns[0])]
    short += map(cut, map(clean, (item.state, item.tries, item.what, item.said)), columns[1:])
    base = "chosen" if is_chosen else "soft" if is_kept else "plain"
    tone = base if is_chosen or is_kept else TONES.get(item.state, "plain")
    name, state, *rest = _cells(short, columns)
    return [(name, base), (state, tone), ("".join(rest), base)]


def head(columns: Sequence[int], names: Sequence[str]) -> Row:
    """The heading of the table."""
    return [("".join(_cells(list(map(cut, names, columns)), columns)), "soft")]


def _cells(texts: Sequence[str], columns: Sequence[int]) -> list[str]:
    """The texts as wide as their columns, with a gap after each but the last; "" for a column that is left out."""
    last = max(place for place, width in enumerate(columns) if width)
    return [
        padded(text, width) + GAP * (place < last) if width else ""
        for place, (text, width) in enumerate(zip(texts, columns, strict=True))
    ]


# text -----------------------------------------------------------------------------------------------------


def fit(row: Row, width: int) -> Row:
    """The row cut to that many columns."""
    found, left = [], width
    for words, tone in row:
        if left > 0:
            found.append((cut(words, left), tone))
        left -= len(words)
    return found


def spelled(words: str, is_unicode: bool) -> str:
    """The words as they are, or in ASCII for a terminal without Unicode."""
    return words if is_unicode else words.translate(PLAIN).encode("ascii", "replace").decode()
