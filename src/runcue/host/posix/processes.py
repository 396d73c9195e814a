"""Lists, signals and starts processes of this host.

- A process is signalled through a descriptor (pidfd), and checked again after that was opened: a pid that the kernel
  has given to another process meanwhile is never signalled.
- A session is ended as a whole. Only Linux can list its members (/proc); elsewhere a process group stands for it.
- The keeper of the process pool and its workers import this module: it needs no loop, and is quick to import.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

assert sys.platform != "win32"

PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "stat").exists()
MOST_LOOKS = 8
"""How often `session_members` looks for members, while new processes start."""
FEW_PIDS = 256
"""Up to so many new pids are checked one by one; when there are more, all processes are listed."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HINTS = {
    "KILL": " (often because memory ran out)",
    "SEGV": " (a crash in native code)",
    "BUS": " (a crash in native code)",
    "ABRT": " (native code gave up)",
}

# --- What /proc shows -----------------------------------------------------------------------------


class Process(NamedTuple):
    """One process, as /proc shows it."""

    pid: int
    name: str
    state: str
    group: int
    session: int


def process(pid: int) -> Process | None:
    """Look a process up; None when it is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(descriptor, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    head, _, rest = data.rpartition(b")")
    name = head.partition(b"(")[2].decode("utf-8", "backslashreplace")
    state, _, group, session = rest.split(maxsplit=4)[:4]
    return Process(pid, name, state.decode(), int(group), int(session))


def session_of(pid: int) -> int | None:
    """The session of a living process; None for a zombie, or when it is gone."""
    found = process(pid)
    return None if found is None or found.state in "ZX" else found.session


def session_members(session: int, is_young: bool = False) -> list[Process]:
    """The living members of a session; a child that a member starts meanwhile may be missing.

    The number of a session is the pid of its leader, and every other member got its pid later. `is_young` says that
    pids cannot have wrapped around since: then only pids after the leader's are checked.
    """
    seen = session if is_young else None
    members: list[Process] = []
    for _ in range(MOST_LOOKS):
        latest = last_pid()
        if seen is None or latest is None or not seen <= latest <= seen + FEW_PIDS:
            members = list(filter(None, (_member(pid, session) for pid in pids())))
        elif seen < latest:
            members = list(filter(None, (_member(pid, session) for pid in range(seen + 1, latest + 1))))
        if members or latest is None or seen == latest:
            break
        seen = (
            latest  # a process that was started since, by a parent that is gone, is found in the next round
        )
    return members


def _member(pid: int, session: int) -> Process | None:
    try:
        may_be_one = os.getsid(pid) == session  # costs a tenth of reading /proc
    except ProcessLookupError:
        return None
    except PermissionError:
        may_be_one = True
    found = process(pid) if may_be_one else None
    return None if found is None or found.session != session or found.state in "ZX" else found


def last_pid() -> int | None:
    """The pid that the kernel assigned last; None where it does not tell."""
    try:
        descriptor = os.open("/proc/sys/kernel/ns_last_pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, 32))
    finally:
        os.close(descriptor)


def pids() -> list[int]:
    """The numbers of all processes."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 (names, many of them)


def children_of(pid: int) -> list[int]:
    """The children of a process; none on systems that do not list them."""
    found: list[int] = []
    try:
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, file.read_text().split())
    except OSError:
        return found  # one of its threads has ended, or the process has
    return found


def open_files(pid: int) -> list[str]:
    """Links to the open files of a process; none when it is gone, or belongs to another user."""
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH208
    except OSError:
        return []


# --- Signals --------------------------------------------------------------------------------------


def send(pid: int, number: int, is_still_it: Callable[[], bool]) -> None:
    """Signal a process, if `is_still_it` says that the pid still means the intended one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # no descriptors left, or a kernel without pidfds: look and signal at once
        descriptor = None
    try:
        if is_still_it():
            if descriptor is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        if descriptor is not None:
            os.close(descriptor)


def send_in_session(pid: int, session: int, number: int) -> None:
    """Signal a process, if it is still in that session."""
    send(pid, number, lambda: session_of(pid) == session)


def signal_group(group: int, number: int) -> None:
    """Signal a process group; do nothing when it is gone, or belongs to another user by now."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def signal_name(number: int) -> str:
    """The name of a signal without its SIG; its number where it has no name."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def end_sessions(sessions: set[int]) -> None:
    """Kill all members of these sessions, and return when none is left; where there is no /proc, kill the groups."""
    pause = 0.001
    while HAS_PROC and sessions:
        members = {session: session_members(session) for session in sessions}
        for session in sessions:
            for one in members[session]:
                send_in_session(one.pid, session, signal.SIGKILL)
        sessions = {session for session in sessions if members[session]}
        if sessions:
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
    for session in sessions:
        signal_group(session, signal.SIGKILL)


def cause_of_death(code: int) -> str:
    """An exit code in words; a negative one is a signal."""
    if code >= 0:
        return f"exit code {code}"
    name = signal_name(-code)
    return f"signal:{name}{HINTS.get(name, '')}"


def end_self() -> None:
    """End this process at once, without a chance to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)


def ignore_signal(number: int, frame: object) -> None:
    """Do nothing; unlike SIG_IGN, programs that are started from here do not inherit it."""


def prctl(option: int, value: int) -> None:
    """Ask the Linux kernel for something; do nothing on other systems."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
