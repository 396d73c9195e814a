"""How the page behaves when something is amiss, and how it keeps calm when much happens."""

from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, expect

import runcue.web
from tests.browser.mishaps import Mishaps
from tests.browser.stage import LINK, TOKEN, Stage, served

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_queue_that_is_gone_is_told_and_one_that_is_back_is_shown(
    inside: Page, stage: Stage, mishaps: Mishaps
) -> None:
    mishaps.expected = ("503",)
    await stage.cue.submit("quick")
    await expect(inside.locator('[data-count="completed"]')).to_have_text("1")
    await stage.cue.stop()
    await stage.cue.close()
    away = stage.path.with_name("away.db")
    stage.path.rename(away)
    await expect(inside.locator(".banner")).to_contain_text("The queue cannot be read.")
    await expect(inside.locator(".line")).to_have_text("unavailable")
    await expect(inside.locator('[data-count="completed"]')).to_have_text("1")
    assert "is-stale" in (await inside.locator("main").get_attribute("class") or "")
    away.rename(stage.path)
    await expect(inside.locator(".line")).to_have_text("live")
    await expect(inside.locator(".banner")).to_have_count(0)


async def test_a_page_that_lost_its_server_comes_back_with_it(
    page: Page, stage: Stage, mishaps: Mishaps, tmp_path: Path
) -> None:
    mishaps.expected = ("net::ERR", "503")
    async with served(runcue.web.app(stage.path, token=TOKEN)) as base:
        await page.goto(f"{base}{LINK}")
        await expect(page.locator(".line")).to_have_text("live")
    await expect(page.locator(".line")).to_have_text("reconnecting")
    await expect(page.locator(".banner")).to_contain_text("Disconnected.")
    async with served(runcue.web.app(stage.path, token=TOKEN), port=int(base.rstrip("/").rpartition(":")[2])):
        await expect(page.locator(".line")).to_have_text("live")
        await expect(page.locator(".banner")).to_have_count(0)
        await page.goto("about:blank")


async def test_without_its_cookie_the_page_says_how_to_come_in(
    inside: Page, context: BrowserContext, mishaps: Mishaps
) -> None:
    mishaps.expected = ("401",)
    await context.clear_cookies()
    await inside.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(inside.locator("main")).to_contain_text("Signed out")
    await inside.reload()
    await expect(inside.locator("body")).to_contain_text("401")


async def test_a_frozen_page_shows_what_it_had_until_it_is_let_go(
    inside: Page, context: BrowserContext, stage: Stage
) -> None:
    count = inside.locator('[data-count="completed"]')
    await inside.get_by_role("button", name="Freeze").click()
    await expect(inside.locator(".line")).to_have_text("frozen")
    beside = await context.new_page()
    await beside.goto(stage.base)
    for number in (1, 2):  # once the other page has told of the second, the first has long been sent here
        await stage.cue.submit("quick")
        await expect(beside.locator('[data-count="completed"]')).to_have_text(str(number))
    await expect(count).to_have_text("0")
    await inside.get_by_role("button", name="Freeze").click()
    await expect(count).to_have_text("2")


async def test_a_hidden_page_lets_go_of_its_stream(inside: Page, stage: Stage) -> None:
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s})"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    async with inside.expect_event("requestfailed", lambda request: request.url.endswith("/live")):
        await inside.evaluate(hide % "true")
        await inside.evaluate(tell)
    await stage.cue.wait(await stage.cue.submit("quick"), 300)
    await expect(inside.locator('[data-count="completed"]')).to_have_text("0")
    await inside.evaluate(hide % "false")
    await inside.evaluate(tell)
    await expect(inside.locator('[data-count="completed"]')).to_have_text("1")


async def test_nothing_moves_under_the_pointer(inside: Page, stage: Stage) -> None:
    first = await stage.cue.submit("quick", target="first")
    recent = inside.get_by_role("region", name="Recent")
    await expect(recent.locator("[data-row]")).to_have_count(1)
    await recent.locator("[data-row]").hover()
    await stage.cue.submit("quick", target="second")
    await expect(recent).to_contain_text("1 new")
    await expect(recent.locator("[data-row]")).to_have_count(1)
    await expect(recent.locator("[data-row]")).to_have_attribute("data-row", first)
    await inside.mouse.move(2, 2)
    await expect(recent.locator("[data-row]")).to_have_count(2)


async def test_it_works_below_any_address(page: Page, stage: Stage) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = runcue.web.app(stage.path, token=TOKEN)
    outer = Starlette(routes=[Mount("/ops/queue", app=inner)])
    outer.state.end_streams = inner.state.end_streams
    async with served(outer) as base:
        await page.goto(f"{base}ops/queue/{LINK}")
        await expect(page.locator(".line")).to_have_text("live")
        await stage.cue.submit("quick")
        await expect(page.locator('[data-count="completed"]')).to_have_text("1")
        await page.get_by_role("link", name="Services").first.click()
        await page.get_by_role("article", name="api").get_by_role("button", name="Pause").click()
        await expect(page.locator("#said")).to_contain_text("Paused api.")
        assert page.url.startswith(f"{base}ops/queue/")
        await page.goto("about:blank")
