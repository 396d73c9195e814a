"""Workers as a test meets them: started as real processes, watched from outside, and ended with the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import runcue
from runcue.cli.home import Home
from runcue.cli.jobs import ask, options_of, parse_job
from runcue.cli.settings import Settings
from tests.patience import BOUND, lives, until_sync

QUEUECTL = [sys.executable, "-m", "runcue.cli"]
RUNCUE = [sys.executable, "-c", "from runcue.cli.main import runcue; runcue()"]
LEFT_OUT = ("QUEUECTL_", "RUNCUE_", "NO_COLOR", "CLICOLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING",
            "TERM")  # fmt: skip


def environment(home: Path, more: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of a command: the home, and nothing of ours that would change how it behaves."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    given = {"QUEUECTL_HOME": str(home), "PYTHONUTF8": "1", **(more or {})}
    return {name: value for name, value in (found | given).items() if value is not None}


class Crew:
    """A home, its queue, and the supervisors that a test started on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.database = home / "queue.db"
        self._started: list[Supervisor] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for supervisor in self._started:
            supervisor.end()
        try:
            left = self.workers()
        except runcue.StoreError:  # there is no queue
            left = []
        for row in left:
            end(row["pid"])

    def enqueue(self, *jobs: dict[str, Any]) -> None:
        """Enqueue these jobs in one go, as `queuectl enqueue` does."""

        async def submit(cue: runcue.Cue, settings: Settings) -> None:
            await cue.submit_many(options_of(parse_job(json.dumps(job)), settings) for job in jobs)

        ask(Home(str(self.home)), submit, may_create=True)

    def run(self, *args: str, input: str | None = None) -> subprocess.CompletedProcess[str]:  # noqa: A002
        """Run a command to its end."""
        return subprocess.run(
            [*QUEUECTL, *args],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            env=environment(self.home),
            timeout=BOUND,
            check=False,
        )

    @contextmanager
    def begun(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """A command under way; it is ended with the block."""
        with subprocess.Popen(
            [*QUEUECTL, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(self.home),
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def start(self, *args: str) -> Supervisor:
        """Start workers, and wait until they are up."""
        command = [*QUEUECTL, "worker", "start", *args]
        supervisor = Supervisor(command, environment(self.home), self.home.parent)
        self._started.append(supervisor)
        supervisor.until("Started ")
        return supervisor

    @contextmanager
    def reading(self) -> Iterator[runcue.Reader]:
        """The queue as it stands."""
        with runcue.Reader(self.database) as reader:
            yield reader

    def jobs(self) -> dict[str, dict[str, Any]]:
        """All jobs, by id."""
        with self.reading() as reader:
            return {row["id"]: row for row in reader.jobs(limit=10_000)}

    def until_state(self, state: str, *ids: str) -> dict[str, dict[str, Any]]:
        """All jobs, once these (none given: all) are in that state."""

        def look() -> dict[str, dict[str, Any]] | None:
            jobs = self.jobs()
            return jobs if all(jobs[id]["state"] == state for id in ids or jobs) else None

        found: dict[str, dict[str, Any]] = until_sync(look, f"{ids or 'every job'} {state}")
        return found

    def workers(self) -> list[dict[str, Any]]:
        """The workers that live."""
        with self.reading() as reader:
            return [row for row in reader.workers() if row["serving"] and row["state"] != "gone"]


class Supervisor:
    """A supervisor as the process that started it sees it."""

    def __init__(
        self, command: list[str], env: dict[str, str], folder: Path, cwd: Path | None = None
    ) -> None:
        name = f"said-{len(list(folder.glob('said-*')))}"
        self._said = folder / name
        with self._said.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.process.pid

    def said(self) -> str:
        """Everything it has said so far."""
        return self._said.read_text(encoding="utf-8")

    def until(self, text: str) -> None:
        """Wait until it has said that."""

        def look() -> bool:
            if text in self.said():
                return True
            assert self.process.poll() is None or text in self.said(), f"it ended, and said: {self.said()}"
            return False

        until_sync(look, f"to say {text!r}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait until it has ended: its exit code."""
        return self.process.wait(BOUND)

    def end(self) -> None:
        """End it and all its workers, whatever they are doing."""
        if self.process.poll() is None:
            children = children_of(self.pid)
            self.process.kill()
            self.process.wait(BOUND)
            for pid in children:
                end(pid)


@contextmanager
def ignoring(*numbers: signal.Signals) -> Iterator[None]:
    """What is started in this block ignores these, as the background jobs of a script do with Ctrl-C."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignores(pid: int, number: signal.Signals) -> bool:
    """True where that process ignores that signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def children_of(pid: int) -> list[int]:
    """The processes that this one started and that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[1] == str(pid) and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def end(pid: int) -> None:
    """Kill a process that a test started, unless it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def gone(pids: Iterable[int]) -> bool:
    """True when none of these lives."""
    return not any(lives(pid) for pid in pids)
