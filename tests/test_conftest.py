"""Tests are run from terminals, in the background and by programs, on quiet machines and on busy ones."""

import signal
import subprocess
import sys

from tests.cli.crew import ignoring
from tests.conftest import heed_interrupts, more_time

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


def test_a_test_has_longer_on_a_busy_machine_and_no_shorter_on_a_quiet_one() -> None:
    assert more_time(60, elapsed=60, load=0.1, cores=2) == 0
    assert more_time(60, elapsed=60, load=8, cores=2) == 180
    assert more_time(60, elapsed=250, load=8, cores=2) < 0
