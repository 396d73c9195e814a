"""Workers on several machines share one queue, and its limits hold for all of them together.

    python examples/many_workers/demo.py              # two machines, played by this one
    python examples/many_workers/demo.py --machines 0 # submit only: the workers run where you started them

The queue is the one that $QUEUE names. Without it a file is used, which is the same but for one thing: its workers
have to be on one machine. In the middle of it all one worker is killed. At the end the calls themselves say when they
began and ended, and so whether the limits were kept.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import runcue

HERE = Path(__file__).resolve().parent
WORKS = 160
PATIENCE = 40.0


@contextmanager
def machine(name: str, folder: Path) -> Iterator[None]:
    """Two workers, which take those with another temporary directory for workers on another machine."""
    own = folder / name
    own.mkdir()
    environment = {**os.environ, "TMPDIR": str(own), "MACHINE": name}
    program = Path(sys.executable).with_name("runcue")  # as it is installed beside this Python
    command = [str(program), "worker", "app:cue", "--count", "2", "--quiet"]
    log = own / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, cwd=HERE, env=environment, stderr=output) as workers,
    ):
        try:
            yield
        except Exception:
            print(f"{name} says:\n{log.read_text()}")
            raise
        finally:
            workers.send_signal(signal.SIGTERM)  # finish what runs, and leave


def busiest(times: list[float], window: float) -> int:
    """The most starts in any window of that length."""
    times = sorted(times)
    return max(bisect_left(times, first + window) - i for i, first in enumerate(times))


def most_at_once(calls: list[dict[str, Any]]) -> int:
    """The most calls under way at any moment; who ends in the moment in which another begins is gone."""
    changes = sorted([(call["began"], 1) for call in calls] + [(call["ended"], -1) for call in calls])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


async def kill_one(cue: runcue.Cue, first: str) -> None:
    """Kill the worker that did the first work: by now it is in the middle of others."""
    process = (await cue.result(first, timeout=PATIENCE))["process"]
    os.kill(process, signal.SIGKILL)
    print(f"killed worker {process} in the middle of its calls")


async def main(machines: int, folder: Path) -> None:
    if "QUEUE" not in os.environ:
        os.environ["QUEUE"] = str(folder / "queue.db")
        print("QUEUE names no queue, so it is in a file: what follows are workers of one machine.")
        print("For more than one: QUEUE=postgresql://user@host/database")
    app = import_module("app")  # which opens the queue that QUEUE names
    cue: runcue.Cue = app.cue
    with ExitStack() as stack:
        ids = await cue.submit_many([{"task": "call", "params": {"number": n}} for n in range(WORKS)])
        print(f"submitted {len(ids)} calls")
        for number in range(machines):
            stack.enter_context(machine(f"machine-{number + 1}", folder))
        if machines:
            await kill_one(cue, ids[0])
        calls = [await cue.result(one, timeout=PATIENCE) for one in ids]
        await cue.close()
    places = {(call["machine"], call["process"]) for call in calls}
    names = sorted({name for name, _ in places})
    print(f"all {len(calls)} calls were made, by {len(places)} workers on {', '.join(names)}")
    began = [call["began"] for call in calls]
    print(f"busiest second: {busiest(began, 1.0)} starts, {app.RATE} are allowed")
    print(f"most at once: {most_at_once(calls)} calls, {app.CONCURRENT} are allowed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Workers on several machines, one queue, one set of limits.")
    parser.add_argument("--machines", type=int, default=2, help="how many to play here (default: 2)")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(main(given.machines, Path(directory)))
    except KeyboardInterrupt:
        sys.exit(130)
