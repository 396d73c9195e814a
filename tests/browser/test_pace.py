"""The page while a queue does a thousand units a second."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from playwright.async_api import CDPSession, Page, expect

from tests.browser.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

PACE = 1000
BEAT = 0.05
MOST = 200
"""Units at a time, where the machine does not keep that pace."""
LARGEST_SHARE = 0.5
"""Of a core that the page may take for itself."""
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
        due = min(int((loop.time() - began) * PACE) - sent, MOST)
        await stage.cue.submit_many([{"task": "tick", "target": f"t{sent + one}"} for one in range(due)])
        sent += due
        beat = loop.create_future()
        loop.call_later(BEAT, beat.set_result, None)
        await beat


async def advanced(page: Page, before: int) -> int:
    """Wait until the page counts more than that; what it counts."""
    return int(await (await page.wait_for_function(COMPLETED, arg=before)).json_value())


class Busy:
    """How busy a page is: by the time that its thread had a core, which other programs do not lengthen."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session

    async def begin(self) -> None:
        """Count from now on."""
        await self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def seconds(self) -> float:
        """How long it had a core so far."""
        answer = await self._session.send("Performance.getMetrics")
        return float(next(one["value"] for one in answer["metrics"] if one["name"] == "TaskDuration"))


async def test_a_thousand_units_a_second_leave_the_page_to_who_looks_at_it(
    inside: Page,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    monkeypatch.undo()  # the dashboard looks as often as it does for people
    loop = asyncio.get_running_loop()
    busy = Busy(await inside.context.new_cdp_session(inside))
    await busy.begin()
    began, before = loop.time(), await busy.seconds()
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
    share = (await busy.seconds() - before) / (loop.time() - began)
    record_testsuite_property("units a second", round(seen / (loop.time() - began)))
    record_testsuite_property("share of a core for the page", share)
    assert 0 < share < LARGEST_SHARE
