"""What needs Linux or macOS says so when it is asked for, instead of failing somewhere inside.

To be asked before modules are imported that only those systems have. docs/platforms.md says what works where.
"""

from __future__ import annotations

import sys

from runcue.errors import ConfigError


def need_posix(what: str) -> None:
    """Refuse on Windows what there is no code for."""
    if sys.platform == "win32":
        raise ConfigError(
            f"{what} needs Linux or macOS; on Windows use WSL. What works here: a queue in memory, Cue(), with async "
            "def and def handlers."
        )
