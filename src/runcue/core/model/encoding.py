"""Values of annotated types as JSON, and back.

Rules:
- msgspec encodes and decodes; what it leaves to us is in foreign.py.
- What is decoded has the type of the annotation, wherever the JSON was kept meanwhile.
- What JSON would lose is refused as it is in params that are not annotated: NaN, whole numbers of more than 64 bits,
  nesting without end.
- An annotation that cannot be decoded is refused when it is declared, with a way out.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import force_setattr

from runcue.core.model import foreign, parse
from runcue.errors import quoted

ADVICE: Final = (
    "Use JSON types, a dataclass, a Struct, a TypedDict, a pydantic model, datetime, UUID, Enum, Path, Decimal, "
    "bytes, set or tuple"
)


PLAIN: Final = frozenset({str, int, float, bool, type(None)})
"""The types of values that have no parts."""
SETS: Final = (msgspec.inspect.SetType, msgspec.inspect.FrozenSetType)
PLAIN_SETS: Final = ({str}, {int})
"""The types of items that sort by themselves."""
NO_ITEMS: Final = (
    msgspec.inspect.ListType,
    msgspec.inspect.SetType,
    msgspec.inspect.DictType,
    msgspec.inspect.TypedDictType,
)
"""What cannot be in a set."""
NO_KEYS: Final = (
    *NO_ITEMS,
    msgspec.inspect.FrozenSetType,
    msgspec.inspect.TupleType,
    msgspec.inspect.VarTupleType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.StructType,
)
"""What JSON cannot have as the key of an object."""


class Unsupported(Exception):
    """Raised for an annotation that has no JSON form; its text says which part and why."""


class Codec:
    """Encodes and decodes the values of one annotation."""

    def __init__(self, annotation: Any) -> None:
        check(annotation)
        self.annotation = annotation
        self._read = msgspec.json.Decoder(annotation, dec_hook=foreign.decoded).decode

    def encode(self, value: Any) -> Any:
        """The value as JSON gives it back: text, numbers, lists and dicts."""
        return plain(value)

    def decode(self, value: Any) -> Any:
        """The value of the annotated type that `encode` made this of; raises msgspec.ValidationError."""
        return msgspec.convert(value, self.annotation, str_keys=True, dec_hook=foreign.decoded)

    def check(self, data: bytes) -> None:
        """Raise msgspec.ValidationError unless this JSON is a value of the annotation."""
        self._read(data)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the annotation."""
        return msgspec.json.schema(self.annotation, schema_hook=foreign.schema)


def checker(name: str, fields: Iterable[Any], *, takes_rest: bool) -> Callable[[bytes], object]:
    """What raises an error for JSON that is no object of these fields: names, annotations, and maybe a default."""
    kind = msgspec.defstruct(name, fields, kw_only=True, gc=False, forbid_unknown_fields=not takes_rest)
    return msgspec.json.Decoder(kind, dec_hook=foreign.decoded).decode


def encode(value: Any, root: str = "params") -> bytes:
    """A value of any supported type as JSON; errors call it `root`."""
    data = _encode(value)
    if (
        data.translate(_AS_ZEROS).find(LONG_NUMBER) >= 0
        or (len(data) > 2 * parse.DEEPEST and data.count(b"[") + data.count(b"{") > parse.DEEPEST)
        or (data.find(b"null") >= 0 and _not_finite(_pack(value)))
    ):
        parse.refuse_lossy(msgspec.to_builtins(value, str_keys=True, enc_hook=foreign.encoded), root)
    return data


def plain(value: Any) -> Any:
    """A result of any supported type in text, numbers, lists and dicts."""
    kind = type(value)
    # JSON gives these back as they are.
    if (
        value is None
        or kind is bool
        or (kind is int and parse.SMALLEST_INT <= value <= parse.LARGEST_INT)
        or (kind is str and value.isascii())
    ):
        return value
    return _decode(encode(value, "result"))


def without_models(value: Any) -> Any:
    """The same lists and dicts, with dataclasses, Structs and pydantic models as dicts."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, dict):
        return {key: without_models(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_models(item) for item in value]
    return plain(value) if foreign.is_model(value) else value


def check(annotation: Any) -> None:
    """Raise Unsupported for an annotation whose values cannot be decoded."""
    try:
        info = msgspec.inspect.type_info(annotation)
        msgspec.json.Decoder(annotation, dec_hook=foreign.decoded)
    except Exception as error:  # whatever an annotation raises that cannot be looked at
        raise Unsupported(f"{shown(annotation)} has no JSON form ({error}). {ADVICE}") from error
    for part in _parts(info, set()):
        if isinstance(part, msgspec.inspect.CustomType) and not foreign.is_known(part.cls):
            raise Unsupported(f"{shown(part.cls)} has no JSON form. {ADVICE}")
        if isinstance(part, msgspec.inspect.DictType) and isinstance(part.key_type, NO_KEYS):
            raise Unsupported(
                f"{shown(annotation)} has no JSON form: keys of dicts have to be text, numbers or dates"
            )
        if isinstance(part, SETS) and isinstance(part.item_type, NO_ITEMS):
            raise Unsupported(f"{shown(annotation)} has no values: lists, sets and dicts cannot be in a set")


def holds_sets(annotation: Any) -> bool:
    """True where a set may be somewhere inside a value."""
    return any(isinstance(one, SETS) for one in _parts(msgspec.inspect.type_info(annotation), set()))


def with_sorted_sets(value: Any) -> Any:
    """A value to be encoded, with lists in place of its sets: text in a set has another order in each process."""
    if isinstance(value, (set, frozenset)):
        if set(map(type, value)) in PLAIN_SETS:  # the usual ones cost less
            return sorted(value)
        return sorted(map(with_sorted_sets, value), key=_encode)
    if isinstance(value, dict):
        return {key: with_sorted_sets(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_sorted_sets(item) for item in value]
    names = foreign.fields(value)
    changed = copy(value) if names else value
    if changed is value:  # a member of an enum has fields, too, and there is but one of it
        return value
    change = force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name in names:
        change(changed, name, with_sorted_sets(getattr(value, name)))
    return changed


def holds_anything(annotation: Any) -> bool:
    """True where JSON alone says what a value is: `Any`, and lists and dicts of it."""
    return _is_loose(msgspec.inspect.type_info(annotation))


def bare(annotation: Any) -> Any:
    """An annotation without `Annotated` and `| None`."""
    if get_origin(annotation) is Annotated:
        return bare(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        others = [one for one in get_args(annotation) if one is not type(None)]
        return bare(others[0]) if len(others) == 1 else annotation
    return annotation


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
    if text.startswith("Invalid enum value ") and (choices := _choices(annotation)):
        values = ", ".join(map(quoted, choices))
        return where, f"must be one of {values}, not {text.removeprefix('Invalid enum value ')}"
    return where, f"is refused: {text[:1].lower()}{text[1:]}"


# --- Helpers --------------------------------------------------------------------------------------


_encode: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=foreign.encoded).encode
_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=foreign.encoded).encode
_not_finite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search
"""Finds what may be NaN or infinite in a packed value: the JSON encoder writes null for both."""
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
LONG_NUMBER: Final = b"0" * 19
"""What may be a whole number of more than 64 bits, once all digits are zeros: to look for that takes a third of the
time of a regular expression."""
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode


def _parts(info: Any, seen: set[int]) -> Iterator[Any]:
    """What msgspec knows about a type, and about all types inside it."""
    if id(info) in seen or not isinstance(info, (msgspec.Struct, tuple)):
        return
    seen.add(id(info))
    yield info
    inner = info if isinstance(info, tuple) else [getattr(info, name) for name in info.__struct_fields__]
    for part in inner:
        yield from _parts(part, seen)


def _is_loose(info: Any) -> bool:
    kinds = msgspec.inspect
    if isinstance(info, kinds.AnyType) or (isinstance(info, kinds.CustomType) and info.cls is object):
        return True
    if isinstance(info, kinds.DictType):
        return _is_loose(info.value_type)
    if isinstance(info, (kinds.ListType, kinds.VarTupleType)):
        return _is_loose(info.item_type)
    return isinstance(info, kinds.UnionType) and any(map(_is_loose, info.types))


def _choices(annotation: Any) -> list[Any]:
    """The values of the enum or of the literals that are somewhere in an annotation; none if there are several."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    found = [choices for one in get_args(annotation) if (choices := _choices(one))]
    return found[0] if len(found) == 1 else []


def _spoken(kind: str) -> str:
    names = {"object": "dict", "array": "list", "null": "None"}
    return " | ".join(names.get(one, one) for one in kind.split(" | "))
