"""What holds for all tests."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # machines are shared, and slow at times
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """Programs under test set up logging for themselves: nothing of that is left for the next test."""
    logger = logging.getLogger("runcue")
    before = list(logger.handlers), logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[0], before[1]
    logger.setLevel(before[2])
