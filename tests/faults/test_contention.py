"""Others on the same file: who hold its lock, who are stopped inside a turn, who were forked with it open."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import runcue
from runcue.stores.sqlite.file import CHECKPOINT_PAGES
from runcue.stores.sqlite.wal_checkpoint import TOO_LONG
from tests.faults.stage import Actor, Scene, refused
from tests.faults.test_bad_files import children, start, told
from tests.patience import BOUND
from tests.torture.history import now

__all__ = ["children"]

IMPATIENT = 0.3
PAGE = 4096


@pytest.fixture
def holder(scene: Scene) -> Iterator[apsw.Connection]:
    """Another program's connection to the file, which is there and in use."""
    actor = scene.play()
    actor.submit(id="first")
    connection = apsw.Connection(str(scene.database))
    connection.set_busy_timeout(int(BOUND * 1000))
    yield connection
    connection.close()


# --- DB1, DB2, DB3, DB5: locks of others ----------------------------------------------------------


def test_whoever_waits_for_a_lock_goes_on_when_it_is_let_go(scene: Scene, holder: apsw.Connection) -> None:
    """DB1: within the time one has patience for, nobody gets an error."""
    actor = scene.running()
    actor.until_state("first", "completed")
    holder.execute("BEGIN EXCLUSIVE")
    call = actor.tell("submit", task="note", id="second")
    assert not actor.has_answered(call, 0.3)
    holder.execute("ROLLBACK")
    assert actor.answer(call) == "second"
    actor.until_state("second", "completed")


def test_a_file_locked_for_long_is_an_error_and_everything_goes_on_afterwards(
    scene: Scene, holder: apsw.Connection
) -> None:
    """DB1: nothing is lost, nobody is taken for dead, and who comes new is told the same."""
    actor = scene.running(patience=IMPATIENT, options={"lease": 0.3})
    other = scene.running(patience=IMPATIENT, options={"lease": 0.3})
    actor.submit("hold", id="held")
    scene.until_started("held")
    holder.execute("BEGIN EXCLUSIVE")
    for one in (actor, other):
        error = refused(one, "submit", task="note", id="refused")
        assert (error.kind, "queue.db" in error.text) == ("StorageBusy", True)
        one.ask("let_go")
    newcomer = scene.play(patience=IMPATIENT)
    assert refused(newcomer, "submit", task="note").kind == "StorageBusy"
    with runcue.Reader(scene.database) as reader:
        held = reader.get("held")
        assert held is not None
        assert held.state is runcue.WorkState.RUNNING
    holder.execute("ROLLBACK")
    assert actor.until_state("held", "completed")["result"] == "held"
    newcomer.submit(id="next")
    actor.until_state("next", "completed")
    assert scene.starts() == {"first": 1, "held": 1, "next": 1}
    assert actor.ask("get", work_id="refused") is None
    for one in (newcomer, other, actor):
        assert sum("ERROR" in line for line in one.ask("logged")) <= 1
        assert one.ask("errors") == []


def test_a_queue_that_could_not_be_opened_leaves_no_sign_of_life(
    scene: Scene, holder: apsw.Connection
) -> None:
    """DB1: each try would otherwise leave a worker behind that nobody is."""
    newcomer = scene.play(patience=0.05, boot="another")  # who comes first after a reboot has to write
    before = sorted(Path(f"{scene.database}.runcue").iterdir())
    holder.execute("BEGIN EXCLUSIVE")
    for _ in range(3):
        assert refused(newcomer, "list").kind == "StorageBusy"
    holder.execute("ROLLBACK")
    assert sorted(Path(f"{scene.database}.runcue").iterdir()) == before


def test_every_transaction_asks_for_the_lock_at_its_beginning(scene: Scene) -> None:
    """DB2: a transaction that begins by reading and writes later can be refused at once, whatever the timeout."""
    actor = scene.play()
    actor.ask("watch_statements")
    actor.ask("start")
    actor.ask("submit_many", items=[{"task": "note"}] * 20)
    actor.ask("join", timeout=BOUND)
    actor.ask("list")
    actor.ask("count")
    statements = actor.ask("statements")
    assert len(statements) > 3
    assert set(statements) == {"BEGIN IMMEDIATE", "BEGIN DEFERRED"}  # the latter of who cannot write


def test_many_programs_open_a_queue_whose_last_user_was_killed_in_the_middle(scene: Scene) -> None:
    """DB3."""
    dead = scene.play()
    dead.submit(id="first")
    dead.ask("stop_at", place="turn.written")
    dead.tell("submit", task="note", id="half")
    dead.until_stopped()
    dead.kill()
    actors = [scene.play() for _ in range(12)]
    calls = [actor.tell("submit", task="note", id=f"w{number}") for number, actor in enumerate(actors)]
    assert [actor.answer(call) for actor, call in zip(actors, calls, strict=True)] == [
        f"w{number}" for number in range(12)
    ]
    actors[0].ask("start")
    actors[0].ask("join", timeout=BOUND)
    assert scene.starts() == dict.fromkeys(("first", *(f"w{number}" for number in range(12))), 1)
    for actor in actors:
        actor.close()
    scene.check()


def test_somebody_who_reads_for_long_holds_nobody_up_and_the_log_is_written_back_afterwards(
    scene: Scene, holder: apsw.Connection
) -> None:
    """DB5."""
    log = Path(f"{scene.database}-wal")
    actor = scene.running()
    actor.until_state("first", "completed")
    holder.execute("BEGIN")
    seen = holder.execute("SELECT count(*) FROM work_units").fetchall()

    def work(amount: int) -> None:
        for _ in range(amount):
            actor.ask("submit_many", items=[{"task": "note", "params": {"text": "x" * 20_000}}] * 20)
        actor.ask("join", timeout=BOUND)

    def beginning() -> bytes:
        """What SQLite writes anew whenever it uses the log from its beginning: a count, and a salt."""
        with log.open("rb") as file:
            return file.read(24)[12:]

    work(15)
    assert log.stat().st_size > 2 * CHECKPOINT_PAGES * PAGE, "it could not be written back so far"
    assert holder.execute("SELECT count(*) FROM work_units").fetchall() == seen
    before = beginning()
    holder.execute("ROLLBACK")
    # How soon all of it is in the file depends on who is quicker, the thread that copies or who commits, until it
    # is too long: then who commits copies. It starts over at a commit while nobody looks, and nobody looks for long.
    while beginning() == before:
        assert log.stat().st_size < 2 * TOO_LONG * PAGE, "the log is used again from its beginning"
        work(1)


# --- DB6: forks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["from a thread", "on a new loop"])
def test_a_forked_child_cannot_use_the_queue_of_its_parent(scene: Scene, way: str) -> None:
    """DB6: it is told so at once; its parent does not notice."""
    actor = scene.running()
    actor.submit(id="before")
    assert actor.ask("fork", way=way) == ["ForkedConnection"]
    actor.submit(id="after")
    actor.ask("join", timeout=BOUND)
    actor.close()
    assert set(scene.drained()) == {"before", "after"}


FORKED = """
import asyncio, runcue
cue = runcue.Cue(path)
cue.task("note")(lambda work: None)
loop = asyncio.new_event_loop()
loop.run_until_complete(cue.submit("note"))
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        loop.run_until_complete(cue.submit("note"))
    except RuncueError as error:
        os._exit(7 if type(error).__name__ == "ForkedConnection" else 8)
    os._exit(9)
status = os.waitpid(child, 0)[1]
loop.run_until_complete(cue.submit("note"))
amount = len(loop.run_until_complete(cue.list()))
loop.run_until_complete(cue.close())
say([status, amount])
"""


def test_a_program_that_forks_between_two_calls_finds_the_queue_closed_to_its_child(
    tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    """DB6: as `multiprocessing` does where it forks; the child has the loop, but no thread behind it."""
    status, amount = told(start(children, FORKED, tmp_path / "queue.db"))
    assert (os.WIFEXITED(status), os.WEXITSTATUS(status), amount) == (True, 7, 2)


OPENED_AFTER_A_FORK = """
import asyncio, runcue
cue = runcue.Cue(path)
cue.task("note")(lambda work: None)
loop = asyncio.new_event_loop()
loop.run_until_complete(cue.submit("note"))
PARENT
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        CHILD
    except RuncueError as error:
        os._exit(7 if type(error).__name__ == "ForkedConnection" and "'spawn'" in str(error) else 8)
    os._exit(9)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
CHILDS = "loop = asyncio.new_event_loop(); cue = runcue.Cue(path); loop.run_until_complete(cue.count())"


@pytest.mark.parametrize(
    ("parent", "child", "code"),
    [
        ("", CHILDS, 7),
        ("", "runcue.Reader(path)", 7),
        ("", "os.link(path, path + '2'); path += '2'; " + CHILDS, 7),
        ("loop.run_until_complete(cue.close()); reader = runcue.Reader(path)", CHILDS, 9),
        ("loop.run_until_complete(cue.close())", CHILDS, 9),
        ("", "path += '2'; " + CHILDS, 9),
    ],
    ids=["Cue", "Reader", "another name", "parent reads", "parent closed", "another file"],
)
def test_a_file_that_was_open_at_a_fork_cannot_be_opened_in_the_child(
    tmp_path: Path, children: list[subprocess.Popen[str]], parent: str, child: str, code: int
) -> None:
    """DB6, P1: SQLite would take no lock there, and what is accepted would be lost with the next log."""
    script = OPENED_AFTER_A_FORK.replace("PARENT", parent).replace("CHILD", child)
    assert told(start(children, script, tmp_path / "queue.db")) == code


def test_many_forks_do_no_harm(scene: Scene) -> None:
    """DB6: children come and go while work runs."""
    actor, other = scene.running(), scene.running()
    for number in range(10):
        actor.submit(id=f"w{number}")
        assert actor.ask("fork", way="not at all", times=15) == ["left alone"] * 15
    actor.ask("join", timeout=BOUND)
    actor.close()
    other.close()
    assert set(scene.starts().values()) == {1}
    assert len(scene.drained()) == 10


# --- DB8, DB9: races ------------------------------------------------------------------------------


def test_of_many_programs_exactly_one_gets_each_work(scene: Scene) -> None:
    """DB8: each round, one work that all are awake for."""
    actors = [scene.running() for _ in range(5)]
    for number in range(60):
        actors[number % 5].submit(id=f"w{number}")
    actors[0].ask("join", timeout=BOUND)
    assert scene.starts() == {f"w{number}": 1 for number in range(60)}
    for actor in actors:
        actor.close()
    scene.check()


def test_threads_submit_at_the_same_time(scene: Scene) -> None:
    """DB9."""
    actor = scene.running()
    ids = actor.ask("threads", amount=24)
    assert len(set(ids)) == 24
    actor.ask("join", timeout=BOUND)
    actor.close()
    assert set(scene.drained()) == set(ids)


# --- PD11: stopped processes ----------------------------------------------------------------------


def test_a_program_stopped_inside_a_turn_holds_the_others_up_and_nothing_is_lost(scene: Scene) -> None:
    """P7: they are told so, keep what they did, and go on as soon as it does."""
    other = scene.running(patience=IMPATIENT)
    other.submit("hold", id="held")
    scene.until_started("held")
    actor = scene.running()
    stopped_between_turns(scene, other)
    actor.until_state(actor.submit(id="first"), "completed")  # from now on it decides
    other.signal(signal.SIGCONT)
    actor.ask("stop_at", place="turn.written")
    call = actor.tell("submit", task="note", id="half")
    actor.until_stopped()
    assert refused(other, "submit", task="note", id="refused").kind == "StorageBusy"
    other.ask("let_go")
    half = other.ask("get", work_id="half")  # if it was left for whoever decides, it is there
    assert half is None or half["state"] == "pending"
    assert refused(other, "submit", task="note", id="refused").kind == "StorageBusy"
    actor.signal(signal.SIGCONT)
    assert actor.answer(call) == "half"
    other.ask("join", timeout=BOUND)
    assert other.ask("get", work_id="held")["result"] == "held"
    assert scene.starts() == {"held": 1, "first": 1, "half": 1}


@pytest.mark.parametrize("place", ["turn.begin", "turn.decided", "turn.written"])
def test_a_program_killed_inside_a_turn_lets_the_others_through_at_once(scene: Scene, place: str) -> None:
    """PD1: what it had not committed is not there."""
    actor, other = scene.running(), scene.running()
    actor.submit(id="first")
    other.ask("join", timeout=BOUND)
    actor.ask("stop_at", place=place)
    actor.tell("submit", task="note", id="half")
    actor.until_stopped()
    call = other.tell("submit", task="note", id="second")
    assert not other.has_answered(call, 0.1)
    actor.kill()
    assert other.answer(call) == "second"
    other.until_state("second", "completed")
    assert other.ask("get", work_id="half") is None
    other.close()
    scene.check()


def stopped_between_turns(scene: Scene, actor: Actor) -> None:
    """Stop a program where it holds up nobody."""
    turn = scene.database.with_name(f"{scene.database.name}.runcue") / "turn"
    for _ in range(1000):
        actor.signal(signal.SIGSTOP)
        actor.until_stopped()
        with turn.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                actor.signal(signal.SIGCONT)
            else:
                return
    raise AssertionError("it is always in a turn")


def test_a_stopped_program_keeps_its_work_for_longer_than_its_lease(scene: Scene) -> None:
    """PD11, on one host: it lives, so nobody takes over; the others go on with everything else."""
    actor = scene.running(options={"lease": 0.2})
    actor.submit("hold", id="held")
    scene.until_started("held")
    other = scene.running(options={"lease": 0.2})
    other.ask("let_go")
    stopped_between_turns(scene, actor)
    end, number = now() + 1.0, 0
    while now() < end:
        number += 1
        other.until_state(other.submit(id=f"w{number}"), "completed")
    assert other.ask("get", work_id="held")["state"] == "running"
    actor.signal(signal.SIGCONT)
    actor.ask("let_go")
    assert other.until_state("held", "completed")["attempt"] == 1
    assert set(scene.starts().values()) == {1}
    assert actor.ask("errors") == other.ask("errors") == []
