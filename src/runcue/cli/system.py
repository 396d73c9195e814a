"""Chooses how worker processes are started, told to leave and heard of, as host/system.py does for the rest."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from runcue.cli import windows as processes
else:
    from runcue.cli import posix as processes

__all__ = ["processes"]
