"""What an application puts around each attempt, and instruments that are told everything."""

import asyncio
import contextvars
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from runcue import Cue, InvalidOption, Work
from tests.handlers import no_op

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="outside")


async def test_it_is_entered_around_each_attempt_the_first_outermost() -> None:
    cue, seen = Cue(), []

    def entering(name: str) -> Any:
        @contextmanager
        def around(work: Work) -> Iterator[None]:
            seen.append(f"{name} {work.id} {work.attempt}")
            try:
                yield
            except OSError as error:
                seen.append(f"{name} {error}")
                raise
            finally:
                seen.append(f"{name} over")

        return around

    cue.around(entering("a"))
    cue.around(entering("b"))

    @cue.task(retry=2)
    async def call(work: Work) -> str:
        seen.append("called")
        if work.attempt == 1:
            raise OSError("no line")
        return "good"

    async with cue:
        await cue.submit("call", id="w")
        assert await cue.result("w") == "good"
    once = ["a w 1", "b w 1", "called", "b no line", "b over", "a no line", "a over"]
    assert seen == [*once, "a w 2", "b w 2", "called", "b over", "a over"]


async def test_the_handler_runs_in_its_context_in_a_thread_too() -> None:
    cue = Cue()

    @cue.around
    @contextmanager
    def around(work: Work) -> Iterator[None]:
        token = place.set(work.task)
        yield
        place.reset(token)

    @cue.task
    async def inside(work: Work) -> str:
        await asyncio.sleep(0)
        return place.get()

    @cue.task
    def threaded(work: Work) -> str:
        return place.get()

    async with cue:
        assert await cue.result(await cue.submit("inside")) == "inside"
        assert await cue.result(await cue.submit("threaded")) == "threaded"
    assert place.get() == "outside"


class Swallows(AbstractContextManager[None]):
    """Says that what went wrong is its own business."""

    def __exit__(self, *what: object) -> bool:
        return True


class Breaks(AbstractContextManager[None]):
    """Fails at its end."""

    def __exit__(self, *what: object) -> None:
        raise RuntimeError("broken")


def cannot(work: Work) -> AbstractContextManager[None]:
    raise RuntimeError("cannot")


@pytest.mark.parametrize(
    "around", [lambda work: Swallows(), lambda work: Breaks(), cannot, lambda work: None]
)
async def test_its_own_troubles_change_no_outcome(around: Any, caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue()
    cue.around(around)

    @cue.task
    async def call(work: Work) -> str:
        if work.params:
            raise OSError("no line")
        return "good"

    with caplog.at_level(logging.CRITICAL, "runcue"):
        async with cue:
            assert await cue.result(await cue.submit("call")) == "good"
            assert (await cue.wait(await cue.submit("call", params={"fails": 1}))).error == "OSError: no line"


async def test_what_cannot_be_put_around_is_refused() -> None:
    async def wrong(work: Work) -> None: ...

    for one in (wrong, lambda: None, 7):
        with pytest.raises(InvalidOption):
            Cue().around(one)  # type: ignore[type-var]


class Counting:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.calls: list[str] = []
        self.callback_errors: list[str] = []

    def heard(self, plan: Any) -> None:
        self.events += [type(news).__name__ for news in plan.events]

    def called(self, callback: str, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append(callback)

    def complained(self, callback: str) -> None:
        self.callback_errors.append(callback)


async def test_an_observer_is_told_of_events_callbacks_and_their_failures() -> None:
    cue, observer = Cue(), Counting()
    cue.task("call")(no_op)

    @cue.is_ready
    async def ready(work: Work) -> bool:
        return True

    @cue.priority
    def score(context: Any) -> float:
        raise OSError("no line")

    @cue.on_complete
    def done(work: Work, result: object, duration: float) -> None:
        raise OSError("no line")

    end = cue.observe(observer)
    async with cue:
        await cue.result(await cue.submit("call"))
        await cue.join()
        assert set(observer.calls) == {"is_ready", "priority", "on_complete"}
        assert set(observer.callback_errors) == {"priority", "on_complete"}
        assert len(observer.events) >= 3
        end()
        before = len(observer.events)
        await cue.result(await cue.submit("call"))
        assert len(observer.events) == before


class Broken(Counting):
    """Raises whatever it is told."""

    def heard(self, plan: Any) -> None:
        raise RuntimeError("broken")

    def called(self, callback: str, seconds: float) -> None:
        raise RuntimeError("broken")

    def complained(self, callback: str) -> None:
        raise RuntimeError("broken")


async def test_an_observer_that_is_broken_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cue, sound = Cue(), Counting()

    @cue.task
    async def call(work: Work) -> str:
        return "good"

    @cue.is_ready
    def ready(work: Work) -> bool:
        return True

    @cue.on_complete
    def done(work: Work, result: object, duration: float) -> None:
        raise OSError("no line")

    cue.observe(Broken())
    cue.observe(sound)
    with caplog.at_level(logging.CRITICAL, "runcue"):
        async with cue:
            for _ in range(3):
                assert await cue.result(await cue.submit("call")) == "good"
            await cue.join()
    assert len(sound.events) >= 9
    assert len(sound.callback_errors) == 3
