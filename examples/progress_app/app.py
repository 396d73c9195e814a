"""A web application that takes long jobs and shows how far they are, live.

    python -m uvicorn examples.progress_app.app:app

A job is a film: some photos to develop, and a contact sheet when all of them are there. The queue is in a file, so
that a restart loses nothing: press Ctrl-C in the middle, start again, and the page goes on by itself.

    POST /jobs               {"photos": ["beach", "harbour"]}: 202 and the job
    GET  /jobs/{id}          how far it is
    GET  /jobs/{id}/events   the same, live: `job`, then each `progress` and `change`, and `done` at the end
    /                        a page that shows it
    /runcue/                 the dashboard of the queue, for its operator: what is printed at the start leads in
"""

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import runcue
from runcue import web

try:
    from fastapi import FastAPI, HTTPException
    from fastapi import Path as InPath
except ModuleNotFoundError:
    sys.exit("This example needs FastAPI: pip install fastapi")

from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse, JSONServerSentEvent
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

STATIC = Path(__file__).parent / "static"
FOLDER = Path(tempfile.gettempdir()) / f"runcue-progress-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
ADDRESS = os.environ.get("ADDRESS", "http://127.0.0.1:8000")  # where uvicorn listens, unless told otherwise
BATHS = ("developer", "stop bath", "fixer", "water", "drying")
CHANGES = ("started", "progress", "completed", "failed", "cancelled")
POLICY = {"Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"}

# ------------------------------------------------------------------------------------------------ the work


def darkroom(path: Path, pace: float) -> runcue.Cue:
    """The queue and what is done in it: nothing here knows of the web. At pace 1 a photo takes some seconds."""
    cue = runcue.Cue(path, progress_interval=0.2)
    cue.service("trays", concurrent=3)

    @cue.task(uses="trays", retry=runcue.Retry(max_attempts=3, base_delay=pace))
    async def develop(work: runcue.RunningWork) -> str:
        """Five baths for each photo, some of them longer than others."""
        name: str = work.params["photo"]
        for number, bath in enumerate(BATHS):
            work.progress(number / len(BATHS), bath)
            await asyncio.sleep(pace * (0.3 + crc32(f"{name}{bath}".encode()) % 400 / 1000))
            if "dusty" in name and work.attempt == 1 and bath == "fixer":
                raise OSError("dust on the negative")
            if "blank" in name and bath == "water":
                raise runcue.Permanent("nothing was ever on it")
        return f"{name}, developed"

    @cue.task
    async def contact_sheet(work: runcue.RunningWork) -> str:
        """All photos on one sheet: depends on all of them, and is not made when one is lost."""
        return f"{len(work.depends_on)} photos on one sheet"

    return cue


# ------------------------------------------------------------------------------------------------- the web


JobId = Annotated[str, InPath(pattern="^[0-9a-f]{12}$")]


class Film(BaseModel):
    """What is asked for."""

    photos: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=60)]], Field(min_length=1, max_length=60)
    ]


def show(work: runcue.Work) -> dict[str, Any]:
    """A photo or a sheet, as the page sees it."""
    return {
        "id": work.id,
        "photo": work.params.get("photo"),
        "state": "retrying" if work.state == "pending" and work.next_retry_at else str(work.state),
        "ended": work.state.is_final,
        "error": work.error,
        "result": work.result,
    }


def unfinished(job: dict[str, Any]) -> set[str]:
    """The ids of what has not ended."""
    return {one["id"] for one in [job["sheet"], *job["photos"]] if not one["ended"]}


class Jobs:
    """Jobs are nowhere but in the queue: a sheet, whose id is that of the job, depends on its photos."""

    def __init__(self, cue: runcue.Cue) -> None:
        self._cue = cue

    async def begin(self, photos: list[str]) -> str:
        """Submit photos and sheet, all or none."""
        job = secrets.token_hex(6)
        ids = [f"{job}-{number}" for number in range(1, len(photos) + 1)]
        works: list[dict[str, Any]] = [
            {"task": "develop", "id": id, "params": {"photo": photo}}
            for id, photo in zip(ids, photos, strict=True)
        ]
        await self._cue.submit_many([*works, {"task": "contact_sheet", "id": job, "depends_on": ids}])
        return job

    async def look(self, job: str) -> dict[str, Any]:
        """How far a job is."""
        sheet = await self._cue.get(job)
        if sheet is None:
            raise HTTPException(404, f"There is no job {job!r}.")
        found = [await self._cue.get(id) for id in sheet.depends_on]
        photos = [photo for photo in found if photo is not None]
        ended = [photo for photo in photos if photo.state.is_final]
        return {
            "id": job,
            "total": len(photos),
            "developed": sum(photo.state == "completed" for photo in photos),
            "lost": sum(photo.state != "completed" for photo in ended),
            "done": len(ended) == len(photos) and sheet.state.is_final,
            "sheet": show(sheet),
            "photos": [show(photo) for photo in photos],
        }

    async def follow(self, job: str) -> AsyncIterator[JSONServerSentEvent]:
        """The job as it is, each change from then on, and the job as it ended. Who comes again begins anew."""
        latest = await self._cue.last_event()  # before we look: what changes meanwhile is told, and not lost
        seen = await self.look(job)
        yield JSONServerSentEvent(seen, event="job")
        left = unfinished(seen)
        changes = self._cue.events(CHANGES, since=latest)
        while left and (event := await anext(changes, None)) is not None:  # None: the server stops
            id = event.work_id or ""
            if event.type == "gap":  # this reader was too slow, and begins anew
                seen = await self.look(job)
                yield JSONServerSentEvent(seen, event="job")
                left = unfinished(seen)
            elif id in left and event.type == "progress":
                share = {"id": id, "fraction": event.fraction, "text": event.text}
                yield JSONServerSentEvent(share, event="progress")
            elif id in left and (work := await self._cue.get(id)) is not None:
                yield JSONServerSentEvent(show(work), event="change")
                if event.final:
                    left.discard(id)
        if not left:
            yield JSONServerSentEvent(await self.look(job), event="done")


class Stream(EventSourceResponse):
    """An answer that is ended as it should be, also when the server stops in the middle of it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note whether the end was sent, and send it if not."""
        is_open = False

        async def send_noted(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        await super().__call__(scope, receive, send_noted)
        if is_open:
            await send({"type": "http.response.body"})


def make_app(path: Path, pace: float = 1) -> FastAPI:
    """The application, on a queue in that file."""
    cue = darkroom(path, pace)
    jobs = Jobs(cue)
    board = web.app(cue)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.environ.get("RUNCUE_TOKEN"):
            code = board.state.make_code()
            print(f"dashboard, once and within 10 minutes: {ADDRESS}/runcue/?code={code}", flush=True)
        async with cue:
            yield
            await cue.stop(timeout=2)  # what is still in a tray then is done again after the next start
        await cue.close()

    made = FastAPI(title="Darkroom", lifespan=life, docs_url=None, redoc_url=None)
    made.mount("/runcue", board)
    made.mount("/static", StaticFiles(directory=STATIC))

    @made.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers=POLICY)

    @made.post("/jobs", status_code=202)
    async def begin(film: Film) -> dict[str, Any]:
        """Take a job. What is answered here is on the disk."""
        return await jobs.look(await jobs.begin(film.photos))

    @made.get("/jobs/{job}")
    async def look(job: JobId) -> dict[str, Any]:
        """How far it is."""
        return await jobs.look(job)

    @made.get("/jobs/{job}/events")
    async def follow(job: JobId) -> Stream:
        """How far it is, and what happens to it from now on, until it is done."""
        await jobs.look(job)  # a job that there is not is a 404, and no stream
        return Stream(jobs.follow(job))

    return made


app = make_app(FOLDER / "queue.db")
