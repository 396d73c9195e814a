"""The clock that all processes of this host share, and the names of this host, of its boot and of its time zone."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

assert sys.platform != "win32"

boottime: Callable[[], float] = time.monotonic
"""Seconds on a clock that cannot be set and that all processes of this host share."""
if hasattr(time, "CLOCK_BOOTTIME"):  # Linux: counts suspended time, which deadlines need
    boottime = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)


@functools.cache
def boot_id() -> str:
    """The name of this boot of the machine, or a constant where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def host_name() -> str:
    """The name of this host, as people know it."""
    return os.uname().nodename or "localhost"


def zone_names() -> Iterator[str]:
    """The names that the time zone of this machine may have, the most likely one first."""
    given = os.environ.get("TZ")
    if given is not None:
        yield given.removeprefix(":") or "UTC"
        return
    _, _, name = os.path.realpath("/etc/localtime").rpartition("/zoneinfo/")
    yield name
    try:
        yield Path("/etc/timezone").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return
