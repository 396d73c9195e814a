"""A Client: plain code that submits and looks, without a loop, a thread or a place among the processes of a queue."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import runcue
from runcue import Client, ConfigError, Cue, StoreError, SubmitError, WorkState
from tests.outside.drivers import django_connection
from tests.outside.inserting import Outsider
from tests.patience import until_sync
from tests.pg.pooler import pooler
from tests.queues import make_empty

pytestmark = pytest.mark.timeout(300)

WORKER = """
import asyncio, sys, runcue
async def main():
    cue = runcue.Cue(sys.argv[1])
    @cue.task(timeout=30)
    async def double(number: int) -> int:
        return 2 * number
    @cue.task(retry=1)
    async def fails(work):
        raise ValueError("no")
    async with cue:
        print("ready", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def worker(outsider: Outsider) -> Iterator[str]:
    """A program that runs units; the target of its queue."""
    with subprocess.Popen([sys.executable, "-c", WORKER, outsider.target], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield outsider.target
        process.kill()


def test_what_is_submitted_runs_and_its_result_comes_back(worker: str) -> None:
    with Client(worker) as client:
        one = client.submit("double", params={"number": 4})
        many = client.submit_many([{"task": "double", "params": {"number": n}} for n in (5, 6)])
        assert client.submit_many([]) == []
        assert client.results([one, *many], timeout=100) == [8, 10, 12]
        work = client.get(one)
        assert work is not None
        assert work.timeout == 30, "that of its task"
        assert [unit.id for unit in client.list("completed")] == [*reversed(many), one]
        assert client.status()[WorkState.COMPLETED] == 3


def test_failures_are_raised_and_units_are_retried_and_cancelled(worker: str) -> None:
    with Client(worker) as client:
        id = client.submit("fails")
        with pytest.raises(runcue.WorkFailed, match="ValueError: no"):
            client.result(id, timeout=100)
        client.retry(id)
        later = client.submit("double", params={"number": 1}, delay=3600)
        client.cancel(later)
        assert client.wait(later, timeout=100).state is WorkState.CANCELLED
        [error, other] = client.results([later, id], timeout=100, errors="return")
        assert isinstance(error, runcue.WorkCancelled)
        assert isinstance(other, runcue.WorkFailed)


def test_a_unit_is_made_of_a_task_of_another_program(worker: str) -> None:
    cue = Cue()

    @cue.task
    async def double(number: int) -> int:
        return 0

    with Client(worker) as client:
        assert client.result(client.submit(double.unit(number=3)), timeout=100) == 6


def test_what_nobody_takes_waits_in_the_inbox(outsider: Outsider) -> None:
    asyncio.run(make_empty(outsider.target))
    with Client(outsider.target) as client:
        id = client.submit("double", params={"number": 1})
        work = client.get(id)
        assert work is not None
        assert (work.state, work.params) == (WorkState.PENDING, {"number": 1})
        assert client.status()[WorkState.PENDING] == 1
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s: it is pending"):
            client.wait(id, timeout=0.05)
        with pytest.raises(runcue.WorkNotFound):
            client.wait("nobody")
        assert client.get("nobody") is None


def test_a_file_is_made_and_a_schema_is_not(tmp_path: Path, pg: str) -> None:
    with Client(tmp_path / "new.db") as client:
        id = client.submit("double", params={"number": 1})
        assert client.get(id) is not None
    with Client(tmp_path / "other.db") as client:
        assert client.get("a") is None
    with Client(pg) as client, pytest.raises(StoreError, match="holds no queue 'default' yet"):
        client.submit("double")


@pytest.mark.parametrize("commits", [True, False])
def test_a_client_submits_in_a_transaction_of_its_users(outsider: Outsider, commits: bool) -> None:
    asyncio.run(make_empty(outsider.target))
    connection: Any
    if outsider.target.startswith("postgresql"):
        connection = psycopg.connect(outsider.target)
        connection.execute("SELECT 1")
    else:
        connection = apsw.Connection(outsider.target)
        connection.execute("BEGIN")
    with Client(outsider.target) as client:
        id = client.submit("double", params={"number": 1}, connection=connection)
        assert client.get(id) is None
        connection.execute("COMMIT" if commits else "ROLLBACK")
        assert (client.get(id) is not None) == commits
    connection.close()


def test_a_client_submits_on_a_connection_of_django(pg: str) -> None:
    asyncio.run(make_empty(pg))
    connection = django_connection(pg)
    with Client(pg) as client:
        with pytest.raises(SubmitError, match="is in no transaction"):
            client.submit("double", connection=connection)
        connection.set_autocommit(False)
        id = client.submit("double", connection=connection)
        connection.rollback()
        assert client.get(id) is None
        id = client.submit("double", connection=connection)
        connection.commit()
        assert client.get(id) is not None
    connection.close()


async def test_a_connection_that_has_to_be_awaited_is_refused(pg: str) -> None:
    await make_empty(pg)
    async with await psycopg.AsyncConnection.connect(pg) as connection:
        with Client(pg) as client, pytest.raises(SubmitError, match="cannot await AsyncConnection"):
            client.submit("double", connection=connection)


def test_options_are_checked_as_those_of_submit(tmp_path: Path) -> None:
    misspelt: Any = {"priorty": 1}
    no_name: Any = print
    no_list: Any = {"task": "double"}
    with Client(tmp_path / "queue.db") as client:
        with pytest.raises(runcue.UnknownOption, match="priorty"):
            client.submit("double", **misspelt)
        with pytest.raises(SubmitError, match="by its name here, not by"):
            client.submit(no_name)
        with pytest.raises(SubmitError, match=r"items\[1\]: "):
            client.submit_many([{"task": "double"}, {"task": "double", "params": []}])
        with pytest.raises(SubmitError, match="takes a list of dicts"):
            client.submit_many(no_list)
        assert client.list() == []
    with pytest.raises(StoreError, match=r"is closed\. Make a new one"):
        client.get("a")
    assert repr(client).endswith(" closed>")
    for nowhere in (":memory:", "mysql://host/db"):
        with pytest.raises(ConfigError, match="a Client submits to a queue in a file or in PostgreSQL"):
            Client(nowhere)


def test_threads_share_a_client(outsider: Outsider) -> None:
    asyncio.run(make_empty(outsider.target))
    with Client(outsider.target) as client:
        threads = [
            threading.Thread(target=lambda: [client.submit("double") for _ in range(10)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.status()[WorkState.PENDING] == 40


def test_many_callers_at_once_beside_several_workers_lose_nothing(outsider: Outsider) -> None:
    asyncio.run(make_empty(outsider.target))
    call = [sys.executable, "-c", WORKER, outsider.target]
    workers = [subprocess.Popen(call, stdout=subprocess.PIPE) for _ in range(3)]
    ids: dict[str, int] = {}

    def submit(caller: int) -> None:
        with Client(outsider.target) as client:
            for number in range(5):
                value = 10 * caller + number
                ids[client.submit("double", params={"number": value})] = 2 * value

    threads = [threading.Thread(target=submit, args=(caller,)) for caller in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        with Client(outsider.target) as client:
            assert client.results([*ids], timeout=200) == [*ids.values()]
            counts = client.status()
            assert counts[WorkState.COMPLETED] == sum(counts.values()) == 100
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_params_that_are_too_large_are_refused_before_anything_is_inserted(
    outsider: Outsider, tmp_path: Path
) -> None:
    asyncio.run(make_empty(outsider.target))
    large = {"text": "ü" * 3_000_000}
    with Client(outsider.target) as client:
        with pytest.raises(runcue.InvalidParams, match="params take 6,000,011 bytes"):
            client.submit("double", params=large)
        with pytest.raises(runcue.InvalidParams, match="params take 6,000,011 bytes"):
            client.submit_many([{"task": "double"}, {"task": "double", "params": large}])
        assert client.list() == []
    shop = sqlite3.connect(tmp_path / "shop.db")
    outbox = runcue.Outbox(shop)
    outbox.create()
    with pytest.raises(runcue.InvalidParams, match="params take 6,000,011 bytes"):
        outbox.submit("double", params=large)
    assert outbox.waiting() == []
    shop.close()


def test_a_connection_that_has_to_wait_holds_up_no_other_thread(pg: str) -> None:
    asyncio.run(make_empty(pg))
    connections: Any = [psycopg.connect(pg) for _ in range(3)]
    holder, waiting, free = connections
    with Client(pg) as client:
        client.submit("double", id="a")
        holder.execute("LOCK TABLE runcue.submissions IN EXCLUSIVE MODE")
        thread = threading.Thread(
            target=client.submit, args=("double",), kwargs={"id": "b", "connection": waiting}
        )
        thread.start()
        until_sync(lambda: free.execute(WAITS).fetchone() == (1,))
        work = client.get("a")  # it may read meanwhile
        assert work is not None
        holder.rollback()
        thread.join()
        waiting.commit()
        assert client.get("b") is not None
    for one in connections:
        one.close()


WAITS = """
    SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database
    WHERE NOT granted AND d.datname = current_database()
"""


FORKING = """
import os, sys, runcue
client = runcue.Client(sys.argv[1])
children = []
for number in range(3):
    child = os.fork()
    if not child:
        client.submit("double", id=f"u{number}")
        client.close()
        os._exit(0)
    children.append(child)
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
assert client.status()["pending"] == 3
child = os.fork()
if not child:
    try:
        client.get("u1")
    except runcue.ForkedConnection:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert client.get("u1").task == "double"
"""


def test_forked_workers_use_a_client_that_was_made_before(outsider: Outsider) -> None:
    asyncio.run(make_empty(outsider.target))
    done = subprocess.run(
        [sys.executable, "-c", FORKING, outsider.target], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_kept_in_a_session(pg: str) -> None:
    """What a pooler would give each transaction is another session: these are the same for all others then."""
    asyncio.run(make_empty(pg))
    with Client(pg) as client:
        id = client.submit("double")
        client.get(id)
        inserter: Any = client._inserter
        link = inserter._link.raw
        assert link.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
        assert link.execute("SELECT count(*) FROM pg_settings WHERE source = 'session'").fetchone() == (0,)


def test_a_client_submits_through_a_pooler_that_shares_sessions(pg: str, pg_server: Any) -> None:
    """More clients than sessions, each of whose transactions may get another session than the one before."""
    asyncio.run(make_empty(pg))
    target = pg_server.dsn(pg, tcp=True)
    with (
        pooler(target, "transaction", default_pool_size=2) as address,
        subprocess.Popen([sys.executable, "-c", WORKER, pg], stdout=subprocess.PIPE) as worker,
    ):
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        clients = [Client(address) for _ in range(8)]
        found: dict[int, list[Any]] = {}

        def use(place: int) -> None:
            client, ids = clients[place], []
            for number in range(10):
                ids.append(client.submit("double", params={"number": number}))
                with psycopg.connect(address, prepare_threshold=None) as connection:
                    client.submit_many(
                        [
                            {
                                "task": "double",
                                "params": {"number": 100 + number},
                                "id": f"{place}-{number}",
                            }
                        ],
                        connection=connection,
                    )
                ids.append(f"{place}-{number}")
                assert client.get(ids[-1]) is not None
            found[place] = client.results(ids, timeout=100)

        threads = [threading.Thread(target=use, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wanted = [2 * value for number in range(10) for value in (number, 100 + number)]
        assert found == dict.fromkeys(range(8), wanted)
        later = clients[0].submit("double", params={"number": 1}, delay=3600)
        clients[1].cancel(later)
        assert clients[2].wait(later, timeout=100).state is WorkState.CANCELLED
        assert clients[3].status()[WorkState.COMPLETED] == 160
        for client in clients:
            client.close()
        worker.kill()
