"""What docs/platforms.md says of systems that the tests do not run on, as far as it can be tried on this one.

A process takes away from itself what another system does not have, and then uses runcue. That shows what fails for
want of a module or a function; it does not show how such a system behaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TAKE_AWAY = """
import apsw, asyncio, click, concurrent.futures, ctypes, json, logging, msgspec, multiprocessing, os, pathlib
import selectors, shutil, signal, socket, subprocess, sys, tempfile, threading, time, yaml

def take_away(thing, names):
    for name in names.split():
        if hasattr(thing, name):
            delattr(thing, name)
"""

MACOS = """
take_away(os, "pidfd_open pipe2 O_TMPFILE setxattr getxattr removexattr sched_getaffinity")
take_away(signal, "pidfd_send_signal")
take_away(time, "CLOCK_BOOTTIME")
sys.platform = "darwin"

def without_proc(function):
    def found(path, *args, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *args, **options)
    return found

import io
os.open, os.listdir, os.stat = without_proc(os.open), without_proc(os.listdir), without_proc(os.stat)
io.open = without_proc(io.open)
"""

USE = """
import runcue, runcue.testing

def told(action):
    try:
        found = action()
        return asyncio.run(asyncio.wait_for(found, 240)) if asyncio.iscoroutine(found) else found
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"

async def in_memory():
    cue = runcue.Cue()
    cue.service("api", rate="1000/s", concurrent=2)

    @cue.task(uses="api", retry=2)
    async def one(work):
        return 1

    @cue.task
    def two(work):
        return 2

    async with cue:
        return [await cue.result(await cue.submit(task), timeout=240) for task in (one, two)]

"""

ON_MACOS = """
async def commands():
    async with runcue.Cue("queue.db", grace=0.1) as cue:
        @cue.task(executor="subprocess")
        def say(work):
            return [sys.executable, "-c", "print('said')"]

        @cue.task(executor="subprocess", timeout=0.5)
        def hang(work):
            return ["/bin/sh", "-c", "sleep 600 & sleep 600"]

        said = await cue.result(await cue.submit(say), timeout=240)
        hung = await cue.wait(await cue.submit(hang), timeout=240)
        return [said["stdout"], hung.state.value]

def read():
    with runcue.Reader("queue.db") as reader:
        return sorted(work.task for work in reader.list())

from runcue.host.posix.processes import HAS_PROC
answers = {"memory": told(in_memory), "file and commands": told(commands), "reader": told(read)}
answers["has /proc"] = HAS_PROC
pathlib.Path("told.json").write_text(json.dumps(answers))
"""


def answers(folder: Path, *parts: str) -> dict[str, Any]:
    """What such a process found, and what it said on stderr."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUECTL_")}
    done = subprocess.run(
        [sys.executable, "-c", "".join((TAKE_AWAY, *parts))],
        cwd=folder,
        env=environment | {"QUEUECTL_HOME": str(folder / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return found | {"stderr": done.stderr}


def test_without_what_only_linux_has_files_and_commands_work(tmp_path: Path) -> None:
    found = answers(tmp_path, MACOS, USE, ON_MACOS)
    assert not found["has /proc"]
    assert found["memory"] == [1, 2]
    assert found["file and commands"] == ["said\n", "failed"]
    assert found["reader"] == ["hang", "say"]
