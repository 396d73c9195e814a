"""A unit as a value, before it is submitted, and what stands for its result in the params of another."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from runcue.core.model import parse
from runcue.core.model.outputs import Output

if TYPE_CHECKING:
    from runcue.api.handle import Handle

R = TypeVar("R")


class Unit(Generic[R]):
    """What `f.unit(page=3)` returns: a submission as a value, for `cue.submit_many` and `runcue.output`."""

    __slots__ = ("_id", "options", "params", "task")

    def __init__(self, task: str, params: dict[str, Any], options: Mapping[str, Any]) -> None:
        self.task = task
        self.params = params
        self.options = options
        self._id: str | None = options.get("id")

    @property
    def id(self) -> str:
        """Its id: the one it was given, or else one that is made when it is first asked for."""
        if self._id is None:
            self._id = secrets.token_hex(16)
        return self._id

    def arguments(self) -> dict[str, Any]:
        """The arguments of `submit` for this unit."""
        given = {**self.options, "task": self.task, "params": self.params}
        if self._id is not None:
            given["id"] = self._id
        return given

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return f"<unit {self.task}({shown})>"


@overload
def output(unit: Handle[R] | Unit[R]) -> R: ...
@overload
def output(unit: str) -> Any: ...
def output(unit: str | Unit[Any]) -> Any:
    """Stand for the result of a unit, in the params of another unit.

    That one depends on it, and gets its result in this place when it starts; None if it was skipped.
    """
    id = unit.id if isinstance(unit, Unit) else parse.work_id(unit)
    return cast("Any", Output(id))
