"""Signs of life, wake-ups and turns between real processes on Windows, where events and locks have other rules."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "win32":
    pytest.skip("of Windows", allow_module_level=True)

from runcue.errors import StorageReplaced, StoreError
from runcue.host.windows import clock, files, kernel, wake
from runcue.stores.presence.presence import NEWS, URGENT, Presence, Turnstile, is_alive, side_directory
from tests.patience import BOUND, happens, until

PEER = """
import sys
from pathlib import Path
from runcue.stores.presence.presence import *
directory = Path(sys.argv[1])
presence, turnstile = Presence(directory, "peer"), Turnstile(directory)
def say(value):
    print(repr(value), flush=True)
say("here")
for line in sys.stdin:
    exec(line)
"""


class Peer:
    """Another process on the queue, which does what it is told, a line at a time."""

    def __init__(self, directory: Path) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", PEER, str(directory)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        assert self.hear() == "here"

    def tell(self, line: str) -> None:
        """Have it run that line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")

    def hear(self) -> object:
        """The next thing it says."""
        assert self.process.stdout is not None
        return eval(self.process.stdout.readline())

    def ask(self, expression: str) -> object:
        """What it thinks this expression is."""
        self.tell(f"say({expression})")
        return self.hear()

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self.process.kill()
        self.process.wait(BOUND)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return side_directory(tmp_path / "queue.db")


@pytest.fixture
def here(directory: Path) -> Iterator[Presence]:
    presence = Presence(directory, "here")
    yield presence
    presence.close()


@pytest.fixture
def peer(directory: Path, here: Presence) -> Iterator[Peer]:
    one = Peer(directory)
    yield one
    one.kill()
    for pipe in (one.process.stdin, one.process.stdout):
        assert pipe is not None
        pipe.close()


async def test_a_killed_process_is_dead_and_its_files_are_swept(
    here: Presence, peer: Peer, directory: Path
) -> None:
    assert here.is_alive("peer")
    peer.kill()
    await until(lambda: not here.is_alive("peer"))  # Windows frees a lock a moment after the end
    assert here.poke(["peer"]) == ["peer"]
    assert here.sweep(["peer"]) == ["peer"]
    await until(lambda: sorted(os.listdir(directory)) == ["door", "here.lock", "turn"])


async def test_a_poke_wakes_a_process_and_says_for_whom_something_was_left(
    here: Presence, peer: Peer
) -> None:
    woken = asyncio.Event()
    here.ear.attach(asyncio.get_running_loop(), woken.set)
    assert peer.ask("presence.poke(['here'])") == []
    await happens(woken)
    assert here.drain() == NEWS
    woken.clear()
    assert peer.ask("presence.poke(['here'], {'here'})") == []
    await happens(woken)
    assert here.drain() == URGENT
    assert here.poke(["peer"]) == []
    assert peer.ask("presence.drain()") == NEWS
    assert peer.ask("presence.drain()") == b""


async def test_what_is_said_while_nobody_listens_is_heard_afterwards(here: Presence, directory: Path) -> None:
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    other = Presence(directory, "other")
    here.ear.attach(loop, woken.set)
    here.ear.detach(loop)
    assert other.poke(["here"]) == []
    for _ in range(3):
        await asyncio.sleep(0)
    assert not woken.is_set()
    here.ear.attach(loop, woken.set)
    await happens(woken)
    assert here.drain() == NEWS
    other.close()


async def test_the_end_of_a_process_can_be_waited_for(here: Presence, peer: Peer) -> None:
    watch, ended = here.watch(peer.process.pid), asyncio.Event()
    assert watch is not None
    watch.attach(asyncio.get_running_loop(), ended.set)
    peer.kill()
    await happens(ended)
    watch.close()
    assert wake.watch(2**31 - 4) is None


def test_strangers_and_those_who_left_are_named_by_poke(here: Presence, peer: Peer) -> None:
    assert here.poke(["stranger", "peer", "here"]) == ["stranger"]
    peer.ask("presence.close()")
    assert here.poke(["peer"]) == ["peer"]


def test_a_worker_cannot_move_in_twice_and_a_closed_one_says_so(here: Presence, directory: Path) -> None:
    with pytest.raises(StoreError, match="at work already"):
        Presence(directory, "here")
    here.close()
    for use in (here.drain, here.beat, lambda: here.poke([])):
        with pytest.raises(StoreError, match="is closed"):
            use()
    assert not is_alive(directory, "here")


def test_nobody_is_called_dead_when_our_own_lock_is_gone(here: Presence, directory: Path) -> None:
    os.replace(directory / "here.lock", directory / "elsewhere")
    with pytest.raises(StorageReplaced, match="was removed while in use"):
        here.is_alive("other")


def test_one_process_at_a_time_is_through_the_turnstile_and_a_death_lets_the_next_through(
    directory: Path, here: Presence, peer: Peer
) -> None:
    ours = Turnstile(directory)
    assert peer.ask("turnstile.acquire()") is True
    assert not ours.acquire(0.0)
    peer.kill()
    assert ours.acquire()
    ours.release()
    ours.close()


def test_a_beat_is_told_on_the_clock_of_the_boot(here: Presence, directory: Path) -> None:
    before = clock.boottime()
    here.beat()
    assert before - 0.1 <= (directory / "here.lock").stat().st_mtime <= clock.boottime() + 0.1


def test_processes_of_one_host_agree_on_boot_and_clock(peer: Peer) -> None:
    assert peer.ask("(boot_id(), host_name())") == (clock.boot_id(), clock.host_name())
    before = clock.boottime()
    between = peer.ask("boottime()")
    assert isinstance(between, float)
    assert before <= between <= clock.boottime()


def test_an_open_file_is_replaced_once_it_is_closed_and_refused_while_it_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, new = tmp_path / "target", tmp_path / "new"
    target.write_bytes(b"old")
    new.write_bytes(b"new")
    monkeypatch.setattr(files, "PATIENCE", 0.01)
    with target.open("rb"), pytest.raises(PermissionError):
        files.replace(new, target)
    files.replace(new, target)
    assert target.read_bytes() == b"new"


def test_a_lock_far_beyond_the_end_keeps_nobody_from_reading(tmp_path: Path) -> None:
    one = files.open_file(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(one, b"text")
    files.lock(one)
    other = files.open_file(tmp_path / "file", os.O_RDWR)
    assert files.is_locked(other)
    assert not files.try_lock(other)
    assert files.read_at(other, 4, 0) == b"text"
    files.unlock(one)
    assert files.try_lock(other)
    for descriptor in (one, other):
        os.close(descriptor)


def test_a_share_of_another_computer_is_a_network_drive() -> None:
    assert files.file_system(r"\\server\share\queue.db") == "network drive"
    assert files.file_system("C:\\queue.db") is None


def test_a_process_is_told_from_others_by_its_creation(peer: Peer) -> None:
    handle = kernel.open_process(peer.process.pid, kernel.PROCESS_QUERY | kernel.SYNCHRONIZE)
    assert handle is not None
    assert kernel.created_at(handle) == kernel.created_at(handle)
    assert kernel.exit_code(handle) is None
    peer.kill()
    assert kernel.exit_code(handle) == 1
    kernel.CloseHandle(handle)
