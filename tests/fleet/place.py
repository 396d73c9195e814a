"""Where processes share a queue, as a test sees it from outside: who decides, and stopping it just there."""

from __future__ import annotations

import fcntl
import signal
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.faults.stage import Actor, Scene, Stage
from tests.patience import BOUND, until_sync
from tests.torture import history
from tests.torture.history import now
from tests.torture.swarm import reading

DECIDER = "SELECT workers.pid FROM head JOIN workers ON workers.id = head.decider"
LOOK = 0.01
"""Seconds between two looks at what other processes do."""


class Place(Scene):
    """A queue and the programs on it, one of which decides."""

    @abstractmethod
    def found(self, statement: str) -> list[tuple[Any, ...]]:
        """What the tables say."""

    def until_found(self, statement: str, value: Any) -> None:
        """Wait until the tables say that."""
        until_sync(lambda: self.found(statement) == [(value,)], f"{statement} finds {value}")

    @abstractmethod
    def is_between_turns(self) -> bool:
        """Whether nobody has a turn."""

    def crew(self, amount: int = 3, **script: Any) -> list[Actor]:
        """So many programs that run work, each with something that it holds, and one of them decides."""
        actors = [self.running(**script) for _ in range(amount)]
        holding: set[int] = set()
        number = 0
        while holding != {actor.pid for actor in actors}:
            work_id = actors[number % amount].submit("hold", id=f"held{number}")
            self.until_started(work_id)
            holding.add(next(line.pid for line in self.lines() if line.work == work_id))
            number += 1
        return actors

    def lines(self, op: str = "start") -> list[history.Line]:
        """What handlers saw."""
        return [line for line in history.read(self.folder) if line.op == op]

    def deciding(self, actors: Iterable[Actor]) -> Actor | None:
        """Who of these decides."""
        pids = [pid for (pid,) in self.found(DECIDER)]
        return next((actor for actor in actors if actor.pid in pids), None)

    def until_deciding(self, actors: Sequence[Actor]) -> Actor:
        """Who of these decides, once one of them does."""
        actor: Actor = until_sync(lambda: self.deciding(actors), "one of them decides")
        return actor

    def stopped_outside(self, actors: Sequence[Actor]) -> Actor:
        """Stop who decides, where it holds no lock. It is the one that decides, and stands still."""
        for _ in range(1000):
            actor = self.until_deciding(actors)
            actor.signal(signal.SIGSTOP)
            actor.until_stopped()
            if self.is_between_turns() and self.deciding(actors) is actor:
                return actor
            actor.signal(signal.SIGCONT)
        raise AssertionError("it is always in a turn")

    def stopped_inside(self, actors: Sequence[Actor], where: str) -> tuple[Actor, int, str]:
        """Stop who decides at that place of a turn; with the call that it took the turn for, and its work."""
        for number in range(100):
            actor = self.until_deciding(actors)
            actor.ask("stop_at", place=where)
            call = actor.tell("submit", task="note", id=f"half{number}")
            bound = now() + BOUND
            while not actor.is_stopped():
                assert now() < bound, "it does nothing"
                if actor.has_answered(call, LOOK):  # another one decided over that
                    break
            else:
                return actor, call, f"half{number}"
            actor.ask("stop_at", place="")
        raise AssertionError("it is never in a turn")

    def until_there(self, file: Path) -> None:
        """Wait until there is that file."""
        until_sync(file.exists, f"there is {file}")

    def is_settled(self, actors: Sequence[Actor], more: Iterable[str] = ()) -> None:
        """Have everything end: each work was begun once and ended well, and nobody saw an error of ours."""
        for actor in actors:
            actor.ask("let_go")
        actors[0].ask("join", timeout=BOUND)
        works = {work["id"]: work for work in actors[-1].ask("list", limit=10_000)}
        assert set(more) <= works.keys()
        assert {(work["state"], work["attempt"]) for work in works.values()} == {("completed", 1)}
        assert self.starts() == dict.fromkeys(works, 1)
        self.until_found("SELECT count(*) FROM inbox", 0)  # whatever was left is taken
        for actor in actors:
            assert actor.ask("errors") == []


class FilePlace(Place):
    """The queue is a file."""

    def found(self, statement: str) -> list[tuple[Any, ...]]:
        with reading(self.database) as connection:
            return list(connection.execute(statement))

    def is_between_turns(self) -> bool:
        with Path(f"{self.database}.runcue", "turn").open(encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True


class PostgresPlace(Place):
    """The queue is on a server, and the programs are all on one host."""

    BUSY = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'runcue' "
        "AND datname = current_database() AND state <> 'idle'"
    )

    def __init__(self, stage: Stage, folder: Path, url: str) -> None:
        super().__init__(stage, folder)
        self.target = url

    def found(self, statement: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.target, options="-c search_path=runcue") as connection:
            return connection.execute(statement.encode()).fetchall()

    def is_between_turns(self) -> bool:
        return self.found(self.BUSY) == [(0,)]
