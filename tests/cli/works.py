"""A queue of works in every state and every kind of waiting, made once and then only read; and `runcue` on it.

It is copied while one work runs, so that the copy knows a program that is gone.
"""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

import pytest

import runcue
from tests.cli import inside
from tests.cli.inside import Prompt, Told
from tests.cli.stock import NASTY

CANARY = "sk-canary-1234"
FAR = 4_000_000_000
"""When the first unit of the schedule comes."""
STATES = {
    "done": "completed", "broken": "failed", "nasty": "failed", "again": "pending", "parcel": "failed",
    "parcel-2": "pending", "stuck": "running", "dropped": "cancelled", "later": "pending", "orphan": "pending",
    "limited": "pending", "held": "pending",
}  # fmt: skip


def make(folder: Path) -> Path:
    """Build it in that folder, which is made; the file."""
    folder.mkdir()
    asyncio.run(_make(folder / "queue.db"))
    return folder / "queue.db"


async def _make(path: Path) -> None:
    scratch = path.with_name("scratch")
    scratch.mkdir()
    cue = runcue.Cue(scratch / path.name)
    cue.service("api", rate="1/h", concurrent=4, tokens="200k/min")
    cue.service("depot", circuit_threshold=1, circuit_timeout=3600)
    late = runcue.Retry(3, backoff="fixed", base_delay=3000, max_delay=3000, jitter=False)

    @cue.task("read", retry=1)
    async def read(work: runcue.RunningWork) -> dict[str, object]:
        if work.params.get("how") == "hang":
            await asyncio.Event().wait()
        if work.params.get("how") == "fail":
            raise ValueError(f"page is empty: {NASTY if work.id == 'nasty' else 'token=' + CANARY}")
        return {"words": 7, "password": CANARY}

    cue.task("call", uses="api")(read.__wrapped__ if hasattr(read, "__wrapped__") else read)

    @cue.task("ship", uses="depot", retry=1)
    async def ship(work: runcue.RunningWork) -> None:
        raise ConnectionError("no route to host")

    secret = {"api_key": CANARY, "url": f"https://me:{CANARY}@host/x"}
    async with cue:
        await cue.pause("mail")
        first: list[dict[str, object]] = [
            {"task": "call", "id": "done", "params": secret, "target": "out/done.json"},
            {
                "task": "read",
                "id": "broken",
                "params": {"how": "fail"},
                "target": f"https://me:{CANARY}@host/page",
                "idempotency_key": f"page?token={CANARY}",
            },
            {
                "task": "read",
                "id": "nasty",
                "params": {"how": "fail", "name": NASTY},
                "target": "a [/b] \u202e x",
            },
            {"task": "read", "id": "again", "params": {"how": "fail"}, "retry": late},
            {"task": "ship", "id": "parcel"},
            {"task": "read", "id": "dropped", "delay": 3600},
            {"task": "read", "id": "stuck", "params": {"how": "hang"}, "priority": 7},
        ]
        await cue.submit_many(first)
        await cue.cancel("dropped")
        async with asyncio.timeout(240):
            await cue.join(["done", "broken", "nasty", "parcel"])
            wanted = {("again", "retrying"), ("stuck", "started")}
            async for event in cue.events():
                wanted.discard((event.work_id or "", event.type))
                if not wanted:
                    break
        await cue.submit_many(
            [
                {"task": "ship", "id": "parcel-2"},
                {"task": "read", "id": "later", "delay": 3600},
                {"task": "read", "id": "orphan", "depends_on": ["done", "ghost"]},
                {"task": "call", "id": "limited", "params": secret},
                {"task": "read", "id": "held", "queue": "mail"},
            ]
        )
        await cue.schedule("nightly", "call", cron="0 3 * * *", start=FAR, params=secret)
        for file in scratch.glob(f"{path.name}*"):
            if file.is_file():
                shutil.copy(file, path.with_name(file.name))
        await cue.cancel("stuck")
    await cue.close()
    shutil.rmtree(scratch)


class Inside:
    """`inside("list", "--json")`: that command of runcue to its end, on one file."""

    def __init__(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.run = Prompt("runcue", monkeypatch, capsys)
        """Any command."""
        self.file = file

    def __call__(self, verb: str, *args: str, file: Path | str | None = None) -> Told:
        return self.run(verb, str(self.file if file is None else file), *args)

    def reader(self) -> runcue.Reader:
        """The queue as it stands."""
        return runcue.Reader(self.file)


refused = partial(inside.refused, by="runcue")
