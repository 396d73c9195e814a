"""Timed: 1,000 × `true`, four at once, by queuectl and by other queues of shell commands.

queuectl gets its jobs as JSON lines and runs them in four worker processes, and in *one worker* with four jobs at a
time. *Whole* is from the call of `enqueue` to the end of the last job; *run* from the call of `worker start`, which
has to start Python five times, or twice; *steady* from the first start of a job to the last end. The times of ends
are those that the queue itself has kept.

The floor is four Python processes that do nothing but start `true` and wait for it. xargs and GNU parallel keep no
jobs; task-spooler and pueue have a daemon and take one call for each job, in a loop of sh, while it runs others: they
are timed from the first call to the last end.

Figures are how many times as fast as the other queuectl is in *run*: 2 means half the time. The processor's time is
that of the processes of a queue and of their jobs, as far as they were waited for.

Only what is there is measured. `python -m bench.peers --install` brings what is missing into `.cache/peers`: Debian's
packages by apt-get, pueue by cargo.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.measure import Line
from bench.peers import debian
from runcue import Reader, WorkState

AT_ONCE = 4
PATIENCE = 300.0
PEERS = Path(__file__).resolve().parent.parent / ".cache" / "peers"
PACKAGES = {"tsp": "task-spooler", "parallel": "parallel"}
QUEUECTL = (sys.executable, "-m", "runcue.cli")
LOOP = "n=0; while [ $n -lt {count} ]; do {call} >/dev/null || exit 1; n=$((n + 1)); done"

Times = dict[str, float]
FOUR, ONE = "four workers", "one worker"
SHAPES = {FOUR: ("--count", str(AT_ONCE)), ONE: ("--jobs", str(AT_ONCE))}
"""How queuectl runs four at once."""


def found(name: str) -> str | None:
    """Where a program is, on the path or among what was brought here."""
    here = os.pathsep.join([str(PEERS / "usr" / "bin"), str(PEERS / "bin"), os.environ.get("PATH", "")])
    return shutil.which(name, path=here)


def until(is_so: Callable[[], bool], what: str, pause: float = 0.02) -> None:
    """Wait for something."""
    deadline = perf_counter() + PATIENCE
    while not is_so():
        if perf_counter() > deadline:
            raise RuntimeError(f"{what} did not happen within {PATIENCE:g} s")
        time.sleep(pause)


@contextmanager
def running(arguments: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to end, and made to if it does not."""
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


# --- The floor, and those that keep nothing -------------------------------------------------------


def _spawn(count: int) -> None:
    for _ in range(count):
        _, status = os.waitpid(os.posix_spawnp("true", ["true"], os.environ), 0)
        if status:
            raise RuntimeError(f"true ended with {status}")


def _call(count: int) -> None:
    for _ in range(count):
        subprocess.run(["true"], check=True)


def by_processes(count: int, work: Callable[[int], None]) -> float:
    """Seconds for so many by four processes that do nothing else."""
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=work, args=(count // AT_ONCE,)) for _ in range(AT_ONCE)]
    began = perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = perf_counter() - began
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("a bare loop of processes failed")
    return took


def by_lines(count: int, arguments: list[str]) -> float:
    """Seconds for so many by a program that takes its jobs as lines and ends with the last."""
    with TemporaryDirectory() as home:
        lines = "\n".join(map(str, range(count)))
        began = perf_counter()
        subprocess.run(
            arguments,
            input=lines,
            text=True,
            check=True,
            env={**os.environ, "HOME": home},
            capture_output=True,
        )
        return perf_counter() - began


# --- Those that have a daemon ---------------------------------------------------------------------


def by_task_spooler(count: int, program: str) -> float:
    """Seconds for so many by task-spooler."""
    with TemporaryDirectory() as home:
        place = str(Path(home, "socket"))
        environment = {**os.environ, "TS_SOCKET": place, "TS_MAXFINISHED": str(2 * count), "TMPDIR": home}

        def ask(*arguments: str) -> str:
            done = subprocess.run(
                [program, *arguments], env=environment, capture_output=True, text=True, check=True
            )
            return done.stdout

        ask("-S", str(AT_ONCE))  # this starts the daemon
        daemon = _owner(place)
        try:
            began = perf_counter()
            call = LOOP.format(count=count, call=f"'{program}' -n true")
            subprocess.run(["sh", "-c", call], env=environment, check=True)
            until(lambda: ask().count(" finished ") == count, "the end of task-spooler's jobs", 0.005)
            return perf_counter() - began
        finally:
            os.kill(daemon, signal.SIGTERM)


def _owner(place: str) -> int:
    """The process that listens there."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(place)
        data = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", data)[0])


def by_pueue(count: int, program: str, daemon: str) -> float:
    """Seconds for so many by pueue."""
    with TemporaryDirectory() as home:
        settings = Path(home, "pueue.yml")
        settings.write_text(
            f"shared:\n  pueue_directory: {home}\n  runtime_directory: {home}\n  use_unix_socket: true\n"
            f"  unix_socket_path: {home}/socket\nclient: {{}}\ndaemon: {{}}\n"
        )
        call = [program, "--config", str(settings)]
        with running([daemon, "--config", str(settings)], {**os.environ, "HOME": home}):
            until(lambda: subprocess.run([*call, "status"], capture_output=True, check=False).returncode == 0,
                  "the start of pueue's daemon")  # fmt: skip
            subprocess.run([*call, "parallel", str(AT_ONCE)], check=True, capture_output=True)
            began = perf_counter()
            loop = LOOP.format(count=count, call=f"'{program}' --config '{settings}' add true")
            subprocess.run(["sh", "-c", loop], check=True)
            subprocess.run([*call, "wait", "--quiet"], check=True, capture_output=True)
            return perf_counter() - began


# --- queuectl -------------------------------------------------------------------------------------


def by_queuectl(count: int, shape: str) -> Times:
    """Seconds for so many by queuectl: whole, run and steady; and of the processor."""
    with TemporaryDirectory() as directory:
        home = Path(directory, "home")
        jobs = Path(directory, "jobs.jsonl")
        jobs.write_text('{"command": "true"}\n' * count)
        environment = {**os.environ, "QUEUECTL_HOME": str(home)}
        before = used()
        began = time.time()
        subprocess.run(
            [*QUEUECTL, "enqueue", "--file", str(jobs)], env=environment, check=True, capture_output=True
        )
        enqueued = time.time()
        start = [*QUEUECTL, "worker", "start", *SHAPES[shape], "--quiet"]
        with running(start, environment) as workers, Reader(home / "queue.db") as reader:

            def is_done() -> bool:
                if workers.poll() is not None:
                    raise RuntimeError(f"the workers of queuectl ended with {workers.returncode}")
                return sum(reader.count()[state] for state in WorkState if state.is_final) >= count

            until(is_done, "the end of queuectl's jobs", 0.05)
            units = reader.list("completed", limit=count)
        if len(units) != count:
            raise RuntimeError(f"only {len(units)} of {count} jobs of queuectl completed")
        last = max(work.completed_at or 0.0 for work in units)
        first = min(work.started_at or last for work in units)
    return {
        "whole": last - began,
        "enqueue": enqueued - began,
        "run": last - enqueued,
        "steady": last - first,
        "processor": used() - before,
    }


# --- All of them ----------------------------------------------------------------------------------


def contenders(count: int) -> dict[str, Callable[[], float]]:
    """Who is measured besides queuectl: as many as there are here."""
    some: dict[str, Callable[[], float]] = {
        "the floor (posix_spawn)": lambda: by_processes(count, _spawn),
        "four loops of subprocess.run": lambda: by_processes(count, _call),
    }
    if xargs := found("xargs"):
        some["xargs -P4"] = lambda: by_lines(count, [xargs, f"-P{AT_ONCE}", "-I{}", "true"])
    if parallel := found("parallel"):
        some["GNU parallel -j4"] = lambda: by_lines(count, [parallel, "--will-cite", f"-j{AT_ONCE}", "true"])
    if spooler := found("tsp"):
        some["task-spooler -S 4"] = lambda: by_task_spooler(count, spooler)
    if (client := found("pueue")) and (daemon := found("pueued")):
        some["pueue, parallel 4"] = lambda: by_pueue(count, client, daemon)
    return some


def missing() -> list[str]:
    """Who could be measured if it were here."""
    return [name for name in ("xargs", *PACKAGES, "pueue") if found(name) is None]


GOALS = {"xargs -P4": 0.6, "task-spooler -S 4": 1.0, "pueue, parallel 4": 1.0}
"""How many times as fast as these queuectl is to be."""
FLOOR = "the floor (posix_spawn)"


def used() -> float:
    """Seconds of the processor of all children that have ended, and of theirs."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def measure(quick: bool) -> list[Line]:
    """How many times as fast as others queuectl is."""
    count, rounds = (20, 1) if quick else (1000, 3)
    others = contenders(count)
    ours: dict[str, list[Times]] = {shape: [] for shape in SHAPES}
    theirs: dict[str, list[float]] = {name: [] for name in others}
    floor: list[float] = []
    for _ in range(rounds):
        for shape, times in ours.items():
            times.append(by_queuectl(count, shape))
        for name, contender in others.items():
            before = used()
            theirs[name].append(contender())
            if name == FLOOR:
                floor.append(used() - before)
    lines = [
        line
        for shape, times in ours.items()
        for line in _lines(shape, {name: min(one[name] for one in times) for name in times[0]}, theirs, count)
    ]
    lines += [
        Line(f"{name}, jobs a second", count / min(times), "/s", is_detail=True)
        for name, times in theirs.items()
    ]
    lines.append(Line("the floor, processor for each job", 1e3 * min(floor) / count, "ms", is_detail=True))
    if absent := missing():
        lines.append(Line("not measured, because not here", len(absent), "", note=", ".join(absent)))
    return lines


def _lines(shape: str, best: Times, theirs: dict[str, list[float]], count: int) -> list[Line]:
    """One shape of queuectl against the others."""
    # The names without a shape are those of four workers: figures that pages show already.
    prefix = "" if shape == FOUR else f"{shape}, "
    lines = []
    for name, times in theirs.items():
        other = min(times)
        note = f"the other {count / other:,.0f}/s; whole {other / best['whole']:.2f} ×"
        value = other / best["run"]
        lines.append(
            Line(f"{prefix}run, to {name}", value, "×", at_least=GOALS.get(name), more=True, note=note)
        )
    steady = f"steady {count / best['steady']:,.0f}/s"
    whole = f"enqueue {best['enqueue']:.2f} s, run {best['run']:.2f} s"
    return [
        *lines,
        Line(f"{prefix}jobs a second, run", count / best["run"], "/s", note=steady),
        Line(f"{prefix}processor for each job", 1e3 * best["processor"] / count, "ms"),
        Line(f"{prefix}whole", best["whole"], "s", note=whole),
    ]


def install() -> None:
    """Bring what is missing into `.cache/peers`, and nothing anywhere else; what cannot be had is said."""
    for name in missing():
        if name in PACKAGES:
            debian.fetch(PEERS, [PACKAGES[name]], name)
        elif name == "pueue" and shutil.which("cargo"):
            build = ["cargo", "install", "--quiet", "--locked", "--root", str(PEERS), "pueue"]
            done = subprocess.run(build, check=False, stderr=subprocess.DEVNULL)
            if done.returncode:
                print(f"There is no pueue: cargo ended with {done.returncode}.", file=sys.stderr)
        else:
            print(f"There is no {name}, and nothing to fetch it with.", file=sys.stderr)


def main() -> None:
    """Measure alone, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.shell_queues", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument(
        "--install", action="store_true", help="bring what is missing into .cache/peers before"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that everything runs")
    arguments = parser.parse_args()
    if arguments.install:
        install()
    for line in measure(arguments.quick):
        print(f"{line.name:36} {line.value:9,.2f} {line.unit:3} {line.note}".rstrip())


if __name__ == "__main__":
    main()
