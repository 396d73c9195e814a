"""Runs the commands that handlers return on Windows, each as a process in a job object of its own.

1. A command is a list of arguments, or a str for `cmd` where the task says `shell=True`; nothing else is ever run.
2. It has no input, and writes to files (output.py), never to a pipe.
3. A thread for each command waits for its end. When it ends, whatever it started is ended with it.
4. When the command is cancelled, it gets Ctrl-Break where it shares our console; after the grace period, and at once
   where there is no console, its job is ended. `run` returns when all of it is gone, and never before.
5. If this process dies, Windows ends all its jobs (job_objects.py).
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"

import asyncio
import os
import threading
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from runcue.errors import CommandFailed, quoted
from runcue.executors.command.arguments import bad_command, checked
from runcue.executors.command.launch import asked, environment, not_prepared, not_started, outcome, usable
from runcue.executors.command.output import LIMIT, Output, Watcher, stem
from runcue.executors.command.text import KEEP
from runcue.executors.job_objects import Jobs, Started
from runcue.host.loops import hold, later, post_to_loop
from runcue.ports import Clock, CommandOptions, Entering, Registered

BATCH: Final = (".bat", ".cmd")
END_PATIENCE: Final = 5.0
"""Seconds that `run` waits for processes of a job that has been ended."""
LOOK_EVERY: Final = 0.005


def command_line(command: object, options: CommandOptions) -> list[str] | str:
    """What to start; raises BadCommand when it is not a command, or none that can be passed on safely."""
    found = checked(command, options.shell)
    if isinstance(found, str):
        if "\n" in found.strip():
            raise bad_command(command, "has several lines", "cmd reads one: put the others into a file")
        return f'{os.environ.get("COMSPEC", "cmd.exe")} /d /s /c "{found.strip()}"'
    if found[0].lower().rstrip(" .").endswith(BATCH):
        raise bad_command(
            command,
            "names a batch file, which reads its arguments as a shell does",
            "give the task shell=True",
        )
    return found


class Child:
    """A command that was started, until it is over."""

    def __init__(self, number: int, started: Started, output: Output) -> None:
        self.number = number
        self.started = started
        self.output = output
        self.loop = asyncio.get_running_loop()
        self.exited = asyncio.Event()
        self.exit_code: int | None = None
        self.was_cancelled = False
        threading.Thread(target=self._wait, name=f"runcue-wait-{started.pid}", daemon=True).start()

    def _wait(self) -> None:
        code = self.started.wait()
        post_to_loop(self.loop, self._ended, code)

    def _ended(self, code: int) -> None:
        self.exit_code = code
        self.exited.set()

    async def sure(self, event: asyncio.Event) -> None:
        """Wait for an event that is certain to come; a cancellation meanwhile is only noted."""
        while not event.is_set():
            try:
                await event.wait()
            except asyncio.CancelledError:
                self.was_cancelled = True


class CommandExecutor:
    """Runs the commands that handlers return."""

    can_stop = True

    def __init__(
        self,
        clock: Clock,
        grace: float,
        folder: Path | None,
        jobs: Jobs,
        keep: int = KEEP,
        limit: int = LIMIT,
    ) -> None:
        self._clock = clock
        self.grace = grace
        self._folder = folder
        self._jobs = jobs
        self._keep = keep
        self._limit = max(limit, 2 * keep)
        self._watcher = Watcher(self._limit)
        self._numbers = count(1)

    async def run(self, work: Any, task: Registered, entered: Entering | None) -> Any:
        """Ask the handler for a command, run it, and return what it printed and its exit code."""
        command, options = await asked(work, task)
        line = command_line(command, options)
        if entered is not None:
            entered.check()
        child = self._start(work, options, line)
        release = hold(child.loop)
        try:
            result = await self._finish(child, entered)
        finally:
            release()
        return outcome(result, options)

    async def close(self) -> None:
        """End the thread; the next command starts it again."""
        self._watcher.close()
        self._jobs.close()

    def _start(self, work: Any, options: CommandOptions, line: list[str] | str) -> Child:
        number = next(self._numbers)
        output = self._output(work)
        name = [line if isinstance(line, str) else line[0]]
        started: Started | None = None
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            if options.cwd is not None and not Path(options.cwd).is_dir():
                raise CommandFailed(f"no such folder: cwd {quoted(options.cwd)}")
            streams = {"stdin": nothing, "stdout": output.out.writing, "stderr": output.err.writing}
            started = self._jobs.start(number, line, cwd=options.cwd, env=environment(options.env), **streams)
            output.hand_over()
            self._watcher.add(number, output)
            return Child(number, started, output)
        except BaseException as error:
            self._watcher.remove(number)
            if started is not None:
                started.close()
            self._jobs.release(number)
            output.settle(self._limit)
            output.close()
            cause = not_started(error, name, options.cwd)
            if cause is not error:
                raise cause from error
            raise
        finally:
            os.close(nothing)

    def _output(self, work: Any) -> Output:
        """Open the output files of a command that is about to start."""
        try:
            self._watcher.start()
            folder = usable(self._folder, self._watcher.complain)
            name, report = stem(work.id, work.attempt), partial(work.progress, None)
            return Output(folder, name, None, report, self._watcher.complain)
        except (OSError, RuntimeError) as error:
            raise not_prepared(error) from error

    async def _finish(self, child: Child, entered: Entering | None) -> dict[str, Any]:
        """Wait for the end of a command, or end it when cancelled; then end what it left, and read its output."""
        try:
            if entered is not None:
                entered(None)
            try:
                await child.exited.wait()
            except asyncio.CancelledError:
                child.was_cancelled = True
                await self._stop(child)
            await self._clear(child)
        finally:
            self._watcher.remove(child.number)
            child.started.close()  # ends what is left, also where the loop is closing
            self._jobs.release(child.number)
            try:
                result = child.output.result(self._keep, child.exit_code)
                child.output.settle(self._limit)
            finally:
                child.output.close()
        if child.was_cancelled:
            raise asyncio.CancelledError
        return result

    async def _stop(self, child: Child) -> None:
        """End a command: Ctrl-Break first, then its job."""
        child.started.ask_to_end()
        timer = later(child.loop, self.grace, child.started.job.end)
        await child.sure(child.exited)
        timer.cancel()

    async def _clear(self, child: Child) -> None:
        """End what a command left, and wait until it is gone."""
        until = time.monotonic() + END_PATIENCE
        child.started.job.end()
        while child.started.job.running and time.monotonic() < until:
            waited = asyncio.Event()
            later(child.loop, LOOK_EVERY, waited.set)
            await child.sure(waited)
