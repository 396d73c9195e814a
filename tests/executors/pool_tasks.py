"""Functions that the tests of the process pool have called in worker processes, and a program that owns a pool.

Everything here is at the top of a module, because workers find functions by name.
"""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import runcue
from runcue import Work

SEEN_HERE: list[str] = []
"""What the process of the tests puts in here must not be seen in a worker."""

SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]


def echo(work: Work) -> dict[str, Any]:
    """What a function is given."""
    kind = type(work)
    return {"params": work.params, "attempt": work.attempt, "id": work.id, "is_work": issubclass(kind, Work)}


@dataclass
class Page:
    """What a typed handler takes and returns."""

    number: int
    read_at: datetime


def turned(page: Page, times: int = 1, **rest: int) -> Page:
    """The page after a page that came as a page."""
    if type(page) is not Page:
        raise TypeError(page)
    return Page(page.number + times + sum(rest.values()), page.read_at)


def turned_with_work(page: Page, *, work: Work) -> tuple[str, str, Page]:
    """The id of the unit, as it is handed in and as it is found, and the page."""
    return work.id, runcue.current().id, page


def the_work(work: Work) -> Work:
    """The work itself, back again."""
    return work


def whoami(work: Work) -> int:
    """The process that this is called in."""
    return os.getpid()


def parents(work: Work) -> tuple[int, int, list[str]]:
    """This process, its parent, and what it inherited."""
    return os.getpid(), os.getppid(), SEEN_HERE


def say(work: Work) -> None:
    """Write to where the owner writes."""
    sys.stdout.write(work.params["text"])


def wait_for_file(work: Work) -> int:
    """Say where this runs, and return when a file is there."""
    note(work.params["here"], os.getpid())
    while not Path(work.params["until"]).exists():
        threading.Event().wait(0.005)
    return os.getpid()


def note(path: str, *pids: int) -> None:
    """Put process numbers into a file, at once."""
    draft = Path(f"{path}.draft")
    draft.write_text(" ".join(map(str, pids)))
    draft.replace(path)


def hang(work: Work) -> None:
    """Never return; `pids` gets the number of this process."""
    note(work.params["pids"], os.getpid())
    while True:
        signal.pause()


def miss_the_signal(work: Work) -> None:
    """Be in a system call that began just after SIGTERM came, as far as can be told from outside."""
    note(work.params["pids"], os.getpid())
    heard = signal.getsignal(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCONT])
    signal.sigwait([signal.SIGTERM])
    signal.sigwait([signal.SIGCONT])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCONT])
    signal.pause()
    assert callable(heard)
    heard(signal.SIGTERM, None)


def hang_in_c(work: Work) -> None:
    """Never return from native code, which no signal handler of Python interrupts."""
    note(work.params["pids"], os.getpid())
    ctypes.PyDLL(None).usleep(60_000_000)  # holds the interpreter lock, too


def hang_with_children(work: Work) -> None:
    """Never return, with a child in the same group and one in a group of its own."""
    first = subprocess.Popen(SLEEPER)
    second = subprocess.Popen(SLEEPER, process_group=0)
    note(work.params["pids"], os.getpid(), first.pid, second.pid)
    while True:
        signal.pause()


def daemon() -> int:
    """A child that has a session of its own and keeps everything open."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        while True:
            signal.pause()
    while os.getsid(pid) != pid:
        threading.Event().wait(0.001)
    return pid


def hang_with_daemons(work: Work) -> None:
    """Never return, with two children that have sessions of their own: this program, and another."""
    other = subprocess.Popen(SLEEPER, start_new_session=True, close_fds=False)
    note(work.params["pids"], os.getpid(), daemon(), other.pid)
    while True:
        signal.pause()


def hang_beside_a_daemon(work: Work) -> None:
    """Never return, with a child that has a child and only then becomes a daemon."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        child = subprocess.Popen(SLEEPER, process_group=0)
        os.setsid()
        os.write(writing, str(child.pid).encode())
        while True:
            signal.pause()
    note(work.params["pids"], os.getpid(), pid, int(os.read(reading, 20)))
    while True:
        signal.pause()


def leave_a_child(work: Work) -> list[int]:
    """Return, and leave a child behind."""
    return [os.getpid(), subprocess.Popen(SLEEPER).pid]


def leave_a_daemon(work: Work) -> list[int]:
    """Return, and leave a child behind that has a session of its own."""
    return [os.getpid(), daemon()]


def ignore_the_end(work: Work) -> None:
    """Never return, and do not heed SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(work)


def stop_itself(work: Work) -> None:
    """Stop this process as Ctrl-Z would."""
    note(work.params["pids"], os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    hang(work)


def note_overlap(work: Work) -> None:
    """Note which other attempt is still there, and never return."""
    folder = Path(work.params["folder"])
    pids = [int(file.read_text()) for file in folder.glob("pid-*") if not file.suffix]
    others = " ".join(str(pid) for pid in pids if Path(f"/proc/{pid}").exists())
    (folder / f"attempt-{work.attempt}").write_text(others or "nobody")
    note(str(folder / f"pid-{work.attempt}"), os.getpid())
    while True:
        signal.pause()


def clean_up(work: Work) -> None:
    """Never return, but leave everything tidy."""
    try:
        hang(work)
    finally:
        Path(work.params["tidy"]).touch()


def terminated_by_others(work: Work) -> str:
    """Get a SIGTERM that the owner knows nothing of."""
    os.kill(os.getpid(), signal.SIGTERM)
    return "still here"


def die(work: Work) -> None:
    """End this process in one of many ways."""
    match work.params["way"]:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            ctypes.string_at(0)
        case "abort":
            os.abort()


class NotForPickle(Exception):
    """Can be pickled, and cannot be made again from that."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class HttpError(Exception):
    """Like those of HTTP libraries: with a response that has a lock in it."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers, lock=threading.Lock())


class BadText(Exception):
    """Has nothing to say, and says so by raising."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Teapot(Exception):
    """An error with attributes, which can be pickled."""

    status_code = 418
    retry_after = 7.5


def fail(work: Work) -> None:
    """Raise one of many exceptions."""
    kind = work.params["kind"]
    if kind == "local":

        class Local(LookupError):
            """Cannot be found by its name."""

        class Code(int):
            """A number that cannot be pickled."""

        class Name(str):
            """A text that cannot be pickled, and stays one."""

            __slots__ = ()

            def __str__(self) -> str:
                return self

        error = Local("local one")
        error.status_code, error.headers = Code(404), {Name("Server"): Name("mock")}  # type: ignore[attr-defined]
        raise error
    raise {
        "plain": ValueError("bad value"),
        "two": NotForPickle("one", "two"),
        "http": HttpError(429, {"Retry-After": "12"}),
        "text": BadText(),
        "long": ValueError("x" * 10_000_000),
        "teapot": Teapot("short and stout"),
        "exit": SystemExit(4),
        "interrupt": KeyboardInterrupt(),
        "generator": GeneratorExit(),
        "stop": StopIteration(5),
        "cancelled": asyncio.CancelledError(),
        "group": ExceptionGroup("both", [ValueError("one"), TypeError("two")]),
    }[kind]


def fail_with_a_cause(work: Work) -> None:
    """Raise because of something."""
    try:
        fail(Work(id="", task="", params={"kind": "plain"}))
    except ValueError as error:
        raise RuntimeError("no luck") from error


class Unreadable:
    """Can be pickled here, and not be read anywhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class Exiting:
    """Ends a program that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


def give(work: Work) -> Any:
    """Return something that does not travel, or much of something that does."""
    match work.params["what"]:
        case "lock":
            return threading.Lock()
        case "unreadable":
            return Unreadable()
        case "exiting":
            return Exiting()
        case "coroutine":
            return asyncio.sleep(0)
        case "much":
            return b"x" * 5_000_000
        case _:
            return None


def progress(work: Work) -> None:
    """Say how far it is."""
    work.progress(0.5, "half of it")


def odd_progress(work: Work) -> str:
    """Say how far it is with what cannot be sent, or not be read."""

    class Half(float):
        """A number that cannot be pickled."""

    work.progress(Half(0.5), NotForPickle("one", "two"))  # type: ignore[arg-type]
    return "done"


def spoil(work: Work) -> int:
    """Change everything that a process has only one of."""
    os.chdir("/")
    os.umask(0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
    os.kill(os.getpid(), signal.SIGUSR2)  # would end the process, were it not blocked
    match work.params["way"]:
        case "descriptors":
            os.closerange(0, 3)
        case "streams":
            for stream in (sys.stdin, sys.stdout, sys.stderr):
                stream.close()
        case "replaced":
            sys.stdin = sys.stdout = sys.stderr = io.StringIO("mine")
    work.params["more"] = 1
    return os.getpid()


def surroundings(work: Work) -> dict[str, Any]:
    """What a function finds."""
    umask = os.umask(0o022)
    os.umask(umask)
    return {
        "folder": str(Path.cwd()),
        "umask": umask,
        "params": work.params,
        "pid": os.getpid(),
        "input": sys.stdin.read(),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGALRM)],
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, []),
    }


def fork_and_return(work: Work) -> int:
    """Both the process and its child come back from here."""
    os.fork()
    return os.getpid()


def partly(amount: int, work: Work) -> int:
    """Something for a partial."""
    return amount + int(work.params["more"])


PARTIAL = partial(partly, 40)


class Counter:
    """Something with methods."""

    def __init__(self, start: int) -> None:
        self.start = start

    def up(self, work: Work) -> int:
        """A method of something that can be pickled."""
        return self.start + 1

    @staticmethod
    def alone(work: Work) -> str:
        """A function in a class."""
        return "alone"

    def __call__(self, work: Work) -> int:
        return self.start


class Locked(Counter):
    """Something with methods that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(0)
        self.lock = threading.Lock()


def twice(function: Any) -> Any:
    """A decorator that does not hide what it wraps, as functools.wraps would."""

    def wrapper(work: Work) -> Any:
        return function(work), function(work)

    wrapper.__qualname__ = wrapper.__name__ = function.__name__
    return wrapper


def hidden(work: Work) -> None:
    """What stands at this name is something else."""


HIDDEN = hidden
hidden = twice(hidden)


# ------------------------------------------------------------------------------- a program that owns a pool


async def own(folder: Path, functions: Iterable[str], has_jobs: bool, forks: bool) -> None:
    """Have functions called that never return, and wait to be killed."""
    from runcue.executors.process.executor import ProcessExecutor
    from runcue.executors.process.keeper_link import KeeperLink
    from runcue.executors.process_locks import Jobs
    from tests.executors.fakes import FakeTask, RealClock
    from tests.patience import until

    pool = ProcessExecutor(
        RealClock(), 2, 30.0, partial(KeeperLink, Jobs(folder / "jobs" if has_jobs else None))
    )
    files = [folder / name for name in functions]
    calls = []
    for file in files:
        work = Work(id=file.name, task="any", params={"pids": str(file)})
        calls.append(asyncio.create_task(pool.run(work, FakeTask(globals()[file.name]), None)))
    await until(lambda: all(file.exists() for file in files))
    if forks and os.fork() == 0:
        note(str(folder / "forked"), os.getpid())
        while True:
            signal.pause()
    (folder / "ready").touch()
    await asyncio.gather(*calls)


if __name__ == "__main__":
    asyncio.run(own(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3] == "jobs", sys.argv[3] == "fork"))
