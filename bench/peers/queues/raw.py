"""PostgreSQL itself: insert, claim and finish in batches of 100, a transaction for each, results kept.

One connection inserts, and another, in a thread, claims and finishes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event, Thread

import psycopg

from bench.peers.part import BATCH, SOON, Call, Submit

NEEDS = ()
HOME = ""
TABLE = """
CREATE TABLE units (
    id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'pending', page int NOT NULL, result text);
CREATE INDEX works_pending ON units (id) WHERE state = 'pending';
"""
INSERT = "INSERT INTO units (page) SELECT unnest(%s::int[])"
CLAIM = """
UPDATE units SET state = 'running' WHERE id = ANY(ARRAY(
    SELECT id FROM units WHERE state = 'pending' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED))
RETURNING id, page
"""
FINISH = "UPDATE units SET state = 'completed', result = '1' WHERE id = ANY(%s)"
DONE = "SELECT count(*) FROM units WHERE state = 'completed'"


def prepare(where: str) -> None:
    """Make its table."""
    with psycopg.connect(where) as connection:
        connection.execute(TABLE)


def left(where: str, count: int) -> int:
    """How many units have not completed."""
    return count - counted(where, DONE)


def counted(where: str, statement: str) -> int:
    """The one number that a statement gives."""
    with psycopg.connect(where) as connection:
        found = connection.execute(statement.encode()).fetchone()
    return int(found[0]) if found else 0


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The table, in use."""
    stopped = Event()

    def run() -> None:
        with psycopg.connect(where, autocommit=True) as connection:
            while not stopped.is_set():
                claimed = connection.execute(CLAIM, [BATCH]).fetchall()
                for _, page in claimed:
                    call(page)
                if claimed:
                    connection.execute(FINISH, [[row[0] for row in claimed]])
                else:
                    time.sleep(SOON)

    with psycopg.connect(where, autocommit=True) as connection:

        async def submit(pages: range) -> None:
            connection.execute(INSERT, [list(pages)])

        thread = Thread(target=run)
        if runs:
            thread.start()
        yield submit
        stopped.set()
        if runs:
            await asyncio.to_thread(thread.join)
