"""The command line on Windows: workers that are told to leave by events, and one that goes on without a console."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.platform != "win32":
    pytest.skip("of Windows", allow_module_level=True)

from tests.patience import BOUND, until_sync

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_demo_runs_to_its_end(queuectl: Run) -> None:
    done = queuectl("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 jobs completed." in done.stdout


def test_workers_in_the_background_run_jobs_and_leave_when_asked(queuectl: Run, home: Path) -> None:
    assert queuectl("enqueue", "--id", "a", "--command", "echo said").returncode == 0
    started = queuectl("worker", "start", "--count", "2", "--detach")
    assert started.stdout.startswith("Started 2 workers in the background")
    try:
        assert queuectl("wait", "a").returncode == 0
        assert queuectl("logs", "a").stdout.split() == ["said"]
        assert len(queuectl("worker", "list").stdout.splitlines()) == 2
    finally:
        assert queuectl("worker", "stop").stdout == "Stopped 2 workers.\n"
    assert "Stopped. 1 job completed." in (home / "worker.log").read_text()


def test_a_job_is_put_back_when_workers_stop_at_once(queuectl: Run, home: Path) -> None:
    queuectl("enqueue", "--id", "long", "--command", f'"{sys.executable}" -c "import time; time.sleep(600)"')
    queuectl("worker", "start", "--detach")
    until_sync(lambda: "processing" in queuectl("list").stdout)
    assert queuectl("worker", "stop", "--now").stdout == "Stopped 1 worker.\n"
    assert "pending" in queuectl("list").stdout


def test_a_worker_that_dies_is_replaced(queuectl: Run, home: Path) -> None:
    queuectl("enqueue", "--id", "die", "--command", "echo not yet")
    queuectl("worker", "start", "--detach")
    try:
        [line] = queuectl("worker", "list").stdout.splitlines()
        os.kill(int(line.split()[1]), signal.SIGTERM)  # which is TerminateProcess here
        until_sync(lambda: "Another one starts" in (home / "worker.log").read_text())
        until_sync(lambda: line.split()[0] not in queuectl("worker", "list").stdout)
    finally:
        assert queuectl("worker", "stop").returncode == 0


def test_the_home_is_in_the_folder_of_the_user(tmp_path: Path) -> None:
    code = "from runcue.cli.home import Home; print(Home().place())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"USERPROFILE": str(tmp_path), "SYSTEMROOT": "C:\\windows", "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
    )
    assert Path(done.stdout.strip()) == tmp_path / ".queuectl"
