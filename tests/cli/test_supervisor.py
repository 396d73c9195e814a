"""What keeps workers alive: deaths, signals, lines that nobody reads, and who may be signalled."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runcue.cli import worker
from runcue.cli.lines import Log, Stream
from runcue.cli.posix import send
from runcue.cli.shutdown import Post, standing
from runcue.host.system import files
from tests.cli.crew import QUEUECTL, Crew, Supervisor, children_of, environment, gone, ignores, ignoring
from tests.patience import BOUND, lives, until_sync


def slow(folder: Path) -> dict[str, str]:
    """A job that can be seen to run, and ends when somebody makes the file `go`."""
    return {
        "id": "slow",
        "command": f'touch "{folder}/runs"; until test -e "{folder}/go"; do sleep 0.05; done',
    }


# signals --------------------------------------------------------------------------------------------------


def test_workers_whose_supervisor_was_killed_finish_their_jobs_and_leave(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(slow(tmp_path), {"id": "next", "command": "true", "after": ["slow"]})
    supervisor = crew.start("--count", "2")
    until_sync((tmp_path / "runs").exists, "the job starts")
    workers = children_of(supervisor.pid)
    assert len(workers) == 2
    supervisor.signal(signal.SIGKILL)
    supervisor.wait()
    until_sync(lambda: any(not lives(pid) for pid in workers), "the idle one leaves")
    assert crew.jobs()["slow"]["state"] == "processing"
    (tmp_path / "go").touch()
    until_sync(lambda: gone(workers), "they leave")
    jobs = crew.jobs()
    assert (jobs["slow"]["state"], jobs["next"]["state"]) == ("completed", "pending")
    assert crew.workers() == []


def test_signals_in_one_moment_are_one_and_a_later_one_stops_at_once(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(slow(tmp_path))
    supervisor = crew.start()
    until_sync((tmp_path / "runs").exists, "the job starts")
    [worker] = children_of(supervisor.pid)
    assert os.getsid(worker) == worker
    supervisor.signal(signal.SIGINT)
    supervisor.signal(signal.SIGTERM)
    supervisor.until("Stopping when slow has ended.")

    def again() -> bool:
        supervisor.signal(signal.SIGTERM)
        return "Stopping now; what runs is put back." in supervisor.said()

    assert "Stopping now" not in supervisor.said()
    until_sync(again, "to stop now")
    assert supervisor.wait() == 130
    assert gone([worker])
    job = crew.jobs()["slow"]
    assert (job["state"], job["attempts"]) == ("pending", 0)


def test_a_third_signal_kills_what_does_not_want_to_end(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(
        {"id": "deaf", "command": f"trap '' TERM; echo $$ > \"{tmp_path}/pid\"; while :; do sleep 0.1; done"}
    )
    supervisor = crew.start()
    pid = int(
        until_sync(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the job starts")
    )

    def again() -> bool:
        supervisor.signal(signal.SIGINT)
        return supervisor.process.poll() is not None

    until_sync(again, "to be killed")
    assert supervisor.wait() == 130
    assert "Killing the workers; their jobs will run again." in supervisor.said()
    until_sync(lambda: gone([pid]), "the job ends with its worker")


def test_a_worker_that_was_told_to_leave_is_not_replaced(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(slow(tmp_path))
    supervisor = crew.start("--count", "2")
    until_sync((tmp_path / "runs").exists, "the job starts")
    owner = crew.jobs()["slow"]["worker_id"]
    [busy] = [row["pid"] for row in crew.workers() if row["id"] == owner]
    [idle] = [row["pid"] for row in crew.workers() if row["id"] != owner]
    for _ in range(3):  # as often as one likes: it stays graceful
        os.kill(busy, signal.SIGTERM)
    (tmp_path / "go").touch()
    until_sync(lambda: not lives(busy), "it leaves")
    supervisor.until("was asked to exit, and exited.")
    assert crew.jobs()["slow"]["state"] == "completed"
    assert children_of(supervisor.pid) == [idle]
    os.kill(idle, signal.SIGQUIT)
    assert supervisor.wait() == 0


def test_a_terminal_that_is_closed_is_a_graceful_stop(crew: Crew) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may be run under nohup
    try:
        supervisor = crew.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    supervisor.signal(signal.SIGHUP)
    assert supervisor.wait() == 0


def test_in_the_background_of_a_script_it_heeds_no_keyboard_and_ends_by_sigterm(
    crew: Crew, tmp_path: Path
) -> None:
    crew.enqueue(slow(tmp_path))
    with ignoring(signal.SIGINT, signal.SIGQUIT):
        supervisor = crew.start()
    until_sync((tmp_path / "runs").exists, "the job starts")
    assert ignores(supervisor.pid, signal.SIGINT)
    supervisor.signal(signal.SIGINT)
    supervisor.signal(signal.SIGQUIT)
    supervisor.signal(signal.SIGTERM)
    supervisor.until("Stopping when slow has ended.")
    (tmp_path / "go").touch()
    assert supervisor.wait() == 0
    assert crew.jobs()["slow"]["state"] == "completed"


def test_stop_now_also_reaches_what_heeds_no_keyboard(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(slow(tmp_path))
    with ignoring(signal.SIGINT, signal.SIGQUIT):
        supervisor = crew.start()
    until_sync((tmp_path / "runs").exists, "the job starts")
    assert crew.run("worker", "stop", "--now").returncode == 0
    assert supervisor.wait() == 130
    assert "Stopping now; what runs is put back." in supervisor.said()


def test_a_worker_can_be_ended_before_it_is_up_whatever_its_supervisor_ignores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
    ours, theirs = os.pipe()
    monkeypatch.setattr(sys, "argv", ["worker", json.dumps({"voice": theirs})])
    monkeypatch.setattr(worker, "work", lambda orders, voice: [signal.getsignal(number) for number in told])
    with ignoring(*told), pytest.raises(SystemExit) as ended:
        worker.main()
    os.close(ours)
    os.close(theirs)
    assert ended.value.code == [signal.SIG_DFL] * 3


# deaths ---------------------------------------------------------------------------------------------------


def test_a_job_that_kills_its_worker_is_dead_after_three_times_and_others_go_on(crew: Crew) -> None:
    crew.enqueue(
        {"id": "poison", "command": "kill -9 $PPID; sleep 5"},
        *({"id": f"job{n}", "command": "true"} for n in range(4)),
    )
    supervisor = crew.start("--count", "2")
    jobs = crew.until_state("dead", "poison")
    assert "worker" in jobs["poison"]["last_error"]
    crew.until_state("completed", *(id for id in jobs if id != "poison"))
    assert supervisor.said().count("was killed by SIGKILL while it ran poison") == 3
    until_sync(lambda: len(crew.workers()) == 2, "all are there again")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0


def test_workers_that_cannot_start_make_the_supervisor_give_up_with_their_reason(
    crew: Crew, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text("import os\nos._exit(9)\n")
    script = (
        "import runcue.cli.supervisor as s\ns.FIRST_PAUSE = 0.01\n"
        "from runcue.cli.main import runcue\nruncue()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "worker", "app:cue"],
        env=environment(crew.home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 70
    assert done.stderr.count("ended with exit code 9. Another one starts in") == 4
    assert done.stderr.endswith("Workers cannot start: the last one ended with exit code 9.\n")


def test_a_worker_whose_file_was_exchanged_says_so_and_another_one_goes_on(crew: Crew) -> None:
    crew.enqueue({"id": "old", "command": "true"})
    supervisor = crew.start()
    crew.until_state("completed")
    for path in crew.home.glob("queue.db*"):
        if path.is_file():
            path.unlink()
    crew.enqueue({"id": "new", "command": "true"})
    crew.until_state("completed", "new")
    assert "ended with exit code 3" in supervisor.said()
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0


# lines ----------------------------------------------------------------------------------------------------


@contextmanager
def unread(crew: Crew) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor whose lines about jobs have no reader any more."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = subprocess.Popen(
            [*QUEUECTL, "worker", "start"],
            env=environment(crew.home),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.DEVNULL,
        )
    finally:
        os.close(writing)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_reader_who_goes_away_ends_the_workers_gracefully(crew: Crew) -> None:
    crew.enqueue(*({"id": f"job{n}", "command": "true"} for n in range(3)))
    with unread(crew) as process:
        assert process.wait(BOUND) == 141
    assert crew.workers() == []


def test_the_last_line_without_a_reader_ends_the_workers_too(crew: Crew) -> None:
    with unread(crew) as process:
        until_sync(lambda: children_of(process.pid), "a worker is started")
        process.send_signal(signal.SIGSTOP)  # so that it hears everything about the job at once
        crew.enqueue({"id": "only", "command": "true"})
        crew.until_state("completed", "only")
        process.send_signal(signal.SIGCONT)
        assert process.wait(BOUND) == 141
    assert crew.workers() == []


def test_lines_that_nobody_reads_hold_nobody_up_and_are_counted() -> None:
    reading, writing = os.pipe()
    try:
        stream = Stream(writing, "ascii")
        for _ in range(20_000):
            stream.put("x" * 79 + "…")
        assert not stream.push()
        read = b""
        while select.select([reading], [], [], 0)[0]:
            read += os.read(reading, 65536)
            stream.push()
        *lines, last = read.decode("ascii").splitlines()
        assert set(lines) == {"x" * 79 + "\\u2026"}
        assert last == f"({20_000 - len(lines):,} lines lost: nobody read them)"
    finally:
        os.close(reading)
    stream.put("for nobody")
    assert stream.push()
    assert stream.is_closed
    os.close(writing)


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    with Path("/dev/full").open("wb") as full:
        stream = Stream(full.fileno(), "utf-8")
        stream.put("one")
        assert stream.push()
        assert not stream.is_closed


def test_a_log_is_private_and_stays_small_whoever_writes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[int, int]] = []
    real = os.dup2

    def dup2(one: int, other: int, inheritable: bool = True) -> int:
        if other in {1, 2}:
            kept.append((one, other))
            return other
        return real(one, other, inheritable)

    monkeypatch.setattr(os, "dup2", dup2)  # the test's own output stays where it is
    path = tmp_path / "worker.log"
    one, other = Log(path, 1000), Log(path, 1000)
    for number in range(30):
        (one, other)[number % 2].put(f"{number:>60}")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["worker.log", "worker.log.1"]
    assert all(file.stat().st_size < 1100 and stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert path.read_text().split()[-1] == "29"
    numbers = [int(word) for file in reversed(files) for word in file.read_text().split()]
    assert numbers == list(range(numbers[0], 30))
    assert len(kept) >= 4
    for log in (one, other):
        os.close(log.fileno())


def _dup2_but_streams(one: int, other: int, inheritable: bool = True) -> int:
    """The test's own output stays where it is."""
    if other in {1, 2}:
        return other
    os.close(other)
    copy = fcntl.fcntl(one, fcntl.F_DUPFD, other)
    assert copy == other
    return copy


@pytest.fixture
def full_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Log, Log]]:
    """A log that is full, and the two that write to it."""
    monkeypatch.setattr(os, "dup2", _dup2_but_streams)
    path = tmp_path / "worker.log"
    one, other = Log(path, 100), Log(path, 100)
    one.put("x" * 100)
    yield path, one, other
    for log in (one, other):
        os.close(log.fileno())


def test_a_log_that_two_find_full_at_once_is_moved_once(
    full_log: tuple[Path, Log, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, one, other = full_log
    real = files.replace

    def replace(source: Path, target: str) -> None:
        real(source, target)
        monkeypatch.setattr(files, "replace", real)
        other.put("meanwhile")  # it has found the log full, too

    monkeypatch.setattr(files, "replace", replace)
    one.put("after")
    other.put("at last")
    assert Path(f"{path}.1").read_text() == "x" * 100 + "\nmeanwhile\n"
    assert path.read_text() == "after\nat last\n"


def test_of_those_who_wait_to_move_a_full_log_one_does(
    full_log: tuple[Path, Log, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, one, other = full_log
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        one.put("first")  # between finding it full and moving it
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    other.put("second")
    assert Path(f"{path}.1").read_text() == "x" * 100 + "\n"
    assert path.read_text() == "first\nsecond\n"


def test_lines_that_a_log_does_not_take_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "worker.log"
    log = Log(path)
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        log.put("lost")
    monkeypatch.setattr(os, "write", real)
    log.put("one")
    log.put("two")
    assert path.read_text() == "(3 lines lost: they could not be written)\none\ntwo\n"
    os.close(log.fileno())


# who may be signalled -------------------------------------------------------------------------------------


def test_a_supervisor_stands_only_while_it_lives(tmp_path: Path) -> None:
    assert standing(tmp_path) == []
    with Post(tmp_path):
        [one] = standing(tmp_path)
        assert (one.pid, one.host) == (os.getpid(), os.uname().nodename)
        assert one.lives()
        assert stat.S_IMODE((tmp_path / "supervisors").stat().st_mode) == 0o700
    assert not one.lives()
    assert standing(tmp_path) == []
    left = tmp_path / "supervisors" / "1-dead"
    left.write_text('{"pid": 1, "host": "here"}')  # as a killed one leaves it
    assert standing(tmp_path) == []
    assert not left.exists()


def test_a_process_that_took_over_a_pid_is_never_signalled() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert not send(process.pid, signal.SIGKILL, lambda: False)
        assert process.poll() is None
        assert send(process.pid, signal.SIGKILL, lambda: True)
        assert process.wait(BOUND) == -signal.SIGKILL
        assert not send(process.pid, signal.SIGKILL, lambda: True)
    finally:
        process.kill()


def garble(crew: Crew) -> None:
    """Damage all of the queue's file but its name, under those who have it open."""
    import apsw

    connection = apsw.Connection(str(crew.database))
    connection.pragma("wal_checkpoint", "TRUNCATE")
    connection.close()
    with crew.database.open("r+b") as file:
        file.write(b"\xa5" * crew.database.stat().st_size)


def test_stop_ends_the_workers_of_a_damaged_queue_and_says_what_is_wrong(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(slow(tmp_path))
    supervisor = crew.start("--count", "2")
    workers = children_of(supervisor.pid)
    until_sync((tmp_path / "runs").exists, "the job starts")
    garble(crew)
    with crew.begun("worker", "stop") as stopping:
        supervisor.until("Stopping when slow has ended.")
        (tmp_path / "go").touch()
        out, err = stopping.communicate(timeout=BOUND)
    assert (stopping.returncode, out) == (3, "Stopped 1 supervisor with all workers.\n")
    assert err.count("\n") == 1
    assert "queue.db" in err
    assert supervisor.wait() == 3
    assert gone(workers)
    said = supervisor.said()
    assert "slow  ended, but its result could not be kept: it will run again" in said
    assert "What became of slow could not be kept." in said


def test_stop_goes_on_when_the_queue_is_damaged_while_it_waits(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue(slow(tmp_path))
    supervisor = crew.start()
    until_sync((tmp_path / "runs").exists, "the job starts")
    with crew.begun("worker", "stop") as stopping:
        assert stopping.stderr is not None
        assert stopping.stderr.readline() == "Waiting for 1 running job: slow\n"
        crew.database.rename(tmp_path / "away")
        (tmp_path / "go").touch()
        out, _ = stopping.communicate(timeout=BOUND)
    assert (stopping.returncode, out) == (3, "Stopped 1 supervisor with all workers.\n")
    supervisor.wait()


def test_stop_ends_a_supervisor_that_has_no_worker_at_the_moment(crew: Crew) -> None:
    script = "import runcue.cli.supervisor as s\ns.FIRST_PAUSE = 60\nfrom runcue.cli.main import queuectl\nqueuectl()"
    supervisor = Supervisor(
        [sys.executable, "-c", script, "worker", "start"], environment(crew.home), crew.home.parent
    )
    try:
        supervisor.until("Started ")
        [worker] = children_of(supervisor.pid)
        os.kill(worker, signal.SIGKILL)
        supervisor.until("Another one starts in")
        assert crew.run("worker", "stop").stdout == "Stopped 1 supervisor.\n"
        assert supervisor.wait() == 0
    finally:
        supervisor.end()
