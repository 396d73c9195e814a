"""Programs that die at a system call, or whose system calls fail: what was accepted is there, once and whole."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.stage import Actor, Refused, Scene, Stage, check_words, refused, traced, why_no_tracing

MOST_POINTS = 400
"""A program that makes more calls than that has lost its way."""
CHAIN: list[dict[str, Any]] = [
    {"task": "note", "id": "a", "params": {"value": 1}},
    {"task": "note", "id": "b", "params": {"value": 2}, "depends_on": ["a", "before"]},
    {"task": "note", "id": "c", "params": {"value": 3}, "depends_on": ["a", "b"], "idempotency_key": "once"},
]
REFUSAL = {"ENOSPC": "StorageFull", "EIO": "StoreError"}

needs_tracing = pytest.mark.skipif(why_no_tracing() is not None, reason=why_no_tracing() or "")


@pytest.fixture(scope="module")
def before(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue with one completed work, that nobody has open."""
    scene = Scene(stage, tmp_path_factory.mktemp("before"))
    actor = scene.running()
    actor.submit(id="before")
    actor.until_state("before", "completed")
    actor.close()
    return scene.database.parent


@pytest.fixture
def scenes(stage: Stage, before: Path, tmp_path: Path) -> Iterator[Iterator[Scene]]:
    """As many queues as there are points at which something may happen, each like the first."""

    def make() -> Iterator[Scene]:
        for number in range(MOST_POINTS):
            scene = Scene(stage, tmp_path / str(number))
            shutil.copytree(before, scene.database.parent, dirs_exist_ok=True)
            yield scene
            stage.clear()
            shutil.rmtree(tmp_path / str(number))

    yield make()
    stage.clear()


def killing(scenes: Iterator[Scene], call: str, step: int = 1) -> Iterator[tuple[Scene, str]]:
    """A queue, and what kills a program at its first such call, its second, and so on."""
    for point, scene in enumerate(scenes):
        yield scene, f"inject={call}:signal=KILL:when={1 + point * step}"
    pytest.fail(f"a program made {MOST_POINTS} calls and was still going")


# --- PD1 … PD4: deaths ----------------------------------------------------------------------------


@needs_tracing
@pytest.mark.parametrize(("call", "step"), [("pwrite64", 4), ("fdatasync", 1), ("unlink", 1)])
def test_a_submission_cut_short_by_death_is_there_whole_or_not_at_all(
    scenes: Iterator[Scene], call: str, step: int
) -> None:
    """PD1: killed at every fourth write, at each sync and unlink, from the opening of the file to its close."""
    seen = set()
    for scene, kill in killing(scenes, call, step):
        actor = scene.play()
        is_accepted = False
        with traced(actor, f"trace={call}", kill):
            try:
                actor.ask("submit_many", items=CHAIN)
                is_accepted = True
                actor.ask("close")
            except EOFError:
                assert actor.is_dead
        is_over = not actor.is_dead
        actor.kill()
        scene.check()
        works = scene.drained()
        assert set(works) in ({"before"}, {"before", "a", "b", "c"})
        assert len(works) == 4 or not is_accepted
        assert {work["state"] for work in works.values()} == {"completed"}
        assert all(scene.starts()[name] == 1 for name in works if name != "before")
        seen.add((is_accepted, len(works)))
        if is_over:
            break
    assert (True, 4) in seen
    if call != "unlink":
        assert (False, 1) in seen


@needs_tracing
@pytest.mark.parametrize(("call", "step"), [("pwrite64", 9), ("fdatasync", 2)])
def test_a_queue_whose_maker_died_can_be_made_and_used(
    stage: Stage, tmp_path: Path, call: str, step: int
) -> None:
    """PD1: the same where there was no file yet."""
    deaths = 0
    made = (Scene(stage, tmp_path / str(number)) for number in range(MOST_POINTS))
    for scene, kill in killing(made, call, step):
        actor = scene.play()
        is_accepted = False
        with traced(actor, f"trace={call}", kill):
            try:
                actor.submit(id="a")
                is_accepted = True
                actor.ask("close")
            except EOFError:
                deaths += 1
        is_over = not actor.is_dead
        actor.kill()
        works = scene.drained()
        assert set(works) <= {"a"}
        assert works or not is_accepted
        if is_over:
            break
    assert deaths > 2


@needs_tracing
@pytest.mark.parametrize(("call", "step"), [("pwrite64", 17), ("fdatasync", 2)])
def test_work_of_a_program_that_died_is_done_and_accepted_once(
    scenes: Iterator[Scene], call: str, step: int
) -> None:
    """PD2, PD3, PD4: killed at writes and syncs while it runs work; another program does the rest."""
    again = 0
    for scene, kill in killing(scenes, call, step):
        other = scene.play()
        other.ask("submit_many", items=CHAIN)
        actor = scene.play()
        with traced(actor, f"trace={call}", kill):
            try:
                actor.ask("start")
                actor.ask("join", ids=["a", "b", "c"], timeout=240)
            except EOFError:
                assert actor.is_dead
        is_over = not actor.is_dead
        actor.kill()
        other.ask("start")
        other.ask("join", ids=["a", "b", "c"], timeout=240)
        told = other.ask("events", types=["completed"], amount=4)
        assert sorted(event[2] for event in told) == ["a", "b", "before", "c"]
        works = {work["id"]: work for work in other.ask("list")}
        other.close()
        scene.check()
        assert [works[name]["result"] for name in "abc"] == [1, 2, 3]
        for name in "abc":
            assert scene.starts()[name] <= works[name]["attempt"] <= 2
        assert sum(scene.starts()[name] for name in "abc") <= 4
        again += any(works[name]["attempt"] == 2 for name in "abc")
        if is_over:
            break
    assert again, "no death came between a claim and its result"


def test_work_that_kills_its_worker_is_given_up_after_three_deaths(stage: Stage, tmp_path: Path) -> None:
    """PD8."""
    scene = Scene(stage, tmp_path)
    watcher = scene.play()
    watcher.submit("die", id="poison")
    for _ in range(3):
        assert os.WTERMSIG(scene.running().wait()) == signal.SIGKILL
    survivor = scene.running()
    work = survivor.until_state("poison", "failed")
    assert "worker_lost" in work["error"]
    assert scene.starts() == {"poison": 3}
    survivor.submit("note", id="good")
    survivor.until_state("good", "completed")
    survivor.close()
    watcher.close()
    scene.check()


def test_work_that_stands_beside_a_killer_is_done_all_the_same(stage: Stage, tmp_path: Path) -> None:
    """PD8: other work is unaffected."""
    scene = Scene(stage, tmp_path)
    watcher = scene.play()
    watcher.submit("die", id="poison")
    watcher.submit("note", id="good")
    for _ in range(3):
        assert os.WTERMSIG(scene.running().wait()) == signal.SIGKILL
    survivor = scene.running()
    survivor.ask("join", timeout=240)
    assert survivor.ask("get", work_id="good")["state"] == "completed"


def test_a_program_that_ends_without_stopping_loses_nothing(stage: Stage, tmp_path: Path) -> None:
    """PD18."""
    scene = Scene(stage, tmp_path)
    actor = scene.running()
    actor.submit("hold", id="running")
    scene.until_started("running")
    actor.submit("note", id="later", delay=0.01)
    actor.tell("exit")
    assert os.waitstatus_to_exitcode(actor.wait()) == 0
    other = scene.running()
    other.ask("let_go")
    for name in ("running", "later"):
        other.until_state(name, "completed")
    other.close()
    scene.check()


# --- DK1, DK3: calls that fail --------------------------------------------------------------------


def until_accepted(actor: Actor, **given: Any) -> list[str]:
    """Submit until that is accepted; the kinds of errors on the way."""
    kinds: list[str] = []
    for _ in range(20):
        try:
            actor.submit(**given)
        except Refused as error:
            check_words(error)
            if kinds and error.kind == "DuplicateWork":  # it was unknown whether it lasts, and it does
                return kinds
            kinds.append(error.kind)
        else:
            return kinds
    pytest.fail(f"it goes on being refused: {kinds}")


@needs_tracing
@pytest.mark.parametrize(
    ("call", "error"), [("pwrite64", "ENOSPC"), ("pwrite64", "EIO"), ("fdatasync", "EIO")]
)
def test_a_submission_whose_write_fails_is_refused_and_can_be_repeated(
    scenes: Iterator[Scene], call: str, error: str
) -> None:
    """DK1, DK3: a write or sync fails once in each thread; the program goes on, and a key makes one work."""
    refusals = 0
    step = 17 if call == "pwrite64" else 2
    for point, scene in zip(range(1, MOST_POINTS, step), scenes, strict=False):
        output = scene.folder / "trace"
        actor = scene.play()
        with traced(actor, f"trace={call}", f"inject={call}:error={error}:when={point}", output=output):
            kinds = until_accepted(actor, id=f"try{point}", idempotency_key="once")
            kinds += until_accepted(actor, id="next")
        actor.close()
        failed = output.read_text().count("INJECTED")
        assert len(kinds) <= failed
        assert set(kinds) <= {REFUSAL[error]}
        refusals += len(kinds)
        works = scene.drained()
        assert set(works) == {"before", f"try{point}", "next"}
        assert scene.starts() == {f"try{point}": 1, "next": 1}
        if not failed:
            break
    assert refusals


@needs_tracing
@pytest.mark.parametrize(("call", "error"), [("pwrite64", "ENOSPC"), ("fdatasync", "EIO")])
def test_what_handlers_did_while_nothing_could_be_written_is_kept_and_told_later(
    stage: Stage, tmp_path: Path, call: str, error: str
) -> None:
    """DK1, DK3, P7: a disk that refuses everything for a while, and a handler that ends meanwhile.

    A commit that was written but not synced is there afterwards: that it lasts was said to be unknown.
    """
    is_kept = call == "fdatasync"
    scene = Scene(stage, tmp_path)
    actor = scene.running()
    actor.submit("hold", id="held")
    scene.until_started("held")
    with traced(actor, f"trace={call}", f"inject={call}:error={error}"):
        assert refused(actor, "submit", task="note", id="refused").kind == REFUSAL[error]
        actor.ask("let_go")
        assert refused(actor, "submit", task="note", id="refused too").kind == REFUSAL[error]
        if is_kept:  # nobody is told what may not last
            assert refused(actor, "get", work_id="held").kind == REFUSAL[error]
        else:
            assert actor.ask("get", work_id="held")["state"] == "running"
            assert actor.ask("get", work_id="refused") is None
    actor.submit("note", id="after")
    actor.until_state("after", "completed")
    assert actor.until_state("held", "completed")["result"] == "held"
    if is_kept:
        actor.until_state("refused", "completed")
    assert scene.starts() == {"held": 1, "after": 1} | ({"refused": 1} if is_kept else {})
    assert actor.ask("get", work_id="refused too") is None
    callback_errors = [line for line in actor.ask("logged") if line.startswith("ERROR")]
    assert len(callback_errors) == 1, "one line a minute, not a flood"
    actor.close()
    scene.check()


# --- DK4, DB7: what the calls show ----------------------------------------------------------------


@needs_tracing
def test_nothing_is_acknowledged_before_it_is_on_disk(stage: Stage, tmp_path: Path) -> None:
    """DK4: before every acknowledgement the log is written and then synced."""
    scene = Scene(stage, tmp_path)
    actor = scene.play()
    actor.submit()
    amount = 100
    output = tmp_path / "trace"
    with traced(actor, "trace=pwrite64,fdatasync,sendto", output=output, options="-y -s 4096"):
        for number in range(amount):
            actor.submit(id=f"w{number}")
    actor.close()
    stands, proven = "", 0
    for line in output.read_text(errors="replace").splitlines():
        if "pwrite64(" in line and "queue.db-wal" in line:
            stands = "written"
        elif re.search(r"fdatasync.*= 0$", line) and stands:
            stands = "synced"
        elif re.search(r'sendto\(.*\\"ok\\":\\"w\d+\\"', line):
            assert stands == "synced"
            stands = ""
            proven += 1
    assert proven == amount


@needs_tracing
@pytest.mark.parametrize("call", ["submit", "get"])
def test_nothing_of_another_program_is_told_before_it_is_on_disk(
    stage: Stage, tmp_path: Path, call: str
) -> None:
    """DK4: who answers out of what another committed has synced the log, even if there was nothing to write."""
    scene = Scene(stage, tmp_path)
    other, actor = scene.play(), scene.play()
    given = (
        {"task": "note", "params": {}, "idempotency_key": "once"} if call == "submit" else {"work_id": "w"}
    )
    actor.submit(id="first")  # it is there, and has opened all it needs
    actor.ask("get", work_id="first")
    output = tmp_path / "trace"
    with traced(actor, "trace=pwrite64,fdatasync,sendto", output=output, options="-y -s 4096"):
        other.submit(id="w", idempotency_key="once")
        assert actor.ask(call, **given)
    for one in (actor, other):
        one.close()
    lines = output.read_text(errors="replace").splitlines()
    [told] = [number for number, line in enumerate(lines) if re.search(r'sendto\(.*\\"ok\\":', line)]
    before = "\n".join(lines[:told])
    assert re.search(r"fdatasync\(\d+<[^>]*queue\.db-wal>.*= 0$", before, re.MULTILINE)
    written = re.split(r"pwrite64\(.*queue.db", before)
    if call == "get":
        assert len(written) == 1
    else:  # its post, and the letter with the answer, which is gone from the file
        assert re.search(r"fdatasync\(\d+<[^>]*queue\.db-wal>.*= 0$", written[-1], re.MULTILINE)


@needs_tracing
def test_a_queue_file_is_opened_by_nobody_but_sqlite(stage: Stage, tmp_path: Path) -> None:
    """DB7: closing a file of Python's own would drop the locks of every connection of its process."""
    scene = Scene(stage, tmp_path)
    scene.play().submit()
    actor = scene.play()
    output = tmp_path / "trace"
    with traced(actor, "trace=open,openat,openat2,creat", output=output, options="-s 4096"):
        actor.ask("start")
        actor.ask("join", timeout=240)
        actor.ask("list")
        actor.ask("count")
        actor.ask("close")
    opened = [line for line in output.read_text().splitlines() if f'"{scene.database}"' in line]
    assert opened
    assert [line for line in opened if "O_NOFOLLOW" not in line] == []  # SQLite's way, and not Python's
