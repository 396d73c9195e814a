"""What every measure gives back, and how it takes its times.

Machines are shared and noisy, so nothing here is a time to compare with another day's: what is compared runs
in the same process, in turns (A B A B …), and the best round of each counts, because noise only ever adds.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One figure: what it is, what it should be, and the numbers behind it."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None
    note: str = ""
    more: bool | None = None
    """Is more better? A goal says so itself, and so does a unit that counts something a second."""
    is_detail: bool = False
    """Is it for pages and for --json alone?"""

    @property
    def goal(self) -> str:
        """The goal in writing; nothing when the figure is only for information."""
        for sign, bound in (("≥", self.at_least), ("≤", self.at_most), ("<", self.below)):
            if bound is not None:
                return f"{sign} {bound:,g} {self.unit}".rstrip()
        return ""

    @property
    def is_more_better(self) -> bool:
        """Of two runs, is the one with the higher value the better one?"""
        if self.more is not None:
            return self.more
        return self.at_least is not None or self.unit.endswith("/s")

    @property
    def passed(self) -> bool | None:
        """True when the goal is reached, None when there is none."""
        if self.at_least is not None:
            return self.value >= self.at_least
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.below is None else self.value < self.below


def measured(name: str, quick: bool, **more: Any) -> tuple[str, list[Line]]:
    """One measure: what it times, in one line, and its figures; one has options of its own."""
    module = import_module(f"bench.{name}")
    return str(module.__doc__).splitlines()[0], module.measure(quick, **more)


def apart(name: str, quick: bool, **more: Any) -> tuple[str, list[Line]]:
    """One measure in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(measured, name, quick, **more).result()


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a loop of its own, with the garbage of the one before swept up."""
    gc.collect()
    return asyncio.run(main())


def best_in_turns(rounds: int, *contenders: Callable[[], float]) -> list[float]:
    """The best of several rounds for each contender; each round is all of them, one after the other."""
    times = [[contender() for contender in contenders] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]
