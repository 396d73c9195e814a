"""What the system has no room for at the moment: threads, open files, memory. It may have some a little later.

Whoever asked for something is told what is missing. Turns go on: none of it is a mistake, and nothing is broken.
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
"""What to do, by the number of the error."""
NO_ROOM: Final = frozenset(
    {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)
"""Errors of a system that has no room for another process just now."""
BACK_OFF: Final = 1.0
"""Seconds until an attempt that found no room is tried again."""


def start_thread(work: Callable[..., None], name: str, *arguments: Any) -> threading.Thread:
    """Have that done by a thread that keeps no program from ending; StoreError when there is no room for one."""
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreError(
            f"No thread can be started for {name} ({error}). Raise the limit on processes (ulimit -u), or have fewer."
        ) from error
    return thread


def no_room(what: str, error: OSError | RuntimeError, advice: str) -> RetryLater:
    """What to raise in an attempt for which the system has no room just now: it is tried again a little later."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    later = RetryLater(BACK_OFF)
    later.args = (f"no room for another {what} ({reason}): tried again after {BACK_OFF:g} s; {advice}",)
    return later


def no_files(number: int | None, shown: str, store: str) -> StoreError | None:
    """What to say where nothing could be opened because too much is open; None where it is something else.

    Where nobody knows the number of the error, that is tried out.
    """
    advice = OPEN_FILES.get(_tried() if number is None else number)
    return None if advice is None else StoreError(f"{shown} cannot be opened. {advice}.", store)


def _tried() -> int:
    """Why no file can be opened; 0 where one can be."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or 0
    return 0


def no_memory(shown: str, store: str) -> StoreError:
    """What to say of something for which there was no memory."""
    return StoreError(f"There was too little memory for {shown}. Have this process hold less.", store)
