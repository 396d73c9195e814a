"""Nobody comes in without a token, under another name, or from another page (WB1 to WB4, WB6, WB15)."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute

from runcue import ConfigError, Cue
from runcue.web import app, guard, routes, serving
from runcue.web.guard import Guard
from runcue.web.serving import listen, make_server, serve
from runcue.web.site import TABLE
from tests.queues import make_empty
from tests.web.conftest import BEARER, TOKEN, Stage, client, staged

LINES = [(line.method, line.path) for line in TABLE]
SAME = {"Origin": "http://127.0.0.1"}


def address(path: str) -> str:
    """An address that fits the pattern of a route."""
    return re.sub(r"{\w+(:path)?}", "x", path)


async def cookie_of(asker: httpx.AsyncClient) -> dict[str, str]:
    """What the link leaves in a browser."""
    answer = await asker.get("/", params={"token": TOKEN})
    return dict(answer.cookies)


# the token ------------------------------------------------------------------------------------------------


def test_every_route_is_behind_the_guard_and_in_the_table() -> None:
    made = app(Cue(), token=TOKEN)
    assert isinstance(made.router.default, Guard)
    found = set()
    for route in made.routes:
        assert isinstance(route, (Route, WebSocketRoute))
        assert isinstance(route.app, Guard), f"{route.path} has no guard"
        found.add(route.path)
    assert found == {path for _, path in LINES} | {"/ws"}


WRONG: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer "},
    {"Authorization": f"Bearer {TOKEN.upper()}"},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": "Bearer tökén-tökén-tökén"},
    {"Cookie": f"runcue={TOKEN}; token={TOKEN}"},
]


@pytest.mark.parametrize(("method", "path"), [*LINES, ("GET", "/nothing"), ("OPTIONS", "/status")])
async def test_without_the_token_every_address_says_401(method: str, path: str) -> None:
    async with client(app(Cue(), token=TOKEN), headers={}) as asker:
        for wrong in WRONG:
            raw = {name: value.encode() for name, value in wrong.items()}
            body: Any = {} if method != "GET" else None
            answer = await asker.request(method, address(path), json=body, headers=raw)  # type: ignore[arg-type]
            assert answer.status_code == 401, wrong
            assert answer.headers["www-authenticate"] == "Bearer"
            assert list(answer.json()) == ["error"]


async def test_a_token_in_the_query_counts_at_the_page_alone() -> None:
    async with client(app(Cue(), token=TOKEN), headers={}) as asker:
        assert (await asker.get("/status", params={"token": TOKEN})).status_code == 401
        assert (await asker.get("/", params={"token": "x" * 20})).status_code == 401
        assert (await asker.get("/", params={"token": TOKEN})).status_code == 303


async def test_a_browser_is_told_how_to_get_in() -> None:
    async with client(app(Cue(), token=TOKEN), headers={"Accept": "text/html"}) as asker:
        answer = await asker.get("/")
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert "?token=" in answer.text
    assert "<script" not in answer.text


async def test_the_link_leaves_a_cookie_that_no_script_and_no_other_site_gets() -> None:
    async with client(app(Cue(), token=TOKEN), headers={}) as asker:
        answer = await asker.get("/", params={"token": TOKEN, "next": "https://evil.test/"})
        assert answer.headers["location"] == "./"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/" in cookie
        assert TOKEN not in cookie
        assert (await asker.get("/status")).status_code == 200  # the client kept it


async def test_ten_wrong_tokens_in_a_minute_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = app(Cue(), token=TOKEN)
    async with client(made, headers={}) as asker:
        cookies = await cookie_of(asker)
    async with client(made, headers={"Authorization": "Bearer wrong"}) as asker:
        statuses = [(await asker.get("/openapi.json")).status_code for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        locked = await asker.get("/openapi.json", headers=BEARER)
        assert locked.status_code == 429
        assert 1 <= int(locked.headers["retry-after"]) <= 61
        in_time = await asker.get("/", params={"token": TOKEN})
        assert in_time.status_code == 429
    async with client(made, headers={}, cookies=cookies) as asker:
        assert (await asker.get("/openapi.json")).status_code == 200  # nobody can shut the others out
    now[0] += 61
    async with client(made) as asker:
        assert (await asker.get("/openapi.json")).status_code == 200


def test_a_token_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16 printable ASCII characters"):
        app(Cue(), token="short")


def test_a_token_is_made_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RUNCUE_TOKEN", raising=False)
    made = app(Cue())
    assert len(made.state.token) >= 43
    assert made.state.token not in caplog.text
    monkeypatch.setenv("RUNCUE_TOKEN", TOKEN)
    assert app(Cue()).state.token == TOKEN


async def test_routes_without_a_token_log_a_link_that_is_good_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RUNCUE_TOKEN", raising=False)
    made = Starlette(routes=routes(Cue()))
    found = re.search(r"\?code=([\w-]{43})", caplog.text)
    assert found is not None
    assert "token=" not in caplog.text
    async with client(made, headers={}) as asker:
        assert (await asker.head("/", params={"code": found[1]})).status_code == 401  # that uses nothing up
        assert (await asker.get("/", params={"code": found[1]})).status_code == 303
        assert (await asker.get("/openapi.json")).status_code == 200
    async with client(made, headers={}) as asker:
        again = await asker.get("/", params={"code": found[1]})
        assert again.status_code == 401
        assert "used before" in again.json()["error"]
        assert (await asker.get("/", params={"token": found[1]})).status_code == 401


async def test_a_code_is_good_for_some_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = app(Cue(), token=TOKEN)
    early, late = made.state.make_code(), made.state.make_code()
    async with client(made, headers={}) as asker:
        now[0] += guard.CODE_LASTS - 1
        assert (await asker.get("/status", params={"code": early})).status_code == 401
        assert (await asker.get("/", params={"code": early})).status_code == 303
        now[0] += 2
        assert (await asker.get("/", params={"code": late})).status_code == 401


def test_of_many_codes_the_latest_are_good() -> None:
    access = app(Cue(), token=TOKEN).router.default._access  # type: ignore[attr-defined]
    codes = [access.make_code() for _ in range(guard.MOST_CODES + 1)]
    assert [access._use_code(code) for code in codes] == [False] + [True] * guard.MOST_CODES


async def test_the_browser_is_started_with_a_code_and_not_with_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q.db"
    await make_empty(path)
    opened: list[str] = []
    said: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(serving.Server, "run", lambda self, sockets: None)
    serve(path, port=0, token=f"{TOKEN} &", open_browser=True, say=said.append)
    assert said[0].endswith(f"/?token={TOKEN}%20%26")
    [link] = opened
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?code=[\w-]{43}", link)


@pytest.mark.parametrize("token", ["has space & amp+=%41 #", "?token=x&code=y/../", "100%%20+plus;semi\\'\""])
async def test_the_link_leads_in_whatever_the_token_is(tmp_path: Path, token: str) -> None:
    with listen("127.0.0.1", 0, has_token=True) as listener:
        server, link, _ = make_server(tmp_path / "q.db", listener, token=token)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w.~%-]+", link)
    made = server.config.app
    assert callable(made)
    async with client(made, headers={}) as asker:  # type: ignore[arg-type]
        answer = await asker.get(link)
    assert answer.status_code == 303


async def test_a_cookie_of_another_application_hides_none_behind_it() -> None:
    made = app(Cue(), token=TOKEN)
    async with client(made, headers={}) as asker:
        [(name, value)] = (await cookie_of(asker)).items()
    for other in ("a b=c", 'x="{', "[1]=2", "ü=1", ";;", "=", "é"):
        async with client(made, headers={}) as asker:
            raw = f"{other}; {name}={value}; z=1".encode()
            answer = await asker.get("/openapi.json", headers={"Cookie": raw})  # type: ignore[arg-type]
            assert answer.status_code == 200, other


@pytest.mark.parametrize("name", ["token", "code"])
@pytest.mark.parametrize("how", [("image", "no-cors"), ("iframe", "navigate"), ("empty", "cors"), ("", "")])
async def test_what_another_page_loads_is_no_try(name: str, how: tuple[str, str]) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": how[0], "Sec-Fetch-Mode": how[1]}
    made = app(Cue(), token=TOKEN)
    async with client(made, headers={}) as asker:
        for _ in range(30):
            assert (await asker.get("/", params={name: "wrong"}, headers=elsewhere)).status_code == 403
        assert (await asker.get("/", params={"token": TOKEN})).status_code == 303


async def test_a_link_in_another_page_may_be_followed() -> None:
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate"}
    made = app(Cue(), token=TOKEN)
    async with client(made, headers=followed) as asker:
        ahead = await asker.get("/", params={"token": TOKEN}, headers={"Sec-Purpose": "prefetch"})
        assert ahead.status_code == 403
        assert (await asker.get("/", params={"token": TOKEN})).status_code == 303


# the host -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.test", "localhost.evil", "127.0.0.1.evil.test", "127.0.0.1:80x", "127.0.0.1@evil", "", "192.168.1.7",
     "localhost:80:80", "::1", "[::1].evil"],
)  # fmt: skip
async def test_another_host_reads_nothing(host: str) -> None:
    async with client(app(Cue(), token=TOKEN), headers={**BEARER, "Host": host}) as asker:
        for path in ("/", "/status", "/static/app.js", "/nothing"):
            assert (await asker.get(path)).status_code == 421


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1:8787", "[::1]", "[::1]:80", "Mine.example"]
)
async def test_its_own_names_are_fine(host: str) -> None:
    async with client(
        app(Cue(), token=TOKEN, hosts=["mine.example"]), headers={**BEARER, "Host": host}
    ) as asker:
        assert (await asker.get("/openapi.json")).status_code == 200


@pytest.mark.parametrize(
    ("headers", "target"),
    [
        ([], b"/status"),
        ([(b"host", b"127.0.0.1"), (b"host", b"127.0.0.1")], b"/status"),
        ([(b"host", b"127.0.0.1")], b"http://evil.test/status"),
    ],
)
async def test_no_host_two_hosts_and_an_absolute_address_are_refused(
    headers: list[tuple[bytes, bytes]], target: bytes
) -> None:
    made = app(Cue(), token=TOKEN)
    sent: list[dict[str, object]] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    bearer = (b"authorization", f"Bearer {TOKEN}".encode())
    scope = {"type": "http", "method": "GET", "path": target.decode(), "raw_path": target, "query_string": b"",
             "headers": [*headers, bearer], "scheme": "http", "http_version": "1.1", "client": ("127.0.0.1", 1),
             "server": ("127.0.0.1", 80), "root_path": ""}  # fmt: skip
    await made(scope, receive, send)
    assert sent[0]["status"] == 421


# changes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {**SAME, "Sec-Fetch-Site": "cross-site"},
        {},
        {**SAME, "Content-Type": "text/plain"},
        {**SAME, "Content-Type": "application/x-www-form-urlencoded"},
        {**SAME, "Content-Type": "multipart/form-data"},
        {**SAME, "Content-Type": ""},
    ],
)
async def test_no_other_page_can_change_anything(memory: Stage, headers: dict[str, str]) -> None:
    async with client(memory.app, headers={}) as asker:
        await cookie_of(asker)
        before = await memory.cue.list()
        body = {"Content-Type": "application/json", **headers}
        for method in ("POST", "PUT", "PATCH", "DELETE", "LINK"):
            one = f"/works/{memory.ids['dead']}/retry"
            for path in (one, "/works/purge", "/services/api/pause", "/schedules/nightly/run"):
                answer = await asker.request(method, path, content=b'{"filter":{}}', headers=body)
                assert answer.status_code == 403
        assert await memory.cue.list() == before


@pytest.mark.parametrize("headers", [SAME, {"Sec-Fetch-Site": "same-origin"}])
async def test_the_page_itself_can(memory: Stage, headers: dict[str, str]) -> None:
    async with client(memory.app, headers=headers) as asker:
        await cookie_of(asker)
        answer = await asker.post("/services/api/pause", json={})
    assert answer.json() == {"paused": True}


async def test_a_get_never_changes_anything(stage: Stage) -> None:
    paths = [f"/works/{stage.ids['dead']}/retry", f"/works/{stage.ids['later']}/cancel", "/works/purge"]
    async with client(stage.app) as asker:
        for path in paths:
            assert (await asker.get(path)).status_code == 405
    work = await stage.cue.get(stage.ids["dead"])
    assert work is not None
    assert work.state == "failed"


async def test_no_get_or_head_writes_a_byte(outside: Stage) -> None:
    before = outside.digest()
    async with client(outside.app) as asker:
        for method, path in LINES:
            if method == "GET" and path not in ("/live", "/events"):
                at = path.replace("{name:path}", outside.ids["dead"]).replace("{name}", "index.html")
                assert (await asker.get(at)).status_code == 200, at
                await asker.head(at)
    assert outside.digest() == before


async def test_a_file_that_nobody_has_open_is_not_even_touched(tmp_path: Path) -> None:
    async with staged("outside", tmp_path) as found:
        pass
    before = found.digest()
    names = sorted(path.name for path in (tmp_path / "queue").iterdir())
    made = app(str(found.path), token=TOKEN)
    async with client(made) as asker, made.router.lifespan_context(made):
        for path in ("/status", "/works", f"/works/{found.ids['dead']}", "/metrics"):
            assert (await asker.get(path)).status_code == 200
    assert found.digest() == before
    assert sorted(path.name for path in (tmp_path / "queue").iterdir()) == names


async def test_with_read_only_people_may_only_look(tmp_path: Path) -> None:
    async with staged("memory", tmp_path, read_only=True) as found, client(found.app) as asker:
        assert (await asker.get("/status")).json()["queue"]["read_only"] is True
        for method, path in LINES:
            if method != "GET":
                assert (await asker.request(method, address(path), json={})).status_code == 403


# the rest -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/static/index.html", "/status", "/works/none", "/nothing", "/openapi.json"]
)
@pytest.mark.parametrize("headers", [BEARER, {}])
async def test_every_answer_says_what_a_browser_may_do(path: str, headers: dict[str, str]) -> None:
    async with client(app(Cue(), token=TOKEN), headers=headers) as asker:
        answer = await asker.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == ("no-cache" if "/static/" in path else "no-store")
    assert "access-control-allow-origin" not in answer.headers


def test_others_cannot_reach_it_without_a_token_that_somebody_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNCUE_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.com"):
        with pytest.raises(ConfigError, match="Others can reach"):
            serve(tmp_path / "q.db", host=host)
    listen("0.0.0.0", 0, has_token=True).close()


async def test_an_application_that_guards_its_routes_itself_keeps_the_other_checks() -> None:
    made = Starlette(routes=routes(Cue(), protect=False))
    async with client(made, headers={}) as asker:
        assert (await asker.get("/status")).status_code == 200
        assert (await asker.get("/status", headers={"Host": "evil.test"})).status_code == 421
        assert (await asker.post("/works/purge", json={"filter": {}})).status_code == 403
        assert (await asker.post("/works/purge", json={"filter": {}}, headers=SAME)).status_code == 200
