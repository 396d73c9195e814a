"""Checks the arguments of `Cue`, `submit`, `get`, `list`, `join`, `start` and `events`, and makes them exact."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

from runcue.core.model import parse
from runcue.core.model.events import EVENTS, WORK_EVENTS, EventFilter
from runcue.core.model.record import WorkState
from runcue.core.views.query import Query
from runcue.declare import tags as tagging
from runcue.declare.options import choice, pause
from runcue.errors import ConfigError, InvalidOption, SubmitError, quoted
from runcue.host.address import advice, is_address, is_server, plain

STATES: Final = (*map(str, WorkState), "queued")
MOST_DEPENDENCIES: Final = 100_000
MEMORY: Final = ":memory:"
SOME: Final = 1000
"""How many units are changed at once."""
NEEDS_PSYCOPG: Final = 'A queue in PostgreSQL needs psycopg: pip install "runcue[postgres]"'


def queue_place(store: object) -> str | None:
    """Read where a Cue keeps its queue: a file or an address; None for memory."""
    if store is None or (isinstance(store, (str, os.PathLike)) and os.fspath(store) == MEMORY):
        return None
    return stored_queue(
        store,
        "open {}: a queue is in memory, in a file or in PostgreSQL",
        "Use Cue(), Cue('queue.db') or Cue('postgresql://user@host/database').",
    )


def stored_queue(store: object, problem: str, example: str) -> str:
    """Read the file or the address of a queue; memory and other databases are refused."""
    place = os.fspath(store) if isinstance(store, os.PathLike) else store
    if isinstance(place, str) and place and place != MEMORY and (is_server(place) or not is_address(place)):
        return place
    shown = quoted(plain(place) if isinstance(place, str) else place)
    raise ConfigError(f"Cannot {problem.format(shown)}. {advice(store) or example}")


def work_id(value: object) -> str:
    """Read the id of a unit, whether or not the unit exists."""
    try:
        return parse.work_id(value)
    except SubmitError:
        expected = f"1 to {parse.LONGEST_NAME} printable characters{_unawaited(value)}"
    raise InvalidOption("id", value, expected)


def nothing_else(task: object, misplaced: tuple[object, ...]) -> None:
    """Refuse positional arguments of `submit` after the task, and show how to pass them."""
    if misplaced:
        name = quoted(task) if isinstance(task, str) else getattr(task, "__name__", "task")
        params = quoted(misplaced[0]) if len(misplaced) == 1 and isinstance(misplaced[0], dict) else "{…}"
        raise SubmitError(
            "submit() takes only the task by position; arguments of the handler go into params: "
            f"submit({name}, params={params})."
        )


def work_ids(value: object) -> list[str] | None:
    """Read the ids that `join` waits for; None means all units."""
    if value is None:
        return None
    given = _several(value)
    try:
        return list(map(work_id, given))
    except InvalidOption:
        for other in given:
            _unawaited(other)
        raise


def queue_names(value: object) -> frozenset[str] | None:
    """Read which queues `start` serves; None means all."""
    return None if value is None else frozenset(parse.name(name, "queue") for name in _several(value))


def texts(value: object) -> dict[str, str | None]:
    """Read the argument of `set_config`: names, each with a text or None."""
    if not isinstance(value, Mapping):
        raise InvalidOption("config", value, "a dict of names and texts")
    for name, text in value.items():
        parse.name(name, "config")
        if text is not None and not isinstance(text, str):
            raise InvalidOption(f"config {name}", text, "a text or None")
    return dict(value)


def event_number(value: object) -> int:
    """Read the number of the event after which a reader goes on."""
    return parse.number(value, "since", whole=True)


def _several(value: object) -> list[Any]:
    """Make a list of one value or of several."""
    is_one = isinstance(value, (str, bytes, Mapping, Awaitable)) or not isinstance(value, Iterable)
    return [value] if is_one else list(value)  # type: ignore[call-overload]  # (it is iterable then)


def not_called(task: object) -> None:
    """Refuse the call of a handler where the handler itself is meant: `submit(extract(1))`."""
    if inspect.iscoroutine(task):
        _end(task)
        name = task.__name__
        raise SubmitError(
            f"The task is a call of {quoted(name)}. Give the function itself, and its arguments as params: "
            f"submit({name}, params={{…}})."
        )


def _end(value: object) -> None:
    """Close a coroutine that was never awaited, so that Python does not warn of it as well."""
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()


def _unawaited(value: object) -> str:
    """Advice for a call that was not awaited."""
    _end(value)
    return " (did you forget await?)" if isinstance(value, Awaitable) else ""


def work_state(value: object) -> WorkState | None:
    """Read the state that `list` filters by; "queued" is the older name of "pending"."""
    return None if value is None else WorkState(choice(value, "state", STATES))


def query(state: object = None, task: str | None = None, limit: object = 100, **where: Any) -> Query:
    """Read which units `list`, `count`, `cancel` and `retry` mean."""
    parse.reject_unknown(where, WHERE, "the choice of units")
    found = {name: WHERE[name](value) for name, value in where.items() if value is not None and value != {}}
    return Query(work_state(state), task, rows(limit), **found)


def some_units(what: str, id: object, **where: Any) -> Query:
    """Read which units a change is for: something has to be said of them, and no id besides."""
    if id is not None:
        raise ConfigError(f"{what}() is given an id and {', '.join(where)}. Give one of them.")
    asked = query(limit=SOME, **where)
    if asked == Query(limit=SOME):
        raise InvalidOption("id", None, f"an id, or a choice of units such as {what}(group='import-7')")
    return asked


def tags_asked(value: object) -> tuple[tuple[str, str], ...]:
    """Read the tags that units have to have."""
    try:
        return tagging.tags(value)
    except SubmitError as error:
        raise InvalidOption("tags", value, 'names and texts, such as {"run": "nightly"}') from error


def group_name(value: object) -> str:
    """Read the name of a group, whether or not there is one."""
    try:
        return tagging.group(value)
    except SubmitError as error:
        expected = f"1 to {tagging.LONGEST_VALUE} printable characters"
        raise InvalidOption("group", value, expected) from error


def _key(value: object) -> str:
    try:
        return parse.key(value)
    except SubmitError as error:
        raise InvalidOption("key", value, f"1 to {parse.LONGEST_KEY} characters") from error


WHERE: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": partial(parse.name, kind="queue"),
    "service": partial(parse.name, kind="service"),
    "search": partial(parse.name, kind="search"),
    "tags": tags_asked,
    "group": group_name,
    "key": _key,
    "since": partial(parse.moment, name="since"),
    "until": partial(parse.moment, name="until"),
}
"""By what units are chosen, besides their state and task, and how each is read."""


def event_types(value: object) -> frozenset[str] | None:
    """Read which events a reader wants, by their short or their long names; None means all."""
    if value is None:
        return None
    return frozenset(choice(_short(name), "event type", tuple(EVENTS)) for name in _several(value))


def events(types: object, work: object, group: object) -> EventFilter:
    """Read which events a reader wants."""
    one = None if work is None else work_id(work)
    return EventFilter(event_types(types), one, None if group is None else group_name(group))


def _short(name: object) -> object:
    short = name.removeprefix("work_") if isinstance(name, str) else None
    return short if short in WORK_EVENTS else name


def rows(value: object) -> int:
    """Read how many units `list` returns at most."""
    return parse.number(value, "limit", 1, parse.HIGHEST_LIMIT, whole=True)


# --- Fields of a submission -----------------------------------------------------------------------


def target(value: object, limit: int) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise SubmitError(f"Invalid target: {quoted(value)}. Expected text or a Path.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SubmitError(f"Invalid target: {quoted(value)}. It is no valid Unicode text.") from None
    if size > limit:
        raise SubmitError(f"Invalid target: {size:,} bytes, more than max_params={limit:,}.")
    return str.__str__(text)


def ids(value: object) -> tuple[str, ...]:
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        raise SubmitError(f"Invalid depends_on: {quoted(value)}. Expected a list of ids{_unawaited(value)}.")
    try:
        given = [value] if isinstance(value, str) else list(islice(value, MOST_DEPENDENCIES + 1))
    except Exception as error:
        raise SubmitError(f"Invalid depends_on: reading it raised {quoted(error)}.") from error
    if len(given) > MOST_DEPENDENCIES:
        raise SubmitError(f"Invalid depends_on: more than {MOST_DEPENDENCIES:,} ids.")
    try:
        ids = list(map(parse.work_id, given))
    except SubmitError as error:
        advice = max(map(_unawaited, given))
        raise SubmitError(f"Invalid depends_on: {str(error).removesuffix('.')}{advice}.") from None
    if isinstance(value, (set, frozenset)):
        ids.sort()
    return tuple(dict.fromkeys(ids))


def due(run_at: object, delay: object) -> tuple[float | None, float | None]:
    if run_at is None:
        return None, pause(delay, "delay")
    if delay is not None:
        raise SubmitError("run_at and delay are both given. Give one of them.")
    return parse.moment(run_at), None
