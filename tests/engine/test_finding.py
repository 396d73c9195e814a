"""Tags, groups and labels: how units are found again, counted, and changed together."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from runcue import (
    ConfigError,
    Cue,
    GroupCounts,
    GroupNotFound,
    InvalidOption,
    RuncueError,
    SubmitError,
    Unique,
    Work,
    WorkState,
)
from runcue.errors import UnknownOption
from runcue.testing import settle


def program(**options: Any) -> Cue:
    cue = Cue(**options)
    cue.service("api", concurrent=2)

    @cue.task(uses="api", label="page {page} of {book}")
    async def read(work: Work) -> Any:
        if work.params.get("fails"):
            raise OSError("no line")
        if work.params.get("waits"):
            await asyncio.sleep(1000)
        return work.params.get("page")

    return cue


async def submit_some(cue: Cue) -> dict[str, str]:
    """Six units by name."""
    given: dict[str, dict[str, Any]] = {
        "a": {"group": "g", "tags": {"run": "nightly", "who": "me"}, "params": {"page": 1, "book": "Ü"}},
        "b": {"group": "g", "tags": {"run": "nightly"}, "params": {"page": 2, "fails": True}},
        "c": {"group": "h", "tags": {"run": "daily"}, "params": {"page": 3}},
        "d": {"tags": {"run": "nightly"}, "params": {"page": 4, "fails": True}, "queue": "night"},
        "e": {"params": {"page": 5}, "idempotency_key": "the-key"},
        "f": {"group": "g", "params": {"page": 6}},
    }
    return {name: await cue.submit("read", **options) for name, options in given.items()}


def names(ids: dict[str, str], works: Iterable[Work]) -> str:
    """The names of these units, in order."""
    known = {work_id: name for name, work_id in ids.items()}
    return "".join(known[work.id] for work in works)


async def test_a_unit_knows_its_group_its_tags_and_its_label() -> None:
    async with program() as cue:
        ids = await submit_some(cue)
        await cue.join()
        work = await cue.get(ids["a"])
        assert work is not None
        assert (work.group, work.tags, work.label) == ("g", {"run": "nightly", "who": "me"}, "page 1 of Ü")
        bare = await cue.get(ids["e"])
        assert bare is not None
        assert (bare.group, bare.tags, bare.label) == (None, {}, "page 5 of ?")


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"group": "g"}, "fba"),
        ({"group": "g", "state": "failed"}, "b"),
        ({"group": "g", "state": "completed"}, "fa"),
        ({"group": "none"}, ""),
        ({"tags": {"run": "nightly"}}, "dba"),
        ({"tags": {"run": "nightly"}, "state": "failed"}, "db"),
        ({"tags": {"run": "nightly", "who": "me"}}, "a"),
        ({"tags": {"run": "nightly"}, "group": "g"}, "ba"),
        ({"tags": {"run": "nightly"}, "queue": "night"}, "d"),
        ({"tags": {}}, "fedcba"),
        ({"tags": {"run": "weekly"}}, ""),
        ({"key": "the-key"}, "e"),
        ({"key": "the-key", "state": "failed"}, ""),
        ({"search": "PAGE 1 OF"}, "a"),
        ({"search": "the-key"}, "e"),
        ({"group": "g", "limit": 2}, "fb"),
        ({"since": 0}, "fedcba"),
        ({"until": datetime(2000, 1, 1, tzinfo=UTC)}, ""),
    ],
)
async def test_units_are_found_by_what_was_submitted_with_them(where: dict[str, Any], found: str) -> None:
    async with program() as cue:
        ids = await submit_some(cue)
        await cue.join()
        assert names(ids, await cue.list(**where)) == found
        where = {name: value for name, value in where.items() if name != "limit"}
        counts = await cue.count(**where)
        assert sum(counts.values()) == len(await cue.list(**where))


async def test_units_of_a_time_are_found() -> None:
    async with program() as cue:
        ids = await submit_some(cue)
        await cue.join()
        await asyncio.sleep(100)
        noon = await cue.now()
        await asyncio.sleep(100)
        late = await cue.submit("read", params={"page": 7})
        await cue.retry(ids["b"])
        await cue.join()
        assert [work.id for work in await cue.list(since=noon)] == [late]
        assert names(ids, await cue.list(until=noon)) == "bfedca"
        assert (await cue.count(since=noon))[WorkState.COMPLETED] == 1
        assert names(ids, await cue.list(group="g", until=noon)) == "bfa"


async def test_units_are_counted_by_state() -> None:
    cue = program()
    async with cue:
        ids = await submit_some(cue)
        await cue.join()
        await cue.submit("read", params={"page": 7, "waits": True}, tags={"run": "nightly"})
        await cue.submit("read", params={"page": 8}, tags={"run": "nightly"}, delay="1h")
        await settle()
        counts = await cue.count(tags={"run": "nightly"})
        assert counts == {"pending": 1, "running": 1, "completed": 1, "failed": 2, "cancelled": 0}
        assert [work.label for work in await cue.list("running", tags={"run": "nightly"})] == ["page 7 of ?"]
        assert len(await cue.list("pending", tags={"run": "nightly"})) == 1
        assert (await cue.count(task="read", state="failed"))[WorkState.FAILED] == 2
        assert len(ids) == 6
        await cue.cancel(state="running")


async def test_a_group_tells_how_far_it_is() -> None:
    async with program() as cue:
        await submit_some(cue)
        group = cue.group("g")
        counts = await group.wait()
        assert counts.done_at is not None
        assert (counts.completed, counts.failed, counts.total, counts.fraction) == (2, 1, 3, 1.0)
        assert counts.text == "3 of 3 units, 1 failed"
        assert await group.counts() == counts.by_state
        assert [*(await group.results()).values()] == [1, 6]
        assert len(await group.list("failed")) == 1
        assert repr(group) == "<Group 'g'>"


async def test_a_group_is_waited_for_until_its_last_unit_has_ended() -> None:
    async with program() as cue:
        await cue.submit("read", params={"page": 1, "waits": True}, group="g")
        began = await cue.now()
        counts = await cue.group("g").wait()
        assert (counts, await cue.now() - began >= 1000) == (
            GroupCounts(completed=1, created_at=counts.created_at, done_at=counts.done_at),
            True,
        )


async def test_a_group_that_is_not_done_in_time_is_an_error() -> None:
    async with program() as cue:
        await cue.submit("read", params={"page": 1, "waits": True}, group="g")
        with pytest.raises(TimeoutError, match="Group 'g' is not done within 10 s"):
            await cue.group("g").wait(timeout=10)
        await cue.group("g").cancel()


async def test_a_group_that_does_not_exist_is_an_error_that_names_it() -> None:
    async with program() as cue:
        await cue.submit("read", params={}, group="import-7")
        group = cue.group("import_7")
        for ask in (group.progress, group.counts, group.wait, group.results, group.cancel, group.retry):
            with pytest.raises(GroupNotFound, match=r"'import_7'.*Did you mean 'import-7'") as caught:
                await ask()
            assert caught.value.name == "import_7"
        assert await group.list() == []


async def test_all_that_is_left_of_a_group_is_cancelled() -> None:
    cue = program()
    ids = [await cue.submit("read", params={"page": n, "waits": True}, group="g") for n in range(5)]
    other = await cue.submit("read", params={"page": 9}, group="h")
    async with cue:
        await settle()
        assert await cue.group("g").cancel() == 5
        assert [work.id for work in await cue.list("cancelled")] == ids[::-1]
        assert (await cue.wait(other)).state == "completed"
        assert (await cue.group("g").progress()).cancelled == 5
        assert await cue.group("g").cancel() == 0


async def test_the_failed_units_of_a_group_are_retried() -> None:
    async with program() as cue:
        ids = await submit_some(cue)
        await cue.join()
        assert await cue.group("g").retry() == 1
        await cue.group("g").wait()
        assert names(ids, await cue.list(group="g")) == "bfa"
        assert (await cue.group("g").progress()).failed == 1


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_units_are_retried_after_those_that_they_depend_on(state: str) -> None:
    async with program() as cue:
        await cue.pause("default")
        fails: dict[str, Any] = {"task": "read", "params": {"fails": True}, "group": "g"}
        first = await cue.submit(**fails)
        chain = [first]
        for _ in range(3):
            chain.append(await cue.submit(**fails, depends_on=chain[-1:]))
        if state == "cancelled":
            assert await cue.cancel(first, cascade=True)
        else:
            await cue.resume("default")
            await cue.join()
            await cue.pause("default")
        assert [work.state for work in await cue.list(group="g")] == [state] * 4
        assert await cue.retry(group="g", state=state) == 4
        assert [work.state for work in await cue.list(group="g")] == ["pending"] * 4


async def test_a_unit_is_not_retried_without_what_it_depends_on() -> None:
    async with program() as cue:
        first = await cue.submit("read", params={"fails": True})
        last = await cue.submit("read", group="g", depends_on=[first])
        await cue.join()
        after = await cue.submit("read", group="g", depends_on=[last])
        await cue.join()
        before = (await cue.get(last), await cue.get(after), await cue.last_event())
        assert await cue.retry(group="g") == 0
        assert (await cue.get(last), await cue.get(after), await cue.last_event()) == before, "nobody tried"


async def test_units_are_cancelled_and_retried_by_what_is_true_of_them() -> None:
    cue = program()
    ids = await submit_some(cue)
    assert await cue.cancel(tags={"run": "nightly"}, queue="default") == 2
    assert names(ids, await cue.list("cancelled")) == "ba"
    assert await cue.retry(group="g") == 0  # they were cancelled, and did not fail
    assert await cue.retry(group="g", state="cancelled") == 2
    assert names(ids, await cue.list("pending", limit=2)) in {"ab", "ba"}
    assert await cue.cancel(since=0) == 6
    await cue.close()


@pytest.mark.parametrize("method", ["cancel", "retry"])
async def test_a_change_of_all_units_has_to_be_said(method: str) -> None:
    cue = program()
    with pytest.raises(InvalidOption, match=rf"Invalid id: None. Expected an id, or .* {method}\("):
        await getattr(cue, method)()
    with pytest.raises(ConfigError, match="an id and group"):
        await getattr(cue, method)("id", group="g")
    with pytest.raises(UnknownOption, match="grup"):
        await getattr(cue, method)(grup="g")
    await cue.close()


async def test_a_callback_is_called_once_when_a_group_is_done() -> None:
    cue = program()
    heard: list[tuple[str, dict[str, int]]] = []

    @cue.on_group_done
    def done(group: str, counts: dict[str, int]) -> None:
        heard.append((group, counts))

    await submit_some(cue)
    async with cue:
        await cue.join()
        await cue.submit("read", params={"page": 7}, group="h")
        await cue.join()
    assert sorted(name for name, _ in heard) == ["g", "h", "h"]
    assert dict(heard[:2])["g"] == {"pending": 0, "running": 0, "completed": 2, "failed": 1, "cancelled": 0}


async def test_a_handler_cannot_wait_for_the_group_of_its_own_unit() -> None:
    cue = Cue()

    @cue.task
    async def waits(work: Work) -> None:
        await cue.group("g").wait()

    async with cue:
        work = await cue.wait(await cue.submit(waits, group="g"))
        assert "its own handler cannot await" in str(work.error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": "run"}, "Invalid tags: 'run'. Expected names and texts"),
        ({"tags": {"run": 7}}, "Invalid tag 'run': 7. Expected a text"),
        ({"tags": {"run": ""}}, "Invalid tag 'run': ''"),
        ({"tags": {7: "run"}}, "its name is 7"),
        ({"tags": {"": "run"}}, "its name is ''"),
        ({"tags": {"run": "a\nb"}}, "Invalid tag 'run'"),
        ({"tags": {"run": "x" * 513}}, "Invalid tag 'run'"),
        ({"tags": {f"t{n}": "x" for n in range(21)}}, "21 of them. A unit has at most 20"),
        ({"group": ""}, "Invalid group: ''"),
        ({"group": 7}, "Invalid group: 7"),
    ],
)
async def test_tags_and_groups_that_cannot_be_are_refused_and_nothing_is_queued(
    options: dict[str, Any], message: str
) -> None:
    cue = program()
    with pytest.raises(SubmitError, match="Invalid") as caught:
        await cue.submit("read", **options)
    assert message in str(caught.value)
    assert sum((await cue.count()).values()) == 0
    await cue.close()


@pytest.mark.parametrize(
    "label", ["", 7, "{", "{}", "{0}", "{page.x}", "{page!r}", "{page[0]}", "{page:{width}}"]
)
def test_a_label_that_cannot_be_is_refused_where_its_task_is_registered(label: Any) -> None:
    with pytest.raises(InvalidOption, match="label"):
        Cue().task("read", label=label)


def test_a_label_that_names_no_param_of_its_task_is_refused() -> None:
    cue = Cue()

    def read(page: int, book: str = "Emma") -> None: ...

    def anything(page: int, **rest: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"The label names \{pge\}.*Did you mean 'page'"):
        cue.task("read", label="{pge}")(read)
    with pytest.raises(ConfigError, match=r"The label names \{x\}.*It has 'book', 'page'"):
        cue.task("read", label="{x}")(read)
    cue.task("any", label="{x}")(anything)


async def test_a_label_shows_defaults_of_params() -> None:
    cue = Cue()

    @cue.task(label="{page} of {book}")
    def read(page: int, book: str = "Emma") -> None: ...

    work = await cue.get(await read.submit(page=3))
    assert work is not None
    assert work.label == "3 of Emma"
    await cue.close()


async def test_a_label_is_cut_and_shows_what_it_can() -> None:
    cue = Cue()
    cue.task("read", label="{a:03d}|{b:03d}|{{}}|{c}")(lambda work: None)
    work = await cue.get(await cue.submit("read", params={"a": 7, "b": "x", "c": "long\n" * 100}))
    assert work is not None
    assert str(work.label).startswith("007|'x'|{}|long long")
    assert (len(str(work.label)), str(work.label)[-1]) == (200, "…")
    await cue.close()


async def test_what_cannot_be_asked_for_is_refused() -> None:
    cue = program()
    for where, problem in (
        ({"tags": {"run": 1}}, "tags"), ({"group": ""}, "group"), ({"key": ""}, "key"), ({"since": "2h"}, "since"),
        ({"queue": ""}, "queue"), ({"state": "done"}, "state"),
    ):  # fmt: skip
        with pytest.raises(InvalidOption, match=problem):
            await cue.list(**where)
    with pytest.raises(InvalidOption, match="group"):
        cue.group("")
    await cue.close()


async def test_many_units_are_submitted_with_tags_and_groups() -> None:
    async with program() as cue:
        items = [
            {"task": "read", "params": {"page": n}, "group": "g", "tags": {"even": str(n % 2 == 0)}}
            for n in range(9)
        ]
        await cue.submit_many(items)
        counts = await cue.group("g").wait()
        assert counts.total == 9
        assert len(await cue.list(tags={"even": "True"})) == 5


async def test_counts_of_a_group_outlive_the_records_of_its_units() -> None:
    cue = Cue(keep_finished=3)
    cue.task("read")(lambda work: None)
    async with cue:
        await cue.submit_many([{"task": "read", "group": "g"} for _ in range(10)])
        counts = await cue.group("g").wait()
        assert (counts.total, len(await cue.group("g").list())) in {(10, 3), (10, 10)}


async def test_an_error_that_is_not_about_one_unit_ends_a_change_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cue = program()
    await submit_some(cue)

    async def broken(self: Any, item: Any) -> Any:
        raise RuncueError("no disk")

    monkeypatch.setattr("runcue.engine.engine.Engine.request", broken)
    with pytest.raises(RuncueError, match="no disk"):
        await cue.cancel(group="g")
    monkeypatch.undo()
    await cue.close()


@pytest.mark.memory
async def test_a_group_is_looked_at_from_another_thread() -> None:
    async with program() as cue:
        await submit_some(cue)
        await cue.join()
        group = cue.sync.group("g")

        def ask() -> list[Any]:
            return [
                group.wait().total, group.progress().failed, group.counts()[WorkState.COMPLETED],
                [*group.results().values()], len(group.list("failed")), group.cancel(), group.retry(),
            ]  # fmt: skip

        assert await asyncio.get_running_loop().run_in_executor(None, ask) == [3, 1, 2, [1, 6], 1, 0, 1]
        await cue.join()


async def test_a_unit_that_is_replaced_is_found_by_what_it_came_with_last() -> None:
    cue = program()
    unique = Unique(by=["page"], while_active=True, on_conflict="replace")
    given: list[dict[str, Any]] = [
        {"group": "g", "tags": {"run": "x", "who": "me"}},
        {"group": "h", "tags": {"run": "y"}},
    ]
    ids = {await cue.submit("read", params={"page": 1}, unique=unique, **options) for options in given}
    assert len(ids) == 1
    assert [len(await cue.list(**where)) for where in given] == [0, 1]
    assert len(await cue.list(tags={"run": "x"})) == 0
    assert (await cue.group("h").progress()).pending == 1
    with pytest.raises(GroupNotFound):
        await cue.group("g").progress()
    async with cue:
        assert (await cue.group("h").wait()).completed == 1
    assert len(await cue.list("completed", tags={"run": "y"})) == 1


async def test_the_label_of_an_edited_unit_is_made_anew() -> None:
    cue = program()
    work_id = await cue.submit("read", params={"page": 1})
    await cue.edit(work_id, params={"page": 2})
    work = await cue.get(work_id)
    assert work is not None
    assert work.label == "page 2 of ?"
    await cue.close()
