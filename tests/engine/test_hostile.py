"""LU3: whatever a handler or a callback raises or returns, its attempt ends, and nothing dies unheard."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from runcue import CommandFailed, Cue, PriorityContext, Work
from tests import hostile
from tests.engine.seen import told
from tests.handlers import no_op

SOON = 600.0
HANDLERS = {"async": hostile.misbehave_on_the_loop, "thread": hostile.misbehave}


@pytest.fixture(autouse=True)
async def all_is_heard() -> AsyncIterator[None]:
    """Fails a test in which a task or a callback of the loop died."""
    died: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: died.append(context))
    yield
    gc.collect()
    assert died == []


async def states(cue: Cue, *ways: str) -> set[str]:
    """How everything hostile of these ways ended."""
    async with cue:
        ids = await cue.submit_many(hostile.submissions(*ways))
        await cue.join(ids, timeout=SOON)
        found = {work.state.value for work_id in ids if (work := await cue.get(work_id)) is not None}
    await cue.close()
    return found


@pytest.mark.parametrize("executor", HANDLERS)
async def test_an_exception_that_raises_when_it_is_looked_at_fails_its_attempt(executor: str) -> None:
    cue = Cue()
    cue.task("bad")(HANDLERS[executor])
    assert await states(cue, "raise", "raise odd") == {"failed"}


@pytest.mark.parametrize("executor", HANDLERS)
async def test_a_result_that_raises_when_it_is_looked_at_is_kept_in_memory_and_refused_elsewhere(
    executor: str, store: str
) -> None:
    cue = Cue()
    cue.task("bad", retry=3)(HANDLERS[executor])
    assert await states(cue, "return") == {"completed" if store == "memory" else "failed"}


@pytest.mark.memory
async def test_an_attempt_that_was_given_up_may_end_with_anything() -> None:
    cue = Cue()
    numbers = iter(hostile.NUMBERS)

    @cue.task("bad", timeout=1)
    async def bad(work: Work) -> None:
        try:
            await asyncio.sleep(SOON)
        finally:
            raise hostile.one("raise", next(numbers))

    async with cue:
        ids = await cue.submit_many({"task": "bad"} for _ in hostile.NUMBERS)
        await cue.join(ids, timeout=SOON)
        assert {(await cue.wait(work_id)).error for work_id in ids} == {"timeout"}
    await cue.close()


# --- Callbacks ------------------------------------------------------------------------------------


def failing_first(answer: Any) -> Callable[[Any], Any]:
    """A callback that raises something hostile for each work, and answers when it is asked again."""
    asked: set[str] = set()

    def callback(given: Any) -> Any:
        work: Work = given.work if isinstance(given, PriorityContext) else given
        if work.id not in asked:
            asked.add(work.id)
            raise hostile.one("raise", work.params["number"])
        return answer

    return callback


def as_coroutine(callback: Callable[..., Any]) -> Callable[..., Any]:
    async def later(*given: Any) -> Any:
        await asyncio.sleep(0)
        return callback(*given)

    return later


@pytest.mark.memory
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(("kind", "answer"), [("is_ready", True), ("is_stale", True), ("priority", 1.0)])
async def test_a_question_may_raise_anything(kind: str, answer: Any, is_async: bool) -> None:
    cue = Cue()
    callback = failing_first(answer)
    getattr(cue, kind)(as_coroutine(callback) if is_async else callback)
    cue.task("bad")(no_op)
    assert await states(cue, "raise") == {"completed"}


@pytest.mark.memory
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_an_on_callback_may_raise_anything(is_async: bool) -> None:
    cue = Cue()

    def raises(work: Work, *_: object) -> None:
        raise hostile.one("raise", work.params["number"])

    callback = as_coroutine(raises) if is_async else raises
    for register in (cue.on_start, cue.on_complete):
        register(callback)

    cue.task("bad")(no_op)
    assert await states(cue, "raise") == {"completed"}


@pytest.mark.memory
@pytest.mark.parametrize("is_at_its_end", [False, True])
async def test_what_is_put_around_work_may_raise_anything(is_at_its_end: bool) -> None:
    cue = Cue()

    @cue.around
    @contextmanager
    def around(work: Work) -> Iterator[None]:
        if is_at_its_end:
            yield
        raise hostile.one("raise", work.params["number"])

    cue.task("bad")(no_op)
    assert await states(cue, "raise") == {"completed"}


@pytest.mark.memory
async def test_on_failure_may_raise_whatever_it_was_given() -> None:
    cue = Cue()
    cue.task("bad")(hostile.misbehave_on_the_loop)

    @cue.on_failure
    def raises(work: Work, error: BaseException) -> None:
        raise error

    assert await states(cue, "raise") == {"failed"}


@pytest.mark.memory
async def test_outputs_may_raise_anything_once_the_work_is_done() -> None:
    cue = Cue()
    done: set[str] = set()

    def outputs(work: Work) -> str:
        if work.id in done:
            raise hostile.one("raise odd", work.params["number"])
        return f"missing/{work.id}"

    @cue.task("bad", outputs=outputs)
    async def fine(work: Work) -> None:
        done.add(work.id)

    assert await states(cue, "raise") == {"completed"}


# --- What a handler says while it runs ------------------------------------------------------------


class Share(float):
    """A number of somebody's own class, as NumPy has them."""


class Name(str):
    """A text that cannot be compared."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


async def test_numbers_and_texts_of_any_class_are_said_as_plain_ones() -> None:
    cue = Cue()
    cue.service("api", tokens="1000/min")

    @cue.task("call", uses="api", cost=lambda work: {"tokens": Share(3)})
    async def call(work: Any) -> None:
        work.progress(Share(0.5), Name("half"))
        work.charge(tokens=Share(2))
        work.observe({"x-ratelimit-remaining": "5", "x-ratelimit-reset": "1"}, service=Name("api"))

    async with cue:
        await cue.result(await cue.submit("call"), timeout=SOON)
        await cue.result(await cue.submit("call"), timeout=SOON)
    (event, _) = await told(cue, "progress")
    assert (type(event.fraction), type(event.text)) == (float, str)


async def test_a_failed_command_may_have_said_what_cannot_be_kept(store: str) -> None:
    cue = Cue()

    @cue.task("call")
    async def call(work: Work) -> None:
        raise CommandFailed("exit code 3", {"stdout": {1, 2}})

    async with cue:
        work = await cue.wait(await cue.submit("call"), timeout=SOON)
    assert (work.state, work.error) == ("failed", "CommandFailed: exit code 3")
    assert work.result == ({"stdout": {1, 2}} if store == "memory" else None)
