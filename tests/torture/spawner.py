"""The processes of a round on Windows: ended by TerminateProcess, told to end by the end of their input.

It has the verbs of `Herd` (swarm.py), whose zygote cannot be had here. Nobody is stopped and continued. To start a
process takes seconds here, so a few are ready that have everything imported and wait for a job.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Self

import msgspec

from tests.torture import actors
from tests.torture.history import now

ROOT: Final = Path(__file__).resolve().parents[2]
ERRORS: Final = "stderr.txt"
KILL, TERM = 9, 15
READY: Final = 3
"""Processes that wait for a job."""


class Herd:
    """The processes of one run."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ready: list[subprocess.Popen[bytes]] = []
        self._killed: dict[str, float] = {}
        self._said: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def __enter__(self) -> Self:
        self._ready += [_started() for _ in range(READY)]
        return self

    def __exit__(self, *error: object) -> None:
        for process in (*self._ready, *self._processes.values()):
            process.kill()
            process.wait()

    def fork(self, job: actors.Job) -> None:
        """Have a process do that job."""
        self._ready.append(_started(job.crash_at))
        process = self._ready.pop(-1 if job.crash_at else 0)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        process.stdin.flush()
        self._processes[job.actor] = process
        self._said.put({"is": "born", "actor": job.actor, "t": now()})
        threading.Thread(target=self._wait, args=(job.actor, process), daemon=True).start()

    def signal(self, actor: str, number: int) -> None:
        """Kill that process, or have it end, unless it is gone."""
        process = self._processes.get(actor)
        if process is None:
            return
        t = now()
        if number == KILL:
            if process.poll() is None:
                self._killed.setdefault(actor, t)
            process.kill()
        elif number == TERM and process.stdin is not None:
            process.stdin.close()
        self._said.put({"is": "signalled", "actor": actor, "number": number, "t": t})

    def messages(self, until: float) -> Iterator[dict[str, Any]]:
        """What happens to them, until that moment."""
        while True:
            try:
                message = self._said.get(timeout=max(0.0, until - now()))
            except Empty:
                return
            if message["is"] == "dead":
                self._processes.pop(message["actor"], None)
            yield message

    def _wait(self, actor: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        after = self._killed.pop(actor, None)
        how = "clean" if code == 0 else "killed" if code == KILL or after is not None else f"exit code {code}"
        self._said.put({"is": "dead", "actor": actor, "t": now(), "how": how, "after": after})


def _started(crash_at: str = "") -> subprocess.Popen[bytes]:
    """A process that waits for its job; crash points are read when the store is imported."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.torture.spawner"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | ({"RUNCUE_CRASH_AT": crash_at} if crash_at else {}),
    )


def main() -> None:
    """Be an actor, once there is a job."""
    importlib.import_module("runcue.stores.sqlite.store")
    importlib.import_module("runcue.engine.engine")
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: the end of the input is for the actor
        piece = os.read(0, 1)
        if not piece:
            return
        line += piece
    job = msgspec.json.decode(line, type=actors.Job)
    errors = os.open(Path(job.folder) / ERRORS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 2)
    try:
        actors.main(job)
    except BaseException:
        print(f"{job.actor}: {traceback.format_exc()}", file=sys.stderr, flush=True)  # noqa: T201 (its log)
        raise


if __name__ == "__main__":
    main()
