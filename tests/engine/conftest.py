"""Every test of the engine runs on virtual time, and on both stores: in memory and in a file."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import runcue.cue
from runcue.connect import target_of
from runcue.stores.sqlite import SqliteStore
from runcue.testing import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of what only one of them promises are marked with its name."""
    stores = [one for one in ("memory", "file") if metafunc.definition.get_closest_marker(one)]
    metafunc.parametrize("store", stores or ["memory", "file"], indirect=True)


@pytest.fixture(autouse=True)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a Cue() keeps its queue. Few tests close theirs: its descriptors are let go of afterwards."""
    where: str = request.param
    numbers = count()
    stores: list[SqliteStore] = []
    make = SqliteStore.__init__

    def in_a_file(target: object) -> str | None:
        return target_of(target) or str(tmp_path / f"queue{next(numbers)}.db")

    def remember(store: SqliteStore, *arguments: Any, **options: Any) -> None:
        make(store, *arguments, **options)
        stores.append(store)

    if where == "file":
        monkeypatch.setattr(runcue.cue, "target_of", in_a_file)
        monkeypatch.setattr(SqliteStore, "__init__", remember)
    yield where
    for one in stores:
        one.abandon()
