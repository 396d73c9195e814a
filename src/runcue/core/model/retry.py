"""How often a unit is tried, and how long it waits in between.

Delay after failed attempt n, before jitter:

    exponential  base · 2^(n-1)
    linear       base · n
    fixed        base
    power        base^n

It never exceeds `max_delay`, however large base and n are. Jitter takes 50 to 100 % of it, computed from the unit's
id and the attempt: spread out over many units, yet the same in every process and every replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, assert_never, get_args

import msgspec
from msgspec.structs import astuple, force_setattr

from runcue.core.model.parse import duration, number, reject_unknown
from runcue.errors import InvalidOption

Backoff: TypeAlias = Literal["exponential", "linear", "fixed", "power"]
RetryOn: TypeAlias = tuple[type[BaseException], ...] | Callable[[Any], object] | None

BACKOFFS: Final = get_args(Backoff)
COROUTINE_FLAG: Final = 0x80  # inspect.CO_COROUTINE, without importing inspect


class Retry(msgspec.Struct, frozen=True):
    """A task's policy for failed attempts: how many in all, and the wait before the next one.

    Delays take seconds, a timedelta or text such as "5m"; `retry_on` takes an exception class, several, or a
    function of the exception that says whether another attempt makes sense.
    """

    max_attempts: int = 3
    backoff: Backoff = "exponential"
    base_delay: float = 0.25
    max_delay: float = 300.0
    jitter: bool = True
    retry_on: RetryOn = None

    if TYPE_CHECKING:  # it accepts more types than its fields have

        def __init__(
            self,
            max_attempts: int = 3,
            backoff: Backoff = "exponential",
            base_delay: float | timedelta | str = 0.25,
            max_delay: float | timedelta | str = 300.0,
            jitter: bool = True,
            retry_on: RetryOn | type[BaseException] | list[type[BaseException]] = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        number(self.max_attempts, "max_attempts", low=1, whole=True)
        if self.backoff not in BACKOFFS:
            raise InvalidOption("backoff", self.backoff, f"one of {', '.join(map(repr, BACKOFFS))}")
        if not isinstance(self.jitter, bool):
            raise InvalidOption("jitter", self.jitter, "True or False")
        force_setattr(self, "base_delay", duration(self.base_delay, "base_delay"))
        force_setattr(self, "max_delay", duration(self.max_delay, "max_delay"))
        force_setattr(self, "retry_on", _chooser(self.retry_on))

    def __eq__(self, other: object) -> bool:
        """Equal to a policy with the same fields; a policy with defaults except the count also equals that count."""
        if isinstance(other, Retry):
            return self._key() == other._key()
        return self._key() == other if isinstance(other, (int, float)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> object:
        attempts, *others = astuple(self)
        return attempts if tuple(others) == self.__struct_defaults__[1:] else (attempts, *others)

    @classmethod
    def of(cls, value: object) -> Retry:
        """Read what `retry=` was given: nothing, a number of attempts, a dict of fields, or a Retry."""
        if isinstance(value, Retry):
            return value
        if isinstance(value, dict):
            reject_unknown(value, cls.__struct_fields__, "retry")
            return cls(**value)
        attempts = 1 if value is None else number(value, "retry", low=0, whole=True)
        return cls(max_attempts=max(attempts, 1))


def retry_of_work(value: object) -> Retry:
    """Read the `retry` of a single unit: as `Retry.of`, but without `retry_on`, which cannot be stored."""
    policy = Retry.of(value)
    if policy.retry_on is not None:
        raise InvalidOption("retry_on", policy.retry_on, "nothing here: only a task can have it")
    return policy


def delay_after(retry: Retry, work_id: str, attempt: int) -> float:
    """How many seconds a unit waits after its failed attempt number `attempt`."""
    delay = min(_backoff(retry, attempt), retry.max_delay)
    return delay * _share(work_id, attempt) if retry.jitter else delay


def _backoff(retry: Retry, attempt: int) -> float:
    base = retry.base_delay
    try:
        match retry.backoff:
            case "exponential":
                return math.ldexp(base, attempt - 1)
            case "linear":
                return base * attempt
            case "fixed":
                return base
            case "power":
                return base**attempt
            case _:
                assert_never(retry.backoff)
    except OverflowError:  # more than a float can hold is more than any max_delay
        return math.inf


def _share(work_id: str, attempt: int) -> float:
    """A number from 0.5 to 1 that looks random, and is always the same for the same attempt."""
    from hashlib import blake2b  # loads a cryptographic library, and only failures need it

    lot = blake2b(f"{attempt}:{work_id}".encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return 0.5 + int.from_bytes(lot, "big") / 2**49


def _chooser(retry_on: object) -> RetryOn:
    kinds = (retry_on,) if isinstance(retry_on, type) else retry_on
    if isinstance(kinds, (tuple, list)):
        if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            return tuple(kinds)
    elif kinds is None or (callable(kinds) and not _is_coroutine_function(kinds)):
        return kinds
    raise InvalidOption("retry_on", retry_on, "exception classes, or a plain function of the exception")


def _is_coroutine_function(function: object) -> bool:
    flags: int = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return bool(flags & COROUTINE_FLAG)
