"""Runs the commands that handlers return, each as a process of its own.

1. A command is a list of arguments, or a str where the task says `shell=True`; nothing else is ever run.
2. It leads a session of its own, has no input, and writes to files (output.py), never to a pipe.
3. A pidfd in the loop shows its end, elsewhere a thread does. The leader stays a zombie until the rest of its session
   is dealt with, so that the kernel cannot give the number of its group away.
4. When the command ends, the processes that it left in its session are killed. A process with a session of its own is
   left alone; if it still holds the job lock or an output file, the result names it as `left_running`.
5. When the command is cancelled, its session gets SIGTERM (and SIGCONT), after the grace period SIGKILL. `run`
   returns when the command is gone, and never before.
6. If this process dies, the reaper kills the session, and the job lock shows when it is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from subprocess import Popen
from typing import Any, TypeVar

from runcue.executors.command.arguments import checked
from runcue.executors.command.child import Child, exit_code_of, is_our_child, names_of, signal_session
from runcue.executors.command.launch import (
    asked,
    environment,
    no_room,
    not_prepared,
    not_started,
    outcome,
    program,
    usable,
)
from runcue.executors.command.output import LIMIT, Output, Watcher, stem
from runcue.executors.command.reaper import SHELL, Reaper, disown
from runcue.executors.command.text import KEEP
from runcue.executors.process_locks import Jobs
from runcue.host.descriptors import close, guard
from runcue.host.loops import hold, later, post_to_loop
from runcue.host.posix.processes import signal_group
from runcue.ports import Clock, CommandOptions, Entering, Registered

logger = logging.getLogger("runcue")
T = TypeVar("T")


LONGEST_ARGUMENT = 128 * 1024
"""Bytes that Linux allows for a single argument."""
KILL_PATIENCE = 5.0
"""Seconds that `run` waits for processes that even SIGKILL does not end, after the command itself has ended."""
UNSEEN = "unknown"
"""The name of a process that holds a lock or file of the command and cannot be seen (another user's, or no /proc)."""
UNSEEN_PATIENCE = 0.25
"""Seconds to wait for such a process: it may be one of ours that is just executing another program."""
FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.2

# --- What to run ----------------------------------------------------------------------------------


def arguments(command: object, options: CommandOptions) -> list[str]:
    """The argument list of a command; raises BadCommand when it is not a command."""
    found = checked(command, options.shell)
    return [SHELL, "-c", "--", found] if isinstance(found, str) else found


def script_of(argv: list[str]) -> tuple[list[str], int | None]:
    """Put a shell command that is too long for an argument into a nameless file: the new arguments, and the file."""
    if len(argv) != 4 or argv[0] is not SHELL or len(argv[3].encode()) < LONGEST_ARGUMENT:
        return argv, None
    file, name = tempfile.mkstemp(prefix="runcue-")
    os.unlink(name)  # noqa: PTH108
    with os.fdopen(os.dup(file), "wb") as script:
        script.write(argv[3].encode())
    os.lseek(file, 0, os.SEEK_SET)
    return [SHELL, f"/dev/fd/{file}"], guard(file)


# --- Running it -----------------------------------------------------------------------------------


class CommandExecutor:
    """Runs the commands that handlers return."""

    can_stop = True

    def __init__(
        self,
        clock: Clock,
        grace: float,
        folder: Path | None,
        jobs: Jobs,
        reaper: Reaper,
        keep: int = KEEP,
        limit: int = LIMIT,
    ) -> None:
        self._clock = clock
        self.grace = grace
        self._folder = folder
        self._usable: Path | None = None  # `folder`, while it can be used
        self._jobs = jobs
        self._reaper = reaper
        self._keep = keep
        self._limit = max(limit, 2 * keep)
        self._watcher = Watcher(self._limit)
        self._numbers = count(1)
        self._free: list[int] = []  # numbers of jobs that are over and whose locks can be taken again
        self._nothing = -1  # /dev/null, the input of all commands

    async def run(self, work: Any, task: Registered, entered: Entering | None) -> Any:
        """Ask the handler for a command, run it, and return what it printed and its exit code."""
        command, options = await asked(work, task)
        argv = arguments(command, options)
        if entered is not None:
            entered.check()
        child = self._start(work, options, argv)
        release = hold(child.loop)
        try:
            result = await self._finish(child, entered)
        finally:
            release()
        return outcome(result, options)

    async def close(self) -> None:
        """End the reaper and the thread; the next command starts them again."""
        if self._watcher.is_running or self._reaper.pid is not None:
            await self._aside(self._reaper.close, asyncio.Event.wait)
            self._watcher.close()
        for number in self._free:
            self._jobs.release(number)
        self._free.clear()
        self._jobs.close()
        if self._nothing != -1:
            close(self._nothing)
            self._nothing = -1

    def _start(self, work: Any, options: CommandOptions, argv: list[str]) -> Child:
        number = self._free.pop() if self._free else next(self._numbers)
        output, lock = self._prepare(number, work)
        script = None
        try:
            line, script = script_of(argv)
            shown = environment(options.env)
            started = Popen(
                line,
                executable=program(line[0], (os.environ if shown is None else shown).get("PATH")),
                stdin=self._nothing,
                stdout=output.out.writing,
                stderr=output.err.writing,
                cwd=options.cwd,
                env=shown,
                start_new_session=True,
                pass_fds=[one for one in (lock, script) if one is not None],
            )
        except BaseException as error:
            output.settle(self._limit)
            output.close()
            self._jobs.release(number)
            cause = not_started(error, argv, options.cwd)
            if cause is not error:
                raise cause from error
            raise
        finally:
            if script is not None:
                close(script)
        disown(started)  # Child waits for it, when nothing else of its session is left
        try:
            self._reaper.register(started.pid)
            self._jobs.started(number, started.pid)
            output.hand_over()
            self._watcher.add(number, output)
            return Child(number, work.id, started.pid, output)
        except BaseException as error:
            self._abandon(number, started.pid, output)
            if isinstance(error, (OSError, RuntimeError)):
                raise no_room(error) from error
            raise

    def _abandon(self, number: int, pid: int, output: Output) -> None:
        """End a command whose end cannot be watched, because an error came right after its start."""
        if is_our_child(pid):
            signal_group(pid, signal.SIGKILL)
            signal_session(pid, signal.SIGKILL, is_young=True)
        self._reaper.forget(pid)
        exit_code_of(pid)
        self._watcher.remove(number)
        output.settle(self._limit)
        output.close()
        self._jobs.release(number)

    def _prepare(self, number: int, work: Any) -> tuple[Output, int | None]:
        """Open the output files of a command that is about to start, and take its job lock."""
        try:
            self._reaper.start()
            if self._nothing == -1:
                self._nothing = guard(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            if self._usable is None or not self._usable.is_dir():  # it may have been removed
                self._usable = usable(self._folder, self._watcher.complain)
            self._watcher.start()
            lock = self._jobs.take(number)
            name, report = stem(work.id, work.attempt), partial(work.progress, None)
            return Output(self._usable, name, self._jobs.label(number), report, self._watcher.complain), lock
        except (OSError, RuntimeError) as error:
            self._jobs.release(number)
            raise not_prepared(error) from error

    async def _finish(self, child: Child, entered: Entering | None) -> dict[str, Any]:
        """Wait for the end of a command, or end it when cancelled; then end what it left, and read its output."""
        output = child.output
        left: list[str] = []
        is_clear = False
        try:
            if entered is not None:
                entered(None)
            await self._ended(child)
            child.signal(signal.SIGKILL)  # what is left of its group
            is_clear = not await self._has_rest(child)
            if not is_clear:
                left = await self._clear(child, lambda: True)
                is_clear = not self._jobs.is_held(child.number)
                output.unlabel()
        finally:
            if not child.exited.is_set():  # the loop is closing, and nothing can be awaited
                child.signal(signal.SIGKILL)
                child.signal_session(signal.SIGKILL)
            self._reaper.forget(child.pid)
            child.reap()
            self._watcher.remove(child.number)
            if is_clear:
                self._free.append(child.number)
            else:
                self._jobs.release(child.number)
            try:
                result = output.result(self._keep, child.exit_code)
                settle = partial(output.settle, self._limit)
                if child.exited.is_set() and output.is_long(self._limit):
                    await self._aside(settle, child.sure)
                else:
                    settle()
            finally:
                output.close()
        if child.was_cancelled:
            if left:  # a cancelled attempt has no result to name it in
                logger.warning(
                    "%s: a command that was given up left running: %s", child.work, ", ".join(left)
                )
            raise asyncio.CancelledError
        return result | {"left_running": left} if left else result

    async def _ended(self, child: Child) -> None:
        try:
            await child.exited.wait()
        except asyncio.CancelledError:
            child.was_cancelled = True
            await self._stop(child)

    async def _stop(self, child: Child) -> None:
        """End a command and its session: SIGTERM first, SIGKILL after the grace period."""
        expired = asyncio.Event()

        def expire() -> None:
            expired.set()
            child.signal(signal.SIGKILL)

        timer = later(child.loop, self.grace, expire)
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # a stopped process receives no SIGTERM
        await child.sure(child.exited)
        if await self._has_rest(child):
            await self._clear(child, expired.is_set)
        timer.cancel()

    async def _has_rest(self, child: Child) -> bool:
        """Whether a command that has ended left a process that is in its session, or holds its lock or output."""
        if self._is_held(child):
            return True
        if child.is_young:
            return bool(child.signal_session(None))
        return bool(await self._aside(partial(child.signal_session, None), child.sure))

    def _is_held(self, child: Child) -> bool:
        return child.output.is_held or self._jobs.is_held(child.number)

    async def _clear(self, child: Child, is_expired: Callable[[], bool]) -> list[str]:
        """End the processes that a command left in its session. Returns the names of those that cannot be ended, or
        that hold its lock or output from another session."""
        pause, was_asked, ending = FIRST_PAUSE, False, 0.0
        while True:
            waited = asyncio.Event()
            later(child.loop, pause, waited.set)
            await child.sure(waited)
            if not await self._has_rest(child):  # usual: what was left was in its group, which had its signal
                return []
            number = signal.SIGKILL if is_expired() else None if was_asked else signal.SIGTERM
            was_asked = True
            if number == signal.SIGKILL:
                child.signal(number)
                ending = ending or time.monotonic() + KILL_PATIENCE
            members = await self._aside(partial(child.signal_session, number), child.sure)
            is_over = 0 < ending < time.monotonic()
            if not members or is_over:
                marks = child.output.marks | self._jobs.marks(child.number)
                names = await self._aside(partial(names_of, members, marks), child.sure)
                if names or not self._is_held(child):
                    return names
                if is_over:
                    return [UNSEEN]
                ending = min(ending or inf, time.monotonic() + UNSEEN_PATIENCE)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _aside(self, function: Callable[[], T], sure: Callable[[asyncio.Event], Awaitable[Any]]) -> T:
        """Call a slow function in the watcher's thread; its exception is raised here."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        answer: list[T] = []
        raised: list[Exception] = []
        release = hold(loop)

        def deliver() -> None:
            release()
            done.set()

        def job() -> None:
            try:
                answer.append(function())
            except Exception as error:  # noqa: BLE001 (raised again on the loop)
                raised.append(error)
            post_to_loop(loop, deliver)

        self._watcher.do(job)
        await sure(done)
        if raised:
            raise raised[0]
        return answer[0]
