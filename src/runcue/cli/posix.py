"""Worker processes of a supervisor on Linux and macOS: started with two pipes, told to leave by signals.

- Each worker is a process in a session of its own, so Ctrl-C reaches the supervisor alone. Each holds the read end of
  a pipe from the supervisor, which closes when the supervisor dies in any way; then the worker leaves.
- SIGTERM lets a worker finish what it runs, SIGQUIT has it put that back. `worker stop` sends a supervisor SIGUSR1 or
  SIGUSR2, which no terminal sends.
- A signal that was ignored when the supervisor started (`nohup`, a background job) stays ignored, except for those
  that `worker stop` sends. After all workers have left, all signals are ignored.
- A pid may belong to another process by the time it is used. So we open the process first (pidfd), then check that
  the one we mean still lives, and only then send the signal.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

import msgspec

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

    from runcue.cli.worker import Orders

assert sys.platform != "win32"

GRACEFUL, AT_ONCE, KILL = 1, 2, 3
"""How urgently a process is told to leave."""
ONCE_MORE = 0
"""A signal whose second and third mean more than the first."""
COUNTED = (signal.SIGINT, signal.SIGTERM)
ORDERS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that `worker stop` sends, and no terminal."""
HEEDED = (*COUNTED, signal.SIGHUP, signal.SIGQUIT, *ORDERS)
MEANS = {
    signal.SIGINT: ONCE_MORE,
    signal.SIGTERM: ONCE_MORE,
    signal.SIGHUP: GRACEFUL,
    signal.SIGUSR1: GRACEFUL,
    signal.SIGQUIT: AT_ONCE,
    signal.SIGUSR2: AT_ONCE,
}
TELLS = {GRACEFUL: signal.SIGTERM, AT_ONCE: signal.SIGQUIT, KILL: signal.SIGKILL}
TELLS_SUPERVISORS = {GRACEFUL: signal.SIGUSR1, AT_ONCE: signal.SIGUSR2}

PAUSE, FAIL, NOTHING = "sleep {0:g}", "echo {0} >&2; exit 1", "true"
"""Commands for a demo: wait for so many seconds, complain and fail, do nothing."""
UNHEARD = (BlockingIOError, BrokenPipeError)
"""The errors of saying something that the supervisor does not read."""
CLOSED_OUTPUT = -signal.SIGPIPE
"""The exit code of a process whose output nobody reads."""


# --- In the supervisor ----------------------------------------------------------------------------


class Requests:
    """Turns signals into something that a supervisor can wait for."""

    def __enter__(self) -> Self:
        self._ours, self._theirs = os.pipe()
        os.set_blocking(self._ours, False)
        os.set_blocking(self._theirs, False)
        for number in (*HEEDED, signal.SIGCHLD):
            if number in {*ORDERS, signal.SIGCHLD} or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _noted)
        signal.set_wakeup_fd(self._theirs, warn_on_full_buffer=False)
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(-1)
        for number in HEEDED:
            signal.signal(number, signal.SIG_IGN)
        os.close(self._ours)
        os.close(self._theirs)

    def wait(self, workers: Sequence[Launched], writable: list[int], seconds: float | None) -> None:
        """Return when a signal came, a worker said something, a descriptor is ready, or the time has passed."""
        poll = select.poll()
        for descriptor in (self._ours, *(one.voice for one in workers)):
            if descriptor != -1:
                poll.register(descriptor, select.POLLIN)
        for descriptor in writable:
            poll.register(descriptor, select.POLLOUT)
        poll.poll(None if seconds is None else seconds * 1000 + 1)

    def take(self) -> list[int]:
        """What the signals mean that came since the last call."""
        try:
            numbers = os.read(self._ours, 1024)
        except BlockingIOError:
            return []
        return [MEANS[signal.Signals(number)] for number in numbers if number in MEANS]


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the number is in the wakeup pipe already."""


class Launched:
    """A worker process, and the pipes to it."""

    def __init__(self, orders: Orders, *, is_quiet: bool) -> None:
        """With `is_quiet` its standard output goes nowhere; OSError when there is no room for a process."""
        self.voice, theirs = os.pipe()
        lifeline, self._lifeline = os.pipe()
        orders = msgspec.structs.replace(orders, voice=theirs, lifeline=lifeline)
        os.set_blocking(self.voice, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runcue.cli.worker", msgspec.json.encode(orders).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if is_quiet else None,
                pass_fds=(theirs, lifeline),
                start_new_session=True,
            )
        except OSError:
            self.close()
            raise
        finally:
            os.close(theirs)
            os.close(lifeline)

    def poll(self) -> int | None:
        """The exit code of the worker; None while it runs."""
        return self._process.poll()

    def hear(self) -> bytes:
        """What the worker has said since the last call."""
        said = b""
        while self.voice != -1:
            try:
                data = os.read(self.voice, 65536)
            except BlockingIOError:
                break
            if not data:
                os.close(self.voice)
                self.voice = -1
                break
            said += data
        return said

    def tell(self, level: int) -> None:
        """Tell the worker to leave."""
        self._process.send_signal(TELLS[level])

    def close(self) -> None:
        """Close the pipes."""
        for descriptor in (self.voice, self._lifeline):
            if descriptor != -1:
                os.close(descriptor)
        self.voice = self._lifeline = -1


def was_asked(code: int) -> bool:
    """Whether a process with this exit code left because it was asked to."""
    return code in {0, -signal.SIGTERM, -signal.SIGINT}


def was_ended(code: int) -> bool:
    """Whether a process with this exit code was ended by the urgent requests of its supervisor."""
    return code in {-TELLS[AT_ONCE], -TELLS[KILL]}


def ending(code: int) -> str:
    """How a process ended, in words, from its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


# --- In the worker --------------------------------------------------------------------------------


def open_voice(descriptor: int) -> int:
    """The descriptor of the pipe to the supervisor, which is never waited for."""
    os.set_blocking(descriptor, False)
    os.set_inheritable(descriptor, False)
    return descriptor


def begin() -> None:
    """Until `heed` is called a request ends the process at once. The supervisor sends each only once, and it may
    itself have been started with some of them ignored, which processes inherit."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def heed(
    loop: asyncio.AbstractEventLoop, lifeline: int, leave: Callable[[], object], now: Callable[[], object]
) -> None:
    """Call `leave` when the process is asked to leave or the supervisor is gone, `now` when at once."""
    for number in COUNTED:
        loop.add_signal_handler(number, leave)
    loop.add_signal_handler(signal.SIGQUIT, now)
    os.set_inheritable(lifeline, False)
    loop.add_reader(lifeline, _cut, loop, lifeline, leave)


def _cut(loop: asyncio.AbstractEventLoop, lifeline: int, leave: Callable[[], object]) -> None:
    """Leave, as the supervisor is gone: nothing is ever written to a lifeline, so only its end can be read."""
    loop.remove_reader(lifeline)
    leave()


# --- In the background ----------------------------------------------------------------------------

READY = 3
"""The descriptor on which a process in the background answers."""
MOST_DESCRIPTORS = 1 << 20
LONGEST = 4096
"""Bytes of an answer that are read."""


class Background:
    """A process that was forked into the background, as its parent sees it."""

    def __init__(self, pid: int, ready: int) -> None:
        self.pid = pid
        self._ready = ready

    def answer(self, seconds: float) -> bytes | None:
        """What it answers; None when it says nothing for so long."""
        if not select.select([self._ready], [], [], seconds)[0]:
            return None
        return os.read(self._ready, LONGEST)

    def ask_to_end(self) -> None:
        """Have it end."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def in_background(output: int) -> Background | int:
    """Fork, and return in both processes: in the new one the descriptor for its answer.

    The new process has a session of its own, and only the output and that descriptor open.
    """
    ours, theirs = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed from the start
            stream.flush()
    pid = os.fork()
    if pid:
        os.close(theirs)
        os.close(output)
        return Background(pid, ours)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    os.dup2(theirs, READY, inheritable=False)
    os.closerange(READY + 1, MOST_DESCRIPTORS)
    return READY


# --- Telling others -------------------------------------------------------------------------------


def tell_supervisor(pid: int, level: int, lives: Callable[[], bool]) -> bool:
    """Tell a supervisor to leave with its workers, if it is still the one that is meant; False when it is gone."""
    return send(pid, TELLS_SUPERVISORS[level], lives)


def tell_worker(pid: int, level: int, lives: Callable[[], bool]) -> bool:
    """Tell a worker to leave, if it is still the one that is meant; False when it is gone."""
    return send(pid, TELLS[level], lives)


def send(pid: int, number: signal.Signals, lives: Callable[[], bool]) -> bool:
    """Send a signal to that process if it is still the one that is meant; False when it is gone.

    Raises PermissionError where the process is another user's.
    """
    try:
        descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    try:
        if not lives():
            return False
        if descriptor is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def is_stopped(pid: int) -> bool:
    """True for a process that is suspended, as by SIGSTOP; False where that is unknown."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # it has just ended, or this is no Linux
        return False
    return facts.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])


# --- Standard streams -----------------------------------------------------------------------------


def has_room(descriptor: int) -> bool:
    """Whether something can be written there without waiting."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def await_room(descriptors: list[int], seconds: float) -> None:
    """Wait until something can be written to one of these."""
    select.select([], descriptors, [], seconds)
