"""A handler in a module of its own: its annotations are text, and one is for type checkers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    from runcue import Work


@dataclass
class Page:
    """What the handler takes."""

    number: int


async def read(page: Page, times: int = 2) -> list[Page]:
    return [page] * times


async def of_work(work: Work) -> Page:
    return Page(work.attempt)


async def of_both(work: Work, page: Page) -> None: ...


def limited(page: Annotated[int, msgspec.Meta(gt=0)]) -> None: ...
