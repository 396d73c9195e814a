"""Worker processes of a supervisor on Windows: started with a pipe, told to leave by events that have a name.

- Each worker has a process group of its own, so Ctrl-C reaches the supervisor alone. It watches the process of its
  supervisor, and leaves when that is gone.
- A process has two events, `leave` and `now`, named after its pid and the moment of its creation: no other process
  ever has these names. Ctrl-C and Ctrl-Break mean to a supervisor what SIGINT means elsewhere.
- The supervisor looks at its workers' pipes twenty times a second: they cannot be waited for together.
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"

import asyncio
import msvcrt
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from ctypes import byref
from ctypes.wintypes import DWORD
from functools import partial
from types import FrameType
from typing import Self

import msgspec

from runcue.host.loops import post_to_loop
from runcue.host.windows import kernel
from runcue.host.windows.processes import KILLED, cause_of_death
from runcue.host.windows.wake import waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue.cli.worker import Orders

GRACEFUL, AT_ONCE, KILL = 1, 2, 3
"""How urgently a process is told to leave."""
ONCE_MORE = 0
"""A Ctrl-C, whose second and third mean more than the first."""
LEAVE, NOW = "leave", "now"
WORDS = {GRACEFUL: LEAVE, AT_ONCE: NOW}
KEYS = (signal.SIGINT, signal.SIGBREAK)
LOOK_EVERY = 0.05
"""Seconds between two looks at the workers' pipes."""
NO_WAIT = 1
"""The mode of a pipe that is never waited for."""

PAUSE = f'"{sys.executable}" -c "import time; time.sleep({{0:g}})"'
FAIL, NOTHING = "echo {0}>&2& exit 1", "ver >nul"
"""Commands for a demo: wait for so many seconds, complain and fail, do nothing."""
UNHEARD = (OSError,)
"""The errors of saying something that the supervisor does not read."""
CLOSED_OUTPUT = 141
"""The exit code of a process whose output nobody reads."""


def _name(pid: int, created: int, word: str) -> str:
    return rf"Global\runcue-{pid}-{created:x}-{word}"


def _events() -> dict[str, kernel.Event]:
    """The events of this process."""
    created = kernel.created_at(kernel.CurrentProcess())
    return {word: kernel.Event(_name(os.getpid(), created, word)) for word in (LEAVE, NOW)}


# --- In the supervisor ----------------------------------------------------------------------------


class Requests:
    """Turns keys and events into something that a supervisor can wait for."""

    def __enter__(self) -> Self:
        self._taken: list[int] = []
        self._events = _events()
        for number in KEYS:
            signal.signal(number, self._pressed)
        return self

    def __exit__(self, *error: object) -> None:
        for number in KEYS:
            signal.signal(number, signal.SIG_IGN)
        for event in self._events.values():
            event.close()

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self._taken.append(ONCE_MORE)

    def wait(self, workers: Sequence[Launched], writable: list[int], seconds: float | None) -> None:
        """Return when there is a request, a worker said something or ended, or the time has passed."""
        until = None if seconds is None else time.monotonic() + seconds
        handles = [event.handle for event in self._events.values()]
        while not self._taken and not any(one.has_news() for one in workers):
            if until is not None and time.monotonic() >= until:
                return
            place = kernel.wait_for(handles, int(LOOK_EVERY * 1000))
            if place is not None:
                self._taken.append((GRACEFUL, AT_ONCE)[place])

    def take(self) -> list[int]:
        """The requests that came since the last call."""
        taken, self._taken = self._taken, []
        return taken


class Launched:
    """A worker process, and the pipe from it."""

    def __init__(self, orders: Orders, *, is_quiet: bool) -> None:
        """With `is_quiet` its standard output goes nowhere; OSError when there is no room for a process."""
        self._voice, theirs = os.pipe()
        handle = msvcrt.get_osfhandle(theirs)
        os.set_handle_inheritable(handle, True)
        orders = msgspec.structs.replace(orders, voice=handle, lifeline=os.getpid())
        console = kernel.GetConsole()
        flags = subprocess.CREATE_NEW_PROCESS_GROUP if console else subprocess.CREATE_NO_WINDOW
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runcue.cli.worker", msgspec.json.encode(orders).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if is_quiet else None,
                startupinfo=subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]}),
                creationflags=flags,
            )
        except OSError:
            self.close()
            raise
        finally:
            os.close(theirs)

    def poll(self) -> int | None:
        """The exit code of the worker; None while it runs."""
        return self._process.poll()

    def has_news(self) -> bool:
        """Whether the worker has said something, or has ended."""
        return bool(self._waiting()) or self._process.poll() is not None

    def _waiting(self) -> int:
        """How many bytes wait in the pipe."""
        if self._voice == -1:
            return 0
        found = DWORD()
        if not kernel.PeekPipe(msvcrt.get_osfhandle(self._voice), None, 0, None, byref(found), None):
            return 0
        return int(found.value)

    def hear(self) -> bytes:
        """What the worker has said since the last call."""
        said = b""
        while size := self._waiting():
            said += os.read(self._voice, size)
        return said

    def tell(self, level: int) -> None:
        """Tell the worker to leave; one that cannot hear it yet is ended, as nothing runs there."""
        if level == KILL or not tell_worker(self._process.pid, level, lambda: self.poll() is None):
            self._process.kill()

    def close(self) -> None:
        """Close the pipe."""
        if self._voice != -1:
            os.close(self._voice)
            self._voice = -1


def was_asked(code: int) -> bool:
    """Whether a process with this exit code left because it was asked to."""
    return code == 0


def was_ended(code: int) -> bool:
    """Whether a process with this exit code was ended by the urgent requests of its supervisor."""
    return code in {1, KILLED}  # Popen.kill() gives 1


def ending(code: int) -> str:
    """How a process ended, in words, from its exit code."""
    return f"ended with {cause_of_death(code)}"


# --- In the worker --------------------------------------------------------------------------------


def open_voice(descriptor: int) -> int:
    """A descriptor for the pipe to the supervisor, which is never waited for."""
    os.set_handle_inheritable(descriptor, False)
    kernel.SetPipe(descriptor, byref(DWORD(NO_WAIT)), None, None)
    return msvcrt.open_osfhandle(descriptor, os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT)


def begin() -> None:
    """Until `heed` is called the process has no events, and is ended when it has to leave."""


def heed(
    loop: asyncio.AbstractEventLoop, lifeline: int, leave: Callable[[], object], now: Callable[[], object]
) -> None:
    """Call `leave` when the process is asked to leave or the supervisor is gone, `now` when at once."""
    events = _events()
    waiter.add(events[LEAVE].handle, partial(post_to_loop, loop, leave))
    waiter.add(events[NOW].handle, partial(post_to_loop, loop, now))
    for number in KEYS:
        signal.signal(number, lambda number, frame: post_to_loop(loop, leave))
    supervisor = kernel.open_process(lifeline, kernel.SYNCHRONIZE)
    if supervisor is None:
        leave()
        return

    def cut() -> None:
        waiter.forget(supervisor)
        post_to_loop(loop, leave)

    waiter.add(supervisor, cut)


# --- In the background ----------------------------------------------------------------------------

BACKGROUND = "RUNCUE_IN_BACKGROUND"
"""The variable that tells a process that it is the one in the background."""
LONGEST = 4096
"""Bytes of an answer that are read."""


class Background:
    """A process in the background, as the one that started it sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    def answer(self, seconds: float) -> bytes | None:
        """What it answers; None when it says nothing for so long."""
        pipe = self._process.stdout
        assert pipe is not None
        until = time.monotonic() + seconds
        found = DWORD()
        while time.monotonic() < until:
            is_open = kernel.PeekPipe(msvcrt.get_osfhandle(pipe.fileno()), None, 0, None, byref(found), None)
            if found.value or not is_open:
                return os.read(pipe.fileno(), LONGEST)
            time.sleep(LOOK_EVERY)
        return None

    def ask_to_end(self) -> None:
        """Have it end; at once if it does not listen yet."""
        if not tell_worker(self.pid, GRACEFUL, lambda: self._process.poll() is None):
            self._process.kill()

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        return self._process.wait()


def in_background(output: int) -> Background | int:
    """Start this program once more without a console; in the new process, the descriptor for its answer."""
    if BACKGROUND in os.environ:
        del os.environ[BACKGROUND]
        ready = os.dup(1)
        for place in (1, 2):
            os.dup2(output, place)
        os.close(output)
        return ready
    os.close(output)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "runcue.cli", *sys.argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {BACKGROUND: "1"},
        creationflags=subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP,
    )
    return Background(process)


# --- Telling others -------------------------------------------------------------------------------


def tell_supervisor(pid: int, level: int, lives: Callable[[], bool]) -> bool:
    """Tell a supervisor to leave with its workers, if it is still the one that is meant; False when it is gone."""
    return tell_worker(pid, level, lives)


def tell_worker(pid: int, level: int, lives: Callable[[], bool]) -> bool:
    """Tell a worker to leave, if it is still the one that is meant; False when it is gone or does not listen.

    Raises PermissionError where the process is another user's.
    """
    handle = kernel.open_process(pid, kernel.PROCESS_QUERY)
    if handle is None:
        return False
    try:
        return lives() and kernel.set_event(_name(pid, kernel.created_at(handle), WORDS[level]))
    finally:
        kernel.CloseHandle(handle)


def is_stopped(pid: int) -> bool:
    """False: whether a process is suspended cannot be told."""
    return False


# --- Standard streams -----------------------------------------------------------------------------


def has_room(descriptor: int) -> bool:
    """True: whether it has to wait cannot be told."""
    return True


def await_room(descriptors: list[int], seconds: float) -> None:
    """Nothing: there is always room."""
