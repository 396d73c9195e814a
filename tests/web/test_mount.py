"""The dashboard inside an application, under any prefix."""

import asyncio
import logging
import signal
import subprocess
import sys

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from runcue import ConfigError, Cue
from runcue.web import app, routes
from tests.web.conftest import BEARER, PATIENCE, TOKEN, client


def in_starlette(cue: Cue) -> ASGIApp:
    return Starlette(routes=[Mount("/ops/runcue", routes=routes(cue, token=TOKEN))])


def in_fastapi(cue: Cue) -> ASGIApp:
    made = FastAPI()

    @made.get("/")
    def home() -> str:
        return "home"

    made.router.routes.append(Mount("/ops/runcue", routes=routes(cue, token=TOKEN)))
    return made


def app_in_fastapi(cue: Cue) -> ASGIApp:
    made = FastAPI()
    made.mount("/ops/runcue", app(cue, token=TOKEN))
    return made


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi, app_in_fastapi])
async def test_it_works_under_a_prefix(mount: object) -> None:
    assert callable(mount)
    cue = Cue()

    @cue.task
    async def call(work: object) -> int:
        return 1

    async with cue:
        work_id = await cue.submit("call")
        await cue.wait(work_id, PATIENCE)
        made: ASGIApp = mount(cue)
        async with client(made, headers={}, base_url="http://localhost/ops/runcue") as asker:
            assert (await asker.get("/status")).status_code == 401
            answer = await asker.get("/", params={"token": TOKEN})
            assert answer.status_code == 303
            assert answer.headers["location"] == "./"
            assert "Path=/ops/runcue/;" in answer.headers["set-cookie"] + ";"
            assert (await asker.get("/")).status_code == 200
            assert (await asker.get("/status")).json()["counts"]["completed"] == 1
            assert (await asker.get(f"/works/{work_id}")).status_code == 200
            assert (await asker.get("/static/index.html")).status_code == 200
            same = {"Origin": "http://localhost"}
            answer = await asker.post("/works/purge", json={"filter": {}}, headers=same)
            assert answer.json() == {"changed": 0, "skipped": 0, "left": 0}


async def test_the_routes_leave_those_of_the_application_alone() -> None:
    async def home(request: object) -> PlainTextResponse:
        return PlainTextResponse("home")

    made = Starlette(routes=[Mount("/runcue", routes=routes(Cue(), token=TOKEN)), Route("/", home)])
    async with client(made, headers={}) as asker:
        answer = await asker.get("/")
    assert answer.text == "home"
    assert "content-security-policy" not in answer.headers


SERVED = """
import logging, uvicorn
from runcue import Cue
from runcue.web import routes
from starlette.applications import Starlette
from starlette.routing import Mount

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

app = Starlette(routes=[Mount("/ops", routes=routes(Cue(), token="%s"))])
Server(uvicorn.Config(app, port=0, log_level="error")).run()
"""


@pytest.mark.parametrize("path", ["live", "events"])
async def test_a_server_that_ends_ends_its_streams_properly(path: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVED % TOKEN,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            port = int(await process.stdout.readline())
            base = f"http://127.0.0.1:{port}/ops"
            async with (
                httpx.AsyncClient(headers=BEARER, timeout=20) as asker,
                asker.stream("GET", f"{base}/{path}") as stream,
            ):
                assert stream.status_code == 200
                process.send_signal(signal.SIGTERM)
                async for _ in stream.aiter_lines():  # a body that is cut off raises
                    continue
            await process.wait()
            assert await process.stderr.read() == b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("name", ["starlette", "sse_starlette", "uvicorn"])
def test_what_is_not_installed_is_said_in_one_line(name: str) -> None:
    code = (
        f"import sys; sys.modules[{name!r}] = None\ntry: import runcue.web\nexcept ImportError as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == f'The dashboard needs {name}: pip install "runcue[web]"\n'


def test_a_name_alone_is_no_list_of_hosts() -> None:
    with pytest.raises(ConfigError, match="hosts is a list of names"):
        app(Cue(), token=TOKEN, hosts="example.com")


async def test_what_goes_wrong_inside_is_logged_and_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = app(Cue(), token=TOKEN)

    async def broken(with_dead: bool) -> None:
        raise ZeroDivisionError("secret of the inside")

    monkeypatch.setattr(made.routes[0].app.app._site.source, "facts", broken)  # type: ignore[attr-defined]
    with caplog.at_level(logging.ERROR, "runcue"):
        async with client(made) as asker:
            answer = await asker.get("/status")
    assert answer.status_code == 500
    assert "inside" not in answer.text
    assert "ZeroDivisionError" in caplog.text
