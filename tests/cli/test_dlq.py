"""`queuectl dlq`: dead jobs are listed, retried and purged."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import runcue
from runcue.cli import screen
from runcue.cli.home import Home
from runcue.cli.jobs import open_cue
from runcue.cli.settings import Settings
from tests.cli.crew import environment
from tests.cli.inside import Inside, forget, one_of_eight, refused, states

COLUMNS = [
    "id", "command", "state", "attempts", "max_retries", "priority", "created_at", "updated_at", "next_run_at",
    "last_error", "worker_id",
]  # fmt: skip


@pytest.fixture
def dead(inside: Inside) -> Inside:
    """A queue with two dead jobs, one that waits for the second of them and died of it, and one that completed."""
    lines = [
        {"id": "one", "command": "echo bye; exit 1", "max_retries": 0},
        {"id": "two", "command": "test -e flag", "max_retries": 0, "cwd": str(inside.home)},
        {"id": "three", "command": "true", "after": ["two"]},
        {"id": "fine", "command": "true"},
    ]
    inside("enqueue", input="\n".join(map(json.dumps, lines)))
    inside.work()
    return inside


def test_list_shows_dead_jobs_and_why_they_died(dead: Inside) -> None:
    told = dead("dlq", "list")
    assert (told.code, told.err) == (0, "")
    rows = {row[0]: row for row in (line.split("\t") for line in told.out.splitlines())}
    assert rows["one"][1] == "1/1"
    assert rows["one"][3:] == ["echo bye; exit 1", "exit code 1: bye"]
    assert rows["three"][3:] == ["true", "prerequisite_failed"]
    assert set(rows) == {"one", "two", "three"}


def test_list_as_json_has_the_columns_of_the_jobs_view(dead: Inside) -> None:
    found = json.loads(dead("dlq", "list", "--json").out)
    assert [list(row) for row in found] == [COLUMNS] * 3
    assert {row["state"] for row in found} == {"dead"}
    assert len(json.loads(dead("dlq", "list", "--json", "--limit", "1").out)) == 1


async def test_times_look_the_same_in_every_table(dead: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    async with open_cue(Home(str(dead.home)), Settings()) as cue:
        await cue.services()
        for moment, is_terminal in (
            (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", True),
            (r"[\d-]{10}T[\d:]{8}\.\d{3}Z", False),
        ):
            monkeypatch.setattr(screen, "is_terminal", lambda is_terminal=is_terminal: is_terminal)
            for command, rows in ((("dlq", "list"), 3), (("worker", "list"), 1)):
                told = await asyncio.to_thread(dead, *command)
                assert len(re.findall(rf"(?<=\s){moment}(?=\s)", told.out)) == rows, (command, told)
    await cue.close()


def test_list_says_when_there_is_more(dead: Inside) -> None:
    told = dead("dlq", "list", "--limit", "2")
    assert len(told.out.splitlines()) == 2
    assert "--limit" in told.err


@pytest.mark.parametrize("limit", ["-1", "1000000000000", "x"])
def test_a_limit_that_makes_no_sense_is_refused(inside: Inside, limit: str) -> None:
    refused(inside("dlq", "list", "--limit", limit), 2, "limit")


def test_an_empty_dlq_is_no_error(inside: Inside, home: Path) -> None:
    assert inside("dlq", "list") == (0, "", "No dead jobs.\n")
    assert inside("dlq", "list", "--json") == (0, "[]\n", "")
    assert inside("dlq", "retry", "--all") == (0, "Requeued 0 jobs\n", "")
    assert inside("dlq", "purge", "--all") == (0, "Purged 0 jobs\n", "")
    assert not home.exists()


def test_a_dead_job_is_tried_again(dead: Inside, home: Path) -> None:
    (home / "flag").touch()
    assert dead("dlq", "retry", "two") == (0, "Requeued 1 job\n", "")
    assert states(home)["two"] == "pending"
    dead.work()
    assert states(home) == {"one": "dead", "two": "completed", "three": "dead", "fine": "completed"}


def test_all_are_tried_again_in_the_order_in_which_they_came(dead: Inside, home: Path) -> None:
    (home / "flag").touch()
    assert dead("dlq", "retry", "--all").out == "Requeued 3 jobs\n"
    dead.work()
    assert states(home) == {"one": "dead", "two": "completed", "three": "completed", "fine": "completed"}


def test_what_is_not_dead_is_skipped_and_told(dead: Inside, home: Path) -> None:
    told = dead("dlq", "retry", "three", "fine", "two", "nobody")
    assert (told.code, told.out) == (6, "Requeued 2 jobs, skipped 2\n")
    assert (
        told.err
        == "queuectl: fine is completed, not dead.\nqueuectl: No job nobody. See them: queuectl list\n"
    )
    assert states(home)["three"] == "pending", "what it waits for was retried before it"


def test_what_runs_after_a_dead_job_is_not_retried_without_it(dead: Inside, home: Path) -> None:
    told = dead("dlq", "retry", "three")
    assert (told.code, told.out) == (6, "Requeued 0 jobs, skipped 1\n")
    assert told.err == "queuectl: three runs after two, which is dead.\n"
    assert states(home)["three"] == "dead"


def test_what_runs_after_a_cancelled_job_cannot_be_retried(inside: Inside) -> None:
    lines = [{"id": "a", "command": "true"}, *({"command": "true", "after": "a"} for _ in range(12))]
    inside("enqueue", input="\n".join(map(json.dumps, lines)))
    inside("cancel", "a")
    told = inside("dlq", "retry", "--all")
    assert (told.code, told.out) == (0, "Requeued 0 jobs, skipped 12\n")
    assert len(told.err.splitlines()) == 11
    assert told.err.endswith("runs after a, which is cancelled.\nand 2 more\n")


def test_what_runs_after_a_purged_job_is_not_retried(dead: Inside, home: Path) -> None:
    dead("dlq", "purge", "two", "--yes")
    told = dead("dlq", "retry", "three")
    assert (told.code, told.out) == (6, "Requeued 0 jobs, skipped 1\n")
    assert told.err == "queuectl: three runs after two, which is no longer there.\n"
    told = dead("dlq", "retry", "--all")
    assert (told.code, told.out) == (0, "Requeued 1 job, skipped 1\n")
    assert told.err == "three runs after two, which is no longer there.\n"
    assert states(home) == {"one": "pending", "three": "dead", "fine": "completed"}
    assert dead("enqueue", "--id", "two", "--", "true").code == 0
    assert dead("dlq", "retry", "three").code == 0, "it is there again"
    dead.work()
    assert states(home)["three"] == "completed"


def test_what_ran_after_a_job_that_is_no_longer_kept_is_retried(inside: Inside, home: Path) -> None:
    inside("enqueue", "--id", "old", "--", "true")
    inside(
        "enqueue",
        "--id",
        "new",
        "--after",
        "old",
        "--max-retries",
        "0",
        "--",
        "test",
        "-e",
        str(home / "flag"),
    )
    inside.work()
    forget(home)
    assert states(home) == {"new": "dead"}
    (home / "flag").touch()
    assert inside("dlq", "retry", "new") == (0, "Requeued 1 job\n", "")
    inside.work()
    assert inside("wait", "new").code == 0


def test_what_comes_first_in_a_file_may_run_after_what_comes_later(inside: Inside, home: Path) -> None:
    lines = [
        {"id": "b", "command": "true", "after": "a"},
        {"id": "a", "command": "test -e flag", "max_retries": 0, "cwd": str(home)},
    ]
    inside("enqueue", input="\n".join(map(json.dumps, lines)))
    inside.work()
    (home / "flag").touch()
    assert inside("dlq", "retry", "--all").out == "Requeued 2 jobs\n"
    inside.work()
    assert states(home) == {"a": "completed", "b": "completed"}


def test_a_cancelled_job_is_not_dead(inside: Inside, home: Path) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    inside("cancel", "a")
    told = inside("dlq", "retry", "a")
    assert (told.code, told.out) == (6, "Requeued 0 jobs, skipped 1\n")
    assert states(home) == {"a": "cancelled"}


def test_eight_at_once_retry_a_job_once(dead: Inside, home: Path) -> None:
    one_of_eight(home, "dlq", "retry", "one")
    dead.work()
    with runcue.Reader(home / "queue.db") as reader:
        work = reader.get("one")
    assert work is not None
    assert work.failures == 1, "since it was retried"
    assert len(work.history) == 2, "it ran once before and once since"


def test_purge_off_a_terminal_needs_a_yes(dead: Inside, home: Path) -> None:
    refused(dead("dlq", "purge"), 2, "3 dead jobs", "--yes")
    refused(dead("dlq", "purge", "one"), 2, "1 dead job for good", "--yes")
    assert len(states(home)) == 4


def test_a_dry_run_prints_ids_and_deletes_nothing(dead: Inside, home: Path) -> None:
    assert dead("dlq", "purge", "--dry-run") == (0, "one\ntwo\nthree\n", "")
    assert dead("dlq", "purge", "--dry-run", "two") == (0, "two\n", "")
    assert len(states(home)) == 4


def test_purged_jobs_are_gone_with_what_they_printed(dead: Inside, home: Path) -> None:
    assert list((home / "queue.db.files").iterdir())
    assert dead("dlq", "purge", "one", "--yes") == (0, "Purged 1 job\n", "")
    assert set(states(home)) == {"two", "three", "fine"}
    assert not list((home / "queue.db.files").iterdir())
    assert dead("dlq", "purge", "--all", "-y") == (0, "Purged 2 jobs\n", "")
    assert states(home) == {"fine": "completed"}
    assert dead("enqueue", "--id", "one", "--", "true").code == 0, "its id is free again"


def test_purge_touches_nothing_when_one_of_them_is_not_dead(dead: Inside, home: Path) -> None:
    refused(dead("dlq", "purge", "one", "fine", "--yes"), 6, "fine is completed, not dead")
    assert len(states(home)) == 4


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 1), (b"\n", 2, 4)])
def test_purge_asks_on_a_terminal(dead: Inside, home: Path, answer: bytes, code: int, left: int) -> None:
    import pty

    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(
        [sys.executable, "-m", "runcue.cli", "dlq", "purge"],
        env=environment(home), stdin=theirs, capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    os.close(theirs)
    os.close(ours)
    assert done.returncode == code, done
    assert b"Delete 3 dead jobs" in done.stderr
    assert len(states(home)) == left


def test_an_unknown_job_gets_the_nearest(dead: Inside) -> None:
    for verb in ("retry", "purge"):
        told = dead("dlq", verb, "thre", "--yes") if verb == "purge" else dead("dlq", verb, "thre")
        assert told.err == "queuectl: No job thre. Did you mean three?\n"


@pytest.mark.parametrize("args", [["retry"], ["retry", "a", "--all"], ["purge", "a", "--all"], ["retri"]])
def test_what_cannot_be_meant_is_refused(inside: Inside, args: list[str]) -> None:
    refused(inside("dlq", *args), 2)


# --- Retried with what depends on it, and edited ----------------------------------------------------------


def test_retry_with_cascade_also_retries_what_died_because_of_it(dead: Inside) -> None:
    told = dead("dlq", "retry", "two", "--cascade")
    assert (told.code, told.out) == (0, "Requeued 1 job, and what had died because of it\n")
    assert states(dead.home) == {"one": "dead", "two": "pending", "three": "pending", "fine": "completed"}


def test_retry_with_cascade_may_name_what_comes_along_anyway(dead: Inside) -> None:
    told = dead("dlq", "retry", "two", "three", "--cascade")
    assert (told.code, told.out) == (0, "Requeued 2 jobs, and what had died because of them\n")
    assert states(dead.home)["three"] == "pending"


def test_cascade_is_for_some_jobs_not_for_all(dead: Inside) -> None:
    refused(
        dead("dlq", "retry", "--all", "--cascade"), 2, "--all retries every dead job. Leave --cascade out."
    )
    assert states(dead.home)["two"] == "dead"


def test_a_dead_job_is_edited_and_runs_again_with_another_command(dead: Inside) -> None:
    told = dead("edit", "one", "--command", "echo $WHO", "--env", "WHO=me", "--priority", "5")
    assert (told.code, told.out) == (0, "Edited one. Run it again: queuectl dlq retry one\n")
    assert states(dead.home)["one"] == "dead"
    dead("dlq", "retry", "one")
    dead.work()
    shown = json.loads(dead("show", "one", "--json").out)
    assert (shown["state"], shown["command"], shown["priority"]) == ("completed", "echo $WHO", 5)
    assert dead("logs", "one").out.endswith("me\n")


def test_an_edit_leaves_what_it_does_not_name(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--env", "A=1", "--", "true", "x")
    assert inside("edit", "a", "--env", "B=2").out == "Edited a\n"
    with Home(str(inside.home)).reader() as reader:
        work = reader.get("a")
    assert work is not None
    assert work.params["env"] == {"A": "1", "B": "2"}
    assert work.params["argv"] == ["true", "x"]
    inside("edit", "a", "--command", "false")
    with Home(str(inside.home)).reader() as reader:
        work = reader.get("a")
    assert work is not None
    assert (work.params["command"], "argv" in work.params) == ("false", False)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (
            ("fine", "--command", "true"),
            6,
            "fine is completed: only jobs that wait or are dead can be edited.",
        ),
        (("nobody", "--command", "true"), 6, "No job nobody."),
        (("one",), 2, "Say what to change: --command, --priority, --uses, --cwd, --env."),
        (("one", "--command", " "), 2, "command is empty"),
        (("one", "--env", "A"), 2, "--env 'A' has no value: write NAME=VALUE."),
        (("one", "--priority", "9999999"), 2, "priority cannot be 9999999"),
    ],
)
def test_an_edit_that_cannot_be_made_is_refused_and_changes_nothing(
    dead: Inside, args: tuple[str, ...], code: int, words: str
) -> None:
    before = dead("show", args[0], "--json").out
    refused(dead("edit", *args), code, words)
    assert dead("show", args[0], "--json").out == before
