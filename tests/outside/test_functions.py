"""The SQL functions of a queue in PostgreSQL: what they insert, and who may call them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from runcue import Client, Cue, Reader, WorkState
from runcue.stores.sql import submissions
from tests import programs
from tests.outside.psql import psql
from tests.patience import until
from tests.queues import make_empty

pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))
"""Calls in SQL, the JSON of the rows that they insert, and what the units are like."""


@pytest.fixture
async def queue(pg: str) -> str:
    """A database with a queue in it."""
    await make_empty(pg)
    return pg


@pytest.mark.parametrize("vector", GOLDEN, ids=range(len(GOLDEN)))
async def test_a_call_inserts_the_row_of_the_golden_vector(queue: str, vector: dict[str, Any]) -> None:
    with psycopg.connect(queue) as connection:
        [(id,)] = connection.execute(f"SELECT runcue.{vector['call']}").fetchall()
        [(kind, named, item)] = connection.execute("SELECT kind, id, item FROM runcue.submissions").fetchall()
    assert (kind, named, json.loads(item)) == row_of(vector, id)
    with Reader(queue) as reader:
        work = reader.get(named)
        if "unit" in vector:
            assert work is not None
            found = json.loads(msgspec.json.encode(work))
            assert {name: found[name] for name in vector["unit"]} == vector["unit"]
        else:
            assert work is None


def row_of(vector: dict[str, Any], id: str) -> tuple[str, str, Any]:
    """The row of a golden vector, whose call returned that id."""
    return vector.get("kind", "submit"), vector.get("id", id), vector["item"]


async def test_psql_reads_the_golden_vectors(queue: str) -> None:
    script = "".join(f"SELECT runcue.{vector['call']};\n" for vector in GOLDEN)
    look = "SELECT kind, id, item FROM runcue.submissions ORDER BY number;\n"
    said = psql(queue, script + look).removesuffix("\n").split("\n")
    ids, rows = said[: len(GOLDEN)], [line.split("\t") for line in said[len(GOLDEN) :]]
    assert [(kind, id, json.loads(item)) for kind, id, item in rows] == [*map(row_of, GOLDEN, ids)]


async def test_node_reads_the_golden_vectors(queue: str) -> None:
    node, packages = shutil.which("node"), programs.CACHE / "node"
    if node is None or not (packages / "node_modules" / "pg").exists():
        pytest.skip("There is no driver of Node for this test: run tools/node.sh.")
    given = conninfo_to_dict(queue)
    environment = {"PGHOST": str(given["host"]), "PGPORT": str(given["port"]), "PGUSER": str(given["user"])}
    done = await asyncio.to_thread(
        subprocess.run,
        [node, str(HERE / "vectors.mjs"), str(HERE / "golden.json"), f"postgresql:///{given['dbname']}"],
        env={**environment, "PATH": os.environ["PATH"], "NODE_PATH": str(packages)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    *said, last = map(json.loads, done.stdout.decode().strip().split("\n"))
    rows = [(row["kind"], row["id"], json.loads(row["item"])) for row in (one["row"] for one in said)]
    assert rows == [row_of(vector, one["id"]) for vector, one in zip(GOLDEN, said, strict=True)]
    assert last == {"id": "by-node"}
    with Reader(queue) as reader:
        work = reader.get("by-node")
        assert work is not None
        assert work.params == {"page": 7, "text": "it's; -- 'ü'"}


async def test_a_unit_that_sql_submits_runs_and_is_cancelled_and_retried(queue: str) -> None:
    cue = Cue(queue)

    @cue.task(timeout=30)
    async def double(number: int) -> int:
        return 2 * number

    async with cue:
        await cue.count()
        with psycopg.connect(queue) as connection:
            [(id,)] = connection.execute("SELECT runcue.submit('double', '{\"number\": 4}')").fetchall()
            connection.execute(
                "SELECT runcue.submit('double', '{\"number\": 1}', id => 'x', delay => '1 hour')"
            )
        cue.wake()
        await cue.explain("x")
        assert await cue.result(id, timeout=60) == 8
        with psycopg.connect(queue) as connection:
            connection.execute("SELECT runcue.cancel('x', cascade => true)")
        cue.wake()
        assert (await cue.wait("x", timeout=60)).state is WorkState.CANCELLED
        with psycopg.connect(queue) as connection:
            connection.execute("SELECT runcue.retry('x')")
        cue.wake()
        await cue.explain("x")
        work = await cue.get("x")
        assert work is not None
        assert work.state is WorkState.PENDING


TRIGGER = """
    CREATE TABLE orders (id int);
    CREATE FUNCTION confirm() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM runcue.submit('confirm', to_jsonb(NEW), id => 'order-' || NEW.id);
        RETURN NULL;
    END $$;
    CREATE TRIGGER confirm AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION confirm();
"""


async def test_a_trigger_submits_for_every_row_of_a_statement(queue: str) -> None:
    with psycopg.connect(queue) as connection:
        connection.execute(TRIGGER)
        connection.execute("INSERT INTO orders SELECT generate_series(1, 3000)")
    cue, ran = Cue(queue), []

    @cue.task
    async def confirm(id: int) -> None:
        ran.append(id)

    async with cue:
        await cue.join(timeout=200)
        assert sorted(ran) == list(range(1, 3001))
    await cue.close()


async def test_nobody_calls_them_but_who_was_granted_it(queue: str) -> None:
    with psycopg.connect(queue, autocommit=True) as connection:
        connection.execute("CREATE ROLE clerk")
        try:
            connection.execute("GRANT USAGE ON SCHEMA runcue TO clerk; SET ROLE clerk")
            for call in ("submit('a')", "cancel('a')", "retry('a')"):
                with pytest.raises(errors.InsufficientPrivilege):
                    connection.execute(f"SELECT runcue.{call}")
            connection.execute("RESET ROLE; GRANT EXECUTE ON FUNCTION runcue.submit TO clerk; SET ROLE clerk")
            connection.execute("SELECT runcue.submit('a')")
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute("SELECT * FROM runcue.submissions")
        finally:
            connection.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")


async def test_what_a_caller_puts_in_the_way_is_not_used(queue: str) -> None:
    with psycopg.connect(queue) as connection:
        connection.execute("""
            CREATE TEMP TABLE submissions (at float8, kind text, id text, item text);
            CREATE TEMP TABLE head (now float8, clock_offset float8);
            CREATE SCHEMA trap;
            CREATE FUNCTION trap.gen_random_uuid() RETURNS uuid LANGUAGE sql AS 'SELECT 1/0; SELECT NULL::uuid';
            SET search_path = trap, pg_catalog, public;
        """)
        connection.execute("SELECT runcue.submit('a', id => 'real')")
        assert connection.execute("SELECT count(*) FROM runcue.submissions").fetchone() == (1,)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("submit(NULL)", "needs the name of a task"),
        ("submit('')", "needs the name of a task"),
        ("submit(repeat('a', 129))", "needs the name of a task"),
        ("submit('a', '[1]')", "a JSON object, not array"),
        ("submit('a', 'null')", "a JSON object, not null"),
        ("submit('a', NULL)", "a JSON object, not null"),
        ("submit('a', jsonb_build_object('x', repeat('a', 1048576)))", "more than 1048576"),
        ("submit('a', id => '')", "1 to 128 characters"),
    ],
)
async def test_what_makes_no_unit_is_an_error_at_once(queue: str, call: str, said: str) -> None:
    with psycopg.connect(queue) as connection:
        with pytest.raises(errors.InvalidParameterValue, match=said):
            connection.execute(f"SELECT runcue.{call}")
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM runcue.submissions").fetchone() == (0,)


EVIL = "x'); DROP TABLE runcue.head; --$function$\\"


@pytest.mark.parametrize("name", ["task", "idempotency_key", "queue", "target", "id"])
async def test_no_text_becomes_sql(queue: str, name: str) -> None:
    with psycopg.connect(queue) as connection:
        given = {"task": "a", name: EVIL}
        said = ", ".join(f"{one} => %({one})s" for one in given)
        connection.execute(f"SELECT runcue.submit({said})", given)
    with Client(queue) as client:
        [work] = client.list()
        assert getattr(work, name) == EVIL


async def test_nothing_else_becomes_sql_either(queue: str) -> None:
    with psycopg.connect(queue) as connection:
        connection.execute(
            "SELECT runcue.submit('a', %s, id => 'one', depends_on => %s)",
            (json.dumps({EVIL: [EVIL]}), [EVIL]),
        )
        connection.execute("SELECT runcue.cancel(%s, cascade => true)", (EVIL,))
        connection.execute("SELECT runcue.retry(%s)", (EVIL,))
        for call in ("priority => %s", "run_at => %s", "delay => %s", "timeout => %s"):
            with pytest.raises(errors.DataError), connection.transaction():
                connection.execute(f"SELECT runcue.submit('a', {call})", (EVIL,))
        rows = connection.execute("SELECT kind, id FROM runcue.submissions ORDER BY number").fetchall()
    assert rows == [("submit", "one"), ("cancel", EVIL), ("retry", EVIL)]
    with Client(queue) as client:
        [work] = client.list()
        assert (work.params, work.depends_on) == ({EVIL: [EVIL]}, (EVIL,))


async def test_a_task_that_nobody_knows_yet_waits_until_somebody_does(queue: str) -> None:
    with psycopg.connect(queue) as connection:
        connection.execute("SELECT runcue.submit('double', '{\"number\": 4}', id => 'a')")
    first = Cue(queue)
    async with first:
        why = await first.explain("a")
        assert why.reason == "unknown_task"
    await first.close()
    cue = Cue(queue)

    @cue.task
    async def double(number: int) -> int:
        return 2 * number

    async with cue:
        assert await cue.result("a", timeout=60) == 8
    await cue.close()


async def test_what_a_trigger_submits_at_once_is_taken_in_many_turns_and_others_go_on(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "MOST", 20)
    cue = Cue(queue)

    @cue.task
    async def confirm(id: int) -> None: ...

    cue.start(queues="default")
    await cue.count()
    with psycopg.connect(queue) as connection:
        connection.execute(TRIGGER.replace("id => ", "queue => 'bulk', id => "))
        connection.execute("INSERT INTO orders SELECT generate_series(1, 4000)")
    own = await cue.submit("confirm", params={"id": 0})
    await cue.result(own, timeout=120)

    def are_taken() -> bool:
        with psycopg.connect(queue) as connection:
            return connection.execute("SELECT count(*) FROM runcue.submissions").fetchone() == (0,)

    await until(are_taken)
    await cue.close()
    with Reader(queue) as reader:
        events = [event.work_id for event in reader.events(["queued", "completed"])]
    assert len(events) == 4002
    assert {*events} == {own, *(f"order-{number}" for number in range(1, 4001))}
    ended = len(events) - 1 - events[::-1].index(own)
    assert ended < 4000, "its end came before the last of them was taken"
