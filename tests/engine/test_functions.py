"""Tasks as functions: typed params and results, handles, units as values, results handed on, resources."""

import asyncio
import copy
import dataclasses
import enum
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import pydantic
import pytest

import runcue
from runcue import Cue, Work
from runcue.testing import settle


class Style(enum.Enum):
    SHORT = "short"
    LONG = "long"


@dataclasses.dataclass
class Page:
    number: int
    file: Path


class Model(pydantic.BaseModel):
    name: str
    at: datetime


AT = datetime(2026, 1, 2, 3, tzinfo=UTC)


# --- Submitting -----------------------------------------------------------------------------------


async def test_a_task_is_submitted_as_its_function_is_called() -> None:
    cue = Cue()

    @cue.task
    async def summarize(page: int, style: Style = Style.SHORT) -> str:
        return f"{page} {style}"

    async with cue:
        unit = await summarize.submit(page=3)
        assert await unit.result() == "3 Style.SHORT"
        assert await (await summarize.submit(4, Style.LONG)).result() == "4 Style.LONG"
        assert (await cue.wait(unit)).params == {"page": 3}
        assert await summarize(5) == "5 Style.SHORT"
        assert cue.get_task("summarize").handler is summarize


async def test_a_handle_is_the_id_and_more() -> None:
    cue = Cue()

    @cue.task
    async def work_on(page: int) -> int:
        return page

    unit = await work_on.submit(page=1)
    assert isinstance(unit, str)
    assert hash(unit) == hash(str(unit))
    assert not unit.is_duplicate
    assert (await unit.explain()).reason == "not_started"
    cue.start()
    assert (await unit.wait()).state == "completed"
    found = await unit.get()
    assert found is not None
    assert found.result == 1
    assert not await unit.cancel()
    for twin in (copy.copy(unit), copy.deepcopy(unit), pickle.loads(pickle.dumps(unit))):
        assert twin == unit
        assert type(twin) is str
    await work_on.options(priority=2, depends_on=[unit]).submit(page=2)
    await work_on.options(id="named").submit(2)
    again = await cue.submit(work_on, params={"page": 3}, idempotency_key="k")
    once_more = await cue.submit("work_on", params={"page": 3}, idempotency_key="k")
    assert (again, True) == (once_more, once_more.is_duplicate)
    await cue.close()


async def test_options_hold_for_all_that_is_submitted_with_them() -> None:
    cue = Cue()

    @cue.task
    async def call(page: int) -> None: ...

    urgent = call.options(priority=5).options(queue="night")
    units = [await urgent.submit(page=1), *await urgent.submit_many([{"page": 2}, {"page": 3}])]
    for unit in units:
        work = await unit.get()
        assert work is not None
        assert (work.priority, work.queue) == (5, "night")
    await cue.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"params": {"page": 1}}, r"'params'\. Give it to submit\(\), for each unit\."),
        ({"task": "other"}, r"'task'\. It takes '"),
        ({"countdown": 3}, r"'countdown'\. Say delay= for seconds from now"),
    ],
)
def test_an_option_that_there_is_not_is_refused_where_it_is_given(
    options: dict[str, Any], problem: str
) -> None:
    cue = Cue()

    @cue.task
    async def call(page: int) -> None: ...

    with pytest.raises(runcue.UnknownOption, match=rf"^options\(\) has no option {problem}"):
        call.options(**options)


async def test_units_as_values_make_a_graph_in_one_go() -> None:
    cue = Cue()

    @cue.task
    async def read(page: int) -> Page:
        return Page(page, Path("a"))

    @cue.task
    def join(pages: list[Page], first: Page, by_name: dict[str, Page]) -> tuple[int, ...]:
        return (*(page.number for page in pages), first.number, by_name["x"].number)

    async with cue:
        parts = [read.unit(page=n) for n in (1, 2)]
        a, b = map(runcue.output, parts)
        units = await cue.submit_many([*parts, join.unit(pages=[a, b], first=a, by_name={"x": b})])
        assert units[:2] == [part.id for part in parts]
        assert await units[2].result() == (1, 2, 1, 2)
        work = await cue.get(units[2])
        assert work is not None
        assert set(work.depends_on) == set(units[:2])
        one = await cue.submit(read.options(priority=1).unit(7))
        assert (await one.result()).number == 7
        assert repr(parts[0]) == "<unit read(page=1)>"


async def test_a_handler_of_work_alone_is_called_as_ever() -> None:
    cue = Cue()

    @cue.task
    async def old(work: Work) -> Any:
        return work.params

    @cue.task("wrapped")
    def any_arguments(*args: Any) -> Any:
        return args[0].params

    async with cue:
        assert await (await old.submit(page=1, anything=[2])).result() == {"page": 1, "anything": [2]}
        assert await (await cue.submit("wrapped", params={"a": 1})).result() == {"a": 1}
        with pytest.raises(
            runcue.InvalidParams, match="params are given by name: task 'old' is called with its unit"
        ):
            await old.submit(3)


async def test_the_unit_is_handed_in_and_the_rest_taken() -> None:
    cue = Cue()
    seen: list[Any] = []

    @cue.task
    async def both(work: runcue.RunningWork, page: int, **rest: Any) -> None:
        seen.append((work.attempt, page, rest, runcue.current().id == work.id))

    @cue.task
    def by_type(page: int, /, *, unit: Work) -> None:
        seen.append((unit.attempt, page, runcue.current().params))

    @cue.task
    async def nothing() -> None:
        seen.append(await asyncio.create_task(name_of_current()))

    async def name_of_current() -> str:
        return runcue.current().task

    async with cue:
        await both.submit(page=1, more="x", list=[1])
        await cue.join()
        await cue.submit(by_type, params={"page": 2})
        await cue.join()
        await nothing.submit()
        await cue.join()
    assert seen == [(1, 1, {"more": "x", "list": [1]}, True), (1, 2, {"page": 2}), "nothing"]
    with pytest.raises(runcue.RuncueError, match="outside a handler"):
        runcue.current()


async def test_what_cannot_carry_attributes_is_submitted_by_the_cue() -> None:
    cue = Cue()

    class Reader:
        def read(self, page: int) -> int:
            return page + 1

    reader = Reader()
    cue.task("read")(reader.read)
    async with cue:
        assert await (await cue.submit(reader.read, params={"page": 1})).result() == 2


async def test_items_of_a_map_go_into_the_first_param() -> None:
    cue = Cue()

    @cue.task
    async def double(page: int) -> int:
        return 2 * page

    async with cue:
        assert {work.result async for work in double.map([1, 2, {"page": 3}])} == {2, 4, 6}


# --- Wrong params ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (
            {"pge": 3},
            r"^params\.pge is unknown: task 'call' takes page, style, file, more\. Did you mean 'page'\?",
        ),
        ({}, r"^params\.page is missing\. Task 'call' declares page: int\."),
        ({"page": "3"}, r"^params\.page must be int, not str\. Task 'call' declares page: int\."),
        ({"page": True}, r"^params\.page must be int, not bool\."),
        ({"page": None}, r"^params\.page must be int, not None\."),
        ({"page": 1, "style": "wide"}, r"^params\.style must be one of 'short', 'long', not 'wide'\."),
        ({"page": 1, "file": {"number": "x", "file": ""}}, r"^params\.file\.number must be int, not str\."),
        (
            {"page": 1, "file": object()},
            r"^params\.file cannot be encoded as JSON \(object has no JSON form\)\.",
        ),
        (
            {"page": 1, "more": {3}},
            r"^params\.more is of type set, which JSON cannot hold\. Pass a sorted list\.",
        ),
        (
            {"page": 1, "more": ["a" * 3000]},
            r"^params take 3,\d+ bytes as JSON, more than max_params=2,000\.",
        ),
        ([1], r"^params must be a dict, not list\."),
    ],
)
async def test_wrong_params_are_refused_by_name_and_nothing_is_queued(params: Any, problem: str) -> None:
    cue = Cue(max_params=2000)

    @cue.task
    async def call(
        page: int, style: Style = Style.SHORT, file: Page | None = None, more: Any = None
    ) -> None: ...

    with pytest.raises(runcue.InvalidParams, match=problem):
        await cue.submit(call, params=params)
    with pytest.raises(runcue.InvalidParams, match=r"^items\[1\]: " + problem[1:]):
        await cue.submit_many([{"task": "call", "params": {"page": 1}}, {"task": "call", "params": params}])
    with pytest.raises(runcue.InvalidParams, match=r"^items\[1\]: " + problem[1:]):
        await call.submit_many([{"page": 1}, params])
    assert sum((await cue.count()).values()) == 0
    await cue.close()


async def test_params_may_be_a_dataclass_or_a_model() -> None:
    cue = Cue()

    @cue.task
    async def call(number: int, file: Path) -> Path:
        return file / str(number)

    @cue.task
    async def old(work: Work) -> Any:
        return work.params

    async with cue:
        assert await (await cue.submit(call, params=Page(3, Path("a")))).result() == Path("a/3")
        unit = await cue.submit(old, params=Model(name="m", at=AT))
        assert await unit.result() == {"name": "m", "at": "2026-01-02T03:00:00Z"}


async def test_too_many_arguments_are_refused() -> None:
    cue = Cue()

    @cue.task
    async def call(page: int) -> None: ...

    with pytest.raises(runcue.InvalidParams, match="params do not fit: task 'call' takes page"):
        await call.submit(1, 2)  # type: ignore[call-arg]
    with pytest.raises(runcue.InvalidParams, match="params do not fit"):
        await call.submit(1, page=2)  # type: ignore[misc]

    @cue.task
    async def named(page: int, *, size: int = 3) -> None: ...

    with pytest.raises(runcue.InvalidParams, match="params do not fit"):
        await named.submit(1, 2)  # type: ignore[call-arg]


async def test_a_handler_that_meant_its_unit_is_told_how_to_get_it() -> None:
    cue = Cue()

    @cue.task
    async def call(job):  # type: ignore[no-untyped-def]
        ...

    with pytest.raises(runcue.InvalidParams, match="called with its unit calls that parameter `work`"):
        await cue.submit("call")


class Opaque:
    pass


def test_what_has_no_json_form_is_refused_when_it_is_registered() -> None:
    cue = Cue()

    async def call(page: Opaque) -> None: ...
    async def answer(page: int) -> Opaque:
        return Opaque()

    async def local(page: "Missing") -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(
        runcue.ConfigError, match=r"Parameter 'page' of task 'call' cannot be submitted: Opaque has no"
    ):
        cue.task(call)
    with pytest.raises(
        runcue.ConfigError, match="result of task 'answer' cannot be stored: Opaque has no JSON form"
    ):
        cue.task(answer)
    with pytest.raises(
        runcue.ConfigError, match=r"annotations of .*local', the handler of task 'local', cannot be"
    ):
        cue.task(local)


async def test_params_of_an_older_release_fail_their_unit_and_say_so() -> None:
    cue = Cue()

    async def call(page: int) -> None: ...

    cue.task("call", retry=3)(call)
    kept = await cue.submit("call", params={"page": 1})
    unknown = await cue.submit("call", params={"page": 1})

    async def newer(page: str) -> None: ...
    async def newest(other: int = 0) -> None: ...

    newer.__qualname__ = newest.__qualname__ = call.__qualname__ = "call"
    cue.task("call", retry=3)(newer)
    async with cue:
        work = await cue.wait(kept)
        assert (work.state, work.attempt) == ("failed", 1)
        assert work.error == (
            "Permanent: params.page must be str, not int. The unit was submitted for another version of its task; "
            "edit it, or submit it anew."
        )
        assert (await cue.wait(unknown)).state == "failed"
    cue = Cue()
    cue.task("call")(call)
    unknown = await cue.submit("call", params={"page": 1})
    cue.task("call")(newest)
    async with cue:
        assert (await cue.wait(unknown)).error == (
            "Permanent: params.page is unknown: task 'call' takes other. The unit was submitted for another version "
            "of its task; edit it, or submit it anew."
        )


# --- Values ---------------------------------------------------------------------------------------


async def test_values_keep_their_types_in_every_store() -> None:
    cue = Cue()
    seen: list[Any] = []

    @cue.task
    async def call(page: Page, at: datetime, id: UUID, raw: bytes, tags: set[str], pair: tuple[int, str], model: Model
                   ) -> tuple[Page, datetime, UUID, bytes, set[str], tuple[int, str], Model]:  # fmt: skip
        seen.append((page, at, id, raw, tags, pair, model))
        return page, at, id, raw, tags, pair, model

    values = (Page(1, Path("/a")), AT, UUID(int=3), b"\xff", {"a"}, (1, "b"), Model(name="m", at=AT))
    async with cue:
        unit = await call.submit(*values)
        assert await unit.result() == values
        work = await unit.wait()
        assert work.result == values
        assert [one.result for one in await cue.list()] == [values]
        assert [one.result async for one in cue.map(call, [work.params])] == [values]
    assert seen == [values, values]


async def test_a_result_that_cannot_be_encoded_fails_for_good_and_is_shown() -> None:
    cue = Cue()

    @cue.task(retry=3)
    async def call(page: int) -> list[Any]:
        return [page, object()]

    async with cue:
        work = await (await call.submit(page=12345)).wait()
    assert (work.state, work.attempt) == ("failed", 1)
    assert work.error is not None
    assert "object has no JSON form. It was [12345, <object object" in work.error


@pytest.mark.file
async def test_a_model_that_no_annotation_announces_is_stored_as_a_dict() -> None:
    cue = Cue()

    @cue.task
    async def call(work):  # type: ignore[no-untyped-def]
        return [Model(name="m", at=AT), Page(1, Path("a"))]

    @cue.task
    async def annotated(work: Work) -> list[Model]:
        return [Model(name="m", at=AT)]

    async with cue:
        assert await (await cue.submit("call")).result() == [
            {"name": "m", "at": "2026-01-02T03:00:00Z"}, {"number": 1, "file": "a"},
        ]  # fmt: skip
        assert await (await annotated.submit()).result() == [Model(name="m", at=AT)]


async def test_a_stored_result_that_no_longer_fits_says_so() -> None:
    cue = Cue()

    async def call(page: int) -> int:
        return page

    async def newer(page: int) -> Page:
        return Page(page, Path("a"))

    newer.__qualname__ = call.__qualname__ = "call"
    cue.task("call")(call)
    async with cue:
        unit = await cue.submit("call", params={"page": 1})
        assert await unit.result() == 1
        cue.task("call")(newer)
        with pytest.raises(
            runcue.WrongResult, match=rf"result of unit '{unit}' is stored, but it is no Page"
        ):
            await unit.result()
        assert (await unit.wait()).result == 1


async def test_on_complete_gets_the_result_as_annotated() -> None:
    cue = Cue()
    seen: list[Any] = []

    @cue.task
    async def call() -> Page:
        return Page(1, Path("a"))

    cue.on_complete(lambda work, result, duration: seen.append((work.result, result)))
    async with cue:
        await call.submit()
        await cue.join()
    assert seen == [(Page(1, Path("a")),) * 2]


def test_the_schema_of_a_task_is_there_to_be_read() -> None:
    cue = Cue()

    @cue.task
    async def call(
        page: int, style: Style = Style.SHORT, file: Page | None = None, *, unit: Work, **rest: Any
    ) -> None: ...

    @cue.task
    async def old(work: Work) -> None: ...

    schema = cue.get_task("call").schema
    assert schema["title"] == "call"
    assert schema["required"] == ["page"]
    assert schema["additionalProperties"] is True
    assert schema["properties"]["page"] == {"type": "integer"}
    assert schema["properties"]["style"] == {"$ref": "#/$defs/Style", "default": "short"}
    assert set(schema["$defs"]) == {"Style", "Page"}
    assert cue.get_task("old").schema == {"title": "old", "type": "object"}


# --- Results handed on ----------------------------------------------------------------------------


async def test_the_output_of_a_unit_is_put_into_the_params_of_another() -> None:
    cue = Cue()
    seen: list[Any] = []

    @cue.task
    async def make(work: Work) -> Any:
        return {"text": "hello"}

    @cue.task(retry=2)
    def use(work: Work) -> Any:
        seen.append(work.params)
        if len(seen) == 1:
            raise OSError
        return runcue.current().params["nested"]

    async with cue:
        unit = await cue.submit("make")
        params = {
            "text": runcue.output(unit),
            "nested": [{"in": (runcue.output(str(unit)), 1)}],
            "$output": unit,
        }
        after = await cue.submit("use", params=params)
        assert await after.result() == [{"in": [{"text": "hello"}, 1]}]
        stored = await after.get()
    assert (
        seen == [{"text": {"text": "hello"}, "nested": [{"in": [{"text": "hello"}, 1]}], "$output": unit}] * 2
    )
    assert stored is not None
    assert stored.depends_on == (unit,)
    assert stored.params["text"] == {"$output": unit}


async def test_the_output_of_a_skipped_unit_is_none() -> None:
    cue = Cue()
    cue.is_stale(lambda work: work.task != "make")

    @cue.task
    async def make() -> int:
        return 1

    @cue.task
    async def use(number: int | None) -> str:
        return repr(number)

    async with cue:
        unit = await make.submit()
        assert await (await use.submit(number=runcue.output(unit))).result() == "None"


async def test_an_output_of_the_wrong_type_fails_its_consumer() -> None:
    cue = Cue()

    @cue.task
    async def make() -> str:
        return "x"

    @cue.task
    async def use(number: int, other: int) -> None: ...

    async with cue:
        unit = await make.submit()
        with pytest.raises(runcue.InvalidParams, match=r"params\.other must be int"):
            await cue.submit(use, params={"number": runcue.output(unit), "other": "x"})
        with pytest.raises(runcue.WorkFailed, match=r"params\.number must be int, not str"):
            await (await cue.submit(use, params={"number": runcue.output(unit), "other": 1})).result()


async def test_a_unit_cannot_take_its_own_output_or_that_of_one_that_waits_for_it() -> None:
    cue = Cue()

    @cue.task
    async def use(number: Any = None) -> None: ...

    own = use.options(id="a").unit(number=runcue.output("a"))
    with pytest.raises(runcue.DependencyCycle):
        await cue.submit(own)
    one, two = (
        use.options(id="one").unit(runcue.output("two")),
        use.options(id="two").unit(runcue.output("one")),
    )
    with pytest.raises(runcue.DependencyCycle):
        await cue.submit_many([one, two])
    await cue.close()


async def test_an_output_waits_for_a_unit_that_is_submitted_later() -> None:
    cue = Cue()

    @cue.task
    async def make() -> int:
        return 5

    @cue.task
    async def use(number: int) -> int:
        return number + 1

    async with cue:
        after = await use.submit(number=runcue.output("later"))
        await settle()
        await make.options(id="later").submit()
        assert await after.result() == 6


@pytest.mark.memory
async def test_a_result_that_is_still_wanted_is_kept() -> None:
    cue = Cue(keep_finished=0)

    @cue.task
    async def make(page: int) -> int:
        return page

    @cue.task(retry=2)
    async def use(work: runcue.RunningWork, number: int) -> None:
        if work.attempt == 1:
            raise OSError

    async with cue:
        units = await cue.submit_many([a := make.unit(1), use.options(delay=5).unit(number=runcue.output(a))])
        await units[0].wait()
        await asyncio.sleep(4)
        assert await units[0].get() is not None
        await units[1].wait()
        await make.submit(page=2)
        await settle()
        assert [work.task for work in await cue.list()] == []


async def test_many_results_are_read_at_once() -> None:
    cue = Cue()

    @cue.task
    async def call(page: int) -> Page:
        if page == 2:
            raise OSError("no page 2")
        return Page(page, Path("a"))

    async with cue:
        units = await call.submit_many([{"page": n} for n in (1, 2, 3)])
        first, second, third, again = await cue.results([*units, units[0]], errors="return")
        assert (first, third, again) == (Page(1, Path("a")), Page(3, Path("a")), Page(1, Path("a")))
        assert isinstance(second, runcue.WorkFailed)
        with pytest.raises(runcue.WorkFailed, match="no page 2"):
            await cue.results(units)
        assert await cue.results([]) == []
        with pytest.raises(runcue.WorkNotFound):
            await cue.results(["unknown"])


# --- Resources ------------------------------------------------------------------------------------


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


class Repository:
    def __init__(self, database: Database) -> None:
        self.database = database


async def test_a_resource_is_opened_once_handed_in_and_closed_at_the_end() -> None:
    cue = Cue()
    log: list[str] = []

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        log.append("open database")
        await asyncio.sleep(1)
        yield Database("a")
        log.append("close database")

    @cue.resource
    def repository(database: Database) -> Iterator[Repository]:
        log.append(f"open repository of {database.name}")
        yield Repository(database)
        log.append("close repository")

    @cue.task
    async def read(page: int, repository: Repository) -> str:
        return f"{page} from {repository.database.name}"

    @cue.task
    def write(db: Database) -> str:
        return db.name

    async with cue:
        units = await read.submit_many([{"page": n} for n in range(3)])
        assert await cue.results(units) == ["0 from a", "1 from a", "2 from a"]
        assert await (await cue.submit(write)).result() == "a"
        assert log == ["open database", "open repository of a"]
        await cue.stop()
        assert log[2:] == ["close repository", "close database"]
        cue.start()
        assert await (await cue.submit(write)).result() == "a"
    assert log[4:] == ["open database", "close database"]


async def test_whatever_makes_a_resource_is_entered_and_left() -> None:
    cue = Cue()
    log: list[str] = []
    threads: list[bool] = []

    class Client:
        async def __aenter__(self) -> Self:
            log.append("enter client")
            return self

        async def __aexit__(self, *error: object) -> None:
            log.append("leave client")

    class Plain:
        def __enter__(self) -> Self:
            threads.append(threading.current_thread() is threading.main_thread())
            return self

        def __exit__(self, *error: object) -> None:
            threads.append(threading.current_thread() is threading.main_thread())

    class Settings:
        pass

    @cue.resource
    def client() -> Client:
        return Client()

    @cue.resource
    async def settings(client: Client) -> Settings:
        return Settings()

    cue.resource(Plain)

    @cue.resource
    @asynccontextmanager
    async def repository() -> AsyncIterator[Repository]:
        yield Repository(Database("b"))

    @cue.task
    async def call(client: Client, settings: Settings, plain: Plain, repository: Repository) -> str:
        kinds = (type(client), type(settings), type(plain))
        assert kinds == (Client, Settings, Plain)
        return repository.database.name

    async with cue:
        assert await (await cue.submit(call)).result() == "b"
    assert log == ["enter client", "leave client"]
    assert threads == [False, False]


async def test_a_resource_that_does_not_open_fails_the_attempt_and_is_tried_again() -> None:
    cue = Cue()
    tries: list[int] = []

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("no route to db-1")
        yield Database("a")
        raise OSError("the connection was lost")

    @cue.task
    async def read(db: Database) -> str:
        return db.name

    async with cue:
        with pytest.raises(
            runcue.WorkFailed, match="resource database could not be opened: ConnectionError: no route"
        ):
            await (await cue.submit(read)).result()
        retried = await cue.submit(read, retry=2)
        assert await retried.result() == "a"
    assert len(tries) == 3


async def test_a_resource_that_stops_while_it_opens_does_not_hold_up_the_end() -> None:
    cue = Cue()

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        await asyncio.Event().wait()
        yield Database("never")

    @cue.task
    async def read(db: Database) -> None: ...

    cue.start()
    unit = await cue.submit(read)
    await settle()
    await cue.stop(1)
    work = await unit.get()
    assert work is not None
    assert work.state in {"cancelled", "pending"}
    await cue.close()


async def test_a_resource_that_raises_what_no_future_accepts_fails_the_attempt() -> None:
    cue = Cue()

    @cue.resource
    async def database() -> Database:
        raise StopAsyncIteration

    @cue.resource
    async def repository() -> Repository:
        raise SystemExit(3)

    @cue.task
    async def read(db: Database) -> None: ...
    @cue.task
    async def write(db: Repository) -> None: ...

    async with cue:
        for task in (read, write):
            with pytest.raises(runcue.WorkFailed, match="could not be opened"):
                await (await cue.submit(task)).result()


def test_a_resource_that_cannot_be_handed_in_is_refused() -> None:
    cue = Cue()

    async def unsaid(): ...  # type: ignore[no-untyped-def]
    def needs_more(url: str) -> Database:
        return Database(url)

    with pytest.raises(runcue.ConfigError, match="unsaid' has to say which type it makes"):
        cue.resource(unsaid)
    with pytest.raises(
        runcue.ConfigError, match="needs 'url', which is no resource that was declared before"
    ):
        cue.resource(needs_more)
    with pytest.raises(runcue.ConfigError, match=r"@cue\.resource takes a function that makes the resource"):
        cue.resource("database")  # type: ignore[type-var]

    @cue.resource
    def database() -> Database:
        return Database("a")

    with pytest.raises(
        runcue.ConfigError, match="Task 'call' cannot be given a resource: with executor='subprocess'"
    ):

        @cue.task("call", executor="subprocess")
        def call(db: Database) -> list[str]:
            return [db.name]
