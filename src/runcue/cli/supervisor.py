"""Keeps a number of worker processes running, and stops them gracefully.

Rules:
- A worker that exits with 0, or by SIGTERM, was asked to exit, and is not replaced. One that dies is replaced after a
  pause, which grows while workers go on dying. When workers cannot even start, the supervisor gives up and says why.
- The first SIGINT or SIGTERM lets workers finish what they run, the second puts it back, the third kills them.
  SIGUSR1 and SIGHUP always mean the first, SIGUSR2 and SIGQUIT the second. Signals within ONE_SIGNAL seconds count as
  one, because `timeout` and others send each signal to the process and to its group.
- How processes are started and told to leave is said in posix.py, and for Windows in windows.py.
- The supervisor blocks only in `Requests.wait`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext

import msgspec

from runcue.cli import failure as codes
from runcue.cli.failure import Failure
from runcue.cli.lines import Lines
from runcue.cli.screen import clean, counted, listed, span
from runcue.cli.shutdown import Post
from runcue.cli.system import processes
from runcue.cli.worker import BEGAN, BROKEN, ENDED, NOTE, UP, Orders, Word

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 30.0
STEADY = 30.0
"""The death of a worker that lived this many seconds does not lengthen the pause."""
FALSE_STARTS = 5
PATIENT_STARTS = 10
"""How many starts in a row may fail before the supervisor gives up: at first, and once all workers had been up."""
ONE_SIGNAL = 0.3
"""Seconds within which signals count as one."""

HOPELESS = {codes.BAD_INPUT, codes.STORAGE, codes.CONFIGURATION, codes.CONFLICT}
"""Exit codes after which a first start is not repeated: a person has to mend what the worker said."""


class Seat:
    """The place of one worker: its process, its messages, and how often workers died here."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: processes.Launched | None = None
        self.heard = b""
        self.is_up = False
        self.started_at = 0.0
        self.jobs: list[str] = []
        self.reason = ""
        self.deaths = self.false_starts = 0
        self.again_at: float | None = None

    @property
    def is_left(self) -> bool:
        """True when no worker runs here and none will be started."""
        return self.process is None and self.again_at is None

    def start(self, orders: Orders) -> None:
        """Start a worker here."""
        orders = msgspec.structs.replace(orders, number=self.number)
        self.heard, self.is_up, self.reason = b"", False, ""
        self.jobs.clear()
        self.again_at = None
        self.started_at = time.monotonic()
        self.process = processes.Launched(orders, is_quiet=orders.app is None)

    def words(self) -> list[Word]:
        """The messages that the worker sent since the last call."""
        if self.process is not None:
            self.heard += self.process.hear()
        *lines, self.heard = self.heard.split(b"\n")
        return [msgspec.json.decode(line, type=Word) for line in lines]

    def tell(self, level: int) -> None:
        """Tell the worker to leave, if there is one."""
        if self.process is not None:
            self.process.tell(level)

    def bury(self) -> None:
        """Forget the worker, whose process has ended."""
        if self.process is not None:
            self.process.close()
            self.process = None


class Supervisor:
    """Runs `count` workers with the same orders until all have left."""

    def __init__(
        self,
        orders: Orders,
        count: int,
        lines: Lines,
        *,
        on_up: Callable[[], None] | None = None,
        post: Post | None = None,
    ) -> None:
        self._post = nullcontext() if post is None else post
        self._orders = orders
        self._seats = [Seat(number) for number in range(1, count + 1)]
        self._lines = lines
        self._on_up = on_up
        self._level = 0
        self._told_at = -ONE_SIGNAL
        self._was_up = False
        self._done = self._dead = 0
        self.code = 0
        self.reason = ""
        """Why the supervisor gave up."""

    def run(self) -> int:
        """Start the workers; returns the exit code when all have left."""
        with processes.Requests() as requests, self._post:
            for seat in self._seats:
                self._start(seat)
            while not all(seat.is_left for seat in self._seats):
                unwritten = self._lines.waiting()
                if self._lines.is_closed and not self._level:  # before we wait: there may be no further line
                    self.code = codes.CLOSED_PIPE
                    self._stop(processes.GRACEFUL)
                workers = [seat.process for seat in self._seats if seat.process is not None]
                requests.wait(workers, unwritten, self._patience())
                for level in requests.take():
                    self._heed(level)
                for seat in self._seats:
                    self._look_after(seat)
            self._conclude()
        self._lines.finish()
        return self.code

    def run_or_raise(self) -> int:
        """Start the workers; returns the exit code when all have left, or raises the reason for giving up."""
        code = self.run()
        if self.reason:
            raise Failure(self.reason, code)
        return code

    def _start(self, seat: Seat) -> None:
        try:
            seat.start(self._orders)
        except OSError as error:  # no processes, memory or descriptors left
            seat.reason = f"A worker cannot be started: {error.strerror or error}."
            self._after_death(seat, codes.BUSY, "failed")

    def _patience(self) -> float | None:
        due = [seat.again_at for seat in self._seats if seat.again_at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    # requests ---------------------------------------------------------------------------------------------

    def _heed(self, level: int) -> None:
        if level != processes.ONCE_MORE:
            self._stop(level)
            return
        now = time.monotonic()
        if now - self._told_at >= ONE_SIGNAL:
            self._told_at = now
            self._stop(min(self._level + 1, processes.KILL))

    def _stop(self, level: int) -> None:
        """Tell all workers to leave, unless they were told as urgently before."""
        if level <= self._level:
            return
        self._level = level
        if level >= processes.AT_ONCE:
            self.code = self.code or codes.INTERRUPTED
        for seat in self._seats:
            seat.again_at = None
            seat.tell(level)
        jobs = [job for seat in self._seats for job in seat.jobs]
        if self.reason:
            return  # run_or_raise will say it
        if level == processes.KILL:
            self._lines.note("Killing the workers; their jobs will run again.")
        elif level == processes.AT_ONCE:
            self._lines.note(
                "Stopping now; what runs is put back." + self._hint("Ctrl-C once more kills it.")
            )
        elif jobs:
            end = "has ended" if len(jobs) == 1 else "have ended"
            hint = self._hint("Ctrl-C again stops now and puts back what runs.")
            self._lines.note(f"Stopping when {listed(jobs)} {end}.{hint}", is_important=False)
        else:
            self._lines.note("Stopping.", is_important=False)

    def _hint(self, text: str) -> str:
        return f" {text}" if self._lines.is_terminal else ""

    # workers ----------------------------------------------------------------------------------------------

    def _look_after(self, seat: Seat) -> None:
        if seat.process is not None:
            code = seat.process.poll()
            for word in seat.words():
                self._hear(seat, word)
            if code is not None:
                seat.bury()
                self._lost(seat, code)
        elif seat.again_at is not None and time.monotonic() >= seat.again_at:
            self._start(seat)

    def _hear(self, seat: Seat, word: Word) -> None:
        if word.kind == UP:
            seat.is_up = True
            seat.false_starts = 0
            if not self._was_up and all(seat.is_up for seat in self._seats):
                self._all_up()
        elif word.kind == BROKEN:
            seat.reason = word.text
        elif word.kind == NOTE:
            self._lines.note(f"worker {seat.number}  {word.text}")
        elif word.job is not None:
            if word.kind == BEGAN:
                seat.jobs.append(word.job)
            elif word.kind == ENDED and word.job in seat.jobs:
                seat.jobs.remove(word.job)
                self._done += word.text.startswith("completed")
                self._dead += word.text.startswith("dead")
            self._lines.job(seat.number, clean(word.job), word.text)

    def _all_up(self) -> None:
        self._was_up = True
        what = counted(len(self._seats), "worker")
        where = f" on {', '.join(self._orders.queues)}" if self._orders.queues else ""
        if not self._level:
            pid = "" if self._lines.is_terminal else f" Supervisor: process {os.getpid()}."
            hint = self._hint("Ctrl-C lets them finish their jobs and leave.")
            self._lines.note(f"Started {what}{where}.{pid}{hint}", is_important=False)
        if self._on_up is not None:
            self._on_up()

    def _lost(self, seat: Seat, code: int) -> None:
        """Handle the end of a worker: report it, and have a dead one replaced."""
        if processes.was_asked(code):
            if not self._level:
                self._lines.note(f"worker {seat.number} was asked to exit, and exited.", is_important=False)
        elif self._level:
            was_meant = self._level > processes.GRACEFUL and processes.was_ended(code)
            if not was_meant and not self.reason:
                self.code = self.code or (code if code > 0 else codes.INTERNAL)
                self._lines.note(
                    f"worker {seat.number} {processes.ending(code)} instead of leaving{_because(seat)}"
                )
        else:
            self._after_death(seat, code, processes.ending(code))

    def _after_death(self, seat: Seat, code: int, ending: str) -> None:
        """Plan the start of a worker in place of a dead one, or give up."""
        if not seat.is_up:
            seat.false_starts += 1
            is_hopeless = code in HOPELESS and bool(seat.reason) and not self._was_up
            if is_hopeless or seat.false_starts >= (PATIENT_STARTS if self._was_up else FALSE_STARTS):
                self.code = code if code in {*HOPELESS, codes.BUSY} else codes.INTERNAL
                self.reason = seat.reason or f"Workers cannot start: the last one {ending}."
                self._stop(processes.GRACEFUL)
                return
        if self._orders.home is not None and not os.path.isdir(self._orders.home):  # noqa: PTH112 (text as it came)
            self.code = codes.STORAGE
            self.reason = f"The home is gone{_because(seat)}"
            self._stop(processes.GRACEFUL)
            return
        if time.monotonic() - seat.started_at >= STEADY:
            seat.deaths = 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**seat.deaths)
        seat.deaths += 1
        seat.again_at = time.monotonic() + pause
        at_work = f" while it ran {listed(seat.jobs)}" if seat.jobs else ""
        self._lines.note(
            f"worker {seat.number} {ending}{at_work}{_because(seat)} Another one starts in {span(pause)}."
        )

    def _conclude(self) -> None:
        if self._was_up and not self.reason:
            dead = f", {self._dead} dead" if self._dead else ""
            counts = f" {counted(self._done, 'job')} completed{dead}." if self._orders.app is None else ""
            self._lines.note(f"Stopped.{counts}", is_important=False)


def _because(seat: Seat) -> str:
    return f": {seat.reason.rstrip('.')}." if seat.reason else "."
