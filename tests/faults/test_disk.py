"""Disks that are full, and files that vanish, move or are exchanged while a program uses them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import runcue
from tests.faults.stage import Actor, Refused, Scene, Stage, refused
from tests.patience import BOUND
from tests.torture.history import now

SMALL = 1024 * 1024
SOON = 8.0
"""Seconds within which something must come back that does not wait for anything; a busy file is waited for longer."""
LARGE = {"text": "x" * 20_000}


# --- DK1: a full disk -----------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    options = f"size={SMALL},mode=0700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def small(stage: Stage, tmp_path: Path, disk: Path) -> Iterator[Scene]:
    """A queue on it."""
    yield Scene(stage, tmp_path, disk)
    stage.clear()


def fill(disk: Path) -> Path:
    """Take all the room there is."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            for _ in range(SMALL):
                try:
                    file.write(bytes(size))
                except OSError:
                    break
    ballast.chmod(0o600)
    return ballast


def test_a_full_disk_refuses_what_is_new_and_keeps_what_was_done_until_there_is_room(
    small: Scene, disk: Path
) -> None:
    """DK1, P7: and it goes on by itself."""
    actor = small.running()
    other = small.running()
    actor.submit("hold", id="held")
    small.until_started("held")
    ballast = fill(disk)
    for _ in range(3):
        error = refused(actor, "submit", task="note", id="refused", params=LARGE)
        assert error.kind == "StorageFull"
        assert "queue.db" in error.text
    many = [{"task": "note", "id": f"m{number}", "params": LARGE} for number in range(3)]
    assert refused(other, "submit_many", items=many).kind == "StorageFull"
    for one in (actor, other):
        one.ask("let_go")
        assert one.ask("get", work_id="held")["state"] == "running"
        assert [work["id"] for work in one.ask("list")] == ["held"]
    ballast.unlink()
    assert actor.until_state("held", "completed")["result"] == "held"
    other.submit(id="next")
    other.until_state("next", "completed")
    assert small.starts() == {"held": 1, "next": 1}
    callback_errors = [line for line in actor.ask("logged") if line.startswith("ERROR")]
    assert len(callback_errors) == 1, "one line a minute, not a flood"
    actor.close()
    other.close()
    small.check()


def test_what_was_accepted_until_the_disk_was_full_is_there_and_nothing_else(small: Scene) -> None:
    """DK1: filled by the queue itself."""
    actor = small.play()
    accepted: list[str] = []

    def submit_all() -> None:
        for number in range(200):
            accepted.extend([actor.submit(id=f"w{number}", params=LARGE)])

    with pytest.raises(Refused, match="StorageFull"):
        submit_all()
    assert 3 < len(accepted) < 200
    actor.kill()
    with runcue.Reader(small.database) as reader:
        assert sorted(work.id for work in reader.list(limit=1000)) == sorted(accepted)
        assert reader.count()[runcue.WorkState.PENDING] == len(accepted)


def test_a_queue_cannot_be_made_on_a_full_disk_and_can_be_once_there_is_room(
    small: Scene, disk: Path
) -> None:
    """DK1: the same program goes on."""
    ballast = fill(disk)
    actor = small.play()
    assert refused(actor, "submit", task="note", id="refused").kind == "StorageFull"
    ballast.unlink()
    actor.ask("start")
    actor.submit(id="first")
    actor.until_state("first", "completed")
    actor.close()
    assert set(small.drained()) == {"first"}


def test_a_program_on_a_full_disk_can_be_stopped(small: Scene, disk: Path) -> None:
    """DK1, P7: within the time it is given; what it could not write is done again by another."""
    actor = small.running()
    actor.submit("hold", id="held")
    small.until_started("held")
    ballast = fill(disk)
    refused(actor, "submit", task="note", params=LARGE)
    actor.ask("let_go")
    refused(actor, "submit", task="note", params=LARGE)
    call = actor.tell("stop", timeout=0.2)
    assert actor.has_answered(call, SOON), "it does not stop"
    actor.kill()
    ballast.unlink()
    other = small.running()
    other.ask("let_go")
    other.until_state("held", "completed")
    assert small.starts() == {"held": 2}
    other.close()
    small.check()


# --- DK2: files that may not grow -----------------------------------------------------------------


def test_a_file_that_may_not_grow_is_a_full_disk(scene: Scene) -> None:
    """DK2: RLIMIT_FSIZE."""
    actor = scene.running()
    actor.submit("hold", id="held")
    scene.until_started("held")
    actor.ask("limit", size=4096)
    assert refused(actor, "submit", task="note", id="refused").kind == "StorageFull"
    actor.ask("let_go")
    assert refused(actor, "submit", task="note", id="refused").kind == "StorageFull"
    assert actor.ask("get", work_id="held")["state"] == "running"
    with runcue.Reader(scene.database) as reader:
        assert [work.id for work in reader.list()] == ["held"]
    actor.ask("limit", size=None)
    assert actor.until_state("held", "completed")["result"] == "held"
    actor.submit(id="next")
    actor.until_state("next", "completed")
    actor.close()
    assert set(scene.drained()) == {"held", "next"}


def test_how_much_there_is_can_be_asked_or_is_refused_while_nothing_can_be_written(scene: Scene) -> None:
    """DK2: whoever looks does not wait for room."""
    actor = scene.running()
    actor.submit("hold", id="held")
    scene.until_started("held")
    actor.ask("limit", size=4096)
    actor.ask("let_go")
    refused(actor, "submit", task="note")
    for do in ("count", "services", "debug_blocked"):
        assert actor.has_answered(actor.tell(do), SOON), f"{do} waits for room"


# --- DK7: logs that vanish ------------------------------------------------------------------------


def interrupted(scene: Scene) -> None:
    """Leave a queue of which the last work is in its log alone, its program dead."""
    actor = scene.play()
    actor.submit(id="first")
    actor.close()
    actor = scene.play()
    actor.submit(id="last")
    actor.kill()
    assert Path(f"{scene.database}-wal").stat().st_size


@pytest.mark.parametrize(
    ("removed", "left"),
    [(["-shm"], {"first", "last"}), (["-wal"], {"first"}), (["-wal", "-shm"], {"first"})],
    ids=["its index", "the log", "both"],
)
def test_a_queue_without_its_log_is_the_queue_before_it(
    scene: Scene, removed: list[str], left: set[str]
) -> None:
    """DK7: whole and consistent, if older; the index of the log alone is never missed."""
    interrupted(scene)
    for ending in removed:
        Path(f"{scene.database}{ending}").unlink()
    assert set(scene.drained()) == left


def test_garbage_that_looks_like_a_journal_does_no_harm(scene: Scene) -> None:
    """DK7."""
    interrupted(scene)
    Path(f"{scene.database}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"y" * 5000)
    Path(f"{scene.database}-journal").chmod(0o600)
    assert set(scene.drained()) == {"first", "last"}


def test_a_log_removed_under_a_running_program_is_not_replaced_by_another(scene: Scene) -> None:
    """DK7: whoever comes new is refused, and what the program accepted is in the file once it has closed it."""
    actor = scene.running()
    actor.submit(id="one")
    Path(f"{scene.database}-wal").unlink()
    actor.submit(id="two")
    other = scene.play()
    refused(other, "submit", task="note", id="three")
    other.kill()
    actor.ask("join", timeout=BOUND)
    actor.close()
    scene.check()
    assert set(scene.drained()) == {"one", "two"}


# --- DK8: files that move -------------------------------------------------------------------------


def until_noticed(actor: Actor) -> None:
    """Look at the queue until that is refused."""

    def look() -> None:
        end = now() + BOUND
        while now() < end:
            actor.ask("list")

    with pytest.raises(Refused, match="StorageReplaced"):
        look()


@pytest.mark.parametrize("how", ["unlinked", "replaced"])
def test_a_program_whose_file_is_gone_says_so_and_writes_to_no_other(scene: Scene, how: str) -> None:
    """DK8: every call from then on, and two queues are never mixed."""
    actor = scene.running()
    actor.submit("hold", id="held")
    scene.until_started("held")
    scene.database.unlink()
    if how == "replaced":
        for ending in ("-wal", "-shm"):
            Path(f"{scene.database}{ending}").unlink()
        fresh = scene.play()
        fresh.submit(id="fresh")
        fresh.close()
    until_noticed(actor)
    for _ in range(3):
        assert refused(actor, "get", work_id="held").kind == "StorageReplaced"
        assert refused(actor, "submit", task="note", id="lost").kind == "StorageReplaced"
    actor.ask("let_go")
    assert refused(actor, "submit", task="note", id="lost").kind == "StorageReplaced"
    assert actor.has_answered(actor.tell("close"), SOON), "it cannot be closed"
    actor.kill()
    if how == "replaced":
        assert set(scene.drained()) == {"fresh"}


def test_work_of_a_queue_that_was_moved_away_goes_on_when_it_is_back(scene: Scene) -> None:
    """DK8: the program that had it open says so and can be closed; the next one does what it had begun."""
    actor = scene.running()
    actor.submit("hold", id="held")
    scene.until_started("held")
    home = scene.database.parent
    home.rename(home.with_name("away"))
    until_noticed(actor)
    assert refused(actor, "submit", task="note", id="refused").kind == "StorageReplaced"
    actor.ask("let_go")
    assert actor.has_answered(actor.tell("close"), SOON), "it cannot be closed"
    actor.kill()
    assert not home.exists()
    home.with_name("away").rename(home)
    actor = scene.running()
    actor.ask("let_go")
    assert actor.until_state("held", "completed")["attempt"] == 2
    assert [work["id"] for work in actor.ask("list")] == ["held"]
    actor.close()
    scene.check()


def test_the_files_of_workers_may_vanish_without_robbing_anybody_nor_a_flood_of_complaints(
    scene: Scene,
) -> None:
    """DK8, P8: what lies beside the file is removed while two programs run."""
    one, two = scene.running(), scene.running()
    one.submit("hold", id="held")
    scene.until_started("held")
    shutil.rmtree(f"{scene.database}.runcue")
    end = now() + 1.2
    number = 0
    while now() < end:
        for actor in (one, two):
            number += 1
            actor.submit(id=f"w{number}", task="note")
    for actor in (one, two):
        actor.ask("let_go")
    for name in ("held", f"w{number}"):
        one.until_state(name, "completed")
    assert max(scene.starts().values()) == 1
    for actor in (one, two):
        assert sum("ERROR" in line for line in actor.ask("logged")) <= 1
        assert actor.ask("errors") == []
        actor.kill()


# --- DK15: rows of another version ----------------------------------------------------------------


def altered(scene: Scene, change: str) -> None:
    """Change a stored row as a newer program might have written it."""
    connection = apsw.Connection(str(scene.database))
    connection.execute(change)
    connection.close()


def test_work_of_a_task_that_nobody_knows_waits_and_holds_nobody_up(scene: Scene) -> None:
    """DK15."""
    actor = scene.play()
    actor.submit(id="strange")
    actor.submit("hold", id="good")
    actor.close()
    altered(
        scene, "UPDATE work_units SET task_type = 'novel', index_key = 'ready/novel' WHERE id = 'strange'"
    )
    altered(scene, "UPDATE index_heads SET name = 'ready/novel' WHERE name = 'ready/note'")
    actor = scene.running()
    actor.ask("let_go")
    actor.until_state("good", "completed")
    assert actor.ask("get", work_id="strange")["state"] == "pending"
    assert scene.starts() == {"good": 1}
    actor.close()


def test_work_in_a_state_that_nobody_knows_is_kept_and_holds_nobody_up(scene: Scene) -> None:
    """DK15."""
    actor = scene.play()
    actor.submit(id="strange")
    actor.submit(id="good")
    actor.close()
    altered(scene, "UPDATE work_units SET state = 'hovering' WHERE id = 'strange'")
    actor = scene.running()
    actor.ask("join", ids=["good"], timeout=2)
    assert scene.starts() == {"good": 1}
