"""Inspects a user's function without calling it: its arguments, its name, its identity."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeGuard

from runcue.core.model import parse
from runcue.errors import ConfigError, quoted


def unwrapped(function: object) -> object:
    """The function inside any number of functools.partial."""
    while isinstance(function, partial):
        function = function.func
    return function


def is_async(function: object) -> bool:
    """True for `async def`, also inside a partial or as the `__call__` of an object."""
    inner = unwrapped(function)
    return any(map(inspect.iscoroutinefunction, (inner, getattr(type(inner), "__call__", None))))  # noqa: B004


def is_plain_function(function: object) -> TypeGuard[Callable[[Any], Any]]:
    """True for a callable of one argument that is not async, as options such as `uses=` take it."""
    return callable(function) and not is_async(function) and takes(function, 1)


def yields(function: object) -> bool:
    """True for a generator function, plain or async: calling it does not run it."""
    inner = unwrapped(function)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def takes(function: Callable[..., Any], amount: int) -> bool:
    """True unless it is certain that a call with so many arguments fails."""
    try:
        signature = inspect.signature(function)
    except Exception:  # noqa: BLE001 (some built-ins have none, and anything may claim to have one)
        return True
    try:
        signature.bind(*range(amount))
    except TypeError:
        return False
    return True


def spoken(function: object) -> str:
    """A function as a message shows it: its name, or its repr."""
    return quoted(getattr(function, "__qualname__", function))


def own_name(function: object) -> str:
    """The handler's name, for a task that was given none."""
    name = getattr(unwrapped(function), "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise ConfigError(f"{spoken(function)} has no name of its own. Give the task one: task('name', …).")
    return parse.name(name, "task")


def identity(function: object) -> object:
    """A key by which handlers compare equal: a bound method is a new object each time it is named."""
    if isinstance(function, MethodType):
        return id(function.__self__), id(function.__func__)
    return id(function)


def origin(function: object) -> tuple[str, str] | None:
    """Module and name of a function at the top of a module: one with the same origin is an edited version."""
    if not isinstance(function, FunctionType) or "<" in function.__qualname__:
        return None
    return function.__module__, function.__qualname__
