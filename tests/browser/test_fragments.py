"""The page of the guide that is put together of fragments, in a real browser.

htmx is not here, since a project does not carry others' scripts. What stands in for it does with the attributes of
the page what htmx does: it asks for fragments, and again every few seconds or whenever an event of that name comes.
"""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser.stage import served

pytestmark = pytest.mark.asyncio(loop_scope="session")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "web-api.md"
HTMX = """
addEventListener("DOMContentLoaded", () => {
  const stream = new EventSource(document.querySelector("[sse-connect]").getAttribute("sse-connect"));
  stream.onopen = () => document.body.setAttribute("data-is-open", "");
  for (const element of document.querySelectorAll("[hx-get]")) {
    const ask = async () => {
      const answer = await fetch(element.getAttribute("hx-get"), { headers: { "HX-Request": "true" } });
      if (answer.ok) element.innerHTML = await answer.text();
    };
    for (const trigger of element.getAttribute("hx-trigger").split(", ")) {
      const seconds = trigger.match(/^every (\\d+)s$/);
      if (trigger === "load") ask();
      else if (seconds) setInterval(ask, 1000 * seconds[1]);
      else stream.addEventListener(trigger.replace("sse:", ""), ask);
    }
  }
});
"""


@pytest.fixture
def mails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The application of the guide, in a folder where its scripts are."""
    text = GUIDE.read_text(encoding="utf-8")
    block = re.search(r"<!-- file: mails.py -->\n```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    made: Any = ModuleType("mails")
    exec(compile(block[1], str(GUIDE), "exec"), made.__dict__)
    scripts = {"htmx": HTMX, "sse": ""}
    assert made.SCRIPTS.keys() == scripts.keys()
    for name, path in made.SCRIPTS.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(scripts[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    made.app.state.end_streams = lambda: None  # the page is closed first
    return made


async def test_the_page_of_the_guide_stays_up_to_date_by_fragments(page: Page, mails: Any) -> None:
    async with served(mails.app) as base:
        await page.goto(f"{base}runcue/?token=correct-horse-battery")
        await page.goto(base)
        await expect(page.locator("#runcue-counts .runcue-completed")).to_have_text("0")
        await expect(page.locator("#runcue-list tbody tr")).to_have_count(0)
        await expect(page.locator("body[data-is-open]")).to_have_count(1)
        await mails.cue.submit(mails.send, params={"to": "ann@example.com"})
        await expect(page.locator("#runcue-counts .runcue-completed")).to_have_text("1")
        await mails.cue.submit(mails.send, id="bob", params={"to": "<b>bob</b>"})
        row = page.locator("#runcue-list tr.runcue-failed[data-id=bob]")
        await expect(row).to_contain_text("Permanent: no address: <b>bob</b>")
        await expect(page.locator("#runcue-works b")).to_have_count(0)
        await page.goto("about:blank")
