"""The five things that everybody tries first, as a person would."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.cli.crew import Crew


def test_a_job_completes(crew: Crew) -> None:
    assert crew.run("enqueue", '{"id": "job1", "command": "echo hello"}').returncode == 0
    supervisor = crew.start()
    waited = crew.run("wait", "job1")
    assert waited.returncode == 0, waited.stderr
    assert crew.run("logs", "job1").stdout == "hello\n"
    supervisor.signal(signal.SIGINT)
    assert supervisor.wait() == 0


def test_a_failing_job_is_retried_lands_in_the_dlq_and_can_be_retried(crew: Crew, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    assert crew.run("config", "set", "backoff_base", "0.5").returncode == 0
    crew.enqueue({"id": "bad", "command": f'echo no luck >&2; test -e "{mended}"', "max_retries": 3})
    supervisor = crew.start()
    job = crew.until_state("dead")["bad"]
    assert (job["attempts"], job["max_retries"]) == (3, 3)
    assert "no luck" in job["last_error"]
    with crew.reading() as reader:
        work = reader.get("bad")
    assert work is not None
    first, second, third = (attempt.at or 0.0 for attempt in work.history)
    assert second - first >= 0.5
    assert third - second >= 0.25
    assert "bad" in crew.run("dlq", "list").stdout
    said = supervisor.said()
    assert "bad  failed: exit code 1: no luck; retry 2/3 in" in said
    assert "bad  dead: exit code 1: no luck" in said
    mended.touch()
    assert crew.run("dlq", "retry", "bad").returncode == 0
    crew.until_state("completed")


def test_several_workers_never_run_one_job_twice(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(*({"command": f'echo {n} >> "{tmp_path}/ran"'} for n in range(40)))
    crew.start("--count", "2")
    crew.start("--count", "1")
    crew.until_state("completed")
    assert sorted((tmp_path / "ran").read_text().split(), key=int) == [str(n) for n in range(40)]


def test_a_wrong_command_fails_gracefully(crew: Crew) -> None:
    crew.enqueue(
        {"id": "wrong", "command": "nosuchcommand --at-all", "max_retries": 1},
        {"id": "nowhere", "argv": ["/no/such/program"], "max_retries": 1},
        {"id": "fine", "command": "true"},
    )
    crew.start()
    jobs = crew.until_state("completed", "fine")
    jobs = crew.until_state("dead", "wrong", "nowhere")
    assert "127" in jobs["wrong"]["last_error"]
    assert "not found" in jobs["nowhere"]["last_error"]


def test_everything_survives_a_restart(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(
        {"id": "first", "command": f'touch "{tmp_path}/first"'},
        {"id": "second", "command": "true", "after": ["first"], "queue": "later"},
        {"id": "dead", "command": "false", "max_retries": 1},
    )
    supervisor = crew.start("--queue", "default")
    crew.until_state("completed", "first")
    crew.until_state("dead", "dead")
    supervisor.signal(signal.SIGKILL)
    supervisor.wait()
    jobs = crew.jobs()
    assert {id: job["state"] for id, job in jobs.items()} == {
        "first": "completed",
        "second": "pending",
        "dead": "dead",
    }
    crew.start()
    crew.until_state("completed", "first", "second")
    assert crew.jobs()["dead"] == jobs["dead"]
