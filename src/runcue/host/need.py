"""Refuses on Windows what runs only on Linux and macOS, with a clear error instead of a failed import.

Call `need_posix` before importing modules that only those systems have. docs/platforms.md says what works where.
"""

from __future__ import annotations

import sys

from runcue.errors import ConfigError


def need_posix(what: str) -> None:
    """Raise ConfigError on Windows: `what` needs another system."""
    if sys.platform == "win32":
        raise ConfigError(
            f"{what} needs Linux or macOS; on Windows use WSL. What works here: a queue in memory, Cue(), with async "
            "def and def handlers."
        )
