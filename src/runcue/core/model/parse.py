"""Turns loose values and text into exact ones, once, at the edge; no other part of runcue parses them again.

Rules:
- A refusal names the option, what was given (quoted, cut) and what is expected.
- Digits are ASCII, units are lower case; a bool is no number, and neither is NaN or infinity.
- A rate is written without spaces: "60/min", "100/10s", "1.5M/day". A tuple of two numbers is one rate, a
  list is several. A window lasts from a millisecond to some thirty years.
- Params are stored as JSON, and refused unless reading them back gives what was submitted; only a tuple may come
  back as a list, and an enum member as the text or number it equals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypeGuard, overload

import msgspec

from runcue.core.model import foreign
from runcue.core.model.outputs import NAME, Output, WithOutputs, outputs_in
from runcue.errors import (
    QUOTED_LENGTH,
    InvalidOption,
    InvalidParams,
    InvalidRate,
    StorageCorrupt,
    SubmitError,
    UnknownOption,
    quoted,
)
from runcue.errors import nearest as nearest  # noqa: PLC0414 (callers find it here, with the rest of the edge)

UNITS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
MULTIPLES: Final = {"": 1, "k": 1_000, "M": 1_000_000}
UNIT_NAMES: Final = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}

HIGHEST_LIMIT: Final = 1_000_000_000
SHORTEST_WINDOW: Final = 0.001
LONGEST_WINDOW: Final = 1e9
LONGEST_TEXT: Final = 64
LONGEST_NAME: Final = 128
LONGEST_KEY: Final = 512
YEAR_10000: Final = 253_402_300_800
DEEPEST: Final = 100
LONGEST_PATH: Final = 80
SMALLEST_INT: Final = -(2**63)
LARGEST_INT: Final = 2**64 - 1

DURATION_FORMS: Final = "seconds (0 or more), a timedelta, or text such as '200ms', '90s', '5m', '24h', '7d'"
JSON_FORMS: Final = "Pass text, numbers, True, False, None, lists, and dicts with text keys."
INSTEAD: Final = {
    "bytes": "Pass base64 text, or the path of a file.",
    "bytearray": "Pass base64 text, or the path of a file.",
    "date": "Pass its isoformat(), or an epoch number.",
    "time": "Pass its isoformat().",
    "timedelta": "Pass its total_seconds().",
    "set": "Pass a sorted list.",
    "frozenset": "Pass a sorted list.",
    "Decimal": "Pass it as text or as a float.",
    "UUID": "Pass it as text.",
    "PurePath": "Pass it as text.",
    "Enum": "Pass its value.",
}

Trail: TypeAlias = tuple[str | int, ...]

_duration_text = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", re.ASCII).fullmatch
_rate_text = re.compile(
    r"([0-9]+)(?:\.([0-9]+))?([kM]?)/([0-9]+(?:\.[0-9]+)?)?([A-Za-z]+)", re.ASCII
).fullmatch
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_probe = msgspec.msgpack.Encoder().encode


# --- Numbers and times ----------------------------------------------------------------------------


@overload
def number(
    value: object, name: str, low: float | None = None, high: float | None = None, *, whole: Literal[True]
) -> int: ...


@overload
def number(value: object, name: str, low: float | None = None, high: float | None = None) -> float: ...


def number(
    value: object, name: str, low: float | None = None, high: float | None = None, *, whole: bool = False
) -> float:
    """Make sure that an option is a number within its bounds (both included)."""
    if not whole:
        exact = _finite(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        exact = int(value)
    else:
        exact = None
    if exact is None or (low is not None and exact < low) or (high is not None and exact > high):
        expected = "a whole number" if whole else "a finite number"
        expected += f", at least {low:,}" if low is not None else ""
        expected += f", at most {high:,}" if high is not None else ""
        raise InvalidOption(name, value, expected)
    return exact


def concurrent(value: object) -> int:
    """Make sure that a limit on running units is a whole number of at least 1."""
    return number(value, "concurrent", low=1, high=HIGHEST_LIMIT, whole=True)


def duration(value: object, name: str) -> float:
    """Read a length of time in any of its forms as seconds."""
    if isinstance(value, str):
        seconds = _duration_of_text(value)
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    else:
        seconds = _finite(value)
    if seconds is None or seconds < 0:
        raise InvalidOption(name, value, DURATION_FORMS)
    return seconds


def optional_duration(value: object, name: str) -> float | None:
    """Read a length of time that may be left out."""
    return None if value is None else duration(value, name)


def moment(value: object, name: str = "run_at") -> float:
    """Read a moment of wall time, between 1970 and the year 10000, as epoch seconds."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidOption(name, value, "a time zone with it, as in datetime.now(UTC)")
        seconds: float | None = value.timestamp()
    else:
        seconds = _finite(value)
    if seconds is None or not 0 <= seconds < YEAR_10000:
        raise InvalidOption(
            name, value, "epoch seconds or a datetime with a time zone, in the years 1970 to 9999"
        )
    return seconds


def _duration_of_text(text: str) -> float | None:
    match = _duration_text(text) if len(text) <= LONGEST_TEXT else None
    if match is None or match[2] not in UNITS:
        return None
    return float(match[1]) * UNITS[match[2]]


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        exact = float(value)
    except OverflowError:  # an int of more than 308 digits
        return None
    return exact if math.isfinite(exact) else None


# --- Rates ----------------------------------------------------------------------------------------


class Rate(msgspec.Struct, frozen=True):
    """How many starts (or tokens, …) any window of `per` seconds may hold."""

    limit: int
    per: float

    def __str__(self) -> str:
        per = float(self.per)
        unit = UNIT_NAMES.get(per) or f"{int(per) if per.is_integer() else per}s"
        return f"{self.limit}/{unit}"


def rates(value: object) -> tuple[Rate, ...]:
    """Read one rate, or a list of rates that hold all at once."""
    if isinstance(value, list):
        if not value:
            raise InvalidRate(value)
        return tuple(map(_rate, value))
    return (_rate(value),)


def _rate(value: object) -> Rate:
    if isinstance(value, Rate):
        return value
    if isinstance(value, str):
        return _rate_of_text(value)
    if isinstance(value, tuple) and len(value) == 2:
        limit, per = value
        try:
            return _checked_rate(number(limit, "rate", whole=True), duration(per, "rate"), value)
        except InvalidOption:
            raise InvalidRate(value) from None
    raise InvalidRate(value)


def _rate_of_text(text: str) -> Rate:
    match = _rate_text(text) if len(text) <= LONGEST_TEXT else None
    if match is None:
        raise InvalidRate(text)
    whole, fraction, multiple, times, unit = match.groups(default="")
    if unit not in UNITS:
        raise InvalidRate(text, unit)
    limit, rest = divmod(int(whole + fraction) * MULTIPLES[multiple], 10 ** len(fraction))
    if rest:
        raise InvalidRate(text)
    return _checked_rate(limit, float(times or 1) * UNITS[unit], text)


def _checked_rate(limit: int, per: float, given: object) -> Rate:
    if not (1 <= limit <= HIGHEST_LIMIT and SHORTEST_WINDOW <= per <= LONGEST_WINDOW):
        raise InvalidRate(given)
    return Rate(limit, per)


# --- Names and keys -------------------------------------------------------------------------------


def name(value: object, kind: str) -> str:
    """Make sure that a service, task or queue has a name that can be shown and stored."""
    if not _is_label(value):
        raise InvalidOption(f"{kind} name", value, f"1 to {LONGEST_NAME} printable characters")
    return str.__str__(value)


def work_id(value: object) -> str:
    """Make sure that an id chosen by the user can be shown and stored."""
    if not _is_label(value):
        raise SubmitError(f"Invalid id: {quoted(value)}. Expected 1 to {LONGEST_NAME} printable characters.")
    return str.__str__(value)


def key(value: object) -> str:
    """Make sure that an idempotency key can be stored; keys are compared byte by byte, never normalized."""
    if isinstance(value, str) and 1 <= len(value) <= LONGEST_KEY and "\0" not in value and _is_unicode(value):
        return str.__str__(value)
    raise SubmitError(
        f"Invalid idempotency_key: {quoted(value)}. "
        f"Expected 1 to {LONGEST_KEY} characters of valid text without NUL."
    )


def reject_unknown(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Refuse an option that does not exist instead of losing it; `where` names what was called."""
    for option in given:
        if option not in known:
            raise UnknownOption(option, known, where)


def _is_label(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 1 <= len(value) <= LONGEST_NAME and value.isprintable()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


# --- Params ---------------------------------------------------------------------------------------


def encode_params(params: object, limit: int) -> bytes:
    """Turn params into the JSON that is stored, at most `limit` bytes, and make sure that nothing is lost."""
    if params is None:
        return b"{}"
    if type(params) is not dict:
        params = params_dict(params)
    if not params:
        return b"{}"
    try:  # the fast path: encode, decode and compare; if that fails, the slow walk finds out why
        _probe(params)  # unlike the JSON encoder it refuses whole numbers of more than 64 bits
        data = _encode(params)
        if len(data) <= limit:
            is_deep = len(data) > 2 * DEEPEST and _is_deep(data, params)
            if is_deep or _decode(data) != params:
                data = b""
    except Exception:  # noqa: BLE001 (whatever a value raises, the slow walk says which one it is and why)
        data = b""
    if not data:
        data = _encode(_exact(params, ("params",)))
        if next(outputs_in(params), None) is not None:
            data = WithOutputs(data, params)
    check_size(data, limit)
    return data


def check_size(data: bytes, limit: int) -> None:
    """Refuse params that take more than `limit` bytes as JSON."""
    if len(data) > limit:
        raise InvalidParams(
            "params",
            f"take {len(data):,} bytes as JSON, more than max_params={limit:,}. "
            "Keep the bulk in a file and pass its path, or raise max_params of a Cue.",
        )


def params_dict(params: object) -> dict[Any, Any]:
    """Make sure that params are a dict, or a model that becomes one."""
    if not isinstance(params, dict) and foreign.is_model(params):
        params = msgspec.to_builtins(params, str_keys=True, enc_hook=foreign.encoded)
    if not isinstance(params, dict):
        raise InvalidParams("params", f"must be a dict, not {_kind(params)}. {JSON_FORMS}")
    return params


def decode_params(data: bytes) -> dict[str, Any]:
    """Read stored params back, as a new dict that the caller may change."""
    if data == b"{}":
        return {}
    try:
        return _decode_object(data)
    except msgspec.MsgspecError as error:
        raise StorageCorrupt(f"Stored params are no JSON object: {quoted(data)} ({error}).") from error


def refuse_lossy(value: object, root: str) -> None:
    """Refuse numbers that JSON loses and nesting that is too deep, in a value of plain types; `root` names it."""
    _exact(value, (root,))


def _is_deep(data: bytes, params: dict[Any, Any]) -> bool:
    """True when the params of that JSON are nested too deep; if it has few brackets, they cannot be."""
    return data.count(b"[") + data.count(b"{") > DEEPEST and _depth(params) > DEEPEST


def _exact(value: object, trail: Trail) -> Any:
    """The slow walk: the value in plain JSON types, or an error that says which part of it is refused and why."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not _is_unicode(value):
            _refuse(trail, "is text with a lone surrogate, which is no valid Unicode. Clean it first.")
        return str.__str__(value)
    if isinstance(value, int):
        if not SMALLEST_INT <= value <= LARGEST_INT:
            _refuse(
                trail, f"is a whole number of {value.bit_length()} bits, 64 are the most. Pass it as text."
            )
        return int.__int__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            _refuse(
                trail, f"is {float.__repr__(value)}, which JSON cannot hold. Pass None or a finite number."
            )
        return float.__float__(value)
    if isinstance(value, Output):
        return {NAME: value.id}
    if not isinstance(value, (dict, list, tuple)):
        advice = next(
            (INSTEAD[base.__name__] for base in type(value).__mro__ if base.__name__ in INSTEAD), JSON_FORMS
        )
        if foreign.is_model(value):
            advice = "Give the handler a parameter that is annotated with it, or pass a dict."
        _refuse(trail, f"is of type {_kind(value)}, which JSON cannot hold. {advice}")
    if len(trail) > DEEPEST:
        _refuse(trail, f"is nested more than {DEEPEST} deep, or contains itself. Flatten it.")
    if not isinstance(value, dict):
        return [_exact(item, (*trail, position)) for position, item in enumerate(value)]
    copy = {}
    for field, item in value.items():
        if not isinstance(field, str) or not _is_unicode(field):
            _refuse(trail, f"has the key {quoted(field)} of type {_kind(field)}. Keys must be valid text.")
        copy[str.__str__(field)] = _exact(item, (*trail, field))
    return copy


def _depth(value: object) -> int:
    """How many containers are inside each other, in a value that contains no tuple and never itself."""
    depth = 0
    layer: list[Any] = [value]
    while layer:
        depth += 1
        layer = [
            child
            for parent in layer
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
    return depth


def _refuse(trail: Trail, problem: str) -> NoReturn:
    path = str(trail[0])
    for step in trail[1:]:
        if isinstance(step, str) and step.isidentifier():
            path += f".{step}"
        else:
            path += f"[{quoted(step)}]"
    raise InvalidParams(path if len(path) <= LONGEST_PATH else path[:LONGEST_PATH] + "…", problem)


def _kind(value: object) -> str:
    return type(value).__name__[:QUOTED_LENGTH]
