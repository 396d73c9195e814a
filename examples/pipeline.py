"""A document pipeline: split → extract → summarise, on mock services, with a live view.

    python examples/pipeline.py [--fresh] [--plain] [--folder DIR]

Every step leaves a file. A step whose file is there is skipped, so a second run only does what is missing;
nothing else has to be remembered. Ctrl-C stops: what runs is finished, and the next run goes on from there.
"""

import argparse
import asyncio
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import runcue

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # lets this file run from anywhere

from examples.mock import Llm, Ocr, TooManyRequests, UnreadablePage
from examples.view import Tally, summary, watch

DOCUMENTS = {
    f"{kind}-{number}": 8 + number for kind in ("report", "letter", "memo") for number in range(1, 5)
}
FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "demo"  # `make clean` takes it away
OCR_STARTS = 15  # in any second. A real service would say "60/min"; the demo has no minute to wait.

# ---------------------------------------------------------------------------------------------- services

ocr, llm = Ocr(), Llm()
ocr_starts: list[float] = []  # for the summary, which shows that the limit was kept

cue = runcue.Cue()
cue.service("ocr", rate=f"{OCR_STARTS}/s", concurrent=6)
cue.service("llm", concurrent=2)

# --------------------------------------------------------------------------------------------- artifacts


def output(work: runcue.Work) -> Path:
    """What a work leaves behind."""
    document: str = work.params["document"]
    match work.task:
        case "split":
            return FOLDER / "pages" / document
        case "extract":
            return FOLDER / "text" / f"{document}-{work.params['page']}.txt"
        case _:
            return FOLDER / "summaries" / f"{document}.txt"


@cue.is_ready
def has_input(work: runcue.Work) -> bool:
    """A page can be read once its document was split."""
    return work.task != "extract" or (FOLDER / "pages" / work.params["document"]).exists()


@cue.is_stale
def has_no_output(work: runcue.Work) -> bool:
    """What is there need not be made again."""
    return not output(work).exists()


def write(path: Path, text: str) -> None:
    """Put a file into its place at once: half a file must never look like a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


# ------------------------------------------------------------------------------------------------- tasks


@cue.task
def split(work: runcue.Work) -> None:
    """Make one image of each page. A plain function: runcue calls it in a thread."""
    document, folder = work.params["document"], output(work)
    draft = folder.with_suffix(".part")
    for page in range(1, DOCUMENTS[document] + 1):
        is_blank = (document, page) == ("letter-2", 7)
        write(draft / f"{page}.img", f"scan of {'a blank' if is_blank else 'the'} page {page}, {document}")
    draft.replace(folder)


@cue.task(uses="ocr", retry=runcue.Retry(max_attempts=4, base_delay=0.3))
async def extract(work: runcue.Work) -> None:
    """Read one page. Whatever is raised is tried again, unless it is said to be of no use."""
    ocr_starts.append(time.monotonic())
    image = FOLDER / "pages" / work.params["document"] / f"{work.params['page']}.img"
    try:
        text = await ocr.read(image.read_text(encoding="utf-8"), is_first_try=work.attempt == 1)
    except TooManyRequests as error:
        raise runcue.RateLimited(error.retry_after) from error  # pauses the whole service, costs no attempt
    except UnreadablePage as error:
        raise runcue.Permanent(str(error)) from error  # trying again would not help
    write(output(work), text)


@cue.task(uses="llm", retry=3)
async def summarise(work: runcue.Work) -> None:
    """Sum up a document from the texts of its pages."""
    document = work.params["document"]
    pages = range(1, DOCUMENTS[document] + 1)
    texts = [(FOLDER / "text" / f"{document}-{page}.txt").read_text(encoding="utf-8") for page in pages]
    write(output(work), await llm.summarise(texts))


def works() -> Iterator[dict[str, Any]]:
    """Everything there is to do. A summary depends on its pages: when one of them fails, so does it."""
    for document, pages in DOCUMENTS.items():
        ids = [f"{document}/{page}" for page in range(1, pages + 1)]
        yield {"task": "split", "id": document, "params": {"document": document}}
        for page, id in enumerate(ids, start=1):
            yield {"task": "extract", "id": id, "params": {"document": document, "page": page}}
        yield {
            "task": "summarise",
            "id": f"{document}/summary",
            "params": {"document": document},
            "depends_on": ids,
        }


# --------------------------------------------------------------------------------------------------- run


async def main(plain: bool) -> int:
    """Submit everything, watch until it is done or somebody presses Ctrl-C, and sum up."""
    logging.getLogger("runcue").setLevel(logging.ERROR)  # its warnings would be written across the view
    tally = Tally()
    reading = asyncio.create_task(tally.read(cue))
    try:
        async with cue:
            await cue.submit_many(works())
            await watch(cue, tally, plain)
    except asyncio.CancelledError:  # Ctrl-C; leaving the block has let what was running finish
        tally.is_interrupted = True
    await reading  # to the last event
    print(summary(tally, DOCUMENTS, ocr_starts, OCR_STARTS, ocr.refused, FOLDER))
    return 130 if tally.is_interrupted else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A document pipeline on mock services.")
    parser.add_argument("--fresh", action="store_true", help="forget earlier runs and do everything again")
    parser.add_argument("--plain", action="store_true", help="one line a second instead of the live view")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where the files go (default: %(default)s)"
    )
    arguments = parser.parse_args()
    FOLDER = arguments.folder
    if FOLDER.is_symlink():
        sys.exit(f"{FOLDER} leads elsewhere. Remove it: the demo writes into a folder of its own.")
    if arguments.fresh and FOLDER.exists():
        shutil.rmtree(FOLDER)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if any(FOLDER.iterdir()):
        print(
            f"An earlier run is in {FOLDER}, and what it finished is skipped. "
            "From the beginning: make demo ARGS=--fresh",
            flush=True,
        )
    try:
        sys.exit(asyncio.run(main(arguments.plain)))
    except KeyboardInterrupt:  # pressed twice
        sys.exit(130)
