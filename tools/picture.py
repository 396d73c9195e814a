"""Makes docs/images/queuectl.svg: the tour of the README, as a terminal shows it. `make picture` runs this.

Rules:
- Nothing is staged: each command of the tour runs on a terminal of 100 columns, with real workers, in a home that is
  gone afterwards. Between two commands it waits, as a reader would, until there is something to see.
- What hangs on the machine and the day is put out of the picture: the folder becomes `~`, a date and a process number
  become others of the same length. A picture that shows a host's name, or a line that is cut, is not written.
- The SVG loads nothing from elsewhere, and brings its own background: it looks the same on a light and a dark page.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

import runcue

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "queuectl.svg"
COLUMNS = 100
PATIENCE = 60.0
"""Seconds that a command, or something that is waited for, is given."""


class Step(NamedTuple):
    """A command, the exit code it should have, and a job that has to have failed before it is typed."""

    command: str
    code: int = 0
    failed: str | None = None


TOUR = (
    Step("""queuectl enqueue '{"id": "build", "command": "sleep 8 && echo built"}'"""),
    Step("queuectl worker start --count 2 --detach"),
    Step("queuectl enqueue --id test --after build -- echo tested"),
    Step("queuectl service set api --rate 1/min"),
    Step("""printf '{"id": "call-%d", "command": "true", "uses": "api"}\\n' 1 2 3 | queuectl enqueue"""),
    Step("queuectl enqueue --id report --max-retries 2 -- wc -l data.csv"),
    Step("queuectl status", failed="report"),
    Step("queuectl list"),
    Step("queuectl wait report", code=1),
    Step("queuectl dlq list"),
    Step("echo 1,2,3 > data.csv"),
    Step("queuectl dlq retry report"),
    Step("queuectl wait report && queuectl logs report"),
    Step("queuectl worker stop"),
)


EXPECTED = ("1 processing", "next in", "after build", "retry 2/2 in")
"""What the picture is about: something runs, and others wait for a rate, a job and a retry."""


class Shown(NamedTuple):
    """What a terminal showed for a step, and the exit code."""

    step: Step
    text: str
    code: int


def session(folder: Path) -> Iterator[Shown]:
    """The tour, step by step, in a user's home that is this folder; no worker is left at its end."""
    (folder / "work").mkdir()
    try:
        for step in TOUR:
            if step.failed is not None:
                _until_failed(folder / ".queuectl" / "queue.db", step.failed)
            yield Shown(step, *on_terminal(step.command, folder))
    finally:
        on_terminal("queuectl worker stop --now", folder)


def _until_failed(database: Path, job: str) -> None:
    until = time.monotonic() + PATIENCE
    with runcue.Reader(database) as reader:
        while not reader.jobs(ids=[job])[0]["attempts"]:
            if time.monotonic() > until:
                raise TimeoutError(f"{job} has not failed after {PATIENCE:g} s.")
            time.sleep(0.02)


def on_terminal(command: str, folder: Path) -> tuple[str, int]:
    """What a command shows on a terminal, and its exit code; it runs in `work` below that user's home."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    shell = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder / "work",
        env={
            "HOME": str(folder),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin")),
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
        },
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := _read(ours):
            shown += piece
        code = shell.wait(PATIENCE)
    finally:
        os.close(ours)
        shell.kill()
        shell.wait()
    return shown.decode().replace("\r\n", "\n"), code


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so when nobody has the other side any more
        return b""


# the picture ----------------------------------------------------------------------------------------------

PROMPT = "\n\x1b[92m$\x1b[0m \x1b[1m{}\x1b[0m\n"
DARK = (0x0D, 0x11, 0x17)
LIGHT = (0xC9, 0xD1, 0xD9)
COLORS = [
    (0x48, 0x4F, 0x58), (0xFF, 0x7B, 0x72), (0x56, 0xD3, 0x64), (0xE3, 0xB3, 0x41),
    (0x79, 0xC0, 0xFF), (0xD2, 0xA8, 0xFF), (0x56, 0xD4, 0xDD), (0xB1, 0xBA, 0xC4),
    (0x8B, 0x94, 0x9E), (0xFF, 0xA1, 0x98), (0x7E, 0xE7, 0x87), (0xF2, 0xCC, 0x60),
    (0xA5, 0xD6, 0xFF), (0xE2, 0xC5, 0xFF), (0xB3, 0xF0, 0xFF), (0xF0, 0xF6, 0xFC),
]  # fmt: skip
SIZE, WIDE, HIGH = 14, 8.43, 19
"""Pixels: the font, and the room of one character; that is what most monospaced fonts take at that size."""
LEFT, TOP, BELOW = 18, 58, 16
WINDOW = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>A session with queuectl in a terminal</title>
<style>
text {{
  font: {size}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
  white-space: pre;
}}
.bold {{ font-weight: bold; }}
</style>
<rect x="0.5" y="0.5" width="{inner_width}" height="{inner_height}" rx="8" fill="{dark}" stroke="#484f58"/>
<circle cx="22" cy="22" r="6" fill="#ff5f57"/>
<circle cx="42" cy="22" r="6" fill="#febc2e"/>
<circle cx="62" cy="22" r="6" fill="#28c840"/>
{texts}
</svg>
"""


def neutral(text: str, folder: Path) -> str:
    """The text without what hangs on this machine and this day."""
    text = text.replace(str(folder), "~")
    text = re.sub(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d", r"2030-01-31\g<1>09:41", text)
    return re.sub(r"process \d+", "process 4242", text)


def svg(screen: str) -> str:
    """The picture of what a terminal showed; raises where it would show what it should not.

    Each word is put in its place, so that columns stand one below the other in whatever font there is.
    """
    from rich.color import blend_rgb
    from rich.color_triplet import ColorTriplet
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    theme, console = TerminalTheme(DARK, LIGHT, COLORS[:8], COLORS[8:]), Console()
    found = []
    lines = Text.from_ansi(screen).split("\n")
    for number, line in enumerate(lines):
        if line.cell_len > COLUMNS or os.uname().nodename in re.findall(r"[\w.-]+", line.plain):
            raise ValueError(f"This is cut, or names this host: {line.plain}")
        at = 0
        for text, style, _ in line.render(console):
            color = ColorTriplet(*LIGHT)
            if style is not None and style.color is not None:
                color = style.color.get_truecolor(theme)
            if style is not None and style.dim:
                color = blend_rgb(color, ColorTriplet(*DARK), 0.4)
            weight = ' class="bold"' if style is not None and style.bold else ""
            for word in re.finditer(r"\S+", text):
                x, y = LEFT + (at + word.start()) * WIDE, TOP + number * HIGH
                length = f' textLength="{len(word[0]) * WIDE:.2f}"' if len(word[0]) > 1 else ""
                place = f'x="{x:.2f}" y="{y}"{length} fill="{color.hex}"{weight}'
                found.append(f"<text {place}>{escape(word[0])}</text>")
            at += len(text)
    width, height = round(2 * LEFT + COLUMNS * WIDE), TOP + len(lines) * HIGH + BELOW - HIGH
    return WINDOW.format(
        width=width,
        height=height,
        inner_width=width - 1,
        inner_height=height - 1,
        size=SIZE,
        dark=ColorTriplet(*DARK).hex,
        texts="\n".join(found),
    )


def main() -> int:
    """Go on the tour and write the picture; 1 when a step went otherwise than it should."""
    screen = ""
    with tempfile.TemporaryDirectory(prefix="queuectl-picture-") as name:
        folder = Path(name)
        for step, text, code in session(folder):
            if code != step.code:
                sys.stderr.write(f"{step.command}: exit code {code} instead of {step.code}\n{text}")
                return 1
            screen += PROMPT.format(step.command) + neutral(text, folder)
    if missing := [word for word in EXPECTED if word not in screen]:
        sys.stderr.write(f"The machine is too busy for a picture: it would not show {missing}. Try again.\n")
        return 1
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(screen.strip("\n")), encoding="utf-8")
    sys.stdout.write(f"{screen}\n{PICTURE.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
