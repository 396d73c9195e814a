"""`queuectl demo` shows what a queue does, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.crew import QUEUECTL, children_of, environment, gone
from tests.patience import BOUND, until_sync


def test_the_demo_tells_its_story_and_leaves_nothing_behind(
    queuectl: Run, home: Path, tmp_path: Path
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    done = queuectl("demo", env={"TMPDIR": str(place)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.index("build  completed") < done.stdout.index("test  started")
    for line in (
        "$ queuectl worker start --count 2",
        "broken  dead: exit code 1: no such host",
        "6 jobs completed.",
        "broken was tried 2 times",
    ):
        assert line in done.stdout
    assert [line.strip() for line in done.stdout.splitlines()[-3:]] == [
        "queuectl enqueue -- echo hello",
        "queuectl worker start",
        "queuectl status",
    ]
    assert list(place.iterdir()) == []
    assert not home.exists()


def test_an_interrupted_demo_leaves_nothing_behind_either(home: Path, tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    process = subprocess.Popen(
        [*QUEUECTL, "demo"],
        env=environment(home, {"TMPDIR": str(place)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "build  started" in line:
            break
    processes = [pid for child in children_of(process.pid) for pid in (child, *children_of(child))]
    process.send_signal(signal.SIGINT)
    assert process.wait(BOUND) == 130
    process.communicate()
    until_sync(lambda: gone(processes), "its workers end")
    assert len(processes) == 3
    assert list(place.iterdir()) == []


ELSE = "import sys; sys.executable = sys.argv.pop(1); from runcue.cli.main import queuectl; queuectl()"
"""The program with something else in the place of its workers."""


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        (
            "echo 'Started.' >&2; echo 'queuectl: The disk is full.' >&2; exit 3",
            3,
            "queuectl: The supervisor of the demo's workers ended with exit code 3: The disk is full.\n",
        ),
        ("kill -9 $$", 70, "queuectl: The supervisor of the demo's workers was killed by SIGKILL.\n"),
        ("exit 0", 130, "queuectl: The workers were stopped before the demo was over.\n"),
        ("exit 141", 141, ""),
        ("kill -PIPE $$", 141, ""),
    ],
)
def test_workers_that_end_too_early_end_the_demo_with_a_reason(
    script: str, code: int, told: str, home: Path, tmp_path: Path
) -> None:
    workers = tmp_path / "workers"
    workers.write_text(f"#!/bin/sh\n{script}\n")
    workers.chmod(0o700)
    place = tmp_path / "temporary"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", ELSE, str(workers), "demo"],
        env=environment(home, {"TMPDIR": str(place)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, told)
    assert list(place.iterdir()) == []
