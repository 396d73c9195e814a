"""Documents into summaries: a process pool, two APIs with limits, and work that is found out on the way.

    python examples/document_app.py [--fresh]

Each document is split into pages in a worker process, because that is hard work and the library that does it
crashes now and then. How many pages there are is known only afterwards, so the rest is submitted when the news
comes: one call of the language model for each page, one for the summary, and an upload.

Everything is in a queue file. Run it again, or kill it and run it again: what is done is not done twice.
"""

import argparse
import asyncio
import hashlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import runcue

FOLDER = Path(tempfile.gettempdir()) / f"runcue-documents-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
DOCUMENTS = {"contract": 6, "invoice": 2, "manual": 9, "minutes": 4, "drawing": 3, "scan": 5}
BEGAN = time.monotonic()

cue = runcue.Cue(FOLDER / "queue.db", pool_size=2)
cue.service("llm", rate="25/s", concurrent=5)
cue.service("storage", rate="20/s", concurrent=3)
few = runcue.Retry(max_attempts=3, base_delay=0.2)

# -------------------------------------------------------------------------------------- the world outside


class ApiError(Exception):
    """What an HTTP client raises; runcue knows such errors by their shape, here `status_code` and `headers`."""

    def __init__(self, status_code: int, **headers: str) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Server:
    """Somebody else's server: slow, sometimes down, and strict about how many calls it takes at once."""

    def __init__(self, at_once: int, broken: int, busy: int) -> None:
        self.calls = 0
        self.refused = 0
        self._now = 0
        self._at_once = at_once
        self._broken = broken
        self._busy = busy

    async def call(self, seconds: float) -> None:
        """One request: every so many are broken off, and one comes at a bad moment."""
        self.calls += 1
        number = self.calls
        self._now += 1
        try:
            if self._now > self._at_once or number == self._busy:
                self.refused += 1
                raise ApiError(429, Retry_After="0.5")
            await asyncio.sleep(seconds)
            if number % self._broken == 0:
                raise ApiError(502)
        finally:
            self._now -= 1


llm = Server(at_once=5, broken=10, busy=12)
storage = Server(at_once=3, broken=4, busy=3)


def write_documents() -> None:
    """Put something there to read."""
    for name, pages in DOCUMENTS.items():
        text = "\f".join(f"Page {page} of the {name}." for page in range(1, pages + 1))
        (FOLDER / f"{name}.txt").write_text("" if name == "scan" else text, encoding="utf-8")


# --------------------------------------------------------------------------------------------------- tasks


@cue.task(executor="process_pool", retry=few, timeout=30)
def split(work: runcue.Work) -> dict[str, Any]:
    """Find the pages of a document: in a worker process, which may crash or be killed without harm to others."""
    name = work.params["document"]
    if name == "drawing" and work.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # what running out of memory looks like
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    if not text:
        raise runcue.Permanent("there is no text in it")
    pages = text.split("\f")
    for page in pages:
        hashlib.pbkdf2_hmac("sha256", page.encode(), b"hard work", 50_000)
    return {"pages": pages, "worker": os.getpid()}


@cue.task(uses="llm", retry=few)
async def read_page(work: runcue.Work) -> str:
    """Have the language model read one page."""
    await llm.call(0.15)
    return work.params["text"].upper()  # type: ignore[no-any-return]


@cue.task(uses="llm", retry=few)
async def summarise(work: runcue.Work) -> str:
    """Have it sum up a document, of which all pages are read by now."""
    texts = [await cue.result(page) for page in work.depends_on]
    await llm.call(0.3)
    return f"{len(texts)} pages, from {texts[0]!r} to {texts[-1]!r}"


@cue.task(uses="storage", retry=few)
async def upload(work: runcue.Work) -> str:
    """Store the summary."""
    summary = await cue.result(work.depends_on[0])
    await storage.call(0.1)
    place = FOLDER / f"{work.params['document']}.summary"
    draft = place.with_suffix(".part")
    draft.write_text(f"{summary}\n", encoding="utf-8")
    draft.replace(place)  # all of it or nothing
    return str(place)


# ---------------------------------------------------------------------------------------------- submitting


def item(task: str, document: str, id: str, after: list[str], **params: Any) -> dict[str, Any]:
    """One piece of work. The key is what makes submitting it twice harmless."""
    return {
        "task": task,
        "id": id,
        "idempotency_key": id,
        "on_failed": "return",
        "depends_on": after,
        "params": {"document": document, **params},
    }


async def submit_rest(document: str, pages: list[str]) -> None:
    """What there is to do with a document, now that its pages are known."""
    ids = [f"{document}/page-{number}" for number in range(1, len(pages) + 1)]
    whole, stored = f"{document}/summary", f"{document}/upload"
    works = [
        item("read_page", document, id, [f"{document}/split"], text=text)
        for id, text in zip(ids, pages, strict=True)
    ]
    works += [item("summarise", document, whole, ids), item("upload", document, stored, [whole])]
    await cue.submit_many(works)


def say(text: str) -> None:
    """One line, with the time since the start."""
    print(f"{time.monotonic() - BEGAN:5.1f} s  {text}", flush=True)


async def follow(open_documents: set[str], finished: set[str]) -> None:
    """Hear what happens, tell it, and submit what follows from it, until every document has come to an end."""
    if not open_documents:
        return
    async for event in cue.events(types=["completed", "failed", "retrying", "service_rate_limited"]):
        if event.work_id in finished:  # a queue in a file tells all it knows, earlier runs included
            continue
        document = (event.work_id or "").partition("/")[0]
        if event.type == "service_rate_limited":
            if "429" in event.details:  # else it is our own limit, which is no news
                say(f"{event.service} asked to slow down: paused for {event.until - event.at:.1f} s")
        elif event.type == "failed":
            say(f"{event.work_id} failed: {event.error}")
        elif event.type == "retrying":
            say(f"{event.work_id} is tried again in {event.next_retry_at - event.at:.1f} s")
        elif event.task == "split":
            pages = event.result["pages"]
            say(f"{document} has {len(pages)} pages (found by process {event.result['worker']})")
            await submit_rest(document, pages)
        elif event.task == "upload":
            say(f"{document} is done")
        if event.final and (event.task == "upload" or (event.task, event.type) == ("split", "failed")):
            open_documents.discard(document)
            if not open_documents:
                return


# ----------------------------------------------------------------------------------------------------- run


def have_folder(is_fresh: bool) -> IO[str]:
    """A folder of our own; to empty it nobody else may be at work there. Open files hold the lock."""
    import fcntl

    if FOLDER.is_symlink():
        sys.exit(f"{FOLDER} leads elsewhere. Remove it: this program writes into a folder of its own.")
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    lock = (FOLDER / "lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if is_fresh else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        sys.exit(f"Another one is at work in {FOLDER}. Try again when it has ended, or without --fresh.")
    for path in FOLDER.iterdir() if is_fresh else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


async def main() -> None:
    """Submit what is not yet submitted, follow it to its end, and sum up."""
    logging.getLogger("runcue").setLevel(logging.CRITICAL)  # what happens is told below
    async with cue:
        await cue.submit_many(item("split", name, f"{name}/split", []) for name in DOCUMENTS)
        works = [*await cue.list(state="completed", limit=1000), *await cue.list(state="failed", limit=1000)]
        finished = {work.id: work for work in works}
        still_open = set()
        for name in DOCUMENTS:  # an earlier run may have come this far, or further
            first, last = finished.get(f"{name}/split"), finished.get(f"{name}/upload")
            if last is None and (first is None or first.state == "completed"):
                still_open.add(name)
                if first is not None:
                    await submit_rest(name, first.result["pages"])
        before = len(DOCUMENTS) - len(still_open)
        print(f"{len(DOCUMENTS)} documents in {FOLDER}" + (f", {before} dealt with before" if before else ""))
        await follow(still_open, set(finished))
        print(f"\nDone after {time.monotonic() - BEGAN:.1f} s")
        for name in DOCUMENTS:
            work = await cue.get(f"{name}/upload") or await cue.get(f"{name}/split")
            assert work is not None
            is_stored = work.task == "upload" and work.state == "completed"
            print(f"  {name:<10}{work.result if is_stored else work.error}")
        print(f"  calls     {llm.calls} of the language model, {storage.calls} of the storage")
        print(f"  refused   {llm.refused + storage.refused} of them, with status 429")
        print("\nRun it again: nothing is done twice. With --fresh it begins anew.")
    await cue.close()


if __name__ == "__main__":  # workers import this file too, and must not run it
    parser = argparse.ArgumentParser(description="Documents into summaries, on mock services.")
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs")
    with have_folder(parser.parse_args().fresh):
        write_documents()
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            sys.exit(130)
