"""Signs of life, wake-ups and turns between real processes on one host."""

import errno
import fcntl
import os
import secrets
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runcue.errors import ForkedConnection, StorageFull, StorageInsecure, StorageReplaced, StoreError
from runcue.host.system import wake
from runcue.stores.presence import presence as module
from runcue.stores.presence.presence import (
    KEPT_WAKES,
    NEWS,
    URGENT,
    Heart,
    Presence,
    Turnstile,
    boot_id,
    boottime,
    host_name,
    is_alive,
    last_beat,
    new_worker_id,
    side_directory,
    workers,
)

PATIENCE = 240.0

PEER = """
import os, select, signal, subprocess, sys, time
from pathlib import Path
from runcue.stores.presence.presence import *
directory = Path(sys.argv[1])
presence = Presence(directory, sys.argv[2]) if sys.argv[2] else None
turnstile = Turnstile(directory)
say = lambda value: os.write(1, f"{value!r}\\n".encode())
say("here")
for line in sys.stdin:
    exec(line.replace("; ;", chr(10)))
"""


class Peer:
    """Another process on the queue, which does what it is told, a line at a time, and says what it saw."""

    def __init__(self, directory: Path, worker_id: str) -> None:
        self.worker_id = worker_id
        command = [sys.executable, "-c", PEER, str(directory), worker_id]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe)  # select sees every line
        self.pid = self.process.pid
        assert self.hear() == "here"

    def tell(self, *lines: str) -> None:
        """Have it run these lines."""
        assert self.process.stdin is not None
        self.process.stdin.write(("; ;".join(lines) + "\n").encode())

    def hear(self) -> object:
        """The next thing it says."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], "the other process says nothing"
        return eval(self.process.stdout.readline())

    def ask(self, expression: str) -> object:
        """What it thinks this expression is."""
        self.tell(f"say({expression})")
        return self.hear()

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """Freeze it, and return when it is frozen."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def close(self) -> None:
        """End it and let go of its pipes."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return side_directory(tmp_path / "queue.db")


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., Peer]]:
    peers = []

    def start(worker_id: str = "") -> Peer:
        peers.append(Peer(directory, worker_id))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture
def here(directory: Path) -> Iterator[Presence]:
    presence = Presence(directory, "here")
    yield presence
    presence.close()


def is_readable(descriptor: int | wake.Ear | wake.Watch, patience: float = PATIENCE) -> bool:
    return bool(select.select([descriptor], [], [], patience)[0])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def end(pid: object) -> None:
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------ who lives


def test_a_killed_process_is_dead(here: Presence, start: Callable[..., Peer]) -> None:
    peer = start("peer")
    assert here.is_alive("peer")
    peer.kill()
    assert not here.is_alive("peer")


def test_a_stopped_process_is_alive(here: Presence, start: Callable[..., Peer]) -> None:
    peer = start("peer")
    peer.stop()
    assert here.is_alive("peer")
    assert here.sweep(["peer"]) == []
    os.kill(peer.pid, signal.SIGCONT)
    assert peer.ask("presence.is_in_place") is True


def test_one_is_alive_to_oneself_and_a_stranger_is_not(here: Presence) -> None:
    assert here.is_alive("here")
    assert not here.is_alive("stranger")


def test_two_who_ask_about_the_dead_do_not_take_each_other_for_him(
    here: Presence, start: Callable[..., Peer], directory: Path
) -> None:
    start("peer").kill()
    asking = os.open(directory / "peer.lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    assert not here.is_alive("peer")
    os.close(asking)


def test_a_living_process_of_the_same_pid_does_not_make_a_worker_live(
    here: Presence, start: Callable[..., Peer]
) -> None:
    bystander = start()
    reused = f"{bystander.pid}-{secrets.token_hex(8)}"
    dead = start(reused)
    dead.kill()
    assert not here.is_alive(reused)
    assert here.sweep([reused]) == [reused]
    assert bystander.ask("'unharmed'") == "unharmed"


def test_a_worker_cannot_move_in_twice(here: Presence, directory: Path) -> None:
    with pytest.raises(StoreError, match="'here' is at work already"):
        Presence(directory, "here")
    assert here.is_in_place
    assert not here.poke(["here"])
    assert is_alive(directory, "here")


def test_the_id_of_the_dead_can_be_taken_up_again(
    here: Presence, start: Callable[..., Peer], directory: Path
) -> None:
    start("peer").kill()
    again = Presence(directory, "peer")
    assert here.is_alive("peer")
    assert here.poke(["peer"]) == []
    assert is_readable(again.ear)
    again.close()


def test_a_file_left_by_a_death_while_moving_in_is_in_nobodys_way(here: Presence, directory: Path) -> None:
    for left in ("unborn.new", "unborn.wake", "other.new"):
        (directory / left).touch()
    assert workers(directory) == ["here", "other", "unborn"]
    other = Presence(directory, "other")
    assert here.sweep(workers(directory)) == ["unborn"]
    assert workers(directory) == ["here", "other"]
    assert here.is_alive("other")
    other.close()


def test_nobody_is_called_dead_when_the_files_of_all_are_gone(
    here: Presence, start: Callable[..., Peer], directory: Path
) -> None:
    peer = start("peer")
    for file in directory.iterdir():
        file.unlink()
    assert not here.is_in_place
    with pytest.raises(StorageReplaced, match="removed while in use"):
        here.is_alive("peer")
    assert peer.ask("presence.is_in_place") is False


def test_what_is_no_id_is_no_path_either(here: Presence, directory: Path) -> None:
    outside = directory.parent / "outside.lock"
    outside.touch()
    for name in ("../outside", "", ".", "a/b", "a\0b", "x" * 65, "-rf", "line\n"):
        assert not here.is_alive(name)
        assert last_beat(here.directory, name) is None
        assert here.poke([name]) == [name]
        here.sweep([name])
    assert outside.exists()


def test_who_is_not_a_worker_can_look_too(directory: Path, start: Callable[..., Peer]) -> None:
    assert not is_alive(directory, "peer")
    assert last_beat(directory, "peer") is None
    assert workers(directory) == []
    peer = start("peer")
    assert is_alive(directory, "peer")
    assert last_beat(directory, "peer") is not None
    assert workers(directory) == ["peer"]
    peer.kill()
    assert not is_alive(directory, "peer")
    assert workers(directory) == ["peer"]


def test_a_thousand_joins_and_leaves_rob_nobody(
    here: Presence, start: Callable[..., Peer], directory: Path
) -> None:
    living = start("living")
    crowds = [start(), start()]
    for crowd in crowds:
        crowd.tell(
            "seen = set()",
            "for _ in range(500):",
            "    one = Presence(directory, new_worker_id())",
            "    swept = one.sweep(workers(directory))",
            "    seen.add((one.is_alive('living'), one.is_alive('here'), one.is_in_place))",
            "    seen.add(('living' in swept, bool(one.poke(['living', 'here']))))",
            "    one.close()",
            "say(seen)",
        )
    for crowd in crowds:
        assert crowd.hear() == {(True, True, True), (False, False)}
    assert living.ask("presence.is_in_place") is True
    assert living.ask("set(presence.drain())") == {NEWS[0]}
    assert here.is_in_place
    assert workers(directory) == ["here", "living"]


# ---------------------------------------------------------------------------------------- sweeping


def test_the_files_of_the_dead_are_swept_and_those_of_the_living_stay(
    here: Presence, start: Callable[..., Peer], directory: Path
) -> None:
    start("living")
    start("dead").kill()
    assert here.sweep(["dead", "living", "here", "stranger"]) == ["dead", "stranger"]
    left = {file.name for file in directory.iterdir()}
    assert left == {"turn", "here.lock", "here.wake", "living.lock", "living.wake"}


def test_nothing_is_swept_while_somebody_else_moves_in(
    here: Presence, start: Callable[..., Peer], directory: Path
) -> None:
    start("dead").kill()
    door = os.open(directory, os.O_RDONLY)
    fcntl.flock(door, fcntl.LOCK_EX)
    assert here.sweep(["dead"]) == []
    assert (directory / "dead.lock").exists()
    os.close(door)
    assert here.sweep(["dead"]) == ["dead"]


def test_closing_leaves_nothing_of_ones_own_and_can_be_repeated(here: Presence, directory: Path) -> None:
    assert repr(here) == "<Presence here open>"
    here.close()
    here.close()
    assert list(directory.iterdir()) == []
    assert repr(here) == "<Presence here closed>"
    for use in (lambda: here.ear, here.drain, here.beat, lambda: here.poke([]), lambda: here.sweep([])):
        with pytest.raises(StoreError, match="is closed"):
            use()


# ---------------------------------------------------------------------------------------- wake-ups


def test_a_poke_wakes_a_process_that_sleeps(here: Presence, start: Callable[..., Peer]) -> None:
    peer = start("peer")
    peer.tell("say('sleeping')", f"say(bool(select.select([presence.ear], [], [], {PATIENCE})[0]))")
    assert peer.hear() == "sleeping"
    assert here.poke(["peer"]) == []
    assert peer.hear() is True
    assert peer.ask("presence.drain()") == b"."
    assert peer.ask("presence.drain()") == b""
    assert peer.ask("select.select([presence.ear], [], [], 0)[0]") == []


def test_a_poke_says_for_whom_something_was_left(here: Presence, start: Callable[..., Peer]) -> None:
    one, two = start("one"), start("two")
    assert here.poke(["one", "two"], {"two"}) == []
    assert here.poke(["one", "two"]) == []
    assert one.ask("presence.drain()") == 2 * NEWS
    assert two.ask("presence.drain()") == URGENT + NEWS


def test_who_does_not_listen_is_poked_until_it_is_full_and_then_has_been_told(
    here: Presence, directory: Path
) -> None:
    peer = Presence(directory, "peer")
    filling = os.open(directory / "peer.wake", os.O_WRONLY | os.O_NONBLOCK)
    filled = 0
    while select.select([], [filling], [], 0)[1]:
        filled += os.write(filling, b"!" * 4096)
        assert filled < 2**30
    assert here.poke(["peer"]) == []
    assert peer.drain()
    assert not is_readable(peer.ear, 0), f"{filled} bytes were not taken in at once"
    os.close(filling)
    peer.close()


def test_the_dead_and_strangers_are_named_by_poke(here: Presence, start: Callable[..., Peer]) -> None:
    left, killed, peer = start("left"), start("killed"), start("peer")
    everybody = ["left", "killed", "stranger", "peer", "here"]
    assert here.poke(everybody) == ["stranger"]
    left.ask("presence.close()")
    killed.kill()
    assert here.poke(everybody) == ["left", "killed", "stranger"]
    assert here.poke(everybody) == ["left", "killed", "stranger"]
    assert peer.ask("presence.drain()") == 3 * NEWS
    assert here.drain() == b""


def test_a_peer_whose_files_were_made_anew_is_reached(here: Presence, directory: Path) -> None:
    for _ in range(3):
        peer = Presence(directory, "peer")
        assert here.poke(["peer"]) == []
        assert here.poke(["peer"]) == []
        assert peer.drain()
        peer.close()


def test_only_so_many_descriptors_are_kept_for_poking(here: Presence, directory: Path) -> None:
    peers = [Presence(directory, f"peer-{number}") for number in range(KEPT_WAKES + 8)]
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208 (of this process, and iterdir() would add its own)
    for _ in range(2):
        assert here.poke([peer.worker_id for peer in peers]) == []
    assert len(os.listdir("/dev/fd")) == before + KEPT_WAKES  # noqa: PTH208 (the same)
    assert all(peer.drain() for peer in peers)
    for peer in peers:
        peer.close()


def test_the_death_of_a_peer_kills_nobody_where_broken_pipes_are_deadly(
    start: Callable[..., Peer],
) -> None:
    peer, careless = start("peer"), start("careless")
    careless.tell("signal.signal(signal.SIGPIPE, signal.SIG_DFL)")
    assert careless.ask("presence.poke(['peer'])") == []
    peer.kill()
    assert careless.ask("presence.poke(['peer'])") == ["peer"]
    assert careless.ask("signal.SIGPIPE in signal.pthread_sigmask(signal.SIG_BLOCK, [])") is False
    assert careless.ask("signal.sigpending()") == set()


# ------------------------------------------------------------------------------- noticing a death


def test_a_death_can_be_waited_for(here: Presence, start: Callable[..., Peer]) -> None:
    peer = start("peer")
    watching = here.watch(peer.pid)
    assert watching is not None
    assert not is_readable(watching, 0)
    os.kill(peer.pid, signal.SIGKILL)
    assert is_readable(watching)
    assert not here.is_alive("peer")
    watching.close()


def test_there_is_nothing_to_wait_for_where_there_is_no_process_or_no_pidfd(
    here: Presence, start: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = start()
    peer.kill()
    assert here.watch(peer.pid) is None
    assert here.watch(-1) is None
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert here.watch(os.getpid()) is None


# ------------------------------------------------------------------------------------------- forks


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(
    here: Presence, start: Callable[..., Peer]
) -> None:
    peer = start("peer")
    peer.tell("child = os.fork()", "say(child)")  # the child goes on too, until its standard input ends
    said = {peer.hear(), peer.hear()}
    child = (said - {0}).pop()
    assert here.is_alive("peer")
    peer.kill()
    assert not here.is_alive("peer")
    assert here.poke(["peer"]) == ["peer"]
    end(child)


def test_a_program_started_by_a_worker_does_not_keep_its_lock(
    here: Presence, start: Callable[..., Peer]
) -> None:
    peer = start("peer")
    program = peer.ask("subprocess.Popen(['cat'], close_fds=False).pid")
    peer.kill()
    assert not here.is_alive("peer")
    end(program)


def test_a_forked_child_cannot_use_what_its_parent_opened_nor_take_it_away(
    here: Presence, start: Callable[..., Peer]
) -> None:
    peer = start("peer")
    uses = ["ear", "drain()", "poke(['here'])", "is_alive('here')", "sweep(['here'])", "beat()"]
    peer.tell(
        "child = os.fork()",
        "if child == 0:",
        "    refused = 0",
        f"    for use in {[*(f'presence.{use}' for use in uses), 'turnstile.acquire(0)']}:",
        "        try:",
        "            eval(use)",
        "        except Exception as error:",
        f"            refused += type(error).__name__ == {ForkedConnection.__name__!r}",
        "    presence.close()",
        "    turnstile.close()",
        "    say((refused, presence.is_forked))",
        "    os._exit(0)",
        "os.waitpid(child, 0)",
    )
    assert peer.hear() == (len(uses) + 1, True)
    assert peer.ask("(presence.is_in_place, presence.is_forked, turnstile.acquire(0))") == (True, False, True)
    assert here.is_alive("peer")
    assert here.poke(["peer"]) == []


def test_a_thousand_forks_leave_the_parent_its_lock_and_its_turn(
    here: Presence, start: Callable[..., Peer], directory: Path
) -> None:
    peer = start("peer")
    assert peer.ask("turnstile.acquire(0)") is True
    peer.tell(
        "for _ in range(1000):",
        "    child = os.fork()",
        "    if child == 0: os._exit(0)",
        "    os.waitpid(child, 0)",
        "say('forked')",
    )
    assert peer.hear() == "forked"
    assert here.is_alive("peer")
    turnstile = Turnstile(directory)
    assert not turnstile.acquire(0)
    peer.kill()
    assert turnstile.acquire(PATIENCE)
    turnstile.close()


# ------------------------------------------------------------------------------------------- beats


def test_a_beat_is_told_on_a_clock_that_nobody_can_set(
    here: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 2**62)
    before = boottime()
    here.beat()
    beat = last_beat(here.directory, "here")
    assert beat is not None
    assert before - 0.001 <= beat <= boottime() + 0.001


def test_a_beat_that_fails_says_so(here: Presence, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    with pytest.raises(StoreError, match=r"^Cannot touch '.*': Read-only file system\. "):
        here.beat()


def test_a_stopped_process_lives_without_beating(here: Presence, start: Callable[..., Peer]) -> None:
    peer = start("peer")
    peer.ask("presence.beat()")
    first = last_beat(here.directory, "peer")
    assert first is not None
    peer.stop()
    os.kill(peer.pid, signal.SIGCONT)
    assert last_beat(here.directory, "peer") == first
    peer.ask("presence.beat()")
    second = last_beat(here.directory, "peer")
    assert second is not None
    assert second > first


def beating() -> set[threading.Thread]:
    """The hearts in this process, those of queues that other tests have open included."""
    return {thread for thread in threading.enumerate() if thread.name == "runcue-heart"}


def test_a_heart_beats_until_it_is_closed() -> None:
    others = beating()
    beats = threading.Semaphore(0)
    troubles: list[object] = []
    heart = Heart(beats.release, 0.001, lambda what, error: troubles.append(error))
    for _ in range(3):
        assert beats.acquire(timeout=PATIENCE)
    heart.close()
    assert beating() <= others
    assert troubles == []


def test_a_heart_between_two_beats_ends_at_once() -> None:
    others = beating()
    heart = Heart(lambda: None, 3600.0, lambda what, error: None)
    heart.close()
    heart.close()
    assert beating() <= others


def test_a_missed_beat_is_told_and_the_next_one_tried() -> None:
    tries, told = threading.Semaphore(0), list[tuple[str, str]]()

    def beat() -> None:
        tries.release()
        raise OSError(errno.EIO, "no disk")

    heart = Heart(beat, 0.001, lambda what, error: told.append((what, str(error))))
    for _ in range(3):
        assert tries.acquire(timeout=PATIENCE)
    heart.close()
    assert len(told) >= 3
    assert set(told) == {("cannot give a sign of life", "[Errno 5] no disk")}


def test_a_heart_does_not_survive_a_fork(start: Callable[..., Peer]) -> None:
    peer = start("peer")
    peer.tell(
        "import threading",
        "told = []",
        "heart = Heart(presence.beat, 0.001, lambda *trouble: told.append(trouble))",
        "child = os.fork()",
        "if child == 0:",
        "    heart.close()",
        "    say(threading.active_count())",
        "    os._exit(0)",
        "os.waitpid(child, 0)",
        "heart.close()",
        "say((len(told), threading.active_count()))",
    )
    assert peer.hear() == 1
    assert peer.hear() == (0, 1)


# ------------------------------------------------------------------------------------------- turns


def test_only_one_process_is_through_the_turnstile(directory: Path, start: Callable[..., Peer]) -> None:
    turnstile, peer = Turnstile(directory), start()
    assert turnstile.acquire(0)
    assert peer.ask("turnstile.acquire(0)") is False
    assert peer.ask("turnstile.acquire(0.001)") is False
    turnstile.release()
    assert peer.ask(f"turnstile.acquire({PATIENCE})") is True
    assert not turnstile.acquire(0)
    peer.kill()
    assert turnstile.acquire(None)
    turnstile.close()


def test_no_two_processes_have_a_turn_at_the_same_time(directory: Path, start: Callable[..., Peer]) -> None:
    directory.mkdir(mode=0o700)
    count = directory / "count"
    count.write_text("0", encoding="ascii")
    peers = [start() for _ in range(4)]
    for number, peer in enumerate(peers):
        peer.tell(
            "for _ in range(200):",
            f"    assert turnstile.acquire({None if number % 2 else PATIENCE})",
            "    count = directory / 'count'",
            "    count.write_text(str(int(count.read_text()) + 1))",
            "    turnstile.release()",
            "say('done')",
        )
    assert [peer.hear() for peer in peers] == ["done"] * 4
    assert count.read_text(encoding="ascii") == "800"


def test_looking_in_without_waiting_leaves_nobody_in_the_queue(directory: Path) -> None:
    first, second = Turnstile(directory), Turnstile(directory)
    assert first.acquire()
    for timeout in (0, 0.001):
        assert not second.acquire(timeout)
    first.release()
    assert first.acquire(0)
    first.close()
    assert second.acquire(0)
    second.close()


def test_a_turnstile_closed_while_it_waits_takes_no_turn(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = Turnstile(directory), Turnstile(directory), Turnstile(directory)
    assert first.acquire()
    refused: list[str] = []
    waits, wait_for_turn = threading.Event(), second._wait

    def noted() -> None:
        waits.set()
        wait_for_turn()

    monkeypatch.setattr(second, "_wait", noted)

    def wait() -> None:
        with pytest.raises(StoreError) as error:
            second.acquire()
        refused.append(str(error.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert waits.wait(PATIENCE)
    second.close()
    second.close()
    with pytest.raises(StoreError, match="is closed"):
        second.acquire(0)
    assert refused == []
    first.close()
    waiting.join(PATIENCE)
    assert "is closed" in refused[0]
    assert third.acquire(0)
    third.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second._descriptor)


def test_a_process_stopped_while_it_waits_stops_nobody(directory: Path, start: Callable[..., Peer]) -> None:
    turnstile, timed, blocked = Turnstile(directory), start(), start()
    assert turnstile.acquire()
    timed.tell("say('waits')", f"say(turnstile.acquire({PATIENCE}))")
    blocked.tell("say('waits')", "say(turnstile.acquire())")
    for peer in (timed, blocked):
        assert peer.hear() == "waits"
        peer.stop()
    turnstile.release()
    for _ in range(10):
        assert turnstile.acquire(PATIENCE)
        turnstile.release()
    os.kill(blocked.pid, signal.SIGCONT)
    assert blocked.hear() is True
    turnstile.close()


# ----------------------------------------------------------------------------------- the directory


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_files_are_for_their_owner_alone_under_any_umask(
    tmp_path: Path, start: Callable[..., Peer], umask: int
) -> None:
    peer = start()
    open_ones = tmp_path / "fresh.runcue"
    peer.tell(
        f"os.umask({umask})",
        f"fresh = Path({str(open_ones)!r})",
        "presence, turnstile = Presence(fresh, 'peer'), Turnstile(fresh)",
        "say(presence.is_in_place)",
    )
    assert peer.hear() is True
    assert mode_of(open_ones) == 0o700
    modes = {file.name: mode_of(file) for file in open_ones.iterdir()}
    assert modes == {"peer.lock": 0o600, "peer.wake": 0o600, "turn": 0o600}
    assert stat.S_ISFIFO((open_ones / "peer.wake").lstat().st_mode)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("opening", [Turnstile, lambda directory: Presence(directory, "here")])
def test_a_directory_that_others_may_write_to_is_refused(
    directory: Path, mode: int, opening: Callable[[Path], object]
) -> None:
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(StorageInsecure, match=f"Other users may write to .* \\(mode {mode:04o}\\)") as caught:
        opening(directory)
    assert caught.value.store == str(directory)
    assert list(directory.iterdir()) == []
    assert mode_of(directory) == mode


def test_a_directory_of_another_user_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir(mode=0o700)
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(StorageInsecure, match=f"belongs to user {stranger - 1}, .* as user {stranger}"):
        Presence(directory, "here")
    assert list(directory.iterdir()) == []


def test_what_is_not_a_directory_is_refused_and_left_alone(directory: Path, tmp_path: Path) -> None:
    directory.write_text("mine", encoding="ascii")
    with pytest.raises(StoreError, match="is not a directory"):
        Presence(directory, "here")
    assert directory.read_text(encoding="ascii") == "mine"
    directory.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    directory.symlink_to(elsewhere)
    with pytest.raises(StoreError, match="is not a directory"):
        Turnstile(directory)
    assert list(elsewhere.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^Cannot make the directory '.*': No such file or directory\. .*$"):
        Presence(tmp_path / "missing" / "queue.db.runcue", "here")


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EROFS, StoreError), (errno.EACCES, StoreError), (errno.ENOSPC, StorageFull)]
)
def test_files_that_cannot_be_made_are_one_clear_line_and_leave_no_descriptor(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    Turnstile(directory).close()
    before = set(os.listdir("/dev/fd"))  # noqa: PTH208 (of this process, and iterdir() would add its own)

    def refuse(path: object, mode: int) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "mkfifo", refuse)
    with pytest.raises(StoreError, match=f"^Cannot make '.*': {os.strerror(number)}") as caught:
        Presence(directory, "here")
    assert type(caught.value) is kind
    assert set(os.listdir("/dev/fd")) == before  # noqa: PTH208 (the same)
    assert not is_alive(directory, "here")


def test_a_door_that_stays_shut_is_an_error_and_not_a_hang(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Turnstile(directory).close()
    monkeypatch.setattr(module, "DIRECTORY_PATIENCE", 0.01)
    door = os.open(directory, os.O_RDONLY)
    fcntl.flock(door, fcntl.LOCK_EX)
    with pytest.raises(StoreError, match=r"was locked for 0\.01 s"):
        Presence(directory, "here")
    os.close(door)
    Presence(directory, "here").close()


def test_every_name_of_a_file_leads_to_the_same_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.db").touch()
    (tmp_path / "alias").symlink_to("queue.db")
    monkeypatch.chdir(tmp_path)
    assert side_directory("queue.db") == side_directory(tmp_path / "alias")
    assert side_directory("./alias") == tmp_path.resolve() / "queue.db.runcue"


# ----------------------------------------------------------------------------------- names and clocks


def test_worker_ids_differ_and_are_good_names(directory: Path) -> None:
    ids = {new_worker_id() for _ in range(1000)}
    assert len(ids) == 1000
    one = ids.pop()
    assert one.startswith(f"{os.getpid()}-")
    Presence(directory, one).close()


def test_processes_of_one_host_agree_on_host_boot_and_clock(start: Callable[..., Peer]) -> None:
    peer = start()
    assert peer.ask("(host_name(), boot_id())") == (host_name(), boot_id())
    before = boottime()
    between = peer.ask("boottime()")
    assert isinstance(between, float)
    assert before <= between <= boottime()


def test_a_system_without_boot_ids_has_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    boot_id.cache_clear()
    assert boot_id() == "unknown"
    boot_id.cache_clear()
