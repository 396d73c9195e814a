"""A queue with a job in every state and every kind of waiting, made once and then only read.

It is copied while one job runs, so that the copy knows a worker that is gone.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import runcue

NASTY = "\x1b[2J\x1b]0;title\x07\x9b31m\rover [/bold] \u202e x"
"""What a terminal would obey, and text that only looks like markup."""

STATES = {
    "done": "completed",
    "dead1": "dead",
    "again": "failed",
    "broken": "dead",
    "nasty": "dead",
    "later": "pending",
    "orphan": "pending",
    "limited": "pending",
    "held": "pending",
    "stuck": "processing",
    "dropped": "cancelled",
}


def make(home: Path) -> Path:
    """Build it under `home`, which is made; the home itself."""
    asyncio.run(_make(home))
    return home


async def _make(home: Path) -> None:
    home.mkdir(mode=0o700)
    scratch = home.with_name(home.name + "-scratch")
    scratch.mkdir(mode=0o700)
    cue = runcue.Cue(scratch / "queue.db", age_step=None)
    cue.service("api", rate="1/h")
    cue.service("down", circuit_threshold=1, circuit_timeout=3600)

    @cue.task("shell", uses=lambda work: work.params.get("uses", []))
    async def run(work: runcue.RunningWork) -> dict[str, int]:
        command = work.params["command"]
        if command == "hang":
            await asyncio.Event().wait()
        if command.startswith("fail"):
            raise RuntimeError(f"exit code 1: {NASTY if work.id == 'nasty' else 'boom'}")
        return {"exit_code": 0}

    def job(id: str, command: str, *, attempts: int = 1, **more: object) -> dict[str, object]:
        retry = runcue.Retry(attempts, backoff="fixed", base_delay=3000, max_delay=3000, jitter=False)
        params = {"command": command, "cwd": "/", "env": {"TOKEN": "canary"}, **more.pop("params", {})}  # type: ignore[dict-item]
        return {"task": "shell", "id": id, "params": params, "retry": retry, **more}

    async with cue:
        await cue.pause("mail")
        first = [
            job("done", "true", params={"uses": ["api"]}),
            job("dead1", "fail"),
            job("nasty", f"fail {NASTY}"),
            job("broken", "fail", params={"uses": ["down"]}),
            job("again", "fail", attempts=3),
            job("dropped", "true", delay=3600),
            job("stuck", "hang", priority=7),
        ]
        await cue.submit_many(first)
        await cue.cancel("dropped")
        async with asyncio.timeout(240):
            await cue.join(["done", "dead1", "nasty", "broken"])
            wanted = {("again", "retrying"), ("stuck", "started")}
            async for event in cue.events():
                wanted.discard((event.work_id, event.type))
                if not wanted:
                    break
        await cue.submit_many(
            [
                job("later", "true", delay=3600),
                job("orphan", "true", depends_on=["done", "ghost"]),
                job("limited", "true", params={"uses": ["api"]}),
                job("held", "true", queue="mail"),
            ]
        )
        for file in scratch.glob("queue.db*"):
            if file.is_file():
                shutil.copy(file, home / file.name)
        await cue.cancel("stuck")
    await cue.close()
    shutil.rmtree(scratch)
