"""Tests are run from terminals, in the background and by programs, on quiet machines and on busy ones."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.crew import ignoring
from tests.conftest import heed_interrupts, more_time, write_for_ourselves
from tests.sample import LATER, LONG

ROOT = Path(__file__).parent.parent

LOOK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_tests_and_what_they_start_heed_ctrl_c_where_it_is_ignored() -> None:
    with ignoring(signal.SIGINT, signal.SIGQUIT):
        heed_interrupts()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
        child = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert child.stdout == "True\n"


def test_a_terminal_that_ends_ends_no_tests_under_nohup() -> None:
    with ignoring(signal.SIGHUP):
        heed_interrupts()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o644), (0o022, 0o644), (0o077, 0o600)])
def test_files_of_tests_are_not_for_others_to_write(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_for_ourselves()
        (tmp_path / "file").touch()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_test_has_longer_on_a_busy_machine_and_no_shorter_on_a_quiet_one() -> None:
    assert more_time(60, elapsed=60, load=0.1, cores=2) == 0
    assert more_time(60, elapsed=60, load=8, cores=2) == 180
    assert more_time(60, elapsed=250, load=8, cores=2) < 0


@pytest.mark.parametrize("name", sorted(LATER | LONG))
def test_what_is_left_to_make_test_all_is_there(name: str) -> None:
    path, function = name.split("::")
    assert f"def {function}(" in (ROOT / path).read_text(), "a name that fits nothing would leave out nothing"
