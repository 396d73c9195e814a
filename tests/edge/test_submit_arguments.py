"""What submit() and submit_many() are given becomes a Spec, or is refused with nothing changed."""

import enum
import inspect
import itertools
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.core.model.record import Spec, Work
from runcue.declare.options import Options
from runcue.declare.registry import SUBMIT_OPTIONS, Registry
from runcue.errors import (
    ConfigError,
    DependencyCycle,
    InvalidOption,
    InvalidParams,
    SubmitError,
    UnknownOption,
    UnknownService,
    UnknownTask,
)
from tests.edge.nonsense import ODDITIES, anything


async def extract(work: Work) -> None: ...


async def upload(work: Work) -> None: ...


class Edge(Registry):
    """A registry with two services and two tasks that numbers its works."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Options.of(**options))
        self.service("api")
        self.service("ssh_1")
        self.service("ssh_two")
        self.task("extract", uses="api", timeout=30)(extract)
        self.task("upload")(upload)
        self._count = itertools.count(1)

    def make_id(self) -> str:
        return f"made-{next(self._count)}"

    def submit(self, *task: Any, **given: Any) -> Spec:
        return self.spec(*task, make_id=self.make_id, **given)

    def submit_many(self, items: Any) -> list[Spec]:
        return self.specs(items, self.make_id)


# --- The task -------------------------------------------------------------------------------------


def test_a_task_alone_is_enough() -> None:
    assert Edge().submit("upload") == Spec("made-1", "upload", b"{}", ())
    assert Edge().submit("extract") == Spec("made-1", "extract", b"{}", ("api",), timeout=30.0)


def test_everything_given_is_kept_exactly() -> None:
    spec = Edge().submit(
        "extract",
        params={"page": 1},
        target=Path("a") / "b",
        queue="night",
        depends_on=["x", "y"],
        timeout="5m",
        dependency_timeout=timedelta(hours=1),
        idempotency_key="k",
        on_failed="return",
        id="mine",
        priority=2,
        delay="90s",
    )
    assert spec == Spec("mine", "extract", b'{"page":1}', ("api",), "night", str(Path("a") / "b"), ("x", "y"),
                        2.0, None, 90.0, 300.0, 3600.0, "k", "return", is_named=True)  # fmt: skip


class Name(enum.StrEnum):
    EXTRACT = "extract"


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("extract", {}),
        (extract, {}),
        (Name.EXTRACT, {}),
        (None, {"task_type": "extract"}),
        (None, {"task_type": extract}),
        ("extract", {"task_type": "extract"}),
        (extract, {"task_type": "extract"}),
    ],
)
def test_the_task_may_be_named_in_any_way(task: Any, given: dict[str, Any]) -> None:
    assert Edge().submit(task, **given).task == "extract"


def test_task_and_task_type_must_agree() -> None:
    with pytest.raises(
        ConfigError, match=r"task='extract' and task_type='upload' mean the same thing and differ"
    ):
        Edge().submit("extract", task_type=upload)


def test_a_submission_without_a_task_is_refused() -> None:
    with pytest.raises(SubmitError, match=r"submit\(\) needs a task"):
        Edge().submit(params={})


def test_an_unknown_task_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownTask, match=r"^Unknown task type: 'extrct'. .* Did you mean 'extract'\?"):
        Edge().submit("extrct")
    with pytest.raises(UnknownTask, match=r"^Unknown task type: 'test_a"):
        Edge().submit(test_a_task_alone_is_enough)


def test_an_unknown_argument_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownOption, match=r"submit\(\) has no option 'param'. Did you mean 'params'\?"):
        Edge().submit("extract", param={})


def test_a_call_of_a_handler_is_refused_and_ended() -> None:
    call = extract(Work("a", "extract"))
    with pytest.raises(SubmitError) as caught:
        Edge().submit(call)
    assert str(caught.value) == (
        "The task is a call of 'extract'. "
        "Give the function itself, and its arguments as params: submit(extract, params={…})."
    )
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED


# --- Services picked for each work ----------------------------------------------------------------


def test_services_are_checked_by_the_first_submission() -> None:
    edge = Edge()
    edge.task("late", services=["later"])(extract)
    with pytest.raises(UnknownService, match=r"^Unknown service: 'later'"):
        edge.submit("late")
    edge.service("later")
    assert edge.submit("late").services == ("later",)
    assert edge.get_task("late").is_checked


@pytest.mark.parametrize(("host", "service"), [("two", "ssh_two"), (1, "ssh_1"), ("1", "ssh_1")])
def test_a_place_is_filled_from_params(host: object, service: str) -> None:
    edge = Edge()
    edge.task("ssh", uses="ssh_{host}")(extract)
    assert edge.submit("ssh", params={"host": host}).services == (service,)
    assert edge.get_task("ssh").services == ()


def test_fixed_names_and_places_go_together() -> None:
    edge = Edge()
    edge.task("ssh", uses=["api", "ssh_{host}"])(extract)
    assert edge.submit("ssh", params={"host": 1}).services == ("api", "ssh_1")


@pytest.mark.parametrize("params", [None, {}, {"host": None}, {"host": True}, {"host": 1.5}, {"host": ["1"]}])
def test_a_place_without_its_param_is_refused(params: Any) -> None:
    edge = Edge()
    edge.task("ssh", uses="ssh_{host}")(extract)
    with pytest.raises(SubmitError, match=r"^Task 'ssh' chooses its service by params\['host'\], which is "):
        edge.submit("ssh", params=params)


@pytest.mark.parametrize("host", ["3", "", "{host}", "../1", "\0", "x" * 100_000])
def test_a_picked_service_must_exist(host: str) -> None:
    edge = Edge()
    edge.task("ssh", uses="ssh_{host}")(extract)
    with pytest.raises(
        SubmitError, match=r"^Unknown service: 'ssh_.*The uses= of task 'ssh' chose it"
    ) as info:
        edge.submit("ssh", params={"host": host})
    assert not isinstance(info.value, ConfigError)
    assert len(str(info.value)) < 300


def test_a_function_picks_by_all_that_was_submitted() -> None:
    edge = Edge()
    seen: list[Work] = []

    def pick(work: Work) -> list[str]:
        seen.append(work)
        work.params["page"] = 99
        return ["ssh_1", "api", "ssh_1"]

    edge.task("t", uses=pick)(extract)
    spec = edge.submit(
        "t", params={"page": 1}, target="x", queue="q", depends_on="d", id="i", priority=3, run_at=5
    )
    assert spec.services == ("ssh_1", "api")
    assert spec.params == b'{"page":1}'
    assert seen == [
        Work(
            id="i",
            task="t",
            params={"page": 99},
            target="x",
            queue="q",
            depends_on=("d",),
            priority=3,
            run_at=5,
        )
    ]


def test_a_function_picks_before_an_id_is_made() -> None:
    edge = Edge()
    seen: list[str] = []

    def pick(work: Work) -> str:
        seen.append(work.id)
        return work.params.get("service", "api")  # type: ignore[no-any-return]

    edge.task("t", uses=pick)(extract)
    with pytest.raises(SubmitError, match=r"^Unknown service: 'nope'"):
        edge.submit("t", params={"service": "nope"})
    assert edge.submit("t").id == "made-1"
    assert edge.submit("t", id="mine").id == "mine"
    assert seen == ["", "", "mine"]


@pytest.mark.parametrize("answer", [None, 5, b"api", {"api"}, ["api", None], object()])
def test_a_picker_that_returns_nonsense_is_named(answer: Any) -> None:
    edge = Edge()
    edge.task("t", uses=lambda work: answer)(extract)
    with pytest.raises(SubmitError, match=r"^The uses= of task 't' returned .*, not a service name"):
        edge.submit("t")


def test_a_picker_that_raises_is_named_with_its_error() -> None:
    edge = Edge()
    edge.task("t", uses=lambda work: work.params["host"])(extract)
    with pytest.raises(SubmitError, match=r"^The uses= of task 't' raised KeyError\('host'\)") as info:
        edge.submit("t")
    assert isinstance(info.value.__cause__, KeyError)


def test_a_picker_may_pick_nothing() -> None:
    edge = Edge()
    edge.task("t", uses=lambda work: [])(extract)
    assert edge.submit("t").services == ()


# --- Dependencies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, ()),
        ([], ()),
        ("one", ("one",)),
        (["b", "a", "b"], ("b", "a")),
        (("b", "a"), ("b", "a")),
        ({"b", "a", "c"}, ("a", "b", "c")),
        ({"b": 1, "a": 2}.keys(), ("b", "a")),
        ((name for name in "ab"), ("a", "b")),
    ],
)
def test_dependencies_are_ids_in_order_without_repetition(given: Any, kept: tuple[str, ...]) -> None:
    assert Edge().submit("extract", depends_on=given).depends_on == kept


@pytest.mark.parametrize(
    "given", [5, b"ab", {"a": 1}, [5], [None], [""], ["x" * 129], [["a"]], "a\nb", [b"a"]]
)
def test_dependencies_of_another_kind_are_refused(given: Any) -> None:
    with pytest.raises(SubmitError, match=r"^Invalid depends_on: "):
        Edge().submit("extract", depends_on=given)


def test_a_hundred_thousand_dependencies_are_the_most() -> None:
    ids = [f"work-{number}" for number in range(100_000)]
    assert len(Edge().submit("extract", depends_on=ids).depends_on) == 100_000
    with pytest.raises(SubmitError, match=r"^Invalid depends_on: more than 100,000 ids"):
        Edge().submit("extract", depends_on=itertools.chain(ids, itertools.cycle(["more"])))


def test_work_cannot_wait_for_itself() -> None:
    with pytest.raises(DependencyCycle, match=r"'a' → 'a'") as info:
        Edge().submit("extract", id="a", depends_on=["b", "a"])
    assert info.value.cycle == ("a", "a")


# --- The other fields -----------------------------------------------------------------------------


def test_a_timeout_comes_from_the_submission_the_task_or_the_cue() -> None:
    edge = Edge(default_timeout=60)
    assert edge.submit("extract", timeout=5).timeout == 5.0
    assert edge.submit("extract").timeout == 30.0
    assert edge.submit("upload").timeout == 60.0
    assert Edge().submit("upload").timeout is None


def test_run_at_is_a_moment_and_delay_a_duration() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert Edge().submit("extract", run_at=noon).run_at == noon.timestamp()
    assert Edge().submit("extract", run_at=5).run_at == 5.0
    assert Edge().submit("extract", delay=0).delay == 0.0
    with pytest.raises(SubmitError, match=r"run_at and delay are both given"):
        Edge().submit("extract", run_at=noon, delay=5)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("run_at", math.nan),
        ("run_at", -1),
        ("run_at", 1e12),
        ("run_at", "tomorrow"),
        ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001 (without a zone on purpose)
        ("delay", -1),
        ("delay", math.inf),
        ("delay", 1e10),
        ("timeout", 0),
        ("timeout", "x"),
        ("dependency_timeout", -1),
        ("priority", math.nan),
        ("priority", math.inf),
        ("priority", True),
        ("priority", "5"),
        ("priority", 1_000_001),
        ("priority", -1_000_001),
        ("on_failed", "retry"),
        ("on_failed", None),
        ("queue", ""),
        ("queue", None),
        ("queue", "a\0b"),
        ("target", 5),
        ("target", b"x"),
        ("target", "\ud800"),
        ("target", "x" * 300_000),
        ("id", ""),
        ("id", 5),
        ("id", "x" * 129),
        ("idempotency_key", ""),
        ("idempotency_key", "x" * 513),
        ("idempotency_key", "a\0b"),
        ("idempotency_key", 5),
    ],
)
def test_a_bad_value_is_refused_with_its_field(field: str, given: Any) -> None:
    with pytest.raises((InvalidOption, SubmitError), match=rf"^Invalid {field}( name)?: "):
        Edge().submit("extract", **{field: given})


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("priority", 1_000_000),
        ("priority", -0.5),
        ("dependency_timeout", 0),
        ("on_failed", "resubmit"),
        ("on_failed", "reject"),
        ("queue", "default"),
        ("target", ""),
        ("target", "line\nbreak"),
        ("idempotency_key", "e\u0301"),
        ("id", "ünï"),
    ],
)
def test_the_edges_of_what_is_allowed_are_kept_as_they_are(field: str, given: Any) -> None:
    assert getattr(Edge().submit("extract", **{field: given}), field) == given


def test_only_a_given_id_makes_work_named() -> None:
    assert Edge().submit("extract", id="a").is_named
    assert not Edge().submit("extract").is_named


@pytest.mark.parametrize(
    "params", [5, "x", [1], {"a": math.nan}, {"a": 2**70}, {"a": b"x"}, {1: 2}, {"a": "\ud800"}]
)
def test_params_that_are_no_json_object_are_refused(params: Any) -> None:
    with pytest.raises(InvalidParams, match=r"^params"):
        Edge().submit("extract", params=params)


def test_params_are_limited_by_the_option() -> None:
    Edge(max_params=10).submit("extract", params={"a": 12})
    with pytest.raises(InvalidParams, match=r"more than max_params=10"):
        Edge(max_params=10).submit("extract", params={"a": 123456789})


def test_a_refused_submission_takes_no_id() -> None:
    edge = Edge()
    with pytest.raises(InvalidParams):
        edge.submit("extract", params=5)
    assert edge.submit("extract").id == "made-1"


@pytest.mark.parametrize("field", SUBMIT_OPTIONS)
def test_each_oddity_is_refused_or_understood_in_each_field(field: str) -> None:
    edge = Edge()
    edge.task("picks", uses=lambda work: work.params.get("x", "api"))(print)
    for value in ODDITIES:
        for task in ("extract", "picks"):
            try:
                assert isinstance(edge.submit(**{"task": task, field: value}), Spec)
            except (ConfigError, SubmitError):
                pass


@given(st.dictionaries(st.sampled_from([*SUBMIT_OPTIONS, "parms"]), anything, max_size=3))
def test_nonsense_in_any_field_is_refused_and_changes_nothing(given: dict[str, Any]) -> None:
    edge = Edge()
    before = dict(edge.tasks), dict(edge.services), dict(edge.rules)
    try:
        spec = edge.submit(**{"task": "extract", **given})
    except (ConfigError, SubmitError) as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
        assert len(str(error)) < 500  # noqa: PT017
    else:
        assert isinstance(spec, Spec)
    assert (edge.tasks, edge.services, edge.rules) == before


# --- Many at once ---------------------------------------------------------------------------------


def test_many_are_checked_like_one_and_kept_in_order() -> None:
    specs = Edge().submit_many(
        [
            {"task": "extract", "params": {"page": 1}, "id": "a"},
            {"task_type": "upload", "depends_on": ["a"]},
            {"task": upload},
        ]
    )
    assert [(spec.id, spec.task, spec.depends_on) for spec in specs] == [
        ("a", "extract", ()),
        ("made-1", "upload", ("a",)),
        ("made-2", "upload", ()),
    ]


def test_many_may_come_from_any_iterable() -> None:
    assert len(Edge().submit_many({"task": "upload"} for _ in range(3))) == 3
    assert Edge().submit_many([]) == []


@pytest.mark.parametrize(
    ("item", "error", "said"),
    [
        ({"task": "extrct"}, UnknownTask, "Unknown task type: 'extrct'"),
        ({"task": "extract", "parms": {}}, UnknownOption, r"submit\(\) has no option 'parms'"),
        ({"task": "extract", "make_id": len}, UnknownOption, r"submit\(\) has no option 'make_id'"),
        ({"task": "extract", 5: 1}, UnknownOption, r"submit\(\) has no option 5"),
        ({"task": "extract", "params": {"a": {1}}}, InvalidParams, "params.a is of type set"),
        ({"task": "extract", "priority": "x"}, InvalidOption, "Invalid priority: 'x'"),
        ({"task": "extract", "id": "a", "depends_on": "a"}, DependencyCycle, "Dependency cycle: 'a'"),
        ({}, SubmitError, r"submit\(\) needs a task"),
        (("extract", {}), SubmitError, "expected a dict of submit's arguments, such as "),
        ("extract", SubmitError, "expected a dict"),
        (None, SubmitError, "expected a dict"),
    ],
)
def test_an_error_among_many_keeps_its_kind_and_names_its_place(item: Any, error: type, said: str) -> None:
    with pytest.raises(error, match=rf"^items\[2\]: {said}"):
        Edge().submit_many([{"task": "upload"}, {"task": "upload"}, item])


@pytest.mark.parametrize("items", [None, 5, "extract", b"x", {"task": "extract"}, extract])
def test_many_are_a_list_of_dicts(items: Any) -> None:
    with pytest.raises(SubmitError, match=r"^submit_many takes a list of dicts of submit's arguments, not "):
        Edge().submit_many(items)


@given(
    st.lists(
        st.one_of(anything, st.dictionaries(st.sampled_from(SUBMIT_OPTIONS), anything, max_size=2)),
        max_size=3,
    )
)
def test_nonsense_among_many_is_refused(items: list[Any]) -> None:
    try:
        assert len(Edge().submit_many(items)) == len(items)
    except (ConfigError, SubmitError) as error:
        assert str(error).startswith("items[")  # noqa: PT017 (either outcome is right)
