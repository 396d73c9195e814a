"""`queuectl cancel` and `queuectl wait`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import runcue
from tests.cli.conftest import Run
from tests.cli.crew import environment
from tests.cli.inside import Inside, forget, refused, states, worker
from tests.patience import until_sync

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
            until_sync(lambda: reader.output("long").data, "what it prints")
        told = inside("cancel", "long")
        assert told.out == "Cancelled long, which was running and is being stopped\n"
        assert inside("wait", "long", "--timeout", "40") == (1, "long cancelled\n", "")


def test_wait_has_an_end(inside: Inside) -> None:
    for number in range(7):
        inside("enqueue", "--id", f"j{number}", "--", "true")
    refused(inside("wait", "j1", "--timeout", "0"), 124, "Not ended after 0 s: j1.")
    refused(inside("wait", "--all", "--timeout", "0.2s"), 124, "and 2 more")


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], None]:
    """`vanishing("a", end)`: while somebody waits for `a`, and has seen it twice, `end` happens."""

    def prepare(wanted: str, end: Callable[[], None]) -> None:
        real, looks = runcue.Reader.get, []

        def get(reader: runcue.Reader, id: str) -> runcue.Work | None:
            if id == wanted and "wait" in sys.argv:
                looks.append(id)
                if len(looks) <= 2:
                    return runcue.Work(id, "shell")
                if len(looks) == 3:
                    end()
            return real(reader, id)

        monkeypatch.setattr(runcue.Reader, "get", get)

    return prepare


@pytest.mark.parametrize("is_named", [True, False], ids=["id given", "id made"])
def test_a_job_that_completed_and_is_no_longer_kept_has_not_failed(
    inside: Inside, home: Path, vanishing: Callable[..., None], is_named: bool
) -> None:
    one = inside("enqueue", "-q", *(["--id", "a"] if is_named else []), "--", "true").out.strip()
    inside.work()
    vanishing(one, lambda: forget(home))
    assert inside("wait", one) == (0, f"{one} completed, and is no longer kept\n", "")


def test_a_job_that_was_purged_meanwhile_has_failed(inside: Inside, vanishing: Callable[..., None]) -> None:
    inside("enqueue", "--id", "a", "--max-retries", "0", "--", "false")
    inside.work()
    purge = [sys.executable, "-m", "runcue.cli", "dlq", "purge", "a", "--yes"]
    vanishing("a", lambda: subprocess.run(purge, check=True, capture_output=True, timeout=240))
    assert inside("wait", "a") == (1, "a is gone: it was purged\n", "")


def test_a_job_that_may_have_been_cancelled_has_not_completed(
    inside: Inside, home: Path, vanishing: Callable[..., None]
) -> None:
    inside("enqueue", "--id", "a", "--", "true")

    def end() -> None:
        cancel = [sys.executable, "-m", "runcue.cli", "cancel", "a"]
        subprocess.run(cancel, check=True, capture_output=True, timeout=240)
        forget(home)

    vanishing("a", end)
    assert inside("wait", "a") == (1, "a has ended; whether it completed is no longer known\n", "")


def test_a_job_that_is_no_longer_kept_is_not_unknown(inside: Inside, home: Path) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    inside.work()
    forget(home)
    refused(inside("wait", "a"), 6, "a has ended and is no longer kept")


def test_jobs_that_have_ended_are_told_without_a_pause(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"j{number}" for number in range(200)]
    inside("enqueue", input="\n".join(f'{{"id": "{id}", "command": "true"}}' for id in [*ids, "last"]))
    inside("cancel", *ids)
    monkeypatch.setattr("runcue.cli.commands.wait.time.sleep", lambda seconds: pytest.fail("it pauses"))
    told = inside("wait", *ids, "--timeout", "0")
    assert (told.code, told.err) == (1, "")
    assert told.out.splitlines() == [f"{id} cancelled" for id in ids]
    refused_late = inside("wait", "last", *ids, "--timeout", "0")
    assert (refused_late.code, refused_late.out.count("cancelled")) == (124, 200)


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
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("args", [[], ["a", "--all"], ["a", "--timeout", "soon"], ["a", "--timeout", "-1"]])
def test_wait_says_what_it_wants(inside: Inside, args: list[str]) -> None:
    refused(inside("wait", *args), 2)


def test_an_unknown_job_is_not_waited_for(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    refused(inside("wait", "a", "nobody"), 6, "No job nobody")


@pytest.mark.parametrize("verb", ["cancel", "wait", "logs"])  # show, why: test_reading.py
def test_an_unknown_job_gets_the_nearest(inside: Inside, verb: str) -> None:
    inside("enqueue", "--id", "build", "--", "true")
    refused(inside(verb, "biuld"), 6, "No job biuld. Did you mean build?")
