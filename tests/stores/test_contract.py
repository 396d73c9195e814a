"""Both stores keep the contract."""

from pathlib import Path

import pytest

from runcue.clock import SystemClock
from runcue.stores.memory import MemoryStore
from runcue.stores.sqlite import SqliteStore
from runcue.testing import contract


@pytest.mark.parametrize("check", contract.EVERY, ids=lambda check: check.__name__)
async def test_memory(check: contract.Check) -> None:
    await check(lambda: MemoryStore(SystemClock()))


@pytest.mark.parametrize("check", [*contract.EVERY, *contract.SHARED], ids=lambda check: check.__name__)
async def test_sqlite(check: contract.Check, tmp_path: Path) -> None:
    await check(lambda: SqliteStore(str(tmp_path / "queue.db"), durability="relaxed", lease=30.0))
