"""Closes descriptors in forked children before their code runs, so that a child keeps no lock of its parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

forking = threading.RLock()
"""Held from the opening of a descriptor until `guard`, so that no thread forks in between."""
_guarded: set[int] = set()


def at_fork(**called: Callable[[], object]) -> None:
    """Have functions called at each fork, as by `os.register_at_fork`; do nothing where there are no forks."""
    register: Callable[..., Any] | None = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**called)


def guard(descriptor: int) -> int:
    """Have a descriptor closed in children that are forked from now on."""
    with forking:
        _guarded.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Close a guarded descriptor."""
    with forking:  # as `forget` does, for every file of every command
        _guarded.discard(descriptor)
        os.close(descriptor)


@contextmanager
def forget(descriptor: int) -> Iterator[None]:
    """Close a guarded descriptor in this context, in which no thread forks."""
    with forking:
        _guarded.discard(descriptor)
        yield


def _close_in_child() -> None:
    # Closed, never unlocked: parent and child share the open file, and an unlock would free the parent's lock.
    for descriptor in _guarded:
        os.closerange(descriptor, descriptor + 1)
    _guarded.clear()
    forking.release()


at_fork(before=forking.acquire, after_in_parent=forking.release, after_in_child=_close_in_child)
