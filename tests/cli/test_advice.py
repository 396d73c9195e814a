"""What is said where something is not right: in plain words, and no advice that would be refused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import runcue
from runcue.cli import detach, screen, worker
from runcue.cli.home import Home
from runcue.cli.jobs import ask
from runcue.stores.sqlite import schema
from tests.cli.conftest import Watch
from tests.cli.crew import QUEUECTL, Crew, environment
from tests.cli.inside import Inside, refused
from tests.patience import until_sync

# files of an older version --------------------------------------------------------------------------------


@pytest.fixture
def old(home: Path) -> Path:
    """A home whose queue the first version made, with a setting in it."""
    home.mkdir(mode=0o700)
    file = home / "queue.db"
    connection = apsw.Connection(str(file))
    connection.pragma("journal_mode", "wal")
    connection.execute(schema.MIGRATIONS[0]).fetchall()
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1")
    connection.execute("INSERT INTO config (key, value) VALUES ('log_limit', '1M')")
    connection.close()
    file.chmod(0o600)
    return home


@pytest.mark.parametrize("verb", ["status", "list", "config list", "worker list"])
def test_an_old_file_is_not_looked_at_and_who_mends_it_is_said(verb: str, inside: Inside, old: Path) -> None:
    refused(inside(*verb.split()), 4, "older runcue", "queuectl worker start, or any command that changes")


@pytest.mark.parametrize(
    "verb",
    [
        "enqueue -- true",
        "enqueue --key k -- true",
        "config set timeout 5",
        "pause default",
        "dlq retry --all",
        "service set a --rate 1/s",
    ],
)
def test_who_changes_something_brings_an_old_file_up_to_date(verb: str, inside: Inside, old: Path) -> None:
    assert inside(*verb.split()).code == 0
    assert inside("config", "get", "log-limit") == (0, "1M\n", "")


def test_a_worker_brings_an_old_file_up_to_date_and_heeds_its_settings(old: Path) -> None:
    assert worker._settings(Home(str(old))).log_limit == 1024 * 1024


def test_no_recovery_is_advised_for_what_is_no_damage(inside: Inside, old: Path) -> None:
    told = inside("doctor")
    assert told.code == 4
    assert "queuectl worker start" in told.out
    assert "--recover" not in told.out
    (old / "queue.db").unlink()
    connection = apsw.Connection(str(old / "queue.db"))
    connection.execute("CREATE TABLE notes (text)")
    connection.close()
    (old / "queue.db").chmod(0o600)
    told = inside("doctor")
    assert (told.code, "another application" in told.out) == (3, True)
    assert "--recover" not in told.out


def test_a_cue_that_only_asks_deletes_nothing(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside("config", "set", "retention", "0")
    opened: list[Any] = []
    real = runcue.Cue

    def cue(path: str, **options: Any) -> runcue.Cue:
        opened.append(options["retention"])
        return real(path, **options)

    monkeypatch.setattr(runcue, "Cue", cue)
    assert ask(Home(str(home)), lambda cue, settings: asyncio.sleep(0, settings.retention)) == 0
    assert opened == [None]


@pytest.mark.parametrize(
    "verb", ["status", "list", "config list", "doctor", "worker list", "dlq list", "wait --all"]
)
def test_an_empty_file_is_no_queue_yet(verb: str, inside: Inside, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "queue.db").touch(0o600)
    assert inside(*verb.split()).code == 0
    refused(inside("show", "a"), 6, "no jobs")


# what was typed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "word", "not_said"),
    [
        (["enqueue", '{"command": "true"}', "extra"], "'extra' is too much", "--"),
        (["enqueue", ""], "no JSON object such as", "put --"),
        (["enqueue", "[]"], "no JSON object such as", "put --"),
        (["enqueue", '"x"'], "no JSON object such as", "put --"),
        (["enqueue", "a b"], "queuectl enqueue --command 'a b'", "…"),
        (["enqueue", f"echo {'a' * 100} b"], f"queuectl enqueue --command 'echo {'a' * 100} b'\n", "argv"),
        (
            ["enqueue", f"echo {'a' * 200} b"],
            "To run a command, give it with --command.\n",
            "queuectl enqueue",
        ),
        (["enqueue", "echo a\nb"], "To run a command, give it with --command.\n", "queuectl enqueue"),
        (["enqueue", "cp", "a b", "c"], "queuectl enqueue -- cp 'a b' c\n", "…"),
        (["enqueue", "a" * 300, "b"], "To run a command, put -- before it.\n", "queuectl enqueue"),
        (["enqueue", "--"], "A program is missing after --", "argv"),
        (["enqueue", "--file", os.devnull], "holds no job", "Enqueued"),
        (["enqueue", "-"], "stdin holds no job", "Enqueued"),
        (["enqueue", "--env", "A=1", "--env", "A=2", "--", "true"], "given twice", "=1"),
        (["enqueue", "--bogus"], "No such option '--bogus'", "Did you mean"),
        (["enqueue", "--comand", "x"], "Did you mean '--command'?", "bogus"),
        (["service", "set", "a", "--rate", "abc"], "'60/min'", "("),
        (["config", "set", "backoff_base", "0"], "1,000,000", "e+06"),
        (["list", "--queue", "\udcff"], "no valid Unicode", "internal"),
    ],
)
def test_bad_input_gets_plain_words(args: list[str], word: str, not_said: str, inside: Inside) -> None:
    told = inside(*args)
    refused(told, 2, word)
    assert not_said not in told.err.replace("enqueue --help", "").replace("with --file", "")


def test_a_variable_may_be_said_twice_alike(inside: Inside) -> None:
    assert inside("enqueue", "--env", "A=1", "--env", "A=1", "--", "true").code == 0


@pytest.mark.parametrize("name", ["config", "dlq", "worker", "service"])
def test_a_family_without_a_verb_shows_its_help(name: str, inside: Inside) -> None:
    told = inside(name)
    assert (told.code, told.out) == (2, "")
    assert f"\nUsage: queuectl {name}" in told.err
    assert "\\n" not in told.err


def test_completion_without_a_shell_is_no_mistake_of_ours(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_QUEUECTL_COMPLETE", "bash_complete")
    monkeypatch.delenv("COMP_WORDS", raising=False)
    refused(inside(), 2, "COMP_WORDS")


def test_a_home_with_any_name_is_told_as_json(inside: Inside, tmp_path: Path) -> None:
    told = inside("--home", f"{tmp_path}/\udcff", "doctor", "--json")
    assert told.code == 0
    assert "\\\\xff" in told.out


def test_what_was_enqueued_is_said_even_where_nothing_can_be_printed(home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*QUEUECTL, "enqueue", "--id", "a", "--", "true"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(home),
            timeout=240,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr == "queuectl: Enqueued a, but that could not be printed: No space left on device.\n"


# advice ---------------------------------------------------------------------------------------------------


def test_a_dead_job_is_retried_with_what_it_runs_after(inside: Inside) -> None:
    lines = ['{"id": "a", "command": "false", "max_retries": 1}']
    lines += [f'{{"id": "{one}", "command": "true", "after": "{need}"}}' for one, need in ("ba", "cb")]
    assert inside("enqueue", input="\n".join(lines)).code == 0
    inside.work()
    assert inside("why", "c").out.endswith("Run them again: queuectl dlq retry a b c\n")
    assert inside("why", "a").out.endswith("Run it again: queuectl dlq retry a\n")
    assert inside("dlq", "retry", "a", "b", "c").out == "Requeued 3 jobs\n"
    inside.work()
    assert inside("dlq", "purge", "a", "--yes").code == 0
    for one in ("b", "c"):
        assert inside("why", one).out.endswith("enqueue it anew.\n")
        assert "enqueue it anew." in inside("show", one).out


def test_a_job_after_a_cancelled_one_has_to_be_enqueued_anew(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--delay", "1h", "--", "true")
    inside("enqueue", "--id", "b", "--after", "a", "--", "true")
    inside("cancel", "a")
    assert inside("why", "b").out.endswith("enqueue it anew.\n")


def test_names_in_advice_can_be_typed_as_they_stand(inside: Inside) -> None:
    refused(inside("enqueue", "--uses", "a b", "--", "true"), 6, "service set 'a b' --concurrent 1")
    refused(inside("enqueue", "--uses", "-a", "--", "true"), 6, "service set --concurrent 1 -- -a")
    inside("enqueue", "--queue", "-x y", "--id", "a", "--", "true")
    assert inside("pause", "--", "-x y").out.endswith("queuectl resume -- '-x y'\n")
    assert "queuectl resume -- '-x y'" in inside("why", "a").out
    assert "queuectl resume -- '-x y'" in inside("doctor").out
    assert inside("resume", "--", "-x y").code == 0


def test_the_numbers_of_a_circuit_are_said(inside: Inside) -> None:
    told = inside("service", "set", "a", "--circuit-threshold", "1", "--circuit-timeout", "2m")
    assert told.out == "Service a: rests 2 m after 1 failure in a row\n"
    assert inside("service", "list").out.endswith("\tready\n")


# workers --------------------------------------------------------------------------------------------------


def test_a_start_is_told_once() -> None:
    told: list[tuple[str, str]] = []
    cue: Any = SimpleNamespace(**dict.fromkeys(["on_start", "on_complete", "on_failure", "on_cancel"], id))
    voice: Any = SimpleNamespace(tell=lambda kind, text, job: told.append((job, text)))
    teller = worker._Teller(cue, voice)
    for job, attempt in (("a", 1), ("a", 1), ("a", 2), ("b", 1)):
        teller.began(SimpleNamespace(id=job, attempt=attempt))  # type: ignore[arg-type]
    assert told == [("a", "started"), ("a", "started, attempt 2"), ("b", "started")]


def test_a_stopped_worker_is_named_with_what_lets_it_go_on(home: Path) -> None:
    with Crew(home) as crew:
        supervisor = crew.start()
        [row] = crew.workers()
        pid = row["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            until_sync(lambda: "stopped" in crew.run("worker", "list").stdout, "the worker to stop")
            hint = f"kill -CONT {pid}"
            assert hint in crew.run("worker", "list").stderr
            assert hint in crew.run("doctor").stdout
            done = crew.run("worker", "stop", "--timeout", "0.1")
            assert (done.returncode, hint in done.stderr) == (124, True)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert supervisor.wait() == 0


def test_quietly_detached_workers_say_nothing_even_to_closed_streams(home: Path) -> None:
    with Crew(home) as crew:
        try:
            done = crew.run("worker", "start", "--detach", "-q")
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        finally:
            assert crew.run("worker", "stop").stdout == "Stopped 1 worker.\n"


def test_closed_streams_are_not_flushed_before_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(os, "fork", lambda: 1)
    child = detach.detached(tmp_path / "log")
    assert isinstance(child, detach.Child)
    os.close(child._process._ready)


# output ---------------------------------------------------------------------------------------------------


def test_what_is_missing_is_summed_up(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    gaps = [(10, 20), (30, 40), (2_000_000_050, 2_000_000_060)]
    pieces = [SimpleNamespace(data=b"x\n", start=start, end=end) for start, end in gaps]
    left = iter([*pieces, SimpleNamespace(data=b"")])
    starts: list[int] = []

    def output(reader: object, *args: object, start: int, **options: object) -> SimpleNamespace:
        starts.append(start)
        return next(left)

    monkeypatch.setattr(runcue.Reader, "output", output)
    monkeypatch.setattr("runcue.cli.commands.logs.TELL_EVERY", 3600.0)
    told = inside("logs", "a", "--stdout")
    assert told.err.splitlines() == [
        "(10 bytes of stdout are no longer kept)",
        "(2,000,000,030 bytes of stdout are no longer kept)",
    ]
    assert starts[-1] == 2_000_000_060


def test_an_attempt_that_was_not_yet(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    refused(inside("logs", "a", "--attempt", "2"), 6, "it has not run yet")
    inside.work()
    refused(inside("logs", "a", "--attempt", "2"), 6, "the last is 1")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("CommandFailed: signal:XFSZ", "killed by SIGXFSZ"),
        ("CommandFailed: signal:KILL: last words", "killed by SIGKILL: last words"),
        ("signal:34", "killed by signal 34"),
        ("exit code 1: \x1b[31mred\x1b[0m\x1b]0;title\x07 end\nmore", "exit code 1: red end"),
        ("exit code 1: cut\x1b[3", "exit code 1: cut"),
        ("\n\nlate", "late"),
        ("bell\x07", "bell\\x07"),
        ("\x1b[2J", "unknown"),
        (None, "unknown"),
    ],
)
def test_a_reason_is_one_harmless_line(error: str | None, shown: str) -> None:
    assert screen.reason_of(error) == shown


def test_a_narrow_list_has_no_stray_colour(on_terminal: Watch, inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    _, shown = on_terminal("--color", "always", "list", columns=24)
    assert shown.count("\x1b[0m") == shown.count("\x1b[1m") + shown.count("\x1b[36m")
    assert "\x1b[36m" in shown, "a shortened state keeps its colour"
