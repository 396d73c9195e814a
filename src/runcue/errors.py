"""Every exception of runcue.

Rules:
- A message is one line: what happened, to which thing, what to do. A value that a user gave is quoted, cut to 80
  characters and escaped, so that it is safe on a terminal and in a log.
- Facts are fields (`error.name`, `error.cycle`), so that no program has to parse the text.
- A `ConfigError` is a mistake in code or options, a `SubmitError` one in a submission; both are a ValueError. Those
  that a handler raises to steer its own unit come last.
- All can be pickled: handlers in worker processes raise them, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta

    from runcue.core.model.record import Work

QUOTED_LENGTH = 80
NAMES_SHOWN = 8


def quoted(value: object) -> str:
    """Show any value of a user inside a message: on one line, at most about 80 characters."""
    try:
        if isinstance(value, str):
            text = repr(value[: QUOTED_LENGTH + 1])
        else:
            from reprlib import Repr  # it cuts long containers without making their whole text first

            short = Repr()
            short.maxother = short.maxstring = short.maxlong = QUOTED_LENGTH
            text = short.repr(value)
    except BaseException:  # noqa: BLE001 (a __repr__ may raise anything; an int may be too long to be written)
        text = f"<{type(value).__name__}>"
    if len(text) > QUOTED_LENGTH + 2:
        closing = text[0] if text[0] in "'\"" else ""
        text = text[:QUOTED_LENGTH] + "…" + closing
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)


def listed(names: Iterable[str]) -> str:
    """Show the first few names, quoted, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - NAMES_SHOWN
    return ", ".join(map(quoted, ordered[:NAMES_SHOWN])) + (f" and {more} more" if more > 0 else "")


def nearest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A sentence that suggests the known name that was probably meant; empty when none is near."""
    if not isinstance(name, str) or len(name) > 2 * QUOTED_LENGTH:
        return ""
    import difflib  # slow to import, and only mistakes need it

    matches = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f" Did you mean {quoted(matches[0])}?" if matches else ""


def _registered(name: object, known: tuple[str, ...]) -> str:
    return f"Registered: {listed(known)}.{nearest(name, known)}" if known else ""


def _rebuilt(kind: type[RuncueError], args: tuple[object, ...], fields: dict[str, object]) -> RuncueError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class RuncueError(Exception):
    """The base of all exceptions of runcue."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception would call the class with the finished message as its first argument.
        return _rebuilt, (type(self), self.args, self.__dict__)


# --- Code or options are wrong --------------------------------------------------------------------


class ConfigError(RuncueError, ValueError):
    """Says that a Cue, a service, a task or an option is declared wrongly."""


class UnknownTask(ConfigError):
    """Says that no handler is registered under this name."""

    def __init__(self, name: object, known: Iterable[str] = ()) -> None:
        self.name, self.known = name, tuple(known)
        advice = _registered(name, self.known) or (
            "No task is registered yet: decorate its handler with @cue.task(name)."
        )
        super().__init__(f"Unknown task type: {quoted(name)}. {advice}")


class UnknownService(ConfigError):
    """Says that no service is registered under this name."""

    def __init__(self, name: object, known: Iterable[str] = ()) -> None:
        self.name, self.known = name, tuple(known)
        advice = _registered(name, self.known) or (
            "No service is registered yet: call cue.service(name, …) first."
        )
        super().__init__(f"Unknown service: {quoted(name)}. {advice}")


class UnknownSchedule(RuncueError, LookupError):
    """Says that there is no schedule of this name."""

    def __init__(self, name: object, known: Iterable[str] = ()) -> None:
        self.name, self.known = name, tuple(known)
        there = f" There are: {listed(self.known)}.{nearest(name, self.known)}" if self.known else ""
        super().__init__(f"There is no schedule {quoted(name)}.{there}")


class ScheduleConflict(ConfigError):
    """Says that the name of a schedule belongs to one that a program declares in its code."""

    def __init__(self, name: str, source: str | None, task: str) -> None:
        self.name, self.source, self.task = name, source, task
        super().__init__(
            f"Schedule {quoted(name)} is declared by {source}, for task {quoted(task)}. Choose another name, or "
            "change it there."
        )


class InvalidRate(ConfigError):
    """Says that a rate cannot be read, or names a unit of time that does not exist."""

    def __init__(self, given: object, unit: str | None = None) -> None:
        self.given = quoted(given)
        self.unit = unit
        if unit is None:
            problem = f"Invalid rate format: {self.given}. Use a whole number from 1 to 1,000,000,000"
            advice = "per time, without spaces: '60/min', '100/10s', '200k/min' or (60, 60)."
        else:
            problem = f"Unknown rate unit: {quoted(unit)} in {self.given}."
            advice = "Use ms, s, min, h or d, as in '60/min' or '100/10s'."
        super().__init__(f"{problem} {advice}")


class InvalidOption(ConfigError):
    """Says that an option has a value that it cannot have, and which values it takes."""

    def __init__(self, name: str, given: object, expected: str) -> None:
        self.name = name
        self.given = quoted(given)
        self.expected = expected
        super().__init__(f"Invalid {name}: {self.given}. Expected {expected}.")


CLOSE: Final = 0.76
"""How similar an option has to be for its name to be suggested."""
ANYWHERE: Final = ""
_RETRY = "Say retry=3, or retry={'max_attempts': 3, …}."
_SERVICE = 'Limits belong to a service: cue.service("api", rate="60/min", concurrent=5), and uses="api" '
_LIMITS = {
    "task()": f"{_SERVICE}here.",
    **dict.fromkeys(("set_limits()", "total="), 'Say rate="60/min" or concurrent=5.'),
    ANYWHERE: f"{_SERVICE}in task().",
}
_LATER = "delay= for seconds from now, or run_at= for a moment."
_TOPICS: Final[Mapping[tuple[str, ...], Mapping[str, str]]] = {
    ("retry", "retries", "max_retries", "max_attempts", "attempts"): {
        **dict.fromkeys(("task()", "submit()", "options()"), _RETRY),
        "retry": "Say max_attempts=3.",
        ANYWHERE: "Give it to task() or submit(): retry=3.",
    },
    ("rate", "rate_limit"): _LIMITS,
    ("concurrent", "concurrency", "max_concurrent"): {
        **_LIMITS,
        "Cue": f"Say max_running=5 for all units together. {_SERVICE}in task().",
    },
    ("args", "kwargs", "payload", "data"): {
        "submit()": "Arguments of the handler go into params={…}.",
        "task()": "Arguments of the handler are given to submit(): params={…}.",
    },
    ("countdown", "eta", "schedule"): {
        **dict.fromkeys(("submit()", "options()"), f"Say {_LATER}"),
        ANYWHERE: f"Give it to submit(): {_LATER}",
    },
    ("after", "deps", "dependencies"): {
        **dict.fromkeys(("submit()", "options()"), "Say depends_on=[id, …]."),
        ANYWHERE: "Give it to submit(): depends_on=[id, …].",
    },
    ("priority", "queue", "delay", "run_at", "depends_on", "params"): {
        ANYWHERE: "Give it to submit(), for each unit."
    },
    ("uses", "executor", "inputs", "outputs", "cost"): {ANYWHERE: "Give it to task(), for all its units."},
    ("service", "services"): {ANYWHERE: 'Give it to task(): uses="api".'},
}
ELSEWHERE: Final = {name: advice for names, advice in _TOPICS.items() for name in names}
"""Advice for options that exist under another name or in another place, by where they were given."""


def _advice(name: object, where: str) -> str:
    """Advice about an option that resembles no other; empty when there is none."""
    if not isinstance(name, str):
        return ""
    advice = ELSEWHERE.get(name, {})
    if found := advice.get(where) or advice.get(ANYWHERE):
        return found
    if where == "submit()":
        return f"Arguments of the handler go into params={{{quoted(name)}: …}}."
    return ""


class UnknownOption(ConfigError):
    """Says that there is no option of this name."""

    def __init__(self, name: object, known: Iterable[str], where: str) -> None:
        self.name = name
        self.known = tuple(known)
        self.where = where
        names = ", ".join(map(quoted, sorted(self.known))) or "none"
        advice = nearest(name, self.known, CLOSE) or _advice(name, where) or f"It takes {names}."
        super().__init__(f"{where} has no option {quoted(name)}. {advice.strip()}")


# --- A submission is refused; nothing was queued --------------------------------------------------


class SubmitError(RuncueError, ValueError):
    """Says that a submission was not accepted; nothing was queued."""


class InvalidParams(SubmitError):
    """Says which of the params is wrong or cannot be stored as JSON, and what to pass instead."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(f"{path} {problem}")


class QueueFull(SubmitError):
    """Says that as many units are pending as `max_queued` allows."""

    def __init__(self, pending: int, limit: int, asked: int = 1) -> None:
        self.pending = pending
        self.limit = limit
        self.asked = asked
        advice = "Submit later, raise max_queued, or use reject_policy='block'."
        if asked > limit:
            advice = "Submit in smaller batches or raise max_queued."
        super().__init__(
            f"Queue full: {pending} pending, {asked} more asked for, max_queued={limit}. {advice}"
        )


class DependencyCycle(SubmitError):
    """Says that a unit would wait for itself, and through which units."""

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        way = [quoted(work_id) for work_id in self.cycle[:NAMES_SHOWN]]
        if len(self.cycle) > NAMES_SHOWN:
            way += [f"… ({len(self.cycle) - NAMES_SHOWN} more)"]
        super().__init__(f"Dependency cycle: {' → '.join(way)}. Leave out one of these depends_on.")


class DuplicateWork(SubmitError):
    """Says that an id or an idempotency key is taken, or that a unit is the duplicate of another, and of which."""

    def __init__(
        self,
        work_id: str,
        key: str | None = None,
        state: str | None = None,
        differs: str | None = None,
        is_unique: bool = False,
    ) -> None:
        self.work_id = work_id
        self.key = key
        self.state = state
        self.differs = differs
        self.is_unique = is_unique
        holder = f"Idempotency key {quoted(key)} belongs to unit {quoted(work_id)}"
        if is_unique and differs is not None:
            message = (
                f"This is a duplicate of unit {quoted(work_id)} by unique=, and has {differs}: cancel that unit, "
                "or submit the same."
            )
        elif is_unique:
            message = (
                f"This is a duplicate of unit {quoted(work_id)} by unique=, which is {state}. Wait for that unit, "
                "or cancel it."
            )
        elif key is None:
            message = f"Unit {quoted(work_id)} exists already. Give another id, or none to have one made."
        elif state is None:
            message = f"{holder}, which has {differs}. Use another key for another unit."
        else:
            message = (
                f"{holder}, which is {state}. Use on_failed='resubmit' to run it anew or 'return' for its id."
            )
        super().__init__(message)


# --- Asking for a unit and for its outcome ----------------------------------------------------------


class WorkNotFound(RuncueError, LookupError):
    """Says that no unit has this id, or that its record is no longer kept."""

    def __init__(self, work_id: object, forgotten: bool = False, option: str = "keep_finished") -> None:
        self.work_id = work_id
        self.forgotten = forgotten
        reason = "No unit has this id: use the one that submit() returned."
        if forgotten:
            reason = f"It finished and its record is gone: raise {option} to keep more."
        super().__init__(f"Unit not found: {quoted(work_id)}. {reason}")


class WorkNotEditable(RuncueError):
    """Says that a unit cannot be edited, since it has started or has ended otherwise than by failing."""

    def __init__(self, work_id: str, state: str) -> None:
        self.work_id = work_id
        self.state = state
        super().__init__(
            f"Unit {quoted(work_id)} is {state}: only pending and failed units can be edited. Submit another."
        )


class GroupNotFound(RuncueError, LookupError):
    """Says that no unit was submitted with that group, or that none is kept any more."""

    def __init__(self, name: object, known: Iterable[str] = ()) -> None:
        self.name = name
        super().__init__(
            f"Group not found: {quoted(name)}. No unit was submitted with it, or none is kept any more."
            f"{nearest(name, known)}"
        )


class _WorkEnded(RuncueError):
    def __init__(self, work: Work, what: str) -> None:
        self.work = work
        reason = str(work.error or "").partition("\n")[0][:300]
        ending = f": {reason}" if reason else ""
        super().__init__(f"Unit {quoted(work.id)} (task {quoted(work.task)}) {what}{ending}")


class WorkFailed(_WorkEnded):
    """Raised instead of the result of a unit that failed for good; `.work` has its error and attempts."""

    def __init__(self, work: Work, what: str = "failed") -> None:
        super().__init__(work, what)


class WorkTimedOut(WorkFailed):
    """Raised instead of the result of a unit whose last attempt timed out."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, "timed out")


class WorkExpired(WorkFailed):
    """Raised instead of the result of a unit that did not start before it expired (`expires=`)."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, "was not started in time")


class WorkCancelled(_WorkEnded):
    """Raised instead of the result of a unit that was cancelled."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, "was cancelled")


class CueClosed(RuncueError):
    """Says that a Cue was used after close()."""

    def __init__(self, action: str = "submit") -> None:
        self.action = action
        super().__init__(f"Cannot {action}: this Cue is closed. Make a new Cue, or close it later.")


class WrongThread(RuncueError):
    """Says that a blocking call would wait for itself, or that a Cue was used on another loop than its own."""


# --- The store ------------------------------------------------------------------------------------


class StoreError(RuncueError):
    """Says that the store could not read or write; errors of database drivers are turned into this."""

    def __init__(self, message: str, store: str | None = None) -> None:
        self.store = store
        super().__init__(message)


class StorageFull(StoreError):
    """Says that the disk or the database has no room left."""


class StorageCorrupt(StoreError):
    """Says that the stored queue is damaged, or is no queue of runcue."""


class StorageReplaced(StoreError):
    """Says that the file of a running Cue was deleted or replaced."""


class StorageBusy(StoreError):
    """Says that other processes held the store for too long, or conflicted with this turn."""

    is_passing: bool = False
    """True when a retry may succeed at once."""


class StorageInsecure(StoreError):
    """Says that files of the queue belong to another user, or that other users may write to them; nothing is read."""


class SchemaTooNew(StoreError):
    """Says that a newer runcue made this store; it stays unchanged."""


class ForkedConnection(StoreError):
    """Says that a Cue was used in a forked child, where its connections do not work."""


# --- Raised by a handler to steer its own unit --------------------------------------------------


class CommandFailed(RuncueError):
    """A command ended with an exit code other than 0, or by a signal; `result` has its output."""

    def __init__(self, reason: str, result: dict[str, Any] | None = None, is_answer: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.result = result
        self.is_answer = is_answer
        """True when a service gave that answer: it is up, whatever the command did."""


class ResourceFailed(RuncueError):
    """A resource that a handler needs could not be opened, so the attempt ended before its handler was called."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f"The resource {name} could not be opened: {problem}")


class WrongResult(RuncueError):
    """A stored result is not what its task declares: the handler returned something else, or was changed since."""

    def __init__(self, work_id: str, task: str, expected: str, problem: object) -> None:
        self.work_id = work_id
        super().__init__(
            f"The result of unit {work_id!r} is stored, but it is no {expected}, as task {quoted(task)} declares: "
            f"{problem}. cue.get(id) shows it as it is stored."
        )


class WorkerLost(RuncueError):
    """The process that ran a function died; other units are not affected."""


class Unreachable(RuncueError):
    """A host could not be reached, or the connection to it broke: the command may or may not have run."""


class RateLimited(RuncueError):
    """Raise it when a service says "slow down": the whole service is paused, and no attempt is counted.

    `retry_after` takes seconds, a timedelta, text such as "30s", or a Retry-After header as it came.
    """

    retry_after: float | timedelta | str | None = None
    service: str | None = None

    def __init__(
        self, retry_after: float | timedelta | str | None = None, service: str | None = None
    ) -> None:
        self.retry_after = retry_after
        self.service = service
        whom = "The service" if service is None else f"Service {quoted(service)}"
        when = "" if retry_after is None else f", retry after {_spoken(retry_after)}"
        super().__init__(f"{whom} asked to slow down{when}")


class RetryLater(RuncueError):
    """Raise it to fail this attempt and choose when the next one starts."""

    after: float | timedelta | str = 0.0

    def __init__(self, after: float | timedelta | str) -> None:
        self.after = after
        super().__init__(f"The handler asked for another attempt after {_spoken(after)}")


class Snooze(RuncueError):
    """Raise it to run again later; this attempt is not counted."""

    after: float | timedelta | str = 0.0

    def __init__(self, after: float | timedelta | str) -> None:
        self.after = after
        super().__init__(f"The handler asked to run again after {_spoken(after)}")


class Permanent(RuncueError):
    """Raise it when another attempt cannot help: the unit fails at once."""


class BadCommand(Permanent):
    """A handler returned a command that cannot be run: another attempt cannot help."""


def _spoken(after: object) -> str:
    return f"{after:g} s" if isinstance(after, (int, float)) else quoted(after)
