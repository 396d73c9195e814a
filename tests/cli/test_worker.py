"""`queuectl worker start`, `stop` and `list`, with real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import runcue
from runcue.cli import worker
from runcue.cli.commands.worker import command
from tests.cli.crew import Crew, end, gone
from tests.patience import BOUND, until_sync
from tests.stores.hands import take_back

GATED = 'echo "start $$" >> "{0}"; until test -e "{0}.open"; do sleep 0.05; done; echo "end $$" >> "{0}"'
"""A job that can be seen to run, and ends when somebody opens its gate."""


def open_gate(marks: Path) -> None:
    """Let that job end."""
    Path(f"{marks}.open").touch()


@pytest.mark.parametrize("count", ["-1", "abc", "65", "", "1.5", "0x2"])
def test_a_number_of_workers_that_cannot_be_is_refused(count: str) -> None:
    assert CliRunner().invoke(command, ["start", "--count", count]).exit_code == 2


def test_no_workers_and_too_many_are_refused_in_one_line(crew: Crew) -> None:
    for count in ("0", "10000"):
        done = crew.run("worker", "start", "--count", count)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not crew.home.exists()


def test_four_workers_run_each_of_200_jobs_exactly_once(crew: Crew, tmp_path: Path) -> None:
    file = tmp_path / "ran"
    crew.enqueue(*({"id": f"job{n}", "command": f'echo job{n} $PPID >> "{file}"'} for n in range(200)))
    supervisor = crew.start("--count", "4")
    crew.until_state("completed")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0
    lines = [line.split() for line in file.read_text().splitlines()]
    assert Counter(job for job, _ in lines) == {f"job{n}": 1 for n in range(200)}
    assert len({worker for _, worker in lines}) > 1
    assert supervisor.said().count("completed in") == 200


def test_one_worker_runs_as_many_jobs_at_a_time_as_it_is_told(crew: Crew, tmp_path: Path) -> None:
    marks = [tmp_path / f"marks{number}" for number in range(3)]
    crew.enqueue(
        *({"id": f"job{number}", "command": GATED.format(path)} for number, path in enumerate(marks))
    )
    supervisor = crew.start("--jobs", "2")
    until_sync(lambda: sum(path.exists() for path in marks) == 2, "two of them run")
    (row,) = json.loads(crew.run("worker", "list", "--json").stdout)
    assert (row["state"], sorted(row["jobs"])) == ("busy", ["job0", "job1"])
    assert row["job"] in row["jobs"]
    assert not marks[2].exists()
    for path in marks:
        open_gate(path)
    crew.until_state("completed")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0
    assert supervisor.said().count("completed in") == 3


def test_a_killed_worker_loses_all_its_jobs_and_they_run_again(crew: Crew, tmp_path: Path) -> None:
    marks = [tmp_path / f"marks{number}" for number in range(2)]
    crew.enqueue(
        *({"id": f"job{number}", "command": GATED.format(path)} for number, path in enumerate(marks))
    )
    supervisor = crew.start("--jobs", "2")
    until_sync(lambda: all(path.exists() for path in marks), "both run")
    (row,) = crew.workers()
    os.kill(row["pid"], signal.SIGKILL)
    until_sync(
        lambda: all(path.read_text().count("start") == 2 for path in marks), "both were started once more"
    )
    for path in marks:
        open_gate(path)
    crew.until_state("completed")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0
    assert [path.read_text().count("end") for path in marks] == [1, 1]
    assert {(job["attempts"], job["state"]) for job in crew.jobs().values()} == {(0, "completed")}


def test_a_killed_workers_job_runs_again_when_nothing_of_it_is_left(crew: Crew, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    crew.enqueue(
        {
            "id": "long",
            "command": f"""for old in $(cut -d" " -f2 "{marks}"); do
                             grep -q "^State:.[^Z]" /proc/$old/status && echo "overlap $old" >> "{marks}"
                           done
                           echo "start $$" >> "{marks}"
                           if ! test -e "{marks}.again"; then
                             sh -c 'trap "" TERM; echo "child $$" >> "{marks}"; sleep 60 & wait'
                           fi
                           echo "end $$" >> "{marks}"
                        """,
        },
        *({"id": f"short{n}", "command": "true"} for n in range(5)),
    )
    supervisor = crew.start("--count", "2")
    until_sync(lambda: marks.exists() and "child" in marks.read_text(), "the job starts")
    pids = [int(pid) for pid in marks.read_text().split()[1::2]]
    [victim] = [row for row in crew.workers() if row["id"] == crew.jobs()["long"]["worker_id"]]
    Path(f"{marks}.again").touch()
    end(victim["pid"])
    jobs = crew.until_state("completed")
    assert gone(pids)
    lines = marks.read_text().split()
    assert lines[0::2] == ["start", "child", "start", "end"]
    assert lines[1] != lines[5] == lines[7]
    assert jobs["long"]["attempts"] == 0
    supervisor.until("was killed by SIGKILL while it ran long. Another one starts in")
    until_sync(lambda: len(crew.workers()) == 2, "it is replaced")
    supervisor.signal(signal.SIGINT)
    assert supervisor.wait() == 0


def test_stop_lets_a_job_finish_and_a_later_start_just_works(crew: Crew, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    crew.enqueue({"id": "busy", "command": GATED.format(marks)}, {"id": "next", "command": "true"})
    supervisor = crew.start()
    until_sync(marks.exists, "the job starts")
    with crew.begun("worker", "stop") as stopping:
        assert stopping.stderr is not None
        assert stopping.stdout is not None
        assert stopping.stderr.readline() == "Waiting for 1 running job: busy\n"
        supervisor.until("Stopping when busy has ended.")
        open_gate(marks)
        assert stopping.stdout.read() == "Stopped 1 worker.\n"
        assert stopping.wait(BOUND) == 0
    assert supervisor.wait() == 0
    assert marks.read_text().split()[0::2] == ["start", "end"]
    jobs = crew.jobs()
    assert (jobs["busy"]["state"], jobs["next"]["state"]) == ("completed", "pending")
    assert crew.run("worker", "stop").stdout == "No worker is running.\n"
    again = crew.start()
    crew.until_state("completed")
    again.signal(signal.SIGTERM)
    assert again.wait() == 0


def test_stop_now_puts_jobs_back_without_counting_an_attempt(crew: Crew, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    crew.enqueue({"id": "busy", "command": GATED.format(marks)})
    supervisor = crew.start("--count", "2")
    until_sync(marks.exists, "the job starts")
    session = int(marks.read_text().split()[1])
    late = crew.run("worker", "stop", "--timeout", "0.2")
    assert late.returncode == 124
    assert " still there (busy)" in late.stderr
    done = crew.run("worker", "stop", "--now")
    assert done.returncode == 0
    assert done.stdout.startswith("Stopped ")
    assert supervisor.wait() == 130
    assert gone([session])
    job = crew.jobs()["busy"]
    assert (job["state"], job["attempts"]) == ("pending", 0)
    with crew.reading() as reader:
        work = reader.get("busy")
    assert work is not None
    assert work.attempt == 1
    assert "busy  put back" in supervisor.said()


def test_stop_where_nobody_ever_worked_says_so(crew: Crew) -> None:
    done = crew.run("worker", "stop")
    assert (done.returncode, done.stdout) == (0, "No worker is running.\n")
    assert not crew.home.exists()
    assert crew.run("worker", "stop", "--timeout", "soon").returncode == 2


def test_starts_run_side_by_side_and_disturb_nobody(crew: Crew, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    crew.enqueue({"id": "long", "command": GATED.format(marks)})
    first = crew.start()
    until_sync(marks.exists, "the job starts")
    second = crew.start("--count", "2")
    assert len(crew.workers()) == 3
    short = [f"job{n}" for n in range(10)]
    crew.enqueue(*({"id": id, "command": "true"} for id in short))
    crew.until_state("completed", *short)
    open_gate(marks)
    crew.until_state("completed")
    assert marks.read_text().split()[0::2] == ["start", "end"]
    done = crew.run("worker", "stop")
    assert done.stdout == "Stopped 3 workers.\n"
    assert (first.wait(), second.wait()) == (0, 0)


def test_a_worker_takes_only_jobs_of_its_queues(crew: Crew) -> None:
    crew.enqueue(
        {"id": "letter", "command": "true", "queue": "mail"},
        {"id": "print", "command": "true", "queue": "paper"},
        {"id": "other", "command": "true"},
    )
    supervisor = crew.start("--queue", "mail", "--queue", "paper")
    assert "Started 1 worker on mail, paper." in supervisor.said()
    crew.until_state("completed", "letter", "print")
    [row] = json.loads(crew.run("worker", "list", "--json").stdout)
    assert row["queues"] == ["mail", "paper"]
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0
    assert crew.jobs()["other"]["state"] == "pending"


def test_list_shows_who_works_on_what(crew: Crew, tmp_path: Path) -> None:
    assert crew.run("worker", "list", "--json").stdout == "[]\n"
    nobody = crew.run("worker", "list")
    assert (nobody.returncode, nobody.stdout) == (0, "")
    assert "No worker is running." in nobody.stderr
    crew.enqueue({"id": "busy", "command": f'touch "{tmp_path}/runs"; sleep 60'})
    supervisor = crew.start("--count", "2")
    until_sync((tmp_path / "runs").exists, "the job starts")
    rows = json.loads(crew.run("worker", "list", "--json").stdout)
    assert {tuple(row) for row in rows} == {("id", "pid", "host", "state", "since", "queues", "job", "jobs")}
    assert sorted((row["state"], row["job"]) for row in rows if row["state"] == "busy") == [("busy", "busy")]
    assert [row["queues"] for row in rows] == [None, None]
    lines = [line.split("\t") for line in crew.run("worker", "list").stdout.splitlines()]
    assert sorted(line[2:3] + line[4:] for line in lines) == [["busy", "all", "busy"], ["idle", "all", "-"]]
    supervisor.signal(signal.SIGQUIT)
    assert supervisor.wait() == 130


def test_detached_workers_go_on_by_themselves_until_they_are_stopped(crew: Crew) -> None:
    done = crew.run("worker", "start", "--count", "2", "--detach")  # returns: nobody holds its pipes
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Started 2 workers in the background, supervised by process ")
    assert "Stop: queuectl worker stop" in done.stderr
    log = crew.home / "worker.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert len(crew.workers()) == 2
    supervisor = int(done.stdout.split()[-1].rstrip("."))
    assert os.getsid(supervisor) == supervisor
    assert {Path(f"/proc/{supervisor}/fd/{n}").readlink() for n in (1, 2)} == {log}
    crew.enqueue({"id": "job", "command": "echo hello"})
    crew.until_state("completed")
    before = log.stat().st_ino
    assert crew.run("worker", "stop").stdout == "Stopped 2 workers.\n"
    until_sync(lambda: gone([supervisor]), "the supervisor ends")
    said = log.read_text()
    assert "job  completed in" in said
    assert "Stopped. 1 job completed." in said
    assert crew.run("worker", "start", "--detach", "--quiet").returncode == 0
    assert log.stat().st_ino == before
    assert log.read_text().startswith(said)
    assert crew.run("worker", "stop").returncode == 0


def test_detached_workers_that_cannot_start_say_why(crew: Crew) -> None:
    done = crew.run("worker", "start", "--detach", "--queue", "")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "queue" in done.stderr
    assert done.stderr.partition(": ")[2].strip() in (crew.home / "worker.log").read_text()
    assert crew.run("worker", "stop").stdout == "No worker is running.\n"


def test_a_detached_supervisor_that_dies_leaves_its_last_words(crew: Crew) -> None:
    crew.home.mkdir(mode=0o700)
    (crew.home / "supervisors").write_text("in the way")
    done = crew.run("worker", "start", "--detach")
    assert done.returncode == 3
    first, last = done.stderr.splitlines()
    assert "supervisors" in first
    assert last == f"queuectl: The workers did not start. Log: {crew.home}/worker.log"


def test_workers_bring_the_file_of_an_older_version_to_this_one(crew: Crew) -> None:
    crew.enqueue({"id": "job", "command": "true"})
    take_back(crew.database, 1)
    supervisor = crew.start()
    crew.until_state("completed")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0


def test_a_worker_opens_the_queue_once_with_the_settings_that_are_kept(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.enqueue({"id": "job", "command": "true"})
    assert crew.run("config", "set", "log-limit", "1M").returncode == 0
    opened: list[dict[str, Any]] = []
    real = runcue.Cue

    def cue(path: str, **options: Any) -> runcue.Cue:
        opened.append(options)
        return real(path, **options)

    monkeypatch.setattr(runcue, "Cue", cue)
    reading, writing = os.pipe()
    try:
        worker._cue(worker.Orders(home=str(crew.home)), worker.Voice(writing))
    finally:
        os.close(reading)
        os.close(writing)
    assert [options["output_limit"] for options in opened] == [1024 * 1024]


def test_a_damaged_setting_stops_nobody(crew: Crew) -> None:
    import apsw

    crew.enqueue({"id": "job", "command": "true"})
    connection = apsw.Connection(str(crew.database))
    connection.execute(
        "INSERT OR REPLACE INTO config (key, value) VALUES ('retention', 'soon'), ('log_limit', '')"
    )
    connection.close()
    supervisor = crew.start()
    crew.until_state("completed")
    assert "The setting retention is damaged" in supervisor.said()
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda home: (home / "queue.db").write_bytes(b"x" * 8192), 3),
        (lambda home: (home / "queue.db").mkdir(), 4),
        (lambda home: home.chmod(0o777), 4),
    ],
    ids=["no queue", "a directory", "others may write"],
)
def test_a_home_that_cannot_be_used_is_said_in_one_line(crew: Crew, make: object, code: int) -> None:
    crew.home.mkdir(mode=0o700)
    assert callable(make)
    make(crew.home)
    for args in (["start"], ["start", "--detach"], ["stop"]):
        done = crew.run("worker", *args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
