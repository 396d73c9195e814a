"""`runcue.output(unit)`: stands in params for the result of another unit.

The params are stored with a mark in its place; when the unit starts, the result is put where the mark is. Only marks
that `output` made count: the unit lists their ids, and what an application's own data looks like changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

import msgspec

from runcue.core.model import foreign

NAME: Final = "$output"


class WithOutputs(bytes):
    """The JSON of params that hold outputs. Its class says so: to search all JSON for marks would cost more."""

    ids: tuple[str, ...]
    """The units whose outputs they are."""

    def __new__(cls, data: bytes, params: object) -> Self:
        """The JSON of these params."""
        self = super().__new__(cls, data)
        self.ids = tuple(dict.fromkeys(outputs_in(params)))
        return self


class Output(msgspec.Struct, frozen=True):
    """The result that a unit will have."""

    id: str = msgspec.field(name=NAME)


def outputs_in(value: Any) -> Iterator[str]:
    """The ids of the units whose outputs are somewhere in a value."""
    if isinstance(value, Output):
        yield value.id
        return
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = value
    else:
        inner = [getattr(value, name) for name in foreign.fields(value)]
    for item in inner:
        yield from outputs_in(item)


def filled(value: Any, results: Mapping[str, Any]) -> Any:
    """Stored params with the results of these units where their marks are."""
    if isinstance(value, dict):
        if value.keys() == {NAME}:
            id = value[NAME]
            if isinstance(id, str) and id in results:
                return results[id]
        return {key: filled(item, results) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, results) for item in value]
    return value
