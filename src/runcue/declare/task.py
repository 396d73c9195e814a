"""A registered task: what its units are called with, where, and under which limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from runcue.core.model import parse
from runcue.core.model.encoding import Codec, Unsupported
from runcue.core.model.retry import Retry
from runcue.core.views.explain import OWN_POOL, THREADS
from runcue.declare.parameters import Parameters, returned
from runcue.declare.service_choice import CostOf, Picks
from runcue.declare.tags import Label
from runcue.engine.artifacts import Artifacts
from runcue.engine.handler import is_async, yields
from runcue.errors import ConfigError, quoted
from runcue.ports import CommandOptions

IN_PROCESS, OUT_OF_PROCESS, COMMANDS = "in process", "out of process", "commands"


class Kind(msgspec.Struct, frozen=True):
    """What an executor runs, and the service of each process that all its units use."""

    runs: str
    """IN_PROCESS: coroutines and functions in this process, which may get resources. OUT_OF_PROCESS: plain functions
    in another process. COMMANDS: the commands that handlers return; a result is what a command printed."""
    services: tuple[str, ...] = ()


EXECUTORS: Final = {
    "async": Kind(IN_PROCESS),
    "thread": Kind(IN_PROCESS, (THREADS,)),
    "process_pool": Kind(OUT_OF_PROCESS, (OWN_POOL,)),
    "subprocess": Kind(COMMANDS),
    "ssh": Kind(COMMANDS),
    "dask": Kind(OUT_OF_PROCESS),
}
"""The executors by the names that `executor=` takes."""


def executor_of(function: object, name: str, given: str | None) -> str:
    """The executor of a handler; refuses a handler that could never run there."""
    what = f"The handler of task {quoted(name)}"
    if not callable(function):
        raise ConfigError(f"{what} must be a function of work, not {quoted(function)}.")
    if yields(function):
        raise ConfigError(f"{what} yields, so that calling it does nothing. Return the result instead.")
    runs = IN_PROCESS if given is None else EXECUTORS[given].runs
    if given is None or runs == IN_PROCESS:
        if is_async(function) and given == "thread":
            raise ConfigError(
                f"{what} is async and runs on the loop. Use def, or leave out executor='thread'."
            )
        return "async" if is_async(function) else "thread"
    if runs == OUT_OF_PROCESS and is_async(function):
        raise ConfigError(f"{what} is async and runs on the loop. Use def with executor={given!r}.")
    return given


def _not_called(work: Any) -> Any:
    """Stands for what a task calls until it is registered."""
    raise AssertionError


class Task(msgspec.Struct, frozen=True):
    """A registered task: its handler, its executor, its services and its retries."""

    name: str
    handler: Callable[..., Any]
    services: tuple[str, ...] = ()
    picks: Picks | None = None
    """Chooses the services of each unit, where they are not the same for all."""
    executor: str = "async"
    retry: Retry = Retry(max_attempts=1)
    timeout: float | None = None
    """The task's own timeout, or the Cue's default."""
    command: CommandOptions = CommandOptions()
    is_checked: bool = True
    """False until the first submission has checked that its services are declared."""
    artifacts: Artifacts | None = None
    """The files that its units need and make."""
    cost: CostOf | None = None
    """The amounts of quantities that a start is expected to use."""
    retry_delay: Callable[[Any], Any] | None = None
    """Chooses the delay before the next attempt, in place of `retry`."""
    is_plain: bool = True
    """True when services, keys and cost are the same for all its units, and none has a label."""
    parameters: Parameters | None = None
    """The params that its handler is called with by name; None for one that is called with its unit."""
    encode: Callable[[Any, int], bytes] = parse.encode_params
    """Checks params and makes them the JSON that is stored."""
    call: Callable[[Any], Any] = _not_called
    """What an executor calls with a unit."""
    returns: Codec | None = None
    """How its results are stored, by its return annotation."""
    resources: tuple[Any, ...] = ()
    """The types of the resources that its handler is called with."""
    label: Label | None = None
    """What people know its units by, as a template."""

    @property
    def service(self) -> str | None:
        """The first of its services, or None."""
        return self.services[0] if self.services else None

    def canonical(self, data: bytes) -> dict[str, Any]:
        """Stored params as JSON that is equal where the handler gets equal values."""
        return parse.decode_params(data) if self.parameters is None else self.parameters.canonical(data)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its params; where the handler is called with its unit, any dict will do."""
        return {"title": self.name, "type": "object"} if self.parameters is None else self.parameters.schema()


def codec_of(
    name: str, function: Callable[..., Any], parameters: Parameters | None, *, is_shared: bool
) -> Codec | None:
    """How results of a task are stored; None where no annotation says it, or where they stay what they are."""
    takes_unit = parameters is None
    if takes_unit and not is_shared:
        return None
    annotation = returned(name, function, is_lenient=takes_unit)
    try:
        return None if annotation is Any else Codec(annotation)
    except Unsupported as error:
        if takes_unit:
            return None
        more = "" if is_shared else ", or leave the annotation out: a queue in memory keeps any result"
        raise ConfigError(f"The result of task {quoted(name)} cannot be stored: {error}{more}.") from None
