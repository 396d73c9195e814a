"""What deleted work depended on is forgotten with it, and found without looking through all edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue.stores.sql.pruning import prune, purge
from runcue.stores.sql.statements import DELETE_EDGE
from runcue.stores.sqlite.file import open_file
from runcue.testing import run


async def submit_some(path: Path) -> None:
    """Three works that depend on two others each; all are over, and one of them failed."""
    cue = runcue.Cue(path)

    @cue.task
    async def note(work: runcue.Work) -> None:
        if work.id == "c":
            raise OSError("no")

    async with cue:
        for work_id in ("x", "y"):
            await cue.wait(await cue.submit("note", id=work_id))
        for work_id in ("a", "b", "c"):
            await cue.wait(await cue.submit("note", id=work_id, depends_on=["x", "y"]))
    await cue.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "queue.db"
    run(submit_some(path))
    return path


def changed(path: Path, statement: str = "SELECT 1") -> list[Any]:
    """Do that, prune all that is over, delete what failed; the edges before that, between, and after."""
    found = []
    with open_file(str(path)) as connection:
        connection.execute(statement).fetchall()
        found.append(connection.execute("SELECT work_id, needs FROM dependencies").fetchall())
        old, _ = prune(connection, 2e9, 2e9, 1e9)
        assert sorted(old) == [(name, 1) for name in ("a", "b", "x", "y")]
        found.append(connection.execute("SELECT work_id, needs FROM dependencies").fetchall())
        assert purge(connection, ["c", "nobody"]) == [("c", 1)]
        found.append(connection.execute("SELECT work_id, needs FROM dependencies").fetchall())
    return [len(edges) for edges in found]


def test_the_edges_of_pruned_and_purged_work_go_with_it(path: Path) -> None:
    assert changed(path) == [6, 2, 0]


def test_the_edges_of_work_go_that_does_not_say_any_more_what_it_depended_on(path: Path) -> None:
    assert changed(path, """UPDATE work_units SET depends_on = '["x' WHERE id IN ('b', 'c')""") == [6, 2, 0]


def test_the_edges_of_work_go_whose_text_is_none(path: Path) -> None:
    torn = "UPDATE work_units SET depends_on = CAST(x'5bff' AS TEXT) WHERE id IN ('b', 'c')"
    assert changed(path, torn) == [6, 2, 0]


def test_edges_are_deleted_by_their_key(path: Path) -> None:
    with open_file(str(path)) as connection:
        steps: list[Any] = connection.execute(f"EXPLAIN QUERY PLAN {DELETE_EDGE}", ("x", "a")).fetchall()
    assert [step[3] for step in steps] == ["SEARCH dependencies USING PRIMARY KEY (needs=? AND work_id=?)"]
