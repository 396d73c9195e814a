"""Chromium for all browser tests, and a page for each that nothing untoward may happen on."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.browser.chromium import ADVICE, chromium, found
from tests.browser.mishaps import Mishaps
from tests.browser.stage import Stage, play

PATIENCE = 300_000
TRIES = 3
"""Milliseconds that a page may take for anything."""
WATCH = """
window.reports = [];
addEventListener("securitypolicyviolation", (event) => window.reports.push(event.violatedDirective));
"""
expect.set_options(timeout=PATIENCE)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests."""
    if found() is None:
        if os.environ.get("CI"):
            pytest.fail(ADVICE)
        pytest.skip(ADVICE)
    async with chromium("--host-resolver-rules=MAP evil.test 127.0.0.1") as browser:
        yield browser


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Let a dashboard look at its queue often, and sort dead letters at every look: nobody waits for that here."""
    patch.setattr("runcue.web.broadcast.PAUSE", 0.1)
    patch.setattr("runcue.web.broadcast.SHARE", 2)
    patch.setattr("runcue.web.broadcast.DEAD_EVERY", 0.0)


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is in a hurry."""
    hurry(monkeypatch)


@pytest_asyncio.fixture(loop_scope="session")
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A queue with a worker and a dashboard."""
    async with play(tmp_path / "queue.db") as stage:
        yield stage


@pytest.fixture
def mishaps() -> Mishaps:
    """What the page of this test complained of."""
    return Mishaps()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A browser without a past."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext, mishaps: Mishaps) -> AsyncIterator[Page]:
    """A page; at the end nothing was refused by its policy, and its console is empty."""
    page = await context.new_page()
    mishaps.watch(page)
    await page.add_init_script(WATCH)
    yield page
    if page.url.startswith("http"):
        assert await page.evaluate("window.reports") == []
    mishaps.check()


@pytest_asyncio.fixture(loop_scope="session")
async def inside(stage: Stage, page: Page, mishaps: Mishaps) -> Page:
    """The page, come in by the link. It is made after the dashboard, so that it is closed before that goes away."""
    await page.goto(stage.link)
    line = expect(page.locator(".line"))
    for _ in range(TRIES):
        try:
            await line.to_have_text("live", timeout=PATIENCE / TRIES)
        except AssertionError:
            if not mishaps.has_network_changed:  # else the browser gave up what it was loading
                break
            mishaps.has_network_changed = False
            await page.reload()
        else:
            return page
    await line.to_have_text("live")
    return page
