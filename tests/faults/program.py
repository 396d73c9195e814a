"""A program that uses a queue, for tests to hurt: it does what it is told through the public API and says what came.

Run as a module it is the process that has everything imported and forks such programs. It has no thread and no
Cue, so forking is safe. Whoever tests talks to a program over a socket, in JSON lines:

    {"call": 1, "do": "submit", "given": {…}}      → {"call": 1, "ok": …} or {"call": 1, "error": [kind, text]}

Calls do not wait for each other. Every start and end of a handler is written down as `tests.torture.history` does.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import apsw
import msgspec

import runcue
import runcue.api.cue
from runcue.host.address import is_server
from runcue.stores.presence import presence
from runcue.stores.sql import database as sql_database
from runcue.stores.sql import store as sql_store
from runcue.stores.sqlite import file as files
from runcue.stores.sqlite import transaction as file_transaction
from runcue.stores.sqlite import wal_checkpoint
from tests.torture.history import Log

LONGEST_LINE = 1 << 24
LIFETIME = 600
"""Seconds after which the kernel ends a program, whatever happens."""


class Script(msgspec.Struct, frozen=True):
    """What one program is."""

    name: str
    database: str
    folder: str
    """Where histories are kept."""
    options: dict[str, Any] = {}
    services: dict[str, dict[str, Any]] = {}
    tasks: dict[str, dict[str, Any]] = {}
    """Options of tasks, by name."""
    patience: float | None = None
    """Seconds to wait for locks, if not as long as usual."""
    log_pages: int | None = None
    """How long the log of the file gets, if not as long as usual."""
    boot: str | None = None
    """The id of the boot this process takes for its own, if not the real one."""


class Clocks:
    """The clocks of the host as one program sees them: shifted by so many seconds."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.boottime = 0.0
        real_time, real_boottime = time.time, presence.boottime
        time.time = lambda: real_time() + self.wall
        presence.boottime = lambda: real_boottime() + self.boottime


class Stopping:
    """Stops this very process when its store passes a place in a turn."""

    def __init__(self, target: str) -> None:
        self.place = ""
        for module in (file_transaction, sql_database, sql_store):
            vars(module)["crashpoint"] = self._passed
        if is_server(target):
            from runcue.stores.postgres import exchange, transaction

            vars(exchange)["crashpoint"] = vars(transaction)["crashpoint"] = self._passed

    def _passed(self, name: str) -> None:
        if name == self.place:
            self.place = ""
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to this thread: it goes no further


class Kept(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """One line more."""
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Program:
    """One program, from its first call to its end."""

    def __init__(self, script: Script, channel: socket.socket) -> None:
        self._script = script
        self._channel = channel
        self._calls: set[asyncio.Task[None]] = set()
        self._let_go = asyncio.Event()
        self._pipe = ""
        self._over = asyncio.Event()
        self._log = Log(Path(script.folder), script.name)
        self._clocks = Clocks()
        self._stopping = Stopping(script.database)
        self._logged = Kept()
        self._statements: list[str] = []
        self._errors: list[str] = []
        self._reader: runcue.Reader | None = None
        asyncio.get_running_loop().set_exception_handler(lambda _, said: self._errors.append(said["message"]))
        logging.getLogger("runcue").addHandler(self._logged)
        if script.patience is not None:
            vars(files)["PATIENCE"] = vars(files)["OPENING"] = vars(file_transaction)["PATIENCE"] = (
                script.patience
            )
        if script.log_pages is not None:
            vars(wal_checkpoint)["CHECKPOINT_PAGES"] = script.log_pages
        if script.boot is not None:
            boot = script.boot
            vars(presence)["boot_id"] = lambda: boot
        self.cue = self._declared()

    def _declared(self) -> runcue.Cue:
        cue = runcue.Cue(self._script.database, **self._script.options)
        for name, limits in self._script.services.items():
            cue.service(name, **limits)
        handlers: dict[str, Callable[..., Any]] = {
            "note": self._note,
            "hold": self._hold,
            "stall": self._stall,
            "die": self._die,
        }
        for name, handler in handlers.items():
            cue.task(name, **self._script.tasks.get(name, {}))(handler)
        return cue

    # handlers ---------------------------------------------------------------------------------------------

    def _witness(self, op: str, work: runcue.Work) -> None:
        self._log.write("info", op, work=work.id, attempt=work.attempt, services=work.services)

    async def _note(self, work: runcue.Work) -> Any:
        """Over at once."""
        self._witness("start", work)
        return work.params.get("value", work.attempt)

    async def _hold(self, work: runcue.Work) -> str:
        """Over when the test says so."""
        self._witness("start", work)
        await self._let_go.wait()
        if self._pipe:
            await self._seize()
        self._witness("end", work)
        return "held"

    async def _seize(self) -> None:
        """Hold the interpreter, as careless C code does, until something comes through the pipe.

        No thread of this process does anything meanwhile; that it has come so far a file beside the pipe says. It is
        not in the middle of a turn: there it may hold up others.
        """
        sign = f"{self._pipe}.seized".encode()
        pipe, self._pipe = os.open(self._pipe, os.O_RDWR), ""
        library, buffer = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
        sys.setswitchinterval(LIFETIME)  # from here on nobody else runs but while this waits
        while not self._is_between_turns(library):  # noqa: ASYNC110 (of that nobody tells)
            await asyncio.sleep(0.001)
        library.creat(sign, 0o600)
        library.read(pipe, buffer, 1)
        sys.setswitchinterval(0.005)
        os.close(pipe)

    def _is_between_turns(self, library: ctypes.PyDLL) -> bool:
        """Whether this process has no turn, wants none, and holds the lock of none."""
        assert self.cue._system is not None
        if self.cue._system.engine._one_at_a_time.locked():
            return False
        if is_server(self._script.database):
            return True
        with Path(f"{self._script.database}.runcue", "turn").open(encoding="ascii") as file:
            if library.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
            library.flock(file.fileno(), fcntl.LOCK_UN)
        return True

    async def _stall(self, work: runcue.Work) -> str:
        """Keeps the loop from everything else."""
        self._witness("start", work)
        time.sleep(work.params["seconds"])  # noqa: ASYNC251 (that is what it is for)
        self._witness("end", work)
        return "stalled"

    async def _die(self, work: runcue.Work) -> NoReturn:
        """Takes its process with it."""
        self._witness("start", work)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")

    # calls ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do what is asked until told to exit, or until nobody asks any more."""
        reader, _ = await asyncio.open_connection(sock=self._channel.dup(), limit=LONGEST_LINE)
        listening = asyncio.create_task(self._listen(reader))
        await self._over.wait()
        listening.cancel()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            task = asyncio.create_task(self._answer(json.loads(line)))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        os._exit(0)  # the test is over

    async def _answer(self, order: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"call": order["call"]}
        try:
            given = order["given"]
            own = getattr(self, f"do_{order['do']}", None)
            answer["ok"] = await (own or getattr(self.cue, order["do"]))(**given)
        except Exception as error:  # noqa: BLE001 (the test is told)
            answer["error"] = [type(error).__name__, str(error)]
        self._channel.sendall(msgspec.json.encode(answer, enc_hook=str) + b"\n")

    async def do_start(self) -> None:
        """Begin to start work."""
        self.cue.start()

    async def do_count(self) -> dict[str, int]:
        """How many works there are in each state."""
        return {state.value: number for state, number in (await self.cue.count()).items()}

    async def do_events(self, types: list[str], amount: int) -> list[list[Any]]:
        """The first so many events of these types, as number, type, work and attempt."""
        found: list[list[Any]] = []
        async for event in self.cue.events(types, since=0):
            found.append([event.seq, event.type, event.work_id, event.attempt])
            if len(found) >= amount:
                break
        return found

    async def do_read(self, work_id: str) -> Any:
        """Look at a work as somebody does who does not use the queue."""
        if self._reader is None:
            self._reader = runcue.Reader(self._script.database)
        return self._reader.get(work_id)

    async def do_let_go(self) -> None:
        """End what is held."""
        self._let_go.set()

    async def do_seize(self, pipe: str) -> None:
        """End what is held; the first of it holds the interpreter until something comes through that pipe."""
        self._pipe = pipe
        self._let_go.set()

    async def do_shift(self, wall: float = 0.0, boottime: float = 0.0) -> None:
        """Set the clocks of the host forward or back."""
        self._clocks.wall += wall
        self._clocks.boottime += boottime

    async def do_stop_at(self, place: str) -> None:
        """Be stopped (SIGSTOP) at that place of a turn, once."""
        self._stopping.place = place

    async def do_limit(self, size: int | None) -> None:
        """Let no file grow beyond so many bytes, or let them grow again."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    async def do_logged(self) -> list[str]:
        """What was logged so far."""
        return self._logged.lines

    async def do_errors(self) -> list[str]:
        """What came as far as the event loop, which nobody handles there."""
        return self._errors

    async def do_watch_statements(self) -> None:
        """Write down every statement that begins something, of connections opened from now on."""

        def trace(_: object, sql: str, __: object) -> bool:
            if sql.lstrip().upper().startswith(("BEGIN", "SAVEPOINT")):
                self._statements.append(sql.strip())
            return True

        apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))

    async def do_statements(self) -> list[str]:
        """What was written down."""
        return self._statements

    async def do_fork(self, way: str, times: int = 1) -> list[str]:
        """Fork as user code may, use the Cue in the child in that way, and tell what the children got."""
        return [_told_by_child(self.cue, way) for _ in range(times)]

    async def do_threads(self, amount: int) -> list[str]:
        """Submit from that many threads at once."""
        jobs = (asyncio.to_thread(self.cue.sync.submit, "note") for _ in range(amount))
        return list(await asyncio.gather(*jobs))

    async def do_exit(self) -> None:
        """Let the interpreter end as if the program had forgotten to stop and to close."""
        self._over.set()


def _told_by_child(cue: runcue.Cue, way: str) -> str:
    """What a forked child gets when it uses that Cue; one that hangs is ended after a minute."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.write(write, _used(cue, way).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    return said or f"nothing: its status is {status}"


def _used(cue: runcue.Cue, way: str) -> str:
    try:
        if way == "from a thread":
            cue.sync.submit("note")
        elif way == "on a new loop":
            asyncio.new_event_loop().run_until_complete(cue.submit("note"))
        else:
            return "left alone"
    except runcue.RuncueError as error:
        return type(error).__name__
    return "accepted"


# --- the process that forks them ------------------------------------------------------------------


def play(script: Script, channel: socket.socket) -> None:
    """Be that program."""
    signal.alarm(LIFETIME)

    async def main() -> None:
        await Program(script, channel).run()

    asyncio.run(main())


def serve(control: socket.socket) -> None:
    """Fork a program for each socket that comes, wait for those that are asked for."""
    gc.freeze()
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 1)
        if not order:
            return
        wanted = json.loads(order)
        if "wait" in wanted:
            _, status = os.waitpid(wanted["wait"], 0)
            control.sendall(json.dumps(status).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            try:
                play(msgspec.convert(wanted, Script), socket.socket(fileno=descriptors[0]))
            finally:
                _leave()
        os.close(descriptors[0])
        control.sendall(json.dumps(pid).encode())


def _leave() -> NoReturn:
    """End as an interpreter does: its other threads, unless they are daemons, are waited for."""
    failed = sys.exc_info()[0] is not None
    if failed:
        sys.excepthook(*sys.exc_info())
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    os._exit(failed)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
