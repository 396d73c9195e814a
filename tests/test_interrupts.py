"""Tests are run from terminals, in the background and by programs: Ctrl-C means the same in all of them."""

import signal
import subprocess
import sys

from tests.cli.crew import ignoring
from tests.conftest import heed_interrupts

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
