"""Both stores keep the contract, and a store that does not is found out."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from runcue.core.model.record import Record
from runcue.core.schedule.plan import Plan, ReadRequest, ReadResult
from runcue.core.views.query import Query
from runcue.host.clock import SystemClock
from runcue.ports import Decide, Outgoing, Received, Store, Takeover
from runcue.stores.memory import MemoryStore, MemoryTurn
from runcue.stores.presence.presence import Presence
from runcue.stores.sql.records import Records
from runcue.stores.sql.tables import Tables
from runcue.stores.sql.units import Units
from runcue.stores.sql.writer import Writer
from runcue.stores.sqlite.store import sqlite_store
from runcue.testing import contract, submitted


def checks(*some: contract.Check) -> list[Any]:
    """These checks, each under its name."""
    return [pytest.param(check, id=getattr(check, "__name__", "")) for check in some]


def memory() -> Store:
    return MemoryStore(SystemClock())


def sqlite(path: Path) -> Callable[[], Store]:
    return lambda: sqlite_store(str(path / "queue.db"), durability="relaxed", lease=30.0)


@pytest.mark.parametrize("check", checks(*contract.EVERY))
async def test_memory_keeps_the_contract(check: contract.Check) -> None:
    await check(memory)


@pytest.mark.parametrize("check", checks(*contract.EVERY, *contract.SHARED))
async def test_sqlite_keeps_the_contract(check: contract.Check, tmp_path: Path) -> None:
    await check(sqlite(tmp_path))


# --- Stores that do not ---------------------------------------------------------------------------


async def broken(check: Callable[[contract.Open], Awaitable[None]], open_store: contract.Open) -> None:
    with pytest.raises(contract.Broken):
        await check(open_store)


async def test_a_store_that_keeps_half_a_turn_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    make = Plan.__init__

    def noted(plan: Plan) -> None:
        make(plan)
        plans.append(plan)

    class Hasty(MemoryStore):
        def take_turn(self, decide: Decide) -> Plan:
            try:
                return super().take_turn(decide)
            except ZeroDivisionError:
                self._commit(plans[-1])
                raise

    monkeypatch.setattr(Plan, "__init__", noted)
    await broken(contract.a_decision_that_raises_leaves_nothing, lambda: Hasty(SystemClock()))


async def test_a_store_that_swallows_errors_is_found_out() -> None:
    class Silent(MemoryStore):
        def take_turn(self, decide: Decide) -> Plan:
            try:
                return super().take_turn(decide)
            except ZeroDivisionError:
                return Plan()

    await broken(contract.a_decision_that_raises_leaves_nothing, lambda: Silent(SystemClock()))


async def test_a_store_that_loses_a_field_is_found_out() -> None:
    class Forgetful(MemoryStore):
        async def get(self, work_id: str) -> Record | None:
            record = await super().get(work_id)
            return record and replace(record, watch_at=None)

    await broken(contract.records_come_back_as_they_were, lambda: Forgetful(SystemClock()))


async def test_a_store_that_finds_the_oldest_first_is_found_out() -> None:
    class Backwards(MemoryStore):
        async def find(self, query: Query) -> list[Record]:
            return (await super().find(replace(query, limit=10**6)))[::-1][: query.limit]

    await broken(contract.records_come_back_as_they_were, lambda: Backwards(SystemClock()))


async def test_a_store_that_forgets_keys_or_dependents_is_found_out() -> None:
    class Keyless(MemoryStore):
        def read(self, request: ReadRequest) -> ReadResult:
            found = super().read(request)
            found.keys.clear()
            found.unique_keys.clear()
            found.dependents = {need: some[::-1] for need, some in found.dependents.items()}
            return found

    await broken(contract.a_decision_reads_what_it_names, lambda: Keyless(SystemClock()))
    await broken(contract.a_key_leads_to_whoever_took_it_last, lambda: Keyless(SystemClock()))
    await broken(submitted.a_unique_key_leads_to_the_newest_unit, lambda: Keyless(SystemClock()))
    await broken(contract.dependents_are_found_in_the_order_they_came, lambda: Keyless(SystemClock()))


async def test_a_clock_that_jumps_back_is_found_out() -> None:
    class Restless(SystemClock):
        at = 100.0

        def now(self) -> float:
            self.at -= 1
            return self.at

    await broken(contract.time_never_goes_back, lambda: MemoryStore(Restless()))


async def test_a_store_without_a_reader_is_found_out() -> None:
    await broken(contract.an_index_key_is_paged_in_order, memory)


async def test_turns_that_overlap_are_found_out() -> None:
    records: dict[str, Record] = {}

    class Alone(MemoryStore):
        """Turns that are not exclusive: each in a thread of its own."""

        is_inline = False

        def __init__(self) -> None:
            super().__init__(SystemClock())
            self._records = records

        async def turn(
            self, decide: Decide, post: Outgoing | None = None, takeover: Takeover | None = None
        ) -> tuple[Plan | None, Received | None]:
            return await asyncio.to_thread(self._turned, decide), None

        def _turned(self, decide: Decide) -> Plan:
            plan = decide(MemoryTurn(self))
            self._commit(plan)
            return plan

        async def close(self, still_running: bool = False) -> None: ...

    await broken(contract.turns_never_overlap, Alone)


@pytest.mark.parametrize(
    ("part", "name", "wrong", "check"),
    [
        (Records, "page", lambda right: lambda *given: right(*given)[::-1],
         contract.an_index_key_is_paged_in_order),
        (Records, "watched", lambda right: lambda tables, until, limit: right(tables, until + 5, limit),
         contract.the_reader_finds_what_is_due_and_what_is_oldest),
        (Tables, "everything", lambda right: lambda tables, head: replace(right(tables, head), services=[]),
         contract.who_takes_over_is_told_everything),
        (Records, "starts", lambda right: lambda tables, since: right(tables, dict.fromkeys(since, 0.0)),
         contract.starts_are_read_as_far_back_as_they_are_asked_for),
        (Tables, "forget", lambda right: lambda tables: None, contract.a_turn_that_failed_begins_anew),
        (Records, "events", lambda right: lambda tables, after, *more: right(tables, max(0, after - 1), *more),
         contract.events_are_read_by_number),
        (Records, "_result_of", lambda right: lambda tables, work_id: None,
         contract.results_are_read_with_their_events),
        (Writer, "_write_index_heads", lambda right: lambda tables, plan, revision: None,
         contract.others_learn_that_an_index_key_is_empty),
        (Records, "_newest", lambda right: lambda tables, keys: {},
         submitted.a_unique_key_leads_to_the_newest_unit),
        (Writer, "_write_edits", lambda right: lambda tables, plan, now: None,
         submitted.an_edited_unit_is_kept_as_it_was_edited),
        (Units, "latest", lambda right: lambda tables, query: [], contract.others_find_what_was_written),
    ],
)  # fmt: skip
async def test_a_mistake_in_the_tables_is_found_out(
    part: type,
    name: str,
    wrong: Callable[[Any], Any],
    check: contract.Check,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, name, wrong(getattr(part, name)))
    await broken(check, sqlite(tmp_path))


async def test_a_commit_that_nobody_hears_of_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Presence, "poke", lambda presence, *given: [])
    monkeypatch.setattr("runcue.testing.manual_turns.PATIENCE", 0.1)
    monkeypatch.setattr("runcue.stores.presence.peer_monitor.LOOK_AROUND", 1000.0)
    await broken(contract.a_commit_wakes_the_others, sqlite(tmp_path))
