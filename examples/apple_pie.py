"""A recipe as a pipeline of files: what is there and up to date is not made again.

    python examples/apple_pie.py

Every step names the files it takes and the file it makes, and what it needs meanwhile: one of two hands, or the oven.
All of it is submitted four times. Nothing is remembered in between; the files say what is left to do:

1. the kitchen is empty: everything is made
2. everything is there: everything is skipped
3. there are new pears: what is made of pears is made anew, and nothing else
4. the dough has gone bad, though its date looks fine: it is made anew, and so is what has dough in it

The clock on the wall is a virtual one (`runcue.testing.run`), on which fifty minutes of baking take no time.
"""

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from hashlib import sha256
from pathlib import Path
from typing import Any

import runcue
from runcue.testing import run

GUESTS = {"Ada": "apple", "Ben": "apple", "Cleo": "pear", "Dov": "pear"}
PANTRY = {"flour": "flour", "butter": "butter", "apple": "apples", "pear": "hard green pears"}
OUTPUTS = {
    "slice": "bowls/{fruit}.txt",
    "knead": "dough.txt",
    "fill": "raw/{fruit}.txt",
    "bake": "pies/{fruit}.txt",
    "serve": "plates/{guest}.txt",
}

cue = runcue.Cue()
cue.service("hands", concurrent=2)
cue.service("oven", concurrent=1)

# ------------------------------------------------------------------------------------------------ artifacts


def output(work: runcue.Work, task: str | None = None) -> Path:
    """The file that a step makes, or the one that another step made for the same pie."""
    return Path(OUTPUTS[task or work.task].format(**work.params))


def store(path: Path, text: str) -> None:
    """Write a file whole, with a seal that shows later whether it is still what was written."""
    with runcue.write_output(path) as file:
        file.write(f"{text}\n{sha256(text.encode()).hexdigest()}\n")


def taste(path: Path | str) -> str:
    """The text of a file, without the seal."""
    return Path(path).read_text(encoding="utf-8").splitlines()[0]


@cue.is_stale
def is_bad(work: runcue.Work) -> bool:
    """`inputs` and `outputs` compare dates; this looks at what is inside. To skip work, both must find it fine."""
    path = output(work)
    if not path.exists():
        return True
    text, _, seal = path.read_text(encoding="utf-8").partition("\n")
    return seal.strip() != sha256(text.encode()).hexdigest()


# ------------------------------------------------------------------------------------------------ the recipe


@cue.task(uses="hands", inputs="pantry/{fruit}.txt", outputs=OUTPUTS["slice"])
async def slice(work: runcue.Work) -> None:  # noqa: A001 (that is what one does with apples)
    """Peel the fruit and cut it up."""
    await busy("hands", minutes=10)
    store(output(work), "slices of " + taste(f"pantry/{work.params['fruit']}.txt"))


@cue.task(uses="hands", inputs=["pantry/flour.txt", "pantry/butter.txt"], outputs=OUTPUTS["knead"])
async def knead(work: runcue.Work) -> None:
    """Make the dough, enough for all pies."""
    await busy("hands", minutes=15)
    store(output(work), f"{taste('pantry/flour.txt')} and {taste('pantry/butter.txt')}")


@cue.task(uses="hands", inputs=["dough.txt", OUTPUTS["slice"]], outputs=OUTPUTS["fill"])
async def fill(work: runcue.Work) -> None:
    """Put the fruit into the dough."""
    await busy("hands", minutes=5)
    store(output(work), f"{taste(output(work, 'slice'))} in a crust of {taste('dough.txt')}")


@cue.task(uses="oven", inputs=OUTPUTS["fill"], outputs=OUTPUTS["bake"])
async def bake(work: runcue.Work) -> None:
    """There is one oven, and one pie at a time in it."""
    await busy("oven", minutes=50)
    store(output(work), f"baked {taste(output(work, 'fill'))}")


@cue.task(uses="hands", inputs=OUTPUTS["bake"], outputs=OUTPUTS["serve"])
async def serve(work: runcue.Work) -> None:
    """A slice on a plate."""
    await busy("hands", minutes=1)
    store(output(work), f"{work.params['guest']} has {taste(output(work, 'bake'))}")


def recipe(number: int) -> Iterator[dict[str, Any]]:
    """Everything there is to do, in any order.

    `depends_on` is for the third and the fourth time: an old file is a file too, and a step that finds one must wait
    until the steps before have had a look at it. The number of the round keeps the ids of four times apart.
    """

    def step(task: Any, name: str, after: list[str], **params: str) -> dict[str, Any]:
        ids = [f"{number}/{one}" for one in after]
        return {"task": task, "id": f"{number}/{task.__name__}-{name}", "depends_on": ids, "params": params}

    for guest, fruit in GUESTS.items():
        yield step(serve, guest, [f"bake-{fruit}"], fruit=fruit, guest=guest)
    for fruit in ("apple", "pear"):
        yield step(bake, fruit, [f"fill-{fruit}"], fruit=fruit)
        yield step(fill, fruit, ["knead-dough", f"slice-{fruit}"], fruit=fruit)
        yield step(slice, fruit, [], fruit=fruit)
    yield step(knead, "dough", [])


# --------------------------------------------------------------------------------------- what can be seen of it


class Kitchen:
    """The clock on the wall, and who is at work."""

    def __init__(self) -> None:
        self.times_used = 0
        self.began = 0.0
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()


kitchen = Kitchen()


async def busy(service: str, minutes: int) -> None:
    """Take the time that it takes, and count how many do so at once."""
    kitchen.now[service] += 1
    kitchen.most[service] = max(kitchen.most[service], kitchen.now[service])
    await asyncio.sleep(minutes * 60)
    kitchen.now[service] -= 1


@cue.on_complete
def tell(work: runcue.Work, result: Any, duration: float) -> None:
    """One line for each step that was done, with the time on the wall."""
    minutes = round(asyncio.get_running_loop().time() - kitchen.began) // 60
    subject = " for ".join(work.params.values())
    print(f"   {minutes // 60}:{minutes % 60:02}  {work.task:<6} {subject}".rstrip())


async def cook(title: str) -> None:
    """Submit the whole recipe and wait for the last plate."""
    kitchen.times_used += 1
    kitchen.began = asyncio.get_running_loop().time()
    kitchen.most.clear()
    print(f"{kitchen.times_used}. {title}")
    works = [await cue.wait(id) for id in await cue.submit_many(recipe(kitchen.times_used))]
    made = sum(not work.skipped for work in works)
    most = f"; at most {kitchen.most['hands']} hands and {kitchen.most['oven']} oven at once" if made else ""
    print(f"   {made} made, {len(works) - made} skipped{most}\n")


def let_time_pass() -> None:
    """Until the disk gives later dates than those of all files: it counts in milliseconds, or even in seconds."""
    latest = max((path.stat().st_mtime_ns for path in Path().rglob("*.txt")), default=0)
    watch = Path("watch")
    watch.touch()
    while watch.stat().st_mtime_ns <= latest:
        watch.touch()


def bring(name: str, text: str) -> None:
    """Put an ingredient into the pantry."""
    let_time_pass()
    path = Path(f"pantry/{name}.txt")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def spoil(path: Path) -> None:
    """Change a file behind everybody's back: its date stays."""
    let_time_pass()
    before = path.stat()
    path.write_text(path.read_text(encoding="utf-8").replace("butter", "mould"), encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


async def main() -> None:
    """Use the kitchen four times."""
    async with cue:
        for name, text in PANTRY.items():
            bring(name, text)
        await cook("The kitchen is empty")
        await cook("Everything is there")
        bring("pear", "soft yellow pears")
        await cook("There are new pears")
        spoil(Path("dough.txt"))
        await cook("The dough has gone bad, and its date looks fine")
        for guest in GUESTS:
            print(f"   {taste(f'plates/{guest}.txt')}")
    await cue.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="runcue-pie-") as folder, chdir(folder):
        try:
            run(main())
        except KeyboardInterrupt:
            sys.exit(130)
