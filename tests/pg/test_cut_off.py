"""Hosts that lose their cable: one that decides for all, and one for which another decides; at rest and at work.

The others go on, each answer is taken once, no attempt is begun twice, and who was cut off works again afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import runcue
from tests.patience import until
from tests.pg.server import Server
from tests.pg.test_workers import (
    BOUND,
    CONCURRENT,
    App,
    Cable,
    asking,
    at_once,
    cables,
    calls_of_both,
    far_server,
    is_done_once,
    is_within_rate,
)

__all__ = ["cables", "far_server"]

HOSTS = ("a", "b")
DECIDER = "SELECT workers.pid FROM head JOIN workers ON workers.id = head.decider"


def deciding(app: App) -> str | None:
    """The host of the process that decides, if it is one that ran something."""
    hosts = {one["pid"]: one["host"] for task in ("call", "held") for one in app.told("began", task)}
    return next((hosts[pid] for (pid,) in app.asked(DECIDER) if pid in hosts), None)


def holding(app: App) -> set[str]:
    """The hosts on which something is held."""
    return {one["host"] for one in app.told("began", "held")}


async def both_hold(app: App, cue: runcue.Cue) -> list[str]:
    """Have something run on both hosts that does not end by itself."""
    serving = "SELECT count(*) FROM workers WHERE is_serving = 1"
    await cue.count()  # from now on there are tables
    await until(lambda: app.asked(serving) == [(len(HOSTS),)], "a worker on each host")
    ids = []
    async with asyncio.timeout(BOUND):
        while holding(app) != {*HOSTS}:
            ids.append(await cue.submit("held"))
            await until(lambda: len(app.told("began", "held")) == len(ids), "a start")
    return list(ids)


async def until_host_decides(app: App, cue: runcue.Cue, ids: list[str]) -> str:
    """The host that decides, once one of them does: who only asks leaves that to who runs work."""
    async with asyncio.timeout(BOUND):
        while (host := deciding(app)) is None:
            ids.append(await cue.submit("call"))
            await cue.wait(ids[-1])
    return host


async def both_at_work(app: App, cue: runcue.Cue) -> list[str]:
    """Have more calls than are made at once, of which both hosts make some."""
    before = len(app.told("began"))
    ids = await cue.submit_many([{"task": "call"}] * 60)
    await until(lambda: {one["host"] for one in app.told("began")[before:]} == {*HOSTS}, "calls on both")
    return list(ids)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_at_work", [False, True], ids=["at rest", "at work"])
@pytest.mark.parametrize("is_decider", [True, False], ids=["who decides", "another"])
async def test_a_host_is_cut_off_and_comes_back(
    cables: list[Cable], far_server: Server, tmp_path: Path, is_decider: bool, is_at_work: bool
) -> None:
    url = far_server.database()
    app = App(tmp_path, url)
    with app.host("a", cable=cables[0]), app.host("b", cable=cables[1]):
        async with asking(url) as cue:
            ids = await both_hold(app, cue)
            await calls_of_both(app, cue, ids)
            held = {one["id"]: one["host"] for one in app.told("began", "held")}
            decider = await until_host_decides(app, cue, ids)
            lost, other = sorted(HOSTS, key=lambda host: (host == decider) != is_decider)
            if is_at_work:
                ids += await both_at_work(app, cue)
            cables[HOSTS.index(lost)].cut()

            calls = await cue.submit_many([{"task": "call"}] * 10)
            ids += calls
            for one in calls:  # submitted since, so made by the other one
                assert await cue.result(one, timeout=BOUND) == other
            mine = [one for one, host in held.items() if host == lost]
            await until(
                lambda: {one["id"] for one in app.told("began", "held") if one["attempt"] == 2} == {*mine},
                "the start elsewhere of what was lost",
            )
            assert deciding(app) != lost
            (tmp_path / "go-1").touch()
            await until(lambda: {one["host"] for one in app.told("ended", "held")} == {*HOSTS}, "late ends")

            cables[HOSTS.index(lost)].mend()
            await calls_of_both(app, cue, ids)
            (tmp_path / "go-2").touch()
            await cue.join(timeout=BOUND)
            for one, host in held.items():
                work = await cue.wait(one)
                assert (work.result, work.attempt) == ((other, 2) if host == lost else (host, 1))
            await is_done_once(cue, ids)
            await is_within_rate(app, cue)
    begun = Counter(
        (one["id"], one["attempt"]) for task in ("call", "held") for one in app.told("began", task)
    )
    assert set(begun.values()) == {1}
    assert at_once(app) <= CONCURRENT
