"""The power fails: whatever anybody was told of a queue is in what the disk has by then.

The system calls of programs that share a file are written down. Out of them comes what a disk holds at any moment:
everything that was written before a sync began, once that sync is over, and of what was written since nothing, all or
any part of it. Every time that something is told the power is cut, and what is left has to know it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from runcue.stores.sql import wire
from tests.faults.stage import Scene, Stage, traced, why_no_tracing
from tests.torture.history import ENDING
from tests.torture.swarm import inspected, reading

SECTOR: Final = 512
PAGE: Final = 4096
WORKS: Final = 40
LOG_PAGES: Final = 60
"""So few that the log goes back into the file and starts over again and again."""
CALLS: Final = "trace=pwrite64,write,ftruncate,fdatasync,fsync,sendto"
SLOW: Final = "inject=fdatasync:delay_enter=5000"
"""Microseconds, so that others come by while what they see is not yet on the disk."""
SINCE: Final = {
    "pending": {"pending", "running", "completed"},
    "running": {"running", "completed"},
    "completed": {"completed"},
}
"""State → what may have become of a work since it was told to be in that state."""

BEGUN: Final = re.compile(r'(?P<call>\w+)\(\d+<(?P<file>[^>]*)>(?:, "(?P<data>[^"]*)")?(?P<given>[^"]*)$')

pytestmark = pytest.mark.skipif(why_no_tracing() is not None, reason=why_no_tracing() or "")


class Call(NamedTuple):
    """Half of a system call: that it began, or that it is over."""

    is_over: bool
    thread: str
    name: str
    file: str
    data: bytes
    place: int
    """Where it writes, or how much it leaves."""


def plain(text: str) -> bytes:
    """What strace wrote as hexadecimal numbers."""
    return bytes.fromhex(text.replace("\\x", ""))


def calls(trace: Path) -> Iterator[Call]:
    """The calls of all programs in their order, those that failed left out: each begins, and is over later."""
    begun: dict[str, Call] = {}
    with trace.open(encoding="ascii") as lines:
        for line in lines:
            thread, _, said = line.rstrip("\n").partition(" ")
            said = said.lstrip()
            if match := BEGUN.match(said):
                place = re.search(r", (\d+)(?:\)| <|$)", match["given"])
                begun[thread] = Call(
                    False,
                    thread,
                    match["call"],
                    plain(match["file"]).decode(),
                    plain(match["data"] or ""),
                    int(place[1]) if place else 0,
                )
                yield begun[thread]
            if re.search(r"\) += \d+(?: \(DELAYED\))?$", said) and thread in begun:
                yield begun.pop(thread)._replace(is_over=True)


class Platter:
    """One file: as programs see it, and as the disk has it."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.kept = b""
        self._syncs: dict[str, tuple[int, bytes]] = {}
        self._number = self._latest = 0

    def happens(self, call: Call) -> None:
        """A call on this file."""
        if call.name in {"fdatasync", "fsync"}:
            self._sync(call)
        elif not call.is_over:
            return
        elif call.name == "pwrite64":
            self.seen.extend(bytes(max(0, call.place - len(self.seen))))
            self.seen[call.place : call.place + len(call.data)] = call.data
        elif call.name == "ftruncate":
            del self.seen[call.place :]
            self.seen.extend(bytes(call.place - len(self.seen)))

    def _sync(self, call: Call) -> None:
        if not call.is_over:
            self._number += 1
            self._syncs[call.thread] = self._number, bytes(self.seen)
            return
        number, content = self._syncs.pop(call.thread)
        if number > self._latest:
            self._latest, self.kept = number, content

    def left(self, random: Random | None) -> bytes:
        """What the disk has when the power fails now: nothing that was not synced, or whatever chance will have."""
        if random is None:
            return self.kept
        length = random.choice((len(self.kept), len(self.seen)))
        left = bytearray(self.kept[:length].ljust(length, b"\0"))
        for page in range(0, length, PAGE):
            if left[page : page + PAGE] == self.seen[page : page + PAGE]:
                continue
            chance = random.choice((0.0, 0.5, 1.0))
            for start in range(page, min(page + PAGE, length), SECTOR):
                end = min(start + SECTOR, length, len(self.seen))
                if start < end and random.random() < chance:
                    left[start:end] = self.seen[start:end]
        return bytes(left)


class EventDraft:
    """What somebody outside knows of a queue."""

    def __init__(self) -> None:
        self.states: dict[str, set[str]] = {}
        """Work → in which states it may be by now."""
        self.starts = 0

    def hear(self, call: Call) -> bool:
        """True when this call tells something new."""
        if call.name == "write" and call.file.endswith(ENDING):
            return self._knows(json.loads(call.data)["work"], SINCE["running"], starts=1)
        if call.name != "sendto" or not call.data.startswith(b"{"):  # a loop wakes itself with less
            return False
        answer = json.loads(call.data)["ok"]
        if isinstance(answer, str):
            return self._knows(answer, SINCE["pending"])
        return isinstance(answer, dict) and self._knows(answer["id"], SINCE[answer["state"]])

    def _knows(self, work: str, states: set[str], starts: int = 0) -> bool:
        self.starts += starts
        known = self.states.get(work)
        self.states[work] = states & known if known else states
        return self.states[work] != known

    def check(self, database: Path) -> None:
        """All of that is in the file."""
        with reading(database) as connection:
            found = dict(connection.execute("SELECT id, state FROM work_units"))
            posts = [str(body) for (body,) in connection.execute("SELECT body FROM inbox")]
        for work in self.states:  # what was accepted is there, whether or not anybody has decided over it
            if any(wire.submitted(body, work) for body in posts):
                found.setdefault(work, "pending")
        grants, _ = inspected(database)
        assert {
            work: found.get(work) for work, may in self.states.items() if found.get(work) not in may
        } == {}
        assert sum(grant.amount for grant in grants) >= self.starts


def played(scene: Scene, trace: Path) -> None:
    """One program submits, one runs, one looks: as a program does that has the queue open, and from outside."""
    script: dict[str, Any] = {
        "services": {"api": {"rate": "10000/min"}},
        "tasks": {"note": {"uses": "api"}},
        "log_pages": LOG_PAGES,
    }
    submitter, runner, onlooker = (scene.play(**script) for _ in range(3))
    with traced(submitter, CALLS, SLOW, beside=(runner, onlooker), output=trace, options="-y -xx -s 70000"):
        runner.ask("start")
        for number in range(WORKS):
            submitted = submitter.tell("submit", task="note", id=f"w{number}")
            look = "get" if number % 2 else "read"
            onlooker.until(lambda work: work is not None, look, work_id=f"w{number}")
            onlooker.until(lambda work: work["state"] == "completed", look, work_id=f"w{number}")
            submitter.answer(submitted)
    for actor in (submitter, runner, onlooker):
        actor.close()


def test_what_anybody_was_told_outlives_a_power_cut(stage: Stage, tmp_path: Path) -> None:
    """P1, DK4."""
    scene, trace = Scene(stage, tmp_path), tmp_path / "trace"
    played(scene, trace)
    left = Scene(stage, tmp_path / "left")
    files = {name: Platter() for name in (scene.database.name, scene.database.name + "-wal")}
    told, random, cuts, began_anew = EventDraft(), Random(1), 0, 0
    for call in calls(trace):
        name = Path(call.file).name
        if name in files:
            files[name].happens(call)
            began_anew += (
                call.is_over and name.endswith("-wal") and call.name == "pwrite64" and not call.place
            )
        elif not call.is_over and told.hear(call):
            for chance in (None, random):
                left.database.with_name(scene.database.name + "-shm").unlink(missing_ok=True)
                for each, platter in files.items():
                    left.database.with_name(each).write_bytes(platter.left(chance))
                    left.database.with_name(each).chmod(0o600)
                left.check()
                told.check(left.database)
                cuts += 1
    assert cuts >= 4 * WORKS, "each is told of when it runs and when it is completed, if not before"
    assert began_anew > 3, "the log hardly ever went back into the file"
    works = left.drained()
    assert {work["state"] for work in works.values()} == {"completed"}
    assert len(works) == WORKS
