"""Timed: no-ops from submit to their durable end on one PostgreSQL, by runcue and by other queues on it.

1, 2 and 4 processes begin at one moment; each submits its share in batches of 100 while all of them run what is
there. The end is when the database says that every unit has ended. All use the same server, started for this alone
with its usual settings (fsync, synchronous_commit and full_page_writes on), and a fresh database after a checkpoint;
they take turns, and the best round of each counts. Beside its speed is what the processor had to do for each unit in
that round, in the processes that submit and run and in the server: a busy machine changes that less. *raw* is
PostgreSQL itself, with no queue around it. procrastinate gets fewer units, because it runs them one by one.

Only who is there is measured: `python -m bench.peers --install` brings the others. `python -m bench peers` compares
with many more, each in its own store.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.measure import Line
from bench.peers import homes
from bench.peers.places import Absent, Places
from bench.peers.timed import Failed, Round, absent, timed

PROCESSES = (1, 2, 4)


@dataclass
class Contender:
    """One queue, and how fast it was."""

    name: str
    count: int
    best: dict[int, Round] = field(default_factory=dict)
    error: str = ""

    def run(self, places: Places, processes: int) -> None:
        """One round in a fresh database; who fails once is out, and the others go on."""
        try:
            with places.fresh("postgres") as place:
                found = timed(self.name, place, self.count, processes)
        except Failed as error:
            self.error = str(error)
            return
        self.best[processes] = max(found, self.best.get(processes, found))


def contenders(quick: bool) -> list[Contender]:
    """Everybody who could be measured, runcue first."""
    many, few = (400, 40) if quick else (10_000, 1_000)
    counts = {"runcue": many, "raw": many, "pgqueuer": many, "procrastinate": few}
    return [Contender(name, count, error=absent(name)) for name, count in counts.items()]


def measure(quick: bool) -> list[Line]:
    """Units a second of each, and how many times as fast runcue is."""
    everybody = contenders(quick)
    with Places() as places:
        for processes in PROCESSES[1:2] if quick else PROCESSES:
            for _ in range(1 if quick else 3):
                for contender in everybody:
                    if not contender.error:
                        try:
                            contender.run(places, processes)
                        except Absent as missing:
                            raise RuntimeError(str(missing)) from missing
    return [*speeds(everybody), *ratios(everybody), *missing_ones(everybody)]


def named(name: str, processes: int) -> str:
    """A figure's name."""
    return f"{name}, {processes} process{'es' * (processes > 1)}"


def speeds(everybody: list[Contender]) -> list[Line]:
    """What was measured."""
    return [
        Line(
            named(contender.name, processes),
            found.speed,
            "/s",
            note=f"processor: {found.client * 1e6:,.0f} µs, server {found.server * 1e6:,.0f} µs a unit",
        )
        for contender in everybody
        for processes, found in contender.best.items()
    ]


def ratios(everybody: list[Contender]) -> list[Line]:
    """How many times as fast runcue is; the goal is to be ahead of other queues."""
    runcue, *others = everybody
    versions = homes.versions()
    return [
        Line(
            named(f"runcue to {other.name}", processes),
            runcue.best[processes].speed / found.speed,
            "×",
            at_least=None if other.name == "raw" else 1.0,
            note=versions.get(other.name, ""),
        )
        for other in others
        for processes, found in other.best.items()
        if processes in runcue.best
    ]


def missing_ones(everybody: list[Contender]) -> list[Line]:
    """Who was not measured, and why."""
    return [Line(f"{one.name} was not measured", 0, "", note=one.error) for one in everybody if one.error]
