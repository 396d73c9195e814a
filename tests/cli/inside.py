"""The command line inside the test's own process: quicker than the executable, where that adds nothing."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import runcue
from runcue.cli import main
from runcue.cli.home import Home
from runcue.cli.jobs import open_cue
from runcue.cli.settings import Settings
from tests.cli.crew import QUEUECTL, environment

WORKER = """
import asyncio, sys
from runcue.cli.home import Home
from runcue.cli.jobs import open_cue
from runcue.cli.settings import settings_of

async def work(home):
    async with open_cue(home, settings_of(home), max_running=2):
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(work(Home(sys.argv[1])))
"""


@contextmanager
def worker(home: Path) -> Iterator[None]:
    """A process beside the test that runs jobs of that home."""
    with subprocess.Popen([sys.executable, "-c", WORKER, str(home)], stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.communicate(timeout=240)


FORGETTING = """
import asyncio, sys
from runcue.stores.sql import housekeeping
housekeeping.PRUNE_EVERY = 0.02
import runcue
from runcue.cli.home import Home
from runcue.cli.jobs import open_cue
from runcue.cli.settings import Settings

async def forget(home):
    async with asyncio.timeout(40), open_cue(home, Settings(retention=0)):
        with runcue.Reader(home.database) as reader:
            while reader.jobs("completed") or reader.jobs("cancelled"):
                await asyncio.sleep(0.02)

asyncio.run(forget(Home(sys.argv[1])))
"""


def forget(home: Path) -> None:
    """Have what has completed or was cancelled deleted, as if its time had come."""
    subprocess.run([sys.executable, "-c", FORGETTING, str(home)], check=True, timeout=240)


class Told(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


class Prompt:
    """A command of `queuectl` or `runcue` in this process, to its end: what it said."""

    def __init__(
        self, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._program = program
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for name in (
            "NO_COLOR",
            "CLICOLOR_FORCE",
            "COLUMNS",
            "RUNCUE_DEBUG",
            "QUEUECTL_DEBUG",
            "RUNCUE_TOKEN",
        ):
            monkeypatch.delenv(name, raising=False)

    def __call__(self, *args: str, input: bytes | str = b"") -> Told:  # noqa: A002 (named as in subprocess.run)
        data = input.encode() if isinstance(input, str) else input
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [self._program, *args])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            with pytest.raises(SystemExit) as ended:
                getattr(main, self._program)()
        out, err = self._capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Told(code, out, err)


class Inside:
    """`inside("enqueue", "--id", "a", "--", "true")`: that command to its end, on the queue of one home."""

    def __init__(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._prompt = Prompt("queuectl", monkeypatch, capsys)
        self.home = home
        monkeypatch.setenv("QUEUECTL_HOME", str(home))

    def __call__(self, *args: str, input: bytes | str = b"") -> Told:  # noqa: A002 (named as in subprocess.run)
        return self._prompt(*args, input=input)

    def work(self) -> None:
        """Run all jobs, until none is left that could."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        cue = open_cue(Home(str(self.home)), Settings(), max_running=2)
        async with asyncio.timeout(240):
            async with cue:
                await cue.join()
            await cue.close()


def refused(told: Told, code: int, *words: str, by: str = "queuectl") -> None:
    """It ended with that exit code, and said why in one line with these words in it."""
    assert told.code == code, told
    assert not told.out, told
    assert told.err.startswith(by), told
    assert told.err.count("\n") == 1, told
    assert told.err.rstrip("\n").isprintable(), told
    for word in words:
        assert word in told.err, told


def states(home: Path) -> dict[str, str]:
    """The states of all jobs, by id."""
    with runcue.Reader(home / "queue.db") as reader:
        return {row["id"]: row["state"] for row in reader.jobs()}


def one_of_eight(home: Path, *args: str) -> list[Told]:
    """Run that command eight times at once: one of them does it, and the others are refused. What they said."""
    command = [*QUEUECTL, *args]
    started = [
        subprocess.Popen(
            command, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    said = [one.communicate(timeout=240) for one in started]
    told = [Told(one.returncode, *texts) for one, texts in zip(started, said, strict=True)]
    assert sorted(one.code for one in told) == [0, *[6] * 7], told
    return told
