"""The verbs of `runcue` on the address of a queue in PostgreSQL, and the dashboard: as on a file, and no password."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import httpx
import psycopg
import pytest

import runcue
from runcue.cli.place import File
from runcue.cli.top.app import Top
from runcue.web import app
from tests.cli.works import Inside, refused
from tests.pg.server import GUARDED, PASSWORD, Server

BOUND = 240.0
TOKEN = "0123456789abcdef-token"


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def address(pg: str, pg_server: Server) -> str:
    """The same database by an address with a password."""
    with psycopg.connect(pg, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"GRANT CREATE ON DATABASE {name} TO {GUARDED}")
    return pg_server.dsn(pg, tcp=True, user=GUARDED, password=PASSWORD)


@pytest.fixture
def inside(address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """`inside("list")`: that verb on the address."""
    return Inside(address, monkeypatch, capsys)  # type: ignore[arg-type] # a file or an address


def fill(where: str, **options: Any) -> None:
    """A queue with two works that wait, one that failed and one that ran a command."""

    async def main() -> None:
        cue = runcue.Cue(where, **options)
        cue.service("api", concurrent=1)

        @cue.task("call", uses="api", retry=1)
        async def call(work: runcue.Work) -> None:
            raise ValueError("no page")

        @cue.task("say", executor="subprocess")
        def say(work: runcue.Work) -> list[str]:
            return ["echo", "hello"]

        async with cue, asyncio.timeout(BOUND):
            await cue.submit("call", id="broken")
            await cue.submit("say", id="said")
            await cue.join()
        await cue.submit("call", id="later", delay=3600)
        await cue.submit("call", id="other", priority=1)
        await cue.schedule("nightly", "call", cron="0 3 * * *")
        await cue.close()

    asyncio.run(main())


def looked(where: str, question: Callable[[runcue.Reader], Any], **options: Any) -> Any:
    """What a Reader tells."""
    with runcue.Reader(where, **options) as reader:
        return question(reader)


def test_every_verb_that_looks_has_an_answer(inside: Inside, address: str) -> None:
    fill(address)
    plain = address.replace(PASSWORD, "***")
    told = inside("status")
    assert (told.code, "2 pending" in told.out) == (0, True), told
    assert json.loads(inside("status", "--json").out)["units"]["failed"] == 1
    assert inside("list", "--state", "failed").out.splitlines()[-1].split()[0] == "broken"
    assert "no page" in inside("show", "broken").out
    assert inside("explain", "later").code == 0
    assert inside("logs", "said").out == "hello\n"
    assert inside("schedules").out.startswith("nightly\t0 3 * * *\t20")
    assert "on the host that ran it" in inside("logs", "broken").err
    refused(inside("show", "brokem"), 6, "Did you mean broken?")
    refused(inside("show", "zzzzz"), 6, f"See them: runcue list {quote(plain)}")
    refused(inside("top"), 2, "top needs a terminal")


def test_every_verb_that_changes_something_does_so(inside: Inside, address: str) -> None:
    fill(address)
    assert inside("pause", "api").code == 0
    assert looked(address, lambda reader: reader.services()[0]["paused"]) is True
    assert inside("resume", "api").code == 0
    assert looked(address, lambda reader: reader.services()[0]["paused"]) is False
    assert inside("set", "api", "--concurrent", "4").code == 0
    assert looked(address, lambda reader: reader.services()[0]["concurrent"]) == 4
    assert inside("retry", "broken").code == 0
    assert inside("cancel", "later").code == 0
    assert inside("schedules", "pause", "nightly").code == 0
    assert looked(address, lambda reader: reader.schedules()[0].paused) is True
    states = {work.id: str(work.state) for work in looked(address, lambda reader: reader.list())}
    assert states == {"broken": "pending", "said": "completed", "later": "cancelled", "other": "pending"}


def test_a_queue_that_is_not_there_is_not_made(inside: Inside, pg: str) -> None:
    for verb in (["status"], ["cancel", "a"], ["pause", "api"], ["set", "api", "--concurrent", "1"], ["top"]):
        refused(inside(*verb), 3, "holds no queue 'default' yet")
    with psycopg.connect(pg) as connection:
        made = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'runcue%'")
        assert made.fetchall() == []


def test_queues_of_one_database_are_chosen_by_name(inside: Inside, address: str, tmp_path: Path) -> None:
    fill(address, name="night")
    for option in ("--name", "--namespace"):
        assert "2 pending" in inside("status", option, "night").out
    refused(inside("show", "zzzzz", "--name", "night"), 6, "--name night")
    assert inside("cancel", "later", "--name", "night").code == 0
    assert looked(address, lambda reader: reader.list("cancelled"), name="night")[0].id == "later"
    refused(inside("status"), 3, "holds no queue 'default' yet")
    refused(inside("status", "--name", "day"), 3, "holds no queue 'day' yet")
    refused(inside("status", "--name", "No Such"), 2, "cannot name a queue in PostgreSQL")
    refused(inside("status", "--name", "night", file=tmp_path / "queue.db"), 2, "Leave it out")


def test_no_verb_shows_the_password(inside: Inside, address: str) -> None:
    fill(address)
    wrong = address.replace(PASSWORD, "swordfish")
    for verb in (
        ["status"], ["list"], ["show", "broken"], ["show", "nothing"], ["explain", "later"], ["logs", "broken"],
        ["pause", "api"], ["resume", "api"], ["retry", "nothing"], ["cancel", "broken"], ["top"],
        ["set", "api", "--concurrent", "2"], ["dashboard", "--port", "0", "--host", "203.0.113.1"],
    ):  # fmt: skip
        told = inside(*verb)
        assert PASSWORD not in told.out + told.err, told
        told = inside(*verb, file=wrong)
        assert told.code == 3, told
        assert "password authentication failed" in told.err, told
        assert "swordfish" not in told.out + told.err, told


def test_without_psycopg_it_is_said_what_to_install(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("runcue.stores.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    for verb in (["status"], ["cancel", "a"]):
        refused(inside(*verb), 4, 'pip install "runcue[postgres]"')


def test_what_is_no_address_is_refused(inside: Inside) -> None:
    refused(inside("status", file="postgresql://me:swordfish@[::1/queue"), 3, "is no address")
    refused(inside("status", file="postgres://me:swordfish@127.0.0.1:1/queue"), 3, "cannot be reached")


def test_top_shows_the_address_without_its_password(address: str) -> None:
    fill(address)

    async def main() -> str:
        top = Top(File(address, "default"), is_unicode=True, every=None)
        async with top.run_test(size=(120, 24)) as pilot, asyncio.timeout(BOUND):
            while top.main.scene is None and not top.main.trouble:
                await pilot.pause(0.01)
            assert top.main.trouble == ""
            assert top.main.scene is not None
            assert {one.id for one in top.main.scene.items} == {"later", "other"}
            top.main._look.close()
            return top.main._title()

    title = asyncio.run(main())
    assert PASSWORD not in title
    assert address.replace(PASSWORD, "***") in title


def test_the_dashboard_looks_and_acts(address: str) -> None:
    fill(address)

    async def main() -> None:
        made = app(address, token=TOKEN)
        asking = httpx.AsyncClient(
            transport=httpx.ASGITransport(made),
            base_url="http://127.0.0.1",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        async with made.router.lifespan_context(made), asking:
            status = await asking.get("/status")
            assert PASSWORD not in status.text
            assert status.json()["queue"]["path"] == address.replace(PASSWORD, "***")
            assert status.json()["counts"]["pending"] == 2
            assert (await asking.post("/works/broken/retry", json={})).json() == {"changed": True}
            assert (await asking.get("/works/broken")).json()["work"]["state"] == "pending"
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute("DROP SCHEMA runcue CASCADE")
            gone = await asking.get("/works/broken")
            assert gone.status_code == 503
            assert "holds no queue 'default' yet" in gone.text

    asyncio.run(main())
