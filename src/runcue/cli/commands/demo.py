"""`queuectl demo`: runs a few jobs in a temporary home, with real workers, and says what happened."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from runcue.cli.failure import CLOSED_PIPE, INTERNAL, INTERRUPTED, TIMED_OUT, Failure
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.jobs import Job, ask, options_of
from runcue.cli.screen import clean, say, styled
from runcue.cli.system import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue, Reader
    from runcue.cli.jobs import Job
    from runcue.cli.settings import Settings

PATIENCE = 60.0
"""Seconds that a demo may take; it usually takes three to five."""
BACKOFF = 0.8
RATE = "2/s"


@verb("demo", examples=["queuectl demo"])
def command() -> None:
    """See jobs run, wait, fail and be retried, in a few seconds; nothing is left behind."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="queuectl-demo-") as folder:
        home = Home(str(Path(folder) / "home"))
        say("A queue in a temporary home, for a few seconds. These commands are what you would type:")
        say()
        _enqueue(home)
        _show("worker start --count 2")
        with _workers(home) as workers:
            _until_all_ended(home, workers)
        say()
        with home.reader() as reader:
            _summarize(reader)
    your_turn("queuectl", ("enqueue -- echo hello", "worker start", "status"))


def your_turn(program: str, commands: Iterable[str]) -> None:
    """Say at the end of a demo which commands to try next."""
    say()
    say("Your turn:")
    for one in commands:
        say(f"  {program} {one}")


def too_long() -> Failure:
    """The end of a demo that takes too long."""
    return Failure(f"The demo has not ended within {PATIENCE:g} s: is the machine busy?", TIMED_OUT)


def _show(command: str) -> None:
    say(styled(f"$ queuectl {command}", bold=True))


def _enqueue(home: Home) -> None:
    jobs = [
        Job(id="hello", command="echo hello"),
        Job(id="build", command=processes.PAUSE.format(0.6)),
        Job(id="test", command=processes.PAUSE.format(0.2), after=["build"]),
        Job(id="broken", command=processes.FAIL.format("no such host"), max_retries=2),
        *(Job(id=f"call-{number}", command=processes.NOTHING, uses=["api"]) for number in (1, 2, 3)),
    ]

    async def submit(cue: Cue, settings: Settings) -> None:
        cue.service("api", rate=RATE)
        await cue.services()
        await cue.set_config({"backoff_base": str(BACKOFF)})
        await cue.submit_many(options_of(job, settings) for job in jobs)

    _show(f"service set api --rate {RATE}")
    for job in jobs:
        after = "".join(f" --after {name}" for name in job.after)
        uses = "".join(f" --uses {name}" for name in job.uses)
        most = "" if job.max_retries is None else f" --max-retries {job.max_retries}"
        _show(f"enqueue --id {job.id}{after}{uses}{most} --command {quote(job.command)}")
    ask(home, submit, may_create=True)


@contextmanager
def _workers(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """Run two workers on that home, and stop them at the end, also after an error."""
    queuectl = (sys.executable, "-P", "-m", "runcue.cli", "--home", str(home.path))
    with _errors(home).open("wb") as errors:
        process = subprocess.Popen(
            [*queuectl, "worker", "start", "--count", "2"], stdin=subprocess.DEVNULL, stderr=errors
        )
    level = processes.AT_ONCE
    try:
        yield process
        level = processes.GRACEFUL
    finally:
        processes.tell_supervisor(process.pid, level, lambda: process.poll() is None)
        process.wait()


def _until_all_ended(home: Home, workers: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    with home.reader() as reader:
        while any(not work.state.is_final for work in reader.list()):
            if (code := workers.poll()) is not None:
                raise _ended(code, home)
            if time.monotonic() > until:
                raise too_long()
            time.sleep(0.05)


def _errors(home: Home) -> Path:
    """The file that takes the workers' stderr, read only when they end too early."""
    return home.path.parent / "errors.txt"


def _ended(code: int, home: Home) -> Exception:
    """Why the workers ended before the demo did."""
    if code in {CLOSED_PIPE, processes.CLOSED_OUTPUT}:
        return BrokenPipeError("the output of the workers is not read")
    if code == 0:
        return Failure("The workers were stopped before the demo was over.", INTERRUPTED)
    lines = _errors(home).read_text("utf-8", "replace").splitlines()
    reasons = [line.removeprefix("queuectl: ") for line in lines if line.startswith("queuectl: ")]
    why = f": {reasons[-1]}" if reasons else "."
    whole = f"The supervisor of the demo's workers {processes.ending(code)}{why}"
    return Failure(whole, code if code > 0 else INTERNAL)


def _summarize(reader: Reader) -> None:
    works = {work.id: work for work in reader.list()}
    completed = sum(work.state == "completed" for work in works.values())
    broken = works["broken"]
    calls = sorted(work.started_at or 0.0 for work in works.values() if work.id.startswith("call-"))
    say(f"{completed} jobs completed. build ended before test began, because test depends on it.")
    say(f"The third call started {calls[-1] - calls[0]:.1f} s after the first: api allows {RATE}.")
    reason = clean(str(broken.error or "")).partition(": ")[2]
    say(
        f"broken was tried {broken.attempt} times ({reason}) and is in the dead letter queue. In a queue of your "
        "own, `queuectl dlq list` shows it, and `queuectl dlq retry broken` tries again what was mended."
    )
