"""Job locks tell what is left of a dead worker, recovery ends exactly that, and the reaper needs nobody's help."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runcue.executors.command import reaper as reaper_module
from runcue.executors.command.reaper import Reaper
from runcue.executors.process_locks import REAPER, Jobs, end_leftovers
from runcue.host.posix import processes
from runcue.host.posix.processes import process, session_members
from tests.executors.fakes import jobs_folder
from tests.patience import BOUND, has_open, lives, until_sync

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs, and ends each of them by its own pid."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str, own_session: bool = True, lock: int | None = None) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(argv, start_new_session=own_session, pass_fds=() if lock is None else (lock,))
        started.append(made)
        return made

    yield begin
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    """In a directory that is not there yet."""
    return Jobs(jobs_folder(tmp_path))


def folder(jobs: Jobs) -> Path:
    assert jobs.directory is not None
    return jobs.directory


def pid_in(path: Path) -> int:
    until_sync(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


# --- Locks ----------------------------------------------------------------------------------------


def test_a_job_is_held_by_whoever_inherited_it_and_by_us_only_until_it_started(
    jobs: Jobs, start: Start
) -> None:
    lock = jobs.take(1)
    assert lock is not None
    assert jobs.is_held(1)
    child = start("sleep", "600", lock=lock)
    jobs.started(1, child.pid)
    assert jobs.is_held(1)
    child.kill()
    child.wait()
    assert not jobs.is_held(1)


def test_a_job_that_never_started_is_released_without_a_trace(jobs: Jobs) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    jobs.take("a")
    jobs.release("a")
    jobs.close()
    assert not folder(jobs).exists()
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_files_are_for_us_alone(jobs: Jobs) -> None:
    before = os.umask(0)
    try:
        jobs.take(1)
    finally:
        os.umask(before)
    assert folder(jobs).stat().st_mode & 0o777 == 0o700
    assert (folder(jobs) / "1").stat().st_mode & 0o777 == 0o600
    jobs.release(1)


def test_on_a_full_disk_only_the_note_is_missing(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    jobs.take(1)
    monkeypatch.setattr(os, "pwrite", full)
    jobs.started(1, 1)
    assert not jobs.is_held(1)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    jobs.release(1)


def full(*given: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_without_a_directory_there_are_no_locks() -> None:
    jobs = Jobs(None)
    assert jobs.take(1) is None
    jobs.started(1, 1)
    assert not jobs.is_held(1)
    jobs.release(1)
    jobs.close()


def test_a_forked_child_holds_no_lock_of_its_parent(jobs: Jobs) -> None:
    jobs.take(1)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        jobs.started(1, 1)
        until_sync(lambda: not jobs.is_held(1))
        assert lives(pid)
    finally:
        os.close(write)
        os.waitpid(pid, 0)
        os.close(read)
        jobs.release(1)


@pytest.mark.parametrize("token", ["", "..", "a/b", "-x", "x" * 65])
def test_a_token_is_a_plain_name(jobs: Jobs, token: str) -> None:
    with pytest.raises(AssertionError):
        jobs.take(token)


def bare_child(directory: Path) -> str:
    """Python that starts what lets go of the lock, but not of the session, and writes its pid."""
    name = str(directory / "bare")
    child = "subprocess.Popen(['sleep', '600']).pid"
    return f"import subprocess; open({name!r}, 'w').write(str({child}) + '\\n')"


# --- Recovery -------------------------------------------------------------------------------------


def test_where_nothing_was_nothing_is_left(tmp_path: Path) -> None:
    assert end_leftovers(tmp_path / "never")


def test_free_locks_are_cleared_away(jobs: Jobs) -> None:
    jobs.take(1)
    jobs.started(1, 1)
    assert end_leftovers(folder(jobs))
    assert not folder(jobs).exists()


def test_holders_are_killed_with_their_session_and_nobody_else(
    jobs: Jobs, start: Start, tmp_path: Path
) -> None:
    bystander = start("sleep", "600")
    lock = jobs.take(1)
    leader = start(
        sys.executable, "-S", "-c", f"{bare_child(tmp_path)}; import time; time.sleep(600)", lock=lock
    )
    jobs.started(1, leader.pid)
    bare = pid_in(tmp_path / "bare")
    until_sync(lambda: end_leftovers(folder(jobs)))
    assert leader.wait(BOUND) == -signal.SIGKILL
    until_sync(lambda: not lives(bare))
    assert lives(bystander.pid)


def test_a_session_without_a_leader_is_known_by_its_note(jobs: Jobs, start: Start, tmp_path: Path) -> None:
    lock = jobs.take(1)
    holder = "subprocess.Popen(['sleep', '600'], close_fds=False).pid"
    program = f"{bare_child(tmp_path)}; open({str(tmp_path / 'holder')!r}, 'w').write(str({holder}) + '\\n')"
    leader = start(sys.executable, "-S", "-W", "ignore", "-c", program, lock=lock)
    jobs.started(1, leader.pid)
    assert leader.wait(BOUND) == 0
    until_sync(lambda: end_leftovers(folder(jobs)))
    until_sync(lambda: not lives(pid_in(tmp_path / "bare")) and not lives(pid_in(tmp_path / "holder")))


def test_a_pid_that_belongs_to_somebody_else_by_now_is_never_signalled(jobs: Jobs, start: Start) -> None:
    stranger = start("sleep", "600")
    lock = jobs.take(1)
    holder = start("sleep", "600", lock=lock)
    jobs.started(1, stranger.pid)  # as if the number had been given away
    until_sync(lambda: end_leftovers(folder(jobs)))
    assert holder.wait(BOUND) == -signal.SIGKILL
    assert lives(stranger.pid)


def test_a_holder_outside_any_session_of_the_job_dies_alone(jobs: Jobs, start: Start) -> None:
    neighbour = start("sleep", "600", own_session=False)  # in the session of these tests
    lock = jobs.take(1)
    holder = start("sleep", "600", own_session=False, lock=lock)
    jobs.started(1, holder.pid)
    until_sync(lambda: end_leftovers(folder(jobs)))
    assert holder.wait(BOUND) == -signal.SIGKILL
    assert lives(neighbour.pid)


def test_who_only_reads_a_lock_file_is_left_alone(jobs: Jobs, start: Start) -> None:
    lock = jobs.take(1)
    holder = start("sleep", "600", lock=lock)
    jobs.started(1, holder.pid)
    reader = start("tail", "-f", str(folder(jobs) / "1"))
    until_sync(lambda: has_open(reader.pid, folder(jobs) / "1"))
    until_sync(lambda: end_leftovers(folder(jobs)))
    assert lives(reader.pid)


def test_the_reaper_is_waited_for_and_not_killed(jobs: Jobs, start: Start) -> None:
    lock = jobs.take(REAPER)
    reaper = start("sleep", "600", lock=lock)
    jobs.started(REAPER, reaper.pid)
    for _ in range(3):
        assert not end_leftovers(folder(jobs))
    assert lives(reaper.pid)
    reaper.kill()
    reaper.wait()
    assert end_leftovers(folder(jobs))


@pytest.mark.parametrize("name", [REAPER, f"{REAPER}-2"])
def test_a_reaper_that_somebody_stopped_is_woken(jobs: Jobs, start: Start, name: str) -> None:
    stopped = start("sh", "-c", "kill -STOP $$; exit 7", lock=jobs.take(name))
    jobs.started(name, stopped.pid)
    until_sync(lambda: state_of(stopped.pid) == "T")
    until_sync(lambda: end_leftovers(folder(jobs)))
    assert stopped.wait(BOUND) == 7  # by itself


def state_of(pid: int) -> str:
    found = process(pid)
    return "" if found is None else found.state


def test_recovery_that_is_cut_short_ends_the_same_way(jobs: Jobs, start: Start) -> None:
    for number in range(3):
        lock = jobs.take(number)
        jobs.started(number, start("sleep", "600", lock=lock).pid)
    (folder(jobs) / "0").unlink()  # as if somebody had begun
    (folder(jobs) / "0").touch()
    until_sync(lambda: end_leftovers(folder(jobs)))
    assert end_leftovers(folder(jobs))


def test_a_name_with_brackets_and_spaces_hides_no_process(start: Start, tmp_path: Path) -> None:
    sleeper = tmp_path / "a) Z (1 2"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", sleeper)
    made = start(str(sleeper), "600")
    found = process(made.pid)
    assert found is not None
    assert (found.name, found.session, found.group) == ("a) Z (1 2", made.pid, made.pid)
    assert found.state in "RSD"


@pytest.mark.parametrize("is_young", [True, False])
@pytest.mark.parametrize("knows_pids", [True, False])
def test_the_members_of_a_session_are_found_and_nobody_else(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_young: bool, knows_pids: bool
) -> None:
    if not knows_pids:
        monkeypatch.setattr(processes, "last_pid", lambda: None)
    write = f'echo $$ > "{tmp_path}"/'
    leader = start("sh", "-c", f"timeout 600 sh -c '{write}inner; exec sleep 600' & {write}leader; wait")
    start("sleep", "600")
    inner = pid_in(tmp_path / "inner")
    found = {member.pid for member in session_members(leader.pid, is_young)}
    found |= {pid_in(tmp_path / "leader")}  # whose own pid is not one of those given out since
    assert len(found) == 3  # timeout is the third
    assert {leader.pid, inner} < found
    leader.kill()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert {member.pid for member in session_members(leader.pid, is_young)} == found - {leader.pid}
    for pid in found - {leader.pid}:
        os.kill(pid, signal.SIGKILL)
    until_sync(lambda: not session_members(leader.pid, is_young))


def test_who_is_born_while_members_are_looked_for_is_found(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its parent is gone before it is looked at, and it came itself after the pids were counted."""
    inner = f'(until [ -e "{tmp_path}/begin" ]; do :; done; sleep 600 & echo $! > "{tmp_path}/child")'
    leader = start("sh", "-c", f'{inner} & echo $! > "{tmp_path}/parent"')
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    parent = pid_in(tmp_path / "parent")
    count = processes.last_pid

    def counted_before_the_birth() -> int | None:
        latest = count()
        (tmp_path / "begin").touch()
        until_sync(lambda: not lives(parent))
        return latest

    monkeypatch.setattr(processes, "last_pid", counted_before_the_birth)
    found = [member.pid for member in session_members(leader.pid, is_young=True)]
    child = pid_in(tmp_path / "child")
    os.kill(child, signal.SIGKILL)
    assert found == [child]


# --- The reaper -----------------------------------------------------------------------------------


@pytest.fixture(params=["/bin/sh", "/bin/bash"])
def reaper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, jobs: Jobs) -> Iterator[Reaper]:
    """In every shell that there is."""
    if not Path(request.param).exists():
        pytest.skip(f"no {request.param} here")
    monkeypatch.setattr(reaper_module, "SHELL", request.param)
    made = Reaper(jobs)
    yield made
    made.close()
    jobs.close()
    assert not folder(jobs).exists()


def test_what_is_registered_dies_with_the_pipe_and_what_is_forgotten_lives(
    reaper: Reaper, start: Start
) -> None:
    groups = [start("sleep", "600") for _ in range(6)]
    for group in groups:
        reaper.register(group.pid)
    for group in (groups[0], groups[3], groups[5]):
        reaper.forget(group.pid)
    reaper.forget(999_999_999)  # never heard of
    reaper.close()
    assert [group.poll() for group in groups] == [None, -9, -9, None, -9, None]


def test_groups_within_a_registered_session_die_with_it(reaper: Reaper, start: Start, tmp_path: Path) -> None:
    leader = start("sh", "-c", f"timeout 600 sh -c 'echo $$ > \"{tmp_path}/pid\"; exec sleep 600' & wait")
    reaper.register(leader.pid)
    inner = pid_in(tmp_path / "pid")
    found = process(inner)
    assert found is not None
    assert found.group != leader.pid
    reaper.close()
    assert not lives(inner)


def test_signals_of_a_terminal_do_not_end_it(reaper: Reaper) -> None:
    reaper.start()
    pid = reaper.pid
    assert pid is not None
    until_sync(lambda: int(ignored_by(pid), 16) >> (signal.SIGTERM - 1) & 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(pid, number)
    reaper.register(999_999_999)
    assert reaper.pid == pid
    assert lives(pid)
    reaper.forget(999_999_999)


def ignored_by(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("SigIgn:"))


def test_a_dead_reaper_is_replaced_and_the_next_knows_everything(reaper: Reaper, start: Start) -> None:
    first, second = start("sleep", "600"), start("sleep", "600")
    reaper.register(first.pid)
    killed = reaper.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until_sync(lambda: not lives(killed))
    reaper.register(second.pid)
    assert reaper.pid != killed
    assert first.poll() is None
    reaper.close()
    assert (first.poll(), second.poll()) == (-9, -9)


def test_the_reaper_that_comes_when_there_is_room_again_knows_everything(
    reaper: Reaper, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [start("sleep", "600") for _ in range(3)]
    reaper.register(groups[0].pid)
    killed = reaper.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until_sync(lambda: not lives(killed))

    def refuse(*given: object, **named: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no room")

    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", refuse)
        reaper.register(groups[1].pid)
    assert reaper.pid is None
    reaper.start()
    reaper.register(groups[2].pid)
    reaper.close()
    assert [group.poll() for group in groups] == [-9, -9, -9]


def test_a_stuck_reaper_is_replaced_and_kills_nobody_on_its_way(reaper: Reaper, start: Start) -> None:
    running = start("sleep", "600")
    reaper.register(running.pid)
    stuck = reaper.pid
    assert stuck is not None
    os.kill(stuck, signal.SIGSTOP)
    for _ in range(100_000):
        reaper.forget(999_999_999)
        if reaper.pid != stuck:
            break
    assert reaper.pid != stuck
    assert not lives(stuck)
    assert running.poll() is None
    reaper.close()
    assert running.poll() == -9


def test_a_stopped_reaper_ends_like_any_other(reaper: Reaper, start: Start) -> None:
    running = start("sleep", "600")
    reaper.register(running.pid)
    stopped = reaper.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    until_sync(lambda: state_of(stopped) == "T")
    reaper.close()
    assert running.poll() == -9  # and not left to live, as by a reaper that was killed


def test_a_dead_reaper_does_not_kill_programs_that_die_of_sigpipe(reaper: Reaper, start: Start) -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        reaper.start()
        killed = reaper.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        until_sync(lambda: not lives(killed))
        reaper.register(start("sleep", "600").pid)
        assert reaper.pid != killed
        assert signal.SIGPIPE not in signal.sigpending()
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_without_a_shell_there_is_no_reaper_and_no_error(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_module, "SHELL", "/no/such/shell")
    made = Reaper(jobs)
    made.start()
    made.register(999_999_999)
    made.close()
    assert made.pid is None
    jobs.close()
    assert not folder(jobs).exists()
