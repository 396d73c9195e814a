"""The frame of the command line: help, exit codes, streams, homes, and what is not loaded."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import runcue
from runcue.cli.failure import Failure, bad_input, conflict, misconfigured, not_found
from runcue.cli.groups import Family, LazyGroup, Verb
from runcue.cli.home import Home
from runcue.cli.main import failure_of, program
from tests.cli.conftest import Run, Watch
from tests.cli.crew import QUEUECTL, environment
from tests.patience import BOUND

VERBS = [
    "enqueue", "worker", "status", "list", "show", "logs", "cancel", "edit", "wait", "why", "dlq", "config", "pause",
    "resume", "service", "doctor", "completion", "demo", "top", "dashboard", "schedule",
]  # fmt: skip
NEVER_FOR_STATUS = [
    "asyncio", "concurrent", "dataclasses", "difflib", "email", "http", "importlib.metadata", "json",
    "multiprocessing", "rich", "selectors", "shutil", "socket", "ssl", "subprocess", "tempfile", "unicodedata",
    "runcue.api.wiring", "runcue.api.cue", "runcue.engine.engine", "runcue.executors.command.executor",
    "runcue.declare.registry", "runcue.api.sync",
    "runcue.cli.jobs", "runcue.cli.worker", "runcue.cli.supervisor", "runcue.cli.commands.enqueue",
]  # fmt: skip


def group() -> LazyGroup:
    found = program("queuectl")
    assert isinstance(found, LazyGroup)
    return found


# help -----------------------------------------------------------------------------------------------------


def test_every_verb_of_the_specification_is_there() -> None:
    names = group().list_commands(click.Context(group()))
    assert sorted(names) == sorted(VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help_with_an_example_before_its_options(name: str) -> None:
    for flag in ("-h", "--help"):
        said = CliRunner().invoke(group(), [name, flag], prog_name="queuectl")
        assert said.exit_code == 0, said.output
        assert "Examples:" in said.output
        assert said.output.index("Examples:") < said.output.index("Options:")
        assert f"queuectl {name}" in said.output


def test_every_verb_of_a_family_has_help() -> None:
    context = click.Context(group())
    for name in VERBS:
        found = group().get_command(context, name)
        assert isinstance(found, (Verb, Family))
        for part in found.commands if isinstance(found, Family) else ():
            said = CliRunner().invoke(group(), [name, part, "--help"])
            assert said.exit_code == 0, said.output
            assert said.output.strip()


def test_help_documents_the_exit_codes(queuectl: Run) -> None:
    said = queuectl("--help")
    assert said.returncode == 0
    for code in (0, 1, 2, 3, 4, 5, 6, 70, 124, 130, 141):
        assert f"\n    {code} " in said.stdout


def test_the_help_of_runcue_speaks_of_runcue() -> None:
    said = CliRunner().invoke(program("runcue"), ["--help"]).output
    assert "RUNCUE_DEBUG" in said
    assert "queuectl" not in said.lower()
    for code in (0, 2, 3, 4, 5, 70, 130, 141):
        assert f"\n    {code} " in said


def test_no_arguments_give_help(queuectl: Run) -> None:
    said = queuectl()
    assert said.returncode == 0
    assert "Usage: queuectl" in said.stdout


def test_version(queuectl: Run) -> None:
    assert queuectl("--version").stdout == f"queuectl {runcue.__version__}\n"


def test_help_is_given_whatever_the_home_is_like(queuectl: Run, home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    assert queuectl("list", "--help").returncode == 0
    assert queuectl("list").returncode == 4


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["lst"], "Did you mean 'list'?"),
        (["zzzzzz"], "There are: enqueue"),
        (["config", "gett", "x"], "Did you mean 'get'?"),
        (["list", "--stat", "x"], "--state"),
        (["list", "--state", "xyz"], "'pending', 'processing', 'completed', 'failed', 'dead', 'cancelled'"),
        (["list", "--limit", "-1"], "0<=x<=1000000000"),
        (["list", "--limit", "1000000000000"], "0<=x<=1000000000"),
        (["list", "--limit", "abc"], "--limit"),
        (["list", "--sort", "id; DROP TABLE"], "--sort"),
        (["--color", "blue", "list"], "auto"),
        (["--home", "", "list"], "--home is empty"),
        (["show"], "ID"),
        (["x" * 10_000], "No command"),
        (["\x1b[2J"], "No command"),
    ],
)
def test_a_wrong_word_gets_one_line_and_the_right_one(
    args: list[str], hint: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runcue.cli import main

    monkeypatch.setattr(sys, "argv", ["queuectl", *args])
    with pytest.raises(SystemExit) as ended:
        main.queuectl()
    said = capfd.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert hint in said.err
    assert said.err.count("\n") == 1
    assert "\x1b" not in said.err


# errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Failure("x", 124), 124),
        (bad_input("x"), 2),
        (misconfigured("x"), 4),
        (not_found("x"), 6),
        (conflict("x"), 6),
        (click.Abort(), 130),
        (click.UsageError("x"), 2),
        (click.FileError("x"), 2),
        (runcue.SchemaTooNew("x"), 4),
        (runcue.StorageBusy("x"), 5),
        (runcue.StorageCorrupt("x"), 3),
        (runcue.StorageFull("x"), 3),
        (runcue.StorageReplaced("x"), 3),
        (runcue.StoreError("x"), 3),
        (runcue.WorkNotFound("x"), 6),
        (runcue.DuplicateWork("x"), 6),
        (runcue.DependencyCycle(["x", "x"]), 6),
        (runcue.InvalidOption("x", 1, "2"), 2),
        (runcue.InvalidParams("x", "y"), 2),
        (runcue.QueueFull(1, 1), 2),
        (PermissionError(13, "Permission denied", "x"), 3),
        (ZeroDivisionError("x"), 70),
        (RecursionError("x"), 70),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    failure = failure_of(error)
    assert failure.code == code
    assert failure.text


def test_our_own_mistake_is_one_line_and_a_traceback_on_demand(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runcue.cli import main

    monkeypatch.setattr(main, "_invoked", lambda name, args: [].pop())
    monkeypatch.delenv("QUEUECTL_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main.queuectl()
    assert ended.value.code == 70
    assert capfd.readouterr().err == (
        "queuectl: internal error: IndexError: pop from empty list; set QUEUECTL_DEBUG=1 for details\n"
    )
    monkeypatch.setenv("QUEUECTL_DEBUG", "1")
    with pytest.raises(SystemExit):
        main.queuectl()
    assert "Traceback" in capfd.readouterr().err


# streams --------------------------------------------------------------------------------------------------


def in_shell(line: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `$Q` is the program."""
    quoted = " ".join(f"'{part}'" for part in QUEUECTL)
    return subprocess.run(
        ["/bin/bash", "-c", line.replace("$Q", quoted)],
        capture_output=True,
        text=True,
        env=environment(home, env),
        timeout=BOUND,
        check=False,
    )


def test_a_reader_that_goes_away_is_exit_code_141(stock: Path) -> None:
    said = in_shell("$Q --help | (exec <&-; sleep 0); echo ${PIPESTATUS[0]}", stock)
    assert said.stderr == ""
    assert said.stdout in {"141\n", "0\n"}  # 0 when all was written before the reader left


def test_a_pipe_that_nobody_reads_is_exit_code_141(stock: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [*QUEUECTL, "list"], stdout=writing, stderr=subprocess.PIPE, env=environment(stock), timeout=BOUND,
            check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert ended.returncode == 141
    assert ended.stderr == b""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_harm_nobody(closed: str, stock: Path) -> None:
    said = in_shell(f"$Q list {closed}; echo $? >&2", stock)
    assert said.stderr.endswith("0\n")
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [("nope 2</dev/null", 2), ("list 1</dev/null", 0), ("list --state failed 2</dev/null", 0)],
)
def test_streams_that_a_script_took_the_number_of_harm_nobody(line: str, code: int, stock: Path) -> None:
    """Bash opens a script as its lowest free number, also that of a closed stderr: it cannot be written to."""
    assert in_shell(f"$Q {line}", stock).returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_an_error_that_cannot_be_told_has_its_exit_code(stock: Path) -> None:
    assert in_shell("$Q nope 2> /dev/full", stock).returncode == 2
    assert in_shell("$Q show nope 2> /dev/full", stock).returncode == 6
    assert in_shell("$Q list > /dev/full 2>&1", stock).returncode == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_stdout_is_said(stock: Path) -> None:
    said = in_shell("$Q list > /dev/full", stock)
    assert said.returncode == 3
    assert said.stderr.count("\n") == 1
    assert "No space left" in said.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_any_locale_can_show_it(encoding: str, queuectl: Run, stock: Path) -> None:
    said = subprocess.run(
        [*QUEUECTL, "status"],
        capture_output=True,
        env=environment(stock, {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}),
        timeout=BOUND,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "4 pending" in said.stdout.decode(encoding)


def test_ctrl_c_is_exit_code_130(home: Path) -> None:
    child = subprocess.Popen(
        [*QUEUECTL, "status", "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=BOUND)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130
    assert said == b""


# homes ----------------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_whatever_the_umask_everything_is_its_owners_alone(umask: int, home: Path) -> None:
    said = in_shell(f"umask {umask:o}; exec $Q config set max_retries 5", home)
    assert said.returncode == 0, said.stderr
    assert mode(home) == 0o700
    for path in home.rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("bits", [0o770, 0o720, 0o702, 0o777])
def test_a_home_that_others_may_write_to_is_refused(bits: int, home: Path) -> None:
    home.mkdir()
    home.chmod(bits)
    with pytest.raises(Failure, match="chmod go-w") as refused:
        Home(str(home)).check()
    assert refused.value.code == 4
    assert Home(str(home), insecure=True).path == home


@pytest.mark.parametrize("bits", [0o660, 0o606])
def test_a_queue_that_others_may_write_to_is_refused(bits: int, home: Path) -> None:
    home.mkdir(mode=0o700)
    file = home / "queue.db"
    file.touch()
    file.chmod(bits)
    with pytest.raises(Failure, match=r"queue\.db") as refused:
        Home(str(home)).check()
    assert refused.value.code == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_home_of_another_user_is_refused_even_to_root(queuectl: Run, home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 12345, 12345)
    said = queuectl("list")
    assert said.returncode == 4
    assert "belongs to another user (uid 12345)" in said.stderr
    assert said.stderr.count("\n") == 1
    assert queuectl("--insecure", "list").returncode == 0


def test_the_option_beats_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / "variable"))
    assert Home(str(tmp_path / "option")).path == tmp_path / "option"
    assert Home().path == tmp_path / "variable"
    monkeypatch.setenv("QUEUECTL_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Home().path == tmp_path / ".queuectl"


def test_a_home_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(Failure) as refused:
            Home(str(path)).check()
        assert refused.value.code == 4
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(Failure) as refused:
            Home(name).check()
        assert refused.value.code == 2


def test_looking_creates_nothing(queuectl: Run, home: Path) -> None:
    for verb in ("status", "list", "doctor"):
        assert queuectl(verb).returncode == 0
    assert not home.exists()


def test_somebody_elses_directory_that_came_first_is_looked_at(home: Path) -> None:
    ours = Home(str(home))
    assert ours.check() == home
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(Failure, match="Others may write"):
        ours.make()


# what is not loaded ---------------------------------------------------------------------------------------


def test_status_loads_nothing_that_it_does_not_need(stock: Path) -> None:
    program_text = (
        "import sys\n"
        "sys.argv = ['queuectl', 'status']\n"
        "from runcue.cli.main import _run\n"
        "before = set(sys.modules)\n"
        "code = _run('queuectl')\n"
        "print(*sorted(sys.modules), sep='\\n', file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    said = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n" + program_text],
        capture_output=True,
        text=True,
        env=environment(stock),
        timeout=BOUND,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    loaded = set(said.stderr.split())
    assert "runcue.api.reader" in loaded
    assert sorted(loaded.intersection(NEVER_FOR_STATUS)) == []


def test_colour_follows_the_option_then_the_variables(on_terminal: Watch, queuectl: Run) -> None:
    def is_coloured(shown: str) -> bool:
        return "\x1b[" in shown

    assert is_coloured(on_terminal("status")[1])
    assert not is_coloured(on_terminal("status", env={"NO_COLOR": "1"})[1])
    assert not is_coloured(on_terminal("--color", "never", "status")[1])
    assert not is_coloured(queuectl("status").stdout)
    assert is_coloured(queuectl("status", env={"CLICOLOR_FORCE": "1"}).stdout)
    assert is_coloured(queuectl("--color", "always", "status", env={"NO_COLOR": "1"}).stdout)
    assert not is_coloured(queuectl("status", env={"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}).stdout)
