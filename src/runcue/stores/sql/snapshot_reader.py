"""What a Reader needs of the place that a queue is in: how to get at its tables, what time it is there, who lives.

stores/sqlite/snapshot_reader.py has it for a file, stores/postgres/snapshot_reader.py for PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from runcue.core.model.state import Head, Worker
from runcue.errors import StoreError
from runcue.stores.presence import presence
from runcue.stores.sql.jobs_view import JobQuery
from runcue.stores.sql.tables import Tables

T = TypeVar("T")
Life = tuple[str, float | None]
"""`alive`, `unresponsive`, `gone` or `unknown`, and the seconds since the last sign of life."""


class SnapshotReader(Protocol):
    """One queue, seen from outside."""

    @property
    def where(self) -> str:
        """The file, or the address without its password."""
        ...

    @property
    def beside(self) -> str:
        """The path beside which this host keeps what belongs to the queue: locks, and what commands printed."""
        ...

    def read(self, look: Callable[[Tables], T]) -> T:
        """An answer that was true at one moment."""
        ...

    def times(self, tables: Tables, head: Head) -> tuple[float, float]:
        """Queue time, and the time of day. Within `read`, as all that takes tables."""
        ...

    def lives(self, tables: Tables, workers: Sequence[Worker], lease: float) -> list[Life]:
        """How each of these workers is."""
        ...

    def jobs(self, tables: Tables, wanted: JobQuery) -> list[dict[str, Any]]:
        """The jobs that are wanted, newest first."""
        ...

    def health(self, tables: Tables, head: Head) -> dict[str, Any]:
        """Versions and sizes, and in `problems` what is wrong."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


def life_here(directory: Path, worker: str, lease: float) -> Life:
    """How a worker of this host is, by its lock."""
    try:
        is_alive = presence.is_alive(directory, worker)
        beat = presence.last_beat(directory, worker)
    except StoreError:  # the directory is its owner's alone
        return "unknown", None
    if not is_alive or beat is None:
        return "gone", None
    silent_for = max(0.0, presence.boottime() - beat)
    return ("alive" if silent_for < lease else "unresponsive"), silent_for
