"""`@cue.resource`: how a function makes what handlers share.

    @cue.resource
    async def database() -> AsyncIterator[Database]:
        async with connect(...) as database:
            yield database

Rules:
- What it makes is said by its return annotation: the type that it yields or returns, or a class itself. Handlers
  that annotate a parameter with that type get the resource.
- A context manager that is returned is entered. What is not async runs in a thread of its own, where it is left, too.
- Its own parameters are other resources, named by their types.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Final, get_args, get_origin

from runcue.declare.parameters import hints_of
from runcue.engine.handler import is_async, spoken
from runcue.engine.resources import Resource
from runcue.errors import ConfigError
from runcue.host.loops import hold

MAKERS: Final = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.Iterable,
    contextlib.AbstractAsyncContextManager,
    contextlib.AbstractContextManager,
)
FORM: Final = "async def database() -> AsyncIterator[Database]: …"


def resource_of(function: Callable[..., Any], known: Mapping[Any, Resource]) -> Resource:
    """The resource that a function, or a class, makes."""
    if not callable(function):
        raise ConfigError(f"@cue.resource takes a function that makes the resource, such as `{FORM}`")
    name = getattr(function, "__name__", spoken(function))
    if isinstance(function, type):
        kind: Any = function
        hints: dict[str, Any] = {}
        with contextlib.suppress(ConfigError):
            hints = hints_of(name, vars(function).get("__init__", object.__init__))
    else:
        hints = hints_of(name, function)
        kind = _made(hints.get("return"))
    if kind is None:
        raise ConfigError(f"{spoken(function)} has to say which type it makes: `{FORM}`")
    needs = {}
    for one in inspect.signature(function).parameters.values():
        hint = hints.get(one.name)
        if any(hint is other for other in known):
            needs[one.name] = hint
        elif one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise ConfigError(
                f"The resource {spoken(function)} needs {one.name!r}, which is no resource that was declared before."
            )
    return Resource(kind, name, _opener(function), needs)


def _made(annotation: Any) -> Any:
    """The type that a function makes, from its return annotation."""
    if get_origin(annotation) in MAKERS:
        return get_args(annotation)[0]
    return annotation


def _opener(function: Callable[..., Any]) -> Callable[..., AbstractAsyncContextManager[Any]]:
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    if inspect.isgeneratorfunction(function):
        return _in_thread(contextmanager(function))

    @asynccontextmanager
    async def opened(**needed: Any) -> AsyncIterator[Any]:
        if is_async(function):
            async with _entered(await function(**needed)) as made:
                yield made
        else:
            async with _in_thread(function)(**needed) as made, _entered(made) as entered:
                yield entered

    return opened


@asynccontextmanager
async def _entered(made: Any) -> AsyncIterator[Any]:
    """What is made, entered if it is an async context manager, such as a client of an HTTP library."""
    if hasattr(made, "__aenter__"):
        async with made as entered:
            yield entered
    else:
        yield made


def _in_thread(function: Callable[..., Any]) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """What a plain function makes, entered and left in one thread: it may block."""

    @asynccontextmanager
    async def opened(**needed: Any) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "runcue-resource")

        async def call(step: Callable[..., Any], *arguments: Any) -> Any:
            release = hold(loop)
            try:
                return await loop.run_in_executor(thread, step, *arguments)
            finally:
                release()

        stack = contextlib.ExitStack()

        def enter() -> Any:
            made = function(**needed)
            is_entered_here = isinstance(made, AbstractContextManager) and not hasattr(made, "__aenter__")
            return stack.enter_context(made) if is_entered_here else made

        try:
            value = await call(enter)
            try:
                yield value
            finally:
                await call(stack.close)
        finally:
            thread.shutdown(wait=False)

    return opened
