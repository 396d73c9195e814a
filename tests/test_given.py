"""How much of the machine processes were given is measured."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.given import Watch, family, had_of, share_of


@pytest.mark.parametrize(
    ("ran", "waited", "share"),
    [
        (0.0, 0.0, 1.0),  # asleep
        (0.5, 0.0, 1.0),  # alone
        (8.0, 0.0, 1.0),  # alone, on several processors
        (0.25, 0.25, 0.75),  # asleep for half of the time, and of the other half it had half
        (1.0, 4.0, 0.2),
        (0.0, 2.0, 0.0),
        (-0.5, 1.0, 0.0),  # a thread has ended
        (0.5, -1.0, 1.0),
    ],
)
def test_what_actors_waited_for_a_processor_was_given_to_others(
    ran: float, waited: float, share: float
) -> None:
    assert share_of(1.0, ran, waited) == pytest.approx(share)


def test_what_a_process_ran_is_counted() -> None:
    before, burnt = had_of(os.getpid()), time.thread_time() + 0.05
    while time.thread_time() < burnt:
        pass
    after = had_of(os.getpid())
    assert after.ran > before.ran
    assert after.waited >= before.waited


def test_a_process_and_its_children_are_watched_while_they_run() -> None:
    code = "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process,
        Watch(process) as watch,
    ):
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert [*family(process.pid)] == [process.pid, child]
        while not watch.looks:
            os.sched_yield()
        os.kill(child, signal.SIGKILL)
        process.wait()
    assert 0.0 <= watch.share <= 1.0
