"""Kill it whenever you like and run it again: it goes on where it was, until everything is done.

    python examples/durable.py

The queue is in a file. What was submitted is submitted once, whatever happens, because every piece of work has a
key; what was running when the process died runs again; what is done stays done. Several of these may run at the same
time: they share the work, and the limit.
"""

import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

from runcue import Cue, WorkState, output

FOLDER = Path(tempfile.gettempdir()) / f"runcue-durable-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
PAGES = 60

FOLDER.mkdir(mode=0o700, exist_ok=True)
cue = Cue(FOLDER / "queue.db")
cue.service("ocr", rate="40/s", concurrent=4)  # for all processes together


@cue.task(uses="ocr", retry=3)
async def read_page(page: int) -> str:
    await asyncio.sleep(0.05)  # the call to somebody else's server
    print(f"read page {page}", flush=True)
    return f"text of page {page}"


@cue.task
async def bind(texts: list[str]) -> str:
    book = FOLDER / "book.txt"
    unfinished = book.with_suffix(f".{os.getpid()}")
    unfinished.write_text("\n".join(texts) + "\n", encoding="utf-8")
    unfinished.replace(book)  # all of it or nothing: this handler may be killed, too
    return str(book)


async def main() -> None:
    logging.getLogger("runcue").setLevel(logging.ERROR)
    async with cue:
        before = (await cue.count())[WorkState.COMPLETED]
        if before:
            print(f"going on: {before} of {PAGES + 1} were done before")
        pages = [
            read_page.options(id=f"page-{number}", idempotency_key=f"page-{number}").unit(page=number)
            for number in range(1, PAGES + 1)
        ]
        book = bind.options(id="book", idempotency_key="book").unit(texts=[output(page) for page in pages])
        await cue.submit_many([*pages, book])  # what is there already is not submitted again
        print(f"done: {await cue.result('book')}")
    await cue.close()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("stopped; run it again to go on")
        sys.exit(130)
