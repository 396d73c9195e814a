"""`runcue worker module:attribute`: an application's own Cue under the same supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue.cli import worker
from runcue.cli.application import load
from runcue.cli.failure import Failure
from runcue.cli.worker import Orders, Voice, work
from tests.cli.crew import RUNCUE, Supervisor, children_of, end, environment, gone
from tests.handlers import no_op
from tests.patience import BOUND, until_sync

APP = """
import asyncio, os, runcue
from pathlib import Path

cue = runcue.Cue("app.db")

@cue.task(retry=1)
async def note(work):
    with open("ran", "a") as file:
        file.write(f"{work.params['n']} {os.getpid()}\\n")
    print("printed by the application", flush=True)

@cue.task
async def slow(work):
    Path("runs").touch()
    await asyncio.sleep(work.params["seconds"])
    Path("ended").touch()

class Box:
    def __init__(self):
        self.cue = cue

box = Box()
memory = runcue.Cue()
number = 3

def make():
    return cue

def make_other():
    return {}

def fail():
    raise LookupError("no such tenant\\nsecond line")
"""

EAGER = """
import asyncio, runcue

cue = runcue.Cue("eager.db")

async def main(cue):
    async with cue:
        print("the application runs", flush=True)

asyncio.run(main(cue))

def make():
    other = runcue.Cue("eager.db")
    asyncio.run(main(other))
    return other
"""


class App:
    """An application in a folder, and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = environment(folder / "home")
        self._started: list[Supervisor] = []

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `runcue worker` to its end."""
        return subprocess.run(
            [*RUNCUE, "worker", *args],
            cwd=self.folder,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )

    def start(self, *args: str) -> Supervisor:
        """Start its workers, and wait until they are up."""
        supervisor = Supervisor([*RUNCUE, "worker", *args], self.env, self.folder, self.folder)
        self._started.append(supervisor)
        supervisor.until("Started ")
        return supervisor

    def works(self) -> list[runcue.Work]:
        """All its work."""
        with runcue.Reader(self.folder / "app.db") as reader:
            return reader.list(limit=1000)

    def close(self) -> None:
        """End what is left of its workers."""
        for supervisor in self._started:
            supervisor.end()


async def submitted(app: App, task: str, *params: dict[str, Any], queue: str = "default") -> None:
    """Submit work from here, which runs nothing."""
    cue = runcue.Cue(app.folder / "app.db")
    cue.task(task)(no_op)
    await cue.submit_many({"task": task, "params": one, "queue": queue} for one in params)
    await cue.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    (tmp_path / "app.py").write_text(APP)
    app = App(tmp_path)
    yield app
    app.close()


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("app", 2, "'app' names no Cue. Write module:attribute, such as app:cue."),
        ("app:", 2, "'app:' names no Cue"),
        ("../app:cue", 2, "names no Cue"),
        ("app:cue()", 2, "names no Cue"),
        ("absent:cue", 2, "There is no module 'absent' here"),
        ("app.more:cue", 2, "'app.more'"),
        ("app:cu", 2, "app has no 'cu'. It has: cue, memory."),
        ("app:box.queue", 2, "app.box has no 'queue'. It has: cue."),
        ("app:number", 2, "app.number is no runcue.Cue, but int."),
        ("app:make_other", 2, "app.make_other() is no runcue.Cue, but dict."),
        ("app:fail", 4, "app.fail() failed at "),
        ("broken:cue", 4, "Importing broken failed at "),
        ("wrong:cue", 4, "SyntaxError"),
        ("lacking:cue", 4, "No module named 'nowhere_to_be_found'"),
        ("leaving:cue", 4, "SystemExit: 0"),
        ("app:memory", 4, "app.memory keeps its queue in memory, where its own process alone sees it"),
        ("eager:cue", 4, "Importing 'eager' runs its Cue: put asyncio.run(main()) under `if __name__ == "),
        ("eager:make", 4, "eager.make() returns a Cue that was run already."),
    ],
)
def test_what_is_no_cue_is_said_in_one_line(
    app: App, monkeypatch: pytest.MonkeyPatch, name: str, code: int, text: str
) -> None:
    sources = {
        "broken": "raise RuntimeError('no database\\nsecond line')",
        "wrong": "def f(:",
        "lacking": "import nowhere_to_be_found",
        "leaving": "import sys; sys.exit(0)",
        "eager": EAGER,
    }
    for module, source in sources.items():
        (app.folder / f"{module}.py").write_text(source)
    monkeypatch.chdir(app.folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    try:
        with pytest.raises(Failure) as caught:
            load(name)
    finally:
        for module in ("app", *sources):
            sys.modules.pop(module, None)
    assert (caught.value.code, caught.value.text.count("\n")) == (code, 0)
    assert text in caught.value.text


def test_a_mistake_of_the_application_ends_all_with_its_last_line(app: App) -> None:
    done = app.run("app:fail", "--count", "2")
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "app.fail() failed at " in done.stderr
    assert "LookupError: no such tenant" in done.stderr
    shown = app.run("app:fail", RUNCUE_DEBUG="1")
    assert shown.returncode == 4
    assert "Traceback" in shown.stderr


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_queue_in_memory_is_refused(app: App, count: str) -> None:
    refused = app.run("app:memory", "--count", count)
    assert (refused.returncode, refused.stderr.count("\n")) == (4, 1)
    assert "app.memory keeps its queue in memory" in refused.stderr


def test_a_module_that_runs_its_cue_is_refused_at_its_first_import(app: App) -> None:
    (app.folder / "eager.py").write_text(EAGER)
    refused = app.run("eager:cue")
    assert refused.returncode == 4
    assert refused.stdout == "the application runs\n"
    assert refused.stderr == (
        "runcue: Importing 'eager' runs its Cue: put asyncio.run(main()) under `if __name__ == \"__main__\":`.\n"
    )


@pytest.mark.parametrize(
    ("orders", "variable"), [(Orders(app="app:cue"), "RUNCUE_DEBUG"), (Orders(home="x"), "QUEUECTL_DEBUG")]
)
def test_a_mistake_of_ours_names_the_variable_of_its_program(
    orders: Orders, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(orders: Orders, voice: Voice) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(worker, "_cue", mistaken)
    ours, theirs = os.pipe()
    try:
        assert work(orders, Voice(theirs)) == 70
        assert f"set {variable}=1 for details" in os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)


async def test_its_workers_share_the_work_and_stop_gracefully(app: App) -> None:
    await submitted(app, "note", *({"n": n} for n in range(50)))
    await submitted(app, "slow", {"seconds": 0.5}, queue="later")
    supervisor = app.start("app:make", "--count", "2", "--queue", "default", "--queue", "later")
    until_sync((app.folder / "runs").exists, "the slow one starts")
    supervisor.signal(signal.SIGINT)
    assert supervisor.wait() == 0
    assert (app.folder / "ended").exists()
    app.start("app:box.cue")
    until_sync(lambda: all(work.state == "completed" for work in app.works()), "all is done")
    ran = [line.split()[0] for line in (app.folder / "ran").read_text().splitlines()]
    assert sorted(ran, key=int) == [str(n) for n in range(50)]
    assert "printed by the application" in supervisor.said()


async def test_a_killed_worker_is_replaced_and_its_work_runs_again(app: App) -> None:
    await submitted(app, "slow", {"seconds": 0.5})
    supervisor = app.start("app:cue")
    until_sync((app.folder / "runs").exists, "it starts")
    [worker] = children_of(supervisor.pid)
    end(worker)
    until_sync((app.folder / "ended").exists, "it runs again")
    assert gone([worker])
    supervisor.until("was killed by SIGKILL. Another one starts in")
    until_sync(lambda: app.works()[0].state == "completed", "it is done")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0
