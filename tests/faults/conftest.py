"""A place where real programs use queues in files, and are disturbed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.stage import Scene, Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.fixture
def scene(stage: Stage, tmp_path: Path) -> Iterator[Scene]:
    yield Scene(stage, tmp_path)
    stage.clear()
