"""Draws the diagrams of the documentation into docs/images: `python -m tools.diagrams`.

They are plain pictures, so that neither a code host nor the site needs a script or a network to show them. The life
of a work is drawn from the table of moves; a move that has no place here is an error. A test compares the files.
"""

import math
import re
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

from runcue.core.model.lifecycle import diagram

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
HEIGHT = 36
ARROW = re.compile(r"^    (\w+|\[\*\]) --> (\w+): (\w+)$", re.MULTILINE)


class Box(NamedTuple):
    """One thing: where its middle is, how wide it is, what it looks like."""

    x: int
    y: int
    width: int = 110
    look: str = "box"


class Line(NamedTuple):
    """One arrow: from where to where, what it says, how far it swerves, and where along it the words stand."""

    source: str
    target: str
    says: str = ""
    bend: float = 0.0
    at: float = 0.5


STATES = {
    "pending": Box(110, 230),
    "running": Box(380, 110),
    "completed": Box(690, 110, look="good"),
    "failed": Box(690, 230, look="bad"),
    "cancelled": Box(690, 350, look="grey"),
}
BENDS = {
    ("pending", "running"): (-14.0, 0.5),
    ("running", "pending"): (-22.0, 0.45),
    ("pending", "completed"): (-125.0, 0.5),
    ("pending", "failed"): (-8.0, 0.36),
    ("failed", "pending"): (-22.0, 0.55),
    ("pending", "cancelled"): (14.0, 0.5),
    ("cancelled", "pending"): (-70.0, 0.5),
    ("running", "completed"): (0.0, 0.5),
    ("running", "failed"): (0.0, 0.5),
    ("running", "cancelled"): (0.0, 0.72),
}

PARTS = {
    "results, failures": Box(95, 90, 150, "plain"),
    "submit": Box(95, 170, 120, "plain"),
    "answers": Box(95, 250, 120, "plain"),
    "inbox": Box(270, 170, 90),
    "turn": Box(410, 170, 90, "good"),
    "commit": Box(560, 170, 90, "good"),
    "act": Box(690, 170, 80, "good"),
    "handlers": Box(880, 90, 120, "plain"),
    "callbacks": Box(880, 250, 120, "plain"),
    "listeners": Box(880, 170, 120, "plain"),
    "alarm": Box(550, 246, 90, "plain"),
}
FLOW = (
    Line("submit", "inbox"),
    Line("results, failures", "inbox"),
    Line("answers", "inbox"),
    Line("inbox", "turn"),
    Line("turn", "commit", "plan"),
    Line("commit", "act"),
    Line("act", "handlers", "start, stop"),
    Line("act", "listeners", "tell"),
    Line("act", "callbacks", "ask"),
    Line("act", "alarm", "set", 14),
    Line("alarm", "turn", "", 14),
    Line("handlers", "results, failures", "", 30),
    Line("callbacks", "answers", "", -34),
)

STYLE = """\
<style>
text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; text-anchor: middle }
.says { font-size: 13px; fill: #48505a; paint-order: stroke; stroke: #ffffff; stroke-width: 6px }
.line { fill: none; stroke: #6e7781; stroke-width: 1.5 }
rect { stroke: #8c959f; fill: #eaf1fb }
.card { fill: #ffffff; stroke: #d0d7de }
.good { fill: #dff3e3 } .bad { fill: #fbe3e1 } .grey { fill: #eceef0 } .plain { fill: #ffffff }
</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0,0 L10,5 L0,10 z" fill="#6e7781"/></marker></defs>
"""


def edge(box: Box, x: float, y: float) -> tuple[float, float]:
    """Where the line from the middle of a box to that point leaves the box."""
    across, down = x - box.x, y - box.y
    shares = [box.width / 2 / abs(across)] if across else []
    shares += [HEIGHT / 2 / abs(down)] if down else []
    share = min(1.0, *shares)
    return box.x + across * share, box.y + down * share


def arrow(boxes: dict[str, Box], line: Line) -> tuple[str, str]:
    """One arrow, and its words, which are drawn last."""
    source, target = boxes[line.source], boxes[line.target]
    length = math.dist(source[:2], target[:2])
    middle_x = (source.x + target.x) / 2 - (target.y - source.y) / length * line.bend * 2
    middle_y = (source.y + target.y) / 2 + (target.x - source.x) / length * line.bend * 2
    from_x, from_y = edge(source, middle_x, middle_y)
    to_x, to_y = edge(target, middle_x, middle_y)
    path = f"M{from_x:.0f},{from_y:.0f} Q{middle_x:.0f},{middle_y:.0f} {to_x:.0f},{to_y:.0f}"
    drawn = f'<path class="line" marker-end="url(#tip)" d="{path}"/>'
    if not line.says:
        return drawn, ""
    t, rest = line.at, 1 - line.at
    x = rest * rest * from_x + 2 * rest * t * middle_x + t * t * to_x
    y = rest * rest * from_y + 2 * rest * t * middle_y + t * t * to_y
    return drawn, f'<text class="says" x="{x:.0f}" y="{y + 4:.0f}">{escape(line.says)}</text>'


def picture(title: str, boxes: dict[str, Box], lines: tuple[Line, ...], width: int, height: int) -> str:
    """A whole picture."""
    arrows = [arrow(boxes, line) for line in lines]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title>',
        STYLE.rstrip(),
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *(drawn for drawn, _ in arrows),
    ]
    for name, box in boxes.items():
        corner = f'x="{box.x - box.width / 2:.0f}" y="{box.y - HEIGHT / 2:.0f}"'
        parts.append(f'<rect class="{box.look}" {corner} width="{box.width}" height="{HEIGHT}" rx="6"/>')
        parts.append(f'<text x="{box.x}" y="{box.y + 5}">{escape(name)}</text>')
    parts += [words for _, words in arrows if words]
    return "\n".join([*parts, "</svg>"]) + "\n"


def life() -> str:
    """The life of a work, from the table of moves."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for source, target, verb in ARROW.findall(diagram()):
        if source != "[*]":
            verbs.setdefault((source, target), []).append(verb)
    lines = tuple(Line(*pair, ", ".join(said), *BENDS[pair]) for pair, said in verbs.items())
    return picture("The life of a work: its states and the moves between them", STATES, lines, 800, 420)


def turn() -> str:
    """How everything goes through turns."""
    return picture("Everything that changes something goes through a turn", PARTS, FLOW, 960, 330)


PICTURES = {"lifecycle.svg": life, "turn.svg": turn}

if __name__ == "__main__":
    for file, draw in PICTURES.items():
        (IMAGES / file).write_text(draw(), encoding="utf-8")
        sys.stdout.write(f"docs/images/{file}\n")
