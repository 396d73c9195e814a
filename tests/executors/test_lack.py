"""No thread can be started for an executor: nothing is left of what it had opened for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runcue.executors.dask.cluster import Cluster
from runcue.executors.process_locks import Jobs
from runcue.executors.ssh.connection_pool import ConnectionPool
from tests.stores.room import Room, room

__all__ = ["room"]

FILES = Path("/proc/self/fd")


async def cluster() -> object:
    return Cluster(asyncio.get_running_loop(), 1, Jobs(None), "dask-1")


async def pool() -> object:
    return ConnectionPool(1.0, {}, 1.0, 1.0)


@pytest.mark.skipif(not FILES.exists(), reason="what is open can be seen on Linux alone")
@pytest.mark.parametrize(("make", "name"), [(cluster, "runcue-dask"), (pool, "runcue-ssh")])
async def test_no_file_is_left_open(make: Callable[[], object], name: str, room: Room) -> None:
    room.lacking = name
    before = os.listdir(FILES)  # noqa: PTH208 (names alone)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await make()  # type: ignore[misc]
    assert os.listdir(FILES) == before  # noqa: PTH208
