"""The system has no room for a thread or a connection: the call says so, and the next one goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import runcue
from runcue.errors import StoreError
from runcue.stores.postgres import link
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.link import Link
from runcue.stores.postgres.store import postgres_store
from runcue.stores.postgres.watch import Watch
from tests.stores.room import NO_THREAD, Room, no_descriptors, room

__all__ = ["room"]

BOUND = 240.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this host, for this test alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_no_connection_is_left_that_nobody_watches(
    pg: str, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_watch", Watch())
    room.lacking = "runcue-links"
    with pytest.raises(StoreError, match=NO_THREAD.format("runcue-links")):
        Link(Address(pg))
    room.lacking = ""
    Link(Address(pg)).close()
    assert "runcue-links" in room.started


async def test_a_queue_is_opened_as_soon_as_there_is_a_thread_to_give_signs_of_life(
    pg: str, room: Room, folder: Path
) -> None:
    cue = runcue.Cue(pg)
    cue.task("note")(lambda work: None)
    room.lacking = "runcue-beats"
    with pytest.raises(StoreError, match=NO_THREAD.format("runcue-beats")):
        await cue.submit("note")
    assert list(folder.rglob("*.lock")) == []
    room.lacking = ""
    async with asyncio.timeout(BOUND), cue:
        assert await cue.result(await cue.submit("note")) is None
    await cue.close()


async def test_a_queue_that_could_take_no_turn_is_closed(pg: str, room: Room, folder: Path) -> None:
    cue = runcue.Cue(pg)
    cue.task("note")(lambda work: None)
    room.lacking = "runcue-store"
    with pytest.raises(StoreError, match=NO_THREAD.format("runcue-store")):
        await cue.submit("note")
    room.lacking = "runcue-"
    await cue.close()
    assert list(folder.rglob("*.lock")) == []


async def test_too_many_open_files_are_not_taken_for_a_server_that_is_away(pg: str) -> None:
    with no_descriptors(), pytest.raises(StoreError, match=r"Raise its limit \(ulimit -n\)"):
        postgres_store(Address(pg), durability="full", lease=30.0)
