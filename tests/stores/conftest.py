"""Where the queue of a test lies."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of this test's queue; it does not exist yet."""
    return tmp_path / "queue.db"
