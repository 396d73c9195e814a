"""Where a queue is: the home of queuectl, or the file or address that a verb of runcue was given.

Rules:
- A file that a verb of runcue names is never created: exit code 3 where it is missing.
- The password in an address is never shown.
- A row is a dict with the columns of queuectl's jobs view (`attempts` failed, of `max_retries`), whatever the place.
- Secrets in a row are `***`, unless `--raw` is given.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
from msgspec.structs import replace

from runcue.cli.failure import STORAGE, Failure, bad_input, is_old, misconfigured
from runcue.cli.groups import Verb, verb
from runcue.cli.screen import clean, moment, note, quoted, shown, typed
from runcue.cli.words import RUNCUE, Words
from runcue.host.address import advice, is_address, is_server, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

T = TypeVar("T")
Row = dict[str, Any]
MANY = 1_000_000_000
"""The limit of a list that is not limited."""
DEFAULT = "default"
_NAME = "runcue.cli.place.name"
"""The key under which a command's context keeps --name until the address is parsed."""


class Place(Protocol):
    """A queue that can be looked at and changed."""

    def __hash__(self) -> int: ...
    @property
    def words(self) -> Words: ...
    @property
    def database(self) -> str: ...
    @property
    def exists(self) -> bool: ...
    def reader(self) -> runcue.Reader:
        """Open the queue to look at it; only when it exists."""

    def cue(self) -> runcue.Cue:
        """Open the queue to change it; that alone starts and deletes nothing."""

    def nothing(self) -> Failure:
        """The failure where there is no queue."""

    def check_id(self, text: str) -> str:
        """The id that was typed; raises when it cannot be one."""

    def counts(self, reader: runcue.Reader) -> dict[str, int]:
        """The number of units in each state."""

    def rows(
        self, reader: runcue.Reader, state: str | None = None, *, raw: bool = False, **which: Any
    ) -> list[Row]:
        """The newest units of that state, newest first; with their secrets if `raw`.

        `which` may hold `ids`, `queue`, `limit`, and `before`, the id of the last row of the page before.
        """


class File:
    """The queue that a verb of `runcue` was given: a file, or an address of PostgreSQL and the queue's name there."""

    def __init__(self, name: str, namespace: str | None = None) -> None:
        if not name or "\0" in name:
            raise bad_input("The first argument is the file of a queue, such as queue.db.")
        self.is_server = is_server(name)
        if is_address(name) and not self.is_server:
            instead = advice(name) or "Give a file, or an address such as postgresql://user@host/database."
            raise bad_input(
                f"{plain(name)} is no queue: there are queues in files and in PostgreSQL. {instead}"
            )
        if namespace is not None and not self.is_server:
            raise bad_input("--name tells queues in PostgreSQL apart; a file holds one. Leave it out.")
        self.address = name
        self.name = namespace or DEFAULT
        self.database = hiding(False)(name) if self.is_server else name
        option = "" if self.name == DEFAULT else f" --name {quoted(self.name)}"
        self.words = replace(RUNCUE, place=typed(self.database) + option)
        self._is_reached = False

    @property
    def exists(self) -> bool:
        """True; raises the reason where the queue cannot be reached, as no verb can do anything without it."""
        return self._is_there() if self.is_server else self._is_file()

    def _is_there(self) -> bool:
        """True once the database has answered. Only the first call asks it."""
        from runcue import StoreError

        if not self._is_reached:
            try:
                self.reader().close()
            except StoreError as error:
                if not is_old(error):
                    raise
            self._is_reached = True
        return True

    def _is_file(self) -> bool:
        path = Path(self.database)
        try:
            if path.stat().st_size or not path.is_file():
                if os.access(path, os.R_OK):
                    return True
                raise PermissionError
        except (FileNotFoundError, NotADirectoryError):
            raise self.nothing() from None
        except PermissionError:
            raise misconfigured(
                f"{shown(self.database)} may not be read: permission denied. Ask its owner."
            ) from None
        except (OSError, ValueError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise Failure(f"{shown(self.database)} cannot be looked at: {reason}.", STORAGE) from error
        raise self.nothing()

    def reader(self) -> runcue.Reader:
        """Open the queue to look at it."""
        from runcue import ConfigError, Reader

        try:
            return Reader(self.address, name=self.name)
        except ConfigError as error:
            if isinstance(error.__cause__, ImportError):  # the driver is an extra
                raise misconfigured(str(error)) from error
            raise

    def cue(self) -> runcue.Cue:
        """Open the queue to change it."""
        from runcue import Cue

        return Cue(self.address, name=self.name, retention=None)

    def nothing(self) -> Failure:
        """The failure where there is no such file, or nothing in it yet."""
        path = Path(self.database)
        what = "is empty: it is no queue yet" if path.is_file() else "is not there"
        return Failure(f"{shown(self.database)} {what}. Give the file of a queue{self._near(path)}", STORAGE)

    @staticmethod
    def _near(path: Path) -> str:
        """The end of a sentence that suggests a file in the same directory with a similar name, if there is one."""
        from difflib import get_close_matches  # only mistakes need it

        try:
            names = sorted(
                one.name for one in path.parent.iterdir() if one.is_file() and one.name != path.name
            )
        except OSError:
            return "."
        near = get_close_matches(path.name, names, n=1)
        return f": did you mean {quoted(str(path.with_name(near[0])))}?" if near else "."

    @staticmethod
    def check_id(text: str) -> str:
        """The id as typed: the library checks it."""
        return text

    @staticmethod
    def counts(reader: runcue.Reader) -> dict[str, int]:
        """The number of units in each state."""
        return {str(state): number for state, number in reader.count().items()}

    @staticmethod
    def rows(
        reader: runcue.Reader, state: str | None = None, *, raw: bool = False, **which: Any
    ) -> list[Row]:
        """The newest units as rows."""
        ids: list[str] | None = which.pop("ids", None)
        found = reader.list(state, **which) if ids is None else map(reader.get, ids)
        return [row_of(work, raw=raw) for work in found if work is not None]


def hiding(raw: bool) -> Callable[[Any], Any]:
    """The function that masks the secrets in a value before it is shown; with `raw` it changes nothing."""
    from runcue import mask

    return (lambda value: value) if raw else mask


def row_of(work: runcue.Work, *, raw: bool = False) -> Row:
    """A unit as a row."""
    hide = hiding(raw)
    ended = work.completed_at or work.started_at or work.created_at
    return {
        "id": work.id,
        "command": work.task if work.target is None else f"{work.task} {hide(work.target)}",
        "title": hide(work.title),
        "state": str(work.state),
        "attempts": work.failures,
        "max_retries": None if work.retry is None else work.retry.max_attempts,
        "priority": work.priority,
        "updated_at": moment(ended),
        "last_error": hide(work.error),
        "skipped": work.skipped,
    }


def on_file(
    name: str,
    *,
    examples: Sequence[str] = (),
    options: Sequence[str] = ("--name", "--namespace"),
    **more: Any,
) -> Callable[[Callable[..., Any]], Verb]:
    """Declare a verb of `runcue` whose first argument is the file or the address of a queue; it gets a `File`.

    `options` are the names of the option that picks one of the queues at an address.
    """

    def declare(function: Callable[..., Any]) -> Verb:
        place = click.argument(
            "place", metavar="QUEUE.DB", type=click.Path(readable=False), callback=_place_of
        )
        made = verb(name, examples=examples, **more)(place(function))
        which = click.Option(
            [*options, "namespace"], metavar="NAME", expose_value=False, is_eager=True,
            callback=_keep_name, help="Which queue of a PostgreSQL database, whose address QUEUE.DB is then.",
        )  # fmt: skip
        made.params.append(which)
        return made

    return declare


def _keep_name(context: click.Context, _: click.Parameter, name: str | None) -> None:
    context.meta[_NAME] = name


def _place_of(context: click.Context, _: click.Parameter, where: str) -> File:
    """The place that was typed."""
    return File(where, context.meta.get(_NAME))


# opening --------------------------------------------------------------------------------------------------


def look(place: Place) -> runcue.Reader:
    """Open the queue to look at it; raises where there is none."""
    if not place.exists:
        raise place.nothing()
    return place.reader()


def migrated(place: Place) -> runcue.Reader:
    """Open the queue to look at it, in a verb that changes it: the file of an older version is migrated first."""
    from runcue import StoreError

    try:
        return look(place)
    except StoreError as error:
        if not is_old(error):
            raise
    ask(place, lambda cue: cue.count())
    return place.reader()


def ask(place: Place, question: Callable[[runcue.Cue], Awaitable[T]]) -> T:
    """Call a function with the queue, to change it; raises where there is none.

    A file that an older version made is migrated.
    """
    if not place.exists:
        raise place.nothing()
    return ask_or_make(place, question)


def ask_or_make(place: Place, question: Callable[[runcue.Cue], Awaitable[T]]) -> T:
    """Call a function with the queue, which is created where there is none; no unit is started."""
    import asyncio
    import logging

    # The command prints one line about what went wrong; the library's log would repeat it.
    logging.getLogger("runcue").addHandler(logging.NullHandler())

    async def answer() -> T:
        cue = place.cue()
        try:
            return await question(cue)
        finally:
            await cue.close()

    return asyncio.run(answer())


def end(place: Place, failures: Sequence[Failure]) -> None:
    """Print each failure on its own line, and raise the last one; does nothing without failures."""
    for failure in failures[:-1]:
        note(f"{place.words.program}: {clean(failure.text)}")
    if failures:
        raise failures[-1]
