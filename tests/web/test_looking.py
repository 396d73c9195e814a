"""What the dashboard shows of a queue in memory, of one in a file, and of a file from outside (WB7, WB11, WB12)."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest

from runcue import Cue, mask
from runcue.web import app, rows, source
from runcue.web.broadcast import Past
from runcue.web.rows import encoded, shown
from runcue.web.search import MOST_IN_VAIN
from runcue.web.shapes import Counts
from tests.web.conftest import CANARY, PATIENCE, TOKEN, Stage, client


async def answer_of(stage: Stage, path: str, **params: Any) -> Any:
    async with client(stage.app) as asker:
        answer = await asker.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


# the overview ---------------------------------------------------------------------------------------------


async def test_the_overview_counts_and_names_everything(stage: Stage) -> None:
    status = await answer_of(stage, "/status")
    assert status["counts"] == {"pending": 3, "running": 0, "completed": 1, "failed": 2, "cancelled": 1}
    assert status["queue"]["durable"] == (stage.path is not None)
    [service] = status["services"]
    assert service["name"] == "api"
    assert service["rates"] == [{"rate": "1000/min", "used": 3, "limit": 1000}]
    assert {row["id"] for row in status["waiting"]["rows"]} == {
        stage.ids[name] for name in ("later", "needs", "last")
    }
    assert {row["id"] for row in status["recent"]} == {
        stage.ids[name] for name in ("done", "dead", "dead2", "gone")
    }
    ends = [row["completed_at"] for row in status["recent"]]
    assert ends == sorted(ends, reverse=True)
    assert "sample" not in status
    if stage.path is not None:
        assert [worker["serving"] for worker in status["workers"]] == [True]


async def test_each_that_waits_says_why_and_until_when(stage: Stage) -> None:
    status = await answer_of(stage, "/status")
    whys = {row["id"]: row["why"] for row in status["waiting"]["rows"]}
    later = whys[stage.ids["later"]]
    assert later["reason"] == "scheduled"
    assert later["until"] == pytest.approx(status["at"] + later["seconds"], abs=1)
    assert 3500 < later["seconds"] <= 3600
    assert whys[stage.ids["last"]]["text"] == f"after {stage.ids['needs']}"
    assert whys[stage.ids["last"]]["waits_for"] == [stage.ids["needs"]]
    reasons = {reason["text"]: reason["count"] for reason in status["waiting"]["reasons"]}
    assert reasons["scheduled"] == 1
    assert sum(reasons.values()) == status["waiting"]["looked_at"] == 3


async def test_dead_letters_that_failed_alike_are_one_group(stage: Stage) -> None:
    [group] = (await answer_of(stage, "/failures"))["groups"]
    assert group["error"] == "Permanent: no page # at postgres://user:***@host/db"
    assert group["count"] == 2
    assert group["sample"] == stage.ids["dead2"]
    assert group["first_at"] <= group["last_at"]


async def test_running_work_is_shown(memory: Stage) -> None:
    work_id = await memory.cue.submit("hang")
    async for event in memory.cue.events("started", since=0):
        if event.work_id == work_id:
            break
    status = await answer_of(memory, "/status")
    assert [row["id"] for row in status["running"]] == [work_id]
    await memory.cue.cancel(work_id)


def counted(completed: int, failed: int = 0, pending: int = 0) -> Counts:
    return Counts(pending=pending, running=0, completed=completed, failed=failed, cancelled=0)


def test_the_history_has_a_point_for_each_second_and_loses_nothing() -> None:
    past = Past()
    past.add(100.2, counted(50))
    past.add(100.9, counted(53))
    past.add(103.1, counted(60, failed=2, pending=4))
    history = past.history()
    assert history.until == 102
    assert sum(history.completed) == 10
    assert sum(history.failed) == 2
    assert len(history.completed) == 3
    assert history.pending == [4, 4, 4]
    assert past.pace().completed == pytest.approx(10 / 3)


def test_a_sample_tells_what_ended_since_the_one_before() -> None:
    past = Past()
    past.add(100, counted(0))
    past.add(101, counted(5))
    assert past.since(99, counted(5)).completed == 5
    past.add(103.5, counted(9))
    assert past.since(100, counted(9)).completed == 4
    assert past.since(102, counted(9)).completed == 0
    assert past.since(102, counted(9)).at == 102


def test_the_history_begins_anew_after_a_long_time_or_a_clock_that_was_set_back() -> None:
    past = Past()
    for at in (100, 101, 200, 201, 150):
        past.add(at, counted(at))
    assert past.history().completed == []
    past.add(151, counted(152))
    assert past.history().completed == [2]


def test_the_history_is_bounded_and_work_that_is_retried_is_no_negative_failure() -> None:
    past = Past()
    for second in range(2000):
        past.add(second, counted(second, failed=2000 - second))
    assert len(past.history().completed) == 600
    assert set(past.history().failed) == {0}


# lists ----------------------------------------------------------------------------------------------------


async def test_a_list_is_read_page_by_page(stage: Stage) -> None:
    found: list[str] = []
    before = None
    for _ in range(10):
        params = {"limit": 2} if before is None else {"limit": 2, "before": before}
        page = await answer_of(stage, "/works", **params)
        assert len(page["works"]) <= 2
        found += [row["id"] for row in page["works"]]
        before = page["next"]
        if before is None:
            break
    assert found == [work.id for work in await stage.cue.list()]


async def test_a_list_can_be_filtered_and_searched(stage: Stage) -> None:
    async def ids(**params: str) -> set[str]:
        return {row["id"] for row in (await answer_of(stage, "/works", **params))["works"]}

    assert await ids(state="failed") == {stage.ids["dead"], stage.ids["dead2"]}
    assert await ids(task="nothing") == set()
    assert len(await ids(service="api", queue="default")) == 7
    assert await ids(search="page 13") == {stage.ids["dead2"]}
    assert await ids(search=stage.ids["later"], state="pending") == {
        stage.ids["later"],
    }
    for pattern in ("%", "_", ".*", "(a+)+$", "'; DROP TABLE works; --", "\\"):
        assert await ids(search=pattern) == set(), pattern


async def test_units_are_found_by_group_and_tag_and_known_by_a_title(stage: Stage) -> None:
    tags = {"run": "nightly", "key": f"api_key={CANARY}"}
    work_id = await stage.cue.submit("call", group="import-7", tags=tags, params={"page": 5})
    await stage.cue.wait(work_id)
    for params in (
        {"group": "import-7"},
        {"tag": "run=nightly"},
        {"tag": "run=nightly", "state": "completed"},
    ):
        [row] = (await answer_of(stage, "/works", **params))["works"]
        assert (row["id"], row["group"], row["tags"]["run"]) == (work_id, "import-7", "nightly")
        assert "run=nightly" in row["title"]
        assert CANARY not in str(row)
    found = (await answer_of(stage, "/works", group="import-7"))["group"]
    assert (found["text"], found["fraction"], found["counts"]["completed"]) == ("1 of 1 unit", 1.0, 1)
    assert (await answer_of(stage, "/works", group="none"))["group"] is None
    assert (await answer_of(stage, f"/works/{work_id}"))["work"]["group"] == "import-7"
    async with client(stage.app) as asker:
        assert (await asker.get("/works", params={"tag": "nightly"})).status_code == 400


async def test_units_are_searched_by_key_but_never_by_a_secret_in_it(stage: Stage) -> None:
    key = f"invoice-7?token={CANARY}"
    work_id = await stage.cue.submit("call", idempotency_key=key, params={"page": 5})
    assert [row["id"] for row in (await answer_of(stage, "/works", search="invoice-7"))["works"]] == [work_id]
    assert (await answer_of(stage, "/works", search=CANARY))["works"] == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=-1", "limit=501", "limit=1000000000", "limit=x", "limit=", "limit=1.5", "limit=1&limit=2",
     "sort=name", "state=odd", "state=", "search=" + "x" * 201, "task=%00", "offset=3"],
)  # fmt: skip
async def test_what_no_list_can_show_is_refused(memory: Stage, query: str) -> None:
    async with client(memory.app) as asker:
        answer = await asker.get(f"/works?{query}")
    assert answer.status_code == (200 if query == "task=%00" else 400)
    if answer.status_code == 400:
        assert "\n" not in answer.json()["error"]


async def test_going_on_after_work_that_is_gone_is_404(stage: Stage) -> None:
    async with client(stage.app) as asker:
        assert (await asker.get("/works", params={"before": "nobody"})).status_code == 404


# one work -------------------------------------------------------------------------------------------------


async def test_a_work_is_shown_with_all_that_is_known(stage: Stage) -> None:
    dead = (await answer_of(stage, f"/works/{stage.ids['dead']}"))["work"]
    assert dead["state"] == "failed"
    assert [one["number"] for one in dead["history"]] == [1]
    assert "Permanent" in dead["traceback"]
    assert dead["params"] == {"fail": "no page 12"}
    assert dead["why"] is None
    needs = (await answer_of(stage, f"/works/{stage.ids['needs']}"))["work"]
    assert needs["depends_on"] == [stage.ids["later"], stage.ids["done"]]
    assert needs["why"]["reason"] == "dependency"


async def test_where_very_many_wait_nobody_counts_those_ahead(
    memory: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MOST_AHEAD", 2)
    monkeypatch.setattr(memory.cue, "explain", None)
    needs = (await answer_of(memory, f"/works/{memory.ids['needs']}"))["work"]
    assert needs["why"]["reason"] == "dependency"


async def test_the_graph_goes_up_and_down(stage: Stage) -> None:
    ids = stage.ids
    for start in ("needs", "later", "last"):
        graph = (await answer_of(stage, f"/works/{ids[start]}"))["graph"]
        edges = {tuple(edge) for edge in graph["edges"]}
        assert (ids["needs"], ids["last"]) in edges
        assert (ids["later"], ids["needs"]) in edges
        assert {node["id"] for node in graph["nodes"]} >= {ids["later"], ids["needs"], ids["last"]}
        assert graph["nodes"][0]["id"] == ids[start]
        assert not graph["more"]


async def test_a_large_graph_is_cut(memory: Stage) -> None:
    root = await memory.cue.submit("call", delay=3600)
    for _ in range(150):
        await memory.cue.submit("call", depends_on=[root])
    graph = (await answer_of(memory, f"/works/{root}"))["graph"]
    assert len(graph["nodes"]) == 100
    assert graph["more"]


async def test_what_was_never_submitted_is_a_node_without_a_state(memory: Stage) -> None:
    work_id = await memory.cue.submit("call", depends_on=["not-yet"])
    graph = (await answer_of(memory, f"/works/{work_id}"))["graph"]
    assert {"id": "not-yet", "task": None, "state": None} in graph["nodes"]


@pytest.mark.parametrize("work_id", ["a/b", "a b", "a%2Fb", "ünï", "x/../y", "<script>"])
async def test_odd_ids_are_found(memory: Stage, work_id: str) -> None:
    from urllib.parse import quote

    await memory.cue.submit("call", id=work_id, delay=3600)
    found = await answer_of(memory, f"/works/{quote(work_id, safe='')}")
    assert found["work"]["id"] == work_id


# output ---------------------------------------------------------------------------------------------------


async def printed(path: Path, script: str) -> str:
    """A work in that file whose command printed something."""
    cue = Cue(str(path))

    @cue.task(executor="subprocess", shell=True)
    def run(work: Any) -> str:
        return script

    async with cue:
        work_id = await cue.submit("run")
        await cue.wait(work_id, 20)
    await cue.close()
    return work_id


async def test_what_a_command_printed_is_read_from_its_end_or_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    work_id = await printed(path, "printf '0123456789'; printf 'password=%s é' hunter2 >&2")
    made = app(path, token=TOKEN)
    async with client(made) as asker, made.router.lifespan_context(made):
        page = (await asker.get(f"/works/{work_id}")).json()
        assert page["output"] == [
            {"attempt": 1, "stream": "stdout", "size": 10},
            {"attempt": 1, "stream": "stderr", "size": 19},
        ]
        at = f"/works/{work_id}/output"
        assert (await asker.get(at)).json() == {"text": "0123456789", "start": 0, "end": 10, "size": 10}
        for piece in ({"tail": 3}, {"start": 2, "tail": 3}):  # whole lines
            answer = (await asker.get(at, params=piece)).json()
            assert answer == {"text": "0123456789", "start": 0, "end": 10, "size": 10}
        beyond = (await asker.get(at, params={"start": 99})).json()
        assert beyond == {"text": "", "start": 10, "end": 10, "size": 10}
        err = (await asker.get(at, params={"stream": "stderr"})).json()
        assert err["text"] == "password=*** é"
        for start in range(19):
            cut = (await asker.get(at, params={"stream": "stderr", "start": start, "tail": 1})).json()
            assert cut == {"text": "password=*** é", "start": 0, "end": 19, "size": 19}
        for odd in ({"stream": "odd"}, {"attempt": 0}, {"start": -1}, {"tail": 0}, {"tail": 1 << 30}):
            assert (await asker.get(at, params=odd)).status_code == 400


@pytest.mark.parametrize(
    "name", ["..%2f..%2f", "%2e%2e%2fq.db", "..%252f..%252f", "%252e%252e", "%2fetc%2fpasswd", "x%00y", "%0a"]
)
async def test_no_file_but_that_of_a_work_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "q.db"
    work_id = await printed(path, "echo hello")
    (tmp_path / "secret.1.out").write_text(CANARY)
    made = app(path, token=TOKEN)
    async with client(made) as asker, made.router.lifespan_context(made):
        answer = await asker.get(f"/works/{name}/output")
        assert answer.status_code in (400, 404)
        assert (await asker.get(f"/static/{name}")).status_code in (400, 404)
        [file] = (tmp_path / "q.db.files").glob("*.out")
        file.unlink()
        file.symlink_to(tmp_path / "secret.1.out")
        answer = await asker.get(f"/works/{work_id}/output")
        assert CANARY not in answer.text


@pytest.mark.parametrize("name", ["none.js", "index.html.js", "__init__.py", ".js", "INDEX.HTML"])
async def test_only_files_of_the_page_are_served(memory: Stage, name: str) -> None:
    async with client(memory.app) as asker:
        assert (await asker.get(f"/static/{name}")).status_code == 404


# secrets and odd values -----------------------------------------------------------------------------------


async def test_no_answer_tells_a_secret(stage: Stage) -> None:
    paths = ["/status", "/works", "/failures", "/services", "/schedules", "/metrics", "/openapi.json"]
    paths += [f"/works/{work_id}" for work_id in stage.ids.values()]
    paths += [f"/works?search={CANARY}"]
    async with client(stage.app) as asker:
        for path in paths:
            answer = await asker.get(path)
            assert CANARY not in answer.text, path
        done = (await asker.get(f"/works/{stage.ids['done']}")).json()["work"]
    assert done["params"] == {"password": "***", "url": "https://me:***@example.com/x", "page": 7}
    assert done["result"] == {"page": 1, "token": "***"}


class Login(pydantic.BaseModel):
    user: str
    password: str


class Broken(Login):
    def model_dump(self, **options: Any) -> Any:
        raise AttributeError("user")


def test_any_value_can_be_shown() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<Odd password=x>"

    loop: list[Any] = []
    loop.append(loop)
    assert shown(Odd()) == "<Odd password=***"
    assert shown({1: {2}, "when": b"x"}) == {"1": [2], "when": "eA=="}
    assert shown(loop).startswith("cannot be shown: RecursionError")
    assert shown([Path("a"), Login(user="ada", password="x")]) == ["a", {"user": "ada", "password": "***"}]
    assert shown(Broken(user="ada", password="x")) == "cannot be shown: AttributeError"
    assert shown("x" * 2_000_000) == "too large to be shown: 2,000,002 bytes"
    assert shown(float("nan")) is not None
    assert encoded({"x": "\ud800"}) == b'{"x": "\\ud800"}'
    assert b"\n" not in encoded({"x": "a\n\ndata: b\r"})


async def test_results_that_are_no_json_are_shown(memory: Stage) -> None:
    cue = memory.cue

    @cue.task
    async def odd(work: Any) -> object:
        return {"lock": asyncio.Lock(), "text": "\ud800", "nan": float("nan")}

    work_id = await cue.submit("odd")
    await cue.wait(work_id, PATIENCE)
    async with client(memory.app) as asker:
        answer = await asker.get(f"/works/{work_id}")
    assert answer.status_code == 200
    assert re.search(r"asyncio.locks.Lock", answer.text)


async def test_a_cue_on_another_loop_is_asked_there(tmp_path: Path) -> None:
    import threading

    ready, over = threading.Event(), threading.Event()
    cues: list[Cue] = []

    async def elsewhere() -> None:
        cue = Cue()

        @cue.task
        async def call(work: Any) -> int:
            return 1

        async with cue:
            await cue.wait(await cue.submit("call"), PATIENCE)
            cues.append(cue)
            ready.set()
            await asyncio.to_thread(over.wait, 30)

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    try:
        await asyncio.to_thread(ready.wait, 30)
        made = app(cues[0], token=TOKEN)
        async with client(made) as asker:
            status = (await asker.get("/status")).json()
            assert status["counts"]["completed"] == 1
            work_id = status["recent"][0]["id"]
            assert (await asker.get(f"/works/{work_id}")).status_code == 200
    finally:
        over.set()
        await asyncio.to_thread(thread.join, 30)


# what a search gives away ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "search", ['password":"h', "hunter2", f'password":"{CANARY}', "user:hunter", "me:hunter2c"]
)
async def test_nobody_finds_a_secret_by_guessing_at_it(stage: Stage, search: str) -> None:
    async with client(stage.app) as asker:
        found = (await asker.get("/works", params={"search": search})).json()
        assert found == {"works": [], "next": None, "group": None}
        for verb in ("retry", "cancel", "purge"):
            body = {"filter": {"search": search}, "dry_run": True}
            assert (await asker.post(f"/works/{verb}", json=body)).json()["count"] == 0


async def test_what_is_shown_is_found_behind_what_is_not(
    memory: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.web.search.MOST_ROWS", 4)
    open_ids = await memory.cue.submit_many([{"task": "echo", "params": {"text": "Needle"}, "delay": 60}] * 3)
    hidden = {"task": "echo", "params": {"text": 1, "password": "needle"}, "delay": 60}
    await memory.cue.submit_many([hidden] * 10)
    async with client(memory.app) as asker:
        first = (await asker.get("/works", params={"search": "nEEdle", "limit": 2})).json()
        assert [row["id"] for row in first["works"]] == [open_ids[2], open_ids[1]]
        rest = {"search": "needle", "limit": 2, "before": first["next"]}
        second = (await asker.get("/works", params=rest)).json()
        assert [row["id"] for row in second["works"]] == [open_ids[0]]
        assert second["next"] is None
        body = {"filter": {"search": "needle"}, "dry_run": True}
        assert (await asker.post("/works/cancel", json=body)).json()["count"] == 3


async def test_a_search_that_finds_secrets_alone_comes_to_an_end(
    memory: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.web.search.MOST_ROWS", 2)
    await memory.cue.submit_many(
        [{"task": "echo", "params": {"password": "needle"}, "delay": 60}] * (2 * MOST_IN_VAIN + 4)
    )
    looks = 0
    real = memory.cue.list

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return await real(*given, **more)

    monkeypatch.setattr(memory.cue, "list", counted)
    async with client(memory.app) as asker:
        found = (await asker.get("/works", params={"search": "needle"})).json()
    assert found == {"works": [], "next": None, "group": None}
    assert looks <= MOST_IN_VAIN


# long texts -----------------------------------------------------------------------------------------------


def test_of_a_long_text_the_beginning_is_looked_at_and_no_part_of_a_secret_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    def counted(value: Any) -> Any:
        looked.append(len(value))
        return mask(value)

    monkeypatch.setattr(rows, "mask", counted)
    for start in range(0, 900, 7):
        for text in (
            f"token={'t' * start} at postgres://user:{CANARY * 80}@host/db " + "x" * 5000,
            f"{'y' * start} password={CANARY * 80} " + "x" * 5000,
        ):
            hidden = rows.words(text, 300)
            assert hidden is not None
            assert len(hidden) <= 300
            assert CANARY[:3] not in hidden
    assert max(looked) <= 900
    assert rows.words("z" * 5000, 300) == "z" * 299 + "…"


async def test_others_have_their_turn_while_many_rows_are_made(memory: Stage) -> None:
    [work] = [one for one in await memory.cue.dead() if one.id == memory.ids["dead"]]
    clock = rows.WallClock()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(other())
    await rows.failures_of([work] * 1000, clock)
    groups, turns = turns, 0
    await rows.rows_of([work] * 500, clock)
    beside.cancel()
    assert groups >= 1000 // rows.IN_A_ROW - 1
    assert turns >= 500 // rows.IN_A_ROW - 1
