"""Makes errors for a system that is out of threads, processes, open files or memory, perhaps only for a moment.

The message names what is missing. Turns go on, and another attempt may find room.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from runcue.errors import RetryLater, StoreError

OPEN_FILES: Final = {
    errno.EMFILE: "This process has as many files open as it may. Raise its limit (ulimit -n), or close some",
    errno.ENFILE: "This machine has as many files open as it may. Close some, or raise fs.file-max",
}
"""What to do, by errno."""
NO_ROOM: Final = frozenset(
    {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)
"""The errnos of a system that has no room for another process now."""
BACK_OFF: Final = 1.0
"""Seconds until an attempt that found no room is tried again."""


def start_thread(work: Callable[..., None], name: str, *arguments: Any) -> threading.Thread:
    """Run `work` in a daemon thread; StoreError when the system has no room for another thread."""
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreError(
            f"No thread can be started for {name} ({error}). Raise the limit on processes (ulimit -u), or have fewer."
        ) from error
    return thread


def no_room(what: str, error: OSError | RuntimeError, advice: str) -> RetryLater:
    """The error to raise in an attempt for which the system has no room now: it is tried again a little later."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    later = RetryLater(BACK_OFF)
    later.args = (f"no room for another {what} ({reason}): tried again after {BACK_OFF:g} s; {advice}",)
    return later


def no_files(number: int | None, shown: str, store: str) -> StoreError | None:
    """The error for a store that cannot be opened because too many files are open; None if that is not the reason.

    Where the errno is not known (None), opening a file shows it.
    """
    advice = OPEN_FILES.get(_tried() if number is None else number)
    return None if advice is None else StoreError(f"{shown} cannot be opened. {advice}.", store)


def _tried() -> int:
    """The errno of opening a file now; 0 when that works."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno or 0
    return 0


def no_memory(shown: str, store: str) -> StoreError:
    """The error for a store that ran out of memory."""
    return StoreError(f"There was too little memory for {shown}. Have this process hold less.", store)
