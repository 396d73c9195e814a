"""What a person does on the page reaches the queue, and the page says how it went."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

import runcue.web
from runcue import Cue
from tests.browser.mishaps import Mishaps
from tests.browser.stage import LINK, TOKEN, Stage, served

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATIENCE = 300.0


async def service(stage: Stage, name: str) -> dict[str, object]:
    """How that service stands."""
    return next(one for one in await stage.cue.services() if one["name"] == name)


async def test_a_failed_work_is_retried(inside: Page, stage: Stage) -> None:
    work = await stage.cue.submit("moody")
    await stage.cue.wait(work, PATIENCE)
    await inside.goto(f"{stage.base}#/works/{work}")
    stage.mood = "good"
    await inside.get_by_role("button", name="Retry").click()
    await expect(inside.locator("#said")).to_contain_text(f"Retried {work}.")
    await expect(inside.locator(".work-head .badge")).to_have_text("completed")
    assert await stage.cue.result(work, PATIENCE) == "done"


async def test_cancelling_asks_first(inside: Page, stage: Stage) -> None:
    work = await stage.cue.submit("hold")
    await inside.goto(f"{stage.base}#/works/{work}")
    await inside.get_by_role("button", name="Cancel").click()
    await inside.get_by_role("button", name="Keep as it is").click()
    await expect(inside.locator("dialog")).to_have_count(0)
    assert (await stage.cue.get(work)).state == "running"  # type: ignore[union-attr]
    await inside.get_by_role("button", name="Cancel").click()
    await inside.locator("dialog").get_by_role("button", name="Cancel").click()
    await expect(inside.locator(".work-head .badge")).to_have_text("cancelled")
    assert (await stage.cue.wait(work, PATIENCE)).state == "cancelled"


async def test_a_service_is_paused_and_resumed(inside: Page, stage: Stage) -> None:
    await inside.goto(f"{stage.base}#/services")
    card = inside.get_by_role("article", name="api")
    await card.get_by_role("button", name="Pause").click()
    await expect(card).to_contain_text("paused")
    await expect(inside.locator("#said")).to_contain_text("Paused api.")
    assert (await service(stage, "api"))["paused"] is True
    await card.get_by_role("button", name="Resume").click()
    await expect(card.get_by_role("button", name="Pause")).to_be_visible()
    assert (await service(stage, "api"))["paused"] is False


async def test_a_schedule_is_paused_resumed_and_run(inside: Page, stage: Stage) -> None:
    await stage.cue.schedule("a/b beat", "tick", every="2h")
    await inside.goto(f"{stage.base}#/schedules")
    row = inside.locator('[data-schedule="a/b beat"]')
    await row.get_by_role("button", name="Pause").click()
    await expect(row).to_contain_text("paused")
    await expect(inside.locator("#said")).to_contain_text("Paused a/b beat.")
    assert [one.paused for one in await stage.cue.schedules()] == [True]
    await row.get_by_role("button", name="Resume").click()
    await expect(row.get_by_role("button", name="Pause")).to_be_visible()
    assert [one.paused for one in await stage.cue.schedules()] == [False]
    await row.get_by_role("button", name="Run a/b beat now").click()
    await expect(row.get_by_role("link", name="completed")).to_be_visible()
    [one] = await stage.cue.schedules()
    await expect(inside.locator("#said")).to_contain_text(f"Submitted {one.last_id}.")
    assert one.runs == 1


async def test_a_schedule_that_is_gone_is_told(inside: Page, stage: Stage, mishaps: Mishaps) -> None:
    mishaps.expected = ("404",)
    await stage.cue.schedule("beat", "tick", every="2h")
    await inside.goto(f"{stage.base}#/schedules")
    await expect(inside.locator("[data-schedule]")).to_have_count(1)
    await inside.get_by_role("button", name="Freeze the page").click()
    await stage.cue.unschedule("beat")
    await inside.get_by_role("button", name="Pause beat").click()
    await expect(inside.locator("#said")).to_contain_text("There is no schedule 'beat'.")
    await expect(inside.locator("[data-schedule]")).to_have_count(0)


async def test_a_limit_is_changed_and_marked_as_set_by_hand(inside: Page, stage: Stage) -> None:
    await inside.goto(f"{stage.base}#/services")
    card = inside.get_by_role("article", name="api")
    await card.get_by_role("button", name="Change limits").click()
    dialog = inside.locator("dialog")
    await dialog.get_by_label("Rates").fill("30/min, 500/day")
    await dialog.get_by_label("At once").fill("2")
    await dialog.get_by_role("button", name="Change limits").click()
    await expect(dialog).to_have_count(0)
    await expect(card).to_contain_text("30/min")
    await expect(card).to_contain_text("0 / 2")
    await expect(card).to_contain_text("set by hand; the program says")
    changed = await service(stage, "api")
    assert changed["concurrent"] == 2
    assert changed["circuit_threshold"] == 9, "what was not touched stays"


async def test_a_limit_that_makes_no_sense_is_refused_in_the_dialog(
    inside: Page, stage: Stage, mishaps: Mishaps
) -> None:
    mishaps.expected = ("400",)
    await inside.goto(f"{stage.base}#/services")
    await inside.get_by_role("article", name="slow").get_by_role("button", name="Change limits").click()
    await inside.locator("dialog").get_by_label("Rates").fill("often")
    await inside.locator("dialog").get_by_role("button", name="Change limits").click()
    await expect(inside.locator("dialog [role=alert]")).to_contain_text("often")
    await inside.keyboard.press("Escape")
    await expect(inside.locator("dialog")).to_have_count(0)
    assert (await service(stage, "slow"))["rates"] == []


async def test_what_is_no_number_takes_no_limit_away(inside: Page, stage: Stage) -> None:
    sent: list[str] = []
    inside.on("request", lambda request: sent.append(request.method))
    await inside.goto(f"{stage.base}#/services")
    card = inside.get_by_role("article", name="api")
    await card.get_by_role("button", name="Change limits").click()
    dialog = inside.locator("dialog")
    change = dialog.get_by_role("button", name="Change limits")
    wrong = [("At once", "5 at once"), ("At once", "1.000"), ("At once", "1,00"), ("and stays open", "2,5")]
    for label, text in wrong:
        field = dialog.get_by_label(label)
        before = await field.input_value()
        await field.fill(text)
        await change.click()
        await expect(dialog.get_by_role("alert")).to_contain_text(f"“{text}” is not")
        await expect(field).to_have_value(text)
        await field.fill(before)
    assert "PATCH" not in sent
    assert (await service(stage, "api"))["concurrent"] == 5
    await dialog.get_by_label("At once").fill("1,000")
    await dialog.get_by_label("Rates").fill("1,200/min,20,000/day")
    await change.click()
    await expect(dialog).to_have_count(0)
    changed = await service(stage, "api")
    assert changed["concurrent"] == 1000
    assert [rate["limit"] for rate in changed["rates"]] == [1200, 20_000]  # type: ignore[attr-defined]


async def test_a_queue_is_paused_here_and_resumed_there(inside: Page, stage: Stage) -> None:
    await stage.cue.wait(await stage.cue.submit("quick", queue="mails"), PATIENCE)
    await inside.goto(f"{stage.base}#/services")
    await inside.get_by_role("button", name="Pause queue mails").click()
    await expect(inside.get_by_label("Paused queues")).to_contain_text("Queue mails is paused")
    assert await stage.cue.paused() == ["mails"]
    await inside.goto(f"{stage.base}#/")
    await inside.get_by_role("button", name="Resume queue mails").click()
    await expect(inside.get_by_label("Paused queues")).to_have_count(0)
    assert await stage.cue.paused() == []
    await inside.goto(f"{stage.base}#/works?queue=others")
    await inside.get_by_role("button", name="Pause queue others").click()
    await expect(inside.get_by_role("button", name="Resume queue others")).to_be_visible()
    assert await stage.cue.paused() == ["others"]


async def test_a_paused_queue_is_resumed_where_there_are_no_services(page: Page, tmp_path: Path) -> None:
    async with Cue(tmp_path / "plain.db") as cue:
        await cue.pause("mails")
        async with served(runcue.web.app(tmp_path / "plain.db", token=TOKEN)) as base:
            await page.goto(f"{base}{LINK}")
            await expect(page.locator(".line")).to_have_text("live")
            await page.goto(f"{base}#/services")
            await expect(page.locator("main")).to_contain_text("No services yet")
            await page.get_by_role("button", name="Resume queue mails").click()
            await expect(page.get_by_label("Paused queues")).to_have_count(0)
            assert await cue.paused() == []
            await page.goto("about:blank")


async def test_a_group_of_dead_letters_is_counted_shown_and_discarded(inside: Page, stage: Stage) -> None:
    doomed = [await stage.cue.submit("fail", params={"error": f"page {number}"}) for number in range(7)]
    other = await stage.cue.submit("fail", params={"error": "something else"})
    group = inside.locator(".group", has_text="page #")
    await expect(group).to_contain_text("7 ×")
    await group.get_by_role("button", name="Discard").click()
    dialog = inside.locator("dialog")
    await expect(dialog.get_by_role("heading")).to_have_text("Discard 7 units?")
    await expect(dialog.locator(".sample li")).to_have_count(5)
    await dialog.get_by_role("button", name="Discard 7 units").click()
    await expect(inside.locator("#said")).to_contain_text("Discarded 7.")
    await expect(inside.locator('[data-count="failed"]')).to_have_text("1")
    assert [await stage.cue.get(work) for work in doomed] == [None] * 7
    assert await stage.cue.get(other) is not None


async def test_an_action_on_a_list_takes_what_the_filter_finds_and_no_more(
    inside: Page, stage: Stage
) -> None:
    first = await stage.cue.submit("hold")
    mine = [await stage.cue.submit("hold", queue="mine") for _ in range(3)]
    theirs = await stage.cue.submit("hold", queue="theirs")
    await inside.goto(f"{stage.base}#/works?queue=mine&state=pending")
    await expect(inside.locator("[data-row]")).to_have_count(3)
    await inside.get_by_role("button", name="Cancel all").click()
    await inside.get_by_role("button", name="Cancel 3 units").click()
    await expect(inside.locator("#said")).to_contain_text("Cancelled 3.")
    await expect(inside.locator("main")).to_contain_text("Nothing matches.")
    assert {(await stage.cue.wait(work, PATIENCE)).state for work in mine} == {"cancelled"}
    assert (await stage.cue.get(theirs)).state == "pending"  # type: ignore[union-attr]
    assert (await stage.cue.get(first)).state == "running"  # type: ignore[union-attr]


async def test_all_that_is_shown_is_shown_anew_after_an_action(inside: Page, stage: Stage) -> None:
    rows = inside.locator("[data-row]")
    first = await stage.cue.submit("hold")
    await stage.cue.submit_many([{"task": "hold", "target": f"t{number}"} for number in range(70)])
    await inside.goto(f"{stage.base}#/works?task=hold")
    await expect(rows).to_have_count(50)
    await inside.get_by_role("button", name="Show older").click()
    await expect(rows).to_have_count(71)
    await inside.goto(f"{stage.base}#/works/{first}")
    await expect(inside.locator(".work-id")).to_have_text(first)
    await inside.go_back()
    await expect(rows).to_have_count(71)
    await inside.get_by_role("button", name="Cancel all").click()
    await inside.get_by_role("button", name="Cancel 71 units").click()
    await expect(inside.locator("#said")).to_contain_text("Cancelled 71.")
    await expect(inside.locator("[data-row] .badge", has_text="cancelled")).to_have_count(71)


async def test_more_than_an_action_takes_is_told_before_and_after(
    inside: Page, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.web.actions.MOST_BULK", 3)
    await stage.cue.submit_many([{"task": "fail"} for _ in range(5)])
    await expect(inside.locator('[data-count="failed"]')).to_have_text("5")
    await inside.goto(f"{stage.base}#/works?state=failed")
    await inside.get_by_role("button", name="Discard all").click()
    dialog = inside.locator("dialog")
    await expect(dialog.get_by_role("heading")).to_have_text("Discard the first 3 units?")
    await expect(dialog).to_contain_text("these 3 are, the rest remains")
    await dialog.get_by_role("button", name="Discard the first 3 units").click()
    await expect(inside.locator("#said")).to_contain_text(
        re.compile("^Discarded 3[.] (Others|2) remain: do it again to go on[.]$")
    )
    await expect(inside.locator("[data-row]")).to_have_count(2)


async def test_everything_can_be_reached_by_keys(inside: Page, stage: Stage) -> None:
    works = [await stage.cue.submit("quick", target=f"t{number}") for number in range(3)]
    await inside.keyboard.press("g")
    await inside.keyboard.press("w")
    await expect(inside).to_have_url(re.compile("#/works$"))
    await expect(inside.locator("h1")).to_have_text("Work")
    await expect(inside.locator("[data-row]")).to_have_count(3)
    await inside.mouse.move(0, 0)
    await inside.keyboard.press("j")
    await inside.keyboard.press("j")
    await inside.keyboard.press("k")
    await expect(inside.locator("[data-row]").first).to_be_focused()
    await inside.keyboard.press("Enter")
    await expect(inside.locator(".work-id")).to_have_text(works[-1])
    await inside.keyboard.press("Escape")
    await expect(inside.locator("[data-row]")).to_have_count(3)
    await inside.keyboard.press("/")
    await expect(inside.get_by_label("Search")).to_be_focused()
    await inside.keyboard.type("t1")
    await expect(inside.locator("[data-row]")).to_have_count(1)
    await inside.keyboard.press("Escape")
    await inside.keyboard.press("?")
    await expect(inside.locator("dialog")).to_contain_text("freeze the page")
    await inside.keyboard.press("Escape")
    await expect(inside.locator("dialog")).to_have_count(0)
    await inside.keyboard.press("g")
    await inside.keyboard.press("s")
    await expect(inside.locator("h1")).to_have_text("Services")
    await inside.keyboard.press("g")
    await inside.keyboard.press("o")
    await expect(inside.locator(".counts")).to_be_visible()
