"""A crontab is read as cron reads it."""

from __future__ import annotations

import pytest

from runcue.cli import crontab
from runcue.cli.failure import Failure
from runcue.cli.jobs import Job
from runcue.host.system import files

HOME = "/home/me"


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Who is a user of this machine: more on some than on others."""
    found = {"root", "backup", "ls"}
    monkeypatch.setattr(files, "has_user", found.__contains__)
    return found


def read(text: str, **more: object) -> list[crontab.Entry]:
    return crontab.read(text, HOME, more).entries


def job(line: str) -> Job:
    [entry] = read(line)
    return entry.job


def refusal(text: str) -> str:
    with pytest.raises(Failure) as error:
        read(text)
    assert error.value.code == 2
    return error.value.text


def names(*commands: str) -> list[str]:
    return crontab.named(read("\n".join(f"@daily {one}" for one in commands)), ())


# lines -----------------------------------------------------------------------------------------------------


def test_a_line_is_five_fields_of_time_and_a_command() -> None:
    [entry] = read("30 4\t* * 1-5   cd /srv && make  all")
    assert (entry.line, entry.cron, entry.tz) == (1, "30 4 * * 1-5", None)
    assert (entry.job.command, entry.job.argv, entry.job.cwd) == ("cd /srv && make  all", None, HOME)


@pytest.mark.parametrize(
    "name", ["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"]
)
def test_a_line_may_begin_with_a_name(name: str) -> None:
    [entry] = read(f"{name}\tsave --all")
    assert (entry.cron, entry.job.command) == (name, "save --all")


def test_comments_and_blank_lines_say_nothing() -> None:
    found = read("# m h dom mon dow command\r\n\r\n   # more\n\n @daily a # b\r\n")
    assert [(one.line, one.job.command) for one in found] == [(5, "a # b")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("@reboot /usr/bin/start", "@reboot"),
        ("@reboot", "@reboot"),
        ("@daily", "no command"),
        ("0 3 * * *", "5 columns"),
        ("backup.sh", "1 columns"),
        ("0 0 3 * * * backup.sh", "six fields"),
        ("*/5 * * * * */5 backup.sh", "six fields"),
        ("@daily a\0b", "NUL"),
    ],
)
def test_what_means_nothing_is_refused_with_its_line(line: str, words: str) -> None:
    text = refusal(f"# one\n@daily fine\n{line}")
    assert text.startswith("line 3: ")
    assert words in text


def test_a_column_with_a_user_is_refused() -> None:
    assert "'root' is a user" in refusal("17 * * * * root cd / && run-parts /etc/cron.hourly")
    assert "line 2" in refusal("SHELL=/bin/sh\n@daily backup /usr/bin/save")
    assert job("@daily ls /tmp").command == "ls /tmp", "a program of that name is meant"
    assert job("@daily backup").command == "backup", "there is nothing behind it"
    assert job("@daily nobody-here /tmp").command == "nobody-here /tmp"


def test_whom_this_machine_knows_is_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert files.has_user("root")
    assert not files.has_user("no such user")
    assert not files.has_user("a\0b")


# variables -------------------------------------------------------------------------------------------------


def test_variables_hold_for_the_lines_below() -> None:
    first, second, third = read("@daily a\nPATH=/opt/bin:/bin\n@daily b\n \"COLOR\" = ' red '\n@daily c")
    assert first.job.env == {}
    assert second.job.env == {"PATH": "/opt/bin:/bin"}
    assert third.job.env == {"PATH": "/opt/bin:/bin", "COLOR": " red "}


def test_a_variable_in_front_of_a_command_belongs_to_the_command() -> None:
    assert job("@daily A=1 make").command == "A=1 make"


def test_the_shell_that_is_named_runs_the_command() -> None:
    found = job("SHELL=/bin/bash\n@daily echo $((1 + 1)) | cat")
    assert found.argv == ["/bin/bash", "-c", "echo $((1 + 1)) | cat"]
    assert found.env == {"SHELL": "/bin/bash"}
    assert job("SHELL=/bin/sh\n@daily true").argv is None


def test_home_is_where_a_job_runs() -> None:
    assert job("HOME=/srv/app\n@daily make").cwd == "/srv/app"


def test_cron_tz_is_the_time_zone_of_the_lines_below() -> None:
    found = read("@daily a\nCRON_TZ=Asia/Tokyo\n@daily b\nCRON_TZ=\n@daily c")
    assert [one.tz for one in found] == [None, "Asia/Tokyo", None]
    assert all(one.job.env == {} for one in found)


def test_what_only_cron_reads_is_left_out_and_said_once() -> None:
    found = crontab.read('MAILTO=""\n@daily a\nMAILTO=me@example.com\nRANDOM_DELAY=5\n@daily b', HOME, {})
    assert [one.job.env for one in found.entries] == [{}, {}]
    assert [note.partition(" is left out")[0] for note in found.notes] == [
        "line 1: MAILTO",
        "line 4: RANDOM_DELAY",
    ]


def test_options_hold_for_all() -> None:
    assert [one.job.max_retries for one in read("@daily a\n@daily b", max_retries=1)] == [1, 1]


# percent signs ---------------------------------------------------------------------------------------------


def test_an_escaped_percent_sign_is_one() -> None:
    assert job(r"@daily date +\%F_\%T > x").command == "date +%F_%T > x"


def test_what_follows_a_percent_sign_is_the_input() -> None:
    assert job("@daily mail -s hi me%Dear me,%%it's 100\\% done").command == (
        "printf %s 'Dear me,\n\nit'\"'\"'s 100% done\n' | /bin/sh -c 'mail -s hi me'"
    )


def test_a_backslash_before_anything_else_stays() -> None:
    assert job(r"@daily echo 'a\nb' \\ c").command == r"echo 'a\nb' \\ c"
    assert job("@daily cat\\\\%in").command == "printf %s 'in\n' | /bin/sh -c 'cat\\\\'"


def test_the_shell_that_is_named_gets_the_input() -> None:
    assert job("SHELL=/bin/bash\n@daily cat%in").command == "printf %s 'in\n' | /bin/bash -c cat"


# names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/local/bin/backup.sh --all > /dev/null 2>&1", "backup"),
        ("cd /srv/app && ./manage.py clearsessions", "manage"),
        ("/opt/venv/bin/python3 -m report", "report"),
        ("A=1 B=2 make all", "make"),
        ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "run-parts"),
        ("[ -x /usr/lib/clean ] && if [ ! -d /run/x ]; then /usr/lib/clean; fi", "clean"),
        ("sudo nice -n 10 '/opt/tools/sync-all'", "sync-all"),
        ("timeout 300 curl -fsS https://example.com/", "curl"),
        ("/opt/naïve/größe.py", "größe"),
        (":", "job"),
        ("$SCRIPT", "job"),
        ("cat%in", "cat"),
    ],
)
def test_a_name_is_made_of_the_command(command: str, name: str) -> None:
    assert names(command) == [name]


def test_no_name_is_given_twice_and_none_that_is_taken() -> None:
    entries = read("@daily save a\n@daily save b\n@daily save c")
    assert crontab.named(entries, ["save", "save-3"]) == ["save-2", "save-4", "save-5"]
