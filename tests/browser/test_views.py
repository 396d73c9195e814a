"""Every view of the dashboard, in a real browser on a real queue."""

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.browser.mishaps import Mishaps
from tests.browser.stage import Stage, play

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def shown(page: Page, text: str) -> None:
    """Wait until the page says that."""
    await expect(page.locator("main")).to_contain_text(text)


async def go(page: Page, stage: Stage, address: str) -> None:
    """Open one of the page's addresses."""
    await page.goto(f"{stage.base}{address}")


async def sideways(page: Page) -> int:
    """How far the page could be scrolled sideways."""
    return int(await page.evaluate("document.documentElement.scrollWidth - innerWidth"))


async def test_the_link_leaves_no_token_in_the_address(inside: Page, stage: Stage) -> None:
    assert inside.url == stage.base


async def test_an_empty_queue_says_so_everywhere(inside: Page, stage: Stage, mishaps: Mishaps) -> None:
    mishaps.expected = ("404",)
    await shown(inside, "Nothing waits.")
    await shown(inside, "No dead letters.")
    await go(inside, stage, "#/works")
    await shown(inside, "This queue is empty.")
    await go(inside, stage, "#/works?search=nowhere")
    await shown(inside, "Nothing matches.")
    await go(inside, stage, "#/works/nobody")
    await shown(inside, "There is no unit 'nobody'")


async def test_the_overview_shows_what_runs_what_waits_and_why(inside: Page, stage: Stage) -> None:
    running = await stage.cue.submit("hold", target="first")
    waiting = await stage.cue.submit("hold", target="second")
    panel = inside.get_by_role("region", name="Running")
    await expect(panel.locator(f'[data-row="{running}"]')).to_contain_text("first")
    panel = inside.get_by_role("region", name="Waiting")
    await expect(panel.locator(f'[data-row="{waiting}"]')).to_contain_text("concurrency slow")
    await expect(panel.get_by_label("Why work waits")).to_contain_text("concurrency slow")
    await expect(inside.get_by_role("region", name="Services")).to_contain_text("concurrency used up")
    await expect(inside.get_by_role("region", name="Workers")).to_contain_text("alive")


async def test_of_many_that_wait_the_newest_are_looked_at(inside: Page, stage: Stage) -> None:
    await stage.cue.submit_many([{"task": "hold"} for _ in range(206)])
    panel = inside.get_by_role("region", name="Waiting")
    await expect(panel).to_contain_text("the newest 200 of 205")


async def test_a_number_changes_without_a_reload(inside: Page, stage: Stage) -> None:
    await expect(inside.locator('[data-count="completed"]')).to_have_text("0")
    await stage.cue.submit("quick")
    await expect(inside.locator('[data-count="completed"]')).to_have_text("1")
    await expect(inside.get_by_role("region", name="Recent")).to_contain_text("quick")


async def test_a_count_leads_to_the_works_that_make_it(inside: Page, stage: Stage) -> None:
    dead = await stage.cue.submit("fail")
    await stage.cue.submit("quick")
    await expect(inside.locator('[data-count="failed"]')).to_have_text("1")
    await inside.locator("a.count.is-failed").click()
    await expect(inside).to_have_url(re.compile("#/works[?]state=failed$"))
    await expect(inside.locator("[data-row]")).to_have_count(1)
    await expect(inside.locator(f'[data-row="{dead}"]')).to_contain_text("no luck")


async def test_dead_letters_are_grouped_by_error(inside: Page, stage: Stage) -> None:
    for number in range(3):
        await stage.cue.submit("fail", params={"error": f"page {number} is empty"})
    groups = inside.get_by_role("region", name="Dead letters").locator(".group")
    await expect(groups).to_have_count(1)
    await expect(groups).to_contain_text("3 ×")
    await expect(groups).to_contain_text("page # is empty")


async def test_the_list_goes_on_page_by_page(inside: Page, stage: Stage) -> None:
    await stage.cue.submit_many([{"task": "quick", "target": f"t{number}"} for number in range(60)])
    await go(inside, stage, "#/works")
    await expect(inside.locator("[data-row]")).to_have_count(50)
    await inside.get_by_role("button", name="Show older").click()
    await expect(inside.locator("[data-row]")).to_have_count(60)
    ids = await inside.locator("[data-row]").evaluate_all("rows => rows.map(row => row.dataset.row)")
    assert len(set(ids)) == 60


async def test_a_list_is_filtered_by_what_its_fields_say(inside: Page, stage: Stage) -> None:
    await stage.cue.submit("quick", target="alpha", queue="one")
    await stage.cue.submit("quick", target="beta", queue="two")
    await go(inside, stage, "#/works")
    await expect(inside.locator("[data-row]")).to_have_count(2)
    await inside.get_by_label("Search").fill("alph")
    await expect(inside.locator("[data-row]")).to_have_count(1)
    await shown(inside, "alpha")
    await inside.get_by_label("Search").fill("")
    await expect(inside.locator("[data-row]")).to_have_count(2)
    await inside.get_by_label("queue").fill("two")
    await inside.get_by_label("queue").press("Enter")
    await expect(inside.locator("[data-row]")).to_have_count(1)
    await shown(inside, "beta")
    assert "queue=two" in inside.url


async def test_a_group_shows_how_far_it_is(inside: Page, stage: Stage) -> None:
    await stage.cue.submit_many(
        [{"task": "quick", "group": "import-7", "tags": {"page": str(number)}} for number in range(3)]
    )
    await stage.cue.group("import-7").wait()
    await stage.cue.submit("hold", group="import-7", tags={"page": "last"})
    await stage.cue.submit("quick")
    await go(inside, stage, "#/works?group=import-7")
    await expect(inside.locator("[data-row]")).to_have_count(4)
    await expect(inside.get_by_role("group", name="Group import-7")).to_contain_text("3 of 4 units")
    await expect(inside.locator("[data-row]").first).to_contain_text("page=last")
    await inside.get_by_label("tag").fill("page=1")
    await inside.get_by_label("tag").press("Enter")
    await expect(inside.locator("[data-row]")).to_have_count(1)
    await inside.locator("[data-row]").click()
    await expect(inside.get_by_role("link", name="page=1")).to_have_attribute("href", "#/works?tag=page%3D1")
    stage.gate.set()


async def test_a_work_says_why_it_waits_and_shows_its_graph(inside: Page, stage: Stage) -> None:
    first = await stage.cue.submit("hold")
    then = await stage.cue.submit("quick", depends_on=[first], params={"page": 3})
    await go(inside, stage, f"#/works/{then}")
    await expect(inside.locator(".callout")).to_contain_text("It waits for other units")
    await expect(inside.locator(".graph .node")).to_have_count(2)
    await expect(inside.locator(".graph .wire")).to_have_count(1)
    await expect(inside.get_by_role("region", name="Params")).to_contain_text('"page": 3')
    await expect(inside.get_by_role("region", name="Timeline")).to_contain_text("waiting")
    stage.gate.set()
    await expect(inside.locator(".work-head .badge")).to_have_text("completed")
    await expect(inside.get_by_role("region", name="Result")).to_contain_text("echo")


async def test_a_failed_work_shows_its_attempts_and_traceback(inside: Page, stage: Stage) -> None:
    dead = await stage.cue.submit("fail", params={"error": "page 7 is empty"})
    await go(inside, stage, f"#/works/{dead}")
    await expect(inside.locator(".callout")).to_contain_text(
        "Failed after one attempt: ValueError: page 7 is empty"
    )
    await expect(inside.get_by_role("region", name="Failed attempts")).to_contain_text("page 7 is empty")
    await expect(inside.get_by_role("region", name="Traceback")).to_contain_text("raise ValueError")


async def test_secrets_are_not_shown(inside: Page, stage: Stage) -> None:
    work = await stage.cue.submit(
        "quick", params={"password": "canary-1", "url": "https://me:canary-2@host/x"}
    )
    await go(inside, stage, f"#/works/{work}")
    await expect(inside.get_by_role("region", name="Params")).to_contain_text("***")
    assert "canary" not in await inside.content()


async def test_schedules_show_when_and_what_they_do(inside: Page, stage: Stage) -> None:
    await go(inside, stage, "#/schedules")
    await shown(inside, "Nothing comes by itself.")
    await stage.cue.schedule(
        "nightly", "quick", cron="0 3 * * *", tz="Europe/Zurich", params={"token": "canary"}
    )
    await stage.cue.schedule("beat", "tick", every="2h", overlap="queue", missed="none", jitter="90s")
    await stage.cue.schedule("past", "tick", every="2h", until=1)
    last = await stage.cue.run_now("nightly")
    await expect(inside.locator("[data-schedule]")).to_have_count(3)
    nightly = inside.locator('[data-schedule="nightly"]')
    await expect(nightly).to_contain_text("0 3 * * * Europe/Zurich")
    await expect(nightly).to_contain_text("***")
    await expect(nightly.get_by_role("link", name="completed")).to_have_attribute("href", f"#/works/{last}")
    beat = inside.locator('[data-schedule="beat"]')
    await expect(beat).to_contain_text("overlap: queue · missed: none · jitter up to 1 m 30 s")
    await expect(beat).to_contain_text(re.compile("in (1 h 59 m|2 h)"))
    await expect(inside.locator('[data-schedule="past"]')).to_contain_text("over")
    await nightly.get_by_role("link", name="1", exact=True).click()
    await expect(inside.locator("[data-row]")).to_have_count(1)
    await expect(inside.locator(f'[data-row="{last}"]')).to_be_visible()


async def test_services_and_workers_have_their_pages(inside: Page, stage: Stage) -> None:
    await go(inside, stage, "#/services")
    await expect(inside.get_by_role("article", name="api")).to_contain_text("1000/min")
    await expect(inside.get_by_role("article", name="api")).to_contain_text("circuit closed")
    await expect(inside.get_by_role("article", name="slow")).to_contain_text("0 / 1")
    await go(inside, stage, "#/workers")
    await expect(inside.locator("tbody tr")).to_have_count(1)
    await shown(inside, "all queues")


async def test_no_view_scrolls_sideways_at_360_pixels(browser: Browser, stage: Stage) -> None:
    long = "a-name-without-any-place-to-break-" * 6
    first = await stage.cue.submit("hold", target=long)
    dead = await stage.cue.submit("fail", target=long, params={"error": long, "value": long})
    then = await stage.cue.submit("quick", depends_on=[first], queue="a" * 60)
    await stage.cue.schedule(long[:120], "tick", every="2h", jitter="90s")
    await stage.cue.run_now(long[:120])
    page = await browser.new_page(viewport={"width": 360, "height": 740})
    try:
        await page.goto(stage.link)
        works = ("#/works", f"#/works/{dead}", f"#/works/{then}")
        for address in ("#/", *works, "#/schedules", "#/services", "#/workers"):
            await go(page, stage, address)
            await expect(page.locator("main .card").first).to_be_visible()
            assert await sideways(page) <= 0, address
        await go(page, stage, "#/services")
        await page.get_by_role("button", name="Change limits").first.click()
        await expect(page.locator("dialog")).to_be_visible()
        assert await sideways(page) <= 0
    finally:
        await page.close()


async def test_it_is_dark_where_the_system_or_the_person_wants_it(browser: Browser, stage: Stage) -> None:
    async def ground(page: Page) -> str:
        return str(await page.evaluate("getComputedStyle(document.body).backgroundColor"))

    context = await browser.new_context(color_scheme="dark")
    try:
        page = await context.new_page()
        await page.goto(stage.link)
        await expect(page.locator(".line")).to_have_text("live")
        dark = await ground(page)
        await page.get_by_role("button", name="Colours: system").click()
        await expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
        light = await ground(page)
        assert dark != light
        await page.reload()
        await expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
        assert await ground(page) == light
    finally:
        await context.close()


async def test_output_is_followed_while_a_command_prints(inside: Page, stage: Stage, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    script = f"echo one; echo oops >&2; until test -e '{go_on}'; do sleep 0.05; done; echo two"
    work = await stage.cue.submit("shell", params={"script": script})
    await go(inside, stage, f"#/works/{work}")
    panel = inside.get_by_role("region", name="Output")
    await expect(panel.locator("pre")).to_have_text("one\n")
    go_on.touch()
    await expect(panel.locator("pre")).to_have_text("one\ntwo\n")
    await panel.get_by_role("button", name="stderr").click()
    await expect(panel.locator("pre")).to_have_text("oops\n")


async def test_the_output_of_a_second_attempt_stands_alone(
    inside: Page, stage: Stage, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    script = f"if test -e '{mark}'; then echo the second; else touch '{mark}'; echo first; false; fi"
    work = await stage.cue.submit("shell", params={"script": script}, retry=0)
    await go(inside, stage, f"#/works/{work}")
    panel = inside.get_by_role("region", name="Output")
    await expect(panel.locator("pre")).to_have_text("first\n")
    await panel.get_by_role("button", name="stdout").click()
    await inside.get_by_role("button", name="Retry").click()
    await expect(inside.locator(".work-head .badge")).to_have_text("completed")
    await expect(panel.locator("pre")).to_have_text("the second\n")
    assert await panel.locator("pre").evaluate("node => node.textContent") == "the second\n"


async def test_output_that_was_asked_for_twice_at_once_is_shown_once(inside: Page, stage: Stage) -> None:
    work = await stage.cue.submit("shell", params={"script": "echo once"}, retry=0)
    await stage.cue.wait(work, 300)
    await go(inside, stage, f"#/works/{work}")
    panel = inside.get_by_role("region", name="Output")
    await expect(panel.locator("pre")).to_have_text("once\n")
    asked, answered, gate = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.release()
        await gate.wait()
        await route.fulfill(response=await route.fetch())
        answered.release()

    await inside.route("**/output?*", hold)
    for _ in range(2):
        await panel.get_by_role("button", name="stdout").click()
        await asked.acquire()
    gate.set()
    for _ in range(2):
        await answered.acquire()
    await expect(panel.locator("pre")).to_have_text("once\n")
    await inside.evaluate("() => new Promise(requestAnimationFrame)")
    assert await panel.locator("pre").evaluate("node => node.textContent") == "once\n"


async def test_a_dashboard_for_looking_only_offers_no_action(page: Page, tmp_path: Path) -> None:
    async with play(tmp_path / "other.db", read_only=True) as stage:
        dead = await stage.cue.submit("fail")
        await stage.cue.schedule("beat", "tick", every="2h")
        await page.goto(stage.link)
        await expect(page.locator("#bar")).to_contain_text("read-only")
        await expect(page.locator(".group")).to_have_count(1)
        await go(page, stage, f"#/works/{dead}")
        await expect(page.locator(".work-head")).to_contain_text("read-only")
        for address in ("#/", "#/works?state=failed", f"#/works/{dead}", "#/schedules", "#/services"):
            await go(page, stage, address)
            await expect(page.locator("main .card").first).to_be_visible()
            words = ("Retry", "Cancel", "Discard", "Pause", "Run", "Change limits")
            assert [one for one in words if await page.get_by_role("button", name=one).count()] == []
        await page.goto("about:blank")
