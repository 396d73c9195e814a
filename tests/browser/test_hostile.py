"""Texts that want to be markup, and pages that want to be this one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

import runcue.web
from runcue import Cue, Reader, Work
from tests.browser.conftest import PATIENCE, WATCH, hurry
from tests.browser.mishaps import Mishaps
from tests.browser.stage import LINK, TOKEN, Stage, served

pytestmark = pytest.mark.asyncio(loop_scope="session")

RUN = "window.__x=1"
BASIC = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f'"><img src=x onerror={RUN}>',
    f"'><svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<math><mtext></mtext><script>{RUN}</script></math>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<iframe src=javascript:{RUN}></iframe>",
    f"javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    f"<a href=javascript:{RUN}>x</a>",
    f"<body onload={RUN}>",
    f"<details open ontoggle={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<input autofocus onfocus={RUN}>",
    f"<style>@import 'javascript:{RUN}'</style>",
    f"<div style=\"background:url('javascript:{RUN}')\">",
    "<link rel=stylesheet href=//evil.test/x.css>",
    "<base href=//evil.test/>",
    "<meta http-equiv=refresh content='0;url=//evil.test/'>",
    f"<form action=javascript:{RUN}><button>x</button></form>",
    f"<object data=javascript:{RUN}></object>",
    f"<embed src=javascript:{RUN}>",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"${{{RUN}}}",
    f"`;{RUN};`",
    f"';{RUN};//",
    f'";{RUN};//',
    "&lt;script&gt;" + RUN + "&lt;/script&gt;",
    f"<!--><script>{RUN}</script>-->",
    f"<![CDATA[<script>{RUN}</script>]]>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    f"<template><script>{RUN}</script></template>",
    f"<x onclick={RUN} tabindex=1 onfocus={RUN}>",
    "\u202e<b>backwards</b>\u202c",
    f"a\nevent: status\ndata: {{}}\n\n<script>{RUN}</script>",
    "__proto__",
    "constructor",
]
ESCAPES = ['">', "'>", "-->", "</title>", "</textarea></pre>", "]]>", "\\u003c/script>"]
"""What a text may begin with to leave the place where it stands."""
PAYLOADS = [
    *BASIC,
    *(text.replace("script", "ScRiPt").replace("onerror", "oNeRrOr") for text in BASIC if "script>" in text),
    *(escape + text for escape in ESCAPES for text in BASIC if text.startswith("<")),
]
PAYLOADS = list(dict.fromkeys(PAYLOADS))[:200]
NAMES = [text for text in PAYLOADS if text.isprintable() and not set(text) & set("{}*")]
"""Those that runcue takes as the name of a service."""
CLOSE_LOOKS = 17
"""Every so many is looked at on its own page."""


class Trap:
    """A page on a queue all of whose texts are payloads."""

    def __init__(self, page: Page, base: str, cue: Cue, mishaps: Mishaps) -> None:
        self.page, self.base, self.cue, self.mishaps = page, base, cue, mishaps

    async def go(self, address: str) -> None:
        """Go to an address of the page, which is not loaded again."""
        await self.page.evaluate("address => { location.hash = address }", address)

    async def texts(self, selector: str) -> list[str]:
        """The text of each of these, as it stands in the document."""
        found = self.page.locator(selector)
        return list(await found.evaluate_all("nodes => nodes.map(node => node.textContent)"))

    async def holds(self) -> None:
        """Nothing ran, nothing was refused, nothing was added that brings something from elsewhere."""
        assert await self.page.evaluate("typeof window.__x") == "undefined"
        assert await self.page.evaluate("window.reports") == []
        foreign = "script, iframe, img, object, embed, video, style, link, base, meta, template, form, math"
        assert await self.page.locator(f"main :is({foreign})").count() == 0
        self.mishaps.check()


def odd_workers(reader: Reader) -> list[dict[str, Any]]:
    """As many workers as payloads, with such names."""
    facts = {"state": "alive", "pid": 1, "started_at": 1.0, "serving": True, "running": 0, "silent_for": 0.0}
    return [{"id": f"id {text}", "host": text, "queues": [text], **facts} for text in PAYLOADS]


def odd_tasks(cue: Cue) -> None:
    """A task and a service of each name."""

    async def fail(work: Work) -> None:
        raise ValueError(work.params["error"])

    for name in NAMES:
        cue.service(name, concurrent=9)
        cue.task(name, uses=name, retry=0)(fail)

    @cue.task("shell", executor="subprocess", shell=True)
    def shell(work: Work) -> str:
        return "cat <<'end of it'\n" + "\n".join(NAMES) + "\nend of it"


def odd_works() -> list[dict[str, Any]]:
    """A work for each payload, which carries it wherever a text can stand."""
    works = []
    for text in PAYLOADS:
        name = text if text in NAMES else NAMES[0]
        params = {"error": text, text: text, "nested": [{text: [text]}]}
        given = {"task": name, "queue": name, "target": text, "params": params, "idempotency_key": text}
        works.append({**given, "id": text} if text in NAMES else given)
    return works


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trap(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trap]:
    """One queue and one page for all payloads."""
    path = tmp_path_factory.mktemp("hostile") / "queue.db"
    cue = Cue(path)
    odd_tasks(cue)
    mishaps = Mishaps()
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        patch.setattr(Reader, "workers", odd_workers)
        async with cue:
            await cue.submit_many(odd_works())
            await cue.submit("shell", id="the shell")
            await cue.join(timeout=30)
            async with served(runcue.web.app(path, token=TOKEN)) as base:
                context = await browser.new_context(viewport={"width": 1280, "height": 900})
                context.set_default_timeout(PATIENCE)
                page = await context.new_page()
                mishaps.watch(page)
                await page.add_init_script(WATCH)
                await page.goto(base + LINK)
                await expect(page.locator(".line")).to_have_text("live")
                yield Trap(page, base, cue, mishaps)
                await context.close()
        await cue.close()


async def test_there_are_two_hundred_payloads() -> None:
    assert len(PAYLOADS) == 200
    assert len(NAMES) > 190


async def test_payloads_are_text_in_lists(trap: Trap) -> None:
    await trap.go("#/works?state=failed")
    for count in (50, 100, 150):
        await expect(trap.page.locator("[data-row]")).to_have_count(count)
        await trap.page.get_by_role("button", name="Show older").click()
    await expect(trap.page.locator("[data-row]")).to_have_count(200)
    assert set(await trap.texts("[data-row] .target")) == set(PAYLOADS)
    assert set(await trap.texts("[data-row] strong")) == set(NAMES)
    assert set(await trap.texts("[data-row] .id")) >= set(NAMES)
    kept = await trap.cue.list(state="failed", limit=200)
    assert sorted(await trap.texts("[data-row] .middle")) == sorted(work.error or "" for work in kept)
    await trap.holds()


async def test_payloads_are_text_in_the_overview_and_its_groups(trap: Trap) -> None:
    await trap.go("#/")
    await expect(trap.page.locator(".group")).to_have_count(8)
    await expect(trap.page.get_by_role("region", name="Recent").locator("[data-row]")).to_have_count(10)
    assert set(await trap.texts(".group .task")) <= set(NAMES)
    assert set(await trap.texts(".services .name")) <= set(NAMES)
    await trap.holds()


async def test_payloads_are_text_on_the_page_of_a_work(trap: Trap) -> None:
    for text in NAMES[::CLOSE_LOOKS]:
        await trap.page.evaluate("id => { location.hash = `#/works/${encodeURIComponent(id)}` }", text)
        await expect(trap.page.locator(".work-id")).to_have_text(text)
        work = await trap.cue.get(text)
        assert work is not None
        assert await trap.texts("h1 .target") == [text]
        assert await trap.texts(".callout .error") == [work.error]
        params = trap.page.get_by_role("region", name="Params").locator("pre")
        assert await params.evaluate("(node, text) => JSON.parse(node.textContent)[text]", text) == text
        facts = await trap.texts("dl.facts dd a")
        assert facts == [text, text, text], "task, queue and service"
    await trap.holds()


async def test_payloads_are_text_in_schedules(trap: Trap) -> None:
    for text in NAMES:
        await trap.cue.schedule(text, text, every="2h", params={"error": text})
    await trap.go("#/schedules")
    await expect(trap.page.locator("[data-schedule]")).to_have_count(len(NAMES))
    assert await trap.texts("tbody td:first-child strong") == sorted(NAMES)
    await trap.holds()


async def test_payloads_are_text_in_names_of_services_queues_and_workers(trap: Trap) -> None:
    await trap.cue.pause("<b>queue</b>")
    await trap.go("#/services")
    await expect(trap.page.locator("article h2").first).to_be_visible()
    shown = await trap.texts("article h2")
    assert len(shown) > 190
    assert set(shown) <= set(NAMES)
    await expect(trap.page.get_by_label("Paused queues")).to_contain_text("Queue <b>queue</b> is paused")
    await trap.go("#/workers")
    await expect(trap.page.locator("tbody tr")).to_have_count(200)
    assert await trap.texts("tbody strong") == [f"{text}:1" for text in PAYLOADS]
    assert await trap.texts("tbody .id") == [f"id {text}" for text in PAYLOADS]
    await trap.holds()


async def test_payloads_are_text_in_output(trap: Trap) -> None:
    await trap.go("#/works/the%20shell")
    await expect(trap.page.locator("pre.log")).to_contain_text(NAMES[-1])
    assert (await trap.texts("pre.log"))[0].splitlines() == NAMES
    await trap.holds()


async def test_payloads_are_text_where_the_page_repeats_what_was_asked(trap: Trap) -> None:
    trap.mishaps.expected = ("404",)
    for text in NAMES[::CLOSE_LOOKS]:
        search = "text => { location.hash = `#/works?${new URLSearchParams({search: text, queue: text})}` }"
        await trap.page.evaluate(search, text)
        await expect(trap.page.get_by_label("Search")).to_have_value(text)
        await expect(trap.page.get_by_label("queue", exact=True)).to_have_value(text)
    await trap.page.evaluate(
        "id => { location.hash = `#/works/${encodeURIComponent(id)}` }", f"no {NAMES[2]}"
    )
    await expect(trap.page.locator("main")).to_contain_text("There is no unit")
    await expect(trap.page.locator("main")).to_contain_text(NAMES[2])
    await trap.holds()


async def test_a_page_of_another_name_that_points_here_reads_nothing(
    inside: Page, context: BrowserContext, stage: Stage
) -> None:
    """DNS rebinding: the browser is told that evil.test is this machine."""
    port = stage.base.rstrip("/").rpartition(":")[2]
    evil = f"http://evil.test:{port}/"
    other = await context.new_page()
    try:
        for path in ("", LINK, "status", "static/app.js"):
            answer = await other.goto(f"{evil}{path}")
            assert answer is not None
            assert answer.status == 421, path
        read = await other.evaluate(
            """async (own) => {
                const tell = async (path, options) => {
                    try {
                        const answer = await fetch(path, options);
                        return `${answer.status} ${await answer.text()}`;
                    } catch (error) {
                        return "nothing";
                    }
                };
                return [await tell("/status"), await tell(own + "status", {credentials: "include"}),
                        await tell(own + "services/api/pause", {method: "POST", credentials: "include",
                                   headers: {"Content-Type": "text/plain"}, body: "{}"})];
            }""",
            stage.base,
        )
        assert read[0].startswith("421 ")
        assert "counts" not in read[0]
        assert read[1:] == ["nothing", "nothing"]
    finally:
        await other.close()
    services = await asyncio.wait_for(stage.cue.services(), 300)
    assert not any(one["paused"] for one in services)
