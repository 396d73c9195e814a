"""One node of a simulation in real time, as a process of its own, so that it can be killed as processes are.

    python -m runcue.sim.child NODE queue.db < config.json

It works on the queue in that file until it is killed, or until its stdin, which its parent holds, is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from runcue.host.loops import post_to_loop
from runcue.sim.config import Config, parse

START = "\n"
"""Ends the configuration on the child's stdin."""


def spawn(config: Config, node: int, path: Path) -> subprocess.Popen[bytes]:
    """Start a node as a process."""
    child = subprocess.Popen(
        [sys.executable, "-m", "runcue.sim.child", str(node), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(config) + START.encode())
    child.stdin.flush()
    return child


def end(child: subprocess.Popen[bytes], *, at_once: bool = False) -> None:
    """Have a child end, or kill it, and wait until it is gone."""
    if at_once:
        child.kill()
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()
    child.wait()


async def _work(config: Config, node: int, path: Path) -> None:
    from runcue.sim.world import Simulation

    cue = Simulation(config, path.parent).node(node)
    cue.start()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: post_to_loop(loop, ended.set))
    threading.Thread(target=_until_closed, args=(loop, ended), daemon=True).start()
    await ended.wait()
    await cue.stop(1.0)
    await cue.close()


def _until_closed(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    while os.read(0, 4096):
        pass
    post_to_loop(loop, ended.set)


def main(arguments: list[str]) -> None:
    """The program."""
    logging.getLogger("runcue").setLevel(logging.CRITICAL)
    given = b""
    while not given.endswith(START.encode()):
        piece = os.read(0, 65536)
        if not piece:
            return
        given += piece
    config = parse(msgspec.json.decode(given), name="child")
    asyncio.run(_work(config, int(arguments[0]), Path(arguments[1])))


if __name__ == "__main__":
    main(sys.argv[1:])
