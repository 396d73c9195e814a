"""PostgreSQL itself: insert, claim and finish in batches of 100, a transaction for each, one connection a process."""

from __future__ import annotations

import time

import psycopg

from bench.child import ready
from bench.peers_pg.board import LOOK, Board

NEEDS = ("psycopg",)
BATCH = 100
TABLE = """
CREATE TABLE works (
    id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'pending', params text NOT NULL, result text);
CREATE INDEX works_pending ON works (id) WHERE state = 'pending';
"""
INSERT = "INSERT INTO works (params) SELECT unnest(%s::text[])"
CLAIM = """
UPDATE works SET state = 'running' WHERE id = ANY(ARRAY(
    SELECT id FROM works WHERE state = 'pending' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED))
RETURNING id, params
"""
FINISH = "UPDATE works SET state = 'completed', result = '1' WHERE id = ANY(%s)"
DONE = "SELECT count(*) FROM works WHERE state = 'completed'"


def prepare(dsn: str) -> None:
    """Make its table."""
    with psycopg.connect(dsn) as connection:
        connection.execute(TABLE)


def done(dsn: str) -> int:
    """How many works have ended, with a result."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(DONE).fetchone()
    return int(found[0]) if found else 0


def worker(dsn: str, path: str, place: int, first: int, share: int) -> float:
    """Submit its share, a batch after each it ran, and run until told to stop; the processor's time that took."""
    with Board(path, place) as board, psycopg.connect(dsn, autocommit=True) as connection:
        pages = range(first, first + share)
        time.sleep(max(0.0, ready() - time.perf_counter()))
        board.begin()
        while not board.stopped:
            if pages:
                batch, pages = pages[:BATCH], pages[BATCH:]
                connection.execute(INSERT, [[f'{{"page":{page}}}' for page in batch]])
            claimed = connection.execute(CLAIM, [BATCH]).fetchall()
            if claimed:
                connection.execute(FINISH, [[row[0] for row in claimed]])
                board.ran(len(claimed))
            elif not pages:
                time.sleep(LOOK)
        return board.used()
