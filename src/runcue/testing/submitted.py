"""Checks of the store contract on what units were submitted with: unique keys and edits (see contract.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from runcue.core.model.lifecycle import move
from runcue.core.model.record import Extras, Progress, Record
from runcue.core.model.retry import Retry
from runcue.core.schedule.plan import ReadRequest, ReadResult
from runcue.testing.manual_turns import NOW, Hand, Open, expect, failed, hands, pending


async def a_unique_key_leads_to_the_newest_unit(open_store: Open) -> None:
    """Of the units with a unique key the newest is found, in whatever state: one that was revived is the newest."""

    async def newest(hand: Hand) -> dict[str, Record]:
        request = ReadRequest(unique_keys={"k", "other", "nobody"})
        found: ReadResult = await hand.look(lambda turn: turn.read(request))
        return found.unique_keys

    async with hands(open_store) as [hand]:
        await hand.write(pending(1, unique_key="k"), pending(2, unique_key="other"), pending(3))
        kept = hand.kept
        expect("newest", await newest(hand), {"k": kept["w1"], "other": kept["w2"]})
        failed = {"completed_at": NOW, "index_key": None, "sort_key": 0.0, "error": "x"}
        await hand.write(move(kept["w1"], "fail", **failed))
        await hand.write(pending(4, unique_key="k"))
        expect("newest of two", await newest(hand), {"k": kept["w4"], "other": kept["w2"]})
        await hand.write(move(kept["w4"], "fail", **failed))
        await hand.write(replace(move(kept["w1"], "revive"), seq=5))
        expect("revived", await newest(hand), {"k": kept["w1"], "other": kept["w2"]})
        await hand.write(move(kept["w1"], "fail", **failed))
        await hand.turn(lambda plan, turn: plan.purged.append("w1"))
        del kept["w1"]
        expect("after a purge", await newest(hand), {"k": kept["w4"], "other": kept["w2"]})


async def an_edited_unit_is_kept_as_it_was_edited(open_store: Open) -> None:
    """Whatever a unit was submitted with may change, before it starts and after it has failed."""
    async with hands(open_store) as [hand]:
        await hand.write(pending(1, unique_key="k"), *failed(2))
        for record in list(hand.kept.values()):
            spec = replace(
                record.spec, params=b'{"n":2}', services=("other",), queue="night", target="t", priority=-1.5,
                run_at=NOW + 9, delay=2.5, timeout=3.0, dependency_timeout=4.0, retry=Retry(4),
                cost=(("tokens", 2.0),), extras=Extras(expires=9.0), label="page 2",
            )  # fmt: skip
            await hand.write(replace(record, spec=spec, expires_at=NOW + 9, rank=3.0, progress=Progress(0.5)))
        await hand.compare()
        fresh = pending(3)
        await hand.write(replace(fresh, spec=replace(fresh.spec, params=b'{"n":3}')))
        await hand.compare()


EVERY: tuple[Callable[[Open], Awaitable[None]], ...] = (
    a_unique_key_leads_to_the_newest_unit,
    an_edited_unit_is_kept_as_it_was_edited,
)
