"""Resources: what happens when one is late, fails, is needed again, or does not end as it should."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import pytest

import runcue
from runcue import Cue, RunningWork
from runcue.testing import settle


class Database:
    pass


class Session:
    def __init__(self, database: Database) -> None:
        self.database = database


async def test_attempts_of_a_unit_share_what_was_opened_for_the_first() -> None:
    cue = Cue()
    seen: list[Database] = []

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        yield Database()

    @cue.task(retry=3)
    async def read(work: RunningWork, database: Database) -> int:
        seen.append(database)
        if work.attempt < 3:
            raise OSError
        return work.attempt

    async with cue:
        assert await (await cue.submit(read)).result() == 3
    assert len(seen) == 3
    assert len(set(seen)) == 1


async def test_a_parameter_may_say_more_than_the_type_of_its_resource() -> None:
    cue = Cue()

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        yield Database()

    @cue.task
    async def read(
        page: int, one: Database | None = None, two: Annotated[Database, "for reading"] | None = None
    ) -> bool:
        return one is two is not None

    async with cue:
        assert await (await read.submit(page=1)).result()
        with pytest.raises(
            runcue.InvalidParams, match=r"params\.one is unknown|params\.one is not submitted"
        ):
            await cue.submit(read, params={"page": 1, "one": 2})


async def test_opening_counts_towards_the_timeout_of_an_attempt_and_goes_on_for_the_next() -> None:
    cue = Cue()
    opened: list[float] = []

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        await asyncio.sleep(10)
        opened.append(asyncio.get_running_loop().time())
        yield Database()

    @cue.task(timeout=6, retry=runcue.Retry(2, base_delay=1, jitter=False))
    async def read(database: Database) -> str:
        return "read"

    async with cue:
        unit = await cue.submit(read)
        assert await unit.result() == "read"
        assert (await unit.wait()).attempt == 2
    assert len(opened) == 1


async def test_what_is_wrong_with_the_end_of_a_resource_is_logged_and_the_others_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cue = Cue()
    closed: list[str] = []

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        yield Database()
        closed.append("database")
        yield Database()

    @cue.resource
    def session(database: Database) -> Iterator[Session]:
        yield Session(database)
        closed.append("session")
        raise OSError("the connection was lost")

    @cue.task
    async def read(session: Session) -> None: ...

    async with cue:
        await (await cue.submit(read)).result()
        with caplog.at_level(logging.WARNING, "runcue"):
            await cue.stop()
    assert closed == ["session", "database"]
    text = caplog.text
    assert "the resource session raised when it was closed: OSError: the connection was lost" in text
    assert "the resource database raised when it was closed: RuntimeError: generator didn't stop" in text


async def test_a_generator_that_yields_nothing_fails_the_attempt() -> None:
    cue = Cue()

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        if asyncio.get_running_loop().time() < 0:
            yield Database()

    @cue.task
    async def read(database: Database) -> None: ...

    async with cue:
        with pytest.raises(runcue.WorkFailed, match=r"resource database could not be opened: .*didn't yield"):
            await (await cue.submit(read)).result()


@pytest.mark.parametrize("base", [Exception, BaseException])
async def test_an_error_that_cannot_be_shown_fails_the_attempt(base: type[BaseException]) -> None:
    class Unspeakable(base):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            raise OSError

    cue = Cue()

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        raise Unspeakable
        yield

    @cue.task
    async def read(database: Database) -> None: ...

    async with cue:
        with pytest.raises(runcue.WorkFailed, match=r"resource database could not be opened: .*Unspeakable$"):
            await (await cue.submit(read)).result(timeout=60)


async def test_a_resource_that_was_being_opened_when_the_cue_stopped_is_opened_anew() -> None:
    cue = Cue()
    log: list[str] = []
    may_open = asyncio.Event()

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        log.append("open")
        try:
            await may_open.wait()
            yield Database()
        finally:
            log.append("close")

    @cue.task
    async def read(database: Database) -> str:
        return "read"

    cue.start()
    await cue.submit(read)
    await settle()
    await cue.stop(timeout=0)
    assert log == ["open", "close"]
    may_open.set()
    cue.start()
    assert await (await cue.submit(read)).result() == "read"
    await cue.close()
    assert log == ["open", "close"] * 2


async def test_a_retry_of_a_resource_that_needs_another_does_not_open_that_one_again() -> None:
    cue = Cue()
    log: list[str] = []

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        log.append("database")
        yield Database()

    @cue.resource
    async def session(database: Database) -> AsyncIterator[Session]:
        log.append("session")
        if log.count("session") == 1:
            raise ConnectionError
        yield Session(database)

    @cue.task(retry=2)
    async def read(session: Session, database: Database) -> bool:
        return session.database is database

    async with cue:
        assert await (await cue.submit(read)).result()
    assert log == ["database", "session", "session"]


async def test_a_resource_that_does_not_close_is_left_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue(grace=3)
    loop = asyncio.get_running_loop()

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        yield Database()
        await asyncio.Event().wait()

    @cue.task
    async def read(database: Database) -> None: ...

    async with cue:
        await (await cue.submit(read)).result()
        began = loop.time()
        await cue.stop()
        assert loop.time() - began == pytest.approx(3, abs=0.5)
    assert "the resource database was still closing after 3 s, and is left" in caplog.text
