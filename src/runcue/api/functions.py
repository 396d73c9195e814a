"""What `@cue.task` puts on a handler, so that a task is submitted as its function is called.

    unit = await summarize.submit(page=3)
    unit = await summarize.options(priority=5).submit(page=3)

The function stays the same object: calling it still runs it, here and now.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from runcue.api.signature import PlainOptions
from runcue.core.model import parse
from runcue.declare.unit import Unit
from runcue.errors import InvalidParams, RuncueError, quoted

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.api.handle import Handle
    from runcue.api.mapping import Key, Params
    from runcue.core.model.record import Work
    from runcue.engine.running import RunningWork

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

OPTIONS = tuple(PlainOptions.__annotations__)
ATTRIBUTES = ("submit", "submit_many", "unit", "map", "options")


class Submitter(Generic[P, R]):
    """Submits units of one task, with options that are the same for all."""

    def __init__(self, cue: Cue, task: str, options: Mapping[str, Any] | None = None) -> None:
        self._cue = cue
        self._task = task
        self._options = options or {}

    async def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Submit one unit, with params as the function takes them; returns its id, which can do more."""
        params = self._params(args, kwargs)
        return await self._cue.submit(self._task, **{**self._options, "params": params})

    async def submit_many(self, items: Iterable[Mapping[str, Any]]) -> list[Handle[R]]:
        """Submit many units at once, all or none: a dict of params for each."""
        connection = self._options.get("connection")
        options = {name: value for name, value in self._options.items() if name != "connection"}
        units = [Unit[R](self._task, _copied(params), options) for params in items]
        return await self._cue.submit_many(units, connection=connection)

    def unit(self, /, *args: P.args, **kwargs: P.kwargs) -> Unit[R]:
        """A unit as a value, to be submitted with others by `cue.submit_many`."""
        return Unit(self._task, self._params(args, kwargs), self._options)

    def map(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Key | None = None,
        params: Params | None = None,
        window: int = 1000,
    ) -> AsyncIterator[Work]:
        """Submit one unit for each item, and yield each as it ends: `cue.map` for this task."""
        return self._cue.map(self._task, items, key=key, params=params, window=window)

    def options(self, **options: Unpack[PlainOptions]) -> Submitter[P, R]:
        """The same with these options of `submit`, such as `priority=5`."""
        parse.reject_unknown(options, OPTIONS, "options()")
        return Submitter(self._cue, self._task, {**self._options, **options})

    def __reduce__(self) -> tuple[Any, ...]:
        # A function takes what is on it along to another process, where there is no Cue to submit to.
        return Submitter, (_NoCue(), self._task)

    def _params(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        parameters = self._cue.get_task(self._task).parameters
        if parameters is not None:
            return parameters.bound(args, kwargs)
        if args:
            raise InvalidParams(
                "params",
                f"are given by name: task {quoted(self._task)} is called with its unit, not with them.",
            )
        return kwargs


def _copied(params: object) -> Any:
    """A copy of params; what are none are refused when they are submitted."""
    return dict(params) if isinstance(params, Mapping) else params


class _NoCue:
    """Stands for the Cue in another process."""

    def __getattr__(self, name: str) -> Any:
        raise RuncueError(
            "A handler in another process cannot submit: let it return what is to be submitted."
        )


def attached(function: Callable[..., Any], submitter: Submitter[..., Any]) -> Callable[..., Any]:
    """The function, with the ways to submit its task on it, if it can carry them.

    A bound method cannot; a class, or an object that has an attribute of such a name, is left as it is.
    """
    if isinstance(function, type) or any(map(partial(_has_own, function), ATTRIBUTES)):
        return function
    for name in ATTRIBUTES:
        try:
            setattr(function, name, getattr(submitter, name))
        except (AttributeError, TypeError):
            break
    return function


def _has_own(function: Callable[..., Any], name: str) -> bool:
    """True for an attribute that was not put there by `attached`."""
    found = getattr(function, name, None)
    return found is not None and not isinstance(getattr(found, "__self__", None), Submitter)


# --- For type checkers ----------------------------------------------------------------------------


class TaskFunction(Protocol[P, R]):
    """A function that `@cue.task` has registered: it can still be called, and it can be submitted."""

    async def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Submit one unit, with params as the function takes them."""
        ...

    async def submit_many(self, items: Iterable[Mapping[str, Any]]) -> list[Handle[R]]:
        """Submit many units at once, all or none: a dict of params for each."""
        ...

    def unit(self, /, *args: P.args, **kwargs: P.kwargs) -> Unit[R]:
        """A unit as a value, not yet submitted."""
        ...

    def map(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Key | None = None,
        params: Params | None = None,
        window: int = 1000,
    ) -> AsyncIterator[Work]:
        """Submit one unit for each item, and yield each as it ends."""
        ...

    def options(self, **options: Unpack[PlainOptions]) -> Submitter[P, R]:
        """The same with options of `submit`, such as `priority=5`."""
        ...


class PlainTask(TaskFunction[P, R], Protocol[P, R]):
    """A task that is a plain function of its params."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class AsyncTask(TaskFunction[P, R], Protocol[P, R]):
    """A task that is an `async def` function of its params."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


class PlainUnitTask(TaskFunction[P, R], Protocol[P, R]):
    """A task that is a plain function of its unit, `work`, and maybe of params."""

    def __call__(self, work: RunningWork, *args: P.args, **kwargs: P.kwargs) -> R: ...


class AsyncUnitTask(TaskFunction[P, R], Protocol[P, R]):
    """A task that is an `async def` function of its unit, `work`, and maybe of params."""

    def __call__(self, work: RunningWork, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


class Registering(Protocol):
    """What `@cue.task(…)` is: it takes the function and returns it."""

    @overload
    def __call__(self, function: WithUnit[P, Coroutine[Any, Any, R]], /) -> AsyncUnitTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: WithUnit[P, R], /) -> PlainUnitTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, function: Any, /) -> Any: ...


class WithUnit(Protocol[P, R_co]):
    """A function whose first parameter is called `work`."""

    def __call__(self, work: Any, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
