"""Records as rows of `work_units`, and back; results and histories, too.

Rules:
- A value comes back equal to what was written. What cannot be right (an unknown state, text where a number
  belongs, broken JSON) raises StorageCorrupt with the id of the row, and nothing is guessed.
- Columns and fields are matched in columns.py alone. The functions that make rows of records, and records of rows,
  are compiled from that list once, as dataclasses are: they run for every row, and a loop would be much slower.
- A start and a successful end write only the columns that they change, and the INSERT of plain units has only those
  values that differ between units: that is most of what a queue writes.
- The types of a row are checked all at once, by a struct of its columns: that costs less than checking a few.
- Names and lists of services come back as the same objects for the same text: they are compared by identity.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from runcue.core.model.encoding import without_models
from runcue.core.model.failure import describe
from runcue.core.model.parse import LARGEST_INT, SMALLEST_INT, encode_params
from runcue.core.model.record import Attempt, Extras, Progress, Record, Spec, WorkState
from runcue.core.model.retry import Retry, retry_of_work
from runcue.core.views.query import GROUP, Tag
from runcue.errors import ConfigError, InvalidParams, Permanent, StorageCorrupt, quoted
from runcue.stores.sql import columns
from runcue.stores.sql.columns import COLUMNS, VARIES, WORK

Row = tuple[Any, ...]
K = TypeVar("K")
V = TypeVar("V")

MOST_REMEMBERED: Final = 10_000


class Memory(dict[K, V]):
    """What was made of each key; forgets everything when there is too much of it."""

    def __init__(self, make: Callable[[K], V], known: dict[K, V] | None = None) -> None:
        super().__init__(known or {})
        self._make = make

    def __missing__(self, key: K) -> V:
        return self.remember(key, self._make(key))

    def remember(self, key: K, value: V) -> V:
        """The value that is remembered for this key: this one, unless there was one already."""
        if len(self) >= MOST_REMEMBERED:
            self.clear()
        return self.setdefault(key, value)


_convert = msgspec.convert
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_well_formed = msgspec.json.Decoder(msgspec.Raw).decode


# --- Results ------------------------------------------------------------------------------------------

LARGEST_RESULT: Final = 1024 * 1024
SHORT: Final = 10_000


def stored_result(result: Any) -> Any:
    """A copy of a result as JSON gives it back; refuses what is none, by the rules for params."""
    kind = type(result)
    if (
        result is None
        or kind is bool
        or (kind is int and SMALLEST_INT <= result <= LARGEST_INT)
        or (kind is str and len(result) <= SHORT and result.isascii())
    ):
        return result
    try:
        data = encode_params({"result": without_models(result)}, sys.maxsize)
    except InvalidParams as error:
        raise Permanent(f"its result cannot be kept: {str(error).removeprefix('params.')}") from error
    except BaseException as error:
        # Whatever a value raises when it is looked at, another attempt would pay for the same again.
        raise Permanent(
            f"its result is no JSON ({describe(error)}): return plain values, or a file's path"
        ) from error
    size = len(data) - len(b'{"result":}')
    if size > LARGEST_RESULT:
        raise Permanent(
            f"its result takes {size:,} bytes, more than {LARGEST_RESULT:,}: return a file's path"
        )
    return _decode(data)["result"]


# --- Columns in another form ----------------------------------------------------------------------


class _Extra(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What few units have, in one column."""

    cost: tuple[tuple[str, float], ...] = ()
    chosen: str | None = None
    extras: Extras | None = None
    expires_at: float | None = None
    progress: Progress | None = None


_NOTHING = _Extra()
_decode_extra = msgspec.json.Decoder(_Extra).decode


def _extra_text(record: Record) -> str:
    spec = record.spec
    extra = _Extra(spec.cost, record.chosen, spec.extras, record.expires_at, record.progress)
    return _encode(extra).decode()


def read_marks(group: str | None, extra: str | None) -> tuple[Tag, ...]:
    """By what a unit is found, of two of its columns; raises what msgspec does where they are damaged."""
    extras = None if extra is None else _decode_extra(extra).extras
    tags = () if extras is None else extras.tags
    return tags if group is None else ((GROUP, group), *tags)


def _text_of(services: tuple[str, ...]) -> str:
    text = _encode(services).decode()
    _lists.remember(text, services)  # what is read later is then the very tuple that was written
    return text


def retry_fields(retry: Retry) -> dict[str, Any]:
    """A policy for retries, but for what is code."""
    return {name: getattr(retry, name) for name in retry.__struct_fields__ if name != "retry_on"}


def _retry_text(retry: Retry) -> str:
    return _encode(retry_fields(retry)).decode()


def _params(id: str, text: str) -> bytes:
    data = text.encode()
    if data != b"{}":
        _well_formed(data)
        if data.lstrip()[:1] != b"{":
            _refuse(id, "its params are no JSON object")
    return data


_STATES = {state.value: state for state in WorkState}
_names: Memory[str, str] = Memory(lambda name: name)
_lists: Memory[str, tuple[str, ...]] = Memory(
    lambda text: tuple(_names[name] for name in _decode_names(text)), {"[]": ()}
)
_texts: Memory[tuple[str, ...], str] = Memory(_text_of, {(): "[]"})
_policies: Memory[Retry, str] = Memory(_retry_text)
_retries: Memory[str, Retry] = Memory(lambda text: retry_of_work(_decode(text)))


def same_name(name: str) -> str:
    """The object that stands for all texts that are equal to this one."""
    return _names[name]


def same_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The object that stands for all lists of services that are equal to this one."""
    return _lists[_texts[names]]


# --- Functions made from the columns --------------------------------------------------------------

Writer = Callable[..., Row]
"""Makes the values of a statement of `(record, now, lease)`: `now` is when it is written, `lease` until when the
lease of its worker runs."""


def _compiled(head: str, *lines: str) -> Any:
    """The function that these lines of Python define."""
    found: dict[str, Any] = {}
    text = "\n    ".join((f"def made{head}:", *lines))
    exec(text, globals(), found)
    return found["made"]


_VALUES: Final = {one.name: one.write.format(field=one.field) for one in columns.EVERY}


def _writer(names: Sequence[str], keys: Sequence[str] = ()) -> Writer:
    values = ", ".join(_VALUES[name] for name in (*names, *keys))
    lines = ["spec = record.spec"] if "spec." in values else []
    function: Writer = _compiled("(record, now, lease=None)", *lines, f"return ({values},)")
    return function


def _default(path: str) -> Any:
    kind = Spec if path.startswith("spec.") else Record
    return next(one.default for one in msgspec.structs.fields(kind) if one.name == path.partition(".")[2])


def _differs(path: str) -> str:
    """The condition under which a field is not what it is in most units."""
    usual = _default(path)
    if usual is None:
        return f"{path} is not None"
    return f"{path} != {usual!r}" if usual else path


def _reader() -> Callable[[Row, tuple[Attempt, ...]], Record]:
    values = {one.field: one.read.format(name=one.name) for one in WORK}
    values |= {
        "spec.id": "id",
        "record.spec": "spec",
        "record.chosen": "extra.chosen",
        "record.expires_at": "extra.expires_at",
        "record.progress": "extra.progress",
        "spec.extras": "extra.extras",
    }
    spec, record = (
        ", ".join(values[f"{kind}.{name}"] for name in fields)
        for kind, fields in (("spec", Spec.__struct_fields__), ("record", Record.__struct_fields__))
    )
    function: Callable[[Row, tuple[Attempt, ...]], Record] = _compiled(
        "(row, attempts)",
        f"{', '.join(COLUMNS)} = row",
        "extra = _NOTHING if extra is None else _decode_extra(extra)",
        f"spec = Spec({spec})",
        f"return Record({record})",
    )
    return function


insert_row: Final = _writer(columns.WRITTEN)
plain_row: Final = _writer(columns.PLAIN)
start_row: Final = _writer(columns.STARTED, ("seq", "id"))
finish_row: Final = _writer(columns.FINISHED, ("seq", "id"))
update_row: Final = _writer(columns.CHANGED, ("id",))
spec_row: Final = _writer(columns.SUBMITTED, ("id",))
_record_of: Final = _reader()

_unusual = " or ".join(
    _differs(field)
    for field in (
        *(one.field for one in WORK if one.usual is not VARIES),
        "record.chosen",
        "spec.extras",
        "record.expires_at",
        "record.progress",
    )
)
is_plain: Final[Callable[[Record], bool]] = _compiled(
    "(record)", "spec = record.spec", f"return not ({_unusual})"
)
"""Whether the short INSERT can write this unit: all that is usual is so here."""

_Columns = msgspec.defstruct(
    "_Columns",
    [(one.name, int if one.kind is bool else one.kind) for one in WORK],
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
)


# --- Reading --------------------------------------------------------------------------------------


def read_row(row: Row, history: tuple[Attempt, ...] = ()) -> Record:
    """The record in a row of SELECT; `history` as `read_attempts` made it, when row[-1] says that there is one."""
    try:
        _convert(row, _Columns)
    except msgspec.ValidationError as cause:
        _refuse(row[0], f"its columns make no sense ({_named(cause)})")
    try:
        return _record_of(row, history)
    except KeyError:
        _refuse(row[0], f"its state is {quoted(row[COLUMNS.index('state')])}")
    except ConfigError as cause:
        _refuse(row[0], f"its retry makes no sense ({cause})")
    except (msgspec.MsgspecError, RecursionError) as cause:
        _refuse(row[0], f"its JSON cannot be read ({cause})")


def _named(error: Exception) -> str:
    """What msgspec found, with the name of the column instead of its number."""
    return re.sub(r"\$\[(\d+)\]", lambda found: COLUMNS[int(found[1])], str(error))


def _refuse(id: object, problem: str) -> NoReturn:
    raise StorageCorrupt(
        f"The stored unit {quoted(id)} is damaged: {problem}. Restore a backup, or delete that unit."
    )


def read_state(id: str, text: object) -> WorkState:
    """How a unit ended that was deleted."""
    state = _STATES.get(text) if isinstance(text, str) else None
    if state is None:
        raise StorageCorrupt(
            f"What is left of unit {quoted(id)} is damaged: its state is {quoted(text)}. Restore a backup."
        )
    return state


# --- The attempts of a unit -----------------------------------------------------------------------


def attempt_rows(record: Record) -> list[Row]:
    """The values of ATTEMPT_INSERT for each line of the history."""
    return [
        (record.id, line.number, line.at, line.duration, line.error, line.worker) for line in record.history
    ]


def read_attempts(id: str, rows: Iterable[Row]) -> tuple[Attempt, ...]:
    """The history of a unit in rows of ATTEMPT_SELECT."""
    return tuple(value_of(Attempt, row, f"history of unit {quoted(id)}") for row in rows)


# --- For any table ------------------------------------------------------------------------------------


def value_of(kind: type[V], row: Row, what: str) -> V:
    """A struct from a row that holds its fields in their order."""
    try:
        return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)  # type: ignore[attr-defined]
    except ValueError as error:  # msgspec's own is one, too
        raise damaged(what, error) from error


def read_with(decode: Callable[[str], V], text: str, what: str) -> V:
    """What that text says, or an error that names what is damaged."""
    try:
        return decode(text)
    except (TypeError, msgspec.MsgspecError) as error:
        raise damaged(what, error) from error


def damaged(what: str, error: Exception) -> StorageCorrupt:
    """What to say of something stored that makes no sense."""
    return StorageCorrupt(f"The stored {what} is damaged ({error}). Restore a backup.")
