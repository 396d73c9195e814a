"""Holds what an application declares on a Cue (services, tasks, callbacks), and checks every submission against it.

Rules:
- Everything is checked as early as possible, and a refused declaration changes nothing.
- Older spellings are translated here, once. A value given in both spellings must be the same in both.
- A second declaration of a service replaces the first: limits that it leaves out are gone.
- A second registration of a callback replaces the first. A task name belongs to one function; only that function, or
  a new definition of it (a notebook cell run again, a module reloaded), replaces it.
- Names that start with "#" are runcue's own services, for each process ("#threads", "#process_pool", "#running").
- `spec` is on the path of every submission: an option that was not given costs one comparison.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from runcue.core.ledger.fleet import HERE
from runcue.core.limits.meter import Cost
from runcue.core.model import encoding, parse
from runcue.core.model.outputs import WithOutputs
from runcue.core.model.record import Extras, Record, Spec, Work, view
from runcue.core.model.retry import Retry, retry_of_work
from runcue.core.model.settings import Rule
from runcue.core.model.state import Limits, base_name, is_pattern
from runcue.core.schedule.gates import Questions
from runcue.core.schedule.plan import Submit
from runcue.core.views.explain import OWN_POOL, POOL
from runcue.declare import arguments
from runcue.declare import tags as tagging
from runcue.declare.callbacks import DatabaseCheck
from runcue.declare.options import Options, choice, command, or_none, pause, span
from runcue.declare.parameters import Call, parameters_of
from runcue.declare.resources import resource_of
from runcue.declare.schedules import Schedules
from runcue.declare.service_choice import (
    cost_of,
    picked,
    read_cost,
    read_uses,
    template,
    with_keys,
)
from runcue.declare.service_options import KeyOf, agreed, disagree, read_limits
from runcue.declare.task import COMMANDS, EXECUTORS, IN_PROCESS, Task, codec_of, executor_of
from runcue.declare.unique import read_expires, read_unique
from runcue.declare.unit import Unit
from runcue.engine.artifacts import Artifacts, declared
from runcue.engine.handler import identity, is_plain_function, origin, own_name, spoken, takes
from runcue.engine.resources import Resource
from runcue.errors import (
    ConfigError,
    DependencyCycle,
    InvalidOption,
    SubmitError,
    UnknownService,
    UnknownTask,
    WrongResult,
    quoted,
)
from runcue.executors.system import processes
from runcue.ports import Observer

Function = TypeVar("Function", bound=Callable[..., Any])
Seconds: TypeAlias = float | timedelta | str

ON_FAILED: Final = ("resubmit", "reject", "return")
CALLBACKS: Final = {
    "is_ready": ("work",),
    "is_stale": ("work",),
    "priority": ("ctx",),
    "dependency_satisfied": ("work_id",),
    "on_start": ("work",),
    "on_complete": ("work", "result", "duration"),
    "on_failure": ("work", "error", "will_retry"),
    "on_skip": ("work",),
    "on_cancel": ("work",),
    "on_backpressure": ("depth", "limit"),
    "on_pending_warning": ("work", "seconds"),
    "on_stall_warning": ("seconds", "pending"),
    "on_group_done": ("group", "counts"),
}
"""The arguments that each callback is called with."""

DEFAULT_QUEUE: Final = "default"
RESUBMIT: Final = "resubmit"
NO_PRIORITY: Final = 0
HIGHEST_PRIORITY: Final = 1_000_000


class Registry:
    """Everything an application declared on one Cue."""

    def __init__(self, options: Options, database: str | None = None, is_shared: bool = False) -> None:
        self.options = options
        self.is_shared = is_shared
        """True when other programs may have declared services on the same queue."""
        self.tasks: dict[str, Task] = {}
        self.artifacts: dict[str, Artifacts] = {}
        """The declared files, by task."""
        self.resources: dict[Any, Resource] = {}
        """What handlers share, by type."""
        self.services: dict[str, Limits] = {}
        self.keys: dict[str, KeyOf] = {}
        """What `per=` says of each service that has keys."""
        self.schedules = Schedules(self)
        """What the code of this program submits at moments."""
        self.rules: dict[str, Rule] = {}
        self.callbacks: dict[str, Callable[..., Any]] = {}
        self.middleware: list[Callable[..., Any]] = []
        """Makes the context managers around each attempt."""
        self.observers: list[Observer] = []
        self.failure_wants_retry = True
        """False when `on_failure` takes no `will_retry`: then it is called for final failures only."""
        self.version = 0
        """Grows with each declaration that other processes have to know."""
        self.has_costs = False
        """True when some task has a cost."""
        self.picks_services = False
        """True when some task chooses its services for each unit."""
        self._database = database
        self._names: dict[object, str | None] = {}
        self._usual: list[Spec] | None = None
        """The last specs that were made, if all have nothing but an id made for them, a task with its services and
        timeout, and params."""

    # declaring ----------------------------------------------------------------------------------------

    def service(self, name: str, **options: Any) -> Limits:
        """Declare a service and its limits; declared again, it has these limits and no others."""
        limits, key = read_limits(name, **options)
        if limits.name in self.services and (key is None) != (limits.name not in self.keys):
            raise ConfigError(
                f"Service {quoted(limits.name)} was declared {'without' if key else 'with'} per=, and units "
                "wait for it like that. Give the new one another name."
            )
        self.services[limits.name] = limits
        had_keys = self.keys.pop(limits.name, None) is not None
        if key is not None:
            self.keys[limits.name] = key
        if limits.name == POOL or had_keys or key is not None:
            for task in list(self.tasks.values()):
                self._settle(task)
        return limits

    def task(
        self,
        name: Any = None,
        *,
        uses: Any = None,
        services: Any = None,
        executor: str | None = None,
        retry: object = None,
        retry_delay: Any = None,
        timeout: Seconds | None = None,
        cost: Any = None,
        inputs: Any = None,
        outputs: Any = None,
        max_age: Seconds | None = None,
        label: str | None = None,
        shell: bool | None = None,
        check: bool | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        **unknown: Any,
    ) -> Any:
        """Register a handler, as `@task("name", …)`, `@task(…)` or `@task`; returns the function."""
        parse.reject_unknown(unknown, TASK_OPTIONS, "task()")
        handler = None if isinstance(name, str) or not callable(name) else name
        if handler is None and name is not None:
            name = parse.name(name, "task")
        if executor is not None:
            choice(executor, "executor", tuple(EXECUTORS))
        self.schedules.note_module()
        wanted = agreed("uses", read_uses(uses, "uses"), "services", read_uses(services, "services")) or ()
        names: tuple[str, ...] = wanted if isinstance(wanted, tuple) else ()
        if executor == "process_pool":
            names = tuple(name for name in names if name != POOL)  # `_settle` adds it
        how = command(executor, shell=shell, check=check, cwd=cwd, env=env)
        picks = wanted if callable(wanted) else template(names)
        if uses is not None:
            self._require(name for name in names if "{" not in name)
        is_checked = picks is not None or all(map(self._knows, names))
        policy = Retry.of(retry)
        if retry_delay is not None and not is_plain_function(retry_delay):
            raise InvalidOption("retry_delay", retry_delay, "a plain function of work that returns seconds")
        limit = self.options.default_timeout if timeout is None else span(timeout, "timeout")
        files = declared(inputs, outputs, or_none(span)(max_age, "max_age"))
        price, shown = read_cost(cost), tagging.template(label)

        def register(function: Function) -> Function:
            own = name if handler is None and name is not None else own_name(function)
            where = executor_of(function, own, executor)
            runs = EXECUTORS[where].runs
            if where in processes.MODULES:
                # Imported now: a missing library is an error at once, and no start waits.
                import_module(processes.MODULES[where])
                if where == "process_pool":
                    from runcue.executors.process.functions import check_importable

                    check_importable(function)
            plain = () if picks is not None else names
            parameters = parameters_of(own, function, self.resources)
            handed = () if parameters is None else tuple(parameters.resources.values())
            if handed and runs != IN_PROCESS:
                raise ConfigError(
                    f"Task {quoted(own)} cannot be given a resource: with executor={where!r} it runs elsewhere."
                )
            if shown is not None and parameters is not None:
                tagging.check_label(shown, parameters.refuses, parameters.names)
            encode = parse.encode_params if parameters is None else parameters.encode
            call = function if parameters is None else Call(function, parameters)
            is_command = runs == COMMANDS
            returns = None if is_command else codec_of(own, function, parameters, is_shared=self.is_shared)
            self._add(Task(own, function, plain, picks, where, policy, limit, how, is_checked, files, price,
                           retry_delay, True, parameters, encode, call, returns, handed, shown))  # fmt: skip
            return function

        return register if handler is None else register(handler)

    def resource(self, function: Function) -> Function:
        """Register a function that makes what handlers share; returns the function."""
        made = resource_of(function, self.resources)
        self.resources[made.kind] = made
        return function

    def around(self, function: Function) -> Function:
        """Enter the context manager that `function(work)` returns around each attempt; returns the function."""
        if not is_plain_function(function):
            raise InvalidOption("around", function, "a plain function of work that returns a context manager")
        self.middleware.append(function)
        return function

    def callback(self, kind: str, function: Function) -> Function:
        """Register one of the callbacks of `CALLBACKS`; returns the function."""
        if kind not in CALLBACKS:
            raise ConfigError(f"There is no callback {quoted(kind)}.{parse.nearest(kind, CALLBACKS)}")
        expected = CALLBACKS[kind]
        shown = ", ".join(expected)
        if not callable(function):
            raise ConfigError(f"{kind} must be a function of ({shown}), not {quoted(function)}.")
        wants_all = takes(function, len(expected))
        if not wants_all and not (kind == "on_failure" and takes(function, 2)):
            raise ConfigError(f"{kind} is called with ({shown}), which {spoken(function)} does not take.")
        called: Callable[..., Any] = function
        if isinstance(function, DatabaseCheck):
            called = function.bind(self._database)
        if kind == "on_failure":
            self.failure_wants_retry = wants_all
        self.callbacks[kind] = called
        self.version += 1
        return function

    @property
    def has_hooks(self) -> bool:
        """True when there are `on_*` callbacks."""
        return any(name.startswith("on_") for name in self.callbacks)

    def shared_rules(self) -> dict[str, Rule]:
        """What the scheduler has to know about the tasks: everything but code."""
        questions, settings = self.questions(), self.options.settings()
        return {
            name: replace(
                rule,
                retry=replace(rule.retry, retry_on=None),
                # a limit of this process alone
                implicit=tuple(one for one in rule.implicit if one != HERE),
                questions=questions,
                settings=settings,
                timeout=self.tasks[name].timeout,
            )
            for name, rule in self.rules.items()
        }

    def questions(self) -> Questions:
        """Which of the deciding callbacks are registered."""
        has = self.callbacks.__contains__
        return Questions(has("is_ready"), has("is_stale"), has("priority"), has("dependency_satisfied"),
                         bool(self.artifacts))  # fmt: skip

    def get_task(self, task: object) -> Task:
        """The registered task of that name or handler."""
        name = str.__str__(task) if isinstance(task, str) else self._name_of(task)
        found = self.tasks.get(name)
        if found is None:
            raise UnknownTask(task, self.tasks)
        return found

    # submitting ---------------------------------------------------------------------------------------

    def spec(
        self,
        task: str | Callable[..., Any] | None = None,
        *,
        make_id: Callable[[], str],
        params: Mapping[str, Any] | None = None,
        target: str | os.PathLike[str] | None = None,
        queue: str = DEFAULT_QUEUE,
        depends_on: str | Iterable[str] | None = None,
        timeout: Seconds | None = None,
        dependency_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
        on_failed: str = RESUBMIT,
        id: str | None = None,
        priority: float = NO_PRIORITY,
        run_at: float | datetime | None = None,
        delay: Seconds | None = None,
        retry: object = None,
        unique: object = None,
        expires: Seconds | None = None,
        tags: Mapping[str, str] | None = None,
        group: str | None = None,
        task_type: str | Callable[..., Any] | None = None,
        **unknown: Any,
    ) -> Spec:
        """Check the arguments of `submit` and make them exact."""
        known = self.tasks.get(task) if type(task) is str else None
        if known is None or task_type is not None or unknown or not known.is_checked:
            known = self._known(task, task_type, unknown)
        data = known.encode(params, self.options.max_params)
        if target is not None:
            target = arguments.target(target, self.options.max_params)
        if queue is not DEFAULT_QUEUE:
            queue = parse.name(queue, "queue")
        after = () if depends_on is None else arguments.ids(depends_on)
        outputs: tuple[str, ...] = ()
        if type(data) is WithOutputs:
            outputs, data = data.ids, bytes(data)
            after = tuple(dict.fromkeys((*after, *outputs)))
        limit = known.timeout if timeout is None else span(timeout, "timeout")
        if dependency_timeout is not None:
            dependency_timeout = pause(dependency_timeout, "dependency_timeout")
        if idempotency_key is not None:
            idempotency_key = parse.key(idempotency_key)
        if on_failed is not RESUBMIT:
            on_failed = choice(on_failed, "on_failed", ON_FAILED)
        if priority is not NO_PRIORITY:
            priority = parse.number(priority, "priority", -HIGHEST_PRIORITY, HIGHEST_PRIORITY)
        due = wait = None
        if run_at is not None or delay is not None:
            due, wait = arguments.due(run_at, delay)
        policy = None if retry is None else retry_of_work(retry)
        unique_key = extras = None
        if outputs or tags is not None or unique is not None or expires is not None:
            seconds = None if expires is None else read_expires(expires, wait)
            rule = None
            if unique is not None:
                known_by = read_unique(unique, wait, has_run_at=due is not None,
                                       has_key=idempotency_key is not None)  # fmt: skip
                unique_key = known_by.key(known.name, known.canonical(data), target)
                rule = known_by.rule()
            named = () if tags is None else tagging.tags(tags)
            extras = Extras(named, seconds, outputs, rule)
        if group is not None:
            group = tagging.group(group)
        work_id = ""  # made last: an id that a callback has seen must not be refused (decision 0003)
        if id is not None:
            work_id = parse.work_id(id)
            if work_id in after:
                raise DependencyCycle([work_id, work_id])
        services = known.services
        cost: Cost = ()
        label = None
        if not known.is_plain:
            work = Work(work_id, known.name, parse.decode_params(data), target, queue, depends_on=after,
                        timeout=limit, dependency_timeout=dependency_timeout,
                        idempotency_key=idempotency_key, priority=priority, run_at=due, group=group,
                        tags={} if extras is None else dict(extras.tags))  # fmt: skip
            services, cost = self._computed(known, work)
            if known.label is not None:
                defaults = {} if known.parameters is None else known.parameters.defaults
                label = tagging.rendered(known.label, {**defaults, **work.params})
        return Spec(work_id or make_id(), known.name, data, services, queue, target, after, priority, due, wait,
                    limit, dependency_timeout, idempotency_key, on_failed, id is not None, policy, cost, group,
                    unique_key, extras, label)  # fmt: skip

    def _computed(self, task: Task, work: Work) -> tuple[tuple[str, ...], Cost]:
        """The services and the cost of one unit, where its task computes them."""
        services = task.services
        if task.picks is not None:
            services = picked(task.picks, work)
            for name in services:
                if not self._knows(name) and not self.is_shared:
                    raise SubmitError(
                        f"{UnknownService(name, self.services)} The uses= of task {quoted(work.task)} chose it."
                    )
        if task.artifacts is not None:
            task.artifacts.check(work)
        cost = () if task.cost is None else cost_of(task.cost, work)
        return with_keys(services, self.keys, work), cost

    def specs(self, items: Iterable[Mapping[str, Any]], make_id: Callable[[], str]) -> list[Spec]:
        """Check the items of `submit_many`; the error says which one is wrong."""
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            raise SubmitError(
                f"submit_many takes a list of dicts of submit's arguments, not {quoted(items)}."
            )
        tasks, most = self.tasks, self.options.max_params
        specs: list[Spec] = []
        add, are_usual = specs.append, True
        try:
            for item in items:
                known = None
                if type(item) is dict and len(item) == 2 and "params" in item:  # like most in a batch
                    known = tasks.get(name) if type(name := item.get("task")) is str else None
                if known is not None and known.is_checked and known.is_plain:
                    data = known.encode(item["params"], most)
                    if type(data) is bytes:
                        add(Spec(make_id(), known.name, data, known.services, timeout=known.timeout))
                        continue
                are_usual = False
                add(self._item(item, make_id))
        except (ConfigError, SubmitError) as error:
            error.args = (f"items[{len(specs)}]: {error}",)
            raise
        self._usual = specs if are_usual else None
        return specs

    def _item(self, item: object, make_id: Callable[[], str]) -> Spec:
        if isinstance(item, Unit):
            item = item.arguments()
        if not isinstance(item, dict):
            form = "{'task': 'echo', 'params': {…}}"
            raise SubmitError(f"expected a dict of submit's arguments, such as {form}, got {quoted(item)}.")
        if not item.keys() <= _item_options:
            parse.reject_unknown(item, ITEM_OPTIONS, "submit()")
        return self.spec(make_id=make_id, **item)

    def always_accepts(self, spec: Spec) -> bool:
        """True for a unit that no rule can refuse."""
        has_room = self.options.max_queued is None
        return has_room and not self.has_costs and not self.picks_services and _is_plain(spec)

    def submission(self, specs: list[Spec]) -> Submit:
        """The inbox item for these units."""
        are_usual, self._usual = specs is self._usual, None
        submit = Submit(specs, are_usual or all(map(_is_plain, specs)), are_usual=are_usual)
        if self.picks_services:  # only the queue knows the services that this program does not declare
            submit.services = frozenset(
                name for spec in specs for name in spec.services if not self._knows(name)
            )
        if self.has_costs:
            submit.has_cost = any(spec.cost for spec in specs)
        return submit

    # what users see of units --------------------------------------------------------------------------

    def view(self, record: Record) -> Work:
        """What users see of a record, its result as the annotation of its task has it, if it fits."""
        work = view(record)
        known = self.tasks.get(work.task)
        if known is None or known.returns is None or work.result is None:
            return work
        with suppress(msgspec.ValidationError):
            work = replace(work, result=known.returns.decode(work.result))
        return work

    def result(self, record: Record) -> Any:
        """The result of a completed unit; raises where it is not what the annotation of its task says."""
        known = self.tasks.get(record.spec.task)
        if known is None or known.returns is None or record.skipped:
            return record.result
        try:
            return known.returns.decode(record.result)
        except msgspec.ValidationError as error:
            raise WrongResult(
                record.id, known.name, encoding.shown(known.returns.annotation), error
            ) from None

    # looking up ---------------------------------------------------------------------------------------

    def _add(self, task: Task) -> None:
        before = self.tasks.get(task.name)
        if before is not None:
            _check_replaces(before, task)
        self.tasks[task.name] = task
        self.artifacts.pop(task.name, None)
        if task.artifacts is not None:
            self.artifacts[task.name] = task.artifacts
        self.picks_services |= task.picks is not None
        self.has_costs |= task.cost is not None
        self._settle(task)
        self._names = {}
        for known in self.tasks.values():
            key = identity(known.handler)
            self._names[key] = None if key in self._names else known.name

    def _settle(self, task: Task) -> None:
        """Work out the rule of a task from how it and its services are declared now."""
        is_fixed = task.picks is None and not any(name in self.keys for name in task.services)
        is_plain = is_fixed and task.artifacts is None and task.cost is None and task.label is None
        self.tasks[task.name] = replace(task, is_plain=is_plain)
        implicit = EXECUTORS[task.executor].services
        if task.executor == "process_pool" and POOL in self.services:
            implicit += (POOL,)
        if task.executor == "dask" and self.options.dask is None:
            implicit += (OWN_POOL,)  # runcue starts a cluster with as many processes
        if self.options.max_running is not None:
            implicit += (HERE,)
        self.rules[task.name] = Rule(task.retry, implicit, task.services if is_fixed else None)
        self.version += 1

    def _name_of(self, function: object) -> str:
        if not callable(function):
            arguments.not_called(function)
            raise UnknownTask(function, self.tasks)
        key = identity(function)
        name = self._names.get(key, "")
        if name is None:
            raise ConfigError(f"{spoken(function)} handles more than one task. Give the task's name instead.")
        if not name:
            raise UnknownTask(getattr(function, "__name__", function), self.tasks)
        return name

    def _known(self, task: object, task_type: object, unknown: dict[str, Any]) -> Task:
        """The task that a submission names, by text or by handler."""
        parse.reject_unknown(unknown, SUBMIT_OPTIONS, "submit()")
        if task is None and task_type is None:
            raise SubmitError("submit() needs a task: its name, or the function registered for it.")
        names = [self.get_task(said).name for said in (task, task_type) if said is not None]
        if names[0] != names[-1]:
            disagree("task", names[0], "task_type", names[-1])
        known = self.tasks[names[0]]
        if not known.is_checked:
            self._require(known.services)
            known = self.tasks[known.name] = replace(known, is_checked=True)
        return known

    def _require(self, names: Iterable[str]) -> None:
        for name in names:
            if not self._knows(name):
                raise UnknownService(name, self.services)

    def _knows(self, name: str) -> bool:
        """True for a declared service, a key of one, and a pattern that matches one."""
        if name in self.services:
            return True
        if is_pattern(name):
            return bool(fnmatch.filter(self.services, name))
        return base_name(name) in self.keys


TASK_OPTIONS: Final = ("name", *(Registry.task.__kwdefaults__ or ()))
ITEM_OPTIONS: Final = ("task", *(Registry.spec.__kwdefaults__ or ()))
SUBMIT_OPTIONS: Final = (*ITEM_OPTIONS, "connection")
_item_options = frozenset(ITEM_OPTIONS)


def _check_replaces(before: Task, task: Task) -> None:
    """Refuse a task with the name of another, unless it is a new definition of it."""
    old, new = before.handler, task.handler
    if identity(old) != identity(new) and (origin(old) is None or origin(old) != origin(new)):
        raise ConfigError(
            f"Task {quoted(task.name)} is registered already, for {spoken(old)}. Give this one another name."
        )
    if before.executor != task.executor:
        raise ConfigError(
            f"Task {quoted(task.name)} is registered already, with executor {before.executor!r}. "
            "Give the new one another name, or make a new Cue."
        )


def _is_plain(spec: Spec) -> bool:
    """True when nothing has to be looked up before that unit is accepted, nor noted for others to find it."""
    return not (
        spec.is_named
        or spec.depends_on
        or spec.idempotency_key is not None
        or spec.unique_key is not None
        or spec.group is not None
        or (spec.extras is not None and spec.extras.tags)
    )
