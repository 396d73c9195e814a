"""Waking another process through a FIFO in its name, and noticing its end by a pidfd.

What waits in a FIFO is read all at once. A FIFO that is full says so much that nothing needs to be added.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runcue.host.descriptors import close

if TYPE_CHECKING:
    import asyncio

assert sys.platform != "win32"

Open = Callable[[str, int], int]
"""Opens a file with flags, and refuses one that belongs to somebody else."""

NEWS, URGENT = b".", b"!"
"""What a poke says: that something changed, or that something was left for the process that it wakes."""
SUFFIX: Final = ".wake"
WAKE_SIZE: Final = 65_536  # what waits in a FIFO on most systems


class Ear:
    """Hears what other processes tell the worker of that name."""

    def __init__(self, directory: Path, worker_id: str, opened: Open) -> None:
        """Call this while nobody else makes files of workers there."""
        self._path = directory / (worker_id + SUFFIX)
        self._path.unlink(missing_ok=True)
        os.mkfifo(self._path, 0o600)
        self._path.chmod(0o600)
        self._descriptor = opened(str(self._path), os.O_RDWR)

    def fileno(self) -> int:
        """The descriptor that becomes readable when somebody says something."""
        return self._descriptor

    def attach(self, loop: asyncio.AbstractEventLoop, heard: Callable[[], object]) -> None:
        """Call `heard` on the loop whenever something was said; OSError where there is no room to wait for it."""
        loop.add_reader(self._descriptor, heard)

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do not call any more; what is said meanwhile is kept."""
        loop.remove_reader(self._descriptor)

    def drain(self) -> bytes:
        """All that was said so far."""
        try:  # what is left after that makes the descriptor readable again
            return os.read(self._descriptor, WAKE_SIZE)
        except BlockingIOError:
            return b""

    def remove(self) -> None:
        """Take the name away: nobody can reach us any more."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close it."""
        close(self._descriptor)


class Mouth:
    """Says something to the worker of that name; OSError when nothing is heard there."""

    def __init__(self, directory: Path, worker_id: str, opened: Open) -> None:
        self._descriptor = opened(f"{directory}/{worker_id}{SUFFIX}", os.O_WRONLY)

    def say(self, word: bytes) -> bool:
        """False when nobody hears it any more."""
        try:
            os.write(self._descriptor, word)
        except BlockingIOError:
            return True  # as many pokes wait there as fit
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        """Close it."""
        close(self._descriptor)


def is_deaf(error: OSError) -> bool:
    """Whether `Mouth` failed because nobody listens under that name."""
    return error.errno in {errno.ENXIO, errno.ENOENT}


def watcher(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """What waits for sockets and calls back on the loop: the loop itself."""
    return loop


def readable(seconds: float, *sockets: int) -> list[int]:
    """Wait until one of these can be read, whatever its number."""
    waiting = select.poll()
    for one in sockets:
        waiting.register(one, select.POLLIN)
    return [one for one, _ in waiting.poll(seconds * 1000)]


@contextmanager
def saying() -> Iterator[None]:
    """Programs that give SIGPIPE its deadly meaning back must not die of a peer's death."""
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            if signal.SIGPIPE in signal.sigpending():
                signal.sigwait({signal.SIGPIPE})
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Watch:
    """Notices the end of a process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop: asyncio.AbstractEventLoop | None = None

    def fileno(self) -> int:
        """The descriptor that becomes readable when the process has ended."""
        return self._descriptor

    def attach(self, loop: asyncio.AbstractEventLoop, ended: Callable[..., object], *arguments: Any) -> None:
        """Call `ended` on the loop when the process has ended; OSError where there is no room to wait for it."""
        loop.add_reader(self._descriptor, ended, *arguments)
        self._loop = loop

    def close(self) -> None:
        """Stop watching."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


def watch(pid: int) -> Watch | None:
    """Watch that process; None when it has ended, or where the system cannot do that."""
    open_pidfd: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    if open_pidfd is None:
        return None
    try:
        return Watch(open_pidfd(pid))
    except OSError:  # ended, not of this kernel, or no descriptors left: the lock tells it a little later
        return None
