"""A worker: a process of the pool that calls functions for the owner, one at a time.

- It answers each call once. Whatever a function raises is its answer.
- It imports the owner's script again (as multiprocessing does) only for functions that are defined in the script.
- After each call it puts back what the function changed in the process: folder, umask, standard streams, signals
  (surroundings.py, on Windows windows_surroundings.py).

The keeper (keeper.py) forks it, on Windows the owner starts it (spawner.py); executor.py says what the owner sends.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from runcue.core.model.failure import describe
from runcue.core.model.record import Work
from runcue.errors import ConfigError, Permanent
from runcue.executors.process.answer import pack_error, pack_result
from runcue.executors.process.protocol import (
    AWAKE,
    BEGUN,
    CALL,
    ERROR,
    FRAME,
    FUNCTION,
    HELLO,
    IMPORTED,
    QUIT,
    RESULT,
    SAID,
)
from runcue.executors.process.reporter import Reporter, pool_work
from runcue.ports import unit_elsewhere

SMALL = 64 * 1024
"""Bytes up to which a frame is sent in one piece."""

is_importing_main = False
"""True in a worker while it imports the script of its owner: nothing may be started then."""


def refuse_while_importing() -> None:
    """Refuse to open a queue in a worker that imports its owner's script, which would open it once more."""
    if is_importing_main:
        raise ConfigError('This script starts its Cue when it is imported: use `if __name__ == "__main__":`.')


class Surroundings(Protocol):
    """What a function may change in the process around it, and how it is told to end."""

    def ready(self) -> None:
        """The worker serves from now on."""
        ...

    def settle_in(self) -> None:
        """The folder is the owner's now."""
        ...

    def call(self) -> AbstractContextManager[None]:
        """A function is called in this context: it may be told to end."""
        ...

    def put_back(self) -> None:
        """Undo what the function changed, before the next call."""
        ...


class Server:
    """Calls functions for the owner, one at a time."""

    def __init__(self, channel: socket.socket, surroundings: Surroundings) -> None:
        self._channel = channel
        self._surroundings = surroundings
        self._pid = os.getpid()
        self._standard = {fd: os.dup(fd) for fd in range(3) if _is_open(fd)}
        self._streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
        self._main: dict[str, str] = {}
        self._functions: dict[int, Callable[[Work], Any] | BaseException] = {}
        self._sending = threading.Lock()

    def run(self) -> None:
        """Serve until the owner sends QUIT, or is gone."""
        try:
            self.send(AWAKE, self._pid)
            self._surroundings.ready()
            while (frame := self._receive()) is not None:
                what, number, body = frame
                if what == HELLO:
                    self._prepare(*pickle.loads(body))
                elif what == FUNCTION:
                    self._import(number, body)
                elif what == CALL:
                    self._call(number, body)
                elif what == QUIT:
                    break
        except (SystemExit, ConnectionError):  # asked to end between two calls, or the owner is gone
            return
        finally:
            _run_exit_functions()

    def send(self, what: bytes, number: int, body: bytes = b"") -> None:
        """Send a frame to the owner, from any thread; a child that the function forked sends nothing."""
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
            with self._surroundings.call():
                answer = RESULT, self._result(number, body)
        except BaseException as error:  # noqa: BLE001 (whatever a function raises is its answer)
            answer = ERROR, pack_error(error, __file__)
        unit_elsewhere.set(None)
        if os.getpid() != self._pid:
            os._exit(0)  # a child that the function forked returned from it: the parent answers
        flush()
        self.send(answer[0], number, answer[1])
        self._tidy_up()  # meanwhile the owner reads the answer

    def _result(self, number: int, body: bytes) -> bytes:
        key, values = pickle.loads(body)
        function = self._functions[key]
        if isinstance(function, BaseException):
            raise function
        reporter = Reporter(lambda verb, words: self.send(SAID, number, pickle.dumps((verb, words))))
        work = pool_work(values, reporter)
        self.send(BEGUN, number)
        return pack_result(function(work))

    def _import(self, key: int, body: bytes) -> None:
        """Import a function, so that its calls begin at once; an error of the import is raised by its calls."""
        try:
            self._functions[key] = self._imported(body)
        except BaseException as error:  # noqa: BLE001 (a module may raise anything; its calls raise it again)
            self._functions[key] = error
        self.send(IMPORTED, key)

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
        """Give this process the module path, arguments and folder of its owner."""
        from multiprocessing import spawn

        spawn.prepare({"sys_path": path, "sys_argv": arguments, "dir": folder})
        self._surroundings.settle_in()
        self._main = main

    def _import_main(self) -> None:
        """Import the owner's script under another name than __main__, so that it does not run its main part."""
        global is_importing_main  # noqa: PLW0603 (true of the whole process)
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
        """Undo what the function changed in the process, before the next call."""
        for fd, kept in self._standard.items():
            os.dup2(kept, fd)
        for fd, (name, stream) in enumerate(self._streams.items()):
            if stream is not None and stream.closed:
                self._streams[name] = open(fd, stream.mode, encoding=stream.encoding, closefd=False)  # noqa: SIM115
            setattr(sys, name, self._streams[name])
        self._surroundings.put_back()

    def _receive(self) -> tuple[bytes, int, bytes] | None:
        header = self._exactly(FRAME.size)
        if header is None:
            return None
        what, number, size = FRAME.unpack(header)
        body = self._exactly(size)
        return None if body is None else (what, number, body)

    def _exactly(self, size: int) -> bytes | None:
        """Receive that many bytes; None when the owner is gone."""
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


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def flush() -> None:
    """Print what is still held back."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # closed, replaced, or without a reader: not this function's fault


def _run_exit_functions() -> None:
    """Run what imported modules registered with atexit: `os._exit` would not."""
    import atexit

    atexit._run_exitfuncs()
