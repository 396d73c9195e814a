"""Snapshots of a queue for the live screen, as plain values; they are taken in a thread in the background.

Rules:
- A snapshot has no more units than a screen can show: the newest few hundred of the chosen view.
- Whatever happens to the file (locked, deleted, replaced, damaged), `look` raises, and the next call opens it anew.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from runcue import mask
from runcue.cli.commands.status import waiting
from runcue.cli.place import Place, row_of
from runcue.cli.reasons import Crew, in_words, tries, waits
from runcue.cli.screen import moment, span
from runcue.cli.services import services, standing, used_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

MOST = 200
MOST_SEARCHED = 1000
SAMPLES = 240
"""How many snapshots the charts show: two minutes."""
VIEWS = ("active", "failed", "recent", "services")
ENDED = ("completed", "failed", "cancelled")
ORDERS = ("as it comes", "task", "tries", "age")


class Item(msgspec.Struct, frozen=True):
    """One line of the table: a unit, or a service."""

    id: str
    state: str
    tries: str = ""
    what: str = ""
    said: str = ""
    service: str | None = None
    since: float = 0.0
    failures: int = 0

    def matches(self, text: str) -> bool:
        """True when that lower-case text occurs in the line."""
        return any(text in part.lower() for part in (self.id, self.state, self.what, self.said))


class Wish(msgspec.Struct, frozen=True):
    """What the user wants to see."""

    view: str = "active"
    text: str = ""
    """A text that lines have to contain; with `!` before it, must not contain."""
    order: str = ORDERS[0]
    keep: str | None = None
    """The id of the line under the cursor, which is shown even when the view no longer has it."""


class Scene(msgspec.Struct, frozen=True):
    """A snapshot of a queue."""

    wish: Wish
    counts: dict[str, int]
    services: Sequence[dict[str, Any]]
    items: Sequence[Item]
    kept: Item | None
    """The line under the cursor, when the view no longer has it."""
    paused: Sequence[str]
    waiting: Sequence[dict[str, Any]]
    workers: int
    depth: Sequence[int]
    """How many units waited at each of the last snapshots."""
    pace: Sequence[float]
    """How many units ended per second between snapshots."""
    is_cut: bool = False
    at: str = ""


class Look:
    """Takes snapshots of one queue, and remembers its backlog and throughput."""

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._reader: runcue.Reader | None = None
        self._depth: deque[int] = deque(maxlen=SAMPLES)
        self._pace: deque[float] = deque(maxlen=SAMPLES)
        self._ended: tuple[float, int] | None = None

    def close(self) -> None:
        """Close the file."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def look(self, wish: Wish) -> Scene:
        """Take a snapshot; raises an error when the queue cannot be read."""
        try:
            if not self._place.exists:
                raise self._place.nothing()
            self._reader = self._reader or self._place.reader()
            return self._scene(self._reader, wish)
        except Exception:
            self.close()
            raise

    def _scene(self, reader: runcue.Reader, wish: Wish) -> Scene:
        words, now = self._place.words, reader.now()
        counts = self._place.counts(reader)
        workers = [one for one in reader.workers() if one["serving"]]
        crew = Crew(workers)
        self._remember(counts)
        found = services(reader)
        if wish.view == "services":
            items, is_cut = [_of_service(one) for one in found], False
        else:
            works, is_cut = self._works(reader, wish)
            items = self._items(reader, works, now, crew)
        items = _sorted(_chosen(items, wish.text), wish.order)
        kept = None
        if wish.keep is not None and wish.view != "services" and all(one.id != wish.keep for one in items):
            work = reader.get(wish.keep)
            gone = Item(wish.keep, "gone", said="it is no longer kept")
            kept = gone if work is None else self._items(reader, [work], now, crew)[0]
        return Scene(
            wish=wish,
            counts={state: counts[state] for state in words.states},
            services=found,
            items=items,
            kept=kept,
            paused=reader.paused(),
            waiting=waiting(self._place, reader, counts, workers, now),
            workers=len(crew.members),
            depth=list(self._depth),
            pace=list(self._pace),
            is_cut=is_cut,
            at=moment(time.time())[11:19],
        )

    def _works(self, reader: runcue.Reader, wish: Wish) -> tuple[list[runcue.Work], bool]:
        """The units of a view in the order of their lines, and whether there are more."""
        states = {"active": ("running", "pending"), "failed": ("failed",)}.get(wish.view, ENDED)
        limit = MOST_SEARCHED if wish.text else MOST
        parts = [reader.list(state, limit=limit) for state in states]
        if wish.text and not wish.text.startswith("!"):
            for part, state in zip(parts, states, strict=True):
                known = {work.id for work in part}
                part += [
                    work for work in reader.list(state, limit=MOST, search=wish.text) if work.id not in known
                ]
        works = [work for part in parts for work in reversed(part)]
        if wish.view != "active":
            works.sort(key=lambda work: work.completed_at or 0.0, reverse=True)
        return works, any(len(part) >= limit for part in parts)

    def _items(
        self, reader: runcue.Reader, works: Sequence[runcue.Work], now: float, crew: Crew
    ) -> list[Item]:
        words = self._place.words
        rows = {work.id: {**row_of(work), "state": words.state_of(work)} for work in works}
        told = waits(reader, rows.values(), now, crew, words)
        items = []
        for work in works:
            row, said = rows[work.id], told[work.id][1] if work.id in told else _said(work, now)
            error = in_words(row["last_error"]) if row["last_error"] and work.state != "completed" else ""
            items.append(
                Item(
                    id=work.id,
                    state=row["state"],
                    tries=tries(row),
                    what=row["command"]
                    if words.has_programs
                    else str(mask(work.params.get("command", work.task))),
                    said=": ".join(part for part in (said, error if error != row["state"] else "") if part),
                    service=work.service,
                    since=work.started_at if work.state == "running" and work.started_at else work.created_at,
                    failures=work.failures,
                )
            )
        return items

    def _remember(self, counts: dict[str, int]) -> None:
        at, ended = self._clock(), sum(counts[state] for state in ("completed", self._place.words.dead))
        self._depth.append(sum(counts[state] for state in self._place.words.waiting))
        if self._ended is not None:
            passed = max(0.001, at - self._ended[0])
            self._pace.append(max(0.0, (ended - self._ended[1]) / passed))
        self._ended = at, ended


def _said(work: runcue.Work, now: float) -> str:
    """A remark on a unit that does not wait: how long it has been running, or how long it took."""
    if work.state == "running":
        return "" if work.started_at is None else f"for {span(max(0.0, now - work.started_at))}"
    if work.skipped:
        return "skipped"
    if work.state != "completed" or work.started_at is None or work.completed_at is None:
        return ""
    return f"took {span(max(0.0, work.completed_at - work.started_at))}"


def _of_service(one: dict[str, Any]) -> Item:
    used = used_of(one)
    if one.get("declared"):
        used.append(f"set by hand; declared: {one['declared']}")
    limit = "" if one["concurrent"] is None else f"/{one['concurrent']}"
    circuit = "ready" if one["circuit"] in {None, "closed"} else str(one["circuit"]).replace("_", " ")
    return Item(
        id=one["name"],
        state="paused" if one["paused"] else circuit,
        tries=f"{one['running']}{limit}",
        what=standing(one),
        said=", ".join(used),
        service=one["name"],
    )


def _chosen(items: list[Item], text: str) -> list[Item]:
    """The lines that match the filter."""
    wanted = text.lower()
    if wanted.startswith("!"):
        return [one for one in items if len(wanted) < 2 or not one.matches(wanted[1:])]
    return [one for one in items if one.matches(wanted)] if wanted else items


def _sorted(items: list[Item], order: str) -> list[Item]:
    """The lines in that order."""
    if order == "task":
        return sorted(items, key=lambda one: one.what)
    if order == "tries":
        return sorted(items, key=lambda one: -one.failures)
    return sorted(items, key=lambda one: one.since) if order == "age" else items
