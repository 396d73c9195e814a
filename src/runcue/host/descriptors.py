"""Descriptors that a forked child closes before its code runs: it must not keep a lock that is not its own."""

from __future__ import annotations

import os
import sys
import threading

forking = threading.RLock()
"""Held between the opening of a descriptor and `guard`: nobody forks meanwhile."""
_guarded: set[int] = set()


def guard(descriptor: int) -> int:
    """Have a descriptor closed in children that are forked from now on."""
    with forking:
        _guarded.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Close a guarded descriptor."""
    with forking:
        _guarded.discard(descriptor)
        os.close(descriptor)


def _close_in_child() -> None:
    # Closed, never unlocked: an unlock would reach the parent, who shares the open file.
    for descriptor in _guarded:
        os.closerange(descriptor, descriptor + 1)
    _guarded.clear()
    forking.release()


if sys.platform != "win32":  # where nobody forks
    os.register_at_fork(
        before=forking.acquire, after_in_parent=forking.release, after_in_child=_close_in_child
    )
