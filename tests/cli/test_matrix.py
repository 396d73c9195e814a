"""CL10: every command on every kind of queue that cannot be used, or not in every way.

The commands run in processes of their own, from the program's entry point to their exit code. To run hundreds of them
they are forked from one process that has loaded everything already; one in each column is the executable itself.
What the interpreter does at its end, they do; only what they share with that process is not taken apart, because that
costs more than the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from runcue.cli.shutdown import standing
from tests.cli.conftest import Run
from tests.cli.crew import Crew, end, environment
from tests.cli.inside import Told
from tests.patience import has_open, until_sync

SERVER = """
import atexit, gc, json, os, pkgutil, signal, sys, threading
orders, answers = os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb", 0)
import asyncio, difflib, tempfile
from importlib import import_module
from runcue import cli
from runcue.api import cue, reader
from runcue.cli import main
from runcue.stores.sqlite import file, store
for module in pkgutil.walk_packages(cli.__path__, "runcue.cli."):
    if not module.name.endswith(("__main__", "windows")):
        import_module(module.name)
gc.freeze()
for line in orders:
    batch, codes, running = json.loads(line), {}, {}
    while batch or running:
        if batch and len(running) < 8:
            order = batch.pop(0)
            pid = os.fork()
            if pid == 0:
                signal.alarm(240)
                os.environ["QUEUECTL_HOME"] = order["home"]
                if order["patience"]:
                    file.OPENING = file.PATIENCE = store.PATIENCE = order["patience"]
                for number, name in enumerate(order["streams"]):
                    opened = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
                    os.dup2(opened, number)
                    os.close(opened)
                sys.argv = [order["program"], *order["args"]]
                code = 1
                try:
                    getattr(main, order["program"])()
                except SystemExit as ended:
                    code = ended.code
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                for thread in threading.enumerate():
                    if thread is not threading.main_thread() and not thread.daemon:
                        thread.join()
                atexit._run_exitfuncs()
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(code)
            running[pid] = order["number"]
        else:
            pid, status = os.wait()
            if pid in running:
                codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
    answers.write(json.dumps(codes).encode() + b"\\n")
"""


class Quick:
    """Runs commands in processes that need not load anything any more."""

    def __init__(self, folder: Path, prefix: Sequence[str] = (), *, program: str = "queuectl") -> None:
        self._folder = folder
        self._program = program
        theirs, orders = os.pipe()
        answers, ours = os.pipe()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", SERVER, str(theirs), str(ours)],
            pass_fds=(theirs, ours),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment(folder),
        )
        os.close(theirs)
        os.close(ours)
        self._orders, self._answers = os.fdopen(orders, "wb", 0), os.fdopen(answers, "rb")

    def all(
        self, commands: Sequence[tuple[Path, Sequence[str]]], *, patience: float = 0, piped: bytes = b""
    ) -> list[Told]:
        """Run each of these commands on its home, a few at a time; `patience` with locks in seconds."""
        orders: list[dict[str, Any]] = []
        for number, (home, args) in enumerate(commands):
            streams = [self._folder / f"{number}.{name}" for name in ("in", "out", "err")]
            for stream, data in zip(streams, (piped, b"", b""), strict=True):
                stream.write_bytes(data)
            orders.append(
                {
                    "number": number,
                    "program": self._program,
                    "home": str(home),
                    "args": list(args),
                    "streams": [str(stream) for stream in streams],
                    "patience": patience,
                }
            )
        self._orders.write(json.dumps(orders).encode() + b"\n")
        answer = self._answers.readline()
        assert answer, "the process that the commands are forked from has ended: see what it said on stderr"
        codes = json.loads(answer)
        return [
            Told(codes[str(number)], *(Path(name).read_text("utf-8") for name in order["streams"][1:]))
            for number, order in enumerate(orders)
        ]

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._process.wait(240)
        self._answers.close()


# the commands ---------------------------------------------------------------------------------------------

READING = [
    "status", "status --json", "list", "list --json", "show done", "why limited", "logs done", "wait done",
    "dlq list", "worker stop", "worker list", "service list", "schedule list", "config get timeout", "config list",
    "doctor", "doctor --json",
]  # fmt: skip
CHANGING = [
    "cancel later", "dlq retry dead1", "dlq retry --all", "dlq purge --all --yes", "pause default",
    "resume default",
]  # fmt: skip
MAKING = [
    "enqueue -- true", "enqueue -", "service set api --rate 5/s", "schedule add tick --every 1h -- true",
    "config set timeout 5",
]  # fmt: skip
STARTING = ["worker start", "worker start --detach"]
SCREENS = ["top", "dashboard --no-browser --port 0"]
ALL = [*READING, *CHANGING, *MAKING, *STARTING, *SCREENS]
RECOVER = "doctor --recover --yes"
SOME = ["status", "list --json", "show done", "dlq retry --all", "enqueue -- true", "doctor", "worker stop"]
ONE_JOB = ["show done", "why limited", "logs done", "wait done"]
MAY_APPEAR = {"worker.log", "supervisors", "queue.db-wal", "queue.db-shm"}
"""What workers said and where they would have stood, and the log that SQLite makes before it finds damage."""


def complaint(told: Told, code: int) -> str:
    """What is wrong with how a command ended; nothing if it ended as it should."""
    if told.code != code:
        return f"exit code {told.code} instead of {code}"
    if "Traceback" in told.out + told.err:
        return "a traceback"
    if told.err.count("\n") > 1 or (told.err and not told.err.endswith("\n")):
        return "not one line"
    if not told.err.removesuffix("\n").isprintable():
        return "control characters"
    if code and not told.err and not told.out:
        return "said nothing"
    return ""


def picture(home: Path) -> dict[str, str]:
    """Everything in a home: names, and what is in the files."""
    found = {}
    for path in sorted(home.rglob("*")) if home.is_dir() else ():
        is_plain = path.is_file()
        found[str(path.relative_to(home))] = (
            hashlib.sha256(path.read_bytes()).hexdigest() if is_plain else "-"
        )
    return found


def leave_nobody(home: Path) -> None:
    """End the supervisors that stand on a home where none should have come up; their workers leave with them."""
    for supervisor in standing(home) if os.access(home, os.R_OK | os.X_OK) and home.is_dir() else ():
        end(supervisor.pid)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quick]:
    made = Quick(tmp_path_factory.mktemp("quick"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quick]:
    """The same for somebody whom permissions bind: root without the right to ignore them."""
    prefix: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root ignores permissions, and there is no setpriv to take that right away")
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    made = Quick(tmp_path_factory.mktemp("limited"), prefix)
    yield made
    made.close()


@pytest.fixture(scope="module")
def settled(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The queue with a job in every state, all of it in its file."""
    return settled_copy(stock, tmp_path_factory.mktemp("settled") / "home")


def settled_copy(home: Path, copy: Path) -> Path:
    """A copy of that folder in which all of the queue is in its file, and nothing in a log beside it."""
    shutil.copytree(home, copy)
    connection = apsw.Connection(str(copy / "queue.db"))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return copy


def go_through(
    quick: Quick, homes: dict[str, Path], codes: dict[str, int], *, patience: float = 0
) -> list[str]:
    """Run these commands, each on its home: those that did not end with their code, and how they ended."""
    try:
        told = quick.all(
            [(homes[command], command.split()) for command in codes],
            patience=patience,
            piped=b'{"command": "true"}\n',
        )
    finally:
        for home in set(homes.values()):
            leave_nobody(home)
    return [
        f"{command}: {found}: {said}"
        for (command, code), said in zip(codes.items(), told, strict=True)
        if (found := complaint(said, code))
    ]


# files that cannot be used --------------------------------------------------------------------------------


def garbled_header(file: Path) -> None:
    file.write_bytes(b"\xa5" * 100 + file.read_bytes()[100:])


def half_a_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:50])


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: 2 * 4096])


def text(file: Path) -> None:
    file.write_bytes(b"Dear diary, this is no database.\n" * 300)


def newer(file: Path) -> None:
    connection = apsw.Connection(str(file))
    [(version,)] = connection.execute("PRAGMA user_version")
    connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def of_another_application(file: Path) -> None:
    file.unlink()
    connection = apsw.Connection(str(file))
    connection.execute("CREATE TABLE jobs (id); INSERT INTO jobs VALUES (1)")
    connection.close()
    file.chmod(0o600)


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def a_link_to_nowhere(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.parent / "nowhere" / "queue.db")


UNUSABLE: list[tuple[Callable[[Path], None], int, list[str]]] = [
    (garbled_header, 3, ALL),
    (half_a_header, 3, [*SOME, RECOVER]),
    (cut_off, 3, SOME),
    (text, 3, [*SOME, RECOVER]),
    (newer, 4, [*ALL, RECOVER]),
    (of_another_application, 3, [*ALL, RECOVER]),
    (a_directory, 4, [*ALL, RECOVER]),
    (a_fifo, 4, [*ALL, RECOVER]),
    (a_link_to_nowhere, 3, SOME),
]


@pytest.mark.parametrize(
    ("spoil", "code", "commands"), UNUSABLE, ids=[spoil.__name__ for spoil, _, _ in UNUSABLE]
)
def test_a_file_that_cannot_be_used_is_told_by_every_command_and_left_alone(
    spoil: Callable[[Path], None],
    code: int,
    commands: list[str],
    quick: Quick,
    settled: Path,
    queuectl: Run,
    home: Path,
) -> None:
    shutil.copytree(settled, home)
    spoil(home / "queue.db")
    before = picture(home)
    assert not go_through(quick, dict.fromkeys(commands, home), dict.fromkeys(commands, code))
    said = queuectl("list")
    assert not complaint(Told(said.returncode, said.stdout, said.stderr), code), said
    after = picture(home)
    assert after.keys() - before.keys() <= MAY_APPEAR
    assert {name: after[name] for name in before} == before


# queues that can be used in part --------------------------------------------------------------------------


DAMAGE = b"\xa5" * 4096


def own_homes(settled: Path, folder: Path, commands: Sequence[str]) -> dict[str, Path]:
    """A home for each command."""
    homes = {command: folder / f"home-{number}" for number, command in enumerate(commands)}
    for home in homes.values():
        shutil.copytree(settled, home)
    return homes


def test_a_damaged_page_is_told_by_whoever_meets_it(quick: Quick, settled: Path, tmp_path: Path) -> None:
    """Who does not need what was on it may go on. Whoever cannot says so in one line; looking changes nothing."""
    commands = [*READING, *CHANGING, *MAKING]
    size = (settled / "queue.db").stat().st_size
    failed = 0
    for page in (1, size // 4096 // 2):
        homes = own_homes(settled, tmp_path / str(page), commands)
        for home in homes.values():
            with (home / "queue.db").open("r+b") as file:
                file.seek(page * 4096)
                file.write(DAMAGE)
        before = picture(homes["status"])
        told = quick.all(
            [(homes[command], command.split()) for command in commands], piped=b'{"command": "true"}'
        )
        for command, said in zip(commands, told, strict=True):
            assert not complaint(said, 3 if said.code else 0), (command, said)
            failed += said.code == 3
            if command in READING:
                assert picture(homes[command]) == before, command
            elif said.code:
                data = (homes[command] / "queue.db").read_bytes()
                assert data[page * 4096 : (page + 1) * 4096] == DAMAGE, command
    assert failed, "no command met a damaged page"


def test_without_a_queue_looking_makes_nothing_and_adding_makes_one(quick: Quick, tmp_path: Path) -> None:
    codes = dict.fromkeys(READING, 0) | dict.fromkeys(MAKING, 0)
    codes |= dict.fromkeys(
        [*ONE_JOB, "cancel later", "dlq retry dead1", "pause default", "resume default"], 6
    )
    codes |= {"dlq retry --all": 0, "dlq purge --all --yes": 0, RECOVER: 6}
    homes = {command: tmp_path / f"home-{number}" for number, command in enumerate(codes)}
    assert not go_through(quick, homes, codes)
    assert {command for command, home in homes.items() if home.exists()} == set(MAKING)


def test_an_empty_file_is_a_queue_that_is_yet_to_be_made(quick: Quick, tmp_path: Path) -> None:
    """Somebody may be making it right now: looking finds nothing, in whatever words, and adding just works."""
    commands = [*READING, *MAKING]
    homes = {command: tmp_path / f"home-{number}" for number, command in enumerate(commands)}
    for home in homes.values():
        home.mkdir(mode=0o700)
        (home / "queue.db").touch(0o600)
    told = quick.all(
        [(homes[command], command.split()) for command in commands], piped=b'{"command": "true"}'
    )
    for command, said in zip(commands, told, strict=True):
        may = {0} if command in MAKING else {0, 6}
        assert said.code in may, (command, said)
        assert not complaint(said, said.code), (command, said)
        assert bool((homes[command] / "queue.db").stat().st_size) is (command in MAKING), command


@pytest.mark.parametrize("has_file", [False, True], ids=["missing", "empty"])
def test_workers_start_where_no_queue_is_yet(has_file: bool, home: Path) -> None:
    if has_file:
        home.mkdir(mode=0o700)
        (home / "queue.db").touch(0o600)
    with Crew(home) as crew:
        supervisor = crew.start()
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0


@pytest.mark.parametrize(
    ("file_mode", "home_mode"), [(0o400, 0o700), (0o600, 0o500), (0o400, 0o500)], ids=["file", "home", "both"]
)
def test_what_may_only_be_read_is_read_and_not_changed(
    file_mode: int, home_mode: int, limited: Quick, settled: Path, home: Path
) -> None:
    shutil.copytree(settled, home)
    before = picture(home)
    (home / "queue.db").chmod(file_mode)
    home.chmod(home_mode)
    codes = dict.fromkeys(READING, 0) | dict.fromkeys([*CHANGING, *MAKING, *STARTING], 3)
    if (file_mode, home_mode) == (0o400, 0o500):
        codes = {command: codes[command] for command in SOME}
    try:
        assert not go_through(limited, dict.fromkeys(codes, home), codes)
    finally:
        home.chmod(0o700)
    after = picture(home)
    assert after["queue.db"] == before["queue.db"]
    assert after.keys() - before.keys() <= MAY_APPEAR


def test_what_may_not_even_be_looked_at_is_told(limited: Quick, settled: Path, home: Path) -> None:
    shutil.copytree(settled, home)
    (home / "queue.db").chmod(0o000)
    unreadable = go_through(limited, dict.fromkeys(SOME, home), dict.fromkeys(SOME, 3))
    home.chmod(0o000)
    closed = go_through(limited, dict.fromkeys(ALL, home), dict.fromkeys(ALL, 4))
    home.chmod(0o700)
    assert not unreadable
    assert not closed


# locked by another program --------------------------------------------------------------------------------


@contextmanager
def locked(home: Path, *, even_for_readers: bool) -> Iterator[None]:
    """Somebody has the file open in another program, and does not let go of it."""
    connection = apsw.Connection(str(home / "queue.db"))
    try:
        if even_for_readers:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        connection.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        connection.close()


@pytest.mark.parametrize("even_for_readers", [False, True], ids=["for writers", "for all"])
def test_a_locked_queue_is_busy(even_for_readers: bool, quick: Quick, settled: Path, home: Path) -> None:
    shutil.copytree(settled, home)
    codes = dict.fromkeys(READING, 5 if even_for_readers else 0) | dict.fromkeys([*CHANGING, *MAKING], 5)
    before = picture(home)["queue.db"]
    with locked(home, even_for_readers=even_for_readers):
        assert not go_through(quick, dict.fromkeys(codes, home), codes, patience=0.2)
    assert picture(home)["queue.db"] == before


def test_a_lock_that_is_let_go_of_in_time_is_waited_for(settled: Path, home: Path) -> None:
    shutil.copytree(settled, home)
    with Crew(home) as crew:
        holding = locked(home, even_for_readers=False)
        holding.__enter__()
        with crew.begun("enqueue", "--id", "patient", "--", "true") as adding:
            until_sync(lambda: has_open(adding.pid, home / "queue.db"), "to open the queue")
            holding.__exit__(None, None, None)
            assert adding.communicate(timeout=240) == ("Enqueued patient\n", "")
