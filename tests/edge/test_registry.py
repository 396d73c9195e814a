"""Services, tasks and callbacks: declared in every spelling, checked before anything can go wrong."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runcue.models
from runcue import Cue
from runcue.core.limits.service import Limits
from runcue.core.model.parse import Rate
from runcue.core.model.record import PriorityContext, Work, WorkState
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.gates import Questions
from runcue.declare.arguments import rows, work_state
from runcue.declare.callbacks import dependency_check_db
from runcue.declare.options import Options
from runcue.declare.registry import CALLBACKS, Registry
from runcue.errors import ConfigError, InvalidOption, InvalidRate, UnknownOption, UnknownService, UnknownTask
from runcue.ports import CommandOptions
from tests.edge.nonsense import ODDITIES, anything


def registry(**options: Any) -> Registry:
    made = Registry(Options.of(**options))
    made.service("api", rate="60/min", concurrent=5)
    made.service("s3")
    return made


async def handler(work: Work) -> None: ...


def plain(work: Work) -> None: ...


def snapshot(known: Registry) -> tuple[Any, ...]:
    return (
        dict(known.tasks),
        dict(known.services),
        dict(known.rules),
        dict(known.callbacks),
        known.failure_wants_retry,
    )


# --- Services -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        {"rate": "60/min"},
        {"rate": (60, 60)},
        {"rate": (60, "1m")},
        {"rate": ["60/min"]},
        {"rate_limit": (60, 60)},
        {"rate_limit": 60, "rate_window": 60},
        {"rate_limit": 60, "rate_window": "1m"},
        {"rate_limit": "60/min"},
        {"rate_limit": (60, 60), "rate_window": 60},
        {"rate": "60/min", "rate_limit": (60, 60)},
        {"rate": "60/min", "rate_limit": 60, "rate_window": 60},
    ],
)
def test_every_spelling_of_a_rate_means_the_same(spelling: dict[str, Any]) -> None:
    assert registry().service("openai", **spelling) == Limits("openai", rates=(Rate(60, 60.0),))


@pytest.mark.parametrize(
    "spelling", [{"concurrent": 5}, {"max_concurrent": 5}, {"concurrent": 5, "max_concurrent": 5}]
)
def test_both_spellings_of_a_cap_mean_the_same(spelling: dict[str, Any]) -> None:
    assert registry().service("openai", **spelling) == Limits("openai", concurrent=5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": "60/min", "rate_limit": (30, 60)}, "rate='60/min' and rate_limit='30/min'"),
        ({"concurrent": 5, "max_concurrent": 6}, "concurrent=5 and max_concurrent=6"),
        ({"rate_limit": (60, 60), "rate_window": 30}, r"rate_limit=\(60, 60\) and rate_window=30"),
    ],
)
def test_the_same_thing_said_twice_and_differently_is_an_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{said} mean the same thing and differ. Give one.$"):
        registry().service("openai", **given)


def test_half_of_an_older_rate_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"rate_limit=60 needs a rate_window"):
        registry().service("openai", rate_limit=60)
    with pytest.raises(ConfigError, match=r"rate_window=60 needs a rate_limit"):
        registry().service("openai", rate_window=60)


def test_several_rates_hold_at_once_and_a_circuit_is_declared_with_them() -> None:
    limits = registry().service("openai", rate=["10/s", "100/min"], circuit_threshold=3, circuit_timeout="2m")
    assert limits == Limits("openai", None, (Rate(10, 1.0), Rate(100, 60.0)), 3, 120.0)


def test_a_service_declared_again_is_declared_anew() -> None:
    known = registry()
    known.service("api", concurrent=2)
    assert known.services["api"] == Limits("api", concurrent=2)


@pytest.mark.parametrize(
    "rate",
    [
        "0/min",
        "-1/s",
        "",
        "60",
        "1e10/sec",
        "60/fortnight",
        "60 / min",
        "６０/min",
        "x" * 10**6,
        (60, 0),
        (float("nan"), 1),
    ],
)
def test_a_bad_rate_is_refused_quoting_it(rate: object) -> None:
    with pytest.raises(InvalidRate, match=r"^(Invalid rate format|Unknown rate unit): ") as info:
        registry().service("openai", rate=rate)
    assert len(str(info.value)) < 300


@pytest.mark.parametrize("option", ["concurrent", "max_concurrent", "circuit_threshold"])
@pytest.mark.parametrize("given", [0, -1, True, "5", 1.5, 10**12])
def test_a_bad_cap_is_refused_quoting_it(option: str, given: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"^Invalid {option}: {given!r}. "):
        registry().service("openai", **{option: given})


@pytest.mark.parametrize("given", [0, -1, "soon", None])
def test_a_circuit_needs_a_time_to_stay_open(given: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid circuit_timeout: "):
        registry().service("openai", circuit_threshold=3, circuit_timeout=given)


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "\0", None, 5, "#threads", "ssh_{host}", "ssh_*"])
def test_a_service_name_that_cannot_be_used_is_refused(name: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid service name: "):
        registry().service(name)


@pytest.mark.parametrize("name", ["'; DROP TABLE services", "Ünïcode", "a b", "x" * 128])
def test_an_odd_but_printable_service_name_is_taken_as_it_is(name: str) -> None:
    assert registry().service(name).name == name


def test_a_mistyped_limit_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(
        UnknownOption, match=r"service.. has no option 'max_concurent'. Did you mean 'max_concurrent'"
    ):
        registry().service("openai", max_concurent=5)


SERVICE_FIELDS = [
    "name",
    "rate",
    "concurrent",
    "circuit_threshold",
    "circuit_timeout",
    "rate_limit",
    "rate_window",
    "max_concurrent",
    "reight",
]


@pytest.mark.parametrize("field", SERVICE_FIELDS)
def test_each_oddity_about_a_service_is_refused_or_understood(field: str) -> None:
    for value in ODDITIES:
        known = registry()
        try:
            known.service(**{"name": "new", field: value})
        except ConfigError:
            assert set(known.services) == {"api", "s3"}


@given(st.dictionaries(st.sampled_from(SERVICE_FIELDS), anything, min_size=1, max_size=3))
def test_nonsense_about_a_service_is_refused_and_changes_nothing(given: dict[str, Any]) -> None:
    known = registry()
    before = snapshot(known)
    try:
        known.service(**{"name": "new", **given})
    except ConfigError:
        assert snapshot(known) == before
    else:
        assert len(known.services) == 3 or given.get("name") in {"api", "s3"}


# --- Tasks ----------------------------------------------------------------------------------------


def test_a_task_is_registered_by_name_and_its_handler_returned_unchanged() -> None:
    known = registry()
    assert known.task("extract", uses="api", retry=3, timeout="1m")(handler) is handler
    task = known.get_task("extract")
    assert (task.name, task.service, task.services, task.executor) == ("extract", "api", ("api",), "async")
    assert (task.handler, task.retry, task.timeout) == (handler, Retry(max_attempts=3), 60.0)


def test_a_task_without_a_name_has_its_handlers() -> None:
    known = registry()

    @known.task
    async def extract(work: Work) -> None: ...

    @known.task(uses="api")
    async def upload(work: Work) -> None: ...

    known.task(functools.partial(plain))
    assert list(known.tasks) == ["extract", "upload", "plain"]
    assert known.get_task("extract").handler is extract
    assert known.get_task(upload).service == "api"


@pytest.mark.parametrize(
    ("given", "count"), [({"retry": 3}, 3), ({"retry": 1}, 1), ({"retry": 0}, 1), ({}, 1)]
)
def test_the_retry_of_a_task_is_equal_to_the_number_of_its_attempts(
    given: dict[str, Any], count: int
) -> None:
    known = registry()
    known.task("t", **given)(handler)
    assert known.get_task("t").retry == count


def test_a_name_may_be_given_by_keyword() -> None:
    cue = runcue.Cue()

    @cue.task(name="x", timeout=5)
    async def other(work: Work) -> None: ...

    cue.task(name="y")(plain)
    assert (cue.get_task("x").handler, cue.get_task("y").handler) == (other, plain)
    with pytest.raises(InvalidOption, match=r"^Invalid task name: "):
        cue.task(name="")


def test_a_handler_without_a_name_needs_one() -> None:
    known = registry()
    nameless: list[Callable[..., Any]] = [lambda work: None, Callable_()]
    for function in nameless:
        with pytest.raises(ConfigError, match=r"has no name of its own. Give the task one"):
            known.task(function)
        known.task(f"named_{len(known.tasks)}")(function)


class Callable_:  # noqa: N801 (short-lived, and Callable is taken)
    def __call__(self, work: Work) -> None: ...


class AsyncCallable:
    async def __call__(self, work: Work) -> None: ...

    async def method(self, work: Work) -> None: ...


@pytest.mark.parametrize(
    ("function", "executor", "found"),
    [
        (handler, None, "async"),
        (handler, "async", "async"),
        (functools.partial(handler), None, "async"),
        (functools.partial(functools.partial(AsyncCallable())), None, "async"),
        (AsyncCallable(), None, "async"),
        (AsyncCallable().method, None, "async"),
        (plain, None, "thread"),
        (plain, "thread", "thread"),
        (plain, "async", "thread"),
        (Callable_(), None, "thread"),
        (functools.partial(plain), "async", "thread"),
        (print, None, "thread"),
        (int, None, "thread"),
    ],
)
def test_the_kind_of_function_decides_where_it_runs(function: Any, executor: str | None, found: str) -> None:
    known = registry()
    known.task("t", executor=executor)(function)
    assert known.get_task("t").executor == found
    assert known.rules["t"] == Rule(Retry(max_attempts=1), ("#threads",) if found == "thread" else (), ())


@pytest.mark.parametrize("function", [handler, AsyncCallable(), functools.partial(handler)])
def test_an_async_handler_cannot_run_in_a_thread(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"task 't' is async and runs on the loop"):
        registry().task("t", executor="thread")(function)


@pytest.mark.parametrize("executor", ["pool", "", "Async", 5, True, object()])
def test_an_unknown_executor_is_refused_with_the_known_ones(executor: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid executor: .* Expected one of 'async', 'thread'"):
        registry().task("t", executor=executor)


def no_arguments() -> None: ...
def two_arguments(work: Work, other: int) -> None: ...
def keyword_only(*, work: Work) -> None: ...


@pytest.mark.parametrize("function", [no_arguments, two_arguments, keyword_only])
def test_a_handler_that_takes_more_or_less_than_work_is_called_with_params_by_name(function: Any) -> None:
    known = registry()
    known.task("t")(function)
    assert known.get_task("t").parameters is not None


def test_a_method_of_no_object_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"AsyncCallable\.method', the handler of task 't', is a method"):
        registry().task("t")(AsyncCallable.method)


def with_default(work: Work, other: int = 1) -> None: ...
def any_arguments(*args: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize("function", [with_default, any_arguments, functools.partial(two_arguments, other=1)])
def test_a_handler_that_can_take_work_is_accepted(function: Any) -> None:
    registry().task("t")(function)


def generator(work: Work) -> Any:
    yield work


async def async_generator(work: Work) -> Any:
    yield work


@pytest.mark.parametrize("function", [generator, async_generator, functools.partial(generator)])
def test_a_handler_that_yields_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"task 't' yields, so that calling it does nothing"):
        registry().task("t")(function)


def test_uses_must_be_registered_when_the_task_is() -> None:
    known = registry()
    with pytest.raises(
        UnknownService, match=r"^Unknown service: 'apo'. Registered: 'api', 's3'. Did you mean 'api'?"
    ):
        known.task("t", uses="apo")
    with pytest.raises(UnknownService, match=r"'nope'"):
        known.task("t", uses=["api", "nope"])
    assert known.tasks == {}


def test_services_may_be_registered_after_the_task() -> None:
    known = registry()
    known.task("t", services=["later"])(handler)
    assert known.get_task("t").services == ("later",)
    assert not known.get_task("t").is_checked
    known.task("u", services="api")(plain)
    assert known.get_task("u").is_checked


def test_uses_and_services_must_agree() -> None:
    known = registry()
    known.task("t", uses="api", services=["api"])(handler)
    assert known.get_task("t").services == ("api",)
    with pytest.raises(ConfigError, match=r"uses='api' and services='s3' mean the same thing and differ"):
        known.task("u", uses="api", services=["s3"])
    with pytest.raises(ConfigError, match=r"mean the same thing and differ"):
        known.task("u", uses=lambda work: "api", services=lambda work: "api")


def test_a_service_named_twice_counts_once() -> None:
    known = registry()
    known.task("t", uses=["s3", "api", "s3"])(handler)
    assert known.get_task("t").services == ("s3", "api")


@pytest.mark.parametrize("uses", [5, {"api"}, {"api": 1}, [5], [""], b"api", handler, no_arguments, object()])
def test_uses_of_another_kind_is_refused(uses: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid (uses|service name): "):
        registry().task("t", uses=uses)


@pytest.mark.parametrize(
    "uses",
    ["ssh_{", "ssh_}", "ssh_{}", "{0.__class__}", "{host!r}", "{host:>9}", "{host[0]}", "{{host}}", "{a b}"],
)
def test_a_place_in_a_service_name_is_a_plain_param(uses: str) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid uses: .*as in 'ssh_{host}'"):
        registry().task("t", uses=uses)


def test_the_fixed_names_beside_a_place_must_be_registered_too() -> None:
    with pytest.raises(UnknownService, match=r"'nope'"):
        registry().task("t", uses=["nope", "ssh_{host}"])


@pytest.mark.parametrize(
    "retry", [-1, True, "3", 1.5, {"attempts": 3}, {"max_attempts": 0}, {1: 2}, object()]
)
def test_a_bad_retry_is_refused(retry: Any) -> None:
    with pytest.raises(ConfigError):
        registry().task("t", retry=retry)


@pytest.mark.parametrize("timeout", [0, -1, "soon", float("inf"), True, 1e12])
def test_a_bad_timeout_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid timeout: "):
        registry().task("t", timeout=timeout)


def test_a_task_without_a_timeout_has_the_default_one() -> None:
    known = registry(default_timeout="1m")
    known.task("t")(handler)
    known.task("u", timeout=5)(plain)
    assert (known.get_task("t").timeout, known.get_task("u").timeout) == (60.0, 5.0)


def test_a_mistyped_option_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownOption, match=r"task.. has no option 'use'. Did you mean 'uses'?"):
        registry().task("t", use="api")


def test_a_task_name_belongs_to_one_function() -> None:
    known = registry()
    known.task("t", retry=2)(handler)
    with pytest.raises(
        ConfigError, match=r"^Task 't' is registered already, for 'handler'. Give this one another name"
    ):
        known.task("t")(plain)
    assert known.get_task("t").handler is handler
    assert known.rules["t"].retry.max_attempts == 2


def test_the_same_function_may_be_registered_again_with_other_options() -> None:
    known = registry()
    known.task("t", retry=2)(handler)
    known.task("t", retry=5)(handler)
    assert known.rules["t"].retry.max_attempts == 5


def defined(source: str) -> Any:
    """The function f of a notebook cell."""
    cell: dict[str, Any] = {"__name__": "cell"}
    exec(source, cell)
    return cell["f"]


def test_a_function_defined_anew_in_the_same_place_replaces_the_old_one() -> None:
    known = registry()
    first, second = (defined(f"def f(work): return {number}") for number in (1, 2))
    known.task("t")(first)
    known.task("t")(second)
    assert known.get_task("t").handler is second
    assert known.get_task(second).name == "t"
    with pytest.raises(UnknownTask):
        known.get_task(first)


def test_a_function_defined_anew_cannot_move_to_another_executor() -> None:
    known = registry()
    known.task("t")(defined("def f(work): ..."))
    with pytest.raises(ConfigError, match=r"registered already, with executor 'thread'"):
        known.task("t")(defined("async def f(work): ..."))


def test_methods_of_two_objects_are_two_functions() -> None:
    known = registry()
    one, two = AsyncCallable(), AsyncCallable()
    known.task("t")(one.method)
    known.task("t", retry=2)(one.method)
    assert known.get_task(one.method).name == "t"
    with pytest.raises(ConfigError, match=r"registered already"):
        known.task("t")(two.method)


def test_a_function_of_two_tasks_cannot_stand_for_either() -> None:
    known = registry()
    known.task("t")(handler)
    known.task("u")(handler)
    with pytest.raises(ConfigError, match=r"'handler' handles more than one task. Give the task's name"):
        known.get_task(handler)


def test_an_unknown_task_is_named_with_the_nearest() -> None:
    known = registry()
    known.task("extract")(handler)
    with pytest.raises(
        UnknownTask, match=r"Unknown task type: 'extrct'. Registered: 'extract'. Did you mean 'extract'?"
    ):
        known.get_task("extrct")
    for other in (plain, None, 5, [], object()):
        with pytest.raises(UnknownTask):
            known.get_task(other)


TASK_FIELDS = ["name", "uses", "services", "executor", "retry", "timeout", "cost"]


@pytest.mark.parametrize("field", [*TASK_FIELDS, "handler"])
def test_each_oddity_about_a_task_is_refused_or_understood(field: str) -> None:
    for value in ODDITIES:
        known = registry()
        try:
            if field == "handler":
                known.task("t")(value)
            else:
                known.task(**{"name": "t", field: value})
        except ConfigError:
            assert known.tasks == {}


@given(st.dictionaries(st.sampled_from(TASK_FIELDS), anything, min_size=1, max_size=3), anything)
def test_nonsense_about_a_task_is_refused_and_changes_nothing(given: dict[str, Any], function: Any) -> None:
    known = registry()
    before = snapshot(known)
    try:
        decorator = known.task(**{"name": "t", **given})
        if snapshot(known) == before:
            decorator(function)
    except ConfigError:
        assert snapshot(known) == before
    else:
        assert len(known.tasks) == 1


# --- Callbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CALLBACKS)
def test_a_callback_is_kept_and_returned_unchanged(kind: str) -> None:
    known = registry()
    assert known.callback(kind, any_arguments) is any_arguments
    assert known.callbacks == {kind: any_arguments}


def test_a_callback_registered_again_replaces_the_first() -> None:
    known = registry()
    known.callback("is_ready", plain)
    known.callback("is_ready", handler)
    assert known.callbacks == {"is_ready": handler}


@pytest.mark.parametrize("kind", CALLBACKS)
def test_a_callback_that_cannot_be_called_as_it_will_be_is_refused(kind: str) -> None:
    known = registry()
    for function in (None, 5, "is_ready", no_arguments, lambda a, b, c, d: None):
        with pytest.raises(ConfigError, match=rf"^{kind} (must be a function of|is called with) "):
            known.callback(kind, function)  # type: ignore[type-var]
    assert known.callbacks == {}


def test_an_unknown_kind_of_callback_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"There is no callback 'on_finish'"):
        registry().callback("on_finish", plain)


@pytest.mark.parametrize(
    ("function", "wants_retry"),
    [
        (lambda work, error: None, False),
        (lambda work, error, will_retry: None, True),
        (lambda work, error, will_retry=False: None, True),
        (lambda *args: None, True),
        (lambda work, error, *, verbose=False: None, False),
    ],
)
def test_on_failure_is_told_of_retries_when_it_takes_them(function: Any, wants_retry: bool) -> None:
    known = registry()
    known.callback("on_failure", function)
    assert known.failure_wants_retry is wants_retry
    known.callback("on_start", plain)
    assert known.failure_wants_retry is wants_retry


def test_the_questions_are_the_callbacks_that_decide() -> None:
    known = registry()
    assert known.questions() == Questions()
    known.callback("on_start", plain)
    assert not known.questions()
    known.callback("is_ready", plain)
    known.callback("priority", lambda ctx: 1)
    assert known.questions() == Questions(ready=True, score=True)
    known.callback("is_stale", plain)
    known.callback("dependency_satisfied", lambda work_id: True)
    assert known.questions() == Questions(ready=True, stale=True, score=True, dependencies=True)


def test_a_database_check_without_a_database_is_refused_in_memory() -> None:
    known = registry()
    with pytest.raises(ConfigError, match=r"this Cue is in no file. Name one: .*database="):
        known.callback("dependency_satisfied", dependency_check_db("results", "work_id"))
    assert known.callbacks == {}


def test_a_database_check_without_a_database_uses_the_cues_own_file() -> None:
    known = Registry(Options.of(), database="/tmp/queue.db")
    check = dependency_check_db("results", "work_id")
    assert known.callback("dependency_satisfied", check) is check
    assert known.callbacks["dependency_satisfied"] == dependency_check_db(
        "results", "work_id", "/tmp/queue.db"
    )


def test_the_file_that_a_cue_is_in_is_its_own_and_an_address_is_no_file(tmp_path: Path) -> None:
    check = dependency_check_db("results", "work_id")
    in_a_file = Cue(tmp_path / "queue.db")
    in_a_file.dependency_satisfied(check)
    bound = in_a_file._registry.callbacks["dependency_satisfied"]
    assert bound == dependency_check_db("results", "work_id", tmp_path / "queue.db")
    for target in (None, "postgresql://host/database"):
        with pytest.raises(ConfigError, match=r"this Cue is in no file"):
            Cue(target).dependency_satisfied(check)


def test_each_oddity_as_a_callback_is_refused_or_understood() -> None:
    for kind in CALLBACKS:
        for value in ODDITIES:
            known = registry()
            try:
                known.callback(kind, value)
            except ConfigError:
                assert known.callbacks == {}


@given(st.sampled_from(sorted(CALLBACKS)), anything)
def test_nonsense_as_a_callback_is_refused_and_changes_nothing(kind: str, function: Any) -> None:
    known = registry()
    try:
        known.callback(kind, function)
    except ConfigError:
        assert known.callbacks == {}
    else:
        assert known.callbacks[kind] is function


# --- Asking for lists -----------------------------------------------------------------------------


def test_a_state_may_be_given_as_text_and_by_its_older_name() -> None:
    assert work_state(None) is None
    assert work_state("queued") is WorkState.PENDING
    for state in WorkState:
        assert work_state(state) is work_state(str(state)) is state


def test_anything_else_is_no_state() -> None:
    for value in ODDITIES:
        if value is not None:
            with pytest.raises(InvalidOption, match=r"^Invalid state: .*'pending', 'running'"):
                work_state(value)


def test_a_list_has_a_limit_of_one_or_more() -> None:
    assert rows(100) == 100
    for value in (0, -1, True, "5", 1.5, None, 10**12):
        with pytest.raises(InvalidOption, match=r"^Invalid limit: "):
            rows(value)


def test_older_imports_find_the_same_values() -> None:
    assert runcue.models.WorkUnit is runcue.models.Work is Work
    assert runcue.models.WorkState is WorkState
    assert runcue.models.PriorityContext is PriorityContext


# --- Executors outside this process ---------------------------------------------------------------


def command_of(**options: Any) -> CommandOptions:
    known = registry()
    known.task("t", executor="subprocess", **options)(plain)
    return known.get_task("t").command


def test_what_a_task_says_of_its_commands_is_kept(tmp_path: Path) -> None:
    assert command_of() == CommandOptions(shell=False, check=True, cwd=None, env=None)
    said = command_of(shell=True, check=False, cwd=tmp_path, env={"A": "1"})
    assert said == CommandOptions(shell=True, check=False, cwd=str(tmp_path), env={"A": "1"})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("shell", 1),
        ("check", "no"),
        ("cwd", 5),
        ("cwd", ""),
        ("cwd", "a\0b"),
        ("env", ["A=1"]),
        ("env", {"A": 1}),
        ("env", {"": "x"}),
        ("env", {"A=B": "x"}),
        ("env", {"A": "x\0"}),
        ("env", {5: "x"}),
    ],
)
def test_nonsense_about_commands_is_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"^Invalid {option}: "):
        command_of(**{option: value})


@pytest.mark.parametrize(
    ("executor", "option"),
    [
        (None, "shell"),
        ("async", "env"),
        ("thread", "cwd"),
        ("process_pool", "check"),
        ("ssh", "shell"),
        ("ssh", "cwd"),
    ],
)
def test_what_means_nothing_to_its_executor_is_refused(executor: str | None, option: str) -> None:
    value: Any = {"shell": True, "check": False, "cwd": "/", "env": {"A": "1"}}[option]
    with pytest.raises(ConfigError, match=rf"^{option}=.* means something only with executor='subprocess'"):
        registry().task("t", executor=executor, **{option: value})(plain)


def test_work_in_the_pool_is_in_the_line_of_this_process_and_of_the_service_if_there_is_one() -> None:
    known = registry()
    known.task("t", executor="process_pool", uses="process_pool")(plain)
    assert known.rules["t"].implicit == ("#process_pool",)
    assert known.get_task("t").services == ()
    known.service("process_pool", concurrent=2)
    assert known.rules["t"].implicit == ("#process_pool", "process_pool")


@pytest.mark.parametrize("function", [lambda work: None, handler])
def test_what_a_worker_process_could_not_call_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError):
        registry().task("t", executor="process_pool")(function)
