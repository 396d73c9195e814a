"""Makes docs/images/dashboard-*.png:  python -m tools.web_pictures

Rules:
- Only the workload is made up: the queue in its file, the worker and the dashboard are what they always are.
- The page is watched for a minute, so that its charts have something to show.
- It is drawn by Chromium: see tools/chromium.sh.
"""

import asyncio
import contextlib
import logging
import os
import random
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Browser, Page, expect

import runcue.web
from runcue import Cue, Retry, Work
from tests.browser.chromium import ADVICE, chromium, found
from tests.browser.stage import LINK, TOKEN, served

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WATCHED = 52.0
"""Seconds."""
WIDE = (1360, 940)
NARROW = (360, 780)
SCALE = 1.5
DOCUMENTS = 90
SETTLED = 700
"""Milliseconds after which a page has drawn what it was asked for."""


def pipeline(cue: Cue, dice: random.Random) -> None:
    """A pipeline for documents, on services some of which are in trouble."""
    cue.service("openai", rate=["40/min", "5000/day"], concurrent=5, tokens="60k/min")
    cue.service("storage", concurrent=8)
    cue.service("gpu", concurrent=2)
    cue.service("ssh_prod", concurrent=3, circuit_threshold=4, circuit_timeout=300)

    @cue.task(uses="storage")
    async def fetch(work: Work) -> dict[str, int]:
        await asyncio.sleep(dice.lognormvariate(0.2, 0.6))
        return {"bytes": dice.randrange(10_000, 900_000)}

    @cue.task(uses="openai", retry=Retry(3, base_delay=20), cost={"tokens": 1150}, timeout=30)
    async def extract(work: Work) -> dict[str, int]:
        await asyncio.sleep(dice.uniform(1.0, 4.5))
        if dice.random() < 0.3:
            raise TimeoutError(f"openai did not answer within {dice.choice((20, 30))} s")
        return {"pages": dice.randrange(1, 40)}

    @cue.task(uses="storage", retry=0)
    async def index(work: Work) -> None:
        await asyncio.sleep(dice.uniform(0.4, 2.5))
        if dice.random() < 0.08:
            raise ValueError(f"page {dice.randrange(1, 40)} is empty")

    @cue.task(uses="gpu")
    async def embed(work: Work) -> None:
        await asyncio.sleep(1)

    @cue.task(uses="ssh_prod", retry=0)
    async def publish(work: Work) -> None:
        await asyncio.sleep(0.4)
        raise ConnectionRefusedError("[Errno 111] ssh_prod refused the connection")

    @cue.every("2m", jitter="20s", overlap="queue")
    @cue.task(uses="storage")
    async def sweep(work: Work) -> None:
        await asyncio.sleep(0.3)

    @cue.task(executor="subprocess", shell=True)
    def report(work: Work) -> str:
        return 'for i in $(seq 1 400); do echo "$(date +%T) page $i of 400 written"; sleep 0.7; done'


async def load(cue: Cue, dice: random.Random) -> None:
    """Documents come in, more than the services take."""
    number = 0
    await cue.schedule(
        "monthly report", "report", cron="0 6 1 * *", tz="Europe/Zurich", target="monthly.html"
    )
    await cue.schedule("reindex", "index", cron="30 2 * * 1-5", tz="Europe/Zurich", missed="none")
    await cue.schedule("embed again", "embed", every="6h", overlap="replace")
    for name in ("monthly report", "reindex", "sweep"):
        await cue.run_now(name)
    await cue.schedules.pause("embed again")
    await cue.pause("gpu")
    while True:
        number += 1
        name = f"reports/2026/{number:04}.pdf"
        first = await cue.submit("fetch", target=name)
        if number <= DOCUMENTS:
            second = await cue.submit(
                "extract", target=name, depends_on=[first], params={"document": name, "ocr": True}
            )
            await cue.submit("index", target=name, depends_on=[first])
            if number % 4 == 0:
                last = await cue.submit("embed", target=name, depends_on=[second])
                await cue.submit("publish", target=name, depends_on=[last, second])
            if number < 9:
                await cue.submit("publish", target=name)
        await asyncio.sleep(dice.expovariate(3.5))


async def open_page(browser: Browser, base: str, size: tuple[int, int], scheme: str) -> Page:
    """A page that has come in."""
    page = await browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,  # type: ignore[arg-type]
        device_scale_factor=SCALE,
    )
    await page.goto(f"{base}{LINK}")
    await expect(page.locator(".line")).to_have_text("live")
    return page


async def draw(page: Page, name: str, address: str | None = None, click: str | None = None) -> None:
    """Go there, perhaps click something, and keep what is to be seen."""
    if address is not None:
        await page.evaluate("address => { location.hash = address }", address)
    await page.wait_for_timeout(SETTLED)
    if click is not None:
        await page.locator(click).first.click()
        await page.wait_for_timeout(SETTLED)
    await page.screenshot(path=IMAGES / f"dashboard-{name}.png")
    print(f"docs/images/dashboard-{name}.png")


async def tried_before(cue: Cue) -> str:
    """A work that waits for its second attempt, best one that others wait for."""
    tried = [work for work in await cue.list(task="extract", limit=500) if work.history]
    tried.sort(key=lambda work: work.state != "pending")
    needed = [work for work in tried if await cue.dependents(work.id)]
    return [*needed, *tried][0].id


async def pictures(browser: Browser, cue: Cue, base: str) -> None:
    """All of them."""
    wide = await open_page(browser, base, WIDE, "light")
    await asyncio.sleep(WATCHED)
    await draw(wide, "overview")
    dark = await open_page(browser, base, WIDE, "dark")
    await draw(dark, "dark")
    narrow = await open_page(browser, base, NARROW, "light")
    await draw(narrow, "narrow")
    await draw(wide, "work", f"#/works/{await tried_before(cue)}")
    await draw(wide, "schedules", "#/schedules")
    await draw(wide, "services", "#/services", "article[aria-label=openai] >> text=Change limits")
    await wide.keyboard.press("Escape")
    await draw(wide, "dead-letters", "#/", ".group >> text=Retry")


async def main() -> None:
    """Play the pipeline and draw it."""
    dice = random.Random(8)
    cue = Cue("pipeline.db")
    pipeline(cue, dice)
    async with cue:
        await cue.count()
        loading = asyncio.create_task(load(cue, dice))
        try:
            async with served(runcue.web.app("pipeline.db", token=TOKEN)) as base, chromium() as browser:
                await pictures(browser, cue, base)
        finally:
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading
            await cue.stop(0.1)


if __name__ == "__main__":
    if found() is None:
        sys.exit(ADVICE)
    logging.getLogger("runcue").setLevel(logging.CRITICAL)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="runcue-web-") as folder:
        os.chdir(folder)  # so that the pictures show a name, and no path of this machine
        asyncio.run(main())
