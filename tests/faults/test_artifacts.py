"""Declared files in a rough world: a share that is gone, processes that die, and two of them on one file."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Cue, Work
from tests.handlers import no_op
from tests.patience import until

PATIENCE = 240
SOURCE = str(Path(runcue.__file__).parent.parent)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A network share at /share that answers nobody before this is set."""
    answers = threading.Event()
    look = os.stat

    def hang(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith("/share/"):
            answers.wait(0.5 if threading.current_thread() is threading.main_thread() else PATIENCE)
            raise FileNotFoundError(path)
        return look(path, **options)

    monkeypatch.setattr(os, "stat", hang)
    yield answers
    answers.set()


async def test_a_share_that_is_gone_holds_the_loop_once_and_then_a_thread(
    gone: threading.Event, tmp_path: Path
) -> None:
    cue = Cue()
    looked: list[str] = []

    def path(work: Work) -> str:
        looked.append(threading.current_thread().name)
        return "/share/in"

    cue.task("waits", inputs=path)(no_op)

    @cue.task
    async def other(work: Work) -> str:
        return "done"

    @cue.task(inputs=tmp_path)
    async def local(work: Work) -> str:
        return "done, too"

    async with cue:
        ids = await cue.submit_many({"task": "waits"} for _ in range(150))
        submitted = len(looked)
        await until(lambda: "runcue-artifacts" in looked)
        assert await cue.result(await cue.submit("other"), PATIENCE) == "done"
        assert await cue.result(await cue.submit("local"), PATIENCE) == "done, too"
        assert looked[submitted:].count("MainThread") == 1
        why = await cue.explain(ids[0])
        assert (why.reason, why.details) == ("not_ready", "its files cannot be looked at") or (
            why.details == "is being asked"
        )
        gone.set()
        held = len(looked)
        await until(lambda: "MainThread" in looked[held:])  # quick again, so it is done there again
        assert (await cue.explain(ids[0])).reason == "not_ready"
        for work_id in ids:
            await cue.cancel(work_id)
    callback_errors = [event async for event in cue.events(["callback_failed"])]
    assert [event.callback for event in callback_errors] == ["artifacts"]


async def test_beside_an_async_callback_too_the_loop_is_held_only_once(gone: threading.Event) -> None:
    cue = Cue()
    looked: list[str] = []

    def path(work: Work) -> str:
        looked.append(threading.current_thread().name)
        return "/share/in"

    cue.task("waits", inputs=path)(no_op)

    @cue.is_stale
    async def is_stale(work: Work) -> bool:
        return True

    async with cue:
        work_id = await cue.submit("waits")
        await until(lambda: "runcue-artifacts" in looked)
        assert looked[1:].count("MainThread") == 1
        gone.set()
        await cue.cancel(work_id)


# --- Processes ------------------------------------------------------------------------------------

WRITER = """
import sys, runcue
with runcue.write_output("out.txt") as file:
    file.write("half of it")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def test_a_writer_that_is_killed_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("before")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=PATIENCE)
    assert (tmp_path / "out.txt").read_text() == "before"
    [left] = tmp_path.glob(".runcue-*.part")
    assert left.read_text() == "half of it"


STAGES = """
import asyncio, sys, runcue

cue = runcue.Cue("queue.db")

def log(line):
    with open("log.txt", "a") as file:
        file.write(line + "\\n")

@cue.task(inputs="raw/{n}", outputs="cut/{n}")
async def cut(work):
    with runcue.write_output(f"cut/{work.params['n']}") as file:
        file.write("cut")
    log(f"cut {work.params['n']}")

@cue.task(inputs="cut/{n}", outputs="fried/{n}")
async def fry(work):
    with open(f"cut/{work.params['n']}") as cut, runcue.write_output(f"fried/{work.params['n']}") as file:
        file.write(cut.read() + " and fried")
    log(f"fry {work.params['n']}")

async def main():
    async with cue:
        if sys.argv[1] == "submit":
            await cue.submit_many({"task": "fry", "params": {"n": n}} for n in range(40))
            await cue.submit_many({"task": "cut", "params": {"n": n}} for n in range(40))
        print("ready", flush=True)
        sys.stdin.readline()
        await cue.join(timeout=240)
    await cue.close()

asyncio.run(main())
"""


def test_two_processes_on_one_file_make_everything_once(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for n in range(40):
        (tmp_path / "raw" / str(n)).touch()
    both = [
        subprocess.Popen(
            [sys.executable, "-c", STAGES, role],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SOURCE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in ("submit", "help")
    ]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    said = [one.communicate("go\n", timeout=PATIENCE * 2) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    expected = sorted(f"{verb} {n}" for verb in ("cut", "fry") for n in range(40))
    assert sorted((tmp_path / "log.txt").read_text().split("\n")[:-1]) == expected
    assert {file.read_text() for file in (tmp_path / "fried").iterdir()} == {"cut and fried"}
    assert len(list((tmp_path / "fried").iterdir())) == 40
