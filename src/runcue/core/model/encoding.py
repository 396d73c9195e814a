"""Values of annotated types as JSON, and back.

Rules:
- msgspec encodes and decodes; what it leaves to us is here: paths, and models that bring `model_dump` and
  `model_validate_json` along, as pydantic's do.
- What is decoded has the type of the annotation, wherever the JSON was kept meanwhile.
- An annotation that cannot be decoded is refused when it is declared, with a way out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

import msgspec

from runcue.errors import quoted

ADVICE: Final = (
    "Use JSON types, a dataclass, a Struct, a TypedDict, a pydantic model, datetime, UUID, Enum, Path, Decimal, "
    "bytes, set or tuple"
)


class Unsupported(Exception):
    """Raised for an annotation that has no JSON form; its text says which part and why."""


class Codec:
    """Encodes and decodes the values of one annotation."""

    def __init__(self, annotation: Any) -> None:
        check(annotation)
        self.annotation = annotation
        self._read = msgspec.json.Decoder(annotation, dec_hook=_decoded).decode

    def encode(self, value: Any) -> Any:
        """The value as JSON gives it back: text, numbers, lists and dicts."""
        return plain(value)

    def decode(self, value: Any) -> Any:
        """The value of the annotated type that `encode` made this of; raises msgspec.ValidationError."""
        return msgspec.convert(value, self.annotation, str_keys=True, dec_hook=_decoded)

    def check(self, data: bytes) -> None:
        """Raise msgspec.ValidationError unless this JSON is a value of the annotation."""
        self._read(data)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the annotation."""
        return msgspec.json.schema(self.annotation, schema_hook=_schema)


def encode(value: Any) -> bytes:
    """A value of any supported type as JSON."""
    return _encode(value)


def plain(value: Any) -> Any:
    """A value of any supported type in text, numbers, lists and dicts."""
    return _decode(_encode(value))


def without_models(value: Any) -> Any:
    """The same lists and dicts, with dataclasses, Structs and pydantic models as dicts."""
    if isinstance(value, dict):
        return {key: without_models(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_models(item) for item in value]
    return plain(value) if is_model(value) else value


def is_model(value: Any) -> bool:
    """True for a dataclass, a Struct, an attrs class and a pydantic model."""
    kind = type(value)
    is_class = dataclasses.is_dataclass(kind) or isinstance(value, msgspec.Struct)
    return is_class or hasattr(kind, "__attrs_attrs__") or hasattr(kind, "model_dump")


def check(annotation: Any) -> None:
    """Raise Unsupported for an annotation whose values cannot be decoded."""
    try:
        info = msgspec.inspect.type_info(annotation)
        msgspec.json.Decoder(annotation, dec_hook=_decoded)
    except Exception as error:  # whatever an annotation raises that cannot be looked at
        raise Unsupported(f"{shown(annotation)} has no JSON form ({error}). {ADVICE}") from error
    for unknown in _customs(info, set()):
        if not _is_known(unknown):
            raise Unsupported(f"{shown(unknown)} has no JSON form. {ADVICE}")


def holds_anything(annotation: Any) -> bool:
    """True where JSON alone says what a value is: `Any`, and lists and dicts of it."""
    return _is_loose(msgspec.inspect.type_info(annotation))


def shown(annotation: Any) -> str:
    """An annotation as people write it."""
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return quoted(annotation).replace("typing.", "").strip("'\"")


def problem(error: msgspec.ValidationError, annotation: Any = None) -> tuple[str, str]:
    """Where in the value and what is wrong, from an error of msgspec: ("[0].name", "must be str, not int")."""
    text, _, path = str(error).partition(" - at `")
    where = path.removesuffix("`").removeprefix("$").removeprefix(".")
    text = text.replace("`", "")
    if text.startswith("Expected ") and ", got " in text:
        expected, _, got = text.removeprefix("Expected ").partition(", got ")
        return where, f"must be {_spoken(expected)}, not {_spoken(got)}"
    if text.startswith("Object missing required field "):
        return where, f"lacks the field {quoted(text.rpartition(' ')[2])}"
    if (
        text.startswith("Invalid enum value ")
        and isinstance(annotation, type)
        and issubclass(annotation, Enum)
    ):
        values = ", ".join(quoted(member.value) for member in annotation)
        return where, f"must be one of {values}, not {text.removeprefix('Invalid enum value ')}"
    return where, f"is refused: {text[:1].lower()}{text[1:]}"


# --- What msgspec leaves to us --------------------------------------------------------------------


def _encoded(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):  # a subclass, such as an id that can do more
        return str.__str__(value)
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json")
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _decoded(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise TypeError(f"Expected `str`, got `{_kind(value)}`")
        return kind(value)
    return kind.model_validate_json(_encode(value))


def _schema(kind: Any) -> dict[str, Any]:
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    schema: dict[str, Any] = kind.model_json_schema()
    return schema


def _is_known(kind: Any) -> bool:
    is_path = isinstance(kind, type) and issubclass(kind, PurePath)
    return is_path or hasattr(kind, "model_validate_json")


_encode: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=_encoded).encode
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode


def _customs(info: Any, seen: set[int]) -> list[Any]:
    """The classes inside a type that msgspec does not know."""
    if isinstance(info, msgspec.inspect.CustomType):
        return [info.cls]
    if id(info) in seen or not isinstance(info, (msgspec.Struct, tuple)):
        return []
    seen.add(id(info))
    inner = info if isinstance(info, tuple) else [getattr(info, name) for name in info.__struct_fields__]
    return [one for part in inner for one in _customs(part, seen)]


def _is_loose(info: Any) -> bool:
    kinds = msgspec.inspect
    if isinstance(info, kinds.AnyType):
        return True
    if isinstance(info, kinds.DictType):
        return _is_loose(info.value_type)
    if isinstance(info, (kinds.ListType, kinds.VarTupleType)):
        return _is_loose(info.item_type)
    return isinstance(info, kinds.UnionType) and any(map(_is_loose, info.types))


def _spoken(kind: str) -> str:
    return {"object": "dict", "array": "list", "null": "None"}.get(kind, kind).replace(" | null", " | None")


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
