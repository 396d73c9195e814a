"""The page while a queue does a thousand works a second."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from playwright.async_api import Page, expect

from tests.browser.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

PACE = 1000
BEAT = 0.05
LONGEST_TASK = 2000
"""Milliseconds that the page may be deaf at a time: far more than it is, for the sake of busy machines."""
LISTEN = """() => {
    window.longest = 0;
    const note = (list) => {
        for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
    };
    new PerformanceObserver(note).observe({type: "longtask", buffered: false});
}"""
COMPLETED = """before => {
    const text = document.querySelector('[data-count="completed"]')?.textContent ?? "0";
    const shown = Number(text.replaceAll(",", ""));
    return shown > before && shown;
}"""


async def feed(stage: Stage) -> None:
    """Submit what is due by now, again and again."""
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    while True:
        due = int((loop.time() - began) * PACE) - sent
        await stage.cue.submit_many([{"task": "tick", "target": f"t{sent + one}"} for one in range(due)])
        sent += due
        beat = loop.create_future()
        loop.call_later(BEAT, beat.set_result, None)
        await beat


async def advanced(page: Page, before: int) -> int:
    """Wait until the page counts more than that; what it counts."""
    return int(await (await page.wait_for_function(COMPLETED, arg=before)).json_value())


async def test_a_thousand_works_a_second_leave_the_page_to_who_looks_at_it(
    inside: Page,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    monkeypatch.undo()  # the dashboard looks as often as it does for people
    loop = asyncio.get_running_loop()
    await inside.evaluate(LISTEN)
    began = loop.time()
    feeding = asyncio.create_task(feed(stage))
    try:
        seen = await advanced(inside, 0)
        seen = await advanced(inside, seen + PACE)
        await inside.get_by_role("link", name="Work", exact=True).click()
        await expect(inside.locator("[data-row]")).to_have_count(50)
        await inside.keyboard.press("?")
        await expect(inside.locator("dialog")).to_contain_text("freeze the page")
        await inside.keyboard.press("Escape")
        await inside.get_by_role("link", name="Overview", exact=True).click()
        seen = await advanced(inside, seen + PACE)
        await inside.get_by_role("region", name="Recent").locator("[data-row]").first.hover()
        seen = await advanced(inside, seen)
        assert not feeding.done()
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
    longest = float(await inside.evaluate("window.longest"))
    record_testsuite_property("works a second", round(seen / (loop.time() - began)))
    record_testsuite_property("longest task of the page in ms", longest)
    assert longest < LONGEST_TASK
