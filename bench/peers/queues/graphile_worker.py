"""graphile-worker: batches of 100 by its SQL function `add_jobs`, its library in one process of Node, no results.

The settings are those of its page on performance: 24 at once, 25 connections, a local queue of 500, completions in
batches without a delay. A unit that has completed is deleted. The handler is in `graphile_worker.js`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
from psycopg.types.json import Jsonb

from bench.peers import homes, part
from bench.peers.part import Call, Submit
from bench.peers.queues.raw import counted

NEEDS = ("graphile-worker",)
HOME = "node"
WORKER = str(Path(__file__).with_suffix(".js"))
ADD = """
SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
    SELECT json_populate_record(
        NULL::graphile_worker.job_spec, json_build_object('identifier', 'work', 'payload', page))
    FROM jsonb_array_elements(%s) AS page))
"""
LEFT = "SELECT count(*) FROM graphile_worker.jobs"


def prepare(where: str) -> None:
    """Let it make its tables."""
    node = shutil.which("node") or "node"
    done = subprocess.run(
        [node, WORKER, "prepare", where],
        env=homes.environment(HOME),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["graphile-worker could not prepare"])[-1])


def left(where: str, count: int) -> int:
    """How many units it still has."""
    return counted(where, LEFT)


@asynccontextmanager
async def opened(where: str, call: Call, runs: bool) -> AsyncIterator[Submit]:
    """The queue, open."""
    connection = await psycopg.AsyncConnection.connect(where, autocommit=True)

    async def submit(pages: range) -> None:
        await connection.execute(ADD, [Jsonb([{"page": page} for page in pages])])

    async with (
        connection,
        part.program(HOME, WORKER, "run", where, executable=shutil.which("node") or "node"),
    ):
        yield submit
