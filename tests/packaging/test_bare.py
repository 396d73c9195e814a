"""`pip install runcue` alone: all that needs no extra works, and what needs one says which in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.packaging.conftest import Bare

APPLICATION = """
import asyncio, json, pathlib, sys
import runcue

async def use(store):
    cue = runcue.Cue(store)
    cue.service("api", rate="1000/s", concurrent=2)

    @cue.task(uses="api", retry=2)
    async def double(work):
        return work.params["n"] * 2

    @cue.task
    def triple(work):
        return work.params["n"] * 3

    @cue.task(executor="subprocess")
    def say(work):
        return [sys.executable, "-c", "print('said')"]

    async with cue:
        ids = [await cue.submit(task, params={"n": 7}) for task in ("double", "triple", "say")]
        found = [await cue.result(one, timeout=240) for one in ids]
    await cue.close()
    return [*found[:2], found[2]["stdout"].strip()]

told = {"memory": asyncio.run(use(None)), "file": asyncio.run(use("queue.db"))}
with runcue.Reader("queue.db") as reader:
    told["kept"] = len(reader.list())
told["map"] = runcue.map(str, [1, 2])
told["place"] = runcue.__file__
print(json.dumps(told))
"""

PLACE = """
import importlib.metadata, runcue
print(*sorted(one.name.lower() for one in importlib.metadata.distributions()))
print(runcue.__file__)
"""

HELP = """
import sys
from runcue.cli import main

for name, commands in (("queuectl", main.QUEUECTL), ("runcue", main.RUNCUE)):
    for command in (one for section in commands.values() for one in section):
        sys.argv = [name, command, "--help"]
        try:
            getattr(main, name)()
        except SystemExit as ended:
            assert ended.code == 0, (name, command, ended.code)
"""


def test_only_what_the_core_needs_comes_along(bare: Bare, tmp_path: Path) -> None:
    done = bare("-c", PLACE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names, place = done.stdout.splitlines()
    assert names == "apsw click cronsim msgspec runcue tzdata"
    assert "site-packages" in place


def test_an_application_works_without_extras(bare: Bare, tmp_path: Path) -> None:
    done = bare("-c", APPLICATION, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "site-packages" in told.pop("place")
    assert told == {"memory": [14, 21, "said"], "file": [14, 21, "said"], "kept": 3, "map": ["1", "2"]}


def test_the_commands_work_without_extras(bare: Bare, tmp_path: Path) -> None:
    added = bare("-m", "runcue.cli", "enqueue", "--id", "a", "--", "echo", "hello", cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    started = bare("-m", "runcue.cli", "worker", "start", "--detach", cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    waited = bare("-m", "runcue.cli", "wait", "a", "--timeout", "45s", cwd=tmp_path)
    stopped = bare("-m", "runcue.cli", "worker", "stop", "--now", cwd=tmp_path)
    assert (waited.returncode, stopped.returncode) == (0, 0), (waited, stopped)
    shown = bare("-m", "runcue.cli", "show", "a", "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["state"] == "completed", shown
    asked = "import sys; from runcue.cli.main import runcue; sys.argv[0] = 'runcue'; runcue()"
    status = bare("-c", asked, "status", "home/queue.db", "--json", cwd=tmp_path)
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)


def test_every_command_can_be_asked_for_without_extras(bare: Bare, tmp_path: Path) -> None:
    done = bare("-c", HELP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------- what is missing

TASK = """
import asyncio, runcue

async def main():
    cue = runcue.Cue()
    cue.service("far", concurrent=1)

    @cue.task(uses="far", executor={executor!r})
    def any(work):
        return ["true"]

    async with cue:
        await cue.result(await cue.submit("any"), timeout=240)

asyncio.run(main())
"""
EMPTY = """
import asyncio, runcue

async def main():
    async with runcue.Cue("queue.db"):
        pass

asyncio.run(main())
"""
QUEUE = """
import asyncio, runcue

async def main():
    async with runcue.Cue("postgresql://me@localhost/app"):
        pass

asyncio.run(main())
"""
RUNCUE = "import sys; from runcue.cli.main import runcue; sys.argv[1:] = {}; runcue()"
TOP = """
import os, pty, sys

pid, terminal = pty.fork()
if pid == 0:
    from runcue.cli.main import runcue
    os.environ["TERM"] = "xterm"
    sys.argv = ["runcue", "top", "queue.db"]
    runcue()
shown = b""
try:
    while piece := os.read(terminal, 65536):
        shown += piece
except OSError:
    pass
sys.stderr.write(shown.decode().replace("\\r\\n", "\\n"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
SIM = "import sys; from runcue.sim.main import main; sys.argv[1:] = {}; main()"

MISSING = {
    "postgres": QUEUE,
    "postgres, to look": "import runcue; runcue.Reader('postgresql://me@localhost/app')",
    "postgres, by a command": RUNCUE.format(["status", "postgresql://me@localhost/app"]),
    "ssh": TASK.format(executor="ssh"),
    "dask": TASK.format(executor="dask"),
    "metrics": "import runcue; runcue.Metrics(runcue.Cue())",
    "otel": "import runcue; runcue.trace(runcue.Cue())",
    "web": "import runcue.web",
    "web, by a command": RUNCUE.format(["dashboard", "queue.db"]),
    "tui, by a command": TOP,
    "sim, by a command": SIM.format(["--scenario", "burst"]),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_needs_an_extra_says_which(bare: Bare, tmp_path: Path, what: str) -> None:
    extra = what.partition(",")[0]
    if "queue.db" in MISSING[what]:
        assert bare("-c", EMPTY, cwd=tmp_path).returncode == 0
    done = bare("-c", MISSING[what], cwd=tmp_path)
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert re.search(rf"""pip install (['"])runcue\[{extra}\]\1""", last), done.stderr
    if "by a command" in what:
        assert done.stderr.count("\n") == 1, done.stderr
