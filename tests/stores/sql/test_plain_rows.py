"""The short INSERT of plain work writes the very rows that the long one writes, and is for nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import asdict, replace

from runcue import Cue, Work
from runcue.core.model.record import Attempt, Extras, Progress, Record, Spec, WorkState
from runcue.core.model.retry import Retry
from runcue.stores.sql import codec, statements
from runcue.stores.sqlite.schema import migrate

SPEC = Spec("w1", "extract", b'{"page":1}', ("api", "disk"))
PENDING = Record("w1", SPEC, 4, 100.0, 100.5, since=100.5, index_key="ready/extract", sort_key=100.0)
RUNNING = replace(
    PENDING, state=WorkState.RUNNING, token=7, started_at=101.0, worker="me", index_key="running/me"
)
OF_SPEC: dict[str, Any] = {
    "id": "w2", "task": "täsk", "params": b"{}", "services": (), "queue": "night", "target": "out",
    "depends_on": ("a",), "priority": 2.5, "run_at": 1.0, "delay": 2.0, "timeout": 3.0, "dependency_timeout": 4.0,
    "idempotency_key": "key",
    "on_failed": "return", "is_named": True, "retry": Retry(7), "cost": (("tokens", 12.0),),
    "group": "import", "unique_key": "[1]", "extras": Extras(expires=9.0), "label": "page 1",
}  # fmt: skip
OF_RECORD: dict[str, Any] = {
    "id": "w2", "spec": replace(SPEC, task="other"), "seq": 5, "rank": -1.5, "created_at": 2.0, "attempt": 2,
    "spent": 3,
    "state": WorkState.FAILED, "failures": 4, "token": 5, "started_at": 6.0, "completed_at": 7.0,
    "next_retry_at": 8.0,
    "throttled_since": 9.0, "skipped": True, "result": [1], "error": "error", "traceback": "trace",
    "history": (Attempt(1, None, None, "x"),), "crashes": 10, "worker": "worker", "missing": 11, "since": 12.0,
    "index_key": "index_key", "sort_key": 13.0, "watch_at": 14.0, "chosen": "ssh_a",
    "expires_at": 15.0, "progress": Progress(0.5, "half"),
}  # fmt: skip
VARIED = [
    *(replace(RUNNING, spec=replace(SPEC, **{name: value})) for name, value in OF_SPEC.items()),
    *(replace(RUNNING, **{name: value}) for name, value in OF_RECORD.items()),
]


def written(statement: str, row: tuple[Any, ...]) -> list[Any]:
    connection = apsw.Connection(":memory:")
    migrate(connection)
    connection.execute(statement, row)
    return connection.execute("SELECT * FROM work_units").fetchall()


def test_every_field_is_varied() -> None:
    assert (OF_SPEC.keys(), OF_RECORD.keys()) == (asdict(SPEC).keys(), asdict(PENDING).keys())
    assert all(record != RUNNING for record in VARIED)


@pytest.mark.parametrize("record", [PENDING, RUNNING])
def test_what_most_queues_write_is_plain(record: Record) -> None:
    assert codec.is_plain(record)


@pytest.mark.parametrize("record", [PENDING, RUNNING, *VARIED])
def test_both_ways_write_the_same_row(record: Record) -> None:
    long = written(statements.INSERT, codec.insert_row(record, 1.0, 31.0))
    if codec.is_plain(record):
        assert written(statements.INSERT_PLAIN, codec.plain_row(record, 1.0, 31.0)) == long
    else:
        assert written(statements.INSERT_PLAIN, codec.plain_row(record, 1.0, 31.0)) != long


async def test_units_that_are_known_to_be_usual_are_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Record] = []
    made: list[Record] = []

    def is_plain(record: Record) -> bool:
        looked_at.append(record)
        return kinds[1](record)

    def plain_row(record: Record, *more: Any) -> Any:
        made.append(record)
        return kinds[0](record, *more)

    kinds = codec.plain_row, codec.is_plain
    monkeypatch.setattr(codec, "is_plain", is_plain)
    monkeypatch.setattr(codec, "plain_row", plain_row)
    async with Cue(tmp_path / "queue.db") as cue:
        cue.task("work")(len_of_params)
        cue.service("slow", rate="1/h")
        cue.task("slow", uses="slow")(len_of_params)
        cue.task("watched", timeout=5)(len_of_params)
        await cue.submit_many({"task": "work", "params": {"n": n}} for n in range(30))
        await cue.submit_many({"task": "slow", "params": {"n": n}} for n in range(30))
        await cue.submit_many({"task": name} for name in ("work", "watched"))
        some = await cue.submit_many({"task": "work", "params": {"n": n}, "delay": 9} for n in range(2))
        await asyncio.gather(*(cue.cancel(id) for id in some))
        await cue.submit_many([{"task": "work", "params": {}}, {"task": "work", "params": {}, "group": "g"}])
    known = [record for record in made if record not in looked_at]
    assert len(known) == 60
    assert all(map(kinds[1], made))


def len_of_params(work: Work) -> int:
    return len(work.params)
