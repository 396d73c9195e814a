"""What the dashboard does to a queue, on one work and on all of a filter."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from runcue import WorkState
from runcue.web import actions
from tests.web.conftest import PATIENCE, Stage, client


async def asked(stage: Stage, path: str, body: Any = None, method: str = "POST") -> httpx.Response:
    async with client(stage.app) as asker:
        return await asker.request(method, path, json={} if body is None else body)


async def state_of(stage: Stage, name: str) -> str | None:
    work = await stage.cue.get(stage.ids[name])
    return None if work is None else str(work.state)


async def test_a_work_is_retried_once(stage: Stage) -> None:
    await stage.cue.pause("api")
    path = f"/works/{stage.ids['dead']}/retry"
    assert (await asked(stage, path)).json() == {"changed": True}
    assert await state_of(stage, "dead") == "pending"
    assert (await asked(stage, path)).json() == {"changed": False}


async def test_a_work_is_cancelled_alone_or_with_those_that_need_it(stage: Stage) -> None:
    assert (await asked(stage, f"/works/{stage.ids['needs']}/cancel")).json() == {"changed": True}
    assert (await asked(stage, f"/works/{stage.ids['later']}/cancel", {"cascade": True})).json() == {
        "changed": True
    }
    assert await state_of(stage, "later") == "cancelled"


async def test_a_dead_letter_is_deleted(stage: Stage) -> None:
    assert (await asked(stage, f"/works/{stage.ids['dead']}/purge")).json() == {"changed": True}
    assert await state_of(stage, "dead") is None
    assert (await asked(stage, f"/works/{stage.ids['dead']}/purge")).status_code == 404
    assert (await asked(stage, f"/works/{stage.ids['done']}/purge")).json() == {"changed": False}


async def test_the_overview_shows_an_action_at_once(stage: Stage) -> None:
    async with client(stage.app) as asker:
        assert (await asker.get("/status")).json()["counts"]["failed"] == 2
        await asker.post(f"/works/{stage.ids['dead']}/purge", json={})
        status = (await asker.get("/status")).json()
    assert [group["count"] for group in status["failures"]["groups"]] == [1]
    assert stage.ids["dead"] not in {row["id"] for row in status["recent"]}


@pytest.mark.parametrize("verb", ["retry", "cancel", "purge"])
async def test_unknown_work_is_404_and_an_impossible_id_400(stage: Stage, verb: str) -> None:
    assert (await asked(stage, f"/works/nobody/{verb}")).status_code == 404
    assert (await asked(stage, f"/works/a%00b/{verb}")).status_code == 400
    assert (await asked(stage, f"/works/{'x' * 500}/{verb}")).status_code == 400


@pytest.mark.parametrize("body", [{"cascade": 1}, {"casade": True}, [], "x", 7])
async def test_a_body_that_cannot_be_is_refused(memory: Stage, body: Any) -> None:
    async with client(memory.app) as asker:
        answer = await asker.post(f"/works/{memory.ids['dead']}/retry", json=body)
    assert answer.status_code == 400
    assert await state_of(memory, "dead") == "failed"


# many -----------------------------------------------------------------------------------------------------


async def test_all_of_a_filter_are_counted_first_and_then_changed(stage: Stage) -> None:
    await stage.cue.pause("api")
    wanted = {"filter": {"state": "failed", "task": "call"}}
    counted = (await asked(stage, "/works/retry", wanted | {"dry_run": True})).json()
    assert counted == {"count": 2, "sample": [stage.ids["dead2"], stage.ids["dead"]], "more": False}
    assert await state_of(stage, "dead") == "failed"
    assert (await asked(stage, "/works/retry", wanted)).json() == {"changed": 2, "skipped": 0, "left": 0}
    assert await state_of(stage, "dead") == "pending"
    assert (await asked(stage, "/works/retry", wanted)).json() == {"changed": 0, "skipped": 0, "left": 0}


async def test_without_a_state_an_action_takes_all_it_can(stage: Stage) -> None:
    await stage.cue.pause("api")
    assert (await asked(stage, "/works/retry", {"filter": {}})).json()["changed"] == 3
    assert (await asked(stage, "/works/cancel", {"filter": {}})).json()["changed"] == 6
    assert (await stage.cue.count())[WorkState.CANCELLED] == 6


async def test_a_group_of_dead_letters_is_an_action_of_its_own(memory: Stage) -> None:
    other = await memory.cue.submit("call", params={"fail": "something else"})
    await memory.cue.wait(other, PATIENCE)
    group = "Permanent: no page # at postgres://user:***@host/db"
    wanted = {"filter": {"state": "failed", "task": "call", "error_group": group}}
    assert (await asked(memory, "/works/purge", wanted | {"dry_run": True})).json()["count"] == 2
    assert (await asked(memory, "/works/purge", wanted)).json() == {"changed": 2, "skipped": 0, "left": 0}
    assert [work.id for work in await memory.cue.dead()] == [other]


async def test_an_action_takes_no_state_it_is_not_for(memory: Stage) -> None:
    answer = await asked(memory, "/works/purge", {"filter": {"state": "pending"}})
    assert answer.status_code == 400
    assert answer.json()["error"] == "purge takes units that are failed, not pending."


async def test_what_is_too_much_for_one_action_is_said(
    memory: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST_BULK", 20)
    monkeypatch.setattr(actions, "MOST_ROWS", 10)
    monkeypatch.setattr("runcue.web.search.MOST_ROWS", 10)
    await memory.cue.submit_many([{"task": "call", "delay": 3600}] * 30)
    counted = (await asked(memory, "/works/cancel", {"filter": {}, "dry_run": True})).json()
    assert counted["count"] == 20
    assert counted["more"] is True
    first = (await asked(memory, "/works/cancel", {"filter": {"task": "call"}})).json()
    assert first == {"changed": 20, "skipped": 0, "left": None}  # that are some, but nobody counted them
    await memory.cue.submit_many([{"task": "call", "delay": 3600}] * 20)
    second = (await asked(memory, "/works/cancel", {"filter": {}})).json()
    assert second == {"changed": 20, "skipped": 0, "left": 13}
    assert (await memory.cue.count())[WorkState.PENDING] == 13


async def chain(stage: Stage) -> list[str]:
    """One that is dead, and two that died of it, one after the other."""
    ids: list[str] = []
    for _ in range(3):
        ids.append(await stage.cue.submit("call", params={"fail": "chain"}, depends_on=ids[-1:]))
    for work_id in ids:
        await stage.cue.wait(work_id, PATIENCE)
    return ids


async def states_of(stage: Stage, ids: list[str]) -> list[str]:
    return [str(work.state) for work in await asyncio.gather(*map(stage.cue.get, ids)) if work is not None]


async def test_what_others_run_after_is_retried_before_them(stage: Stage) -> None:
    ids = await chain(stage)
    assert await states_of(stage, ids) == ["failed"] * 3
    await stage.cue.pause("api")
    answer = (await asked(stage, "/works/retry", {"filter": {"state": "failed"}})).json()
    assert answer == {"changed": 5, "skipped": 0, "left": 0}
    assert await states_of(stage, ids) == ["pending"] * 3


@pytest.mark.parametrize("how", ["cancelled", "deleted"])
async def test_what_runs_after_work_that_is_lost_is_not_retried(stage: Stage, how: str) -> None:
    ids = await chain(stage)
    await stage.cue.pause("api")
    if how == "deleted":
        await stage.cue.purge(ids[0])
    else:
        await stage.cue.retry(ids[0])
        await stage.cue.cancel(ids[0])
    ended = [work.completed_at for work in await stage.cue.dead() if work.id in ids[1:]]
    answer = (await asked(stage, "/works/retry", {"filter": {"state": "failed"}})).json()
    assert answer == {"changed": 2, "skipped": 2, "left": 0}
    assert await states_of(stage, ids[1:]) == ["failed"] * 2
    if how == "cancelled":  # nobody even tried
        assert [work.completed_at for work in await stage.cue.dead() if work.id in ids[1:]] == ended


async def test_work_whose_key_is_taken_is_skipped_with_what_runs_after_it_and_the_others_are_retried(
    stage: Stage,
) -> None:
    keyed: dict[str, Any] = {"params": {"fail": "key"}, "idempotency_key": "k"}
    taken = await stage.cue.submit("call", **keyed)
    after = await stage.cue.submit("call", depends_on=[taken])
    await stage.cue.wait(after, PATIENCE)
    await stage.cue.pause("api")
    assert await stage.cue.submit("call", **keyed) != taken
    answer = await asked(stage, "/works/retry", {"filter": {"state": "failed"}})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"changed": 2, "skipped": 2, "left": 0}
    assert await states_of(stage, [taken, after]) == ["failed"] * 2


def test_those_that_wait_for_each_other_hold_up_nobody_else() -> None:
    assert actions._in_order({"a": ["b"], "b": ["a"], "d": ["c"], "c": ["x"]}) == ["c", "d"]


# services, queues and schedules ----------------------------------------------------------------------------


async def test_a_service_and_a_queue_are_held_back_and_let_go(stage: Stage) -> None:
    assert (await asked(stage, "/services/api/pause")).json() == {"paused": True}
    assert [one["paused"] for one in await stage.cue.services()] == [True]
    assert (await asked(stage, "/services/api/resume")).json() == {"paused": False}
    assert (await asked(stage, "/queues/default/pause")).json() == {"paused": True}
    assert await stage.cue.paused() == ["default"]
    assert (await asked(stage, "/queues/default/resume")).json() == {"paused": False}
    assert (await asked(stage, "/services/nobody/pause")).status_code == 404
    assert (await asked(stage, "/queues/api/pause")).status_code == 409


async def test_a_schedule_is_held_back_let_go_and_run(stage: Stage) -> None:
    assert (await asked(stage, "/schedules/nightly/pause")).json() == {"paused": True}
    [shown] = (await asked(stage, "/schedules", method="GET")).json()["schedules"]
    assert (shown["paused"], shown["next_at"], shown["runs"]) == (True, None, 0)
    assert (await asked(stage, "/schedules/nightly/resume")).json() == {"paused": False}
    work = (await asked(stage, "/schedules/nightly/run")).json()["id"]
    await stage.cue.wait(work, PATIENCE)
    [shown] = (await asked(stage, "/schedules", method="GET")).json()["schedules"]
    assert (shown["last_id"], shown["last_state"], shown["runs"]) == (work, "completed", 1)
    [info] = await stage.cue.schedules()
    assert (shown["next_at"], shown["when"]) == (info.next_at, "0 3 * * * Europe/Zurich")
    assert shown["title"] == '{"password":"***","url":"https://me:***@example.com/x","page":7}'


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
async def test_an_unknown_schedule_is_404(stage: Stage, verb: str) -> None:
    answer = await asked(stage, f"/schedules/nigtly/{verb}")
    assert answer.status_code == 404
    assert "Did you mean 'nightly'?" in answer.json()["error"]


async def test_the_slots_of_an_interval_are_shown_by_the_host_s_clock(stage: Stage) -> None:
    before = time.time()
    await stage.cue.schedule("beat", "echo", every="1h", params={"text": "x"})
    found = (await asked(stage, "/schedules", method="GET")).json()
    shown = next(one for one in found["schedules"] if one["name"] == "beat")
    assert before + 3599 < shown["next_at"] < time.time() + 3601


async def test_a_limit_is_changed_by_hand(stage: Stage) -> None:
    answer = await asked(stage, "/services/api", {"rate": "7/min", "concurrent": None}, "PATCH")
    assert answer.json()["rates"][0]["rate"] == "7/min"
    assert answer.json()["concurrent"] is None
    assert "1000/min" in answer.json()["declared"]
    [service] = await stage.cue.services()
    assert service["concurrent"] is None
    several = await asked(stage, "/services/api", {"rate": ["5/min", "100/d"]}, "PATCH")
    assert len(several.json()["rates"]) == 2


@pytest.mark.parametrize(
    "body",
    [{"rate": "fast"}, {"rate": []}, {"rate": 7}, {"concurrent": 0}, {"concurrent": "5"}, {"colour": 1},
     {"circuit_timeout": "soon"}, {"circuit_threshold": -1}, {"quantities": {"rate": "1/s"}},
     {"quantities": {"a b": "1/s"}}, {"quantities": {"tokens": "x"}}],
)  # fmt: skip
async def test_limits_that_cannot_be_are_refused(memory: Stage, body: Any) -> None:
    before = await memory.cue.services()
    answer = await asked(memory, "/services/api", body, "PATCH")
    assert answer.status_code == 400, answer.text
    assert await memory.cue.services() == before
    assert (await asked(memory, "/services/nobody", {"rate": "1/s"}, "PATCH")).status_code == 404
