"""Exceptions and values that raise when they are looked at, and handlers that raise or return them.

In a module of its own, so that worker processes can import it.
"""

import asyncio
from functools import cache
from itertools import product
from typing import Any

from runcue import Work


class Odd(BaseException):
    """Neither an Exception nor anything Python knows."""


class Thing:
    """A value that is no exception."""


BOMBS = (RuntimeError, Odd, KeyboardInterrupt, SystemExit, asyncio.CancelledError)
BASES: dict[str, type] = {"raise": Exception, "raise odd": BaseException, "return": Thing}
PROPERTIES = (
    "__class__", "__dict__", "__traceback__", "__cause__", "__context__", "__suppress_context__", "__notes__", "args",
    "response", "status_code", "status", "code", "type", "headers", "retry_after",
)  # fmt: skip
METHODS = (
    "__getattribute__", "__repr__", "__str__", "__eq__", "__hash__", "__bool__", "__len__", "__iter__", "__reduce__",
    "__reduce_ex__", "with_traceback",
)  # fmt: skip
OF_ITS_CLASS = ("__name__", "__mro__", "__hash__", "__eq__", "__instancecheck__")


def _class(name: str, base: type, bomb: type[BaseException], spot: str, is_in_class: bool) -> type:
    """A class of that name whose instances, or which itself, raises that when it is touched at that spot."""

    def goes_off(*_: object, **__: object) -> Any:
        raise bomb("boom")

    trap = property(goes_off) if spot in (*PROPERTIES, "__name__", "__mro__") else goes_off
    own = {"__module__": __name__, "__qualname__": name}
    if not is_in_class:
        return type(name, (base,), {**own, spot: trap})
    meta = type(f"{name}Meta", (type,), {spot: trap})
    made: type = meta(name, (base,), own)
    return made


SPOTS = [*((spot, False) for spot in (*PROPERTIES, *METHODS)), *((spot, True) for spot in OF_ITS_CLASS)]
NUMBERS = range(len(SPOTS) * len(BOMBS))


@cache
def classes(way: str) -> list[type]:
    """Everything hostile, by what is done with it. Made when it is used: libraries that look at all exceptions there
    are when they are imported would not bear it."""
    base = BASES[way]
    made = []
    for number, ((spot, is_in_class), bomb) in enumerate(product(SPOTS, BOMBS)):
        name = f"Hostile{base.__name__}{number}"
        made.append(_class(name, base, bomb, spot, is_in_class))
        globals()[name] = made[-1]
    return made


def __getattr__(name: str) -> type:
    """Pickle finds them here, also where none was made yet."""
    if name.startswith("Hostile"):
        for way in BASES:
            classes(way)
        if name in globals():
            found: type = globals()[name]
            return found
    raise AttributeError(name)


def one(way: str, number: int) -> Any:
    """A hostile exception or value."""
    kind = classes(way)[number]
    return kind("hello") if way.startswith("raise") else kind()


def misbehave(work: Work) -> Any:
    """Raise or return something hostile."""
    way = work.params["way"]
    made = one(way, work.params["number"])
    if way.startswith("raise"):
        raise made
    return made


async def misbehave_on_the_loop(work: Work) -> Any:
    """The same in a coroutine."""
    return misbehave(work)


def submissions(*ways: str) -> list[dict[str, Any]]:
    """Everything hostile that there is of these ways, once, as work for a task that is called "bad"."""
    return [{"task": "bad", "params": {"way": way, "number": n}} for way in ways for n in NUMBERS]
