"""What msgspec leaves to us: paths, subclasses of str, and models that encode themselves, as pydantic's do.

Models are known by what they can do (`model_dump`, `model_validate_json`); no library is imported for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

import msgspec

MARKS: Final = ("__dataclass_fields__", "__attrs_attrs__", "model_dump")
"""What the classes of dataclasses, of attrs and of pydantic models have."""


def is_model(value: Any) -> bool:
    """True for a dataclass, a Struct, an attrs class and a pydantic model."""
    kind = type(value)
    return isinstance(value, msgspec.Struct) or any(hasattr(kind, name) for name in MARKS)


def fields(value: Any) -> Sequence[str]:
    """The names of the fields of a dataclass, a Struct and an attrs class; none of anything else."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    kind = type(value)
    if not hasattr(kind, "__dataclass_fields__"):
        return [one.name for one in getattr(kind, "__attrs_attrs__", ())]
    import dataclasses  # slow to import, and only who has some needs it

    return [one.name for one in dataclasses.fields(kind)]


def is_known(kind: Any) -> bool:
    """True for a class whose values are encoded and decoded here."""
    is_path = isinstance(kind, type) and issubclass(kind, PurePath)
    return is_path or kind is object or hasattr(kind, "model_validate_json")


def encoded(value: Any) -> Any:
    """A value that msgspec does not know as one that it knows."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):  # a subclass, such as an id that can do more
        return str.__str__(value)
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json")
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def decoded(kind: Any, value: Any) -> Any:
    """The value of a class that `encoded` made this of."""
    if isinstance(value, kind):
        return value
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise TypeError(f"Expected `str`, got `{'null' if value is None else type(value).__name__}`")
        return kind(value)
    try:
        return kind.model_validate_json(msgspec.json.encode(value, enc_hook=encoded))
    except ValueError as error:
        raise ValueError(_first_problem(error)) from None


def schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a class that is known here."""
    if kind is object:
        return {"description": "Any JSON value"}  # an empty one counts as none
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    made: dict[str, Any] = kind.model_json_schema()
    return made


def _first_problem(error: ValueError) -> str:
    """What pydantic says is wrong, in one line."""
    try:
        first = error.errors()[0]  # type: ignore[attr-defined]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    except (AttributeError, LookupError, TypeError):
        return str(error)
