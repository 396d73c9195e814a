"""Who is compared, where each keeps its units, and what that is worth.

Beside its settings each says what is left of accepted work when its worker is killed (`kill -9`), as its
documentation and source have it, and when the power fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Contender:
    """One queue in one place."""

    name: str
    """Also of its module in `queues`."""
    kind: str
    """Of place: see `places`."""
    store: str
    how: str
    worker: str
    """What happens to a unit whose worker was killed, as its documentation and source say."""
    power: str
    """What a loss of power leaves."""
    apart: bool = False
    """Does another process than the one that submits run the units?"""

    @property
    def label(self) -> str:
        """The name as its project writes it."""
        return self.name.replace("_", "-")

    @property
    def key(self) -> str:
        """A name for one contender alone."""
        return f"{self.label}, {self.store}"


class Unavailable(NamedTuple):
    """A program that cannot be had on the machine that was measured; a figure of its own pages is no figure of it."""

    name: str
    tried: str
    published: str


UNAVAILABLE = (
    Unavailable(
        "River (Go, PostgreSQL)",
        "PyPI's `riverqueue` inserts only; what runs units is in Go's module registry",
        "about 46,000 units/s, all inserted before, on an 8-core M2 laptop with 2,000 goroutines "
        "(riverqueue.com/docs/benchmarks)",
    ),
    Unavailable(
        "honker (SQLite)",
        "PyPI's wheels for Linux need glibc 2.38; to build an earlier release takes Rust's registry",
        "",
    ),
    Unavailable(
        "pueue (shell commands)", "Debian 12 does not have it; `cargo install` needs Rust's registry", ""
    ),
)
"""Where one of them can be had after all, it is measured like the others."""


class _Peer(NamedTuple):
    name: str
    how: str
    worker: str


RUNCUE = "in the process, batches of 100, up to 400 at once, results kept"
AGAIN = "runs again within 2 s"
DBOS = "in the process, 100 submitted at once, queue looked at every 10 ms, results kept"
DBOS_AGAIN = "runs again when the program starts again"
NOTHING, MOST, EVERYTHING = "nothing", "all but the last commits", "everything"
ON_REDIS = (
    _Peer("arq", "worker in the process, 100 at once, looks every 10 ms, results kept",
          "runs again after its time-out (5 min)"),
    _Peer("saq", "worker in the process, 10 at once, results kept",
          "is aborted by a sweep (60 s); with retries it runs again"),
    _Peer("rq", "2 SimpleWorkers, batches of 100, results kept", "is marked as failed after its time-out (3 min)"),
    _Peer("dramatiq", "2 processes with 8 threads each, no results",
          "runs again some time after a missing heartbeat (60 s)"),
    _Peer("celery", "8 threads, 128 fetched ahead for each, no results",
          "is lost; with acks_late it runs again after 1 h"),
    _Peer("taskiq", "stream, 1 process on uvloop, 100 at once, no results", "runs again after 10 min idle"),
)  # fmt: skip


def _all() -> tuple[Contender, ...]:
    found = [
        Contender("runcue", "memory", "memory", RUNCUE, "is lost", NOTHING),
        Contender("runcue", "file", "file", RUNCUE, AGAIN, EVERYTHING),
        Contender("runcue", "file", "file, two processes", "one process submits, one runs; else the same", AGAIN,
                  EVERYTHING, apart=True),
        Contender("runcue", "postgres", "PostgreSQL", RUNCUE, AGAIN, EVERYTHING),
        Contender("huey", "file", "SQLite", "4 threads that look every 10 ms, fsync on, results kept",
                  "is lost", EVERYTHING),
        Contender("dbos", "file", "SQLite", DBOS, DBOS_AGAIN, EVERYTHING),
        Contender("dbos", "postgres", "PostgreSQL", DBOS, DBOS_AGAIN, EVERYTHING),
        Contender("procrastinate", "postgres", "PostgreSQL",
                  "worker in the process, 20 at once, batches of 100, no results",
                  "waits until somebody retries stalled jobs", EVERYTHING),
        Contender("pgqueuer", "postgres", "PostgreSQL", "worker in the process on uvloop, batches of 100, no results",
                  "runs again after a missing heartbeat (30 s)", EVERYTHING),
        Contender("flexiq", "file", "SQLite",
                  "4 threads, batches of 100, looks every 10 ms for 100, results kept",
                  "runs again after its time-out (5 min)", MOST),
        Contender("honker", "file", "SQLite", "one loop in the process, batches of 100, no results",
                  "runs again after its time-out (5 min)", MOST),
        Contender("awa", "postgres", "PostgreSQL",
                  "worker in the process, 100 at once, looks every 10 ms, two claimers, COPY of 100, no results",
                  "runs again some time after a missing heartbeat", EVERYTHING),
        Contender("absurd", "postgres", "PostgreSQL",
                  "worker in the process, 100 at once, looks every 10 ms, one call for each unit, results kept",
                  "runs again after its claim ends (2 min)", EVERYTHING),
        Contender("graphile_worker", "postgres", "PostgreSQL",
                  "one process of Node, 24 at once, local queue of 500, batches of 100, no results",
                  "runs again after 4 h; its Pro edition after a missing heartbeat", EVERYTHING),
    ]  # fmt: skip
    for kind, store, power in (("redis", "Redis", NOTHING), ("redis-aof", "Redis, AOF", EVERYTHING)):
        found += [Contender(peer.name, kind, store, peer.how, peer.worker, power) for peer in ON_REDIS]
    return tuple(found)


CONTENDERS = _all()
