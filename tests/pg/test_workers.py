"""Real workers (`runcue worker app:cue`) on one PostgreSQL queue: limits of all together, deaths, a cut network.

Each handler writes down when it began and ended, in a file that all share here. Starts are judged by that and, to the
last digit, by what the queue itself has counted.

A host of its own is a network namespace with a cable to this one, and a temporary directory of its own. The namespace
lives as long as a process that ends with the tests: nothing is left of it, whatever happens.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import runcue
from tests.cli.crew import RUNCUE
from tests.patience import until
from tests.pg.server import Missing, Server, moved
from tests.torture.checker import EventDraft, Grant, grants_over_rate, windows_exceeded
from tests.torture.seen import Limits, Rate, Service

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "examples" / "many_workers" / "demo.py"
BOUND = 240.0
PATIENT = 0.005
"""Seconds by which a handler may write down its start later than it began."""
BUSY = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'runcue' AND state != 'idle'"
RATE, CONCURRENT, LEASE = Rate(30, 1.0), 6, 2.0
APP = f"""
import asyncio, json, os, time, runcue
from pathlib import Path

HOST = os.environ["HOST"]
cue = runcue.Cue(os.environ["QUEUE"], lease={LEASE})
cue.service("api", rate=({RATE.most}, {RATE.window}), concurrent={CONCURRENT})

def note(what, work):
    told = dict(what=what, task=work.task, id=work.id, attempt=work.attempt, host=HOST, pid=os.getpid())
    told["at"] = time.monotonic()
    with open("told", "a") as file:
        file.write(json.dumps(told) + "\\n")

@cue.task(uses="api", retry=3)
async def call(work):
    note("began", work)
    await asyncio.sleep(0.05)
    note("ended", work)
    return HOST

@cue.task
async def held(work):
    note("began", work)
    while not Path(f"go-{{work.attempt}}").exists():
        await asyncio.sleep(0.02)
    note("ended", work)
    return HOST

@cue.task("only-" + HOST)
async def only(work):
    return HOST
"""


class App:
    """The application in a folder, its queue, and what its handlers wrote down."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        (folder / "app.py").write_text(APP)
        (folder / "told").touch()

    def told(self, what: str, task: str = "call") -> list[dict[str, Any]]:
        """Every `began` or `ended` of a task so far."""
        lines = (self.folder / "told").read_text().splitlines()
        return [one for one in map(json.loads, lines) if (one["what"], one["task"]) == (what, task)]

    def asked(self, statement: str) -> list[tuple[Any, ...]]:
        """What the tables say."""
        with psycopg.connect(self.url, options="-c search_path=runcue") as connection:
            return connection.execute(statement).fetchall()

    @contextmanager
    def host(self, name: str, count: int = 1, *, cable: Cable | None = None) -> Iterator[None]:
        """Workers on a host of that name, at the end of a cable if there is one; told to leave in the end."""
        own = self.folder / name
        own.mkdir()
        url = cable.leading_to(self.url) if cable else self.url
        environment = {**os.environ, "TMPDIR": str(own), "HOST": name, "QUEUE": url}
        with (own / "log").open("w") as log:
            command = [*(cable.through if cable else ()), *RUNCUE, "worker", "app:cue", "--count", str(count)]
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: what runs is put back
            try:
                process.wait(BOUND)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[runcue.Cue]:
    """A Cue that submits and waits, and runs nothing."""
    cue = runcue.Cue(url, lease=LEASE)
    cue.service("api", rate=(RATE.most, RATE.window), concurrent=CONCURRENT)
    for name in ("held", "only-a"):
        cue.task(name)(print)
    cue.task("call", uses="api")(print)
    try:
        yield cue
    finally:
        await cue.close()


def at_once(app: App, killed: Mapping[int, float] = {}) -> int:
    """The most calls under way at one moment; what a killed process ran ended with it."""
    ends = {(one["id"], one["attempt"]): one["at"] for one in app.told("ended")}
    changes = []
    for one in app.told("began"):
        end = ends.get((one["id"], one["attempt"]), killed.get(one["pid"]))
        assert end is not None, f"{one} never ended"
        changes += [(one["at"], 1), (end, -1)]
    return max(itertools.accumulate(change for _, change in sorted(changes)))


async def is_within_rate(app: App, cue: runcue.Cue) -> None:
    """No window holds more than it may: not of what handlers saw, and not of what the queue counted."""
    assert windows_exceeded([one["at"] for one in app.told("began")], RATE, PATIENT) == []
    rows = app.asked("SELECT started_at, amount, work_id FROM service_log WHERE service = 'api' ORDER BY id")
    granted = [Grant("api", float(at), int(amount), str(work)) for at, amount, work in rows]
    assert sum(one.amount for one in granted) >= len(app.told("ended"))
    events = [
        EventDraft(one.seq, one.type, one.work_id, at=one.at)
        for one in await heard(cue)
        if one.work_id is not None
    ]
    assert list(grants_over_rate(granted, Limits(services={"api": Service((RATE,))}), events)) == []


async def heard(cue: runcue.Cue) -> list[runcue.Event]:
    """What was told of all processes from the first on."""
    await cue.count()
    assert cue._system is not None
    assert cue._system._shared is not None
    return (await cue._system._shared.events(0, 10_000)).events


async def told(cue: runcue.Cue, kind: str) -> list[str | None]:
    """The works that events of that kind are about, of all processes from the first on."""
    return [event.work_id for event in await heard(cue) if event.type == kind]


async def until_told(cue: runcue.Cue, kind: str, work_id: str) -> None:
    """Wait for an event of that kind about that work, which may have been told already."""
    async with asyncio.timeout(BOUND):
        async for event in cue.events([kind], since=0):
            if event.work_id == work_id:
                return


async def is_done_once(cue: runcue.Cue, ids: Sequence[str]) -> None:
    """Every work ended well, and only one of its answers was taken."""
    counts = {state.value: amount for state, amount in (await cue.count()).items() if amount}
    assert counts == {"completed": len(ids)}
    assert sorted(await told(cue, "completed"), key=str) == sorted(ids)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.timeout(150)
async def test_limits_hold_for_all_hosts_and_a_killed_worker_loses_nothing(pg: str, tmp_path: Path) -> None:
    app = App(tmp_path, pg)
    killed: dict[int, float] = {}
    async with asking(pg) as cue:
        ids = await cue.submit_many([{"task": "call"}] * 100)
        with app.host("a", 2), app.host("b", 2), app.host("c"):
            await until(lambda: len({one["host"] for one in app.told("ended")}) == 3, "work on every host")
            async with asyncio.timeout(BOUND):
                while len({one["pid"] for one in app.told("began")}) < 5:  # some may be slow to begin
                    ids += await cue.submit_many([{"task": "call"}] * 10)
                    await asyncio.sleep(0.3)
            victim = app.told("began")[-1]["pid"]
            killed[victim] = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            await cue.join(timeout=BOUND)
        await is_done_once(cue, ids)
        await is_within_rate(app, cue)
    assert len({one["pid"] for one in app.told("began")}) >= 5
    assert at_once(app, killed) <= CONCURRENT


# --- The example ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["postgres", "file"])
def test_the_example_shows_that_the_limits_were_kept(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("QUEUE", None)
    if place == "postgres":
        environment["QUEUE"] = request.getfixturevalue("pg")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(DEMO)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert ("QUEUE names no queue" in said[0]) == (place == "file")
    assert "all 160 calls were made" in said[-3]
    assert said[-3].endswith("on machine-1, machine-2")
    assert int(said[-2].split()[2]) <= 40
    assert int(said[-1].split()[3]) <= 8


# --- Networks -------------------------------------------------------------------------------------


def ip(*words: str) -> None:
    """Change the network; says what was wrong."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Cable:
    """A network namespace, and the cable that leads there: `near` is this end's address."""

    def __init__(self, number: int) -> None:
        block = f"198.18.{os.getpid() % 256}."  # addresses for tests of networks, which lead nowhere
        self.near = f"{block}{4 * number + 1}"
        self._name = f"cue{os.getpid()}.{number}"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self._hold()
            self.through = ("nsenter", "--target", str(self._holder.pid), "--net")
            ip(
                "link",
                "add",
                self._name,
                "type",
                "veth",
                "peer",
                "name",
                "far",
                "netns",
                str(self._holder.pid),
            )
            ip("address", "add", f"{self.near}/30", "dev", self._name)
            ip("link", "set", self._name, "up")
            for words in (
                ("address", "add", f"{block}{4 * number + 2}/30", "dev", "far"),
                ("link", "set", "far", "up"),
            ):
                subprocess.run([*self.through, "ip", *words], check=True)
        except BaseException:
            self.remove()
            raise

    def _hold(self) -> None:
        """Wait until the namespace is there: only then does its process answer."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        try:
            self._holder.stdin.write(b"there?\n")
            self._holder.stdin.flush()
        except BrokenPipeError:
            pass
        if self._holder.stdout.readline() != b"there?\n":
            raise RuntimeError("unshare --net is not allowed")

    def leading_to(self, url: str) -> str:
        """How a database on this side is called on the other."""
        return moved(url, int(conninfo_to_dict(url)["port"] or 0), self.near)

    def cut(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        ip("link", "set", self._name, "down")

    def mend(self) -> None:
        """As before."""
        ip("link", "set", self._name, "up")

    def remove(self) -> None:
        """Take the cable away, which may not have been laid yet, and end the namespace."""
        subprocess.run(["ip", "link", "delete", self._name], stderr=subprocess.DEVNULL, check=False)
        self._holder.communicate(timeout=BOUND)


@pytest.fixture
def cables() -> Iterator[list[Cable]]:
    """Two of them, or no test."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("network namespaces need root, and the programs ip, unshare and nsenter")
    with ExitStack() as stack:
        made = []
        for number in range(2):
            try:
                made.append(Cable(number))
            except RuntimeError as error:
                pytest.skip(f"no network namespaces here: {error}")
            stack.callback(made[-1].remove)
        yield made


@pytest.fixture
def far_server(cables: list[Cable]) -> Iterator[Server]:
    """A server that can be reached over the cables, and by nobody else."""
    near = [cable.near for cable in cables]
    network = f"{near[0].rpartition('.')[0]}.0/24"
    try:
        server = Server(listen=",".join(near), allow=network)
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    with server:
        yield server


async def calls_of_both(app: App, cue: runcue.Cue, ids: list[Any]) -> None:
    """Have calls made until both hosts had some, and wait until all were and nobody is in the middle of a turn.

    Who is cut off there holds up the others until the server notices, which takes longer than a test should.
    """
    before = len(app.told("ended"))
    async with asyncio.timeout(BOUND):
        while {"a", "b"} != {one["host"] for one in app.told("ended")[before:]}:
            calls = await cue.submit_many([{"task": "call"}] * 20)
            ids += calls
            for one in calls:
                await cue.wait(one)
        for _ in range(10):
            await until(lambda: app.asked(BUSY) == [(0,)], "a moment without a turn")


@pytest.mark.timeout(150)
async def test_a_host_that_is_cut_off_loses_its_work_and_its_late_answer_and_comes_back(
    cables: list[Cable], far_server: Server, tmp_path: Path
) -> None:
    url = far_server.database()
    app = App(tmp_path, url)
    with app.host("a", cable=cables[0]):
        async with asking(url) as cue:
            work_id = await cue.submit("held")
            await until(lambda: bool(app.told("began", "held")), "the start")
            [before] = app.asked(f"SELECT leased_by FROM work_units WHERE id = '{work_id}'")
            ids = [work_id]
            with app.host("b", cable=cables[1]):
                await calls_of_both(app, cue, ids)
                cables[0].cut()
                await until(lambda: len(app.told("began", "held")) == 2, "the start elsewhere")
                assert [one["host"] for one in app.told("began", "held")] == ["a", "b"]
                assert before not in app.asked("SELECT id FROM workers")

                (tmp_path / "go-1").touch()
                await until(lambda: bool(app.told("ended", "held")), "the end of what a ran")
                cables[0].mend()
                ids.append(await cue.submit("only-a"))
                assert await cue.result(ids[-1], timeout=BOUND) == "a"
                assert before in app.asked("SELECT id FROM workers")
                await until_told(cue, "stale_completion", work_id)
                (tmp_path / "go-2").touch()
                work = await cue.wait(work_id, timeout=BOUND)
                assert (work.result, work.attempt) == ("b", 2)
                await calls_of_both(app, cue, ids)
            await is_done_once(cue, ids)
            await is_within_rate(app, cue)
    assert at_once(app) <= CONCURRENT
