"""How tests wait: for something that happens, never for a time that should be enough."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOUND = 240.0
"""Seconds until a test gives up. Far more than anything takes, so that a slow machine fails nothing."""
LOOK_EVERY = 0.01
"""Seconds between two looks at a condition."""


async def happens(event: asyncio.Event) -> None:
    """Wait until the event is set."""
    async with asyncio.timeout(BOUND):
        await event.wait()


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until a condition holds that nobody announces; what it returned then."""
    give_up_at = time.monotonic() + BOUND
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"never came true: {what or condition}"
        await asyncio.sleep(LOOK_EVERY)
    return found


def until_sync(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until a condition holds, where no loop runs; what it returned then."""
    give_up_at = time.monotonic() + BOUND
    pause = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"never came true: {what or condition}"
        pause.wait(LOOK_EVERY)
    return found


def lives(pid: int) -> bool:
    """True while that process runs: a zombie does not."""
    if sys.platform == "win32":
        from runcue.host.windows import kernel

        handle = kernel.open_process(pid, kernel.SYNCHRONIZE | kernel.PROCESS_QUERY)
        try:
            return handle is not None and kernel.exit_code(handle) is None
        finally:
            kernel.CloseHandle(handle or 0)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if os.path.isdir("/proc/self"):  # noqa: PTH112
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def has_open(pid: int, file: Path) -> bool:
    """True while that process has this file open; what it opens and closes meanwhile does not matter."""
    from runcue.host.posix.processes import open_files

    return any(same(link, file) for link in open_files(pid))


def same(link: str, file: Path) -> bool:
    try:
        return os.path.samestat(os.stat(link), file.stat())  # noqa: PTH116
    except OSError:  # closed meanwhile
        return False
