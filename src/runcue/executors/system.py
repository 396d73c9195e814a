"""Chooses how processes are started and ended on this system, as host/system.py does for the rest."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from runcue.executors import windows as processes
else:
    from runcue.executors import posix as processes

__all__ = ["processes"]
