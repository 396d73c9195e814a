"""A queue file that was exchanged for another while the log of the old one stayed: they are never mixed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from runcue import Reader, StorageReplaced
from tests.faults.stage import Scene, Stage, refused


def killed(scene: Scene, *ids: str) -> None:
    """Somebody submits these, and is killed: file and log are left as they are."""
    actor = scene.play()
    for work_id in ids:
        actor.submit(id=work_id)
    actor.kill()
    assert log_of(scene).stat().st_size


def log_of(scene: Scene) -> Path:
    return Path(f"{scene.database}-wal")


@pytest.fixture
def exchanged(stage: Stage, tmp_path: Path) -> Iterator[Scene]:
    """A queue whose process was killed, with a backup of another one in its place."""
    scene, backup = Scene(stage, tmp_path), Scene(stage, tmp_path / "other")
    actor = backup.play()
    actor.submit(id="backup")
    actor.close()
    killed(scene, "old")
    scene.database.rename(tmp_path / "aside")
    backup.database.rename(scene.database)
    yield scene
    stage.clear()


def test_a_file_beside_the_log_of_another_is_refused_and_left_as_it_is(exchanged: Scene) -> None:
    """DK7, DK8."""
    before = exchanged.database.read_bytes(), log_of(exchanged).read_bytes()
    problem = refused(exchanged.play(), "count")
    assert problem.kind == "StorageReplaced"
    assert "-wal' and '" in problem.text
    with pytest.raises(StorageReplaced):
        Reader(exchanged.database)
    assert (exchanged.database.read_bytes(), log_of(exchanged).read_bytes()) == before


def test_without_that_log_the_new_file_is_used(exchanged: Scene) -> None:
    log_of(exchanged).unlink()
    Path(f"{exchanged.database}-shm").unlink()
    assert [*exchanged.drained()] == ["backup"]


def test_the_old_file_put_back_goes_on(exchanged: Scene, tmp_path: Path) -> None:
    (tmp_path / "aside").rename(exchanged.database)
    assert [*exchanged.drained()] == ["old"]


def test_a_file_that_was_copied_with_its_log_is_used(stage: Stage, tmp_path: Path) -> None:
    one, copy = Scene(stage, tmp_path / "one"), Scene(stage, tmp_path / "copy")
    killed(one, "a", "b")
    pipes = shutil.ignore_patterns("*.wake")
    shutil.copytree(one.database.parent, copy.database.parent, ignore=pipes, dirs_exist_ok=True)
    assert {*copy.drained()} == {"a", "b"}
    for name in (one.database, log_of(one)):  # and back again, over what is there
        (tmp_path / "new").write_bytes(name.read_bytes())
        (tmp_path / "new").chmod(0o600)
        (tmp_path / "new").rename(name)
    assert {*one.drained()} == {"a", "b"}


@pytest.mark.parametrize("note", [None, "", "one two", "1 2 3 4"])
def test_a_note_that_is_gone_or_says_nothing_keeps_nobody_out(scene: Scene, note: str | None) -> None:
    killed(scene, "a")
    path = Path(f"{scene.database}.runcue", "pair")
    path.unlink()
    if note is not None:
        path.write_text(note, encoding="ascii")
    assert [*scene.drained()] == ["a"]
