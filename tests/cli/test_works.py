"""The verbs of `runcue` on the file of a queue, but for the live screen."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import apsw
import httpx
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

import runcue
from runcue.cli import screen
from runcue.cli.commands import appdemo
from runcue.cli.commands.status import _watch
from runcue.cli.commands.why import explained
from runcue.cli.main import RUNCUE, program
from runcue.cli.place import File
from runcue.cli.reasons import Crew, sentence
from runcue.cli.words import RUNCUE as WORDS
from runcue.stores.presence import presence
from tests.cli.crew import RUNCUE as PROGRAM
from tests.cli.crew import environment
from tests.cli.inside import Told
from tests.cli.works import CANARY, STATES, Inside, refused
from tests.patience import BOUND, until_sync

READING = ["status", "list", "show done", "explain limited"]
CHANGING = ["pause api", "resume api", "set api --rate 5/s", "retry broken", "cancel later"]
VERBS = [verb for table in RUNCUE.values() for verb in table]
PROGRAM_TEXT = (
    "import sys; sys.argv = ['runcue', {verb!r}, {file!r}]; from runcue.cli.main import runcue; runcue()"
)
ON_TERMINAL = (
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, '-c', {text!r}])))"
)


@pytest.fixture
def inside(
    works: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Inside:
    for file in works.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    return Inside(tmp_path / "queue.db", monkeypatch, capsys)


def data(told: Told) -> Any:
    assert (told.code, told.err) == (0, ""), told
    return json.loads(told.out)


# help -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help_with_an_example(name: str) -> None:
    said = CliRunner().invoke(program("runcue"), [name, "--help"], prog_name="runcue")
    assert said.exit_code == 0, said.output
    assert f"runcue {name}" in said.output
    assert said.output.index("Examples:") < said.output.index("Options:")
    assert "queuectl" not in said.output


def test_a_wrong_verb_gets_the_right_one(inside: Inside) -> None:
    refused(inside.run("statsu", "queue.db"), 2, "Did you mean 'status'?")


def test_a_queue_that_others_may_write_to_is_refused(inside: Inside) -> None:
    inside.file.chmod(0o622)
    refused(inside("status"), 4, "chmod go-w")
    refused(inside("pause", "api"), 4, "chmod go-w")


def test_a_wrong_option_gets_the_right_one(inside: Inside) -> None:
    refused(inside("list", "--serch", "x"), 2, "Did you mean '--search'?")


# looking ----------------------------------------------------------------------------------------------------


def test_status_shows_counts_reasons_services_and_failures(inside: Inside) -> None:
    told = inside("status")
    assert told.code == 0
    for words in (
        "Units   6 pending · 1 running · 1 completed · 3 failed · 1 cancelled", "Paused  queue mail",
        "1 rate api", "1 circuit depot open", "1 retry (next in ", "1 after other units", "0 of 200,000 tokens",
        "parcel", "ConnectionError: no route to host", "no worker is running",
    ):  # fmt: skip
        assert words in told.out, words


def test_status_is_an_object_too(inside: Inside) -> None:
    found = data(inside("status", "--json"))
    assert found["units"] == {"pending": 6, "running": 1, "completed": 1, "failed": 3, "cancelled": 1}
    assert {one["name"] for one in found["services"]} == {"api", "depot"}
    assert found["paused"] == ["mail"]
    assert sum(one["units"] for one in found["waiting"]) == 6


def test_list_shows_every_work_and_why_it_waits(inside: Inside) -> None:
    rows = {line.split("\t")[0]: line.split("\t") for line in inside("list").out.splitlines()}
    assert {id: row[1] for id, row in rows.items()} == STATES
    assert rows["limited"][-1].startswith("rate api")
    assert rows["held"][-1] == "queue paused"
    assert rows["orphan"][-1] == "after 1/2, 1 never submitted"
    assert rows["again"][2] == "1/3"
    assert rows["done"][4] == "call out/done.json"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--state", "failed"], {"broken", "nasty", "parcel"}), (["--task", "ship"], {"parcel", "parcel-2"}),
        (["--queue", "mail"], {"held"}), (["--service", "api"], {"done", "limited"}),
        (["--search", "no route"], {"parcel"}), (["--state", "pending", "--task", "call"], {"limited"}),
        (["--search", "nothing has this"], set()),
    ],
)  # fmt: skip
def test_list_keeps_to_what_is_asked_for(inside: Inside, options: list[str], ids: set[str]) -> None:
    assert {row["id"] for row in data(inside("list", "--json", *options))} == ids


def test_a_list_that_was_cut_says_so(inside: Inside) -> None:
    told = inside("list", "--limit", "2")
    assert told.out.count("\n") == 2
    assert "more than these 2" in told.err


def test_a_row_as_json_tells_why(inside: Inside) -> None:
    [row] = data(inside("list", "--json", "--search", "limited"))
    assert (row["state"], row["services"], row["error"]) == ("pending", ["api"], None)
    assert row["why"]["reason"] == "rate"
    assert row["why"]["seconds"] > 3000


@pytest.mark.parametrize(
    "args",
    [("--state", "xyz"), ("--limit", "-1"), ("--limit", "1000000000000"), ("--search", "")],
)
def test_list_refuses_nonsense(inside: Inside, args: tuple[str, str]) -> None:
    refused(inside("list", *args), 2)


def test_show_tells_all_but_secrets(inside: Inside) -> None:
    told = inside("show", "done")
    for words in (
        "done  completed",
        "task        call",
        "target      out/done.json",
        '"words":7',
        '"api_key":"***"',
    ):
        assert words in told.out, words
    failed = inside("show", "broken").out
    assert "has failed: its only attempt failed: ValueError: page is empty" in failed
    assert "Failed attempts" in failed
    assert f"Run it again: runcue retry {quote(str(inside.file))} broken" in failed


@pytest.mark.parametrize("verb", ["status", "list", "show done", "show broken", "explain broken", "list --json",
                                  "show done --json", "show broken --json", "status --json", "explain broken --json",
                                  "retry --all-failed --dry-run"])  # fmt: skip
def test_no_verb_shows_a_secret_unasked(inside: Inside, verb: str) -> None:
    name, *args = verb.split()
    told = inside(name, *args)
    assert CANARY not in told.out + told.err
    assert told.code == 0


def test_of_a_target_and_a_key_the_rest_is_shown(inside: Inside) -> None:
    rows = {line.split("\t")[0]: line.split("\t") for line in inside("list").out.splitlines()}
    assert rows["broken"][4] == "read https://me:***@host/page"
    shown = inside("show", "broken").out
    assert "target      https://me:***@host/page\n" in shown
    assert "key         page?token=***\n" in shown


def test_what_is_told_of_a_wait_has_no_secret(inside: Inside) -> None:
    why = runcue.Explanation(
        "w", runcue.WorkState.PENDING, "not_ready", f"no answer from https://me:{CANARY}@host/"
    )
    assert explained(why, 0.0)["details"] == "no answer from https://me:***@host/"
    row = {"id": "w", "state": "pending", "attempts": 0, "max_retries": None, "last_error": None}
    text = sentence(why, row, 0.0, Crew([]), None, words=WORDS)
    assert text.startswith("w waits: not ready no answer from https://me:***@host/.")


def test_who_asks_for_secrets_gets_them(inside: Inside) -> None:
    raw = data(inside("show", "broken", "--raw", "--json"))
    assert raw["target"] == f"https://me:{CANARY}@host/page"
    assert raw["idempotency_key"] == f"page?token={CANARY}"
    assert CANARY in raw["error"]
    assert CANARY in raw["history"][0]["error"]
    assert inside("show", "broken", "--raw").out.count(CANARY) >= 4
    assert data(inside("show", "done", "--raw", "--json"))["params"]["api_key"] == CANARY
    assert data(inside("show", "done", "--json"))["params"] == {
        "api_key": "***",
        "url": "https://me:***@host/x",
    }


@pytest.mark.parametrize(
    "verb", ["status", "list", "show nasty", "explain nasty", "list --json", "show nasty --json"]
)
def test_nothing_that_a_terminal_obeys_comes_through(inside: Inside, verb: str) -> None:
    name, *args = verb.split()
    told = inside(name, *args)
    assert all(sign.isprintable() or sign in "\t\n" for sign in told.out + told.err)


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("limited", "waits for the rate limit of api"), ("parcel-2", "the circuit of depot is open"),
        ("again", "failed 1 of 3 times, and is tried again in"), ("later", "is not due yet"),
        ("orphan", "Submit what is missing, or cancel it: runcue cancel"), ("held", "the queue mail is paused"),
        ("done", "done has completed."), ("stuck", "stuck is running now."), ("dropped", "was cancelled"),
        ("parcel", "has failed: its only attempt failed"),
    ],
)  # fmt: skip
def test_explain_says_why_and_what_to_do(
    inside: Inside, id: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = presence.boottime()
    monkeypatch.setattr(presence, "boottime", lambda: moment)
    told = inside("explain", id)
    assert told.code == 0
    assert words in told.out
    assert "queuectl" not in told.out
    assert data(inside("explain", id, "--json"))["text"] == told.out.rstrip("\n")


def test_a_work_that_is_not_there_is_told_with_the_nearest(inside: Inside) -> None:
    for verb in ("show", "explain", "cancel", "retry", "logs"):
        told = inside(verb, "limitd")
        assert told.code == 6, told
        assert "Did you mean limited?" in told.err
    refused(inside("show", "zzzzzz"), 6, "See them: runcue list")


@pytest.mark.parametrize("id", ["", "a\nb", "\x1b[2J", "x" * 10_000])
def test_what_can_be_no_id_is_refused(inside: Inside, id: str) -> None:
    for verb in ("show", "explain", "cancel", "retry", "logs"):
        told = inside(verb, "--", id)
        assert told.code in {2, 6}, told
        assert told.err.rstrip("\n").isprintable()
        assert len(told.err) < 500


# acting -----------------------------------------------------------------------------------------------------


def test_a_service_and_a_queue_are_paused_and_resumed(inside: Inside) -> None:
    assert inside("pause", "api").out == (
        f"Paused service api. Go on with: runcue resume {quote(str(inside.file))} api\n"
    )
    with inside.reader() as reader:
        assert next(one for one in reader.services() if one["name"] == "api")["paused"]
    assert inside("resume", "api").out == "Resumed service api\n"
    assert inside("resume", "mail").out == "Resumed queue mail\n"
    with inside.reader() as reader:
        assert reader.paused() == []
    refused(inside("pause", "apy"), 6, "Did you mean: 'api'")
    assert inside("pause", "--queue", "night").out.startswith("Paused queue night.")


def test_a_limit_is_set_and_the_others_stay(inside: Inside) -> None:
    told = inside("set", "api", "--concurrent", "2")
    assert told.out == "Service api: 1/h, 200,000 tokens per 1 m, 2 at once\n"
    assert "Its program declared: 1/h" in told.err
    assert (
        inside("set", "api", "--rate", "none", "--quantity", "tokens=none").out == "Service api: 2 at once\n"
    )
    assert (
        "rests 5 m after 9 failures"
        in inside("set", "api", "--circuit-threshold", "9", "--circuit-timeout", "5m").out
    )
    with inside.reader() as reader:
        found = next(one for one in reader.services() if one["name"] == "api")
    assert (found["concurrent"], found["rates"], found["circuit_threshold"]) == (2, [], 9)


@pytest.mark.parametrize("name", ["self", "name", "cue"])
def test_a_quantity_may_have_any_name(inside: Inside, name: str) -> None:
    assert f"1 {name} per 1 s" in inside("set", "api", "--quantity", f"{name}=1/s").out
    assert f"1 {name} per 1 s" not in inside("set", "api", "--quantity", f"{name}=none").out


@pytest.mark.parametrize(
    "args",
    [
        [], ["--rate", "often"], ["--rate", "none", "--rate", "1/s"], ["--concurrent", "0"], ["--concurrent", "x"],
        ["--quantity", "tokens"], ["--quantity", "rate=1/s"], ["--quantity", "tokens=often"],
        ["--quantity", "a=1/s", "--quantity", "a=2/s"], ["--circuit-timeout", "soon"],
    ],
)  # fmt: skip
def test_a_limit_that_cannot_be_is_refused_and_changes_nothing(inside: Inside, args: list[str]) -> None:
    before = inside("status", "--json").out
    refused(inside("set", "api", *args), 2)
    services = [json.loads(text)["services"] for text in (before, inside("status", "--json").out)]
    assert [one["rates"] for one in services[0]] == [one["rates"] for one in services[1]]


def test_a_service_that_is_not_there_is_told_with_the_nearest(inside: Inside) -> None:
    refused(inside("set", "depto", "--rate", "1/s"), 6, "Did you mean 'depot'?")
    refused(inside("set", "zzz", "--rate", "1/s"), 6, "There are: 'api', 'depot'")


def test_schedules_are_listed_without_secrets(inside: Inside) -> None:
    [row] = [line.split("\t") for line in inside("schedules").out.splitlines()]
    assert row == ["nightly", "0 3 * * *", "2096-10-03T03:00:00.000Z", "-", "active", "call"]
    [found] = data(inside("schedules", "--json"))
    assert (found["name"], found["task"], found["cron"], found["runs"]) == ("nightly", "call", "0 3 * * *", 0)
    assert CANARY not in inside("schedules", "--json").out
    assert CANARY in inside("schedules", "--json", "--raw").out


def test_a_queue_without_schedules_says_how_to_add_them(inside: Inside) -> None:
    inside("schedules", "remove", "nightly")
    told = inside("schedules")
    assert (told.code, told.out) == (0, "")
    assert "await cue.schedule(" in told.err
    assert data(inside("schedules", "--json")) == []


def test_a_schedule_is_paused_resumed_run_and_removed(inside: Inside) -> None:
    go_on = f"runcue schedules {inside.file} resume nightly"
    assert inside("schedules", "pause", "nightly").out == f"Paused schedule nightly. Go on with: {go_on}\n"
    assert data(inside("schedules", "--json"))[0]["state"] == "paused"
    assert inside("schedules", "resume", "nightly").out == "Resumed schedule nightly\n"
    id = inside("schedules", "run", "nightly").out.strip()
    with inside.reader() as reader:
        assert [work.id for work in reader.list(tags={"schedule": "nightly"})] == [id]
    [found] = data(inside("schedules", "--json"))
    assert (found["last_id"], found["last_state"], found["runs"]) == (id, "pending", 1)
    assert inside("schedules", "remove", "nightly").out == "Removed schedule nightly. Its units stay.\n"
    assert data(inside("schedules", "--json")) == []


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "remove"])
def test_a_schedule_that_is_not_there_is_told_with_the_nearest(inside: Inside, verb: str) -> None:
    refused(
        inside("schedules", verb, "nigtly"), 6, "There is no schedule 'nigtly'", "Did you mean 'nightly'?"
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["pause"], "Which schedule?"),
        (["stop", "nightly"], "'stop' is not one of"),
        (["run", "nightly", "--json"], "--json and --raw are for the list"),
    ],
)
def test_what_can_be_done_to_a_schedule_is_said(inside: Inside, args: list[str], words: str) -> None:
    refused(inside("schedules", *args), 2, words)


def test_works_are_tried_again(inside: Inside) -> None:
    assert inside("retry", "broken", "dropped").out == "Requeued 2 units\n"
    with inside.reader() as reader:
        assert {one: str(work.state) for one in ("broken", "dropped") if (work := reader.get(one))} == {
            "broken": "pending",
            "dropped": "pending",
        }
    told = inside("retry", "broken", "done")
    assert (told.code, told.out) == (6, "Requeued 0 units, skipped 2\n")
    assert told.err == "runcue: broken is pending, not failed.\nruncue: done is completed, not failed.\n"


def test_all_that_failed_are_tried_again_once_that_is_meant(inside: Inside) -> None:
    refused(inside("retry", "--all-failed"), 2, "This would retry 3 failed units.", "--yes", "--dry-run")
    assert inside("retry", "--all-failed", "--dry-run").out.split() == ["broken", "nasty", "parcel"]
    assert inside("retry", "--all-failed", "--task", "ship", "--yes").out == "Requeued 1 unit\n"
    assert inside("retry", "--all-failed", "--yes").out == "Requeued 2 units\n"
    assert inside("retry", "--all-failed", "--yes").out == "Requeued 0 units\n"


@pytest.mark.parametrize("args", [[], ["a", "--all-failed"], ["a", "--task", "ship"]])
def test_retry_wants_to_know_which(inside: Inside, args: list[str]) -> None:
    refused(inside("retry", *args), 2)


def test_works_are_cancelled(inside: Inside) -> None:
    told = inside("cancel", "later", "stuck", "done")
    later, stuck = told.out.splitlines()
    assert later == "Cancelled later"
    # the process that ran it is dead: whether that was noticed by then is chance
    assert stuck in ("Cancelled stuck, which was running and is being stopped", "Cancelled stuck")
    assert (told.code, told.err) == (6, "runcue: done is completed already.\n")


def test_what_a_function_printed_is_not_kept(inside: Inside) -> None:
    told = inside("logs", "done")
    assert (told.code, told.out) == (0, "")
    assert "printed nothing" in told.err


def test_what_a_command_printed_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        cue = runcue.Cue(tmp_path / "c.db")
        cue.task("say", executor="subprocess")(lambda work: runcue.Command(["echo", "hello\x1b[2J"]))
        async with asyncio.timeout(240), cue:
            await cue.submit("say", id="one")
            await cue.join()
        await cue.close()

    asyncio.run(run())
    told = Inside(tmp_path / "c.db", monkeypatch, capsys)("logs", "one")
    assert (told.code, told.out) == (0, "hello\n")


# files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*READING, *CHANGING, "top", "dashboard --no-browser"])
def test_a_file_that_is_not_there_is_told_and_never_made(
    inside: Inside, tmp_path: Path, command: str
) -> None:
    verb, *args = command.split()
    missing = tmp_path / "none" / "x.db"
    refused(inside(verb, *args, file=missing), 3, "is not there")
    assert not missing.parent.exists()
    meant = quote(str(tmp_path / "queue.db"))
    refused(inside(verb, *args, file=tmp_path / "queu.db"), 3, f"did you mean {meant}?\n")
    assert not (tmp_path / "queu.db").exists()
    empty = tmp_path / "empty.db"
    empty.touch()
    refused(inside(verb, *args, file=empty), 3, "is empty")
    assert empty.stat().st_size == 0
    refused(inside(verb, *args, file=""), 2, "first argument")


def test_top_wants_a_terminal(inside: Inside) -> None:
    refused(inside("top"), 2, "top needs a terminal", f"runcue status {quote(str(inside.file))} --watch")


def test_top_wants_a_terminal_that_can_be_drawn_on(inside: Inside, tmp_path: Path) -> None:
    text = ON_TERMINAL.format(text=PROGRAM_TEXT.format(verb="top", file=str(inside.file)))
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(tmp_path, {"TERM": "dumb"}),
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.count("\n") == 1
    assert "\x1b" not in done.stdout
    assert f"TERM is dumb. Try: runcue status {quote(str(inside.file))} --watch" in done.stdout


def test_where_nothing_can_be_drawn_watching_prints(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    def live() -> None:
        raise AssertionError("it would be drawn")

    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setattr("runcue.cli.commands.status.is_terminal", lambda: True)
    monkeypatch.setattr("runcue.cli.commands.status.live", live)
    monkeypatch.setattr("time.sleep", interrupt)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(KeyboardInterrupt):
        _watch(File(str(inside.file)), as_json=False)
    assert "Workers none" in capsys.readouterr().out
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(AssertionError, match="drawn"):
        _watch(File(str(inside.file)), as_json=False)


@pytest.mark.parametrize("name", ["queue.db", "it's $HOME.db"])
def test_a_damaged_file_is_told_with_a_way_to_save_it_that_works(
    inside: Inside, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    with runcue.Reader(inside.file) as reader:
        before = reader.count()
    if file != inside.file:
        for end in ("", "-wal", "-shm"):
            if (beside := Path(f"{inside.file}{end}")).exists():
                shutil.copy(beside, f"{file}{end}")
    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    file.write_bytes(b"\xa5" * 100 + file.read_bytes()[100:])
    told = inside("list", file=file)
    refused(told, 3, "its beginning is damaged", ": python -c ")
    assert "queuectl" not in told.err
    advice = told.err.partition(": python -c ")[2].rpartition(", or restore")[0]
    done = subprocess.run(
        ["/bin/sh", "-c", f"'{sys.executable}' -c {advice}"],
        capture_output=True,
        text=True,
        env=environment(tmp_path, {"HOME": "/nowhere"}),
        timeout=BOUND,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with runcue.Reader(file) as reader:
        assert sum(reader.count().values()) == sum(before.values())


def test_watching_prints_each_change_until_it_is_interrupted(inside: Inside, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "status", str(inside.file), "--watch", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["paused"] == ["mail"]
        inside("resume", "mail")
        while json.loads(process.stdout.readline())["paused"]:
            continue
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 130


# demo and dashboard -----------------------------------------------------------------------------------------


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float | None]]:
    """What the demo was asked to play, for how long; nothing is. (The guide for who is on call has it played.)"""
    calls: list[tuple[str, float | None]] = []

    async def play(path: str, busy: float | None) -> list[str]:
        calls.append((path, busy))
        Path(path).touch()
        return ["the story"]

    monkeypatch.setattr(appdemo, "_play", play)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    return calls


def test_the_demo_leaves_nothing_behind_and_says_how_to_go_on(
    inside: Inside, played: list[Any], tmp_path: Path
) -> None:
    told = inside.run("demo")
    assert (told.code, told.err) == (0, "")
    [(path, busy)] = played
    assert (Path(path).parent.parent, busy) == (tmp_path / "temporary", None)
    assert [line.strip() for line in told.out.splitlines()[-6:] if line] == [
        "the story",
        "Your turn:",
        "runcue demo --keep demo --busy 60",
        "runcue top demo/demo.db",
        "runcue dashboard demo/demo.db",
    ]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_demo_that_is_kept_stays_and_is_not_played_over(inside: Inside, played: list[Any]) -> None:
    told = inside.run("demo", "--keep", "kept", "--busy", "2")
    assert (told.code, told.err) == (0, "")
    assert played == [(str(Path("kept") / "demo.db"), 2.0)]
    assert "Busy for 2 s. In another terminal: runcue top kept/demo.db" in told.out
    assert Path("kept/demo.db").exists()
    refused(
        inside.run("demo", "--keep", "kept"), 6, "kept/demo.db is there already. Choose another directory"
    )
    refused(inside.run("demo", "--busy", "0"), 2, "--busy")
    assert len(played) == 1


def test_a_busy_demo_goes_on_with_new_works_and_the_depot_fails_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fake:
        ids: ClassVar[list[str]] = []

        async def submit(self, task: str, id: str, **more: object) -> None:
            self.ids.append(id)

    passed = itertools.count()
    monkeypatch.setattr(appdemo, "time", SimpleNamespace(monotonic=lambda: float(next(passed))))
    monkeypatch.setattr(appdemo, "PACE", float("inf"))
    world = appdemo._World()
    world.is_depot_down = False
    asyncio.run(appdemo._keep_busy(cast("runcue.Cue", Fake()), world, 100.0))
    pages = [id for id in Fake.ids if id.startswith("page-")]
    assert pages == [f"page-{number}" for number in range(appdemo.PAGES, appdemo.PAGES + len(pages))]
    assert len(pages) == 99
    assert [id for id in Fake.ids if id not in pages][:2] == ["parcel-24", "parcel-36"]
    assert world.is_depot_down


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    with subprocess.Popen(
        [*PROGRAM, "demo"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path, {"TMPDIR": str(place), "PYTHONUNBUFFERED": "1"}),
    ) as process:
        assert process.stdout is not None
        until_sync(lambda: "retry" in process.stdout.readline(), "a line of the story")  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 130
    assert list(place.iterdir()) == []


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the dashboard was asked to serve; nothing is."""
    web = pytest.importorskip("runcue.web")
    calls: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(web, "serve", lambda path, **more: calls.append((path, more)), raising=False)
    return calls


@pytest.fixture
def listened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The servers that would have run, had they been let; all before that is real."""
    serving = pytest.importorskip("runcue.web.serving")
    ran: list[object] = []
    monkeypatch.setattr(serving.Server, "run", lambda self, **more: ran.append(self))
    return ran


def test_the_dashboard_serves_the_file_to_this_machine(inside: Inside, served: list[Any]) -> None:
    told = inside("dashboard", "--port", "0", "--no-browser", "--read-only")
    assert told.code == 0, told
    [(path, more)] = served
    assert path == str(inside.file)
    assert callable(more.pop("say"))
    assert more == {
        "host": "127.0.0.1",
        "port": 0,
        "token": None,
        "read_only": True,
        "hosts": (),
        "open_browser": False,
        "name": "default",
    }


def test_the_dashboard_answers_to_the_names_of_a_proxy(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names go all the way: what would be served lets them in, and no other."""
    serving = pytest.importorskip("runcue.web.serving")
    answers: dict[str, int] = {}

    def ask(server: Any, sockets: object) -> None:
        with TestClient(server.config.app, follow_redirects=False) as client:
            for host in ("queue.example.com", "a.test:443", "other.test"):
                answers[host] = client.get("/", headers={"Host": host}).status_code

    monkeypatch.setattr(serving.Server, "run", ask)
    names = ["--name", "queue.example.com", "--name", "A.test"]
    told = inside("dashboard", "--port", "0", "--no-browser", *names)
    assert told.code == 0, told
    assert answers == {"queue.example.com": 401, "a.test:443": 401, "other.test": 421}


@pytest.mark.parametrize(
    "name",
    ["", "https://a.test", "a.test:443", "a.test/x", "a b", "*", "-a", "::1", "a" * 300, "a\n", "ä.test"],
)
def test_what_is_no_name_of_a_host_is_refused(inside: Inside, served: list[Any], name: str) -> None:
    refused(inside("dashboard", "--name", name), 2, "--name", "a host alone")
    assert served == []


def test_the_dashboard_is_really_served_and_ends_with_ctrl_c(inside: Inside, tmp_path: Path) -> None:
    pytest.importorskip("runcue.web.serving")
    with subprocess.Popen(
        [*PROGRAM, "dashboard", str(inside.file), "--port", "0", "--no-browser"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        link = process.stdout.readline().strip()
        assert link.startswith("http://127.0.0.1:")
        assert "token=" in link
        with httpx.Client(follow_redirects=True, timeout=BOUND, trust_env=False) as client:
            assert client.get(link.partition("?")[0]).status_code == 401
            assert client.get(link).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 0
        assert process.stderr.read() == "Ctrl-C ends it.\n"


def test_a_port_that_is_taken_is_told(inside: Inside) -> None:
    pytest.importorskip("runcue.web.serving")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(inside("dashboard", "--port", str(port), "--no-browser"), 6, f"Port {port}", "--port 0")


def test_queuectl_serves_its_home(inside: Inside, served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from runcue.cli.main import queuectl

    home = inside.file.parent
    home.chmod(0o700)
    inside.file.chmod(0o600)
    monkeypatch.setattr(sys, "argv", ["queuectl", "--home", str(home), "dashboard", "--no-browser"])
    with pytest.raises(SystemExit) as ended:
        queuectl()
    assert ended.value.code == 0
    assert served[0][0] == str(inside.file)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.test", "127.evil.test"])
def test_other_machines_are_not_let_in_without_a_token(
    inside: Inside, listened: list[Any], host: str
) -> None:
    """WB2: what is missing is no matter of typing."""
    for more in ([], ["--token", ""]):
        told = inside("dashboard", "--no-browser", "--port", "0", "--host", host, *more)
        refused(told, 4, "--token", "RUNCUE_TOKEN")
    assert listened == []


@pytest.mark.parametrize("host", ["", "192.0.2.1", "ä" * 70])
def test_an_address_that_is_none_of_ours_is_bad_input(inside: Inside, listened: list[Any], host: str) -> None:
    command = ("dashboard", "--no-browser", "--port", "0", "--token", "0123456789abcdef", "--host", host)
    refused(inside(*command), 2, "--host cannot be", "an address of this machine")
    assert listened == []


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), 2, "(Name or service not known)"),
        (PermissionError(errno.EACCES, "Permission denied"), 4, "Port 80 "),
        (OSError(errno.EMFILE, "Too many open files"), 3, "Too many open files"),
    ],
    ids=["a name", "a port", "anything else"],
)
def test_what_is_in_the_way_of_listening_is_told(
    inside: Inside,
    listened: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    code: int,
    words: str,
) -> None:
    def bind(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "bind", bind)
    refused(inside("dashboard", "--no-browser", "--port", "80", "--host", "localhost"), code, words)
    assert listened == []


def test_other_machines_are_let_in_with_a_token(
    inside: Inside, listened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("dashboard", "--no-browser", "--port", "0", "--host", "0.0.0.0")
    assert inside(*command, "--token", "0123456789abcdef").code == 0
    monkeypatch.setenv("RUNCUE_TOKEN", "0123456789abcdef")
    assert inside(*command).code == 0
    assert len(listened) == 2


@pytest.mark.parametrize("token", ["short", "x" * 15, "ä" * 20, "0123456789abcdef\n"])
def test_a_token_that_could_be_guessed_is_refused(inside: Inside, listened: list[Any], token: str) -> None:
    refused(inside("dashboard", "--no-browser", "--port", "0", "--token", token), 2, "token", "16")
    assert listened == []


def test_a_token_of_the_environment_that_could_be_guessed_is_a_matter_of_configuration(
    inside: Inside, listened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNCUE_TOKEN", "short")
    refused(inside("dashboard", "--no-browser", "--port", "0"), 4, "token", "16")
    assert listened == []


@pytest.mark.parametrize(
    ("verb", "module", "extra"), [("dashboard", "starlette", "web"), ("top", "textual", "tui")]
)
def test_a_missing_extra_is_one_line(
    inside: Inside, tmp_path: Path, verb: str, module: str, extra: str
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        f"import sys\nsys.modules[{module!r}] = None\n", encoding="utf-8"
    )
    text = ON_TERMINAL.format(text=PROGRAM_TEXT.format(verb=verb, file=str(inside.file)))
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(tmp_path, {"PYTHONPATH": str(hidden), "TERM": "xterm"}),
        timeout=BOUND,
        check=False,
    )
    assert done.stdout.startswith("runcue: ")
    assert done.stdout.rstrip().endswith(f'needs {module}: pip install "runcue[{extra}]"')
    assert done.stdout.count("\n") == 1
    assert done.returncode == 4


def test_a_unit_is_edited_and_shown_as_it_was_edited(inside: Inside) -> None:
    assert inside("edit", "later", "--params", '{"page": 8}', "--priority", "2.5").out == "Edited later\n"
    found = data(inside("show", "later", "--json"))
    assert (found["params"], found["priority"], found["state"]) == ({"page": 8}, 2.5, "pending")
    told = inside("edit", "broken", "--params", "{}").out
    assert told == f"Edited broken. Run it again: runcue retry {quote(str(inside.file))} broken\n"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (
            ("done", "--priority", "1"),
            6,
            "done is completed: only units that wait or have failed can be edited.",
        ),
        (("later",), 2, "Say what to change: --params, --priority."),
        (("later", "--params", "[1]"), 2, "--params is no JSON object"),
        (("later", "--params", "{"), 2, "--params is no JSON object"),
        (("later", "--priority", "1e300"), 2, "Invalid priority"),
    ],
)
def test_an_edit_of_a_unit_that_makes_no_sense_is_refused(
    inside: Inside, args: tuple[str, ...], code: int, words: str
) -> None:
    before = inside("show", args[0], "--json").out
    refused(inside("edit", *args), code, words)
    assert inside("show", args[0], "--json").out == before


def test_units_are_retried_with_what_failed_because_of_them(inside: Inside) -> None:
    told = inside("retry", "broken", "--cascade")
    assert told.out == "Requeued 1 unit, and what had failed because of it\n"
    refused(inside("retry", "--all-failed", "--cascade"), 2, "Leave --cascade out.")
