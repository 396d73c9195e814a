"""`queuectl cancel` and `queuectl wait`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import runcue
from tests.cli.conftest import environment
from tests.cli.crew import until
from tests.cli.inside import Inside, refused, worker

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def inside(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(home, monkeypatch, capsys)


def states(home: Path) -> dict[str, str]:
    with runcue.Reader(home / "queue.db") as reader:
        return {row["id"]: row["state"] for row in reader.jobs()}


# cancel ----------------------------------------------------------------------------------------------------


def test_a_job_that_waits_is_cancelled(inside: Inside, home: Path) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    inside("enqueue", "--id", "b", "--after", "a", "--", "true")
    assert inside("cancel", "a", "a") == (0, "Cancelled a\n", "")
    assert states(home) == {"a": "cancelled", "b": "dead"}


def test_all_that_can_be_cancelled_are_and_the_others_are_told(inside: Inside, home: Path) -> None:
    inside("enqueue", "--id", "done", "--", "true")
    inside.work()
    inside("enqueue", "--id", "a", "--", "true")
    told = inside("cancel", "done", "nobody", "a")
    assert (told.code, told.out) == (6, "Cancelled a\n")
    assert (
        told.err == "queuectl: done is completed already.\nqueuectl: No job nobody. See them: queuectl list\n"
    )
    refused(inside("cancel", "a"), 6, "a is cancelled already")


@pytest.mark.parametrize("verb", ["cancel", "wait", "logs", "dlq retry", "dlq purge --yes"])
@pytest.mark.parametrize("id", ["../../etc/passwd", "a/b", "", "\x1b[2J", "a" * 10_000])
def test_what_is_no_id_is_refused(inside: Inside, verb: str, id: str) -> None:
    refused(inside(*verb.split(), "--", id), 2)


@pytest.mark.parametrize(
    "verb", ["cancel", "wait", "logs", "dlq retry", "dlq purge --yes", "pause", "resume"]
)
def test_where_there_is_no_queue_nothing_is_made(inside: Inside, home: Path, verb: str) -> None:
    refused(inside(*verb.split(), "a"), 6, "queuectl enqueue")
    assert not home.exists()


def test_cancel_needs_an_id(inside: Inside) -> None:
    refused(inside("cancel"), 2, "ID")


# wait ------------------------------------------------------------------------------------------------------


def test_wait_tells_how_each_job_ended(inside: Inside) -> None:
    inside("enqueue", "--id", "good", "--", "true")
    inside("enqueue", "--id", "bad", "--max-retries", "1", "--command", "echo '\x1b[2Joops' >&2; exit 3")
    inside("enqueue", "--id", "later", "--after", "bad", "--", "true")
    inside("enqueue", "--id", "gone", "--", "true")
    inside("cancel", "gone")
    inside.work()
    good = inside("wait", "good")
    assert (good.code, good.err) == (0, "")
    assert good.out.startswith("good completed in ")
    told = inside("wait", "good", "bad", "later", "gone")
    assert (told.code, told.err) == (1, "")
    assert told.out.splitlines()[1:] == [
        "bad dead after 1 attempt: exit code 3: [2Joops",
        "later dead: prerequisite_failed",
        "gone cancelled",
    ]


def test_wait_sees_jobs_end_that_others_run(inside: Inside, home: Path) -> None:
    for number in range(5):
        inside("enqueue", "--id", f"j{number}", "--", "sleep", "0.05")
    inside("enqueue", "--id", "unlucky", "--max-retries", "0", "--", "false")
    with worker(home):
        told = inside("wait", "--all", "--timeout", "40")
    assert (told.code, told.err) == (1, "")
    assert sorted(line.split()[0] for line in told.out.splitlines()) == [
        "j0",
        "j1",
        "j2",
        "j3",
        "j4",
        "unlucky",
    ]
    assert inside("wait", "--all") == (0, "", "")


def test_a_running_job_is_told_to_stop(inside: Inside, home: Path) -> None:
    inside("enqueue", "--id", "long", "--command", "echo up; exec sleep 600")
    with worker(home):
        with runcue.Reader(home / "queue.db") as reader:
            until(lambda: reader.output("long").data, "what it prints")
        told = inside("cancel", "long")
        assert told.out == "Cancelled long, which was running and is told to stop\n"
        assert inside("wait", "long", "--timeout", "40") == (1, "long cancelled\n", "")


def test_wait_has_an_end(inside: Inside) -> None:
    for number in range(7):
        inside("enqueue", "--id", f"j{number}", "--", "true")
    refused(inside("wait", "j1", "--timeout", "0"), 124, "Not ended after 0 s: j1.")
    refused(inside("wait", "--all", "--timeout", "0.2s"), 124, "and 2 more")


def test_a_job_that_vanishes_is_not_waited_for_any_longer(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    answers = iter([runcue.Work("a", "shell"), runcue.Work("a", "shell"), None])
    monkeypatch.setattr(runcue.Reader, "get", lambda reader, id: next(answers))
    assert inside("wait", "a") == (1, "a is gone: it was purged\n", "")


def test_more_jobs_than_one_look_is_at_are_all_waited_for(inside: Inside, home: Path) -> None:
    inside("enqueue", input="\n".join(f'{{"id": "j{number}", "command": "true"}}' for number in range(80)))
    with worker(home):
        told = inside("wait", *(f"j{number}" for number in range(80)), "--timeout", "45")
    assert (told.code, told.err) == (0, "")
    assert len(told.out.splitlines()) == 80


def test_ctrl_c_ends_the_waiting(home: Path, queuectl: Run) -> None:
    queuectl("enqueue", "--id", "a", "--", "true")
    queuectl("enqueue", "--id", "done", "--", "true")
    queuectl("cancel", "done")
    with subprocess.Popen(
        [sys.executable, "-m", "runcue.cli", "wait", "done", "a"],
        env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "done cancelled\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=45)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("args", [[], ["a", "--all"], ["a", "--timeout", "soon"], ["a", "--timeout", "-1"]])
def test_wait_says_what_it_wants(inside: Inside, args: list[str]) -> None:
    refused(inside("wait", *args), 2)


def test_an_unknown_job_is_not_waited_for(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    refused(inside("wait", "a", "nobody"), 6, "No job nobody")
