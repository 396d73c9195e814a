"""Commands run, are limited, and are really gone afterwards, whatever they do."""

import asyncio
import errno
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Work, WorkState
from runcue.errors import BadCommand, CommandFailed, RetryLater
from runcue.executors.command import child as child_module
from runcue.executors.command import executor as command_module
from runcue.executors.command.executor import CommandExecutor
from runcue.executors.command.output import Stream, stem
from runcue.executors.command.reaper import Reaper
from runcue.executors.command.text import KEEP
from runcue.executors.process_locks import Jobs, end_leftovers
from runcue.host.posix import files
from runcue.host.posix.processes import process
from runcue.ports import TooLate
from runcue.testing import VirtualLoop
from tests.executors.fakes import Entered, FakeTask, FakeWork, RealClock, jobs_folder
from tests.patience import BOUND, lives, until, until_sync

MIB = 1024 * 1024
ROOT = Path(__file__).resolve().parent.parent.parent
GRACE = 0.3


class Place:
    """An executor with a folder of its own, and what can be seen of it from outside."""

    def __init__(self, directory: Path, grace: float = GRACE) -> None:
        self.files = directory / "queue.db.files"
        self.jobs = Jobs(jobs_folder(directory))
        self.reaper = Reaper(self.jobs)
        self.executor = CommandExecutor(RealClock(), grace, self.files, self.jobs, self.reaper)

    async def run(self, command: object, work: FakeWork | None = None, **options: Any) -> Any:
        task = FakeTask(lambda work: command, **options)
        return await self.executor.run(work if work is not None else FakeWork(), task, None)

    def names(self) -> set[str]:
        return {path.name for path in self.files.iterdir()} if self.files.exists() else set()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Closed at the end; then no lock, no child and no reaper may be left."""
    made = Place(tmp_path)
    children = own_children()
    yield made
    await made.executor.close()
    assert made.jobs.directory is not None
    assert not made.jobs.directory.exists()
    assert own_children() == children


def own_children() -> set[int]:
    """The children of this process, zombies included."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in found.split()}


async def number_in(path: Path) -> int:
    """A pid that a command writes."""
    text = await until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text())
    return int(text)


async def failure(doing: Awaitable[Any]) -> CommandFailed:
    with pytest.raises(CommandFailed) as caught:
        await doing
    return caught.value


# --- What is run ----------------------------------------------------------------------------------


async def test_the_result_is_what_was_printed_and_the_exit_code(place: Place) -> None:
    result = await place.run(["sh", "-c", "echo out; echo err >&2"])
    assert result == {"stdout": "out\n", "stderr": "err\n", "exit_code": 0}


async def test_an_async_handler_may_build_the_command(place: Place) -> None:
    async def handler(work: FakeWork) -> list[str]:
        await asyncio.sleep(0)
        return ["echo", work.params["word"]]

    result = await place.executor.run(FakeWork({"word": "hello"}), FakeTask(handler), None)
    assert result["stdout"] == "hello\n"


async def test_arguments_may_be_paths(place: Place, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("content")
    assert (await place.run(["cat", tmp_path / "a file"]))["stdout"] == "content"


async def test_nothing_in_an_argument_is_read_by_a_shell(place: Place) -> None:
    assert (await place.run(["echo", "$HOME; `id` *"]))["stdout"] == "$HOME; `id` *\n"


@pytest.mark.parametrize("text", ["printf '%s' \"a  b\"; echo $((1 + 1))", "  echo 2", "echo 'ä\n'; echo 2"])
async def test_a_str_is_run_by_the_shell_when_the_task_says_so(place: Place, text: str) -> None:
    assert (await place.run(text, shell=True))["stdout"].endswith("2\n")


async def test_a_shell_command_that_begins_with_a_dash_is_no_option(place: Place) -> None:
    error = await failure(place.run("-e", shell=True))
    assert error.reason.startswith("exit code 127")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("ls -l", "give the task shell=True"),
        ([], "names no program"),
        ([""], "names no program"),
        ([1, 2], "make every argument a str"),
        (["echo", None], "make every argument a str"),
        (["echo", b"x"], "make every argument a str"),
        (["echo", "a\0b"], "NUL"),
        (["echo", "\ud800"], "cannot be encoded"),
        (("echo", "x"), "type tuple"),
        (None, "type NoneType"),
        (b"ls", "type bytes"),
        ({"echo": "x"}, "type dict"),
    ],
)
async def test_what_is_no_command_is_refused_and_nothing_runs(
    place: Place, command: object, says: str
) -> None:
    with pytest.raises(BadCommand, match=r"^bad_command: ") as caught:
        await place.run(command)
    assert says in str(caught.value)
    assert place.reaper.pid is None


@pytest.mark.parametrize("command", ["", "echo \0"])
async def test_an_empty_str_or_one_with_a_nul_is_no_shell_command(place: Place, command: str) -> None:
    with pytest.raises(BadCommand, match=r"^bad_command: "):
        await place.run(command, shell=True)


async def test_a_variable_that_cannot_be_is_a_bad_command(place: Place) -> None:
    with pytest.raises(BadCommand, match=r"^bad_command: .*env"):
        await place.run(["true"], env={"A=B": "c"})
    assert place.names() == set()


async def test_a_command_has_the_folder_it_was_given(place: Place, tmp_path: Path) -> None:
    assert (await place.run(["pwd"], cwd=str(tmp_path)))["stdout"] == f"{tmp_path}\n"


async def test_a_command_that_reads_finds_the_end_of_its_input(place: Place) -> None:
    kept = os.dup(0)
    read, write = os.pipe()
    os.dup2(read, 0)  # our own input is one that never ends
    try:
        async with asyncio.timeout(BOUND):
            assert (await place.run(["cat"]))["exit_code"] == 0
    finally:
        os.dup2(kept, 0)
        for descriptor in (kept, read, write):
            os.close(descriptor)


async def test_secrets_of_ours_stay_here_and_env_is_added(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RUNCUE_TOKEN", "QUEUECTL_TOKEN", "PGPASSWORD"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("COLOUR", "green")
    said = (await place.run(["env"], env={"SIZE": "large"}))["stdout"].splitlines()
    assert {"COLOUR=green", "SIZE=large"} <= set(said)
    assert not [line for line in said if "canary" in line]
    assert "SIZE=large" not in (await place.run(["env"]))["stdout"]
    assert "PGPASSWORD=given\n" in (await place.run(["env"], env={"PGPASSWORD": "given"}))["stdout"]


async def test_a_command_inherits_nothing_but_its_output_and_its_lock(place: Place) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        said = (await place.run(["sh", "-c", "ls -l /proc/$$/fd"]))["stdout"]
    finally:
        os.close(read)
        os.close(write)
    assert "pipe:" not in said
    assert len([line for line in said.splitlines() if "->" in line]) == 4


async def test_entered_is_told_once_and_only_if_it_started(place: Place) -> None:
    entered = Entered()
    await place.executor.run(FakeWork(), FakeTask(lambda work: ["true"]), entered)
    assert entered.times == [None]
    not_entered = Entered()
    await failure(place.executor.run(FakeWork(), FakeTask(lambda work: ["/no/such"]), not_entered))
    assert not_entered.times == []


async def test_what_comes_too_late_for_its_grant_is_not_started(place: Place) -> None:
    entered = Entered()
    entered.is_late = True
    with pytest.raises(TooLate):
        await place.executor.run(FakeWork(), FakeTask(lambda work: ["true"]), entered)
    assert entered.times == []
    assert place.reaper.pid is None


# --- How it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 2, 77, 126, 127, 128, 255])
async def test_another_exit_code_than_0_is_a_failure_that_quotes_the_last_line(
    place: Place, code: int
) -> None:
    error = await failure(place.run(["sh", "-c", f"echo 1 >&2; echo 'no luck' >&2; exit {code}"]))
    assert error.reason == f"exit code {code}: no luck"
    assert error.result == {"stdout": "", "stderr": "1\nno luck\n", "exit_code": code}


async def test_with_check_false_an_exit_code_is_a_result(place: Place) -> None:
    assert (await place.run(["sh", "-c", "exit 3"], check=False))["exit_code"] == 3


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
async def test_death_by_signal_is_a_failure_that_names_it(place: Place, name: str, check: bool) -> None:
    error = await failure(place.run(["sh", "-c", f"ulimit -c 0; kill -s {name} $$"], check=check))
    assert error.reason == f"signal:{name}"
    assert error.result is not None
    assert error.result["exit_code"] == -signal.Signals[f"SIG{name}"]


def script(path: Path, text: str, mode: int = 0o700) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


async def test_what_cannot_be_started_is_a_failure_with_its_reason(place: Place, tmp_path: Path) -> None:
    async def reason(command: list[str], **options: Any) -> str:
        return (await failure(place.run(command, **options))).reason

    assert (await reason(["no-such-program"])).startswith("not found: 'no-such-program'")
    assert (await reason([script(tmp_path / "a", "#!/no/such/shell\n")])).startswith("not found: ")
    assert (await reason([script(tmp_path / "b", "x", 0o600)])).startswith("not executable: ")
    assert (await reason([script(tmp_path / "c", "no format\n")])).startswith("not executable: ")
    assert (await reason(["echo", "x" * 3 * MIB])).startswith("too long: ")
    assert (await reason(["true"], cwd=str(tmp_path / "gone"))).startswith("no such folder: ")
    assert place.names() == set()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
async def test_a_system_without_room_makes_the_work_wait(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    await place.run(["true"])

    def refuse(*given: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(command_module, "Popen", refuse)
        with pytest.raises(RetryLater, match="no room for another command") as caught:
            await place.run(["true"])
    assert caught.value.after == 1.0
    assert (await place.run(["true"]))["exit_code"] == 0


async def test_without_a_thread_for_its_output_the_work_waits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RetryLater, match="can't start new thread"):
            await place.run(["true"])
    assert (await place.run(["true"]))["exit_code"] == 0


async def test_a_full_disk_makes_no_difference_to_a_command_that_has_started(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert (await place.run(["echo", "x"]))["stdout"] == "x\n"


@pytest.mark.parametrize(
    ("error", "comes_as"),
    [
        (MemoryError(), MemoryError),
        (OSError(errno.ENOSPC, "full"), RetryLater),
        (RuntimeError("no threads"), RetryLater),
    ],
)
@pytest.mark.parametrize("where", ["reaper", "jobs", "child"])
async def test_what_cannot_be_seen_to_once_it_was_started_is_ended_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, comes_as: type[Exception]
) -> None:
    await place.run(["true"])
    before, pids = held(), []

    def refuse(*given: object) -> None:
        raise error

    def noted(*given: Any, **named: Any) -> subprocess.Popen[bytes]:
        started = subprocess.Popen(*given, **named)
        pids.append(started.pid)
        return started

    owner, name = {
        "reaper": (place.reaper, "register"),
        "jobs": (place.jobs, "started"),
        "child": (command_module, "Child"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refuse)
        patch.setattr(command_module, "Popen", noted)
        with pytest.raises(comes_as):
            await place.run(["sleep", "600"])
    [pid] = pids
    assert not lives(pid)
    assert not held() - before
    assert (await place.run(["true"]))["exit_code"] == 0


async def test_without_descriptors_the_work_waits_and_nothing_leaks(place: Place) -> None:
    await place.run(["true"])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(open_descriptors())
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 32, before[1]))
    try:
        while len(open_descriptors()) < highest + 31:  # one is for looking
            taken.append(os.dup(0))
        taken.append(os.dup(0))
        for free in range(12):  # each step of the preparation meets the limit once
            with pytest.raises(RetryLater, match="no room") if free < 4 else NoMatter():
                await place.run(["true"])
            os.close(taken.pop())
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (await place.run(["true"]))["exit_code"] == 0


class NoMatter:
    """A context in which RetryLater may come or not."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, RetryLater)


async def test_an_exit_code_that_somebody_else_took_is_not_made_up(place: Place) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps children itself
    try:
        error = await failure(place.run(["true"]))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert error.reason.startswith("exit code lost")


async def test_where_there_is_no_pidfd_a_thread_waits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert (await place.run(["echo", "x"]))["stdout"] == "x\n"
    assert (await failure(place.run(["sh", "-c", "kill -9 $$"]))).reason == "signal:KILL"
    await until(lambda: not [t for t in threading.enumerate() if t.name.startswith("runcue-wait")])


# --- What it prints -------------------------------------------------------------------------------


def memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_gibibyte_on_one_line_needs_neither_memory_nor_disk(place: Place) -> None:
    before = memory()
    flood = "head -c 1073741824 /dev/zero"
    error = await failure(
        place.run(["sh", "-c", f"{flood}; echo; echo end; {flood} >&2; echo bad >&2; exit 7"])
    )
    assert error.reason == "exit code 7: bad"
    assert error.result is not None
    assert error.result["stdout"].endswith("\0\nend\n")
    assert len(error.result["stdout"]) == len(error.result["stderr"]) == KEEP
    assert memory() - before < 32 * MIB
    for path in place.files.iterdir():
        assert path.stat().st_size <= 10 * MIB
        assert path.stat().st_blocks * 512 <= 11 * MIB
    assert (place.files / "work-1.1.out").read_bytes().endswith(b"\nend\n")


def stream(path: Path) -> tuple[Stream, Callable[[bytes], int]]:
    made = Stream(str(path.parent), path.name)
    made.show()
    return made, partial(os.write, made.writing)


def test_a_long_file_gives_its_beginning_back_and_never_its_end(tmp_path: Path) -> None:
    made, write = stream(tmp_path / "out")
    for number in range(64):
        write(b"%d" % (number % 10) * MIB)
        made.grown()
        made.cap(4 * MIB)
        assert (tmp_path / "out").stat().st_blocks * 512 <= 5 * MIB
    write(b"last words")
    assert made.tail(MIB) == b"3" * (MIB - 10) + b"last words"
    made.settle(4 * MIB)
    made.close()
    assert (tmp_path / "out").stat().st_size <= 4 * MIB
    assert (tmp_path / "out").read_bytes().endswith(b"33last words")


def test_where_there_are_no_holes_a_long_file_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "punch", lambda *given: False)
    made, write = stream(tmp_path / "out")
    for number in range(64):
        write(b"%d" % (number % 10) * MIB)
        made.grown()
        made.cap(4 * MIB)
        assert (tmp_path / "out").stat().st_size <= 4 * MIB
    write(b"last words")
    assert made.tail(MIB) == b"3" * (MIB - 10) + b"last words"
    made.settle(4 * MIB)
    made.close()
    assert (tmp_path / "out").read_bytes().endswith(b"33last words")


def test_a_file_that_the_command_emptied_itself_has_what_came_after(tmp_path: Path) -> None:
    made, write = stream(tmp_path / "out")
    for is_looked_at in (True, False):
        for _ in range(8):
            write(b"x" * MIB)
            made.grown()
            made.cap(4 * MIB)
        os.truncate(tmp_path / "out", 0)
        write(b"last words")
        if is_looked_at:
            assert made.grown() == 10
        assert made.tail(MIB) == b"last words"
    made.close()


async def test_bytes_that_are_no_text_are_escaped(place: Place) -> None:
    assert (await place.run(["printf", r"a\377\000b\303\244"]))["stdout"] == "a\\xff\0bä"


async def test_the_kept_end_begins_with_a_whole_character(place: Place) -> None:
    said = (await place.run([sys.executable, "-c", f"print(end='x' + 'ä€😀' * {KEEP})"]))["stdout"]
    assert len(said.encode()) in range(KEEP - 3, KEEP + 1)
    assert set(said) == set("ä€😀")


async def test_lines_are_told_as_progress_while_it_runs(place: Place) -> None:
    work = FakeWork()
    running = asyncio.create_task(
        place.run(["sh", "-c", r"printf 'one\n\033[2Jtwo\r\n\n'; exec sleep 60"], work)
    )
    await until(lambda: work.told)
    assert work.told == [(None, "[2Jtwo")]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_what_was_printed_stays_in_files_and_what_was_not_leaves_none(place: Place) -> None:
    await place.run(["echo", "known"], FakeWork(id="short"))
    await place.run(["true"], FakeWork(id="silent"))
    assert place.names() == {"short.1.out"}
    await failure(place.run(["sh", "-c", "echo x >&2; exit 1"], FakeWork(id="failed", attempt=2)))
    await place.run(["head", "-c", str(KEEP + 1), "/dev/zero"], FakeWork(id="long"))
    assert place.names() == {"short.1.out", "failed.2.err", "long.1.out"}
    assert (place.files / "failed.2.err").stat().st_mode & 0o777 == 0o600
    assert place.files.stat().st_mode & 0o777 == 0o700


NASTY = ["../../etc/passwd", "..", ".", "/abs", "a/b", "a\0b", "-rf", "", "x" * 10_000, "CON", "dot.", "a b",
         "%2e%2e", "\u202eabc", "a\nb", "\x1b[2J", "ä", "\ud800", "A", "a"]  # fmt: skip


def test_no_id_becomes_a_path_and_no_two_share_a_file() -> None:
    names = [stem(work_id, 1) for work_id in NASTY]
    assert len({name.lower() for name in names}) == len(NASTY)
    assert all(
        len(name) < 80 and set(name) <= set("=-_.0123456789abcdefghijklmnopqrstuvwxyz") for name in names
    )
    assert not [name for name in names if name.startswith(("-", "."))]
    assert stem("a", 1) != stem("a", 2)


async def test_a_nasty_id_runs_like_any_other(place: Place) -> None:
    for work_id in NASTY:
        await failure(place.run(["sh", "-c", "echo x; exit 1"], FakeWork(id=work_id)))
    assert len(place.names()) == len(NASTY)


async def test_a_link_in_the_place_of_a_file_is_not_followed(place: Place, tmp_path: Path) -> None:
    place.files.mkdir()
    (tmp_path / "precious").write_text("mine")
    (place.files / "work-1.1.out").symlink_to(tmp_path / "precious")
    os.mkfifo(place.files / "work-1.1.err")
    await failure(place.run(["sh", "-c", "echo x; echo y >&2; exit 1"]))
    assert (tmp_path / "precious").read_text() == "mine"
    assert (place.files / "work-1.1.out").read_text() == "x\n"


async def test_a_folder_that_cannot_be_used_does_not_stop_a_command(place: Place) -> None:
    place.files.write_text("not a folder")
    assert (await place.run(["echo", "x"]))["stdout"] == "x\n"


async def test_a_folder_that_others_may_look_into_is_closed_to_them(place: Place) -> None:
    place.files.mkdir()
    place.files.chmod(0o777)
    await failure(place.run(["sh", "-c", "echo secret; exit 1"]))
    assert place.files.stat().st_mode & 0o777 == 0o700
    assert place.names() == {"work-1.1.out"}


async def test_a_folder_that_is_somebody_elses_is_not_used_and_that_is_told(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.files.symlink_to(tmp_path / "elsewhere")
    error = await failure(place.run(["sh", "-c", "echo secret; exit 1"]))
    assert error.result is not None
    assert error.result["stdout"] == "secret\n"
    assert place.names() == set()
    [line] = caplog.messages
    assert "not a directory: move it away" in line
    place.files.unlink()
    place.files.mkdir()
    user = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: user + 1)
        await failure(place.run(["sh", "-c", "echo secret; exit 1"]))
    assert place.names() == set()
    assert f"belongs to user {user}" in caplog.messages[-1]
    await failure(place.run(["sh", "-c", "echo secret; exit 1"]))
    assert place.names() == {"work-1.1.out"}


async def test_output_that_cannot_be_kept_is_told_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await failure(place.run(["sh", "-c", f'echo x; rm -r "{place.files}"; exit 1']))
    [line] = caplog.messages
    assert line.startswith("the output of commands cannot be kept in full")


async def test_a_folder_that_somebody_removed_is_made_again(place: Place) -> None:
    await place.run(["true"])
    place.files.rmdir()
    await failure(place.run(["sh", "-c", "echo x; exit 1"]))
    assert place.names() == {"work-1.1.out"}


async def test_in_memory_there_are_no_names_and_no_locks(tmp_path: Path) -> None:
    jobs = Jobs(None)
    executor = CommandExecutor(RealClock(), GRACE, None, jobs, Reaper(jobs))
    result = await executor.run(FakeWork(), FakeTask(lambda work: ["echo", "x"]), None)
    assert result["stdout"] == "x\n"
    await executor.close()


# --- What it leaves behind ------------------------------------------------------------------------


async def test_what_is_left_in_its_group_is_killed_when_it_ends(place: Place, tmp_path: Path) -> None:
    result = await place.run(["sh", "-c", f'sleep 600 & echo $! > "{tmp_path}/pid"; echo done'])
    assert result == {"stdout": "done\n", "stderr": "", "exit_code": 0}
    assert not lives(await number_in(tmp_path / "pid"))


async def test_what_is_left_in_its_group_is_killed_even_if_it_holds_nothing_of_ours(
    place: Place, tmp_path: Path
) -> None:
    quiet = "stdin=-3, stdout=-3, stderr=-3"  # and Python's own way is to let nothing else be inherited
    code = f"import subprocess; print(subprocess.Popen(['sleep', '600'], {quiet}).pid)"
    pid = int((await place.run([sys.executable, "-S", "-W", "ignore", "-c", code]))["stdout"])
    await until(lambda: not lives(pid))


async def test_a_group_is_forgotten_after_its_death_and_before_it_is_reaped(tmp_path: Path) -> None:
    seen = []

    class Watching(Reaper):
        def register(self, group: int) -> None:
            seen.append(("registered", group, ""))
            super().register(group)

        def forget(self, group: int) -> None:
            found = process(group)
            seen.append(("forgotten", group, found.state if found is not None else "gone"))
            super().forget(group)

    jobs = Jobs(jobs_folder(tmp_path))
    executor = CommandExecutor(RealClock(), GRACE, None, jobs, Watching(jobs))
    await executor.run(FakeWork(), FakeTask(lambda work: ["true"]), None)
    [(first, group, _), (second, same, state)] = seen
    assert (first, second, same, state) == ("registered", "forgotten", group, "Z")
    await executor.close()


async def test_what_is_left_in_its_session_is_killed_when_it_ends(place: Place, tmp_path: Path) -> None:
    inner = f"timeout 600 sh -c 'echo $$ > \"{tmp_path}/pid\"; exec sleep 600' > /dev/null 2>&1"  # in its own group
    wait = f'until [ -s "{tmp_path}/pid" ]; do sleep 0.01; done'
    result = await place.run(["sh", "-c", f"{inner} & {wait}; echo done"])
    assert result["stdout"] == "done\n"
    assert "left_running" not in result
    assert not lives(await number_in(tmp_path / "pid"))


APART = (
    "import subprocess, sys, time\n"
    "p = subprocess.Popen(sys.argv[3:], stdin=-3, stdout=-3, stderr=-3, process_group=0)\n"
    "open(sys.argv[1], 'w').write(f'{p.pid}\\n')\n"
    "time.sleep(float(sys.argv[2]))\n"
)
"""Starts a program in a group of its own, which has nothing of ours open."""


def apart(pid: Path, *program: str, seconds: float = 0) -> list[str]:
    return [sys.executable, "-S", "-W", "ignore", "-c", APART, str(pid), str(seconds), *program]


@pytest.fixture(params=["file", "memory"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Of a queue in a file, and of one in memory, where there are no locks."""
    made = Place(tmp_path)
    if request.param == "memory":
        made.jobs = Jobs(None)
        made.reaper = Reaper(made.jobs)
        made.executor = CommandExecutor(RealClock(), GRACE, None, made.jobs, made.reaper)
    yield made
    await made.executor.close()


@pytest.mark.parametrize("young", [0.0, BOUND])
async def test_what_left_its_group_and_holds_nothing_of_ours_is_killed_with_the_session(
    either: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, young: float
) -> None:
    monkeypatch.setattr(child_module, "YOUNG", young)
    pid = tmp_path / "pid"
    result = await either.run(apart(pid, "sleep", "600"))
    assert result == {"stdout": "", "stderr": "", "exit_code": 0}
    assert not lives(await number_in(pid))
    other = tmp_path / "other"
    await cancelled(either, apart(other, "sleep", "600", seconds=600), other)
    assert not lives(await number_in(other))


async def test_what_left_its_group_and_holds_nothing_of_ours_may_clean_up(
    patient: Place, tmp_path: Path
) -> None:
    pid, ready, clean = tmp_path / "pid", tmp_path / "ready", tmp_path / "clean"
    program = f'trap \'sleep 0.3; echo 1 > "{clean}"; exit\' TERM; echo $$ > "{ready}"; while :; do sleep 0.01; done'
    await cancelled(patient, apart(pid, "sh", "-c", program, seconds=600), pid, ready)
    assert clean.exists()
    assert not lives(await number_in(pid))


async def test_who_holds_something_of_ours_and_cannot_be_seen_is_told_and_hurts_nobody(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        child_module, "holders", lambda marks: []
    )  # as of a process that may not be looked at
    daemon = f"setsid sh -c 'echo $$ > \"{tmp_path}/pid\"; exec sleep 600'"
    result = await place.run(["sh", "-c", f'{daemon} & until [ -s "{tmp_path}/pid" ]; do sleep 0.01; done'])
    try:
        assert result["left_running"] == ["unknown"]
        assert (await place.run(["echo", "next"]))["stdout"] == "next\n"
    finally:
        os.kill(await number_in(tmp_path / "pid"), signal.SIGKILL)


async def test_a_daemon_is_left_alone_and_named_and_nobody_waits_for_it(place: Place, tmp_path: Path) -> None:
    daemon = f"setsid sh -c 'echo $$ > \"{tmp_path}/pid\"; exec sleep 600'"
    result = await place.run(
        ["sh", "-c", f'{daemon} & until [ -s "{tmp_path}/pid" ]; do sleep 0.01; done; echo done']
    )
    pid = await number_in(tmp_path / "pid")
    try:
        assert result["stdout"] == "done\n"
        assert result["left_running"] in ([f"{pid} sleep"], [f"{pid} sh"])
        assert lives(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_daemon_that_let_everything_go_is_none_of_our_business(place: Place, tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.closerange(0, 100)\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        "    time.sleep(600)\n"
        f"while not os.path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.01)\n"
    )
    result = await place.run([sys.executable, "-c", code])
    pid = await number_in(tmp_path / "pid")
    assert lives(pid)
    os.kill(pid, signal.SIGKILL)
    assert result == {"stdout": "", "stderr": "", "exit_code": 0}


# --- Cancelling -----------------------------------------------------------------------------------


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Place]:
    """One with a grace period that a test would not survive."""
    made = Place(tmp_path, grace=2 * BOUND)
    yield made
    await made.executor.close()


def is_in(pid: int, states: str) -> bool:
    found = process(pid)
    return found is not None and found.state in states


async def cancelled(
    place: Place, command: list[str], *ready: Path, cancels: int = 1, state: str = "RSD"
) -> None:
    """Start a command, wait until it wrote its pids, cancel it, and wait until `run` lets go."""
    running = asyncio.create_task(place.run(command))
    for path in ready:
        pid = await number_in(path)
        await until(partial(is_in, pid, state))
    for _ in range(cancels):
        running.cancel()
        await asyncio.sleep(0.02)
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(BOUND):
            await running


async def test_a_cancelled_command_is_asked_first_and_may_clean_up(place: Place, tmp_path: Path) -> None:
    pid, clean = tmp_path / "pid", tmp_path / "clean"
    command = f'trap \'echo 1 > "{clean}"; exit 0\' TERM; echo $$ > "{pid}"; while :; do sleep 0.01; done'
    await cancelled(place, ["sh", "-c", command], pid)
    assert clean.exists()
    assert not lives(await number_in(pid))


async def test_what_does_not_hear_is_killed_after_the_grace_period(place: Place, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    await cancelled(
        place, ["sh", "-c", f"trap '' TERM; echo $$ > \"{pid}\"; while :; do sleep 0.01; done"], pid
    )
    assert not lives(await number_in(pid))


async def test_a_stopped_command_is_ended_too(patient: Place, tmp_path: Path) -> None:
    pid, clean = tmp_path / "pid", tmp_path / "clean"
    command = f'trap \'echo 1 > "{clean}"; exit\' TERM; echo $$ > "{pid}"; kill -STOP $$; sleep 600'
    await cancelled(patient, ["sh", "-c", command], pid, state="T")
    assert clean.exists()
    assert not lives(await number_in(pid))


async def test_cancelling_again_does_not_cut_the_cleaning_up_short(patient: Place, tmp_path: Path) -> None:
    pid, clean = tmp_path / "pid", tmp_path / "clean"
    command = (
        f'trap \'sleep 0.3; echo 1 > "{clean}"; exit\' TERM; echo $$ > "{pid}"; while :; do sleep 0.01; done'
    )
    await cancelled(patient, ["sh", "-c", command], pid, cancels=5)
    assert clean.exists()
    assert not lives(await number_in(pid))


async def test_a_descendant_that_does_not_hear_is_killed_with_the_rest(place: Place, tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    deaf = f'trap "" TERM; echo $$ > "{child}"; while :; do sleep 0.01; done'
    await cancelled(place, ["sh", "-c", f"sh -c '{deaf}' & echo $$ > \"{parent}\"; wait"], parent, child)
    assert not lives(await number_in(parent))
    assert not lives(await number_in(child))


async def test_a_descendant_in_a_group_of_its_own_is_asked_and_ends(patient: Place, tmp_path: Path) -> None:
    child, clean = tmp_path / "child", tmp_path / "clean"
    inner = shlex.quote(
        f'trap \'echo 1 > "{clean}"; exit\' TERM; echo $$ > "{child}"; while :; do sleep 0.01; done'
    )
    await cancelled(patient, ["sh", "-c", f"timeout 600 sh -c {inner} & wait; echo"], child)
    assert clean.exists()
    assert not lives(await number_in(child))


async def test_a_daemon_that_a_cancelled_command_leaves_is_told(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    daemon = f"setsid sh -c 'echo $$ > \"{child}\"; exec sleep 600'"
    await cancelled(place, ["sh", "-c", f'{daemon} & echo $$ > "{parent}"; sleep 600'], parent, child)
    pid = await number_in(child)
    assert lives(pid)
    os.kill(pid, signal.SIGKILL)
    [line] = caplog.messages
    assert line.startswith(f"work-1: a command that was given up left running: {pid} s")


async def test_cancelled_in_its_handler_nothing_was_started(place: Place) -> None:
    async def handler(work: FakeWork) -> list[str]:
        await asyncio.sleep(600)
        return ["true"]

    running = asyncio.create_task(place.executor.run(FakeWork(), FakeTask(handler), None))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert place.reaper.pid is None


async def test_a_command_is_in_a_session_of_its_own(place: Place) -> None:
    said = (await place.run(["sh", "-c", "cut -d' ' -f1,5,6 /proc/$$/stat"]))["stdout"].split()
    assert len(set(said)) == 1
    assert os.getsid(place.reaper.pid or 0) == place.reaper.pid


def test_a_command_takes_no_virtual_time(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        place = Place(tmp_path)
        began = loop.time()
        assert (await place.run(["sh", "-c", "sleep 0.1; echo x"]))["stdout"] == "x\n"
        running = asyncio.create_task(
            place.run(["sh", "-c", f"trap '' TERM; echo $$ > \"{tmp_path}/pid\"; cat"])
        )
        reader = asyncio.create_task(until_held(tmp_path / "pid"))
        await reader
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert loop.time() == began
        await place.executor.close()

    async def until_held(path: Path) -> None:
        for _ in range(10_000_000):
            if path.exists():
                return
            await asyncio.sleep(0)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.close()


# --- Many, and the end of the owner ---------------------------------------------------------------


def open_descriptors() -> set[int]:
    """Those of this process, without the one that is needed to look."""
    names = [path.name for path in Path("/proc/self/fd").iterdir()]
    return {int(name) for name in names if Path("/proc/self/fd", name).is_symlink()}


def held() -> set[tuple[str, object]]:
    """The descriptors, threads and children of this process. Those of other tests may go meanwhile; none may come."""
    kinds = {"descriptor": open_descriptors(), "thread": threading.enumerate(), "child": own_children()}
    return {(kind, one) for kind, some in kinds.items() for one in some}


async def test_hundreds_of_commands_leave_nothing(place: Place) -> None:
    await place.run(["true"])
    before = held()
    places = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        command = (["true"], ["false"], ["sh", "-c", "sleep 600 & echo x"], ["no-such"], ["sleep", "600"])
        async with places:
            running = asyncio.create_task(place.run(command[number % 5], FakeWork(id=f"w{number}")))
            if number % 5 == 4:
                await asyncio.sleep(0.001)
                running.cancel()
            await asyncio.wait({running})
            seen[number % 5].add(ending(running))

    seen: list[set[str]] = [set() for _ in range(5)]
    async with asyncio.timeout(240):
        await asyncio.gather(*(one(number) for number in range(300)))
    assert seen == [{""}, {"exit code 1"}, {"x\n"}, {"not found"}, {"cancelled"}]
    assert not held() - before


def ending(running: "asyncio.Task[Any]") -> str:
    """How a command came out, in a few words."""
    if running.cancelled():
        return "cancelled"
    error = running.exception()
    return str(running.result()["stdout"]) if error is None else str(error).partition(":")[0]


OWNER = """
import asyncio, sys
from pathlib import Path
from tests.executors.fakes import FakeTask, FakeWork
from tests.executors.test_command import Place

async def main(directory, command):
    place = Place(directory)
    running = asyncio.create_task(place.run(["sh", "-c", command]))
    while not list(directory.glob("*.ready")):
        await asyncio.sleep(0.01)
    print(place.reaper.pid, flush=True)
    await asyncio.sleep(0 if sys.argv[3] == "leave" else 600)
    sys.exit() if sys.argv[3] == "leave" else None

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


class Owner:
    """A process that runs one command with descendants of every kind."""

    def __init__(self, directory: Path, mode: str = "stay") -> None:
        self.directory = directory
        write = f'echo $$ > "{directory}"/'
        command = (
            f"trap '' TERM; (sh -c '{write}same; exec sleep 600') & "
            f"timeout 600 sh -c '{write}group; exec sleep 600' & "
            f"setsid sh -c '{write}session; exec sleep 600' & {write}leader; "
            f'"{sys.executable}" -S -W ignore -c "import subprocess as s; '
            f"s.Popen(['sh', '-c', 'echo \\$\\$ > \\\"{directory}/python\\\"; exec sleep 600'], "
            'start_new_session=True)"; '
            f'for name in same group session python; do until [ -s "{directory}/$name" ]; do sleep 0.01; done; done; '
            f'touch "{directory}/all.ready"; sleep 600; sleep 600'
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(directory), command, mode],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.reaper = int(self.process.stdout.readline())
        self.process.stdout.close()

    def pid(self, name: str) -> int:
        return int((self.directory / name).read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def clean(self) -> None:
        """End what a failing test would leave."""
        self.kill()
        for name in ("leader", "same", "group", "session", "python"):
            if (self.directory / name).exists() and lives(self.pid(name)):
                os.kill(self.pid(name), signal.SIGKILL)


@pytest.fixture
def owner(tmp_path: Path) -> Any:
    """Such a process."""
    made = Owner(tmp_path)
    yield made
    made.clean()


def jobs_of(owner: Owner) -> Path:
    return jobs_folder(owner.directory)


def test_after_kill_9_of_the_owner_its_reaper_ends_the_session(owner: Owner) -> None:
    owner.kill()
    until_sync(lambda: not lives(owner.reaper), "the reaper goes when its work is done")
    assert not [name for name in ("leader", "same", "group") if lives(owner.pid(name))]


def test_after_kill_9_of_the_owner_recovery_ends_even_what_left_the_session(owner: Owner) -> None:
    owner.kill()
    until_sync(lambda: end_leftovers(jobs_of(owner)))
    assert not [name for name in ("leader", "same", "group", "session") if lives(owner.pid(name))]
    assert not jobs_of(owner).exists()


def test_after_kill_9_recovery_ends_who_has_only_the_output_left(owner: Owner) -> None:
    """As what Python starts in a session of its own: the lock is not inherited, the output is."""
    owner.kill()
    until_sync(lambda: end_leftovers(jobs_of(owner)))
    assert not lives(owner.pid("python"))


async def test_a_daemon_of_a_command_that_is_over_is_left_alone_after_a_crash(
    place: Place, tmp_path: Path
) -> None:
    daemon = f"setsid sh -c 'echo $$ > \"{tmp_path}/pid\"; exec sleep 600'"
    wait = f'until [ -s "{tmp_path}/pid" ]; do sleep 0.01; done'
    await failure(place.run(["sh", "-c", f"{daemon} & {wait}; echo kept; exit 1"]))
    pid = await number_in(tmp_path / "pid")
    await place.run(["true"])  # there is a job whose lock is free
    try:
        place.reaper.close()
        assert place.jobs.directory is not None
        assert end_leftovers(place.jobs.directory)
        assert lives(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_after_kill_9_of_owner_and_reaper_the_locks_still_end_everything(owner: Owner) -> None:
    os.kill(owner.reaper, signal.SIGKILL)
    owner.kill()
    assert lives(owner.pid("leader"))
    until_sync(lambda: end_leftovers(jobs_of(owner)))
    assert not [name for name in ("leader", "same", "group", "session") if lives(owner.pid(name))]


def test_an_owner_that_just_leaves_takes_its_commands_along(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "leave")
    try:
        owner.process.wait(BOUND)
        until_sync(lambda: not [name for name in ("leader", "same", "group") if lives(owner.pid(name))])
    finally:
        owner.clean()


# --- Through a Cue --------------------------------------------------------------------------------


async def test_a_timeout_ends_the_command_and_frees_its_place(tmp_path: Path) -> None:
    cue = Cue(grace=GRACE)
    cue.service("one", concurrent=1)

    @cue.task(executor="subprocess", uses="one", shell=True)
    def command(work: Work) -> str:
        return f"trap '' TERM; echo $$ > \"{tmp_path}/{work.params['name']}\"; {work.params['then']}"

    async with cue, asyncio.timeout(BOUND):
        slow = await cue.submit(command, params={"name": "slow", "then": "sleep 600; sleep 600"}, timeout=0.2)
        fast = await cue.submit(command, params={"name": "fast", "then": "echo done"})
        assert (await cue.result(fast))["stdout"] == "done\n"
        found = await cue.get(slow)
        assert found is not None
        assert (found.state, found.error) == (WorkState.FAILED, "timeout")
    assert not lives(int((tmp_path / "slow").read_text()))
    await cue.close()


CRASHING = """
import asyncio, sys
from runcue import Cue
from pathlib import Path

async def main(path, command, is_first):
    cue = Cue(path)
    cue.task("command", executor="subprocess", shell=True)(lambda work: command)
    async with cue:
        if is_first:
            await cue.submit("command", id="the-one")
        print((await cue.result("the-one", timeout=240))["stdout"], end="", flush=True)
    await cue.close()

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] == "first"))
"""


def test_after_kill_9_the_work_runs_again_only_when_everything_of_it_is_dead(tmp_path: Path) -> None:
    note = f'echo $$ >> "{tmp_path}/pids"; exec sleep 600'
    command = (
        f'if [ -e "{tmp_path}/pids" ]; then for pid in $(cat "{tmp_path}/pids"); do '
        "grep -qs . /proc/$pid/maps && echo overlap $pid; done; echo second; exit 0; fi; "  # who has memory can run
        f"trap '' TERM; sh -c '{note}' & setsid sh -c '{note}' & timeout 600 sh -c '{note}' & {note}"
    )

    def begin(which: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-c", CRASHING, str(tmp_path / "queue.db"), command, which]
        return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def pids() -> list[int]:
        path = tmp_path / "pids"
        return list(map(int, path.read_text().split())) if path.exists() else []

    first = begin("first")
    try:
        until_sync(lambda: len(pids()) == 4)
    finally:
        first.kill()
        first.communicate()
    second = begin("second")
    try:
        said, _ = second.communicate(timeout=240)
    finally:
        second.kill()
        for pid in filter(lives, pids()):
            os.kill(pid, signal.SIGKILL)
    assert said == "second\n"
