"""Texts that want to be markup, and pages that want to be this one."""

import asyncio

import pytest
from playwright.async_api import BrowserContext, Page, expect

from runcue import Cue, Work
from tests.browser.mishaps import Mishaps
from tests.browser.stage import TOKEN, Stage

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("browser")]

RUN = "window.__x=1"
PAYLOADS = [
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


async def hostile(stage: Stage) -> list[str]:
    """Works that carry each payload wherever a text can stand; their ids."""
    ids = []
    for number, text in enumerate(PAYLOADS):
        params = {"error": text, text: text, "nested": [{text: [text]}]}
        given = {"task": "fail", "target": text, "params": params, "idempotency_key": f"{number} {text}"}
        ids.append(await stage.cue.submit(**given))  # type: ignore[arg-type]
    for work in ids:
        await stage.cue.wait(work, 10)
    return ids


async def error(stage: Stage, work_id: str) -> str | None:
    """What the queue keeps of a failure: it makes signs harmless that would turn a line around."""
    work = await stage.cue.get(work_id)
    return None if work is None else work.error


async def untouched(page: Page) -> None:
    """Nothing ran, nothing was added to the page that brings something from elsewhere."""
    assert await page.evaluate("typeof window.__x") == "undefined"
    foreign = (
        "main :is(script, iframe, img, object, embed, video, style, link, base, meta, template, form, math)"
    )
    assert await page.locator(foreign).count() == 0


async def test_payloads_are_text_in_lists_and_groups(inside: Page, stage: Stage) -> None:
    ids = await hostile(stage)
    await inside.goto(f"{stage.base}#/works")
    await expect(inside.locator("[data-row]")).to_have_count(len(PAYLOADS))
    for work, text in zip(ids, PAYLOADS, strict=True):
        row = inside.locator(f'[data-row="{work}"]')
        assert await row.locator(".target").evaluate("node => node.textContent") == text
        assert await row.locator(".middle").evaluate("node => node.textContent") == await error(stage, work)
    await untouched(inside)
    await inside.goto(f"{stage.base}#/")
    await expect(inside.locator(".group").first).to_be_visible()
    await expect(inside.get_by_role("region", name="Recent").locator("[data-row]")).to_have_count(10)
    await untouched(inside)


async def test_payloads_are_text_on_the_page_of_a_work(inside: Page, stage: Stage) -> None:
    ids = await hostile(stage)
    for work, text in zip(ids, PAYLOADS, strict=True):
        await inside.evaluate("address => { location.hash = address }", f"#/works/{work}")
        await expect(inside.locator(".work-id")).to_have_text(work)
        assert await inside.locator("h1 .target").evaluate("node => node.textContent") == text
        told = await inside.locator(".callout .error").evaluate("node => node.textContent")
        assert told == await error(stage, work)
        params = inside.get_by_role("region", name="Params").locator("pre")
        assert await params.evaluate("(node, text) => JSON.parse(node.textContent)[text]", text) == text
    await untouched(inside)


async def test_payloads_are_text_in_names_output_and_search(
    inside: Page, stage: Stage, mishaps: Mishaps
) -> None:
    mishaps.expected = ("404",)
    odd = "<img src=x onerror=window.__x=1>"
    other = Cue(stage.path)
    other.service(odd, concurrent=1)

    @other.task(odd, uses=odd)
    async def named(work: Work) -> str:
        return odd

    await other.submit(odd, queue=odd)
    await other.pause(odd)
    work = await stage.cue.submit("shell", params={"script": f"echo '{odd}'"})
    await inside.goto(f"{stage.base}#/services")
    await expect(inside.locator("article h2", has_text=odd)).to_have_text(odd)
    await inside.goto(f"{stage.base}#/")
    await expect(inside.get_by_role("region", name="Services")).to_contain_text(odd)
    await expect(inside.get_by_role("region", name="Waiting")).to_contain_text(odd)
    await inside.goto(f"{stage.base}#/works/{work}")
    await expect(inside.locator("pre.log")).to_have_text(odd + "\n")
    for text in PAYLOADS[:10]:
        await inside.evaluate(
            "text => { location.hash = `#/works?${new URLSearchParams({search: text})}` }", text
        )
        await expect(inside.get_by_label("Search")).to_have_value(text)
    await inside.evaluate("text => { location.hash = `#/works/${encodeURIComponent(text)}` }", odd)
    await expect(inside.locator("main")).to_contain_text("There is no work")
    await expect(inside.locator("main")).to_contain_text(odd)
    await untouched(inside)
    await other.close()


async def test_a_page_of_another_name_that_points_here_reads_nothing(
    inside: Page, context: BrowserContext, stage: Stage
) -> None:
    """DNS rebinding: the browser is told that evil.test is this machine."""
    port = stage.base.rstrip("/").rpartition(":")[2]
    evil = f"http://evil.test:{port}/"
    other = await context.new_page()
    try:
        for path in ("", f"?token={TOKEN.replace(' ', '%20')}", "status", "static/app.js"):
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
    services = await asyncio.wait_for(stage.cue.services(), 10)
    assert not any(one["paused"] for one in services)
