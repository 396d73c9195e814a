"""Ctrl-C and kill -9: what is done is kept, and paid for once. Each in a process of its own."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BOUND = 240.0


def run(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


INTERRUPTED = """
    import asyncio, os, signal, sys, threading
    import runcue, runcue.api.batch

    runcue.api.batch.GRACE = 0.1
    store = "queue.db" if "file" in sys.argv else None

    async def step(item):
        if item == 3:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return item

    def plain(item):
        if item == 3:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(40)
        return item

    print(runcue.map(plain if "plain" in sys.argv else step, range(6), concurrent=1, store=store, key=str))
"""


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("store", ["memory", "file"])
def test_ctrl_c_returns_what_is_done_with_an_ellipsis_in_all_other_places(
    tmp_path: Path, kind: str, store: str
) -> None:
    done = run(INTERRUPTED, tmp_path, kind, store)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2, Ellipsis, Ellipsis, Ellipsis]\n"
    assert "was interrupted: 3 done, 3 not" in done.stderr


def test_what_completes_after_ctrl_c_is_among_the_results(tmp_path: Path) -> None:
    code = """
    import asyncio, os, signal
    import runcue, runcue.api.cue

    stopping = asyncio.Event()
    stop = runcue.Cue.stop

    async def told(self, timeout=None):
        stopping.set()
        await stop(self, timeout)

    runcue.Cue.stop = told

    async def step(item):
        if item == 3:
            os.kill(os.getpid(), signal.SIGINT)
            await stopping.wait()
        return item

    print(runcue.map(step, range(6), concurrent=1))
    """
    done = run(code, tmp_path)
    assert done.stdout == "[0, 1, 2, 3, Ellipsis, Ellipsis]\n", done.stderr


def test_ctrl_c_while_items_are_pulled_ends_with_the_items_so_far(tmp_path: Path) -> None:
    code = """
    import os, signal, threading
    import runcue

    arrived = threading.Event()

    def items():
        yield 1
        arrived.wait(40)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(40)
        yield 2

    def step(item):
        arrived.set()
        return item

    print(runcue.map(step, items()))
    """
    done = run(code, tmp_path)
    assert done.stdout == "[1]\n", done.stderr


def test_a_second_ctrl_c_waits_for_nothing(tmp_path: Path) -> None:
    code = """
    import asyncio, os, signal
    import runcue, runcue.api.batch

    runcue.api.batch.GRACE = 1000.0
    stop = runcue.Cue.stop
    is_first = True

    async def interrupted(self, timeout=None):
        global is_first
        if is_first:
            is_first = False
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await stop(self, timeout)

    runcue.Cue.stop = interrupted

    async def step(item):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    try:
        runcue.map(step, range(6), concurrent=1)
    except KeyboardInterrupt:
        print("at once")
    """
    done = run(code, tmp_path)
    assert done.stdout == "at once\n", done.stderr


# -------------------------------------------------------------------------------------------------- kill -9

BY_FUNCTION = """
    import sys, pathlib
    import runcue

    def step(item):
        with open("calls.log", "a") as log:
            log.write(f"{item}\\n")
        print(item, flush=True)
        return item * item

    assert runcue.map(step, range(24), concurrent=1, store="queue.db", key=str) == [n * n for n in range(24)]
"""

BY_CUE = """
    import asyncio
    import runcue

    cue = runcue.Cue("queue.db")
    cue.service("api", concurrent=1)

    @cue.task(uses="api")
    def step(work):
        with open("calls.log", "a") as log:
            log.write(f"{work.params['item']}\\n")
        print(work.params["item"], flush=True)
        return work.params["item"] ** 2

    async def main():
        async with cue:
            squares = [work.result async for work in cue.map(step, range(24), key="item", window=10)]
        assert sorted(squares) == [n * n for n in range(24)]

    asyncio.run(main())
"""


@pytest.mark.parametrize("code", [BY_FUNCTION, BY_CUE], ids=["runcue.map", "cue.map"])
def test_after_kill_9_nothing_that_was_done_is_paid_for_again(tmp_path: Path, code: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        began = [child.stdout.readline() for _ in range(12)]
        child.send_signal(signal.SIGKILL)
    assert began[-1] == "11\n"  # one at a time: the eleven before it are done, and kept
    again = run(code, tmp_path)
    assert again.returncode == 0, again.stderr
    calls = [int(line) for line in (tmp_path / "calls.log").read_text().split()]
    assert sorted(set(calls)) == list(range(24))
    assert [calls.count(item) for item in range(11)] == [1] * 11
    assert len(calls) <= 24 + 1  # only what ran at that moment runs again
