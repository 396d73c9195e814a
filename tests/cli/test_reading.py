"""The verbs that read: status, list, show, why, doctor, completion."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import apsw
import msgspec
import pytest

import runcue
from runcue.cli import main
from runcue.cli.reasons import Crew, label, sentence, short
from tests.cli.conftest import Run, Watch
from tests.cli.crew import QUEUECTL, environment
from tests.cli.crew import Crew as Workers
from tests.cli.stock import NASTY, STATES
from tests.cli.test_matrix import a_directory, a_fifo, newer, of_another_application
from tests.patience import BOUND

COLUMNS = [
    "id", "command", "state", "attempts", "max_retries", "priority", "created_at", "updated_at", "next_run_at",
    "last_error", "worker_id",
]  # fmt: skip

Said = tuple[int, str, str]
Invoke = Callable[..., Said]


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """`invoke(home, "list")`: the program in this process; exit code, stdout, stderr."""

    def run(home: Path, *args: str) -> Said:
        for name in ("NO_COLOR", "CLICOLOR_FORCE", "QUEUECTL_DEBUG"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(sys, "argv", ["queuectl", "--home", str(home), *args])
        with pytest.raises(SystemExit) as ended:
            main.queuectl()
        said = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def data(said: Said) -> Any:
    code, out, err = said
    assert (code, err) == (0, "")
    return msgspec.json.decode(out)


def copy(stock: Path, home: Path) -> Path:
    """The queue, to be damaged."""
    shutil.copytree(stock, home)
    connection = apsw.Connection(str(home / "queue.db"))
    connection.pragma("wal_checkpoint", "TRUNCATE")
    connection.close()
    return home


# list -----------------------------------------------------------------------------------------------------


def test_list_prints_the_rows_of_the_jobs_view(invoke: Invoke, stock: Path, tmp_path: Path) -> None:
    rows = data(invoke(stock, "list", "--json"))
    assert {row["id"]: row["state"] for row in rows} == STATES
    assert all(list(row) == COLUMNS for row in rows)
    connection = apsw.Connection(str(copy(stock, tmp_path / "copy") / "queue.db"))
    seen = [dict(zip(COLUMNS, row, strict=True)) for row in connection.execute("SELECT * FROM jobs")]
    connection.close()
    assert sorted(seen, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("state", sorted(set(STATES.values())))
def test_list_by_state(state: str, invoke: Invoke, stock: Path) -> None:
    rows = data(invoke(stock, "list", "--state", state, "--json"))
    assert {row["id"] for row in rows} == {id for id, one in STATES.items() if one == state}


def test_list_by_queue_and_number_newest_first(invoke: Invoke, stock: Path) -> None:
    assert [row["id"] for row in data(invoke(stock, "list", "--queue", "mail", "--json"))] == ["held"]
    code, out, _ = invoke(stock, "list", "--limit", "2", "--json")
    assert (code, [row["id"] for row in msgspec.json.decode(out)]) == (0, ["held", "limited"])
    code, out, _ = invoke(stock, "list", "--limit", "2")
    assert (code, [line.split("\t")[0] for line in out.splitlines()]) == (0, ["held", "limited"])


def test_list_says_why_jobs_wait(invoke: Invoke, stock: Path) -> None:
    code, out, err = invoke(stock, "list")
    assert (code, err) == (0, "")
    said = {line.split("\t")[0]: line.split("\t")[5] for line in out.splitlines()}
    assert re.fullmatch(r"retry 2/3 in \d+ m( \d+ s)?: RuntimeError: exit code 1: boom", said["again"])
    assert re.fullmatch(r"scheduled, \d+ m( \d+ s)?|scheduled, 1 h", said["later"])
    assert said["orphan"] == "after 1/2, 1 never submitted"
    assert re.fullmatch(r"rate api, \d+ m( \d+ s)?|rate api, 1 h", said["limited"])
    assert said["held"] == "queue paused"
    assert said["dead1"] == "RuntimeError: exit code 1: boom"
    assert said["done"] == said["stuck"] == said["dropped"] == ""


def test_an_empty_list(invoke: Invoke, stock: Path, home: Path) -> None:
    assert data(invoke(home, "list", "--json")) == []
    assert invoke(home, "list") == (0, "", "No jobs yet. Start with: queuectl enqueue -- echo hello\n")
    assert invoke(stock, "list", "--queue", "nothing") == (0, "", "No such jobs.\n")
    assert data(invoke(stock, "list", "--queue", "x'; DROP TABLE work_units --", "--json")) == []


# show and why ---------------------------------------------------------------------------------------------


def test_show_prints_the_row_and_more(invoke: Invoke, stock: Path) -> None:
    found = data(invoke(stock, "show", "again", "--json"))
    assert list(found)[: len(COLUMNS)] == COLUMNS
    assert found["queue"] == "default"
    assert found["cwd"] == "/"
    assert found["backoff_base"] == 3000
    assert [one["attempt"] for one in found["history"]] == [1]
    assert found["history"][0]["error"] == "RuntimeError: exit code 1: boom"
    assert data(invoke(stock, "show", "orphan", "--json"))["after"] == ["done", "ghost"]
    assert data(invoke(stock, "show", "done", "--json"))["exit_code"] == 0


def test_values_of_the_environment_are_never_shown(invoke: Invoke, stock: Path) -> None:
    for id in STATES:
        for more in ((), ("--json",)):
            code, out, err = invoke(stock, "show", id, *more)
            assert code == 0, err
            assert "TOKEN" in out
            assert "***" in out
            assert "canary" not in out + err


def test_show_is_readable(invoke: Invoke, stock: Path) -> None:
    code, out, _ = invoke(stock, "show", "again")
    assert code == 0
    assert out.startswith("again  failed\nagain failed 1 of 3 times, and is tried again in ")
    assert "\ncommand     fail\n" in out
    assert "\nFailed attempts\n" in out


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("done", "has completed"),
        (
            "dead1",
            "is dead: its only attempt failed: RuntimeError: exit code 1: boom. Run it again: queuectl dlq",
        ),
        ("again", "tried again in"),
        ("later", "is not due yet: it runs in"),
        ("orphan", "waits for: ghost. Enqueue what is missing"),
        ("limited", "waits for the rate limit of api for another"),
        ("limited", "Change it: queuectl service set api --rate …"),
        ("held", "the queue mail is paused. Go on: queuectl resume mail"),
        ("stuck", "is running now"),
        ("dropped", "was cancelled"),
    ],
)
def test_why_says_what_and_what_to_do(id: str, words: str, invoke: Invoke, stock: Path) -> None:
    code, out, err = invoke(stock, "why", id)
    assert (code, err) == (0, "")
    assert out.startswith(f"{id} ")
    assert words in out
    assert out.count("\n") == 1
    if STATES[id] in {"pending", "failed"}:
        assert "No worker is running: queuectl worker start" in out


def test_why_as_data(invoke: Invoke, stock: Path) -> None:
    found = data(invoke(stock, "why", "later", "--json"))
    assert found["id"] == "later"
    assert found["state"] == "pending"
    assert found["reason"] == "scheduled"
    assert 0 < found["seconds"] <= 3600
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["until"])
    assert data(invoke(stock, "why", "orphan", "--json"))["waits_for"] == ["ghost"]


@pytest.mark.parametrize("verb", ["show", "why"])
def test_an_unknown_job_gets_the_nearest(verb: str, invoke: Invoke, stock: Path, home: Path) -> None:
    code, out, err = invoke(stock, verb, "limted")
    assert (code, out) == (6, "")
    assert err == "queuectl: No job limted. Did you mean limited?\n"
    assert invoke(stock, verb, "zzzzzz")[2] == "queuectl: No job zzzzzz. See them: queuectl list\n"
    assert invoke(home, verb, "x")[0] == 6


@pytest.mark.parametrize(
    "id",
    [
        "../../etc/passwd",
        "..",
        ".",
        "/abs",
        "a/b",
        "",
        "x" * 10_000,
        "a ",
        "%2e%2e",
        "a\n",
        "\x1b[2J",
        "\u202ea",
        "ä",
    ],
)
def test_what_is_no_id_is_refused(id: str, invoke: Invoke, stock: Path) -> None:
    for verb in ("show", "why"):
        code, out, err = invoke(stock, verb, id)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert err.rstrip("\n").isprintable()
        assert len(err) < 300


def explained(reason: str, **more: Any) -> runcue.Explanation:
    return runcue.Explanation("job1", runcue.WorkState.PENDING, reason, **more)


JOB = {"id": "job1", "state": "pending", "attempts": 1, "max_retries": 3, "last_error": "boom"}
WORKER = {"serving": True, "state": "alive", "queues": None, "running": 0}
BUSY = {**WORKER, "running": 1}


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (explained("rate", service="openai", until=112.0), "rate openai, 12 s"),
        (explained("rate", service="openai"), "rate openai"),
        (explained("retry", until=108.0), "retry 2/3 in 8 s"),
        (explained("retry", until=99.0), "retry 2/3 in 0 s"),
        (explained("dependency", details="2/5 satisfied", waits_for=("a", "b", "c")), "after 2/5"),
        (explained("dependency", details="0/1 satisfied", waits_for=("build",)), "after build"),
        (
            explained("dependency", details="0/1 satisfied, 1 never submitted", waits_for=("ghost",)),
            "after 0/1, 1 never submitted",
        ),
        (explained("circuit", service="ssh", details="open", until=350.0), "circuit ssh open, 4 m 10 s"),
        (explained("concurrency", service="api", details="2/2 running"), "concurrency api, 2/2 running"),
        (explained("paused", service="api"), "paused api"),
        (explained("paused", details="queue 'mail'"), "queue paused"),
        (explained("throttled", service="api", until=130.0), "throttled api, 30 s"),
        (explained("scheduled", until=7600.0), "scheduled, 2 h 5 m"),
        (explained("not_ready", details="is_ready has not said yes"), "not ready"),
        (explained("overdue"), "its last run has not ended"),
    ],
)
def test_what_holds_a_job_back_in_few_words(why: runcue.Explanation, text: str) -> None:
    assert short(why, JOB, 100.0, Crew([WORKER])) == text
    assert sentence(why, JOB, 100.0, Crew([WORKER]), "mail").startswith("job1 ")


@pytest.mark.parametrize("reason", ["ready", "order", "not_started", "max_running", "unknown_task"])
@pytest.mark.parametrize(
    ("workers", "text", "words"),
    [
        ([], "no worker", "no worker is running. Start one"),
        ([{**WORKER, "state": "gone"}], "no worker", "no worker is running"),
        ([{**WORKER, "serving": False}], "no worker", "no worker is running"),
        ([{**WORKER, "queues": ["mail"]}], "no worker for queue default", "worker start --queue default"),
        ([WORKER, BUSY], "starts now", "starts in a moment"),
        ([BUSY], "workers busy", "the only worker is busy"),
        ([BUSY, BUSY], "workers busy", "all 2 workers are busy"),
        (
            [BUSY, {**WORKER, "queues": ["mail"]}],
            "workers busy",
            "the only worker of the queue default is busy. Start more: queuectl worker start --queue default",
        ),
        ([BUSY, {**WORKER, "queues": ["mail", "default"]}], "starts now", "starts in a moment"),
    ],
)
def test_a_job_that_only_waits_for_a_worker_says_so(
    reason: str, workers: list[dict[str, Any]], text: str, words: str
) -> None:
    crew = Crew(workers)
    assert short(explained(reason), JOB, 100.0, crew, "default") == text
    assert words in sentence(explained(reason), JOB, 100.0, crew, "default")


def test_a_job_that_is_older_than_thousands_knows_its_queue(invoke: Invoke, home: Path) -> None:
    with Workers(home) as crew:
        crew.enqueue({"id": "old", "command": "true", "queue": "paper"})
        crew.enqueue(*({"command": "true", "queue": "post"} for _ in range(10_001)))
        crew.start("--queue", "mail")
        _, out, _ = invoke(home, "list", "--queue", "paper")
    assert out.split("\t")[-1] == "no worker for queue paper\n"


def test_reasons_sum_up_without_their_numbers() -> None:
    assert label("rate openai, 12 s") == "rate openai"
    assert label("retry 2/3 in 8 s") == "retry"
    assert label("after 2/5, 1 never submitted") == label("after build") == "after other jobs"
    assert label("no worker") == "no worker"


# status ---------------------------------------------------------------------------------------------------


def test_status_of_nothing_is_zeros_and_the_next_command(invoke: Invoke, home: Path) -> None:
    found = data(invoke(home, "status", "--json"))
    assert found["jobs"] == dict.fromkeys(
        ["pending", "processing", "completed", "failed", "dead", "cancelled"], 0
    )
    assert found["workers"] == found["services"] == []
    code, out, err = invoke(home, "status")
    assert (code, err) == (0, "")
    assert "0 pending" in out
    assert "queuectl enqueue" in out


def test_status_as_data(invoke: Invoke, stock: Path) -> None:
    found = data(invoke(stock, "status", "--json"))
    states = list(STATES.values())
    assert found["jobs"] == {state: states.count(state) for state in found["jobs"]}
    assert [one["state"] for one in found["workers"]] == ["gone"]
    assert found["paused"] == ["mail"]
    services = {one["name"]: one for one in found["services"]}
    assert services["api"]["blocked"] == "rate"
    assert services["api"]["rates"] == [{"rate": "1/h", "used": 1, "limit": 1}]
    assert services["down"]["circuit"] == "open"
    waiting = {one["reason"]: one["jobs"] for one in found["waiting"]}
    assert waiting == {"retry": 1, "scheduled": 1, "after other jobs": 1, "rate api": 1, "queue paused": 1}
    assert {job["id"] for job in found["failures"]} == {"dead1", "nasty", "broken", "again"}


def test_status_fits_one_screen(on_terminal: Watch, stock: Path) -> None:
    code, shown = on_terminal("status", env={"QUEUECTL_HOME": str(stock), "NO_COLOR": "1"})
    lines = shown.splitlines()
    assert code == 0
    assert len(lines) <= 24
    assert lines[0].startswith(
        "Jobs    4 pending · 1 processing · 1 completed · 1 failed · 3 dead · 1 cancelled"
    )
    assert lines[1] == "Workers none · 1 died (what it ran is run again)"
    assert any(line.startswith("SERVICE") for line in lines)
    assert "queuectl worker start" in lines[-1]


def test_status_watch_draws_until_ctrl_c(stock: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*QUEUECTL, "status", "--watch"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment(stock, {"TERM": "xterm"}),
    )
    os.close(theirs)
    shown = b""
    try:
        while b"LAST FAILURES" not in shown:
            piece = os.read(ours, 65536)
            assert piece
            shown += piece
        child.send_signal(signal.SIGINT)
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # the other side is closed
            shown += b""
        assert child.wait(BOUND) == 130
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1
    assert shown.index(b"\x1b[?1049l") < shown.rindex(b"LAST FAILURES"), "the last picture stays"
    assert b"Traceback" not in shown


def test_status_watch_as_data_is_a_line_for_each_change(stock: Path) -> None:
    child = subprocess.Popen(
        [*QUEUECTL, "status", "--watch", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(stock),
    )
    try:
        assert child.stdout is not None
        first = msgspec.json.decode(child.stdout.readline())
        child.send_signal(signal.SIGINT)
        rest, err = child.communicate(timeout=BOUND)
    finally:
        child.kill()
        child.wait()
    assert first["jobs"]["pending"] == 4
    assert (rest, err, child.returncode) == (b"", b"", 130)


# terminals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [["list"], ["show", "nasty"], ["why", "nasty"], ["status"], ["list", "--json"]]
)
def test_nothing_of_a_job_is_obeyed_by_a_terminal(args: list[str], on_terminal: Watch, stock: Path) -> None:
    code, shown = on_terminal(*args, columns=400, env={"QUEUECTL_HOME": str(stock), "NO_COLOR": "1"})
    assert code == 0
    assert "over [/bold]" in shown
    assert [sign for sign in shown if not sign.isprintable() and sign not in "\n\t"] == []
    if "--json" in args:
        assert any(NASTY in row["command"] for row in msgspec.json.decode(shown))


@pytest.mark.parametrize("verb", ["list", "status", "doctor", "config"])
def test_twenty_columns_are_enough(verb: str, on_terminal: Watch, stock: Path) -> None:
    args = ["config", "list"] if verb == "config" else [verb]
    code, shown = on_terminal(*args, columns=20, env={"QUEUECTL_HOME": str(stock), "NO_COLOR": "1"})
    assert code == 0
    assert shown.strip()
    if verb in {"list", "config"}:
        assert max(map(len, shown.splitlines())) <= 20


# doctor ---------------------------------------------------------------------------------------------------


def test_doctor_names_what_is_stuck_and_what_to_do(invoke: Invoke, stock: Path) -> None:
    found = data(invoke(stock, "doctor", "--json"))
    assert found["healthy"] is True
    assert set(found["versions"]) == {"runcue", "python", "sqlite", "schema"}
    said = {one["what"]: one for one in found["findings"]}
    for words in (
        "1 job ran under a worker that is gone",
        "5 jobs wait and no worker is running",
        "Jobs wait in the queue mail, which is paused",
        "1 job cannot run, being after jobs that were never enqueued: orphan",
        "The circuit of down is open: its jobs kept failing",
    ):
        assert said[words]["level"] == "warning"
        assert said[words]["advice"]
    code, out, err = invoke(stock, "doctor")
    assert (code, err) == (0, "")
    assert "5 things need attention" in out


@pytest.mark.parametrize("name", ["home", "a home"])
def test_doctor_finds_a_home_that_others_may_use(
    invoke: Invoke, stock: Path, tmp_path: Path, name: str
) -> None:
    home = tmp_path / name
    copy(stock, home)
    home.chmod(0o755)
    code, out, _ = invoke(home, "doctor")
    assert code == 0
    assert f"chmod 700 {quote(str(home))}" in out
    home.chmod(0o777)
    code, out, _ = invoke(home, "doctor")
    assert code == 4
    assert f"chmod go-w {quote(str(home))}" in out


def test_what_lies_beside_the_queue_and_is_open_to_others_is_refused(
    invoke: Invoke, stock: Path, home: Path
) -> None:
    log = copy(stock, home) / "queue.db-wal"
    log.touch()
    log.chmod(0o666)
    for verb in ("list", "doctor"):
        code, out, err = invoke(home, verb)
        assert code == 4
        assert "Other users may write to" in out + err
        assert "chmod go-w" in out + err
    assert invoke(home, "--insecure", "list")[0] == 0


def test_doctor_finds_a_miscounted_file(invoke: Invoke, stock: Path, home: Path) -> None:
    connection = apsw.Connection(str(copy(stock, home) / "queue.db"))
    connection.execute("UPDATE head SET pending = pending + 5")
    connection.close()
    code, out, _ = invoke(home, "doctor")
    assert code == 3
    assert "problem" in out
    assert "queuectl doctor --recover" in out


def test_recovery_asks_first(queuectl: Run, home: Path, stock: Path) -> None:
    assert queuectl("doctor", "--recover").returncode == 6
    copy(stock, home)
    said = queuectl("doctor", "--recover")
    assert said.returncode == 2
    assert "--yes" in said.stderr


class Rescue(msgspec.Struct):
    """What a recovery that was asked for says, without doing anything."""

    kept_as: str
    forced: bool
    tables: dict[str, int]
    lost: dict[str, int]
    problems: tuple[str, ...] = ("page 3 cannot be read",)


def test_recovery_says_what_was_kept_and_lost(
    invoke: Invoke, stock: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recover(path: str, *, force: bool, insecure: bool) -> Rescue:
        return Rescue(f"{path}.damaged", force, {"work_units": 3, "events": 0, "head": 1}, {"work_units": 1})

    monkeypatch.setattr(runcue, "recover", recover, raising=False)
    copy(stock, home)
    code, out, err = invoke(home, "doctor", "--recover", "--yes")
    assert (code, err) == (0, "page 3 cannot be read\n")
    assert out == (
        f"Kept: jobs 3.\nLost: jobs 1.\nThe damaged file is still there: {home / 'queue.db.damaged'}\n"
    )
    assert data(invoke(home, "doctor", "--recover", "--yes", "--json"))["forced"] is False
    connection = apsw.Connection(str(home / "queue.db"))
    connection.execute("UPDATE head SET pending = pending + 5")
    connection.close()
    assert data(invoke(home, "doctor", "--recover", "--yes", "--json"))["forced"] is True


# damaged, newer, busy files -------------------------------------------------------------------------------


def _garbage(file: Path) -> None:
    file.write_bytes(b"this is no database" * 100)


def _hole(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(os.urandom(file.stat().st_size - 4096))


READING = [["status"], ["list"], ["show", "done"], ["why", "done"], ["config", "list"], ["config", "get", "timeout"],
           ["config", "set", "timeout", "5"], ["doctor"]]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "code"),
    [(_garbage, 3), (_hole, 3), (newer, 4), (of_another_application, 3), (a_directory, 4), (a_fifo, 4)],
)
@pytest.mark.parametrize("args", READING, ids=" ".join)
def test_a_file_that_cannot_be_read_is_one_line_and_its_code(
    args: list[str], spoil: Callable[[Path], None], code: int, invoke: Invoke, stock: Path, home: Path
) -> None:
    spoil(copy(stock, home) / "queue.db")
    ended, out, err = invoke(home, *args)
    assert ended == code, err
    assert "Traceback" not in out + err
    if args == ["doctor"]:
        assert "problem " in out
    else:
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("queuectl: ")


@pytest.mark.parametrize("args", READING, ids=" ".join)
def test_no_verb_fails_where_there_is_no_queue(args: list[str], invoke: Invoke, home: Path) -> None:
    code, _, err = invoke(home, *args)
    assert code == (6 if args[0] in {"show", "why"} else 0)
    assert err.count("\n") <= 1


def test_reading_does_not_wait_for_whoever_writes(invoke: Invoke, stock: Path, home: Path) -> None:
    connection = apsw.Connection(str(copy(stock, home) / "queue.db"))
    try:
        connection.execute("BEGIN EXCLUSIVE; UPDATE head SET pending = pending")
        for args in (["status"], ["list"], ["show", "done"], ["why", "done"], ["config", "list"], ["doctor"]):
            assert invoke(home, *args)[0] == 0
    finally:
        connection.close()


# completion -----------------------------------------------------------------------------------------------


def completed(home: Path, *words: str) -> list[str]:
    line = {"COMP_WORDS": " ".join(("queuectl", *words)), "COMP_CWORD": str(len(words))}
    said = subprocess.run(
        QUEUECTL,
        capture_output=True,
        text=True,
        env=environment(home, {"_QUEUECTL_COMPLETE": "bash_complete", **line}),
        timeout=BOUND,
        check=False,
    )
    assert said.stderr == ""
    return [one.partition(",")[2] for one in said.stdout.split()]


def test_ids_names_states_and_settings_are_completed(stock: Path, home: Path) -> None:
    assert completed(stock, "show", "l") == ["later", "limited"]
    assert completed(stock, "list", "--queue", "m") == ["mail"]
    assert completed(stock, "list", "--state", "c") == ["completed", "cancelled"]
    assert completed(stock, "config", "get", "max-") == ["max_retries", "max_delay"]
    assert completed(stock, "sta") == ["status"]
    assert completed(home, "show", "l") == []


def test_completion_is_silent_about_a_damaged_queue(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "queue.db").write_bytes(b"garbage")
    assert completed(home, "show", "l") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, invoke: Invoke, home: Path) -> None:
    code, out, err = invoke(home, "completion", shell)
    assert (code, err) == (0, "")
    assert f"_QUEUECTL_COMPLETE={shell}_complete" in out
    assert invoke(home, "completion", "tcsh")[0] == 2
