"""The keeper: the process that starts the workers of a pool, ends them, and reports their ends to the owner.

    owner ──control──▶ keeper ──fork──▶ worker, worker, …
      └───────── a channel to each worker ──────┘

- The keeper has one thread and imports nothing of the user's, so that forking it is safe and quick. It is the parent
  of the workers and the only process that signals them: no signal can reach a process that took over a dead worker's
  pid.
- When a worker dies, the keeper kills what is left of the worker's session and then reports the worker's end. A
  process that left the session (a daemon) is left alone.
- The keeper lives as long as the owner keeps the control socket open. At its end it kills every worker, the workers'
  children included; if the keeper itself is killed, the kernel kills the workers (Linux).
- The keeper and the workers hold one job lock, and nothing that they start holds it: it is free when all of them are
  dead.

The owner's side is keeper_link.py, a worker is worker.py, their messages are in protocol.py.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time

import msgspec

from runcue.core.model.failure import describe
from runcue.executors.process.protocol import (
    CLOSE,
    GIVE_UP_AFTER,
    GONE,
    LAST_GRACE,
    NOT_STARTED,
    ORDER,
    REPORT,
    START,
    STOP,
)
from runcue.executors.process.surroundings import Surroundings
from runcue.executors.process.worker import Server, flush
from runcue.host.descriptors import guard
from runcue.host.posix.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    children_of,
    ignore_signal,
    prctl,
    session_of,
    signal_group,
)

NUDGE_EVERY = 0.2
"""Seconds after which a worker that has to end is woken again: Python does not notice a signal that comes just before
a system call begins, until something interrupts that call."""
LOOK_EVERY = 0.02
"""Seconds after which the keeper looks again whether what a dead worker left behind is gone."""


class Child(msgspec.Struct, eq=False):
    """A worker, as the keeper knows it."""

    number: int
    pid: int
    kill_at: float = float("inf")
    nudge_at: float = float("inf")
    status: int | None = None
    """Its exit code, from when it is dead."""


class Keeper:
    """Starts workers, ends them, and reports to the owner when one is gone."""

    def __init__(self, control: socket.socket, lock: int | None) -> None:
        self._control = control
        self._lock = lock
        self._workers: dict[int, Child] = {}
        self._is_closing = False
        self._give_up_at = float("inf")

    def run(self) -> None:
        """Carry out the owner's orders until the owner is gone."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # children of a dead worker become children of the keeper
        woken, wakes = socket.socketpair()
        woken.setblocking(False)
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, ignore_signal)
        with woken, wakes, self._control, selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while not self._is_over():
                for key, _ in selector.select(self._next_look_in()):
                    if key.fileobj is woken:
                        woken.recv(4096)
                    elif not self._take_order():
                        selector.unregister(self._control)
                self._kill_overdue()
                self._collect()

    def _is_over(self) -> bool:
        return self._is_closing and (not self._workers or time.monotonic() >= self._give_up_at)

    def _next_look_in(self) -> float | None:
        now = time.monotonic()
        moments = (
            min(child.kill_at, child.nudge_at) if child.status is None else now + LOOK_EVERY
            for child in self._workers.values()
        )
        first = min([self._give_up_at, *moments])
        return None if first == float("inf") else max(0.0, first - now)

    def _take_order(self) -> bool:
        """Carry out one order; False when no other will come."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, ORDER.size, 1)
        except ConnectionError:
            data, fds = b"", []
        what, number, grace = ORDER.unpack(data) if len(data) == ORDER.size else (b"", 0, 0.0)
        if what == START:
            self._start(number, fds)
        elif what == STOP:
            for child in self._workers.values():
                if child.number == number:
                    self._stop(child, grace)
        else:
            self._close(LAST_GRACE if what == CLOSE else 0.0)
        return what in (START, STOP)

    def _start(self, number: int, fds: list[int]) -> None:
        keeper = os.getpid()
        # SIGTERM waits until the worker has its own handler for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            pid = os.fork()
        except OSError as error:
            self._report(NOT_STARTED, number, error.errno or 0)
        else:
            if pid == 0:
                be_worker(fds, keeper, self._control, self._lock)  # does not return
            self._workers[pid] = Child(number, pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        for fd in fds:
            os.close(fd)

    def _stop(self, child: Child, grace: float) -> None:
        """Ask a worker and its children to end; after `grace` seconds they are killed."""
        kill_at = time.monotonic() + grace
        if kill_at < child.kill_at and child.status is None:
            child.kill_at = kill_at
            if grace > 0:
                _signal_group(child.pid, signal.SIGTERM)
                _signal_group(child.pid, signal.SIGCONT)
                child.nudge_at = time.monotonic() + NUDGE_EVERY

    def _close(self, grace: float) -> None:
        self._is_closing = True
        self._give_up_at = time.monotonic() + grace + GIVE_UP_AFTER
        for child in self._workers.values():
            self._stop(child, grace)

    def _kill_overdue(self) -> None:
        """Kill workers whose grace is over, and wake those that may not have noticed that they have to end."""
        now = time.monotonic()
        for child in self._workers.values():
            if child.kill_at <= now:
                child.kill_at = child.nudge_at = float("inf")
                _signal_group(child.pid, signal.SIGKILL)
            elif child.nudge_at <= now:
                child.nudge_at = now + NUDGE_EVERY
                _signal(child.pid, signal.SIGCONT)

    def _collect(self) -> None:
        """Reap dead children, and report the workers of whose session nothing is left."""
        for pid in {*self._workers, *children_of(os.getpid())}:
            worker = self._workers.get(pid)
            status = _reaped(pid, worker is not None)
            if worker is not None and status is not None:
                worker.status = status
                worker.kill_at = worker.nudge_at = float("inf")
        for child in [child for child in self._workers.values() if child.status is not None]:
            if not self._has_leftovers(child):
                del self._workers[child.pid]
                self._report(GONE, child.number, child.status or 0)

    def _has_leftovers(self, child: Child) -> bool:
        """Kill what is left of a dead worker's session; True while something is left (Linux only)."""
        found = False
        orphans = [pid for pid in children_of(os.getpid()) if pid not in self._workers]
        while orphans:
            pid = orphans.pop()
            if session_of(pid) == child.pid:
                _signal(pid, signal.SIGKILL)
                found = True
            else:
                orphans += children_of(pid)  # a daemon is left alone, but a child of it may be in the session
        return found

    def _report(self, what: bytes, number: int, value: int) -> None:
        try:
            self._control.sendall(REPORT.pack(what, number, value))
        except OSError:
            self._close(0.0)  # the owner is gone


def keep(control: int, lock: int | None) -> None:
    """Be the keeper of a pool: the process runs nothing else. `control` and `lock` are descriptors."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # from a terminal or a service manager: the owner decides
        signal.signal(getattr(signal, name), ignore_signal)
    import multiprocessing.spawn  # noqa: F401 (so that no worker has to)

    for fd in (control, lock):
        if fd is not None:
            os.set_inheritable(fd, False)
    Keeper(socket.socket(fileno=control), lock).run()


def be_worker(fds: list[int], keeper: int, control: socket.socket, lock: int | None) -> None:
    """Serve calls in a session of its own until no more come; ends the process. `fds` has the channel."""
    code = 1
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:  # else the keeper died before the line above
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            control.close()
            if lock is not None:
                guard(lock)
            os.set_inheritable(fds[0], False)
            channel = socket.socket(fileno=fds[0])
            Server(channel, Surroundings(channel)).run()
            code = 0
    except BaseException as error:  # noqa: BLE001 (the process ends here, and prints why)
        sys.stderr.write(f"runcue: a worker process ends: {describe(error)}\n")
    finally:
        flush()
        os._exit(code)


def _reaped(pid: int, has_group: bool) -> int | None:
    """Reap a child that has ended, and kill its group before: its exit code; None when it lives, or was reaped."""
    try:
        if hasattr(os, "waitid"):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            if has_group:
                _signal_group(pid, signal.SIGKILL)  # before the kernel can give its number away
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if ended and has_group and not hasattr(os, "waitid"):  # macOS before Python 3.13
        signal_group(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status) if ended else None


def _signal(pid: int, number: int) -> None:
    """Signal a process that may be gone, or may have changed to a user whom we may not signal."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal_group(pid: int, number: int) -> None:
    """Signal the group of a child that is not yet reaped."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # no such group yet (macOS: or nothing left in it)
        _signal(pid, number)
