"""`queuectl schedule`: a crontab whose jobs retry, keep to limits and say why they wait."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue.cli.home import Home
from runcue.cli.jobs import KEEPING, open_cue
from runcue.host.system import clock
from tests.cli.conftest import Watch
from tests.cli.inside import Inside, refused

CRONTAB = """\
MAILTO=me@example.com
PATH=/usr/bin:/bin

17 * * * * cd / && run-parts --report /etc/cron.hourly
0 3 * * 1-5 /opt/backup.sh --all
CRON_TZ=Asia/Tokyo
@daily /opt/backup.sh --little
"""


@pytest.fixture(autouse=True)
def in_zurich(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time zone of this machine."""
    monkeypatch.setenv("TZ", "Europe/Zurich")


def schedules(home: Path) -> dict[str, runcue.ScheduleInfo]:
    """All that there are, as the library shows them."""
    with runcue.Reader(home / "queue.db") as reader:
        return {one.name: one for one in reader.schedules()}


def jobs(home: Path, name: str) -> list[runcue.Work]:
    """The jobs of a schedule."""
    with runcue.Reader(home / "queue.db") as reader:
        return reader.list(tags={"schedule": name})


# add -------------------------------------------------------------------------------------------------------


def test_a_schedule_is_added_with_its_job(inside: Inside, home: Path) -> None:
    told = inside("schedule", "add", "nightly", "0 3 * * 1-5", "--", "backup.sh", "all of it")
    assert told.code == 0
    assert re.fullmatch(r"Added nightly: 0 3 \* \* 1-5 Europe/Zurich, next 20\S+Z\n", told.out)
    found = schedules(home)["nightly"]
    assert (found.cron, found.tz, found.overlap, found.missed) == (
        "0 3 * * 1-5",
        "Europe/Zurich",
        "skip",
        "latest",
    )
    assert found.params == {
        "command": "backup.sh 'all of it'",
        "argv": ["backup.sh", "all of it"],
        "cwd": str(Path.cwd()),
    }


def test_an_interval_counts_from_now(inside: Inside, home: Path) -> None:
    assert inside("schedule", "add", "ping", "--every", "5m", "--", "true").out.startswith(
        "Added ping: every 5m, next"
    )
    found = schedules(home)["ping"]
    assert (found.every, found.cron) == (300, None)


def test_a_job_is_made_as_enqueue_makes_it(inside: Inside, home: Path) -> None:
    options = [
        "--priority",
        "3",
        "--max-retries",
        "2",
        "--timeout",
        "90s",
        "--queue",
        "night",
        "--uses",
        "disk",
    ]
    options += ["--cwd", "/", "--env", "A=1", "--command", "echo $A"]
    inside("service", "set", "disk", "--concurrent", "1")
    assert inside("schedule", "add", "a", "@daily", *options).code == 0
    assert inside("enqueue", "--id", "b", *options).code == 0
    inside("schedule", "run", "a")
    [made] = jobs(home, "a")
    with runcue.Reader(home / "queue.db") as reader:
        enqueued = reader.get("b")
    assert enqueued is not None
    for field in ("task", "params", "priority", "queue", "timeout", "retry", "services"):
        assert getattr(made, field) == getattr(enqueued, field), field


def test_all_that_a_schedule_has_can_be_said(inside: Inside, home: Path) -> None:
    told = inside(
        "schedule", "add", "a", "@daily", "--tz", "Asia/Tokyo", "--overlap", "replace", "--missed", "all", "--jitter",
        "10m", "--start", "2030-01-01T00:00:00Z", "--until", "2030-01-31T12:00:00+09:00", "--", "true",
    )  # fmt: skip
    assert told.code == 0, told
    found = schedules(home)["a"]
    assert (found.tz, found.overlap, found.missed, found.jitter) == ("Asia/Tokyo", "replace", "all", 600)
    assert (found.start, found.until) == (1893456000, 1896058800)
    assert found.next_at is not None
    assert found.next_at >= 1893456000


def test_a_moment_without_a_zone_is_local_and_said_to_be(inside: Inside, home: Path) -> None:
    told = inside("schedule", "add", "a", "@daily", "--start", "2030-01-01T00:00:00", "--", "true")
    assert "start names no time zone: taken as local time" in told.err
    assert schedules(home)["a"].start is not None


def test_one_that_is_over_is_said_to_be(inside: Inside) -> None:
    told = inside("schedule", "add", "a", "--every", "1h", "--until", "2001-01-01T00:00:00Z", "--", "true")
    assert told.out == "Added a: every 1h, over\n"
    assert "no slot any more" in told.err


@pytest.mark.parametrize("names", [["no/such/zone"], [""], []])
def test_where_the_machine_has_no_zone_utc_is_taken_and_said(
    inside: Inside, home: Path, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "zone_names", lambda: iter(names))
    told = inside("schedule", "add", "a", "@daily", "--", "true")
    assert told.code == 0
    assert "UTC is taken" in told.err
    assert schedules(home)["a"].tz == "UTC"


def test_the_machine_s_zone_is_named_by_its_link_or_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*clock.zone_names()] == ["Europe/Zurich"]
    monkeypatch.setenv("TZ", ":America/New_York")
    assert [*clock.zone_names()] == ["America/New_York"]
    monkeypatch.setenv("TZ", "")
    assert [*clock.zone_names()] == ["UTC"]
    monkeypatch.delenv("TZ")
    monkeypatch.setattr("os.path.realpath", lambda path: "/usr/share/zoneinfo/Asia/Tokyo")
    assert next(clock.zone_names()) == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["a", "61 * * * *", "--", "true"], ["Invalid cron", "five fields", "minute"]),
        (["a", "* * *", "--", "true"], ["Invalid cron", "five fields"]),
        (["a", "0 0 30 2 *", "--", "true"], ["Invalid cron", "never"]),
        (["a", "@reboot", "--", "true"], ["Invalid cron", "@daily"]),
        (["a", "0", "3", "*", "*", "*", "--", "true"], ["'3' is too much", "quotes"]),
        (["a", "@daily", "--every", "5m", "--", "true"], ["CRON or --every", "Both"]),
        (["a", "--", "true"], ["CRON or --every", "Neither"]),
        (["a", "--every", "0s", "--", "true"], ["every cannot be '0s'"]),
        (["a", "--every", "soon", "--", "true"], ["every cannot be 'soon'", "5m"]),
        (["a", "--every", "5m", "--tz", "UTC", "--", "true"], ["--tz is for CRON"]),
        (["a", "@daily", "--tz", "Mars/Base", "--", "true"], ["Invalid tz", "Europe/Zurich"]),
        (["a", "@daily", "--jitter", "x", "--", "true"], ["jitter cannot be 'x'"]),
        (["a", "@daily", "--start", "x", "--", "true"], ["start cannot be 'x'"]),
        (["a", "@daily", "--start", "20", "--until", "10", "--", "true"], ["Invalid until", "after start"]),
        (["a", "@daily", "--overlap", "x", "--", "true"], ["overlap", "'skip', 'queue', 'replace'"]),
        (["a", "@daily"], ["What is to be run?"]),
        (["a", "@daily", "--"], ["A program is missing after --"]),
        (["a", "@daily", "--command", "a", "--", "b"], ["command and argv are both given"]),
        (["a", "@daily", "--timeout", "x", "--", "b"], ["timeout cannot be 'x'"]),
        (["", "@daily", "--", "b"], ["name cannot be ''"]),
        (["a\nb", "@daily", "--", "b"], ["name cannot be"]),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_makes_nothing(
    inside: Inside, home: Path, args: list[str], words: list[str]
) -> None:
    refused(inside("schedule", "add", *args), 2, *words)
    assert not home.exists()


def test_an_unknown_service_is_refused(inside: Inside, home: Path) -> None:
    inside("enqueue", "--", "true")
    refused(inside("schedule", "add", "a", "@daily", "--uses", "disk", "--", "true"), 6, "No service 'disk'")
    assert schedules(home) == {}


def test_a_name_is_taken_until_it_is_meant_to_be_replaced(inside: Inside, home: Path) -> None:
    inside("schedule", "add", "a", "@daily", "--", "one")
    refused(inside("schedule", "add", "a", "@hourly", "--", "two"), 6, "There is a schedule 'a'", "--replace")
    assert schedules(home)["a"].params["argv"] == ["one"]
    told = inside("schedule", "add", "a", "@hourly", "--replace", "--", "two")
    assert told.out.startswith("Changed a: @hourly Europe/Zurich, next ")
    assert schedules(home)["a"].params["argv"] == ["two"]


def test_a_schedule_of_a_program_is_left_to_it(inside: Inside, home: Path) -> None:
    declared(home)
    told = inside("schedule", "add", "sweep", "@daily", "--replace", "--", "true")
    refused(told, 6, "'sweep' is declared by")


def declared(home: Path) -> None:
    """Have a program declare a schedule of its own in this home."""

    async def main() -> None:
        place = Home(str(home))
        place.make()
        cue = open_cue(place, KEEPING)

        @cue.every("1h")
        async def sweep() -> None:
            """Never called."""

        await cue.schedules()
        await cue.close()

    asyncio.run(main())


# list and show ---------------------------------------------------------------------------------------------


def test_schedules_are_listed(inside: Inside, home: Path) -> None:
    told = inside("schedule", "list")
    assert (told.code, told.out) == (0, "")
    assert "queuectl schedule add" in told.err
    assert inside("schedule", "list", "--json").out == "[]\n"
    inside("schedule", "add", "nightly", "0 3 * * *", "--", "backup.sh")
    inside(
        "schedule",
        "add",
        "ping",
        "--every",
        "5m",
        "--env",
        "KEY=hidden",
        "--",
        "curl",
        "--password",
        "hunter2",
    )
    inside("schedule", "pause", "ping")
    id = inside("schedule", "run", "ping").out.strip()
    inside("cancel", id)
    nightly, ping = (line.split("\t") for line in inside("schedule", "list").out.splitlines())
    assert [nightly[0], nightly[1], nightly[3:]] == [
        "nightly",
        "0 3 * * * Europe/Zurich",
        ["-", "active", "backup.sh"],
    ]
    assert re.fullmatch(r"\S+Z", nightly[2])
    assert ping[:3] == ["ping", "every 5m", "-"]
    assert re.fullmatch(r"cancelled \S+Z", ping[3])
    assert ping[4:] == ["paused", "curl --password ***"]
    _, found = json.loads(inside("schedule", "list", "--json").out)
    assert (found["last_id"], found["last_state"], found["runs"], found["next_at"]) == (
        id,
        "cancelled",
        1,
        None,
    )
    assert (found["env"], found["command"]) == ({"KEY": "***"}, "curl --password ***")
    assert "hunter2" in inside("schedule", "list", "--raw").out
    assert "hidden" not in inside("schedule", "list", "--raw", "--json").out


def test_how_long_it_takes_is_said_on_a_terminal(inside: Inside, on_terminal: Watch) -> None:
    inside("schedule", "add", "ping", "--every", "2h", "--", "true")
    shown = on_terminal("schedule", "list", columns=120, env={"NO_COLOR": "1"})[1]
    assert re.search(r"^NAME +WHEN +NEXT +LAST +STATE +COMMAND$", shown, re.MULTILINE)
    assert re.search(r"^ping +every 2h +in (1 h 59 m|2 h), 20\S+ \S+Z +- +active +true$", shown, re.MULTILINE)


def test_a_terminal_is_told_that_no_worker_runs(on_terminal: Watch) -> None:
    shown = on_terminal("schedule", "add", "ping", "--every", "2h", "--", "true")[1]
    assert "No worker is running for that. Start one: queuectl worker start" in shown


def test_everything_of_one_is_shown_with_its_latest_jobs(inside: Inside) -> None:
    inside("schedule", "add", "a", "@daily", "--jitter", "5m", "--env", "KEY=hidden", "--", "false")
    id = inside("schedule", "run", "a").out.strip()
    told = inside("schedule", "show", "a")
    assert told.code == 0
    for words in (r"when +@daily Europe/Zurich", r"next +\S+Z, in ", r"command +false", r"jitter +5 m", r"runs +1\n",
                  r"environment +KEY=\*\*\*", rf"{id}  pending"):  # fmt: skip
        assert re.search(words, told.out), words
    assert "hidden" not in told.out
    assert json.loads(inside("schedule", "show", "a", "--json").out)["last_id"] == id


def test_jobs_that_come_are_those_of_cron_with_retries(inside: Inside, home: Path) -> None:
    inside("config", "set", "backoff_base", "0.001")
    script = f'echo "$QUEUECTL_ATTEMPT" >> "{home}/log"; test "$QUEUECTL_ATTEMPT" = 2'
    inside("schedule", "add", "a", "@daily", "--command", script)
    id = inside("schedule", "run", "a").out.strip()
    inside.work()
    assert (home / "log").read_text().split() == ["1", "2"]
    assert inside("show", id, "--json").code == 0
    assert re.search(r"last +completed ", inside("schedule", "show", "a").out)


def test_a_worker_runs_the_jobs_of_slots_that_come(inside: Inside, home: Path) -> None:
    inside("schedule", "add", "a", "--every", "1s", "--", "touch", f"{home}/came")

    async def work() -> None:
        cue = open_cue(Home(str(home)), KEEPING, max_running=2)
        async with asyncio.timeout(240), cue:
            async for _ in cue.events("completed"):
                break
        await cue.close()

    asyncio.run(work())
    assert (home / "came").exists()
    assert schedules(home)["a"].runs >= 1


# pause, resume, run, remove --------------------------------------------------------------------------------


def test_a_schedule_is_paused_and_resumed(inside: Inside, home: Path) -> None:
    inside("schedule", "add", "a", "@daily", "--", "true")
    told = inside("schedule", "pause", "a")
    assert told == (0, "Paused schedule a. Go on with: queuectl schedule resume a\n", "")
    assert (schedules(home)["a"].paused, schedules(home)["a"].next_at) == (True, None)
    assert inside("schedule", "resume", "a") == (0, "Resumed schedule a\n", "")
    assert schedules(home)["a"].next_at is not None


def test_a_job_that_is_run_now_is_named(inside: Inside, home: Path) -> None:
    inside("schedule", "add", "a", "@daily", "--", "true")
    told = inside("schedule", "run", "a")
    assert (told.code, told.err) == (0, "")
    assert [work.id for work in jobs(home, "a")] == [told.out.strip()]


def test_a_schedule_is_removed_and_its_jobs_stay(inside: Inside, home: Path) -> None:
    inside("schedule", "add", "a", "@daily", "--", "true")
    inside("schedule", "run", "a")
    assert inside("schedule", "remove", "a") == (0, "Removed schedule a. Its jobs stay.\n", "")
    assert schedules(home) == {}
    assert len(jobs(home, "a")) == 1


def test_one_that_a_program_declares_is_said_to_come_back(inside: Inside, home: Path) -> None:
    declared(home)
    told = inside("schedule", "remove", "sweep")
    assert told.code == 0
    assert "comes back when that starts" in told.err


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "remove"])
def test_an_unknown_name_gets_the_nearest(inside: Inside, verb: str) -> None:
    refused(inside("schedule", verb, "nightly"), 6, "There are no jobs")
    inside("schedule", "add", "nightly", "@daily", "--", "true")
    refused(inside("schedule", verb, "nigtly"), 6, "no schedule 'nigtly'", "Did you mean 'nightly'?")


# import ----------------------------------------------------------------------------------------------------


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()]


def test_a_crontab_is_imported(
    inside: Inside, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "crontab").write_text(CRONTAB)
    told = inside("schedule", "import", str(tmp_path / "crontab"))
    assert told.code == 0
    assert rows(told.out) == [
        ["run-parts", "17 * * * * Europe/Zurich", "cd / && run-parts --report /etc/cron.hourly"],
        ["backup", "0 3 * * 1-5 Europe/Zurich", "/opt/backup.sh --all"],
        ["backup-2", "@daily Asia/Tokyo", "/opt/backup.sh --little"],
    ]
    assert told.err.splitlines() == [
        "line 1: MAILTO is left out: nothing is mailed. What a job prints: queuectl logs ID",
        "Added 3 schedules.",
    ]
    found = schedules(home)
    assert sorted(found) == ["backup", "backup-2", "run-parts"]
    assert found["backup"].params == {
        "command": "/opt/backup.sh --all",
        "cwd": str(tmp_path),
        "env": {"PATH": "/usr/bin:/bin"},
    }


def test_all_of_a_crontab_is_added_in_one_turn(inside: Inside, home: Path) -> None:
    inside("schedule", "import", "-", input=CRONTAB)
    with runcue.Reader(home / "queue.db") as reader:
        added = [event for event in reader.events("schedule_changed") if event.data["change"] == "added"]
    assert len(added) == 3
    assert len({event.at for event in added}) == 1


def test_what_is_there_already_is_not_imported_again(inside: Inside, home: Path) -> None:
    inside("schedule", "import", "-", input=CRONTAB)
    told = inside("schedule", "import", "-", "--dry-run", input=CRONTAB)
    assert (told.code, told.out) == (0, "")
    assert told.err.endswith("Would add 0 schedules, 3 were there already.\n")
    told = inside("schedule", "import", "-", input=f"{CRONTAB}@weekly /opt/backup.sh --much\n")
    assert rows(told.out) == [["backup-3", "@weekly Asia/Tokyo", "/opt/backup.sh --much"]]
    assert told.err.endswith("Added 1 schedule, 3 were there already.\n")
    assert len(schedules(home)) == 4


def test_no_secret_of_a_crontab_is_shown(inside: Inside) -> None:
    told = inside(
        "schedule", "import", "-", input="@daily curl --password hunter2 https://me:hunter3@host/\n"
    )
    assert "hunter" not in told.out
    assert "curl --password ***" in told.out


def test_a_dry_run_makes_nothing(inside: Inside, home: Path) -> None:
    told = inside("schedule", "import", "-", "--dry-run", input=CRONTAB)
    assert (told.code, len(rows(told.out))) == (0, 3)
    assert told.err.endswith("Would add 3 schedules.\n")
    assert not home.exists()


def test_options_hold_for_all_that_is_imported(inside: Inside, home: Path) -> None:
    options = ["--tz", "UTC", "--overlap", "queue", "--missed", "none", "--jitter", "5", "--max-retries", "1"]
    assert inside("schedule", "import", "-", *options, "--queue", "night", input=CRONTAB).code == 0
    for one in schedules(home).values():
        assert (one.overlap, one.missed, one.jitter, one.queue) == ("queue", "none", 5, "night")
    assert {one.tz for one in schedules(home).values()} == {"UTC", "Asia/Tokyo"}
    inside("schedule", "run", "backup")
    [job] = jobs(home, "backup")
    assert job.retry is not None
    assert job.retry.max_attempts == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("@reboot start\n", ["stdin, line 8: @reboot", "'start'"]),
        ("61 * * * * start\n", ["stdin, line 8: Invalid cron"]),
        ("@often start\n", ["stdin, line 8: Invalid cron: '@often'"]),
        ("CRON_TZ=Mars/Base\n@daily start\n", ["stdin, line 9: Invalid tz: 'Mars/Base'"]),
        ("0 0 31 2 * start\n", ["stdin, line 8: Invalid cron", "never"]),
        ("0 3 * * * root start it\n", ["stdin, line 8: 'root' is a user", "system crontab"]),
        ("* * * * * * start\n", ["stdin, line 8:", "six fields of time"]),
    ],
)
def test_nothing_of_a_crontab_is_imported_that_has_something_wrong(
    inside: Inside, home: Path, more: str, words: list[str]
) -> None:
    refused(inside("schedule", "import", "-", input=CRONTAB + more), 2, *words)
    assert not home.exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["stdin: it holds no job"]),
        (b"# nothing\nPATH=/bin\n", ["stdin: it holds no job"]),
        (b"@daily true\n@daily \xff\n", ["stdin, line 2", "UTF-8"]),
        (b"#" * (1024 * 1024 + 1), ["stdin is longer than 1 MiB"]),
    ],
)
def test_what_is_no_crontab_is_refused(inside: Inside, home: Path, data: bytes, words: list[str]) -> None:
    refused(inside("schedule", "import", "-", input=data), 2, *words)
    assert not home.exists()


def test_a_home_that_cannot_be_used_is_no_fault_of_the_crontab(inside: Inside, home: Path) -> None:
    inside("schedule", "add", "a", "@daily", "--", "true")
    home.chmod(0o777)
    told = inside("schedule", "import", "-", input=CRONTAB)
    refused(told, 4, "Others may write to")
    assert "stdin" not in told.err


@pytest.mark.parametrize("name", ["", "nowhere", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_told(inside: Inside, name: str, tmp_path: Path) -> None:
    given = name if not name or "\0" in name else str(tmp_path / name)
    refused(inside("schedule", "import", given), 2, "cannot be read")


def test_the_input_of_a_line_reaches_its_command(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    line = f"@daily cat > '{home}/got'%Dear me,%it's 100\\% done\n"
    inside("schedule", "import", "-", input=line)
    inside("schedule", "run", "cat")
    inside.work()
    assert (home / "got").read_text() == "Dear me,\nit's 100% done\n"


def test_names_are_offered_for_completion(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    inside("schedule", "add", "nightly", "@daily", "--", "true")
    monkeypatch.setenv("_QUEUECTL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "queuectl schedule pause n")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert "nightly" in inside().out


def test_the_state_of_each_is_a_word_or_what_is_wrong(inside: Inside, home: Path) -> None:
    inside("schedule", "add", "a", "@daily", "--", "true")

    def stated(**changes: Any) -> str:
        from msgspec.structs import replace

        from runcue.cli.schedules import state_of

        return state_of(replace(schedules(home)["a"], **changes))

    assert stated() == "active"
    assert stated(next_at=None) == "over"
    assert stated(next_at=None, problem="nobody knows it") == "nobody knows it"
    assert stated(next_at=None, problem="nobody knows it", paused=True) == "paused"
