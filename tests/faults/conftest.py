"""A place where real programs use queues in files, and are disturbed."""

import threading
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


@pytest.fixture
def kept_waiting() -> Iterator[threading.Event]:
    """What a function that never returns waits for; set when the test is over, so that nothing is left behind."""
    event = threading.Event()
    yield event
    event.set()
