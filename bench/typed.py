"""Measured: the processor's time of submitting a unit of a typed task, against one whose handler takes its unit.

A typed task checks its params and encodes them by their annotations; the other stores whatever JSON it is given. Both
are given the same params, take turns in one process, and count by their best round. Nothing runs meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import Any

from bench.measure import Line, run
from runcue import Cue

Handler = Callable[..., Any]
Params = Callable[[int], dict[str, Any]]


@dataclass
class Author:
    """A param that has parts."""

    name: str
    born: int | None = None


async def by_unit(work: Any) -> None:
    """Gets its unit."""


async def by_params(page: int, style: str = "short") -> None:
    """Gets its params."""


async def by_model(page: int, author: Author, style: str | None = None) -> None:
    """Gets a param that has parts."""


def plain(page: int) -> dict[str, Any]:
    """Params of plain types."""
    return {"page": page, "style": "long"}


def with_parts(page: int) -> dict[str, Any]:
    """Params as they come from JSON, one with parts."""
    return {"page": page, "author": {"name": "Ada", "born": 1815}, "style": None}


async def one_by_one(count: int, handler: Handler, params: Params) -> float:
    """Seconds of the processor for `count` calls of `submit`."""
    cue = Cue()
    cue.task("work")(handler)
    gc.collect()
    began = process_time()
    for page in range(count):
        await cue.submit("work", params=params(page))
    took = process_time() - began
    await cue.close()
    return took


async def together(count: int, handler: Handler, params: Params) -> float:
    """Seconds of the processor for one `submit_many`."""
    cue = Cue()
    cue.task("work")(handler)
    gc.collect()
    began = process_time()
    await cue.submit_many([{"task": "work", "params": params(page)} for page in range(count)])
    took = process_time() - began
    await cue.close()
    return took


KINDS: tuple[tuple[str, Any, Handler, Params], ...] = (
    ("submit", one_by_one, by_params, plain),
    ("submit, a dataclass among the params", one_by_one, by_model, with_parts),
    ("submit_many", together, by_params, plain),
    ("submit_many, a dataclass among the params", together, by_model, with_parts),
)


def measure(quick: bool) -> list[Line]:
    """What types cost when units are submitted."""
    count, rounds = (500, 1) if quick else (10_000, 9)
    lines = []
    for name, way, handler, params in KINDS:
        found = [[run(partial(way, count, one, params)) for one in (by_unit, handler)] for _ in range(rounds)]
        untyped, typed = map(min, zip(*found, strict=True))
        note = f"{1e6 * typed / count:.1f} µs each, not typed {1e6 * untyped / count:.1f}"
        lines.append(Line(f"{name}: typed to not typed", typed / untyped, "×", at_most=1.3, note=note))
    return lines
