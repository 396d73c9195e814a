"""Status and list as HTML for htmx: who asks for it gets it, and everybody else what they always got."""

from html.parser import HTMLParser
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from runcue import Cue
from runcue.web import app, routes
from tests.web.conftest import BEARER, CANARY, PATIENCE, TOKEN, Stage, client

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
HTMX = {"HX-Request": "true"}
FRAGMENTS = ["/status", "/works", "/schedules"]
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</td></tr></table><h1>",
    "&lt;b&gt; &amp;amp;",
    "<!-- <svg/onload=alert(1)>",
    'x" hx-get="/works/purge" hx-trigger="load',
]
TAGS = {"section", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "time", "a"}
ATTRIBUTES = {"id", "class", "scope", "data-id", "datetime", "href"}


class Seen(HTMLParser):
    """A fragment as a browser reads it."""

    VOID = ("br", "hr", "img", "input", "link", "meta")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data

    def of(self, id: str) -> tuple[str, dict[str, str | None]]:
        """The one element of that id."""
        [found] = [one for one in self.tags if one[1].get("id") == id]
        return found


async def fragment(made: Any, path: str, **params: Any) -> Seen:
    async with client(made, headers={**BEARER, **HTMX}) as asker:
        answer = await asker.get(path, params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return Seen(answer.text)


# who gets which -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FRAGMENTS)
@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({}, "application/json"),
        ({"Accept": "*/*"}, "application/json"),
        ({"Accept": ""}, "application/json"),
        ({"Accept": "application/json"}, "application/json"),
        ({"Accept": "application/json, text/plain, */*"}, "application/json"),
        ({"Accept": "text/html, application/json"}, "application/json"),
        ({"Accept": "text/html;q=0.9, application/json"}, "application/json"),
        ({"Accept": "text/html;q=0"}, "application/json"),
        ({"Accept": "image/png"}, "application/json"),
        ({"HX-Request": "false"}, "application/json"),
        ({**HTMX, "Accept": "application/json"}, "application/json"),
        ({**HTMX, "Accept": "text/html;q=0, */*"}, "application/json"),
        ({"Accept": BROWSER}, "text/html"),
        ({"Accept": "TEXT/HTML"}, "text/html"),
        ({"Accept": "text/*"}, "text/html"),
        ({"Accept": "text/html;level=1;q=0.5, */*;q=0.1"}, "text/html"),
        ({"Accept": "text/html;q=odd"}, "text/html"),
        (HTMX, "text/html"),
        ({**HTMX, "Accept": "*/*"}, "text/html"),
        ({**HTMX, "Accept": "text/html, */*"}, "text/html"),
    ],
    ids=repr,
)
async def test_html_is_for_those_who_would_rather_have_it(
    path: str, headers: dict[str, str], kind: str
) -> None:
    async with client(app(Cue(), token=TOKEN), headers=BEARER) as asker:
        asker.headers.pop("accept")
        answer = await asker.get(path, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == kind
    assert answer.headers["vary"] == "Accept, HX-Request"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_other_addresses_answer_as_before() -> None:
    async with client(app(Cue(), token=TOKEN), headers={**BEARER, **HTMX, "Accept": BROWSER}) as asker:
        for path in ("/services", "/failures", "/openapi.json"):
            answer = await asker.get(path)
            assert answer.headers["content-type"] == "application/json"
            assert "vary" not in answer.headers


@pytest.mark.parametrize("path", FRAGMENTS)
async def test_a_fragment_is_guarded_like_the_rest(path: str) -> None:
    async with client(app(Cue(), token=TOKEN), headers=HTMX) as asker:
        assert (await asker.get(path)).status_code == 401
        assert (await asker.get(path, headers={**BEARER, "Host": "evil.test"})).status_code == 421


async def test_what_is_wrong_with_a_question_is_told_in_json() -> None:
    async with client(app(Cue(), token=TOKEN), headers={**BEARER, **HTMX}) as asker:
        answer = await asker.get("/works", params={"state": "odd"})
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]


async def test_the_description_has_both() -> None:
    async with client(app(Cue(), token=TOKEN)) as asker:
        paths = (await asker.get("/openapi.json")).json()["paths"]
    both = {
        path for path, methods in paths.items() for one in methods.values()
        if {"application/json", "text/html"} <= set(one["responses"]["200"]["content"])
    }  # fmt: skip
    assert both == set(FRAGMENTS)


# what they show -------------------------------------------------------------------------------------------


async def test_the_status_has_counts_services_reasons_and_failures(stage: Stage) -> None:
    seen = await fragment(stage.app, "/status")
    assert seen.tags[0] == ("section", {"id": "runcue-status"})
    for name in ("counts", "services", "waiting", "failures"):
        seen.of(f"runcue-{name}")
    counts = {"pending": "3", "running": "0", "completed": "1", "failed": "2", "cancelled": "1"}
    at = {attributes.get("class"): cell for (_, attributes), cell in zip(seen.tags, seen.cells, strict=True)}
    assert {state: at[f"runcue-{state}"] for state in counts} == counts
    assert "api" in seen.cells
    assert "3 of 1000/min" in seen.cells
    assert "0 of 5" in seen.cells
    assert "1 × scheduled" in seen.cells
    assert any(cell.startswith("2 × call: Permanent: no page #") for cell in seen.cells)


async def test_the_list_has_a_row_for_each_that_is_asked_for(stage: Stage) -> None:
    seen = await fragment(stage.app, "/works", state="failed")
    assert seen.tags[0] == ("section", {"id": "runcue-works"})
    rows = [attributes for tag, attributes in seen.tags if tag == "tr" and "data-id" in attributes]
    assert [row["data-id"] for row in rows] == [stage.ids["dead2"], stage.ids["dead"]]
    assert {row["class"] for row in rows} == {"runcue-failed"}
    assert sum("no page 1" in cell for cell in seen.cells) == 2
    seen = await fragment(stage.app, "/works", state="pending")
    assert f"after {stage.ids['needs']}" in seen.cells


async def test_schedules_have_a_row_each(stage: Stage) -> None:
    await stage.cue.schedule("beat", "echo", every="1h", params={"text": "x"})
    work = await stage.cue.run_now("beat")
    await stage.cue.wait(work, PATIENCE)
    await stage.cue.schedules.pause("nightly")
    seen = await fragment(stage.app, "/schedules")
    assert seen.tags[0] == ("section", {"id": "runcue-schedules"})
    rows = [attributes["data-id"] for tag, attributes in seen.tags if tag == "tr" and "data-id" in attributes]
    assert rows == ["beat", "nightly"]
    for cell in ("every 1h", "active", "completed ", "0 3 * * * Europe/Zurich", "paused", '{"text":"x"}'):
        assert cell in seen.cells, cell


async def test_of_very_many_schedules_the_first_are_shown(
    memory: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.web.source.MOST_SCHEDULES", 2)
    for name in ("a", "b", "c"):
        await memory.cue.schedule(name, "echo", every="1h", params={"text": "x"}, until=1)
    seen = await fragment(memory.app, "/schedules")
    assert "and 2 more" in seen.cells
    assert "over" in seen.cells


async def test_secrets_are_hidden_in_fragments_too(stage: Stage) -> None:
    async with client(stage.app, headers={**BEARER, **HTMX}) as asker:
        for path in FRAGMENTS:
            answer = await asker.get(path)
            assert CANARY not in answer.text
            assert path == "/status" or "***" in answer.text


async def test_the_link_to_older_ones_leads_through_the_whole_list(stage: Stage) -> None:
    wrapped = Starlette(routes=[Mount("/below", app=stage.app)])
    found: list[str | None] = []
    path: str | None = "/below/works?limit=3&task=call"
    while path is not None:
        async with client(wrapped, headers={**BEARER, **HTMX}) as asker:
            seen = Seen((await asker.get(path)).text)
        found += [attributes["data-id"] for _, attributes in seen.tags if "data-id" in attributes]
        path = next((one["href"] for _, one in seen.tags if one.get("id") == "runcue-older"), None)
        assert path is None or path.startswith("/below/works?limit=3&task=call&before=")
    assert sorted(filter(None, found)) == sorted(stage.ids.values())


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
async def test_whatever_is_in_a_queue_is_text(hostile: str) -> None:
    async with Cue() as cue:
        cue.service(hostile, concurrent=1)

        @cue.task(hostile, uses=hostile)
        async def fail(work: Any) -> None:
            raise ValueError(hostile)

        await cue.wait(await cue.submit(fail, id="1", target=hostile), PATIENCE)
        await cue.schedule(hostile, fail, every="1h")
        for path in FRAGMENTS:
            seen = await fragment(app(cue, token=TOKEN), path)
            assert hostile in seen.cells
            assert {tag for tag, _ in seen.tags} <= TAGS
            assert {name for _, attributes in seen.tags for name in attributes} <= ATTRIBUTES


async def test_routes_that_are_mounted_have_fragments_too() -> None:
    made = Starlette(routes=[Mount("/queue", routes=routes(Cue(), token=TOKEN))])
    assert (await fragment(made, "/queue/works")).of("runcue-works")
