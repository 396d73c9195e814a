"""Index keys and services' keys that nobody uses go in time, and what a long window needs stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue.stores.sql import pruning
from runcue.stores.sql.pruning import prune
from runcue.stores.sqlite.file import open_file
from runcue.testing import run


def rows(path: Path, query: str) -> list[Any]:
    connection = open_file(str(path), read_only=True)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def pruned(path: Path, now: float, granted_before: float) -> None:
    connection = open_file(str(path))
    connection.execute("BEGIN IMMEDIATE")
    prune(connection, now, None, granted_before)
    connection.execute("COMMIT")
    connection.close()


async def use_keys(path: Path, **options: Any) -> float:
    """Some keys do one work each; one of them fails."""
    cue = runcue.Cue(path)
    cue.service("api", per="user", circuit_threshold=5, **options)

    @cue.task(uses="api")
    async def call(work: runcue.Work) -> None:
        if work.params["user"] == "u3":
            raise OSError("down")

    async with cue:
        for number in range(6):
            await cue.wait(await cue.submit("call", params={"user": f"u{number}"}))
        now = asyncio.get_running_loop().time()
    await cue.close()
    return now


def test_keys_and_index_keys_without_work_are_forgotten_but_what_they_remember_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.db"
    run(use_keys(path))
    assert len(rows(path, "SELECT name FROM services WHERE name LIKE '%]'")) == 6
    assert len(rows(path, "SELECT name FROM index_heads")) >= 6
    pruned(path, 2e9, 1e9)
    assert len(rows(path, "SELECT name FROM services WHERE name LIKE '%]'")) == 6, (
        "others may not have seen it yet"
    )
    monkeypatch.setattr(pruning, "LATELY", -1)
    pruned(path, 2e9, 1e9)
    assert rows(path, "SELECT name FROM services ORDER BY name") == [("api",), ("api[u3]",)]
    assert rows(path, "SELECT service FROM circuit_state WHERE service LIKE '%]'") == [("api[u3]",)]
    assert rows(path, "SELECT name FROM index_heads WHERE sort_key IS NULL") == []


def test_keys_go_some_at_a_time_and_it_is_said_when_there_may_be_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.db"
    run(use_keys(path))
    monkeypatch.setattr(pruning, "LATELY", -1)
    monkeypatch.setattr(pruning, "SOME", 2)
    with open_file(str(path)) as connection:
        connection.execute("DELETE FROM index_heads; DELETE FROM service_log").fetchall()
        steps = [prune(connection, 2e9, None, 1e9)[1] for _ in range(4)]
    assert steps == [True, True, False, False]
    assert rows(path, "SELECT name FROM services ORDER BY name") == [("api",), ("api[u3]",)]


def test_a_service_that_has_brackets_in_its_name_is_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.db"

    async def main() -> None:
        cue = runcue.Cue(path)
        cue.service("gpu", concurrent=2)
        cue.service("gpu[0]", concurrent=1)
        async with cue:
            await cue.services()
        await cue.close()

    run(main())
    monkeypatch.setattr(pruning, "LATELY", -1)
    pruned(path, 2e9, 1e9)
    assert rows(path, "SELECT name FROM services ORDER BY name") == [("gpu",), ("gpu[0]",)]


def test_grants_are_kept_for_as_long_as_the_longest_window_of_a_key_or_a_quantity(tmp_path: Path) -> None:
    for name, options in (("key", {"rate": "5/day"}), ("amount", {"tokens": "500/day", "rate": "5/s"})):
        path = tmp_path / f"{name}.db"
        run(use_keys(path, **options))
        before = rows(path, "SELECT count(*) FROM service_log")
        [(latest,)] = rows(path, "SELECT max(started_at) FROM service_log")
        pruned(path, latest + 86000, latest + 86000)
        assert rows(path, "SELECT count(*) FROM service_log") == before != [(0,)]
        pruned(path, latest + 86500, latest + 86500)
        assert rows(path, "SELECT count(*) FROM service_log") == [(1,)], "the last stays"
