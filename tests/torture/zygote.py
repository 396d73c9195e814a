"""A process that has everything imported and forks actors on demand, so that a kill costs next to nothing.

It has no thread and no Cue, so forking is safe. It reads orders as JSON lines from its standard input and answers
on its standard output. As the parent of all actors it alone signals them: a pid it has not reaped cannot belong to
anybody else. When its input ends it kills and reaps whatever is left.

    {"do": "fork", "job": {…}}                      → {"is": "born", "actor": …, "t": …}
    {"do": "signal", "actor": …, "number": 9}       → {"is": "signalled", "actor": …, "number": 9, "t": …}
                                                    → {"is": "dead", "actor": …, "status": …, "t": …, "after": …}
                                                    → {"is": "share", "actor": "", "t": …, "since": …, "share": 0.9,
                                                       "spent": 7.5}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import resource
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

import runcue
from tests.given import Had, had_of, share_of
from tests.torture import actors
from tests.torture.history import now
from tests.torture.spawner import ERRORS

LOOK_EVERY: Final = 0.05
"""Seconds between two looks at how much of the machine the actors get."""
PF_EXITING: Final = 0x4
"""Among the flags of a process in Linux: it is being shut down."""


class Zygote:
    """The loop of that process."""

    def __init__(self) -> None:
        self._actors: dict[int, str] = {}
        self._pids: dict[str, int] = {}
        self._killed: dict[str, float] = {}
        self._input = b""
        self._looked_at = 0.0
        self._had: dict[int, Had] = {}
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)

    def run(self) -> None:
        """Serve until the input ends."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker)
        is_open = True
        while is_open:
            readable, _, _ = select.select([0, self._wake], [], [], LOOK_EVERY if self._actors else None)
            self._look()
            if self._wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            if 0 in readable:
                is_open = self._read()
        for pid in self._actors:
            os.kill(pid, signal.SIGKILL)
        for pid in self._actors:
            os.waitpid(pid, 0)

    def _read(self) -> bool:
        data = os.read(0, 65536)
        *orders, self._input = (self._input + data).split(b"\n")
        for text in orders:
            order = msgspec.json.decode(text)
            if order["do"] == "fork":
                self._fork(msgspec.convert(order["job"], actors.Job))
            else:
                self._signal(order["actor"], order["number"])
        return bool(data)

    def _fork(self, job: actors.Job) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(job)
        self._actors[pid] = job.actor
        self._pids[job.actor] = pid
        self._say("born", job.actor)

    def _become(self, job: actors.Job) -> NoReturn:
        """In the child: be the actor, and never come back."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            errors = os.open(Path(job.folder) / ERRORS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            nothing = os.open(os.devnull, os.O_RDWR)
            for old, new in (
                (nothing, 0),
                (nothing, 1),
                (errors, 2),
                (nothing, self._wake),
                (nothing, self._waker),
            ):
                os.dup2(old, new)
            if job.crash_at:  # crash points are read when the store is imported, so this one begins anew
                command = [sys.executable, "-m", actors.__name__, msgspec.json.encode(job).decode()]
                os.execve(sys.executable, command, os.environ | {"RUNCUE_CRASH_AT": job.crash_at})
            actors.main(job)
            code = 0
        except BaseException:  # noqa: BLE001 (whatever it was, it is told, and this child must not live on as a zygote)
            print(f"{job.actor}: {traceback.format_exc()}", file=sys.stderr, flush=True)  # noqa: T201 (its log)
        finally:
            os._exit(code)

    def _signal(self, actor: str, number: int) -> None:
        pid = self._pids.get(actor)
        if pid is None:
            return
        t = now()
        if number == signal.SIGKILL and not is_dying(pid):
            self._killed.setdefault(actor, t)
        os.kill(pid, number)
        self._say("signalled", actor, t=t if number != signal.SIGCONT else now(), number=number)

    def _reap(self) -> None:
        while self._actors:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            t = now()
            actor = self._actors.pop(pid)
            del self._pids[actor]
            self._say("dead", actor, t=t, status=status, after=self._killed.pop(actor, None))

    def _look(self) -> None:
        """Say how much of the machine the actors got since the last look, from time to time."""
        t = now()
        if not self._actors:
            self._looked_at, self._had = t, {}
        elif t >= self._looked_at + LOOK_EVERY:
            had = {pid: had_of(pid) for pid in self._actors}
            before = [self._had.get(pid, Had()) for pid in had]
            ran = sum(one.ran for one in had.values()) - sum(one.ran for one in before)
            waited = sum(one.waited for one in had.values()) - sum(one.waited for one in before)
            share = share_of(t - self._looked_at, ran, waited)
            spent = spent_by_the_dead() + sum(one.ran for one in had.values())
            self._say("share", "", t=t, since=self._looked_at, share=share, spent=spent)
            self._looked_at, self._had = t, had

    def _say(self, what: str, actor: str, **more: Any) -> None:
        message = {"is": what, "actor": actor, "t": now()} | more
        os.write(1, msgspec.json.encode(message) + b"\n")


def spent_by_the_dead() -> float:
    """Seconds of processor time of all actors that were reaped."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def is_dying(pid: int) -> bool:
    """True for a process that is already on its way out, nobody knows since when: there is work that kills it."""
    folder = Path(f"/proc/{pid}")
    flags = int((folder / "stat").read_text().rpartition(")")[2].split()[6])
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    return bool(flags & PF_EXITING or pending >> (signal.SIGKILL - 1) & 1)


def warm() -> None:
    """Import whatever an actor could want; what needs an extra that is not installed, or Windows, is not wanted."""
    for module in pkgutil.walk_packages(runcue.__path__, "runcue."):
        if not module.name.startswith(("runcue.cli", "runcue.sim")):  # programs of their own
            with contextlib.suppress(ImportError, AssertionError, runcue.ConfigError):
                importlib.import_module(module.name)


if __name__ == "__main__":
    warm()
    gc.collect()
    gc.freeze()
    Zygote().run()
