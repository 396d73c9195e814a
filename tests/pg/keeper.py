"""Keeps one PostgreSQL server for the process that asked for it, and ends it with that process.

It runs as a program of its own, with the standard library alone:  keeper.py arguments-as-JSON.

- It starts `postgres` as a user that may (never root), with the write end of this program's standard output open in
  every process of the cluster: when its reader sees the end of that, all of them are gone. The one line on it is
  the server's pid.
- It reads one word from its standard input. `crash` kills everything at once and `halt` shuts down in good order,
  and both leave the data; `end` ends everything and takes the folder away. So does the end of input, and so does
  the end of the process that started this one, even if a child of that holds the pipe open.
- If the server ends by itself, this program does too and leaves the data, for somebody to look at the log.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

LOOK = 1.0
"""Seconds between two looks at whether the process that started this one is still there."""
PATIENCE = 60.0
"""Seconds that a shutdown may take before it is made one."""
PR_SET_PDEATHSIG = 1
IPC_RMID = 0


def with_keeper() -> None:
    """In the child: end at once when the keeper dies. Linux only; elsewhere the keeper has to live."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def children(parent: int) -> list[int]:
    """The processes that a process started, where /proc tells; elsewhere they notice its end by themselves."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(int(entry.name))
    return found


def kill_all(postmaster: subprocess.Popen[bytes]) -> None:
    """Kill the postmaster and everything it started; stopped first, it starts nothing new meanwhile."""
    postmaster.send_signal(signal.SIGSTOP)
    for pid in children(postmaster.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended meanwhile
            continue
    postmaster.kill()
    postmaster.wait()


def shut_down(postmaster: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Ask the postmaster to end, and kill it if it does not."""
    postmaster.send_signal(how)
    try:
        postmaster.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        kill_all(postmaster)


def clear(folder: Path, data: Path) -> None:
    """Take away what a server left that has ended: its folder, and the memory of one that was killed."""
    lock = data / "postmaster.pid"
    if lock.exists() and len(lines := lock.read_text().splitlines()) >= 7:
        ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), IPC_RMID, None)
    if folder.exists():
        shutil.rmtree(folder)


def word(parent: int, postmaster: subprocess.Popen[bytes]) -> str:
    """Wait for what to do; nothing when the server ended by itself."""
    while postmaster.poll() is None:
        if select.select([sys.stdin], [], [], LOOK)[0]:
            return sys.stdin.readline().strip() or "end"
        if os.getppid() != parent:
            return "end"
    return ""


def keep(
    parent: int, first: list[str], command: list[str], how: dict[str, Any], folder: str, data: str
) -> None:
    """Prepare if there is something to prepare, then run the server until told otherwise."""
    if first:
        subprocess.run(first, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True, **how)
    postmaster = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=with_keeper,  # noqa: PLW1509 (there are no threads here)
        **how,
    )
    print(postmaster.pid, flush=True)  # noqa: T201 (that is how the server's pid gets known)
    said = word(parent, postmaster)
    if said == "crash":
        kill_all(postmaster)
    elif said == "halt":
        shut_down(postmaster, signal.SIGINT)
    elif said:
        shut_down(postmaster, signal.SIGQUIT)
        clear(Path(folder), Path(data))


if __name__ == "__main__":
    keep(**json.loads(sys.argv[1]))
