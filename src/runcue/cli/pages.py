"""Long lists, read page by page.

Rules:
- Where `--limit` cuts a list, a line on stderr says so, for a table and for JSON. `--all`, or `--limit 0`, lists
  everything.
- Rows are read a page at a time, so that a list of any length takes little memory. Rows that are added while it is
  printed are newer, and are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import click

from runcue.cli.failure import bad_input, conflict
from runcue.cli.groups import F, declared
from runcue.cli.screen import note, show_json

T = TypeVar("T")

PAGE = 1000
SHOWN = 50
"""How many rows are listed without `--limit`."""
MOST = 1_000_000_000


def limited(many: str) -> Callable[[F], F]:
    """The options `--limit` and `--all` of a verb that lists; it passes their values to `most_of`."""
    return declared(
        click.option(
            "--limit", metavar="N", type=click.IntRange(0, MOST), default=SHOWN, show_default=True,
            help=f"Show at most N {many}.",
        ),
        click.option("--all", "everything", is_flag=True, help=f"All {many}, as --limit 0."),
    )  # fmt: skip


def most_of(limit: int, everything: bool) -> int | None:
    """How many rows to list; None is all of them."""
    source = click.get_current_context().get_parameter_source("limit")
    if everything and limit and source is not click.core.ParameterSource.DEFAULT:
        raise bad_input("Give --limit or --all, not both.")
    return None if everything else limit or None


def by_id(row: Mapping[str, Any]) -> str:
    """The id of a row that is a dict."""
    return str(row["id"])


class Pages(Generic[T]):
    """The rows of a list, page by page; at the end `is_cut` says whether there are more than `most`.

    `find(limit, before)` returns the newest rows that are older than the one with the id `before`.
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
        """The rows behind that page. Some rows of the page may have been deleted since it was read."""
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
        """The rows one by one."""
        for page in self:
            yield from page

    def conclude(self, shown: int, empty: str, *, as_json: bool) -> None:
        """Say at the end of the list that there are more, or, with the text `empty`, that there are none."""
        if not shown and not as_json:
            note(empty)
        if self.is_cut:
            note(f"There are more than these {shown:,}: use --limit or --all.")


def show_none(text: str, *, as_json: bool) -> None:
    """Print an empty list: that text, or as JSON."""
    if as_json:
        show_json([])
    else:
        note(text)
