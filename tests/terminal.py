"""A program on a real terminal, as somebody who sits in front of it has it."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.patience import BOUND


@contextmanager
def on_terminal(command: list[str], env: Mapping[str, str], cwd: Path | None = None) -> Iterator[int]:
    """That program on a terminal of 80 columns and 24 rows, which it leaves as it was; our end of it.

    It has to end by itself, and well, once the block is left.
    """
    import fcntl  # which not every system has
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    child = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=cwd, start_new_session=True
    )
    try:
        yield ours
        assert child.wait(BOUND) == 0
        assert termios.tcgetattr(theirs)[:4] == before[:4]
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        os.close(theirs)
        os.close(ours)


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What a terminal is sent up to some words."""
    sent = b""
    while wanted not in sent:
        readable, _, _ = select.select([descriptor], [], [], BOUND)
        assert readable, f"{wanted!r} did not come; the end of what did: {sent[-500:]!r}"
        sent += os.read(descriptor, 65536)
    return sent
