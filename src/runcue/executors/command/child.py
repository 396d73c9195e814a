"""A running command: notices its end, signals it and its session, and reaps it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

from runcue.executors.command.output import Output
from runcue.executors.process_locks import Mark, holders
from runcue.host.descriptors import close, guard
from runcue.host.loops import post_to_loop
from runcue.host.posix.processes import (
    HAS_PROC,
    Process,
    process,
    send_in_session,
    session_members,
    signal_group,
)

YOUNG = 0.25
"""Seconds in which pids cannot have wrapped around."""


class Child:
    """A command that was started, until it is reaped."""

    def __init__(self, number: int, work: str, pid: int, output: Output) -> None:
        self.number = number
        self.work = work
        self.pid = pid
        self.output = output
        self.loop = asyncio.get_running_loop()
        self.exited = asyncio.Event()
        self.exit_code: int | None = None
        self.was_cancelled = False
        self._began = time.monotonic()
        self._is_reaped = False
        self._pidfd = -1
        try:
            self._pidfd = guard(os.pidfd_open(self.pid))
            self.loop.add_reader(self._pidfd, self._on_exit)
        except (AttributeError, OSError):  # another system, or no descriptors left
            threading.Thread(target=self._wait, name=f"runcue-wait-{self.pid}", daemon=True).start()

    def _on_exit(self) -> None:
        self._let_go()
        self.exited.set()

    def _wait(self) -> None:
        wait_for_exit(self.pid)
        post_to_loop(self.loop, self.exited.set)

    def _let_go(self) -> None:
        if self._pidfd != -1:
            self.loop.remove_reader(self._pidfd)
            close(self._pidfd)
            self._pidfd = -1

    def signal(self, number: int) -> None:
        """Signal the command's group, while the group's number is certainly its own."""
        if not self._is_reaped and is_our_child(self.pid):
            signal_group(self.pid, number)

    @property
    def is_young(self) -> bool:
        """Whether the command started less than `YOUNG` seconds ago."""
        return time.monotonic() - self._began < YOUNG

    def signal_session(self, number: int | None) -> list[Process]:
        """Signal the living members of the command's session, and return them."""
        if self._is_reaped or not is_our_child(self.pid):
            return []
        return signal_session(self.pid, number, is_young=self.is_young)

    async def sure(self, event: asyncio.Event) -> None:
        """Wait for an event that is certain to come; a cancellation meanwhile is only noted."""
        while not event.is_set():
            try:
                await event.wait()
            except asyncio.CancelledError:
                self.was_cancelled = True

    def reap(self) -> None:
        """Reap the command and keep its exit code; from here on the kernel may give its pid away."""
        self._is_reaped = True
        if not self.loop.is_closed():
            self._let_go()
        self.exit_code = exit_code_of(self.pid)


def exit_code_of(pid: int) -> int | None:
    """Reap a child, and wait for its end before that; None when other code of this process has reaped it."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)


def is_our_child(pid: int) -> bool:
    """Whether this pid is a child that is not yet reaped, and so still means that child."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def wait_for_exit(pid: int) -> None:
    """Block until a child has ended, without reaping it."""
    try:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        else:
            _wait_by_kqueue(pid)
    except (ChildProcessError, ProcessLookupError):
        return


def _wait_by_kqueue(pid: int) -> None:
    import select

    system: Any = select
    queue = system.kqueue()
    try:
        flags = system.KQ_EV_ADD | system.KQ_EV_ONESHOT
        queue.control([system.kevent(pid, system.KQ_FILTER_PROC, flags, system.KQ_NOTE_EXIT)], 1)
    finally:
        queue.close()


def signal_session(session: int, number: int | None, *, is_young: bool) -> list[Process]:
    """Signal the living members of a session, and return them; group members already had SIGTERM with the group."""
    members = session_members(session, is_young) if HAS_PROC else []
    if number is not None:
        for member in members:
            if number == signal.SIGKILL or member.group != session:
                send_in_session(member.pid, session, number)
                send_in_session(member.pid, session, signal.SIGCONT)
    return members


def names_of(members: list[Process], marks: set[Mark]) -> list[str]:
    """Pid and name of these processes, and of those that have one of these files open."""
    known = {member.pid: member for member in members}
    if HAS_PROC:
        known |= {pid: found for pid in holders(marks) if (found := process(pid)) is not None}
    return [f"{pid} {known[pid].name}" for pid in sorted(known)]
