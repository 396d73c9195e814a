"""The place of one worker under a supervisor: starting it, hearing it, telling it, burying it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import msgspec

from runcue.cli.worker import Orders, Word


class Seat:
    """The place of one worker: its process, what it said, and what became of those before it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.voice = self.lifeline = -1
        self.heard = b""
        self.is_up = False
        self.started_at = 0.0
        self.jobs: list[str] = []
        self.reason = ""
        self.deaths = self.false_starts = 0
        self.again_at: float | None = None

    @property
    def is_left(self) -> bool:
        """True when nobody sits here and nobody will."""
        return self.process is None and self.again_at is None

    def start(self, orders: Orders) -> None:
        """Start a worker here."""
        voice, theirs = os.pipe()
        lifeline, self.lifeline = os.pipe()
        orders = msgspec.structs.replace(orders, number=self.number, voice=theirs, lifeline=lifeline)
        self.voice, self.heard, self.is_up, self.reason = voice, b"", False, ""
        self.jobs.clear()
        self.again_at = None
        self.started_at = time.monotonic()
        os.set_blocking(voice, False)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runcue.cli.worker", msgspec.json.encode(orders).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if orders.app is None else None,
                pass_fds=(theirs, lifeline),
                start_new_session=True,
            )
        except OSError:
            self._close()
            raise
        finally:
            os.close(theirs)
            os.close(lifeline)

    def words(self) -> list[Word]:
        """What the worker has said since the last time."""
        while self.voice != -1:
            try:
                data = os.read(self.voice, 65536)
            except BlockingIOError:
                break
            if not data:
                os.close(self.voice)
                self.voice = -1
                break
            self.heard += data
        *lines, self.heard = self.heard.split(b"\n")
        return [msgspec.json.decode(line, type=Word) for line in lines]

    def tell(self, number: signal.Signals) -> None:
        """Send the worker a signal, if there is one."""
        if self.process is not None:
            self.process.send_signal(number)

    def bury(self) -> None:
        """The worker is gone."""
        self.process = None
        self._close()

    def _close(self) -> None:
        for descriptor in (self.voice, self.lifeline):
            if descriptor != -1:
                os.close(descriptor)
        self.voice = self.lifeline = -1
