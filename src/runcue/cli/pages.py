"""Long lists: how many rows are wanted, and how they are read.

Rules:
- A list that `--limit` cuts says so on stderr, as a table and as JSON. `--all`, or `--limit 0`, shows everything.
- Rows are read a page at a time, so that a list of any length takes little memory. Rows that are added meanwhile are
  newer than the list, and are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import click

from runcue.cli.failure import bad_input, conflict
from runcue.cli.groups import F, declared
from runcue.cli.screen import note

T = TypeVar("T")

PAGE = 1000
SHOWN = 50
"""How many rows there are unless somebody says how many."""
MOST = 1_000_000_000


def limited(many: str) -> Callable[[F], F]:
    """The options of a verb that lists these; it gets `limit` and `everything`, and reads them by `most_of`."""
    return declared(
        click.option(
            "--limit", metavar="N", type=click.IntRange(0, MOST), default=SHOWN, show_default=True,
            help=f"Show at most N {many}.",
        ),
        click.option("--all", "everything", is_flag=True, help=f"All {many}, as --limit 0."),
    )  # fmt: skip


def most_of(limit: int, everything: bool) -> int | None:
    """How many rows are wanted; None is all of them."""
    source = click.get_current_context().get_parameter_source("limit")
    if everything and limit and source is not click.core.ParameterSource.DEFAULT:
        raise bad_input("Give --limit or --all, not both.")
    return None if everything else limit or None


def by_id(row: Mapping[str, Any]) -> str:
    """The id of a row that is a dict."""
    return str(row["id"])


class Pages(Generic[T]):
    """The rows of a list, page by page; `is_cut` tells in the end whether there are more than were wanted.

    `find(limit, before)` gives the newest rows that are older than the one with that id.
    """

    def __init__(
        self,
        find: Callable[[int, str | None], list[T]],
        most: int | None,
        id_of: Callable[[T], str],
        page: int | None = None,
    ) -> None:
        self._find = find
        self._left = most
        self._id_of = id_of
        self._page = page or PAGE
        self.is_cut = False

    def __iter__(self) -> Iterator[list[T]]:
        page: list[T] = []
        while True:
            wanted = self._page if self._left is None else min(self._page, self._left)
            found = self._after(page, wanted + 1)
            self.is_cut = len(found) > wanted
            page = found[:wanted]
            if page:
                yield page
            if self._left is not None:
                self._left -= wanted
            if not self.is_cut or self._left == 0:
                return

    def _after(self, page: list[T], limit: int) -> list[T]:
        """What comes next. Of the page before, some may have been deleted since."""
        if not page:
            return self._find(limit, None)
        from runcue import WorkNotFound

        known = [self._id_of(row) for row in page]
        for place, last in enumerate(reversed(known)):
            try:
                found = self._find(limit + place, last)
            except WorkNotFound:
                continue
            return [row for row in found if self._id_of(row) not in known]
        raise conflict("What was listed last was deleted meanwhile. List again.")

    def rows(self) -> Iterator[T]:
        """One row after the other."""
        for page in self:
            yield from page

    def note(self, shown: int) -> None:
        """Say that there are more, if there are."""
        if self.is_cut:
            note(f"There are more than these {shown:,}: use --limit or --all.")
