"""`connection=`: a unit exists if the user's own transaction is committed, and never did if it is not."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from importlib import import_module
from typing import Any

import apsw
import psycopg
import pytest

from runcue import Cue, StoreError, SubmitError, WorkState
from tests.outside.drivers import ON_FILE, ON_POSTGRES, Began, django_connection, of_sqlalchemy
from tests.outside.inserting import Outsider, on_file, on_postgres
from tests.pg.server import Server

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=[*ON_POSTGRES, *ON_FILE])
def begun(request: pytest.FixtureRequest) -> tuple[Outsider, Began]:
    """A queue, and what opens a connection to its database in a transaction."""
    if request.param in ON_FILE:
        return on_file(request.getfixturevalue("tmp_path") / "queue.db"), ON_FILE[request.param]
    return on_postgres(request.getfixturevalue("pg")), ON_POSTGRES[request.param]


def with_task(target: str | None) -> Cue:
    cue = Cue(target)

    @cue.task(timeout=30)
    async def page(number: int) -> int:
        return number

    return cue


async def test_with_the_transaction_the_units_come_or_never_were(begun: tuple[Outsider, Began]) -> None:
    outsider, begin = begun
    cue = with_task(outsider.target)
    async with cue:
        await cue.count()
        for commits in (False, True):
            async with begin(outsider.target) as (connection, end):
                one = await cue.submit("page", params={"number": 1}, connection=connection)
                many = await cue.submit_many(
                    [{"task": "page", "params": {"number": n}} for n in (2, 3)], connection=connection
                )
                assert await cue.submit_many([], connection=connection) == []
                cue.wake()
                assert [await cue.get(id) for id in (one, *many)] == [None] * 3
                await end(commits)
            cue.wake()
            if commits:
                assert await cue.results([one, *many], timeout=60) == [1, 2, 3]
                work = await one.get()
                assert work is not None
                assert work.timeout == 30
        assert (await cue.count())[WorkState.COMPLETED] == 3


async def test_units_are_cancelled_and_retried_with_the_transaction(begun: tuple[Outsider, Began]) -> None:
    outsider, begin = begun
    cue = with_task(outsider.target)
    id = await cue.submit("page", params={"number": 1}, delay=3600)
    for verb, commits, state in (
        (cue.cancel, False, "pending"),
        (cue.cancel, True, "cancelled"),
        (cue.retry, False, "cancelled"),
        (cue.retry, True, "pending"),
    ):
        async with begin(outsider.target) as (connection, end):
            assert await verb(id, connection=connection)
            await end(commits)
        cue.wake()
        await cue.explain(id)  # asks in a turn, which takes what was committed
        work = await cue.get(id)
        assert work is not None
        assert work.state == state
    await cue.close()


async def test_the_function_of_a_task_takes_a_connection_too(pg: str) -> None:
    cue = Cue(pg)

    @cue.task
    async def page(number: int) -> int:
        return number

    async with cue:
        with psycopg.connect(pg) as connection:
            one = await page.options(connection=connection, priority=5).submit(number=1)
            more = await page.options(connection=connection).submit_many([{"number": 2}])
        cue.wake()
        assert await cue.results([one, *more], timeout=60) == [1, 2]


async def test_a_unit_that_depends_on_one_of_an_open_transaction_waits_for_it(pg: str) -> None:
    cue = with_task(pg)
    async with cue:
        with psycopg.connect(pg) as connection:
            first = await cue.submit("page", params={"number": 1}, connection=connection)
            second = await cue.submit("page", params={"number": 2}, depends_on=[first])
            assert (await cue.explain(second)).reason == "dependency"
        cue.wake()
        assert await cue.results([first, second], timeout=60) == [1, 2]


async def test_a_transaction_that_stays_open_with_much_in_it_holds_up_nobody(pg: str) -> None:
    cue = with_task(pg)
    async with cue:
        with psycopg.connect(pg) as connection:
            many = await cue.submit_many(
                [{"task": "page", "params": {"number": n}} for n in range(1000)], connection=connection
            )
            with psycopg.connect(pg) as other:
                later = await cue.submit("page", params={"number": 1}, connection=other)
            own = await cue.submit("page", params={"number": 2})
            cue.wake()
            assert await cue.results([later, own], timeout=60) == [1, 2]
            assert (await cue.count())[WorkState.COMPLETED] == 2
        cue.wake()
        assert await cue.results(many, timeout=120) == [*range(1000)]


CALLER = """
import asyncio, os, signal, sys, psycopg, runcue
async def main():
    cue = runcue.Cue(sys.argv[1])
    @cue.task
    async def page(number: int): pass
    connection = psycopg.connect(sys.argv[1])
    await cue.submit(page, params={"number": 1}, id="never", connection=connection)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_what_a_caller_submitted_that_was_killed_before_its_commit_never_was(pg: str) -> None:
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", CALLER, pg], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    cue = with_task(pg)
    async with cue:
        with psycopg.connect(pg) as connection:
            id = await cue.submit("page", params={"number": 3}, connection=connection)
        cue.wake()
        assert await cue.result(id, timeout=60) == 3
        assert await cue.get("never") is None


async def test_what_was_not_committed_when_the_server_crashed_never_was(pg_own: Server) -> None:
    dsn = pg_own.database()
    cue = with_task(dsn)
    await cue.count()
    with psycopg.connect(dsn) as connection:
        kept = await cue.submit("page", params={"number": 1}, connection=connection)
    lost = psycopg.connect(dsn)
    never = await cue.submit("page", params={"number": 2}, connection=lost)
    await asyncio.to_thread(pg_own.crash)
    await asyncio.to_thread(pg_own.start)
    with pytest.raises(psycopg.OperationalError):
        lost.commit()
    lost.close()
    await cue.close()
    cue = with_task(dsn)
    async with cue:
        assert await cue.result(kept, timeout=120) == 1
        assert await cue.get(never) is None
    await cue.close()


# --- What is refused ------------------------------------------------------------------------------


async def refused(cue: Cue, connection: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        await cue.submit("page", params={"number": 1}, connection=connection)
    assert (await cue.count())[WorkState.PENDING] == 0


async def test_a_queue_in_memory_has_no_part_in_transactions(pg: str) -> None:
    with psycopg.connect(pg) as connection:
        await refused(
            with_task(None), connection, SubmitError, "needs a queue in the database of the connection"
        )


async def test_what_is_no_connection_is_refused_with_what_is_one(pg: str) -> None:
    cue = with_task(pg)
    await refused(cue, object(), SubmitError, "takes a connection of psycopg, asyncpg, .* not object")
    await cue.close()


async def test_a_connection_without_a_transaction_is_refused(pg: str) -> None:
    cue = with_task(pg)
    with psycopg.connect(pg, autocommit=True) as connection:
        await refused(cue, connection, SubmitError, "is in no transaction")
    async with await psycopg.AsyncConnection.connect(pg, autocommit=True) as other:
        await refused(cue, other, SubmitError, "is in no transaction")
    await cue.close()


async def test_connections_of_libraries_without_a_transaction_are_refused(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = import_module("sqlalchemy")
    asyncpg = import_module("asyncpg")
    cue = with_task(pg)
    engine = library.create_engine(of_sqlalchemy(pg, "psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        await refused(cue, connection, SubmitError, "is in no transaction")
    engine.dispose()
    asynchronous = import_module("sqlalchemy.ext.asyncio")
    engine = asynchronous.create_async_engine(of_sqlalchemy(pg, "asyncpg"), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await refused(cue, connection, SubmitError, "is in no transaction")
    await engine.dispose()
    plain = await asyncpg.connect(pg)
    await refused(cue, plain, SubmitError, "is in no transaction")
    await plain.close()
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    wrapper = django_connection(pg)
    await refused(cue, wrapper, SubmitError, "is in no transaction")
    wrapper.close()
    await cue.close()


async def test_a_transaction_that_has_failed_is_refused(pg: str) -> None:
    cue = with_task(pg)
    connection = psycopg.connect(pg)
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT * FROM nowhere")
    await refused(cue, connection, SubmitError, "has failed already. Roll it back")
    connection.close()
    await cue.close()


async def test_another_database_another_queue_and_another_kind_are_refused(
    pg: str, pg_server: Any, tmp_path: Any
) -> None:
    other = pg_server.database()
    cue, file, elsewhere = with_task(pg), with_task(str(tmp_path / "queue.db")), with_task(other)
    with psycopg.connect(other) as connection:
        await refused(cue, connection, StoreError, "leads to a database without the queue")
    await elsewhere.count()
    with psycopg.connect(other) as connection:
        await refused(cue, connection, StoreError, "leads to another queue than")
        await refused(file, connection, StoreError, "leads to PostgreSQL, and the queue .* is in SQLite")
    one = apsw.Connection(str(tmp_path / "other.db"))
    one.execute("BEGIN")
    await refused(cue, one, StoreError, "leads to SQLite, and the queue .* is in PostgreSQL")
    await refused(file, one, StoreError, "leads to a database without the queue")
    one.close()
    for opened in (cue, file, elsewhere):
        await opened.close()
    pg_server.drop(other)


async def test_another_file_of_a_queue_is_refused(tmp_path: Any) -> None:
    cue, other = with_task(str(tmp_path / "queue.db")), with_task(str(tmp_path / "other.db"))
    await other.count()
    connection = apsw.Connection(str(tmp_path / "other.db"))
    await refused(cue, connection, SubmitError, "is in no transaction")
    connection.execute("BEGIN")
    await refused(cue, connection, StoreError, "leads to another queue than")
    connection.close()
    await cue.close()
    await other.close()


async def test_another_copy_of_sqlite_is_refused_on_the_file_of_the_queue(
    pg: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "elsewhere.db"
    cue, there = with_task(str(tmp_path / "queue.db")), with_task(pg)
    connection = sqlite3.connect(path)
    engine = import_module("sqlalchemy").create_engine(f"sqlite:///{path}")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    wrapper = django_connection(pg, "sqlite3")
    with engine.connect() as other:
        for one in (connection, other, wrapper):
            await refused(cue, one, SubmitError, "is another copy of SQLite")
            await refused(there, one, StoreError, "leads to SQLite, and the queue .* is in PostgreSQL")
    engine.dispose()
    connection.close()
    wrapper.close()
    await cue.close()
    await there.close()


async def test_a_database_that_no_queue_is_in_is_refused(pg: str) -> None:
    cue = with_task(pg)
    engine = import_module("sqlalchemy").create_mock_engine("mysql+pymysql://", lambda *given: None)
    await refused(cue, engine, StoreError, "leads to mysql, and the queue .* is in PostgreSQL")
    await cue.close()


async def test_who_may_not_insert_is_told_what_to_grant(pg: str) -> None:
    cue = with_task(pg)
    async with cue:
        await cue.count()
        with psycopg.connect(pg) as connection:
            connection.execute("CREATE ROLE clerk")
            connection.execute("GRANT USAGE ON SCHEMA runcue TO clerk")
            connection.execute("SAVEPOINT before")
            connection.execute("SET ROLE clerk")
            await refused(cue, connection, StoreError, "may not submit to .* INSERT on the table submissions")
            connection.execute("ROLLBACK TO SAVEPOINT before")
            connection.execute("GRANT INSERT ON runcue.submissions TO clerk")
            connection.execute("GRANT SELECT ON runcue.head TO clerk")
            connection.execute("SET ROLE clerk")
            id = await cue.submit("page", params={"number": 3}, connection=connection)
            connection.execute("RESET ROLE")
            connection.execute("DROP OWNED BY clerk")
            connection.execute("DROP ROLE clerk")
        cue.wake()
        assert await cue.result(id, timeout=60) == 3


async def test_a_mistake_of_the_driver_is_its_own_error(pg: str) -> None:
    cue = with_task(pg)
    connection = psycopg.connect(pg)
    connection.close()
    await refused(cue, connection, psycopg.OperationalError, "closed")
    await cue.close()


async def test_what_a_submission_would_refuse_is_refused_before_anything_is_inserted(pg: str) -> None:
    cue = with_task(pg)
    with psycopg.connect(pg) as connection:
        for number in ("x'); DROP TABLE runcue.head; --", "1" * 300_000):
            with pytest.raises(SubmitError):
                await cue.submit("page", params={"number": number}, connection=connection)
        assert connection.info.transaction_status == 0
    await cue.close()
