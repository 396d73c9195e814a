"""What is over is let go of: failed attempts, their exceptions and their frames."""

import asyncio
import gc
import weakref

from runcue import Cue, Work


class Baggage:
    """Something big that a handler had in its hands when it failed."""


async def fail_with_baggage(cue: Cue, times: int) -> list[weakref.ref[Baggage]]:
    """Run work that fails while it holds something; weak references to what it held."""
    held: list[weakref.ref[Baggage]] = []

    @cue.task("bad")
    async def bad(work: Work) -> None:
        baggage = Baggage()
        held.append(weakref.ref(baggage))
        raise ValueError("with baggage")

    async with cue:
        await cue.submit_many([{"task": "bad"}] * times)
        await cue.join()
    return held


async def test_a_failed_attempt_keeps_nothing_that_its_handler_held() -> None:
    held = await fail_with_baggage(Cue(), 50)
    await asyncio.sleep(0)
    gc.collect()
    assert len(held) == 50
    assert [reference for reference in held if reference() is not None] == []


async def test_a_failed_attempt_keeps_nothing_after_its_callback_saw_the_exception() -> None:
    cue = Cue()
    seen: list[str] = []

    @cue.on_failure
    def failed(work: Work, error: BaseException) -> None:
        seen.append(str(error))

    held = await fail_with_baggage(cue, 50)
    await asyncio.sleep(0)
    gc.collect()
    assert seen == ["with baggage"] * 50
    assert [reference for reference in held if reference() is not None] == []
