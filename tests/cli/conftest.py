"""Runs the real command line, each test in a home of its own."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli import stock as stocked
from tests.cli import works as worked
from tests.cli.crew import QUEUECTL, Crew, environment
from tests.cli.inside import Inside
from tests.patience import BOUND

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Watch = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may keep temporary files below their home, where paths are said with a ~."""
    monkeypatch.setenv("HOME", "/home/of-nobody")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of this test's queue; it does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def queuectl(home: Path) -> Run:
    """`queuectl("list", "--json", input="", env={"NO_COLOR": "1"})`: the real executable, to its end."""

    def run(
        *args: str,
        input: str | None = None,  # noqa: A002 (named as in subprocess.run)
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        timeout: float = BOUND,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*QUEUECTL, *args],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment(home, env),
            cwd=cwd,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def inside(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """`inside("list", "--json")`: `queuectl` in this process, on the queue of this test."""
    return Inside(home, monkeypatch, capsys)


@pytest.fixture
def crew(home: Path) -> Iterator[Crew]:
    """The workers that this test starts on its queue; they end with it."""
    with Crew(home) as made:
        yield made


@pytest.fixture
def on_terminal(home: Path) -> Watch:
    """`on_terminal("list", columns=20)`: the same on a terminal; its exit code and all that it showed."""

    def run(*args: str, columns: int = 80, env: Mapping[str, str | None] | None = None) -> tuple[int, str]:
        import fcntl
        import pty
        import termios

        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        child = subprocess.Popen(
            [*QUEUECTL, *args],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environment(home, {"TERM": "xterm", **(env or {})}),
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := _read(ours):
                shown += piece
            code = child.wait(BOUND)
        finally:
            os.close(ours)
            child.kill()
            child.wait()
        return code, shown.decode().replace("\r\n", "\n")

    return run


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so when nobody has the other side any more
        return b""


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a queue with a job in every state; only for reading."""
    return stocked.make(tmp_path_factory.mktemp("stock") / "home")


@pytest.fixture(scope="session")
def works(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a queue with a work in every state; only for reading, and to be copied with those beside it."""
    return worked.make(tmp_path_factory.mktemp("works") / "made")
