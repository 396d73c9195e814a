"""What holds for all tests."""

import gc
import logging
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it brings no types

from tests.apart import apart
from tests.sample import ALL, fewer, left_out

settings.register_profile(
    "untimed", deadline=None, max_examples=fewer(100, 30)
)  # machines are shared, and slow at times
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent
INTERRUPTS = tuple(one for one in signal.Signals if one.name in {"SIGINT", "SIGQUIT"})
"""What a shell without job control has its background jobs ignore."""


def heed_interrupts() -> None:
    """Let Ctrl-C have its meaning here, and in what is started from here, also where it is ignored (`make test &`).

    Python installs no handler for what it was started to ignore, and children inherit that. SIGHUP stays as it is:
    who says `nohup` wants the tests to go on.
    """
    for number in INTERRUPTS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def write_for_ourselves() -> None:
    """Let nobody else write to what tests make, whatever the umask: programs refuse queues that others can change."""
    os.umask(os.umask(0o022) | 0o022)


heed_interrupts()
write_for_ourselves()
gc.disable()  # nothing of what is made while tests are collected is garbage: see pytest_runtestloop


def more_time(limit: float, elapsed: float, load: float, cores: int) -> float:
    """Seconds that a test still has: its limit is meant for a machine with no more to do than it has cores."""
    return limit * max(1.0, load / cores) - elapsed


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Let a limit end what hangs, and not what waits for its turn on a busy machine."""
    result = yield
    if settings.method != "signal":  # a thread gives up where there are no alarms
        return result
    give_up = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()

    def look(number: int, frame: FrameType | None) -> None:
        left = more_time(settings.timeout, time.monotonic() - began, os.getloadavg()[0], os.cpu_count() or 1)
        if left > 0:
            signal.setitimer(signal.ITIMER_REAL, left)
        elif callable(give_up):
            give_up(number, frame)

    if callable(give_up):
        signal.signal(signal.SIGALRM, look)
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to `make test-all` what is more of the same (tests/sample.py)."""
    out = set() if ALL else left_out(item.nodeid for item in items)
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
        items[:] = [item for item in items if item.nodeid not in out]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out whole files that need another system."""
    return True if apart(_place(collection_path)) and collection_path.suffix == ".py" else None


def _place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Skip, and say why, what needs another system."""
    if reason := apart(item.nodeid):
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from now on, without looking each time at thousands of tests that stay to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


TOGETHER = ("tests/browser/", "tests/pg/test_oldest.py", "tests/test_architecture.py")
"""Whose tests share something dear, and are therefore done by one worker."""


class Together(LoadScopeScheduling):  # type: ignore[misc]  # for the same reason
    """Hands out every test by itself, and before all others those that belong together."""

    def _split_scope(self, nodeid: str) -> str:
        return next((some for some in TOGETHER if nodeid.startswith(some)), nodeid)

    def _reschedule(self, node: Any) -> None:
        """Look for something to do only among what is not done: there are thousands, and it is counted for each."""
        units = self.assigned_work[node]
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
        super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Choose who does which test."""
    return Together(config, log)


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """Programs under test set up logging for themselves: nothing of that is left for the next test."""
    logger = logging.getLogger("runcue")
    before = list(logger.handlers), logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[0], before[1]
    logger.setLevel(before[2])
