"""The write-ahead log is copied into the file beside the turns, and stays short whatever happens to that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import runcue
from runcue.stores.sqlite import wal_checkpoint
from runcue.stores.sqlite.file import CHECKPOINT_PAGES, open_file

PAGE = 4096


async def fill(path: Path, times: int) -> int:
    """Submit so much that the log is written several times over; how long it is in the end."""
    cue = runcue.Cue(path)
    cue.task("call")(lambda work: None)
    for _ in range(times):
        await cue.submit_many([{"task": "call", "params": {"text": "x" * 3000}} for _ in range(100)])
    size = Path(f"{path}-wal").stat().st_size
    await cue.close()
    return size


def rows(path: Path) -> int:
    connection = open_file(str(path), read_only=True)
    [(count,)] = connection.execute("SELECT count(*) FROM work_units").fetchall()
    connection.close()
    assert isinstance(count, int)
    return count


def test_the_log_is_copied_by_a_thread_of_its_own_and_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[bool] = []
    copy, path = wal_checkpoint.Log._copy, tmp_path / "queue.db"

    def noted(self: wal_checkpoint.Log) -> None:
        before = path.stat().st_size
        copy(self)
        grown.append(path.stat().st_size > before)

    monkeypatch.setattr(wal_checkpoint.Log, "_copy", noted)
    size = asyncio.run(fill(path, 80))
    assert any(grown)
    assert size < 8000 * 2 * PAGE  # all of it would be more than 16,000 pages
    assert rows(tmp_path / "queue.db") == 8000
    assert (
        not Path(f"{tmp_path}/queue.db-wal").exists() or not Path(f"{tmp_path}/queue.db-wal").stat().st_size
    )


def test_a_commit_copies_the_log_itself_when_the_thread_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> apsw.Connection:
        raise apsw.CantOpenError("no more files")

    monkeypatch.setattr(wal_checkpoint, "open_beside", refuse)
    monkeypatch.setattr(wal_checkpoint, "TOO_LONG", 2 * CHECKPOINT_PAGES)
    size = asyncio.run(fill(tmp_path / "queue.db", 80))
    assert size <= 4 * CHECKPOINT_PAGES * PAGE
    assert rows(tmp_path / "queue.db") == 8000
    assert caplog.text.count("the log cannot be copied beside the turns") == 1
    assert "no more files" in caplog.text


class Refusing:
    """A connection whose checkpoints fail."""

    def __init__(self, error: apsw.Error) -> None:
        self._error = error

    def wal_checkpoint(self, **_: Any) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (apsw.IOError("disk"), ["the log cannot be copied into the file: disk"]),
        (apsw.BusyError("another process is at it"), []),
    ],
)
def test_a_commit_is_done_even_if_the_log_cannot_be_copied(error: apsw.Error, said: list[str]) -> None:
    told: list[str] = []

    async def main() -> int:
        one = wal_checkpoint.Log(
            "queue.db", (0, 0), lambda what, error: told.append(f"{what}: {error}"), None
        )
        answer = one._grown(Refusing(error), "main", wal_checkpoint.TOO_LONG)  # type: ignore[arg-type]
        one.close()
        return answer

    assert asyncio.run(main()) == apsw.SQLITE_OK
    assert told == said


def test_a_closed_log_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(wal_checkpoint, "open_beside", lambda path, identity: opened.append(path))

    async def main() -> None:
        one = wal_checkpoint.Log(str(tmp_path / "queue.db"), (0, 0), lambda what, error: None, None)
        one.close()
        one._copy()

    asyncio.run(main())
    assert opened == []
