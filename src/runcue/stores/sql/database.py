"""What a shared store (store.py) needs of its database: that is a file (stores/sqlite) or PostgreSQL."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from runcue.core.model.state import Head
from runcue.core.schedule.plan import Plan
from runcue.errors import StoreError
from runcue.host.system import processes
from runcue.ports import Clock, Insertion, Outgoing, Received
from runcue.stores.presence import presence
from runcue.stores.presence.peer_monitor import EndLeftovers, Trouble
from runcue.stores.presence.wakeups import sweep
from runcue.stores.sql.mailbox import Letter
from runcue.stores.sql.pruning import Deleted
from runcue.stores.sql.store_thread import StoreThread, Ticket
from runcue.stores.sql.submission_watch import First
from runcue.stores.sql.tables import Tables

T = TypeVar("T")
CRASH_AT = os.environ.get("RUNCUE_CRASH_AT", "")

_passed: Counter[str] = Counter()


def crashpoint(name: str) -> None:
    """A place at which a test can kill this process: RUNCUE_CRASH_AT="name:3" does so at the third pass."""
    if CRASH_AT:
        wanted, _, number = CRASH_AT.partition(":")
        _passed[name] += 1
        if wanted == name and _passed[name] == int(number or 1):
            processes.end_self()


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a shared store is told, whatever its database."""

    durability: str
    lease: float
    retention: float | None = None
    log_retention: float = 86400.0
    clock: Clock | None = None
    """Virtual time: turns are taken on the loop."""
    end_leftovers: EndLeftovers | None = None
    forget_files: Callable[[list[Deleted]], None] | None = None
    """Deletes the files of these units beside the queue. Called in the store's thread."""
    is_at_work: Callable[[], bool] = lambda: True
    """Whether a handler may still run though the loop is closed: then nobody may take its units. Called in the
    heart's thread."""


class Transaction(Protocol):
    """The turns of one process, one after the other: each from lock to commit."""

    def begin(self) -> AbstractContextManager[Transaction]:
        """A turn: the lock is held within this context. It is committed or left there; after an error it is rolled
        back."""
        ...

    def opened(self) -> tuple[Head, float, bool]:
        """The counters, queue time, and whether the turn has to write for their sake alone."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """A context in which many statements are sent without waiting for the answer to each."""
        ...

    def write(self, plan: Plan, before: Head, now: float) -> None:
        """Write what was decided, and commit."""
        ...

    def commit(self, is_there: Callable[[], bool] | None = None) -> None:
        """Commit. If the answer is lost, `is_there` finds out whether the commit took place."""
        ...

    def leave(self) -> None:
        """End a turn that wrote nothing."""
        ...


class Database(Protocol):
    """One queue in a database, opened by this process."""

    place: str
    """The file, or the address without its password."""
    local: str
    """The path beside which this host keeps what belongs to the queue."""
    boot: str
    """Names this host and its boot among those that share the queue."""
    worker: str
    clock: Clock
    last_event_seq: int
    """The number of the last event before this process opened the queue."""
    presence: presence.Presence
    trouble: Trouble
    tables: Tables

    @property
    def transaction(self) -> Transaction:
        """Takes turns. In the store's thread."""
        ...

    def ticket(self) -> Ticket | None:
        """A ticket by which waiting for a turn can be given up, where the store's thread cannot give it up."""
        ...

    def exchange(self, post: Outgoing | None, ticket: Ticket | None) -> Received:
        """Leave a post, and take the letters of this process. In the store's thread."""
        ...

    async def read(self, look: Callable[[Tables], T], check: Callable[[], None]) -> T:
        """What `look` finds in the tables, read beside the turns, once `check` has raised nothing."""
        ...

    @property
    def insertion(self) -> Insertion:
        """How anybody submits to this queue from outside."""
        ...

    def first_submission(self) -> First:
        """The first row that was submitted from outside, and which process decides. In any thread."""
        ...

    def check(self) -> None:
        """Refuse to go on with another queue than the one that was opened."""
        ...

    def is_lost(self) -> bool:
        """Whether the queue is no longer the one that was opened. In the heart's thread."""
        ...

    def peers(self) -> Mapping[str, int]:
        """The workers of this host that were last read, with their pids."""
        ...

    def poke(self, workers: Iterable[str], urgent: Iterable[str]) -> None:
        """Wake these workers. In the store's thread."""
        ...

    def is_elsewhere(self, worker: str) -> bool:
        """True for a worker of another host, of which this one cannot tell whether it lives."""
        ...

    def listen(
        self, notice: Callable[[], None], hear: Callable[[bool], None], lost: Callable[[str], None]
    ) -> None:
        """Call `notice` to have a turn taken, `hear` when workers elsewhere committed, `lost` when one has died."""
        ...

    def look_around(self) -> None:
        """After each turn or exchange, on the loop."""
        ...

    def stop(self) -> None:
        """Stop what listens and looks."""
        ...

    def sign_off(self) -> None:
        """Delete this worker from the tables."""
        ...

    def disconnect(self, thread: StoreThread) -> None:
        """Close the database, but keep the lock that shows that this process lives. `thread` is the store's."""
        ...


def commit_exchange(turn: Transaction, tables: Tables, post: Outgoing | None, letters: list[Letter]) -> None:
    """Commit an exchange, if it left or took anything."""
    crashpoint("post.written")
    if post is None and not letters:
        turn.leave()
    else:
        turn.commit(lambda: tables.mailbox.has_posted(post, bool(letters)))


def sweep_unknown(lock: presence.Presence, trouble: Trouble, directory: Path, tables: Tables) -> None:
    """Remove the files of processes that are not in the tables."""
    known = {worker.id for worker in tables.workers.all()}
    sweep(lock, trouble, [one for one in presence.workers(directory) if one not in known])


def poke_here(
    lock: presence.Presence, trouble: Trouble, workers: Iterable[str], urgent: Iterable[str]
) -> None:
    """Wake workers of this host by their files."""
    try:
        lock.poke(workers, set(urgent))
    except (OSError, StoreError) as error:  # they look for themselves a little later
        trouble("cannot wake the other processes", error)
