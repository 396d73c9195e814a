"""Finds units by the text that people are shown of them.

A queue searches its records with the secrets in them. People see a secret as `***`, but by searching they could guess
it letter by letter. So a match counts only if the text occurs in what is shown. The number of other matches stays
hidden: a list ends after some pages in a row without a match to show.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from runcue.web.rows import has_text, in_turns
from runcue.web.shapes import MOST_ROWS

if TYPE_CHECKING:
    from runcue import Work
    from runcue.web.file import Source

MOST_PAGES = 200
"""Pages that one search reads."""
MOST_IN_VAIN = 5
"""Pages in a row without a match to show, after which a search ends."""


async def pages(
    source: Source,
    first: int,
    *,
    search: str | None = None,
    before: str | None = None,
    tag: str | None = None,
    **wanted: Any,
) -> AsyncGenerator[list[Work], None]:
    """All units that match, newest first, in pages: of `first` records the first one, of MOST_ROWS the others."""
    in_vain, size = 0, first
    if tag is not None:
        name, _, value = tag.partition("=")
        wanted["tags"] = {name: value}
    for _ in range(MOST_PAGES):
        found = await source.find(**wanted, search=search, before=before, limit=size)
        seen = found if search is None else [work async for work in in_turns(found) if has_text(work, search)]
        in_vain = 0 if seen else in_vain + 1
        yield seen
        if len(found) < size or in_vain == MOST_IN_VAIN:
            return
        before, size = found[-1].id, MOST_ROWS


async def some(source: Source, limit: int, **wanted: Any) -> tuple[list[Work], bool]:
    """The newest units that match, and whether there are more."""
    found: list[Work] = []
    async with aclosing(pages(source, min(limit + 1, MOST_ROWS), **wanted)) as following:
        async for page in following:
            found += page
            if len(found) > limit:
                break
    return found[:limit], len(found) > limit
