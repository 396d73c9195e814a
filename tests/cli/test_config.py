"""Settings: checked when they are written and when they are read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runcue
from runcue.cli.failure import Failure
from runcue.cli.settings import KEYS, Settings, check
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("key", "text", "stored"),
    [
        ("max_retries", "0", "0"),
        ("max-retries", " 5 ", "5"),
        ("max_retries", "007", "7"),
        ("backoff_base", "2.50", "2.5"),
        ("backoff_base", "1", "1"),
        ("max_delay", "5m", "300"),
        ("max_delay", "0", "0"),
        ("timeout", "none", "none"),
        ("timeout", "90s", "90"),
        ("timeout", "0.5", "0.5"),
        ("retention", "7d", "7d"),
        ("retention", "36h", "36h"),
        ("retention", "90", "90"),
        ("retention", "NONE", "none"),
        ("log_limit", "10M", "10M"),
        ("log-limit", "131072", "128k"),
        ("log_limit", "1 MiB", "1M"),
    ],
)
def test_what_is_right_is_stored_in_one_form(key: str, text: str, stored: str) -> None:
    assert check(key, text) == stored
    assert check(key, stored) == stored


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("max_retries", "abc"),
        ("max_retries", "-1"),
        ("max_retries", "1" + "0" * 30),
        ("max_retries", "1.5"),
        ("max_retries", ""),
        ("max_retries", "٣"),
        ("max_retries", "true"),
        ("backoff_base", "0"),
        ("backoff_base", "-2"),
        ("backoff_base", "inf"),
        ("backoff_base", "nan"),
        ("backoff_base", "1e400"),
        ("max_delay", "none"),
        ("max_delay", "5 parsecs"),
        ("max_delay", "99999999999"),
        ("timeout", "0"),
        ("timeout", "-5"),
        ("retention", "for ever"),
        ("log_limit", "1k"),
        ("log_limit", "10 TB"),
        ("log_limit", "\x1b[2J"),
        ("log_limit", "9" * 10_000),
    ],
)
def test_what_is_wrong_is_refused_by_name_and_rule(key: str, text: str) -> None:
    with pytest.raises(Failure, match=rf"^{key} cannot be '.*': expected ") as refused:
        check(key, text)
    assert refused.value.code == 2
    assert refused.value.text.isprintable()
    assert len(refused.value.text) < 200


def test_an_unknown_setting_gets_the_nearest() -> None:
    with pytest.raises(Failure, match=r"Did you mean max_retries\?") as refused:
        check("max-retry", "3")
    assert refused.value.code == 2
    with pytest.raises(Failure, match="There are: max_retries, "):
        check("\x1b[2J", "3")


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=20))
def test_any_text_is_either_refused_or_read_back_as_it_was_stored(key: str, text: str) -> None:
    try:
        stored = check(key, text)
    except Failure:
        return
    assert Settings.of({key: stored}).text(key) == stored


def test_a_damaged_row_gives_the_default_and_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    found = Settings.of({"max_retries": "\x1b[2Jgarbage", "backoff_base": "3", "of_an_application": "x"})
    assert found == Settings(backoff_base=3)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "max_retries is damaged" in said
    assert "\x1b" not in said


def test_defaults_are_those_of_the_specification() -> None:
    texts = {name: Settings().text(name) for name in KEYS}
    assert texts == {
        "max_retries": "3",
        "backoff_base": "2",
        "max_delay": "300",
        "timeout": "none",
        "retention": "7d",
        "log_limit": "10M",
    }
    assert [*KEYS] == [*Settings.__struct_fields__]


def test_a_setting_is_kept_read_back_and_taken_back(queuectl: Run, home: Path) -> None:
    assert queuectl("config", "get", "max-retries").stdout == "3\n"
    assert not home.exists()
    said = queuectl("config", "set", "max-retries", "5")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "max_retries is now 5.\n")
    assert queuectl("config", "get", "max_retries").stdout == "5\n"
    listed = msgspec.json.decode(queuectl("config", "list", "--json").stdout)
    assert listed["max_retries"] == {"value": 5, "default": 3}
    assert listed["timeout"] == {"value": None, "default": None}
    assert listed["retention"] == {"value": 604800, "default": 604800}
    assert list(listed) == list(KEYS)
    assert queuectl("config", "set", "max-retries", "default").returncode == 0
    assert msgspec.json.decode(queuectl("config", "get", "max_retries", "--json").stdout) == {
        "max_retries": 3
    }


def test_help_says_for_whom_a_setting_holds(queuectl: Run) -> None:
    said = " ".join(queuectl("config", "set", "--help").stdout.split())
    assert "max_retries and timeout hold for jobs that are enqueued from then on" in said
    assert "backoff_base and max_delay for every job that fails from then on" in said
    assert "retention and log_limit for workers that are started later" in said


@pytest.mark.parametrize("value", ["-1", "abc"])
def test_a_refused_setting_changes_nothing(value: str, queuectl: Run, home: Path) -> None:
    said = queuectl("config", "set", "max_retries", value)
    assert said.returncode == 2
    assert said.stdout == ""
    assert said.stderr.startswith(f"queuectl: max_retries cannot be '{value}'")
    assert said.stderr.count("\n") == 1
    assert not home.exists()


def test_a_damaged_row_stops_no_command(queuectl: Run, home: Path) -> None:
    async def damage() -> None:
        cue = runcue.Cue(home / "queue.db")
        await cue.set_config({"max_retries": "garbage", "timeout": "9e9"})
        await cue.close()

    home.mkdir(mode=0o700)
    asyncio.run(damage())
    said = queuectl("config", "list")
    assert said.returncode == 0
    assert said.stderr.count("Warning: ") == 2
    assert said.stdout.startswith("max_retries\t3\t3\t")
    seen = queuectl("doctor")
    assert seen.returncode == 0
    assert "The setting max_retries is damaged" in seen.stdout
