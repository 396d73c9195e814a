"""Waking another process by events that have a name, and noticing its end by a handle of it.

- A worker has an event for each word. Its name is made of the folder's identity and the worker's id, and is gone with
  the worker. Words that nobody has heard yet become one.
- One thread of a process waits for all its events, and for the ends of other processes.
- Workers of this process are told without an event: on a loop with virtual time nothing may come late.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runcue.host.loops import post_to_loop
from runcue.host.windows import kernel

if TYPE_CHECKING:
    import asyncio

assert sys.platform == "win32"

Open = Callable[[str, int], int]
"""Opens a file with flags, and refuses one that belongs to somebody else."""

NEWS, URGENT = b".", b"!"
"""What a poke says: that something changed, or that something was left for the process that it wakes."""
SUFFIX: Final = ".wake"
READ, WRITE = 0, 1
LOOK_AT_LOOP: Final = 1.0
"""Seconds after which the thread that waits for sockets looks whether its loop is still there."""


class Waiter:
    """Waits in a thread of its own for events and processes, and calls back there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._called: dict[int, Callable[[], None]] = {}
        self._left: list[int] = []
        """Handles that are closed when nobody waits for them any more."""
        self._change: int = kernel.checked(kernel.CreateEvent(None, False, False, None))
        self._is_running = False

    def add(self, handle: int, called: Callable[[], None]) -> None:
        """Call back whenever that is set, or has ended; OSError when there is no room for it."""
        with self._lock:
            if len(self._called) >= kernel.MOST_WAITED - 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._called[handle] = called
            if self._is_running:
                kernel.SetEvent(self._change)
            else:
                self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name="runcue-wake", daemon=True).start()
        except RuntimeError as error:  # no room for another thread
            raise OSError(errno.EAGAIN, str(error)) from error
        self._is_running = True

    def remove(self, handle: int) -> None:
        """Do not call back any more, and close the handle."""
        with self._lock:
            self._called.pop(handle, None)
            if self._is_running:
                self._left.append(handle)
                kernel.SetEvent(self._change)
            else:
                kernel.CloseHandle(handle)

    def _work(self) -> None:
        while True:
            with self._lock:
                for handle in self._left:
                    kernel.CloseHandle(handle)
                self._left.clear()
                if not self._called:
                    self._is_running = False
                    return
                handles = [self._change, *self._called]
            place = kernel.wait_for(handles)
            if place:
                with self._lock:
                    called = self._called.get(handles[place])
                if called is not None:
                    called()

    def forget(self, handle: int) -> None:
        """Do not wait for that any more, but leave it open."""
        with self._lock:
            self._called.pop(handle, None)


waiter = Waiter()
"""The one of this process."""
_here: dict[str, Ear] = {}
"""The ears of this process, by name."""


def _name(directory: Path, worker_id: str) -> str:
    found = directory.stat()
    return rf"Global\runcue-{found.st_dev:x}-{found.st_ino:x}-{worker_id}"


class Ear:
    """Hears what other processes tell the worker of that name."""

    def __init__(self, directory: Path, worker_id: str, opened: Open) -> None:
        """Call this while nobody else makes files of workers there."""
        self._name = _name(directory, worker_id)
        self._lock = threading.Lock()
        self._said = b""
        self._heard: Callable[[], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[bytes, kernel.Event] = {}
        for word in (NEWS, URGENT):
            self._events[word] = kernel.Event(f"{self._name}-{word.hex()}")
        self._is_waiting = False
        _here[self._name] = self

    def attach(self, loop: asyncio.AbstractEventLoop, heard: Callable[[], object]) -> None:
        """Call `heard` on the loop whenever something was said; OSError where there is no room to wait for it."""
        with self._lock:
            self._loop, self._heard = loop, heard
            is_told = bool(self._said)
        if not self._is_waiting:
            for word, event in self._events.items():
                waiter.add(event.handle, partial(self.take, word))
            self._is_waiting = True
        if is_told:
            post_to_loop(loop, self._deliver)

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do not call any more; what is said meanwhile is kept."""
        with self._lock:
            self._heard = None

    def take(self, word: bytes) -> None:
        """Somebody says that word. From any thread."""
        with self._lock:
            self._said += word
            loop = None if self._heard is None else self._loop
        if loop is not None:
            post_to_loop(loop, self._deliver)

    def _deliver(self) -> None:
        heard = self._heard
        if heard is not None and self._said:
            heard()

    def drain(self) -> bytes:
        """All that was said so far."""
        with self._lock:
            for word, event in self._events.items():
                if event.is_taken():
                    self._said += word
            said, self._said = self._said, b""
        return said

    def remove(self) -> None:
        """Take the name away: nobody can reach us any more."""
        if _here.get(self._name) is self:
            del _here[self._name]

    def close(self) -> None:
        """Let go of it."""
        self.remove()
        with self._lock:
            self._heard = None
            events, self._events = list(self._events.values()), {}
        for event in events:
            waiter.remove(event.handle)


class Mouth:
    """Says something to the worker of that name; OSError when nothing is heard there."""

    def __init__(self, directory: Path, worker_id: str, opened: Open) -> None:
        self._name = _name(directory, worker_id)

    def say(self, word: bytes) -> bool:
        """False when nobody hears it any more."""
        if (ear := _here.get(self._name)) is not None:
            ear.take(word)
            return True
        return kernel.set_event(f"{self._name}-{word.hex()}")

    def close(self) -> None:
        """Let go of it: nothing is kept open, or the name would outlive its worker."""


def is_deaf(error: OSError) -> bool:
    """Whether `Mouth` failed because nobody listens under that name."""
    return error.errno == errno.ENOENT


class SocketWatcher:
    """Waits for sockets in a thread of its own, and calls back on the loop: some loops cannot do that here.

    What is called has the socket to itself: it is not waited for again until the call is over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._called: dict[tuple[socket.socket, int], Callable[[], object]] = {}
        self._away: set[tuple[socket.socket, int]] = set()
        self._waking, self._waker = socket.socketpair()
        self._waking.setblocking(False)
        threading.Thread(target=self._work, name="runcue-sockets", daemon=True).start()

    def add_reader(self, one: socket.socket, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back whenever the socket can be read."""
        self._add(one, READ, partial(callback, *arguments))

    def add_writer(self, one: socket.socket, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back whenever the socket has room."""
        self._add(one, WRITE, partial(callback, *arguments))

    def remove_reader(self, one: socket.socket) -> None:
        """Do not wait for what can be read any more."""
        self._remove(one, READ)

    def remove_writer(self, one: socket.socket) -> None:
        """Do not wait for room any more."""
        self._remove(one, WRITE)

    def _add(self, one: socket.socket, what: int, callback: Callable[[], object]) -> None:
        with self._lock:
            self._called[one, what] = callback
        self._wake()

    def _remove(self, one: socket.socket, what: int) -> None:
        with self._lock:
            self._called.pop((one, what), None)
        self._wake()

    def _wake(self) -> None:
        self._waker.send(b".")

    def _work(self) -> None:
        while not self._loop.is_closed():
            with self._lock:
                waited = self._called.keys() - self._away
            reading = [one for one, what in waited if what == READ and one.fileno() != -1]
            writing = [one for one, what in waited if what == WRITE and one.fileno() != -1]
            try:
                found = select.select([self._waking, *reading], writing, [], LOOK_AT_LOOP)
            except (OSError, ValueError):  # one was closed meanwhile
                continue
            for what, ready in ((READ, found[0]), (WRITE, found[1])):
                for one in ready:
                    if one is self._waking:
                        self._drain()
                    else:
                        with self._lock:
                            self._away.add((one, what))
                        post_to_loop(self._loop, self._call, one, what)

    def _drain(self) -> None:
        try:
            while self._waking.recv(4096):
                pass
        except BlockingIOError:
            return

    def _call(self, one: socket.socket, what: int) -> None:
        called = self._called.get((one, what))
        try:
            if called is not None:
                called()
        finally:
            with self._lock:
                self._away.discard((one, what))
            self._wake()


_watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SocketWatcher] = weakref.WeakKeyDictionary()


def watcher(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop | SocketWatcher:
    """What waits for sockets and calls back on the loop: the loop itself if it can."""
    import asyncio

    if isinstance(loop, asyncio.SelectorEventLoop):
        return loop
    if loop not in _watchers:
        _watchers[loop] = SocketWatcher(loop)
    return _watchers[loop]


def readable(seconds: float, *sockets: int) -> list[int]:
    """Wait until one of these can be read."""
    return select.select(sockets, [], [], seconds)[0]


def saying() -> AbstractContextManager[None]:
    """Nothing: nobody dies here because nobody listens."""
    return nullcontext()


class Watch:
    """Notices the end of a process."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._is_closed = False

    def attach(self, loop: asyncio.AbstractEventLoop, ended: Callable[..., object], *arguments: Any) -> None:
        """Call `ended` on the loop when the process has ended; OSError where there is no room to wait for it."""

        def deliver() -> None:
            if not self._is_closed:
                ended(*arguments)

        def called() -> None:
            waiter.forget(self._handle)
            post_to_loop(loop, deliver)

        waiter.add(self._handle, called)

    def close(self) -> None:
        """Stop watching."""
        if not self._is_closed:
            self._is_closed = True
            waiter.remove(self._handle)


def watch(pid: int) -> Watch | None:
    """Watch that process; None when it has ended, or belongs to somebody else."""
    try:
        handle = kernel.open_process(pid, kernel.SYNCHRONIZE)
    except OSError:
        return None
    return None if handle is None else Watch(handle)
