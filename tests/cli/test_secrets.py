"""Secrets in a job of queuectl: hidden wherever it is shown, and there for who asks for them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runcue.cli.commands.show import _argv
from runcue.cli.home import Home
from runcue.cli.jobs import open_cue
from runcue.cli.settings import Settings
from runcue.cli.top import details
from runcue.cli.top.look import Look, Wish
from runcue.cli.worker import Orders, Voice, _listen, _Teller, work
from tests.cli.inside import Inside

CANARY = "hunter2-canary"
SHELL = f"echo token={CANARY}; : --password {CANARY} https://me:{CANARY}@host/; false"
ARGV = ["false", "--api-key", f"my {CANARY}", "--out", "x y", f"--token={CANARY}", "last"]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """Two jobs: one that died of its command, with its secrets in the error, and one that waits."""
    inside = Inside(tmp_path / "home", monkeypatch, capsys)
    failing = f"echo 'no answer: password={CANARY}' >&2; {SHELL}"
    dead = {"id": "dead", "command": failing, "max_retries": 1, "key": f"k?token={CANARY}"}
    assert inside("enqueue", json.dumps(dead)).code == 0
    inside.work()
    assert inside("enqueue", json.dumps({"id": "waits", "argv": ARGV, "env": {"A": CANARY}})).code == 0
    return inside


VERBS = ["list", "list --json", "status", "status --json", "show dead", "show dead --json", "show waits",
         "show waits --json", "why dead", "why dead --json", "why waits --json", "dlq list", "dlq list --json",
         "wait dead"]  # fmt: skip


def test_no_verb_shows_a_secret_unasked(inside: Inside) -> None:
    told = {verb: inside(*verb.split()) for verb in VERBS}
    assert [verb for verb, said in told.items() if CANARY in said.out + said.err] == []
    assert {verb: said.code for verb, said in told.items() if said.code} == {"wait dead": 1}
    for verb in ("list", "show dead", "dlq list", "dlq list --json"):
        assert ": --password *** https://me:***@host/; false" in told[verb].out, verb
    assert "password=***" in told["wait dead"].out
    assert json.loads(told["show dead --json"].out)["key"] == "k?token=***"


def test_an_argument_after_an_option_for_a_secret_is_hidden_whole(inside: Inside) -> None:
    found = json.loads(inside("show", "waits", "--json").out)
    assert found["argv"] == ["false", "--api-key", "***", "--out", "x y", "--token=***", "last"]
    assert found["env"] == {"A": "***"}
    assert _argv(["curl", "--password", f"it's {CANARY}"]) == ["curl", "--password", "***"]
    assert _argv(None) is None


def test_who_asks_for_secrets_gets_them_but_for_the_environment(inside: Inside) -> None:
    found = json.loads(inside("show", "dead", "--raw", "--json").out)
    assert SHELL in found["command"]
    assert found["key"] == f"k?token={CANARY}"
    assert CANARY in found["last_error"]
    assert CANARY in found["history"][0]["error"]
    assert SHELL in inside("show", "dead", "--raw").out
    waits = json.loads(inside("show", "waits", "--raw", "--json").out)
    assert (waits["argv"], waits["env"]) == (ARGV, {"A": "***"})


def test_a_list_has_them_for_who_asks(inside: Inside) -> None:
    assert SHELL in inside("list", "--raw").out
    dead = json.loads(inside("list", "--state", "dead", "--json", "--raw").out)[0]
    assert SHELL in dead["command"]
    assert CANARY in dead["last_error"]


@pytest.fixture
def heard() -> Iterator[tuple[Voice, Callable[[], str]]]:
    """The voice of a worker, and all that was said."""
    reading, writing = os.pipe()
    yield Voice(writing), lambda: os.read(reading, 65536).decode()
    os.close(reading)
    os.close(writing)


def test_a_worker_says_none(inside: Inside, heard: tuple[Voice, Callable[[], str]]) -> None:
    voice, said = heard
    for most, id in ((1, "dies"), (2, "again")):
        job = {"id": id, "command": f"echo token: {CANARY} >&2; exit 3", "max_retries": most}
        assert inside("enqueue", json.dumps(job)).code == 0

    async def run() -> None:
        cue = open_cue(Home(str(inside.home)), Settings(), max_running=1)
        _Teller(cue, voice)
        async with asyncio.timeout(240):
            async with cue:
                await cue.join(["dies", "again"])
            await cue.close()

    asyncio.run(run())
    told = said()
    assert CANARY not in told
    assert "dead: exit code 3: token: ***" in told
    assert "failed: exit code 3: token: ***; retry 2/2" in told


def test_what_a_worker_passes_on_has_none(
    heard: tuple[Voice, Callable[[], str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    voice, said = heard
    logger = logging.getLogger("runcue")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    _listen(voice, is_app=False)
    logger.warning("no answer: password=%s", CANARY)
    assert "no answer: password=***" in said()
    (tmp_path / "leaky_app.py").write_text(f"raise RuntimeError('token={CANARY}')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert work(Orders(app="leaky_app:cue"), voice) == 4
    told = said()
    assert CANARY not in told
    assert "token=***" in told


def test_the_live_screen_shows_none(inside: Inside) -> None:
    home = Home(str(inside.home))
    look = Look(home)
    try:
        items = [item for view in ("active", "failed") for item in look.look(Wish(view=view)).items]
    finally:
        look.close()
    assert {item.id for item in items} == {"dead", "waits"}
    texts = [f"{item.what} {item.said}" for item in items]
    texts += [details.details(home, id) for id in ("dead", "waits")]
    texts += [details.printed(home, "dead", stream) for stream in ("stdout", "stderr")]
    assert [text for text in texts if CANARY in text] == []
    assert "token=***" in texts[-2]
    assert "no answer: password=***" in texts[-1]
    assert all("***" in text for text in texts)
