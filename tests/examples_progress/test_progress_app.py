"""The application with live progress: over a real connection, through a restart, and in a browser."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.async_api import expect

import runcue
from examples.progress_app.app import STATIC, Jobs, darkroom, make_app
from tests.browser.chromium import ADVICE, chromium, found
from tests.browser.mishaps import Mishaps
from tests.patience import until

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "0123456789abcdef-token"
QUICK, ENDLESS = 0.01, 100_000
BOUND = 240
"""Seconds that anything may take."""
FILM = ["beach", "dusty attic", "blank frame", "market"]


@asynccontextmanager
async def served(path: Path, pace: float = QUICK) -> AsyncIterator[httpx.AsyncClient]:
    """The application on a port of this machine, and somebody who asks it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(path, pace), log_level="error", lifespan="on"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=BOUND, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, BOUND)
        listener.close()


async def begin(client: httpx.AsyncClient, photos: list[str]) -> str:
    """The id of a new job."""
    answer = await client.post("/jobs", json={"photos": photos})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def events(client: httpx.AsyncClient, job: str) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """What the stream tells: names and values."""
    async with client.stream("GET", f"/jobs/{job}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def states(job: dict[str, Any]) -> dict[str, str]:
    """How the photos of a job stand."""
    return {photo["photo"]: photo["state"] for photo in job["photos"]}


async def test_a_job_is_told_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    async with served(tmp_path / "new" / "queue.db") as client:
        job = await begin(client, FILM)
        told = [one async for one in events(client, job)]
        names = [name for name, _ in told]
        assert (names[0], names[-1]) == ("job", "done")
        assert set(names[1:-1]) <= {"change", "progress"}
        first, last = told[0][1], told[-1][1]
        assert (first["id"], first["total"]) == (job, 4)
        assert (last["developed"], last["lost"], last["done"]) == (3, 1, True)
        assert states(last) == {
            "beach": "completed",
            "dusty attic": "completed",
            "blank frame": "failed",
            "market": "completed",
        }
        assert last["photos"][2]["error"] == "Permanent: nothing was ever on it"
        assert (last["sheet"]["state"], last["sheet"]["error"]) == ("failed", "prerequisite_failed")
        assert (await client.get(f"/jobs/{job}")).json() == last
        again = [one async for one in events(client, job)]  # who comes late is told how it ended
        assert again == [("job", last), ("done", last)]


async def test_what_changes_is_told_photo_by_photo(tmp_path: Path) -> None:
    cue = darkroom(tmp_path / "queue.db", pace=0.1)  # slow enough for more than one report of each photo
    changes: list[str] = []

    @cue.is_ready
    def told_of_its_failure(work: runcue.Work) -> bool:
        return not work.failures or "retrying" in changes

    jobs = Jobs(cue)
    job = await jobs.begin(["dusty attic", "beach"])
    stream = jobs.follow(job)
    await anext(stream)  # from here on nothing is missed
    cue.start()
    told: list[tuple[str | None, Any]] = []
    async for event in stream:
        name, data = event.event, json.loads(str(event.data))
        told.append((name, data))
        if name == "change" and data["id"] == f"{job}-1":
            changes.append(data["state"])
    await cue.close()
    assert changes[-1] == "completed"
    assert "retrying" in changes
    shares = [data for name, data in told if name == "progress" and data["id"] == f"{job}-2"]
    assert shares[0] == {"id": f"{job}-2", "fraction": 0.0, "text": "developer"}
    fractions = [share["fraction"] for share in shares]
    assert fractions == sorted(set(fractions))
    assert told[-1][0] == "done"


async def test_all_photos_make_a_sheet(tmp_path: Path) -> None:
    async with served(tmp_path / "queue.db") as client:
        job = await begin(client, ["beach", "beach"])
        told = await asyncio.gather(*(_last(client, job) for _ in range(3)))  # whoever looks sees the same
        assert told[0]["sheet"]["result"] == "2 photos on one sheet"
        assert told == [told[0]] * 3


async def _last(client: httpx.AsyncClient, job: str) -> dict[str, Any]:
    return [data async for _, data in events(client, job)][-1]


async def test_a_job_outlives_the_server(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with served(path, ENDLESS) as client:
        job = await begin(client, ["beach", "market"])
        async with aclosing(events(client, job)) as told:
            running = 0
            while running < 2:
                name, data = await anext(told)
                running += list(states(data).values()).count("running") if name == "job" else name == "change"
    async with served(path) as client:
        last = await _last(client, job)
        assert (last["developed"], last["done"]) == (2, True)


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path / "queue.db") as client:
        bodies: list[Any] = [[], {}, {"photos": []}, {"photos": [""]}, {"photos": ["x"] * 61}]
        for wrong in [*bodies, {"photos": ["x" * 61]}, {"photos": [7]}]:
            assert (await client.post("/jobs", json=wrong)).status_code == 422
        for path in ("/jobs/0123456789ab", "/jobs/0123456789ab/events"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["detail"]) == (404, "There is no job '0123456789ab'.")
        for path in ("/jobs/%00", "/jobs/nothing/events", f"/jobs/{'a' * 300}"):
            assert (await client.get(path)).status_code == 422


async def test_the_dashboard_is_behind_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNCUE_TOKEN", TOKEN)
    async with served(tmp_path / "queue.db") as client:
        await _last(client, await begin(client, ["beach"]))
        assert (await client.get("/runcue/status")).status_code == 401
        status = await client.get("/runcue/status", headers={"Authorization": f"Bearer {TOKEN}"})
        assert status.json()["counts"]["completed"] == 2


async def test_what_is_printed_at_the_start_leads_to_the_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RUNCUE_TOKEN", raising=False)
    async with served(tmp_path / "queue.db") as client:
        link = re.search(r"http://127\.0\.0\.1:8000(/runcue/\?code=\S+)$", capsys.readouterr().out.strip())
        assert link is not None
        page = await client.get(link[1], follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/runcue/")
        assert (await client.get("/runcue/status")).status_code == 200


# --------------------------------------------------------------------------------------------------- the page


class Parts(HTMLParser):
    """What a page loads, and what its policy would forbid."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.forbidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.loaded += [str(values[name]) for name in ("src", "href") if name in values and tag != "a"]
        is_inline = tag == "style" or (tag == "script" and "src" not in values)
        self.forbidden += [tag] if is_inline else []
        self.forbidden += [name for name in values if name == "style" or name.startswith("on")]


async def test_the_page_loads_only_what_its_policy_allows(tmp_path: Path) -> None:
    async with served(tmp_path / "queue.db") as client:
        page = await client.get("/")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        parts = Parts()
        parts.feed(page.text)
        assert parts.forbidden == []
        assert sorted(parts.loaded) == sorted(
            f"static/{path.name}" for path in STATIC.iterdir() if path.suffix != ".html"
        )
        for address in parts.loaded:
            assert (await client.get(f"/{address}")).status_code == 200


@pytest.mark.skipif(found() is None and not os.environ.get("CI"), reason=ADVICE)
async def test_the_page_shows_a_job_and_goes_on_after_a_reload(tmp_path: Path) -> None:
    mishaps = Mishaps()
    async with served(tmp_path / "queue.db", pace=0.2) as client, chromium() as browser:
        page = await browser.new_page()
        mishaps.watch(page)
        await page.goto(str(client.base_url))
        await page.fill("#photos", "beach\n\n <b>dusty</b> \nblank\n")
        await page.click("button")
        await expect(page.locator("li")).to_have_count(3)
        await page.reload()
        await expect(page.locator("#connection")).to_have_text("done", timeout=1000 * BOUND)
        await expect(page.locator("#headline")).to_have_text("2 of 3 developed, 1 lost")
        await expect(page.locator(".text")).to_have_text(
            ["developed", "developed", "lost: nothing was ever on it"]
        )
        await expect(page.locator(".name").nth(1)).to_have_text("<b>dusty</b>")
        await expect(page.locator("#sheet")).to_have_text("Contact sheet: not made, because a photo is lost")
        await page.fill("#photos", "")
        mishaps.expected = ("422",)
        await page.click("button")
        await expect(page.locator("#problem")).to_have_text(
            "Give 1 to 60 photos, with names of up to 60 letters."
        )
    mishaps.check()


# ------------------------------------------------------------------------------------------- as it is started


def test_it_stops_at_once_although_somebody_watches(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "examples.progress_app.app:app", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        lines: list[str] = []
        while not (address := re.search(r"running on (http://\S+)", lines[-1] if lines else "")):
            lines.append(server.stderr.readline())
            assert lines[-1], "".join(lines)
        with httpx.Client(base_url=address[1], timeout=BOUND, trust_env=False) as client:
            job = client.post("/jobs", json={"photos": ["beach"]}).json()["id"]
            with client.stream("GET", f"/jobs/{job}/events") as answer:
                stream = answer.iter_lines()
                assert next(stream) == "event: job"
                server.send_signal(signal.SIGINT)
                assert "event: done" not in list(stream)  # ended, as an answer should: nothing is raised
        rest = server.stderr.read()
        server.wait(BOUND)
    assert "ERROR" not in rest
    assert "Traceback" not in rest
    assert [path.name for path in tmp_path.iterdir()] == [f"runcue-progress-{os.getuid()}"]


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    program = "import sys; sys.modules['fastapi'] = None; import examples.progress_app.app"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert (done.returncode, done.stderr) == (1, "This example needs FastAPI: pip install fastapi\n")
