"""Where programs are hurt: starting them, talking to them, watching their system calls, seeing what they leave."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import pytest

import runcue.errors
from tests.faults.program import Script
from tests.patience import BOUND, until_sync
from tests.torture import history
from tests.torture.checker import unsound_storage
from tests.torture.history import now
from tests.torture.swarm import inspected, reading

ROOT: Final = Path(__file__).resolve().parents[2]
LET_GO_WITHIN: Final = 2.0


class Refused(Exception):
    """A program's call raised an error, of that kind."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(f"{kind}: {text}")


class Actor:
    """A program as its test sees it."""

    def __init__(self, stage: Stage, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._stage = stage
        self._channel = channel
        self._calls = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._input = b""
        self.is_dead = False
        self.status: int | None = None

    def tell(self, do: str, **given: Any) -> int:
        """Have it do something; the number under which its answer comes."""
        self._calls += 1
        order = {"call": self._calls, "do": do, "given": given}
        try:
            self._channel.sendall(json.dumps(order).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            self.is_dead = True
        return self._calls

    def has_answered(self, call: int, seconds: float = 0.0) -> bool:
        """Whether that answer has come, or will not come because the program is dead."""
        until = now() + seconds
        while call not in self._answers and not self.is_dead:
            if not select.select([self._channel], [], [], max(0.0, until - now()))[0]:
                return False
            self._hear()
        return True

    def _hear(self) -> None:
        try:
            data = self._channel.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        self.is_dead = not data
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self._answers[answer["call"]] = answer

    def answer(self, call: int) -> Any:
        """What came of that call; raises Refused, and EOFError when the program died over it."""
        assert self.has_answered(call, BOUND), f"program {self.pid} says nothing"
        if call not in self._answers:
            raise EOFError("the program is dead")
        answer = self._answers.pop(call)
        if "error" in answer:
            raise Refused(*answer["error"])
        return answer["ok"]

    def ask(self, do: str, **given: Any) -> Any:
        """Have it do something, and wait for what comes of it."""
        return self.answer(self.tell(do, **given))

    def submit(self, task: str = "note", **given: Any) -> str:
        """Submit one work; its id."""
        return str(self.ask("submit", task=task, **given))

    def until(self, is_so: Callable[[Any], bool], do: str, **given: Any) -> Any:
        """Ask again and again until the answer is as wanted, which is bounded."""
        bound = now() + BOUND
        while True:
            answer = self.ask(do, **given)
            if is_so(answer):
                return answer
            assert now() < bound, f"{do} still says {answer!r}"
            select.select([], [], [], 0.01)

    def until_state(self, work_id: str, state: str) -> dict[str, Any]:
        """That work, once it is in that state."""
        work: dict[str, Any] = self.until(
            lambda work: work is not None and work["state"] == state, "get", work_id=work_id
        )
        return work

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def is_stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP)."""
        told = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        return told.rpartition(")")[2].split()[0] in "Tt"

    def until_stopped(self) -> None:
        """Wait until it is stopped (SIGSTOP)."""
        until_sync(self.is_stopped, "it is stopped")

    def kill(self) -> None:
        """End it without a chance to tidy up, unless it has ended."""
        if self.status is None:
            self.signal(signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Wait for its end; its status."""
        if self.status is None:
            self.status = self._stage.wait(self.pid)
            self._channel.close()
        return self.status

    def close(self) -> None:
        """Have it close its queue and end by itself."""
        self.ask("close")
        self.kill()


class Stage:
    """The process that forks programs, and all programs that it forked."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.program", str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._actors: list[Actor] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()
        self._control.close()
        self._process.wait(BOUND)

    def clear(self) -> None:
        """End all programs."""
        for actor in self._actors:
            actor.kill()
        self._actors.clear()

    def play(self, script: Script) -> Actor:
        """Start a program."""
        ours, theirs = socket.socketpair()
        socket.send_fds(self._control, [msgspec.json.encode(script)], [theirs.fileno()])
        theirs.close()
        actor = Actor(self, int(self._heard()), ours)
        self._actors.append(actor)
        return actor

    def wait(self, pid: int) -> int:
        """The status with which that process ended."""
        self._control.sendall(json.dumps({"wait": pid}).encode())
        return int(self._heard())

    def _heard(self) -> Any:
        assert select.select([self._control], [], [], BOUND)[0], (
            "the process that forks programs says nothing"
        )
        return json.loads(self._control.recv(1 << 20))


class Scene:
    """One queue file and the programs on it."""

    target: str
    """What their Cues are given."""

    def __init__(self, stage: Stage, folder: Path, place: Path | None = None) -> None:
        self.stage = stage
        self.folder = folder / "history"
        self.database = (place or folder / "db") / "queue.db"
        self.target = str(self.database)
        for made in (self.folder, self.database.parent):
            made.mkdir(mode=0o700, parents=True, exist_ok=made == place)
        self._names = 0

    def play(self, **script: Any) -> Actor:
        """Start a program on this queue."""
        self._names += 1
        return self.stage.play(Script(f"p{self._names}", self.target, str(self.folder), **script))

    def running(self, **script: Any) -> Actor:
        """Start a program that runs work."""
        actor = self.play(**script)
        actor.ask("start")
        return actor

    def starts(self) -> Counter[str]:
        """How often each work was started, as its handlers saw it."""
        return Counter(line.work or "" for line in history.read(self.folder) if line.op == "start")

    def until_started(self, work_id: str, times: int = 1) -> None:
        """Wait until the handler of that work was entered so often."""
        until_sync(lambda: self.starts()[work_id] >= times, f"{work_id} starts")

    def drained(self, **script: Any) -> dict[str, dict[str, Any]]:
        """Have a new program do what is left to do; all works in the end, the file having been found sound."""
        actor = self.running(**script)
        actor.ask("join", timeout=BOUND)
        works = {work["id"]: work for work in actor.ask("list", limit=10_000)}
        actor.close()
        self.check()
        return works

    def check(self) -> None:
        """The file is sound and private, and its counters and index heads agree with its works."""
        _, storage = inspected(self.database)
        assert list(unsound_storage(storage)) == []
        with reading(self.database) as connection:
            names = ("pending", "running", "completed", "failed", "cancelled")
            [counted] = connection.execute(f"SELECT {', '.join(names)} FROM head")
            states = dict(connection.execute("SELECT state, count(*) FROM work_units GROUP BY state"))
            assert dict(zip(names, counted, strict=True)) == {name: states.get(name, 0) for name in names}
            kept = dict(connection.execute("SELECT name, seq FROM index_heads WHERE seq IS NOT NULL"))
            found: dict[str, int] = {}
            for index_key, seq in connection.execute(
                "SELECT index_key, seq FROM work_units WHERE index_key IS NOT NULL AND state <> 'running' "
                "ORDER BY index_key, sort_key, seq"
            ):
                found.setdefault(str(index_key), int(seq))
            assert kept == found
            lost = connection.execute(
                "SELECT work_units.id, value FROM work_units, json_each(work_units.depends_on) "
                "EXCEPT SELECT work_id, needs FROM dependencies"
            ).fetchall()
            assert lost == []


def refused(actor: Actor, do: str, **given: Any) -> Refused:
    """The error that this call gets: one line, in the words of the queue and not of its database's innards."""
    with pytest.raises(Refused) as caught:
        actor.ask(do, **given)
    check_words(caught.value)
    return caught.value


def check_words(error: Refused) -> None:
    """An error of ours, in one line that says what is wrong and not what went wrong afterwards."""
    assert issubclass(getattr(runcue.errors, error.kind), runcue.StoreError)
    assert "\n" not in error.text
    assert "rollback" not in error.text


# --- system calls ---------------------------------------------------------------------------------


def why_no_tracing() -> str | None:
    """Why system calls cannot be watched here, or None where they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        [
            "strace",
            "-qq",
            "-o",
            os.devnull,
            "-e",
            "trace=fdatasync",
            "-e",
            "inject=fdatasync:error=EIO",
            "true",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"strace may not trace here: {tried.stderr.strip()}" if tried.returncode else None


@contextmanager
def traced(
    actor: Actor,
    *expressions: str,
    beside: Sequence[Actor] = (),
    output: str | Path = os.devnull,
    options: str = "",
) -> Iterator[None]:
    """Watch a program's system calls, and meddle with them as these expressions say; or those of several."""
    command = ["strace", "-f", "-o", str(output), *options.split()]
    for each in (actor, *beside):
        command += ["-p", str(each.pid)]
    for expression in expressions:
        command += ["-e", expression]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    try:
        for _ in (actor, *beside):
            line = tracer.stderr.readline()
            if "attached" not in line:
                pytest.fail(f"strace says: {line}{tracer.stderr.read()}")
        yield
    finally:
        if not actor.is_dead:
            tracer.terminate()
        try:
            tracer.communicate(timeout=LET_GO_WITHIN)
        except (
            subprocess.TimeoutExpired
        ):  # now and then it overlooks a death, and the dead are kept from resting
            tracer.kill()
            tracer.communicate(timeout=BOUND)
