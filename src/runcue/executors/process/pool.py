"""What runs in the processes of the pool: the keeper, which starts and ends workers, and the workers themselves.

    owner ──control──▶ keeper ──fork──▶ worker, worker, …
      └───────── a channel to each worker ──────┘

- The keeper has one thread and imports nothing of the user's, so that forking it is safe and quick. It is the parent
  of the workers: it alone sends signals, so that none can reach a process that took over a dead one's number.
- A worker has a session of its own. When it dies, however that was, what is left of its session is killed, and only
  then the owner is told. What left the session (a daemon) is left alone.
- The keeper lives as long as the owner keeps the control socket open. At its end it kills every worker, its children
  included; should the keeper itself be killed, the kernel kills the workers (Linux).
- The keeper and the workers hold one job lock, and nothing that they start does: it is free when all of them are
  dead, and while the keeper lived to the end, the children of workers, too.
- A worker calls one function at a time and answers each call once. Whatever a function raises is its answer.
- The script is imported again (as multiprocessing does) only for functions that are defined in it.

Started by executor.py, which says what the owner does.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CoroutineType
from typing import Any

import msgspec

from runcue.core.limits.headers import texts
from runcue.core.limits.meter import checked
from runcue.core.model.failure import describe
from runcue.core.model.record import Work
from runcue.errors import ConfigError, Permanent
from runcue.executors.process.answer import pack_error, pack_result, plain
from runcue.executors.process_locks import session_of
from runcue.host.descriptors import guard

ORDER = struct.Struct("<cQd")  # owner to keeper: what, which worker, seconds of grace
NEWS = struct.Struct("<cQq")  # keeper to owner: what, which worker, its exit code or an errno
# Between owner and worker: what, which call, function or pid, bytes that follow.
FRAME = struct.Struct("<cQQ")

START, STOP, CLOSE = b"s", b"t", b"c"
NOT_STARTED, GONE = b"n", b"g"
HELLO, FUNCTION, CALL, QUIT = b"h", b"f", b"c", b"q"
AWAKE, LEARNT, BEGUN, PROGRESS, SAID, RESULT, ERROR = b"a", b"l", b"b", b"p", b"s", b"r", b"e"

LAST_GRACE = 1.0
"""Seconds that close() leaves to functions that still run."""
GIVE_UP = 5.0
"""Seconds after which the keeper leaves alone what even SIGKILL does not end."""
NUDGE_EVERY = 0.2
"""Seconds after which a worker that was told to end is woken again: a signal that comes just before a system call
begins is not noticed until something interrupts that."""
LOOK_EVERY = 0.02
"""Seconds after which the keeper looks again whether what a dead worker left behind is gone."""
PROGRESS_EVERY = 0.1
SMALL = 64 * 1024
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
OURS = {signal.SIGINT, signal.SIGTERM, signal.SIGCONT}

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

is_importing_main = False
"""True in a worker while it imports the script of its owner: nothing may be started then."""


def refuse_while_importing() -> None:
    """A script that opens its queue when it is imported would do so again in each worker that imports it."""
    if is_importing_main:
        raise ConfigError('This script starts its Cue when it is imported: use `if __name__ == "__main__":`.')


# --- The keeper -------------------------------------------------------------------------------------------


class Kept(msgspec.Struct, eq=False):
    """A worker, as the keeper knows it."""

    number: int
    pid: int
    kill_at: float = float("inf")
    nudge_at: float = float("inf")
    status: int | None = None
    """Its exit code, from when it is dead."""


class Keeper:
    """Starts workers, ends them, and tells the owner when one is gone."""

    def __init__(self, control: socket.socket, lock: int | None) -> None:
        self._control = control
        self._lock = lock
        self._workers: dict[int, Kept] = {}
        self._is_closing = False
        self._give_up_at = float("inf")

    def run(self) -> None:
        """Do what the owner says until it is gone."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a dead worker leaves behind becomes ours
        woken, wakes = socket.socketpair()
        woken.setblocking(False)
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, ignored)
        with woken, wakes, self._control, selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while not self._is_over():
                for key, _ in selector.select(self._patience()):
                    if key.fileobj is woken:
                        woken.recv(4096)
                    elif not self._obey():
                        selector.unregister(self._control)
                self._kill_overdue()
                self._collect()

    def _is_over(self) -> bool:
        return self._is_closing and (not self._workers or time.monotonic() >= self._give_up_at)

    def _patience(self) -> float | None:
        now = time.monotonic()
        moments = (
            min(kept.kill_at, kept.nudge_at) if kept.status is None else now + LOOK_EVERY
            for kept in self._workers.values()
        )
        first = min([self._give_up_at, *moments])
        return None if first == float("inf") else max(0.0, first - now)

    def _obey(self) -> bool:
        """Take one order; False when there will be no more."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, ORDER.size, 1)
        except ConnectionError:
            data, fds = b"", []
        what, number, grace = ORDER.unpack(data) if len(data) == ORDER.size else (b"", 0, 0.0)
        if what == START:
            self._start(number, fds)
        elif what == STOP:
            for kept in self._workers.values():
                if kept.number == number:
                    self._stop(kept, grace)
        else:
            self._close(LAST_GRACE if what == CLOSE else 0.0)
        return what in (START, STOP)

    def _start(self, number: int, fds: list[int]) -> None:
        keeper = os.getpid()
        # The signal waits until the worker can understand it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(NOT_STARTED, number, error.errno or 0)
        else:
            if pid == 0:
                be_worker(fds, keeper, self._control, self._lock)  # does not return
            self._workers[pid] = Kept(number, pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        for fd in fds:
            os.close(fd)

    def _stop(self, kept: Kept, grace: float) -> None:
        """Ask a worker and its children to end; they have that many seconds."""
        kill_at = time.monotonic() + grace
        if kill_at < kept.kill_at and kept.status is None:
            kept.kill_at = kill_at
            if grace > 0:
                _signal_group(kept.pid, signal.SIGTERM)
                _signal_group(kept.pid, signal.SIGCONT)
                kept.nudge_at = time.monotonic() + NUDGE_EVERY

    def _close(self, grace: float) -> None:
        self._is_closing = True
        self._give_up_at = time.monotonic() + grace + GIVE_UP
        for kept in self._workers.values():
            self._stop(kept, grace)

    def _kill_overdue(self) -> None:
        """End what had its time, and wake what may not have noticed that it has to end."""
        now = time.monotonic()
        for kept in self._workers.values():
            if kept.kill_at <= now:
                kept.kill_at = kept.nudge_at = float("inf")
                _signal_group(kept.pid, signal.SIGKILL)
            elif kept.nudge_at <= now:
                kept.nudge_at = now + NUDGE_EVERY
                _signal(kept.pid, signal.SIGCONT)

    def _collect(self) -> None:
        """Bury the dead, and say which workers are gone with all that was theirs."""
        for pid in {*self._workers, *_children_of(os.getpid())}:
            worker = self._workers.get(pid)
            status = _buried(pid, worker is not None)
            if worker is not None and status is not None:
                worker.status = status
                worker.kill_at = worker.nudge_at = float("inf")
        for kept in [kept for kept in self._workers.values() if kept.status is not None]:
            if not self._has_leftovers(kept):
                del self._workers[kept.pid]
                self._tell(GONE, kept.number, kept.status or 0)

    def _has_leftovers(self, kept: Kept) -> bool:
        """Kill what is left of a dead worker's session; True while there is something (Linux only)."""
        found = False
        orphans = [pid for pid in _children_of(os.getpid()) if pid not in self._workers]
        while orphans:
            pid = orphans.pop()
            if session_of(pid) == kept.pid:
                _signal(pid, signal.SIGKILL)
                found = True
            else:
                orphans += _children_of(pid)  # a daemon is left alone, and may have a child that is none
        return found

    def _tell(self, what: bytes, number: int, value: int) -> None:
        try:
            self._control.sendall(NEWS.pack(what, number, value))
        except OSError:
            self._close(0.0)  # nobody listens any more


def keep(control: int, lock: int | None) -> None:
    """Be the keeper of a pool, with a control socket and perhaps a lock to hold."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # a terminal's or a service manager's: the owner decides
        signal.signal(getattr(signal, name), ignored)
    import multiprocessing.spawn  # noqa: F401 (so that no worker has to)

    for fd in (control, lock):
        if fd is not None:
            os.set_inheritable(fd, False)
    Keeper(socket.socket(fileno=control), lock).run()


def _buried(pid: int, has_group: bool) -> int | None:
    """Wait for a child that has ended, after killing its group: the exit code; None when it lives, or is buried."""
    try:
        if hasattr(os, "waitid"):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            if has_group:
                _signal_group(pid, signal.SIGKILL)  # before its number can be anybody else's
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if ended and has_group and not hasattr(os, "waitid"):  # macOS before Python 3.13
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return os.waitstatus_to_exitcode(status)  # nobody was left in it
    return os.waitstatus_to_exitcode(status) if ended else None


def _children_of(pid: int) -> list[int]:
    """The children of a process; none where that cannot be told: not Linux, or a kernel without it."""
    found: list[int] = []
    try:
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, file.read_text().split())
    except OSError:
        return found  # a thread of it is gone, or all are
    return found


def _signal(pid: int, number: int) -> None:
    """To somebody who may be gone, or may have become somebody whom we may not signal."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal_group(pid: int, number: int) -> None:
    """To a child of ours that is not yet waited for, and to its group."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # no such group yet (macOS: or nobody left to hear it)
        _signal(pid, number)


def ignored(number: int, frame: object) -> None:
    """Does nothing; unlike SIG_IGN it is not passed on to programs that are started from here."""


def prctl(option: int, value: int) -> None:
    """Ask the Linux kernel for something; elsewhere do without."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# --- A worker ---------------------------------------------------------------------------------------------


def be_worker(fds: list[int], keeper: int, control: socket.socket, lock: int | None) -> None:
    """Serve calls until there are no more; ends the process. `fds` has the channel."""
    code = 1
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:  # else it died before the line above
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            control.close()
            if lock is not None:
                guard(lock)
            os.set_inheritable(fds[0], False)
            Server(socket.socket(fileno=fds[0])).run()
            code = 0
    except BaseException as error:  # noqa: BLE001 (the process ends here, and says why)
        sys.stderr.write(f"runcue: a worker process ends: {describe(error)}\n")
    finally:
        _flush()
        os._exit(code)


class Server:
    """Calls functions for the owner, one at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._home = -1
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._standard = {fd: os.dup(fd) for fd in range(3) if _is_open(fd)}
        self._streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
        self._main: dict[str, str] = {}
        self._functions: dict[int, Callable[[Work], Any] | BaseException] = {}
        self._sending = threading.Lock()
        self._handlers: dict[int, Any] = {}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, []) - OURS

    def run(self) -> None:
        """Serve until the owner says that it is enough, or is gone."""
        signal.signal(signal.SIGINT, ignored)
        signal.signal(signal.SIGCONT, ignored)  # it interrupts a system call, for SIGTERM to be noticed
        signal.signal(signal.SIGTERM, self._asked_to_end)
        handlers = {number: signal.getsignal(number) for number in signal.Signals}
        self._handlers = {number: handler for number, handler in handlers.items() if handler is not None}
        try:
            self.send(AWAKE, self._pid)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            while (frame := self._receive()) is not None:
                what, number, body = frame
                if what == HELLO:
                    self._prepare(*pickle.loads(body))
                elif what == FUNCTION:
                    self._learn(number, body)
                elif what == CALL:
                    self._call(number, body)
                elif what == QUIT:
                    break
        except (SystemExit, ConnectionError):  # asked to end while nothing was called, or nobody is there
            return
        finally:
            _run_exit_functions()

    def send(self, what: bytes, number: int, body: bytes = b"") -> None:
        """Tell the owner something; from any thread, but not from a child that the function forked."""
        if os.getpid() != self._pid:
            return
        header = FRAME.pack(what, number, len(body))
        with self._sending:
            if len(body) < SMALL:
                self._channel.sendall(header + body)
            else:
                self._channel.sendall(header)
                self._channel.sendall(body)

    def _call(self, number: int, body: bytes) -> None:
        try:
            try:
                answer = RESULT, self._result(number, body)
            finally:  # what comes of its timers until now is its answer, too
                for timer in TIMERS:
                    signal.setitimer(timer, 0)
        except BaseException as error:  # noqa: BLE001 (whatever a function raises is its answer)
            answer = ERROR, pack_error(error, __file__)
        if os.getpid() != self._pid:
            os._exit(0)  # a child that the function forked came back from it: the parent answers
        _flush()
        self.send(answer[0], number, answer[1])
        self._tidy_up()  # while the owner reads

    def _result(self, number: int, body: bytes) -> bytes:
        key, values = pickle.loads(body)
        function = self._functions[key]
        if isinstance(function, BaseException):
            raise function
        work = PoolWork(*values)
        work.__dict__["_reporter"] = Reporter(self, number)
        self.send(BEGUN, number)
        result = function(work)
        if type(result) is CoroutineType:
            result.close()
            raise TypeError(
                "the handler returned a coroutine: declare it with `def`, or leave out the executor"
            )
        return pack_result(result)

    def _learn(self, key: int, body: bytes) -> None:
        """Import a function, so that a call of it begins at once; if that fails, so do its calls."""
        try:
            self._functions[key] = self._imported(body)
        except BaseException as error:  # noqa: BLE001 (a module may raise anything; it is raised again when called)
            self._functions[key] = error
        self.send(LEARNT, key)

    def _imported(self, body: bytes) -> Callable[[Work], Any]:
        if b"__main__" in body:
            self._import_main()
        try:
            function: Callable[[Work], Any] = pickle.loads(body)
        except Exception as error:
            raise Permanent(
                f"its handler cannot be imported in a worker process ({describe(error)}): define it at the "
                'top of a module, and not under `if __name__ == "__main__":`'
            ) from error
        return function

    def _prepare(self, path: list[str], arguments: list[str], folder: str, main: dict[str, str]) -> None:
        """Make this process look like its owner's."""
        from multiprocessing import spawn

        spawn.prepare({"sys_path": path, "sys_argv": arguments, "dir": folder})
        self._home = os.open(".", os.O_RDONLY)
        self._main = main

    def _import_main(self) -> None:
        """Import the script, under another name so that it knows it is not being run."""
        global is_importing_main  # noqa: PLW0603 (it is a fact about the whole process)
        from multiprocessing import spawn

        if not self._main:
            return
        is_importing_main = True
        try:
            spawn.prepare(self._main)
        except BaseException as error:
            raise Permanent(
                f"the script could not be imported again in a worker process ({describe(error)}): put what "
                'starts it under `if __name__ == "__main__":`, or its handlers into a module of their own'
            ) from error
        finally:
            is_importing_main = False
        self._main = {}

    def _tidy_up(self) -> None:
        """Put back what the next function must not find changed."""
        os.fchdir(self._home)
        os.umask(self._umask)
        for fd, kept in self._standard.items():
            os.dup2(kept, fd)
        for fd, (name, stream) in enumerate(self._streams.items()):
            if stream is not None and stream.closed:
                self._streams[name] = open(fd, stream.mode, encoding=stream.encoding, closefd=False)  # noqa: SIM115
            setattr(sys, name, self._streams[name])
        self._put_signals_back()

    def _put_signals_back(self) -> None:
        """Hear signals as before; those that came while they were blocked are forgotten."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        if signal.pthread_sigmask(signal.SIG_BLOCK, []) != self._mask:
            for number in signal.sigpending() - OURS:
                signal.signal(number, signal.SIG_IGN)
                signal.signal(number, self._handlers.get(number, signal.SIG_DFL))
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _asked_to_end(self, number: int, frame: object) -> None:
        """SIGTERM counts when the owner says so too: a service manager sends it to everybody at once."""
        if os.getpid() != self._pid:
            os._exit(128 + number)
        try:
            self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        raise SystemExit(128 + number)

    def _receive(self) -> tuple[bytes, int, bytes] | None:
        header = self._exactly(FRAME.size)
        if header is None:
            return None
        what, number, size = FRAME.unpack(header)
        body = self._exactly(size)
        return None if body is None else (what, number, body)

    def _exactly(self, size: int) -> bytes | None:
        """So many bytes; None when the owner is gone."""
        parts = []
        while size:
            try:
                part = self._channel.recv(min(size, 1 << 20))
            except ConnectionError:
                return None
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Reporter:
    """Tells the owner how far a function is: not too often, and not of a call that is over."""

    def __init__(self, server: Server, number: int) -> None:
        self._server = server
        self._number = number
        self._told_at = float("-inf")

    def say(self, verb: str, *words: object) -> None:
        """Have a method of the work called at the owner's."""
        self._server.send(SAID, self._number, pickle.dumps((verb, words)))

    def progress(self, fraction: float | None, text: str | None) -> None:
        """The same for progress, not too often."""
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_EVERY:
            self._told_at = now
            said = None if text is None else plain(str(text)[:SMALL])
            self._server.send(PROGRESS, self._number, pickle.dumps((plain(fraction), said)))


class PoolWork(Work, frozen=True, dict=True):
    """A work in the hands of a function in another process: a plain `Work` that can report to its owner."""

    def progress(self, fraction: float | None = None, text: str | None = None) -> None:
        """Report how far this is; may be called from any thread."""
        reporter = self.__dict__.get("_reporter")
        if reporter is not None:
            reporter.progress(fraction, text)

    def charge(self, **amounts: float) -> None:
        """Say what was really used of each quantity; may be called from any thread."""
        reporter = self.__dict__.get("_reporter")
        if reporter is not None:
            reporter.say("charge", checked(amounts))

    def observe(self, headers: Mapping[str, Any], service: str | None = None) -> None:
        """Learn from the headers of a response how much the service will still take, and until when."""
        reporter = self.__dict__.get("_reporter")
        if reporter is not None:
            reporter.say("observe", texts(headers), None if service is None else plain(str(service)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Work, msgspec.structs.astuple(self)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # closed, replaced, or nobody reads it: not this function's fault


def _run_exit_functions() -> None:
    """What modules that were imported here want done at the end of the process."""
    import atexit

    atexit._run_exitfuncs()
