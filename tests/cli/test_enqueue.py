"""`queuectl enqueue` in all its forms, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import runcue
from tests.cli.conftest import Run
from tests.cli.crew import environment
from tests.cli.inside import Inside, Told, one_of_eight, refused

MIB = 1024 * 1024


def jobs(home: Path) -> dict[str, dict[str, Any]]:
    """The rows of all jobs by id."""
    if not (home / "queue.db").exists():
        return {}
    with runcue.Reader(home / "queue.db") as reader:
        return {row["id"]: row for row in reader.jobs(limit=100_000)}


def job(home: Path, id: str) -> runcue.Work:
    with runcue.Reader(home / "queue.db") as reader:
        found = reader.get(id)
    assert found is not None
    return found


# forms -----------------------------------------------------------------------------------------------------


def test_json_is_a_job(queuectl: Run, home: Path) -> None:
    told = queuectl("enqueue", '{"id": "job1", "command": "sleep 2", "max_retries": 5, "priority": 7}')
    assert (told.returncode, told.stdout, told.stderr) == (0, "Enqueued job1\n", "")
    row = jobs(home)["job1"]
    assert row["command"] == "sleep 2"
    assert (row["state"], row["max_retries"], row["priority"]) == ("pending", 5, 7)


def test_flags_are_a_job(inside: Inside, home: Path, tmp_path: Path) -> None:
    assert inside("service", "set", "api", "--concurrent", "1").code == 0
    assert inside("enqueue", "--id", "first", "--command", "-x 'y'").out == "Enqueued first\n"
    told = inside(
        "enqueue", "--id", "b", "--command", "echo hi", "--priority", "-3", "--max-retries", "2", "--timeout", "5m",
        "--delay", "1h", "--queue", "night", "--after", "first", "--key", "k", "--uses", "api",
        "--cwd", str(tmp_path), "--env", "A=1=2", "--env", "B=",
    )  # fmt: skip
    assert told == Told(0, "Enqueued b\n", "")
    found = job(home, "b")
    assert found.params == {
        "command": "echo hi", "cwd": str(tmp_path), "env": {"A": "1=2", "B": ""}, "uses": ["api"]
    }  # fmt: skip
    assert (found.priority, found.timeout, found.queue) == (-3, 300, "night")
    assert (found.depends_on, found.idempotency_key, found.services) == (("first",), "k", ("api",))
    assert jobs(home)["first"]["command"] == "-x 'y'"


def test_a_command_line_is_kept_argument_by_argument(inside: Inside, home: Path) -> None:
    told = inside("enqueue", "-q", "--queue", "q", "--", "echo", "--id", "a b", "--", "$X")
    assert told.code == 0
    found = job(home, told.out.strip())
    assert found.params["argv"] == ["echo", "--id", "a b", "--", "$X"]
    assert found.queue == "q"


def test_a_job_runs_where_it_was_enqueued(queuectl: Run, inside: Inside, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    queuectl("enqueue", "--id", "a", "--", "pwd", cwd=folder)
    inside.work()
    assert inside("logs", "a").out == f"{folder}\n"


def test_quiet_prints_the_ids_alone(inside: Inside) -> None:
    one = inside("enqueue", "-q", "--", "true")
    assert re.fullmatch(r"[0-9a-f]{27}\n", one.out)
    many = inside(
        "enqueue", "-q", "-", input='{"id": "a", "command": "true"}\n{"id": "b", "command": "true"}\n'
    )
    assert many == Told(0, "a\nb\n", "")


@pytest.mark.parametrize("way", ["--file", "-", "--file -", "pipe"])
def test_lines_of_json_are_jobs(inside: Inside, home: Path, tmp_path: Path, way: str) -> None:
    text = '{"id": "a", "command": "true"}\r\n\n  {"command": "false", "id": "b", "queue": "q"}'
    (tmp_path / "jobs.jsonl").write_text(text)
    args = {"--file": ["--file", str(tmp_path / "jobs.jsonl")], "pipe": []}.get(way, way.split())
    told = inside("enqueue", *args, "--priority", "4", input=text)
    assert told.code == 0
    assert re.fullmatch(r"Enqueued 2 jobs in [0-9.]+ m?s\n", told.out)
    assert {id: row["priority"] for id, row in jobs(home).items()} == {"a": 4, "b": 4}


def test_lines_may_refer_to_each_other_in_any_order(inside: Inside, home: Path) -> None:
    text = '{"id": "b", "command": "true", "after": "a"}\n{"id": "a", "command": "true"}'
    assert inside("enqueue", input=text).code == 0
    assert job(home, "b").depends_on == ("a",)


def test_a_file_without_a_job_is_refused(inside: Inside, home: Path, tmp_path: Path) -> None:
    (tmp_path / "none").write_text("\n")
    refused(inside("enqueue", "--file", str(tmp_path / "none")), 2, "none holds no job")
    assert not home.exists()


def test_many_lines_are_one_commit(inside: Inside, home: Path) -> None:
    lines = [json.dumps({"id": f"j{number}", "command": "true"}) for number in range(3000)]
    told = inside("enqueue", input="\n".join(lines))
    assert told.out.startswith("Enqueued 3,000 jobs in ")
    with runcue.Reader(home / "queue.db") as reader:
        times = {work.created_at for work in reader.list(limit=3000)}
    assert len(times) == 1, "all are of one turn"


# what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["Nothing to enqueue", "queuectl enqueue -- sleep 2"]),
        (["sleep", "2"], ["'sleep' is no JSON object", "queuectl enqueue -- sleep"]),
        (["--"], ["A program is missing after --"]),
        (["--", ""], ["argv[0]"]),
        (["{"], ["no JSON"]),
        (['{"command": "a"}', '{"command": "b"}'], ["is too much"]),
        (['{"command": "a"}', "--file", "x"], ["both given"]),
        (['{"command": "a"}', "--", "b"], ["command and argv"]),
        (["--command", "a", "--", "b"], ["command and argv"]),
        (['{"command": "a", "id": "x"}', "--id", "y"], ["id is 'x' in the JSON and 'y' beside it"]),
        (["--id", "../x", "--", "true"], ["id cannot be"]),
        (["--id", "\x1b[2J", "--", "true"], ["id cannot be '\\x1b[2J'"]),
        (["--priority", "high", "--", "true"], ["priority"]),
        (["--max-retries", "-1", "--", "true"], ["max_retries"]),
        (["--max-retries", "1.5", "--", "true"], ["max-retries"]),
        (["--timeout", "soon", "--", "true"], ["timeout"]),
        (["--delay", "1h", "--run-at", "0", "--", "true"], ["delay and run_at"]),
        (["--run-at", "tomorrow", "--", "true"], ["run_at"]),
        (["--env", "A", "--", "true"], ["NAME=VALUE"]),
        (["--env", "=1", "--", "true"], ["env"]),
        (["--file", "no-such-file"], ["no-such-file cannot be read"]),
        (["--file", "/"], ["cannot be read"]),
        (["--file", "x", "--id", "a"], ["--id is for one job"]),
        (["-", "--key", "a"], ["--key is for one job"]),
        (["--", "a\udcff"], ["Unicode"]),
        (["--wrong", "--", "true"], ["--wrong"]),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    inside: Inside, home: Path, args: list[str], words: list[str]
) -> None:
    refused(inside("enqueue", *args), 2, *words)
    assert not jobs(home)


@pytest.mark.parametrize(
    ("second", "code", "words"),
    [
        ("nonsense", 2, ["stdin, line 3: ", "no JSON"]),
        ('{"id": "a", "command": "true"}', 6, ["line 3: line 1 has the id a already"]),
        ('{"command": "true", "prio": 1}', 2, ["line 3: ", "priority"]),
        ('{"command": "true", "after": ["a", "x"]}', 6, ["line 3: No job x"]),
        ('{"command": "true", "uses": "nobody"}', 6, ["line 3: No service 'nobody'", "queuectl service set"]),
        ('{"id": "b", "command": "true", "after": "b"}', 6, ["b after b"]),
    ],
)
def test_one_bad_line_refuses_all(
    inside: Inside, home: Path, second: str, code: int, words: list[str]
) -> None:
    refused(inside("enqueue", input=f'{{"id": "a", "command": "true"}}\n\n{second}\n'), code, *words)
    assert not jobs(home)


def test_an_array_gets_the_advice_to_make_lines_of_it(inside: Inside) -> None:
    refused(inside("enqueue", input='[{"command": "true"}]'), 2, "jq -c '.[]'")


@pytest.mark.parametrize("piece", [b"x", b"[", b"\xff"])
def test_a_flood_is_refused_before_all_of_it_came_and_takes_no_memory(home: Path, piece: bytes) -> None:
    within_100_mib = ["/bin/sh", "-c", 'ulimit -d 102400 && exec "$0" "$@"']
    with subprocess.Popen(
        [*within_100_mib, sys.executable, "-m", "runcue.cli", "enqueue"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"command": "')
        with pytest.raises(BrokenPipeError):
            process.stdin.write(piece * (100 * MIB))
        out, err = process.communicate(timeout=240)
    assert process.returncode == 2, err
    assert out == b""
    assert err == b"queuectl: stdin, line 1: it is longer than 4 MiB.\n"


def test_more_jobs_than_a_batch_may_have_are_refused(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    from runcue.cli.commands import enqueue

    monkeypatch.setattr(enqueue, "MOST_JOBS", 10)
    line = '{"command": "true"}\n'
    assert inside("enqueue", input=line * 10).code == 0
    refused(inside("enqueue", input=line * 11), 2, "line 11", "Split the input")
    monkeypatch.setattr(enqueue, "LARGEST_BATCH", 30)
    refused(inside("enqueue", input=line * 2), 2, "line 2", "Split the input")


# what is there already -------------------------------------------------------------------------------------


def test_an_id_is_given_once(inside: Inside, home: Path) -> None:
    assert inside("enqueue", "--id", "a", "--", "true").code == 0
    refused(inside("enqueue", "--id", "a", "--", "false"), 6, "There is a job a already")
    refused(inside("enqueue", input='{"command": "x"}\n{"id": "a", "command": "true"}'), 6, "job a already")
    assert len(jobs(home)) == 1


def test_a_key_enqueues_once(inside: Inside, home: Path) -> None:
    first = inside("enqueue", "-q", "--key", "daily", "--", "true").out
    again = inside("enqueue", "--key", "daily", "--", "true")
    assert again == Told(0, f"Already enqueued: {first.strip()} has the key 'daily'\n", "")
    assert inside("enqueue", "-q", "--key", "daily", "--id", "other", "--", "true").out == first
    refused(inside("enqueue", "--key", "daily", "--", "false"), 6, "'daily' belongs to", "another key")
    lines = '{"command": "x", "key": "k"}\n{"command": "x", "key": "k"}\n{"command": "y", "key": "l"}'
    assert ", 1 was there already" in inside("enqueue", input=lines).out
    assert len(jobs(home)) == 3


def test_a_key_with_an_id_of_its_own_enqueues_once_and_says_so(inside: Inside, home: Path) -> None:
    assert inside("enqueue", "--id", "z", "--key", "Z", "--", "true").out == "Enqueued z\n"
    again = inside("enqueue", "--id", "z", "--key", "Z", "--", "true")
    assert again == Told(0, "Already enqueued: z has the key 'Z'\n", "")
    lines = '{"id": "z", "command": "true", "key": "Z"}\n{"id": "y", "command": "true", "key": "Y"}'
    refused(inside("enqueue", input=lines.replace("true", "false")), 6, "'Z' belongs to z")
    assert len(jobs(home)) == 1


def test_a_job_after_one_that_is_not_there_is_refused(inside: Inside, home: Path) -> None:
    refused(inside("enqueue", "--after", "nobody", "--", "true"), 6, "No job nobody to run after. See them")
    assert not jobs(home)
    inside("enqueue", "--id", "build", "--", "true")
    line = '{"command": "true", "after": "biuld"}'
    refused(inside("enqueue", input=f"\n{line}"), 6, "line 2: No job biuld to run after. Did you mean build?")


def test_a_job_after_a_dead_one_is_warned_of(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--max-retries", "0", "--", "false")
    inside.work()
    told = inside("enqueue", "--after", "a", "--", "true")
    assert told.code == 0
    assert "Warning: a is dead" in told.err


def test_many_jobs_after_many_others_are_looked_up_together(inside: Inside, home: Path) -> None:
    names = [f"j{number}" for number in range(1200)]
    inside("enqueue", input="\n".join(json.dumps({"id": name, "command": "true"}) for name in names))
    assert inside("enqueue", input=json.dumps({"id": "last", "command": "true", "after": names})).code == 0
    assert len(job(home, "last").depends_on) == 1200
    refused(inside("enqueue", input=json.dumps({"command": "true", "after": [*names, "x"]})), 6, "No job x")


def test_eight_at_once_give_an_id_once(home: Path) -> None:
    told = one_of_eight(home, "enqueue", "--id", "one", "--", "true")
    assert [one.out for one in told if one.code == 0] == ["Enqueued one\n"]
    assert all(one.err.count("\n") == 1 for one in told if one.code)
    assert list(jobs(home)) == ["one"]


# moments, folders, long commands ---------------------------------------------------------------------------


def test_a_time_without_a_zone_is_taken_as_local_and_said(queuectl: Run, home: Path) -> None:
    told = queuectl(
        "enqueue", "--id", "a", "--run-at", "2030-01-31T19:00:00", "--", "true", env={"TZ": "XXX-1"}
    )
    assert told.returncode == 0
    assert told.stderr == "run_at names no time zone: taken as local time, 2030-01-31 19:00:00 +0100\n"
    assert job(home, "a").run_at == 1896112800
    zoned = queuectl("enqueue", "--run-at", "2030-01-31T18:00:00Z", "--", "true", env={"TZ": "XXX-1"})
    assert zoned.stderr == ""


def test_a_folder_that_is_not_there_yet_is_warned_of(inside: Inside, tmp_path: Path) -> None:
    told = inside("enqueue", "--cwd", str(tmp_path / "later"), "--", "true")
    assert told.code == 0
    assert "Warning: There is no folder" in told.err


def test_a_command_of_two_megabytes_runs_to_the_byte(inside: Inside, home: Path) -> None:
    word = "grüße" * 150_000
    command = f"printf %s '{word}' | wc -c; echo end"
    assert len(command.encode()) > 1_000_000
    text = json.dumps({"id": "a", "command": command + " #" + "x" * 1_000_000})
    assert inside("enqueue", input=text).code == 0
    inside.work()
    assert inside("logs", "a").out.split() == [str(len(word.encode())), "end"]
    assert [path.name for path in home.iterdir() if path.suffix == ".sh"] == []


def test_settings_hold_for_jobs_from_then_on(inside: Inside, home: Path) -> None:
    inside("enqueue", "--id", "before", "--", "true")
    assert inside("config", "set", "max-retries", "9").code == 0
    inside("enqueue", "--id", "later", "--", "true")
    assert {id: row["max_retries"] for id, row in jobs(home).items()} == {"before": 3, "later": 9}


def test_a_locale_without_letters_is_no_obstacle(queuectl: Run, home: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    told = queuectl("enqueue", "--id", "a", "--env", "A=ü", "--", "echo", "grüße", env=plain)
    assert (told.returncode, told.stderr) == (0, "")
    assert job(home, "a").params["argv"] == ["echo", "grüße"]
    assert job(home, "a").params["env"] == {"A": "ü"}


def test_an_empty_file_where_the_queue_will_be_is_no_obstacle(inside: Inside, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "queue.db").touch(mode=0o600)
    assert inside("enqueue", "--id", "a", "--", "true") == (0, "Enqueued a\n", "")


def test_a_terminal_is_told_what_to_do_next(home: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "runcue.cli", "enqueue", "--id", "a", "--", "true"],
        env=environment(home), stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, timeout=240, check=False,
    )  # fmt: skip
    os.close(theirs)
    out = os.read(ours, 1000)
    os.close(ours)
    assert done.returncode == 0
    assert out == b"Enqueued a\r\n"
    assert b"queuectl worker start" in done.stderr
