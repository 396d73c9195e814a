"""What the live screen shows, as lines of words and tones. Only text: no terminal, no event loop.

Rules:
- A line is never wider than the room it is given, and columns stand below each other.
- Colours and signs only repeat what a word says.
- Without Unicode everything is ASCII.
- Names and errors are untrusted: control characters in them are spelled out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from runcue import Event
from runcue.sim.plots import moment, said

Piece = tuple[str, str]
"""Some words and their tone: plain, soft, strong, good, warn or bad."""

Row = list[Piece]
MOST_RECENT = 200
LOUD = frozenset({"queue_status", "progress", "service_status", "queued", "started"})
"""Events so frequent that they would hide the others."""

TONES = {
    "completed": "good", "failed": "bad", "retrying": "warn", "circuit_opened": "bad", "circuit_half_open": "warn",
    "circuit_closed": "good", "service_rate_limited": "warn", "backpressure_active": "warn", "queued": "soft",
    "stale_completion": "warn", "lease_lost": "warn", "callback_failed": "bad",
}  # fmt: skip
SPELLED = str.maketrans(
    {"█": "#", "░": ".", "●": "*", "◐": "o", "○": "x", "×": "x", "·": "-", "▸": ">", "…": "."}
)


class Knobs(msgspec.Struct, frozen=True):
    """The current values of what the keys change."""

    error_rate: float = 0.0
    latency: float = 1.0
    arrivals: float = 1.0
    down: tuple[str, ...] = ()
    chosen: str | None = None
    """The service that the keys apply to; None: all of them."""
    is_paused: bool = False


class Scene(msgspec.Struct, frozen=True):
    """One moment of a simulation, ready to be shown."""

    now: float
    duration: float
    counts: Mapping[str, int]
    services: Sequence[Mapping[str, Any]]
    recent: Sequence[Event] = ()
    """The latest events, newest first."""
    started_at: float = 0.0
    """Queue time at the first second of the run."""
    retrying: int = 0
    nodes: str = ""
    backpressure: bool = False
    knobs: Knobs = Knobs()
    has_ended: bool = False


def queue_rows(scene: Scene) -> list[Row]:
    """How much waits, runs and has ended, and whether anything is held back."""
    counts = scene.counts
    failed = counts.get("failed", 0)
    first: Row = []
    for name, key, tone in (
        ("Queued", "pending", "strong"), ("Running", "running", "strong"), ("Completed", "completed", "good"),
        ("Failed", "failed", "bad" if failed else "strong"),
    ):  # fmt: skip
        first += [(f"{name}: ", "soft"), (f"{counts.get(key, 0):<9,}", tone)]
    second: Row = [("Backpressure: ", "soft"), ("ON " if scene.backpressure else "OFF", "strong")]
    second += [("   Retry pending: ", "soft"), (f"{scene.retrying:,}", "strong")]
    if cancelled := counts.get("cancelled", 0):
        second += [("   Cancelled: ", "soft"), (f"{cancelled:,}", "strong")]
    if scene.nodes:
        second += [("   Nodes: ", "soft"), (scene.nodes, "strong")]
    if scene.knobs.is_paused:
        second.append(("   arrivals paused", "warn"))
    return [first, second]


def service_rows(scene: Scene, width: int) -> list[Row]:
    """A line for each service: a bar for what runs, the rate, and its circuit."""
    longest = max([len(clean(str(one["name"]))) for one in scene.services], default=0)
    wide = max(4, min(longest, width - 58))
    return [_service(one, wide, scene.knobs) for one in scene.services]


def _service(one: Mapping[str, Any], wide: int, knobs: Knobs) -> Row:
    running, most = int(one["running"]), one["concurrent"]
    if most is None:
        bar, use = " " * 12, f"{running} running"
    else:
        full = min(10, -(-10 * running // most)) if most else 0
        bar, use = f"[{'█' * full}{'░' * (10 - full)}]", f"{running}/{most} concurrent"
    name = str(one["name"])
    mark = "▸" if knobs.chosen == name else " "
    rates = one["rates"]
    tightest = max(rates, key=lambda rate: rate["used"] / rate["limit"]) if rates else None
    rate = "-" if tightest is None else f"{tightest['used']}/{tightest['limit']} rate"
    is_full = tightest is not None and tightest["used"] >= tightest["limit"]
    sign, word, tone = circuit(one, name in knobs.down)
    return [
        (f"{mark} ", "soft"), (f"{cut(clean(name), wide):<{wide}} ", "strong"), (bar, "plain"),
        (f" {use:<15}", "plain"), (f" {rate:<14}", "warn" if is_full else "plain"), (f" {sign} ", tone), (word, tone),
    ]  # fmt: skip


def circuit(one: Mapping[str, Any], is_down: bool = False) -> tuple[str, str, str]:
    """A sign, a word and a tone for how a service is."""
    if one["circuit"] == "open":
        return "○", "OPEN", "bad"
    if one["circuit"] == "half_open":
        return "◐", "HALF", "warn"
    if one.get("paused"):
        return "○", "PAUSED", "warn"
    if is_down:
        return "●", "DOWN", "bad"
    return "●", "OK", "good"


def event_rows(scene: Scene, width: int, most: int) -> list[Row]:
    """The latest events, newest first."""
    rows = []
    for event in scene.recent[:most]:
        head = f"{moment(event.at - scene.started_at):>9} "
        name = f"{event.name:<21}"
        rest = cut(details(event), width - len(head) - len(name))
        rows.append([(head, "soft"), (name, TONES.get(event.type, "plain")), (rest, "plain")])
    return rows


def details(event: Event) -> str:
    """The details of an event, the most useful first."""
    took = None if event.duration is None else said(event.duration, "seconds").replace(" ", "")
    found = {
        "id": None if event.work_id is None else short(clean(event.work_id)),
        "task": event.task,
        "service": event.service if event.task is None else None,
        "attempt": str(event.attempt) if (event.attempt or 0) > 1 else None,
        "duration": took,
        "error": event.error and event.error.splitlines()[0],
    }
    return "  ".join(f"{key}={clean(value)}" for key, value in found.items() if value is not None)


def control_rows(scene: Scene, speed: float) -> list[Row]:
    """What the keys do, and the current values."""
    knobs = scene.knobs
    chosen = "all" if knobs.chosen is None else cut(clean(knobs.chosen), 10)
    return [
        _keys(("E", f"Error rate {100 * knobs.error_rate:.0f} %"), ("L", f"Latency ×{knobs.latency:g}"),
              ("R", f"Submit rate ×{knobs.arrivals:g}"), ("P", "Resume" if knobs.is_paused else "Pause")),
        _keys(("C", "Fail"), ("K", "Kill"), ("S", "Save"), ("Tab", chosen), ("+-", f"×{speed:g}"), ("?", "Help"),
              ("Q", "Quit")),
    ]  # fmt: skip


def _keys(*pairs: tuple[str, str]) -> Row:
    row: Row = []
    for key, words in pairs:
        row += [(f"[{key}]", "strong"), (f" {words}  ", "soft")]
    row[-1] = (row[-1][0].rstrip(), row[-1][1])
    return row


# text -----------------------------------------------------------------------------------------------------


def spelled(row: Row, is_unicode: bool) -> Row:
    """The row in what the terminal can show."""
    if is_unicode:
        return row
    return [(text.translate(SPELLED).encode("ascii", "replace").decode(), tone) for text, tone in row]


def clean(text: str) -> str:
    """The text on one line, with control characters spelled out."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "replace").decode("ascii") for c in text
    )


def short(work_id: str, most: int = 14) -> str:
    """An id in few columns: its end tells units apart."""
    return work_id if len(work_id) <= most else f"…{work_id[1 - most :]}"


def cut(text: str, width: int) -> str:
    """The text in so many columns, with … where something is left out."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
