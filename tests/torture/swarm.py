"""Rounds: a fresh file, some workers and submitters, and a nemesis that kills, stops and starts them by seed.

After the killing one fresh worker drains the queue and writes down how everything stands; the checker compares that
with the histories. A round that broke a promise keeps its folder. Nothing here waits for a time that should be
enough: the only waits are for messages of the zygote, until a moment drawn by lot or a generous bound.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random
from typing import IO, Any, Final, Protocol, Self

import apsw
import msgspec
import msgspec.structs

from tests.torture import history, spawner
from tests.torture.actors import DUMP, LIMITS, LONGEST_BREAK, Dump, Job, Role
from tests.torture.checker import EventDraft, Grant, Storage, Violation, check, recoveries
from tests.torture.history import Log, now
from tests.torture.seen import Seen
from tests.torture.spawner import ERRORS, KILL, TERM

HELD_TO: Final = msgspec.structs.replace(LIMITS, recovery=inf) if sys.platform == "win32" else LIMITS
"""What a round is held to. On Windows recoveries are told and not judged: to start a process takes seconds there, in
which it counts as able to work, and how much of the machine it was given is not known."""
SLOWER: Final = 40 if sys.platform == "win32" else 1
"""How much longer a round takes where it takes that much longer to start a process."""
STOP, CONT = 19, 18
"""The numbers of SIGSTOP and SIGCONT, which not every system has."""
ROOT: Final = Path(__file__).resolve().parents[2]
CRASHPOINTS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": ("turn.begin", "turn.decided", "turn.written", "turn.unsynced", "turn.committed", "acted"),
    "submitter": ("post.begin", "post.written", "post.committed"),
}
"""Where the store can be told to kill its process; a submitter starts nothing, so it has nothing to act on."""
MOST_DRAINS: Final = 100
MOST_BROKEN: Final = 10
"""A round in which so many actors failed by themselves is over."""
BOUND: Final = 150.0
"""Seconds within which any process does what it is asked for; far more than it takes."""


class Plan(msgspec.Struct, frozen=True):
    """What happens in one round."""

    seed: int
    workers: int = 3
    submitters: int = 2
    kills: int = 60
    seconds: float = 3.0
    """How long the killing takes, about."""
    at_most: float = BOUND
    """Seconds after which it is over in any case."""
    longest_break: float = LONGEST_BREAK
    works: int = 0
    """How many must have been accepted before it ends; a slow machine takes longer for that."""
    calls: int = 1_000_000
    crash_at: str = ""
    """A crash point at which the first processes of `crash_role` kill themselves."""
    crash_role: Role = "worker"
    crash_times: int = 1
    """How many of them, one after the other."""

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        """A round of its own shape for each seed: few processes or many, calm or not."""
        random = Random(f"plan {seed}")
        workers, submitters = random.choice(((2, 1), (3, 2), (3, 2), (4, 3), (8, 2)))
        return cls(seed, workers, submitters, kills=60, seconds=random.choice((2.0, 3.0, 5.0)) * SLOWER)


class Result(msgspec.Struct):
    """What one round came to."""

    seed: int
    violations: list[Violation] = []
    kills: int = 0
    works: int = 0
    starts: int = 0
    recovered: list[float] = []
    errors: dict[str, int] = {}
    """Errors that callers got, by what they say first."""
    events: int = 0
    grants: int = 0
    folder: str = ""


class Herd:
    """The processes of one run, through their zygote."""

    def __init__(self) -> None:
        self._output = b""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process is not None
        self._stdin.close()
        self._process.wait(BOUND)
        self._stdout.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout

    def fork(self, job: Job) -> None:
        """Have a process do that job."""
        self._order({"do": "fork", "job": msgspec.to_builtins(job)})

    def signal(self, actor: str, number: int) -> None:
        """Send a signal, unless that process is gone."""
        self._order({"do": "signal", "actor": actor, "number": number})

    def messages(self, until: float) -> Iterator[dict[str, Any]]:
        """What the zygote says, until that moment."""
        while True:
            *texts, self._output = self._output.split(b"\n")
            yield from map(_with_end, map(msgspec.json.decode, texts))
            left = until - now()
            if left <= 0 or not select.select([self._stdout], [], [], left)[0]:
                return
            data = os.read(self._stdout.fileno(), 65536)
            if not data:
                raise RuntimeError("the zygote ended")
            self._output += data

    def _order(self, order: dict[str, Any]) -> None:
        self._stdin.write(msgspec.json.encode(order) + b"\n")
        self._stdin.flush()


def _with_end(message: dict[str, Any]) -> dict[str, Any]:
    """A message of the zygote, that of a death with how it came."""
    if message["is"] == "dead":
        status = message["status"]
        if os.WIFSIGNALED(status):
            # SIGTERM kills who got it before it could listen to it.
            message["how"] = {KILL: "killed", TERM: "told"}.get(
                os.WTERMSIG(status), f"signal {os.WTERMSIG(status)}"
            )
        else:
            message["how"] = "clean" if os.WEXITSTATUS(status) == 0 else f"exit code {os.WEXITSTATUS(status)}"
    return message


def herd() -> Herd | spawner.Herd:
    """The processes of a run, as this system can have them."""
    return spawner.Herd() if sys.platform == "win32" else Herd()


class Site(Protocol):
    """Where the queue of a round is."""

    target: str
    """What a Cue is given."""

    def inspected(self) -> tuple[list[Grant], Storage]:
        """What the storage says of itself, when nobody has it open any more."""
        ...


class FileSite:
    """A file in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._file = folder / "queue.db"
        self.target = str(self._file)

    def inspected(self) -> tuple[list[Grant], Storage]:
        """What the file says of itself, read without changing it."""
        return inspected(self._file)


class Round:
    """One round as it happens."""

    expected: tuple[str, ...] = ()
    """How errors begin that callers may get, since their storage is made to fail."""
    away: str = ""
    """What the error says that a newcomer ends with when its storage is made to go away."""

    def __init__(self, herd: Herd | spawner.Herd, folder: Path, plan: Plan, site: Site | None = None) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.herd = herd
        self.folder = folder
        self.histories = folder / "history"
        self.histories.mkdir(mode=0o700)
        self.site: Site = site or FileSite(folder / "db")
        self.log = Log(self.histories, "nemesis")
        self.living: dict[str, Role] = {}
        self.stopped: dict[str, float] = {}
        """Who is stopped, and until when."""
        self.due: list[tuple[float, Role]] = []
        """Who is to take a dead one's place, and when."""
        self.crashes_left = plan.crash_times if plan.crash_at else 0
        self.kills = 0
        self.number = 0
        self.broken: list[str] = []

    def run(self) -> Result:
        """Kill for a while, drain, check."""
        plan = self.plan
        for _ in range(plan.workers):
            self._fork("worker")
        for _ in range(plan.submitters):
            self._fork("submitter")
        try:
            if plan.kills:
                self._torture()
                self._until_accepted()
            else:
                self._until_submitted()
            self._end_all()
            self._drain()
        finally:
            self._kill_all()
            self.log.close()
        return self._judge()

    # acts -------------------------------------------------------------------------------------------------

    def _fork(self, role: Role) -> None:
        self.number += 1
        crash_at = ""
        if self.crashes_left and role == self.plan.crash_role:
            self.crashes_left -= 1
            crash_at = self.plan.crash_at
        actor = f"{role}-{self.number}"
        self.living[actor] = role
        job = Job(
            role,
            actor,
            str(self.histories),
            self.site.target,
            self.plan.seed,
            self.plan.calls,
            crash_at,
            longest_break=self.plan.longest_break,
        )
        self.herd.fork(job)

    def _torture(self) -> None:
        end = now() + self.plan.at_most
        pace = self.plan.seconds / self.plan.kills
        while self.kills < self.plan.kills and now() < end and len(self.broken) < MOST_BROKEN:
            self._listen(now() + self.random.expovariate(1 / pace))
            self._replace()
            for actor in [name for name, until in self.stopped.items() if until <= now()]:
                self._go_on(actor)
            self._strike()

    def _replace(self) -> None:
        """Fork whoever is due to take a dead one's place."""
        t = now()
        ready = [role for due_at, role in self.due if due_at <= t]
        self.due = [item for item in self.due if item[0] > t]
        for role in ready:
            self._fork(role)

    def _strike(self) -> None:
        """One act of the nemesis, by lot; a stopped process may be killed as it stands."""
        if not self.living:
            return
        actor = self.random.choice(list(self.living))
        lot = self.random.random()
        if lot < 0.75:
            self.herd.signal(actor, KILL)
        elif lot < 0.85 and actor not in self.stopped and sys.platform != "win32":
            self.stopped[actor] = now() + self.random.uniform(0.01, 0.4)
            self.log.write("info", "stop", target=actor)
            self.herd.signal(actor, STOP)
        elif lot < 0.95:
            self.herd.signal(actor, TERM)
        elif len(self.living) < 2 * (self.plan.workers + self.plan.submitters):
            self._fork("worker")

    def _go_on(self, actor: str) -> None:
        del self.stopped[actor]
        self.herd.signal(actor, CONT)

    def _until_accepted(self) -> None:
        """Wait, without killing, until enough was accepted."""
        bound = now() + BOUND
        while self.plan.works > self._accepted() and now() < bound and len(self.broken) < MOST_BROKEN:
            for actor in list(self.stopped):
                self._go_on(actor)
            self._listen(now() + 0.05)
            self._replace()

    def _accepted(self) -> int:
        lines = history.read(self.histories)
        submits = [line.data["ids"] for line in lines if line.kind == "ok" and line.op == "submit"]
        return len(set().union(*submits))

    def _until_submitted(self) -> None:
        """Wait until submitters ended by themselves, and the crash point was passed; who dies before is replaced."""
        bound = now() + BOUND
        while (
            now() < bound
            and len(self.broken) < MOST_BROKEN
            and (self.due or "submitter" in self.living.values() or (self.plan.crash_at and not self.kills))
        ):
            self._listen(now() + 0.02)
            self._replace()

    def _end_all(self) -> None:
        """Ask everybody to end; who does not is killed and told as broken."""
        self.due.clear()
        for actor in list(self.stopped):
            self._go_on(actor)
        for actor in self.living:
            self.herd.signal(actor, TERM)
        self._wait_for_all()

    def _drain(self) -> None:
        """One process after the other, for there is work that kills whoever runs it."""
        broken = len(self.broken)
        for _ in range(MOST_DRAINS):
            self._fork("drain")
            self._wait_for_all()
            if (self.histories / DUMP).exists() or len(self.broken) > broken:
                return

    def _wait_for_all(self) -> None:
        bound = now() + BOUND
        while self.living and now() < bound:
            self._listen(min(bound, now() + 0.5), is_ending=True)
        self.broken += [f"{actor} did not end within {BOUND:g} s" for actor in self.living]

    def _kill_all(self) -> None:
        for actor in self.living:
            self.herd.signal(actor, KILL)
        bound = now() + BOUND
        while self.living and now() < bound:
            self._listen(now() + 0.1, is_ending=True)

    # hearing ----------------------------------------------------------------------------------------------

    def _listen(self, until: float, *, is_ending: bool = False) -> None:
        for message in self.herd.messages(until):
            actor = message["actor"]
            if message["is"] == "dead" and actor in self.living:
                self._died(message, is_ending)
                if is_ending and not self.living:
                    return
            elif message["is"] == "signalled" and message["number"] == CONT:
                self.log.write("info", "go", target=actor, t=message["t"])
            elif message["is"] == "share":
                told = {name: message[name] for name in ("t", "since", "share", "spent")}
                self.log.write("info", "share", **told)

    def _died(self, message: dict[str, Any], is_ending: bool) -> None:
        actor, how, t = message["actor"], message["how"], message["t"]
        role = self.living.pop(actor)
        self.stopped.pop(actor, None)
        is_clean = how == "clean"
        self.log.write("info", "death", t=t, target=actor, after=message["after"], clean=is_clean)
        if how == "killed":
            self.kills += 1
        elif not is_clean and how != "told" and not self._found_nothing_to_open(actor):
            self.broken.append(f"{actor} ended with {how}: {self._last_words(actor)}")
        if is_ending or (is_clean and not self.plan.kills):
            return
        delay = self.random.choice((0.0, 0.0, 0.1, 0.3)) if self.plan.kills else 0.0
        self.due.append((t + delay, role))

    def _found_nothing_to_open(self, actor: str) -> bool:
        """True when the storage is made to go away, and was away when that process came to open the queue."""
        return bool(self.away) and self.away in self._last_words(actor)

    def _last_words(self, actor: str) -> str:
        file = self.histories / ERRORS
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        _, _, after = text.rpartition(f"{actor}: Traceback")
        lines = after.strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"

    # judging ----------------------------------------------------------------------------------------------

    def _judge(self) -> Result:
        lines = history.read(self.histories)
        result = Result(self.plan.seed, kills=self.kills, folder=str(self.folder))
        result.violations += [Violation("actor", text) for text in self.broken]
        errors = Counter(
            str(line.data["error"]) for line in lines if line.kind == "info" and "error" in line.data
        )
        result.errors = dict(Counter({text.partition("(")[0]: n for text, n in errors.items()}))
        result.violations += [
            Violation("actor", f"{n} × {text[:300]}")
            for text, n in errors.items()
            if not text.startswith(self.expected)
        ]
        file = self.histories / DUMP
        if not file.exists():
            result.violations.append(Violation("actor", "the queue was not drained: there is no dump"))
            return result
        dump = msgspec.json.decode(file.read_bytes(), type=Dump)
        events = [EventDraft(*event) for event in dump.events]
        if dump.rows and not dump.has_old_events:
            result.violations.append(Violation("I12", "there is accepted work of which it was never told"))
        grants, storage = self.site.inspected()
        result.violations += check(lines, dump.rows, HELD_TO, grants=grants, events=events, storage=storage)
        seen = Seen(lines, dump.rows, HELD_TO)
        result.works, result.starts = len(dump.rows), len(seen.runs)
        result.recovered = recoveries(seen)
        result.events, result.grants = len(events), sum(grant.amount for grant in grants)
        return result


def inspected(database: Path) -> tuple[list[Grant], Storage]:
    """What the file says of itself, read without changing it."""
    with reading(database) as connection:
        integrity = tuple(str(row[0]) for row in connection.execute("pragma integrity_check"))
        keys = tuple(str(row) for row in connection.execute("pragma foreign_key_check"))
        version = int(next(iter(connection.execute("pragma user_version")))[0])
        columns = {str(row[1]) for row in connection.execute("pragma table_info(service_log)")}
        grants: list[Grant] = []
        if {"service", "started_at"} <= columns:
            amount = "amount" if "amount" in columns else "1"
            work = "coalesce(work_id, '')" if "work_id" in columns else "''"
            query = f"select service, started_at, {amount}, {work} from service_log order by id"
            grants = [
                Grant(str(name), float(t), int(n), str(id)) for name, t, n, id in connection.execute(query)
            ]
    if sys.platform == "win32":  # where a mode says nothing
        return grants, Storage(integrity=integrity, foreign_keys=keys, version=version, modes={})
    modes = {database.parent.name + "/": database.parent.stat().st_mode}
    for path in sorted(database.parent.rglob("*")):
        modes[path.name + "/" * path.is_dir()] = path.stat().st_mode
    return grants, Storage(integrity=integrity, foreign_keys=keys, version=version, modes=modes)


@contextmanager
def reading(database: Path) -> Iterator[apsw.Connection]:
    """A read-only connection to a file that nobody else has open."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        yield connection
    finally:
        connection.close()


def play(herd: Herd | spawner.Herd, parent: Path, plan: Plan, site: Site | None = None) -> Result:
    """One round in a folder of its own, which goes unless the round broke a promise."""
    crash = (
        f"-{plan.crash_role}-{plan.crash_at.replace(':', '-')}-{plan.crash_times}" if plan.crash_at else ""
    )
    folder = parent / f"round-{plan.seed}{crash}"
    folder.mkdir(mode=0o700)
    result = Round(herd, folder, plan, site).run()
    if not result.violations:
        shutil.rmtree(folder)
        result.folder = ""
    return result


def sweep(seed: int, most: int) -> Iterator[Plan]:
    """A round for each crash point and each pass of it up to `most`, in a worker and in a submitter.

    The last rounds are about workers that die at the same point again and again, in recovery as well.
    """
    short = Plan(seed, workers=1, submitters=1, kills=0, calls=25)
    for role, names in CRASHPOINTS.items():
        for name in names:
            for number in range(1, most + 1):
                yield msgspec.structs.replace(short, crash_at=f"{name}:{number}", crash_role=role)
    for name in ("post.written", "post.committed", "letters.read") if most else ():
        # of two that work, one decides and the other reads what was decided for it
        yield msgspec.structs.replace(short, workers=2, crash_at=f"{name}:1", crash_role="worker")
    for name in CRASHPOINTS["worker"] if most else ():
        yield msgspec.structs.replace(short, crash_at=f"{name}:2", crash_times=20, calls=150)
