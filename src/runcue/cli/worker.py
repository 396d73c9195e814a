"""One worker process: runs a Cue, of a home or of an application, until it is asked to exit.

Rules:
- A supervisor starts it with `Orders` as its only argument. To the *voice* it writes messages, one JSON line each;
  the *lifeline* shows when the supervisor dies. posix.py says what they are, and for Windows windows.py.
- Asked to leave (SIGTERM, SIGINT), or at the end of the lifeline: finish what runs, then exit with 0; repeating it
  changes nothing. Asked to leave at once (SIGQUIT): put back what runs, without counting an attempt, and exit with 0.
- Secrets in errors are masked as `***`, because others may read the supervisor's log.
- The worker never waits for a reader of its voice: a message for which the pipe has no room is lost.
- A job whose result could not be stored is reported, and the exit code is 3: it will run again.
- Broken storage, and any other error, is reported in one line, and the exit code is that of other commands.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import msgspec

from runcue.cli.failure import STORAGE, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import logging

    from runcue import Cue, Work
    from runcue.cli.home import Home
    from runcue.cli.settings import Settings

UP = "up"
BEGAN = "began"
ENDED = "ended"
NOTE = "note"
BROKEN = "broken"

MOST_WORKERS = 64
"""How many workers one supervisor runs."""
MOST_JOBS = 64
"""How many jobs one worker runs at a time."""
LONGEST = 600
"""Characters of a text that are sent: a message must fit through a pipe in one piece."""


class Orders(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker process is to run: the queue of `home`, or the Cue that `app` names."""

    number: int = 1
    voice: int = -1
    lifeline: int = -1
    home: str | None = None
    insecure: bool = False
    jobs: int = 1
    """How many jobs of the home it runs at a time."""
    app: str | None = None
    queues: list[str] | None = None


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a worker; `kind` is up, began, ended, note or broken."""

    kind: str
    text: str = ""
    job: str | None = None


class Voice:
    """Sends messages to the supervisor, and never waits for it."""

    def __init__(self, descriptor: int) -> None:
        from runcue.cli.system import processes

        self._descriptor = processes.open_voice(descriptor)
        self._unheard = processes.UNHEARD

    def tell(self, kind: str, text: str = "", job: str | None = None) -> None:
        """Send one message; it is dropped when the supervisor does not read."""
        text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
        line = msgspec.json.encode(Word(kind, text, job)) + b"\n"
        try:
            os.write(self._descriptor, line)
        except self._unheard:
            return  # the supervisor is gone, or reads too slowly


def main() -> None:
    """Run a worker; the supervisor's orders are the first argument."""
    from runcue.cli.system import processes

    processes.begin()
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    sys.exit(work(orders, Voice(orders.voice)))


def work(orders: Orders, voice: Voice) -> int:
    """Run jobs until asked to exit; returns the exit code."""
    from runcue import mask
    from runcue.cli.main import ALSO_DEBUG, DEBUG, failure_of
    from runcue.cli.screen import clean

    try:
        import asyncio

        cue, teller = _cue(orders, voice)
        asyncio.run(_serve(cue, orders, voice, teller))
    except Exception as error:  # noqa: BLE001 (every error is reported in one line)
        if os.environ.get(DEBUG) or os.environ.get(ALSO_DEBUG):
            import traceback

            traceback.print_exception(error)
        failure = failure_of(error, "queuectl" if orders.app is None else "runcue")
        voice.tell(BROKEN, clean(mask(failure.text)))
        return failure.code
    return 0


def _cue(orders: Orders, voice: Voice) -> tuple[Cue, _Teller | None]:
    if orders.app is not None:
        from runcue.cli.application import load

        cue = load(orders.app)
        _listen(voice, is_app=True)
        return cue, None
    from runcue.cli.home import Home
    from runcue.cli.jobs import open_cue

    home = Home(orders.home, insecure=orders.insecure)
    cue = open_cue(home, _settings(home), max_running=orders.jobs)
    _listen(voice, is_app=False)
    return cue, _Teller(cue, voice)


def _settings(home: Home) -> Settings:
    """The stored settings; defaults for a file that cannot be read, as the Cue that opens it next says why."""
    from runcue import StorageBusy, StoreError
    from runcue.cli.failure import is_old
    from runcue.cli.place import migrated
    from runcue.cli.settings import Settings, settings_of

    try:
        return settings_of(home)
    except StorageBusy:
        raise
    except StoreError as error:
        if not is_old(error):
            return Settings()
    with migrated(home) as reader:
        return Settings.of(reader.config())


# running --------------------------------------------------------------------------------------------------


async def _serve(cue: Cue, orders: Orders, voice: Voice, teller: _Teller | None) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    leave, now = asyncio.Event(), asyncio.Event()
    from runcue.cli.system import processes

    processes.heed(loop, orders.lifeline, leave.set, partial(_both, leave, now))
    doubt = asyncio.Event()
    _watch_for_errors(loop, doubt)

    cue.start(orders.queues)
    await cue.services()  # when this returns, the worker is registered in the queue
    voice.tell(UP)
    await _until_told(cue, leave, doubt)
    graceful = loop.create_task(cue.stop())
    at_once = loop.create_task(now.wait())
    await asyncio.wait({graceful, at_once}, return_when=asyncio.FIRST_COMPLETED)
    at_once.cancel()
    if not graceful.done():
        await cue.stop(timeout=0)
    await graceful
    await cue.close()
    if teller is not None:
        teller.conclude(was_graceful=not now.is_set())


async def _until_told(cue: Cue, leave: asyncio.Event, doubt: asyncio.Event) -> None:
    """Wait until asked to exit; raises the error after which the Cue takes no more turns."""
    import asyncio

    from runcue import ForkedConnection, SchemaTooNew, StorageReplaced, StoreError

    while not leave.is_set():
        waits = [asyncio.ensure_future(leave.wait()), asyncio.ensure_future(doubt.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if doubt.is_set():
            doubt.clear()
            try:
                await cue.count()
            except (StorageReplaced, SchemaTooNew, ForkedConnection):
                raise
            except StoreError:
                continue  # a full disk or a lock passes, and runcue logs it


def _both(leave: asyncio.Event, now: asyncio.Event) -> None:
    now.set()
    leave.set()


# messages -------------------------------------------------------------------------------------------------


class _Teller:
    """Reports what becomes of the jobs that this worker runs."""

    def __init__(self, cue: Cue, voice: Voice) -> None:
        self._voice = voice
        self._running: dict[str, int] = {}
        """The jobs whose start was reported and whose end was not, with their attempts."""
        cue.on_start(self.began)
        cue.on_complete(self.completed)
        cue.on_failure(self.failed)
        cue.on_cancel(self.cancelled)

    def began(self, work: Work) -> None:
        """Report the start of a job."""
        if self._running.get(work.id) == work.attempt:
            return  # runcue reports a start again when it had to be granted anew
        self._running[work.id] = work.attempt
        again = f", attempt {work.attempt}" if work.attempt > 1 else ""
        self._voice.tell(BEGAN, f"started{again}", work.id)

    def completed(self, work: Work, result: object, duration: float) -> None:
        """Report a job that completed."""
        from runcue.cli.screen import span

        self._ended(work, f"completed in {span(duration)}")

    def failed(self, work: Work, error: BaseException, will_retry: bool) -> None:
        """Report a failed attempt."""
        import time

        from runcue import mask
        from runcue.cli.screen import clean, span

        reason = clean(mask(str(error)).partition("\n")[0][:200]) or type(error).__name__
        if not will_retry:
            self._ended(work, f"dead: {reason}")
            return
        pause = max(0.0, (work.next_retry_at or 0.0) - time.time())
        most = "" if work.retry is None else f"/{work.retry.max_attempts}"
        self._ended(work, f"failed: {reason}; retry {work.failures + 1}{most} in {span(pause)}")

    def cancelled(self, work: Work) -> None:
        """Report a job that was cancelled."""
        self._ended(work, "cancelled")

    def conclude(self, *, was_graceful: bool) -> None:
        """Report jobs that were put back, or whose result could not be stored before a graceful stop."""
        left = sorted(self._running)
        what = "ended, but its result could not be kept" if was_graceful else "put back"
        for job in left:
            self._voice.tell(ENDED, f"{what}: it will run again", job)
        if left and was_graceful:
            raise Failure(f"What became of {', '.join(left)} could not be kept.", STORAGE)

    def _ended(self, work: Work, text: str) -> None:
        self._running.pop(work.id, None)
        self._voice.tell(ENDED, text, work.id)


def _listen(voice: Voice, *, is_app: bool) -> None:
    """Send what runcue logs to the supervisor: on a home, or for an application that set up no logging of its own."""
    import logging

    from runcue import mask
    from runcue.cli.screen import clean

    logger = logging.getLogger("runcue")

    class Passing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            event = getattr(record, "runcue", {}).get("event", "")
            if is_app or not event.startswith("work_"):  # jobs are told of in their own words
                voice.tell(NOTE, clean(mask(record.getMessage())))

    if not is_app:
        logger.propagate = False
        logger.addHandler(Passing(logging.WARNING))
    elif not logger.hasHandlers():
        logger.addHandler(Passing(logging.INFO))
        logger.setLevel(logging.INFO)


def _watch_for_errors(loop: asyncio.AbstractEventLoop, doubt: asyncio.Event) -> None:
    """Set `doubt` whenever runcue or the loop logs an error, so that `_until_told` checks the queue."""
    import logging

    class Doubting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            loop.call_soon_threadsafe(doubt.set)

    for name in ("runcue", "asyncio"):
        logging.getLogger(name).addHandler(Doubting(logging.ERROR))


if __name__ == "__main__":
    main()
