"""What a job may be, one key at a time, and what becomes of it when it is submitted and run."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

import runcue
from runcue import Work
from runcue.cli.failure import Failure
from runcue.cli.fields import CHECKS, NO_LIMIT, LocalTime, check
from runcue.cli.home import Home
from runcue.cli.jobs import Job, command_of, delay_of, open_cue, options_of, parse_job
from runcue.cli.place import end
from runcue.cli.screen import reason_of
from runcue.cli.settings import Settings
from runcue.cli.words import QUEUECTL

BAD_IDS = [
    "", ".", "..", "../../etc/passwd", "/abs", "a/b", "a\0b", "-rf", "a" * 129, "a" * 10_000, "a ", " a", "a\n",
    "%2e%2e", "a\u202eb", "a\u200bb", "\x1b[2J", "é", "a b",
]  # fmt: skip


def parsed(**fields: object) -> Job:
    return parse_job(msgspec.json.encode(fields))


def complaint(text: str | bytes) -> str:
    with pytest.raises(Failure) as caught:
        parse_job(text)
    assert caught.value.code == 2
    assert "\n" not in caught.value.text
    assert len(caught.value.text) < 400
    return caught.value.text


def complaint_about(**fields: object) -> str:
    return complaint(msgspec.json.encode({"command": "true", **fields}))


def outcome(fields: dict[str, Any]) -> Job | Failure:
    try:
        return parse_job(json.dumps(fields))
    except Failure as failure:
        return failure


# JSON ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[", "{", '{"command": "a"', '{"command": "a"} x', "{'command': 'a'}", b"\xff\xfe",
     '{"command": 1e', '{"command": "a\x01"}'],
)  # fmt: skip
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    assert complaint(text).startswith("This is no ")


@pytest.mark.parametrize(
    ("text", "what"), [("[]", "an empty list"), ("3", "3"), ("null", "null"), ('"a"', "'a'")]
)
def test_json_that_is_no_object_is_refused(text: str, what: str) -> None:
    assert complaint(text).endswith(f"not {what}.")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused(opening: str) -> None:
    assert "nested too deep" in complaint(opening * 100_000)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_number_is_refused(number: str) -> None:
    assert number in complaint(f'{{"command": "a", "priority": {number}}}')


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    assert "no JSON" in complaint(f'{{"command": "a", "priority": {"9" * 5000}}}')


def test_a_key_that_is_there_twice_is_refused() -> None:
    assert "'id' is there twice" in complaint('{"id": "a", "command": "true", "id": "a"}')
    assert "'A' is there twice" in complaint('{"command": "true", "env": {"A": "1", "A": "2"}}')


def test_an_unknown_key_gets_the_nearest() -> None:
    assert complaint_about(max_retry=3).endswith("Did you mean max_retries?")
    assert "There are: command" in complaint_about(zzzzzzz=3)


def test_a_byte_order_mark_is_no_harm() -> None:
    assert parse_job(b'\xef\xbb\xbf{"command": "true"}').command == "true"


def test_a_job_needs_a_command() -> None:
    assert "command is missing" in complaint('{"id": "a"}')


@given(some.dictionaries(some.sampled_from([*CHECKS, "x"]), some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=3), inner, max_size=2),
    max_leaves=5,
), max_size=4))  # fmt: skip
def test_any_object_gives_a_job_or_one_line(fields: dict[str, Any]) -> None:
    found = outcome(fields)
    if isinstance(found, Failure):
        assert found.code == 2
        assert "\n" not in found.text
    else:
        assert found.command.strip()
        assert options_of(found, Settings())["params"]["command"] == found.command


# keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", BAD_IDS)
def test_an_id_that_could_be_mistaken_for_anything_else_is_refused(id: str) -> None:
    assert complaint_about(id=id).startswith("id cannot be ")


@pytest.mark.parametrize("id", ["a", "CON", "0", "job1", "a.b-c_d", "a" * 128, "a."])
def test_a_plain_id_is_taken(id: str) -> None:
    assert parsed(id=id, command="true").id == id


@pytest.mark.parametrize("command", ["", " ", "\n\t "])
def test_an_empty_command_is_refused(command: str) -> None:
    assert "command is empty" in complaint(msgspec.json.encode({"command": command}))


def test_a_command_with_nul_or_without_meaning_in_unicode_is_refused() -> None:
    assert "NUL" in complaint('{"command": "a\\u0000b"}')
    assert "Unicode" in complaint('{"command": "a\\ud800b"}')


@pytest.mark.parametrize(
    "command", ["-x", "a\nb", "  echo hi  ", "grüße 🎉", "x" * 2_000_000, "echo '\x1b[2J'"]
)
def test_any_other_command_is_kept_to_the_byte(command: str) -> None:
    assert parsed(command=command).command == command


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("command", [None, 3, [], {}, True]),
        ("argv", ["ls", [], [1], [""], ["a\0"], {}, None]),
        ("id", [None, 3, ["a"]]),
        ("priority", ["3", 1.5, True, None, 2**63, -(2**63), 1e300, 1_000_001]),
        ("max_retries", ["3", -1, 2**63, True, 1.5, 1_000_001, None]),
        ("timeout", ["", "abc", 0, -1, True, [], "5 parsecs", "-5s", 1e300, "1e5"]),
        ("delay", ["", "none", -1, True, 1e10, "5x"]),
        ("run_at", ["tomorrow", -1, True, [], 1e300, "", "2030-13-01", 253_402_300_800]),
        ("queue", ["", "a\nb", "x" * 129, 3]),
        ("after", ["", [""], ["a", 3], {}, 3, ["../x"]]),
        ("key", ["", "x" * 513, 3, "a\0b"]),
        ("uses", ["", [3], {}]),
        ("cwd", ["", 3, "a\0b"]),
        ("env", ["A=1", [], {"A": 1}, {"": "1"}, {"A=B": "1"}, {"A": "x\0"}, {"A": None}]),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_the_key(key: str, values: list[object]) -> None:
    for value in values:
        fields = {key: value} if key in {"command", "argv"} else {"command": "true", key: value}
        assert key in complaint(msgspec.json.encode(fields)), value


def test_numbers_beyond_all_bounds_are_refused() -> None:
    assert "priority" in complaint('{"command": "a", "priority": 1e400}')
    assert "run_at" in complaint('{"command": "a", "run_at": 1e400}')
    assert "timeout" in complaint(f'{{"command": "a", "timeout": {"9" * 400}}}')


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("0.5s", 0.5), ("5m", 300), ("2h", 7200), ("7d", 604800), (90, 90)],
)
def test_a_time_is_written_as_people_write_it(text: object, seconds: float) -> None:
    assert parsed(command="true", timeout=text).timeout == seconds
    assert parsed(command="true", delay=text).delay == seconds


@pytest.mark.parametrize(
    "text",
    [
        "2030-01-31T18:00:00Z",
        "2030-01-31T19:00:00+01:00",
        "2030-01-31 18:00:00+00:00",
        1896112800,
        "1896112800",
    ],
)
def test_a_moment_is_iso_text_or_epoch_seconds(text: object) -> None:
    found = check("run_at", text)
    assert found == 1896112800
    assert not isinstance(found, LocalTime)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone an hour ahead of UTC."""
    monkeypatch.setenv("TZ", "XXX-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_a_moment_without_a_zone_is_local() -> None:
    found = check("run_at", "2030-01-31T19:00:00")
    assert found == 1896112800
    assert isinstance(found, LocalTime)


def test_flags_give_what_json_leaves_out_and_contradict_nothing() -> None:
    text = '{"command": "true", "priority": 3, "env": {"A": "1"}}'
    job = parse_job(text, {"id": "x", "priority": 3, "env": {"B": "2"}})
    assert (job.id, job.priority, job.env) == ("x", 3, {"A": "1", "B": "2"})
    with pytest.raises(Failure, match="priority is 3 in the JSON and 4 beside it"):
        parse_job(text, {"priority": 4})
    with pytest.raises(Failure, match="env has 'A'") as caught:
        parse_job(text, {"env": {"A": "secret"}})
    assert "secret" not in caught.value.text
    with pytest.raises(Failure, match="command and argv are both given"):
        parse_job(text, {"argv": ["true"]})


def test_delay_and_run_at_exclude_each_other() -> None:
    assert "delay and run_at are both given" in complaint_about(delay=1, run_at=1)


# submitting and running ------------------------------------------------------------------------------------


def test_what_a_job_leaves_open_is_settled_by_folder_and_settings() -> None:
    settings = Settings(max_retries=5, backoff_base=3, max_delay=60, timeout=20)
    options = options_of(parsed(command="true"), settings)
    retry = options["retry"]
    assert options["params"] == {"command": "true", "cwd": os.getcwd()}  # noqa: PTH109
    assert options["timeout"] == 20
    assert (retry.max_attempts, retry.backoff, retry.base_delay) == (5, "power", 3)
    assert (retry.max_delay, retry.jitter) == (60, False)


def test_a_job_of_no_retries_has_one_attempt() -> None:
    assert options_of(parsed(command="true", max_retries=0), Settings())["retry"].max_attempts == 1


def test_a_job_can_do_without_the_timeout_of_the_settings() -> None:
    job = parsed(command="true", timeout="none")
    assert job.timeout == NO_LIMIT
    assert "timeout" not in options_of(job, Settings(timeout=20))


def test_a_folder_is_absolute_when_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert options_of(parsed(command="true", cwd="sub/.."), Settings())["params"]["cwd"] == str(tmp_path)


def test_a_folder_that_is_gone_is_no_place_to_enqueue_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(Failure, match="no longer exists") as caught:
        options_of(parsed(command="true"), Settings())
    assert caught.value.code == 2


def test_an_argument_list_meets_no_shell() -> None:
    job = parsed(argv=["echo", "$HOME; rm -rf /"])
    assert job.command == "echo '$HOME; rm -rf /'"
    command = command_of("home", Work("a", "shell", options_of(job, Settings())["params"]))
    assert command.args == ["echo", "$HOME; rm -rf /"]
    assert not command.shell


def test_a_command_is_the_shells_with_its_folder_and_environment() -> None:
    job = parsed(command="echo $A", env={"A": "1"}, cwd="/tmp")
    command = command_of("home", Work("a", "shell", options_of(job, Settings())["params"]))
    assert (command.args, command.shell, command.cwd) == ("echo $A", True, "/tmp")
    own = {"QUEUECTL_HOME": "home", "QUEUECTL_JOB_ID": "a", "QUEUECTL_ATTEMPT": "1"}
    assert command.env == own | {"A": "1"}


def test_several_failures_are_a_line_each_and_the_last_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    end(Home(), [])
    with pytest.raises(Failure, match="two"):
        end(Home(), [Failure("one\x1b", 6), Failure("two", 6)])
    assert capsys.readouterr().err == "queuectl: one\\x1b\n"


@pytest.mark.parametrize(
    ("state", "failures", "word"),
    [("pending", 0, "pending"), ("pending", 1, "failed"), ("running", 0, "processing"), ("running", 2, "processing"),
     ("completed", 0, "completed"), ("failed", 3, "dead"), ("cancelled", 0, "cancelled")],
)  # fmt: skip
def test_states_have_the_words_of_queuectl(state: str, failures: int, word: str) -> None:
    from runcue import WorkState

    assert QUEUECTL.state_of(Work("a", "shell", state=WorkState(state), failures=failures)) == word


def test_a_reason_is_one_clean_line() -> None:
    assert reason_of("CommandFailed: exit code 3: \x1b[2J\nmore") == "exit code 3"
    assert reason_of(None) == "unknown"


# retries ---------------------------------------------------------------------------------------------------


async def pauses(
    home: Path, *jobs: dict[str, Any], change: Callable[[runcue.Cue], Awaitable[object]]
) -> dict[str, float]:
    """How long the first retry of each of these jobs waits, where settings are changed while all of them run."""
    place, found = Home(str(home)), dict[str, float]()
    place.make()
    cue, may_end = open_cue(place, Settings()), home / "may-end"
    command = f'until test -e "{may_end}"; do sleep 0.01; done; exit 1'
    async with asyncio.timeout(240), cue:
        await cue.submit_many(options_of(parsed(command=command), Settings()) | job for job in jobs)
        started = 0
        async for event in cue.events():
            started += event.type == "started"
            if event.type == "started" and started == len(jobs):
                await change(cue)
                may_end.touch()
            if event.type == "retrying":
                found[event.work_id or ""] = round(event.data["next_retry_at"] - event.at, 3)
                if len(found) == len(jobs):
                    break
    await cue.close()
    return found


async def test_a_retry_waits_as_the_settings_say_when_the_job_fails(home: Path) -> None:
    found = await pauses(home, {"id": "a"}, change=lambda cue: cue.set_config({"backoff_base": "100"}))
    assert found == {"a": 100.0}


async def test_no_retry_waits_longer_than_the_settings_say_when_the_job_fails(home: Path) -> None:
    values = {"backoff_base": "100", "max_delay": "50"}
    assert await pauses(home, {"id": "a"}, change=lambda cue: cue.set_config(values)) == {"a": 50.0}


async def test_a_job_that_a_program_gave_its_own_retries_keeps_them(home: Path) -> None:
    own = runcue.Retry(2, backoff="fixed", base_delay=70, jitter=False)
    jobs: list[dict[str, Any]] = [{"id": "own", "retry": own}, {"id": "plain"}]
    found = await pauses(home, *jobs, change=lambda cue: cue.set_config({"backoff_base": "100"}))
    assert found == {"own": 70.0, "plain": 100.0}


def test_a_delay_that_no_number_can_hold_is_the_longest(home: Path) -> None:
    work = Work("a", "shell", failures=10_000, retry=options_of(parsed(command="true"), Settings())["retry"])
    assert delay_of(Home(str(home)), work) == Settings().max_delay
