"""What processes leave for each other in the tables, as JSON texts, and back: items, parts of plans, rules.

Rules:
- What was written comes back equal, but for code and exceptions, which do not travel: `Retry.retry_on`, the `error`
  of an outcome, the `exception` of a callback that failed. Any other value that JSON cannot hold travels as its
  `repr`.
- Of units that are submitted together and differ only in their ids and params, those travel and the rest once.
- Params and results are embedded as they are, not as texts within a text.
- A start travels as the id and token of its unit: the process that reads it loads the record. An event about a unit
  travels with the record as it stood then.
- An unknown kind of item comes from a newer release: `Unfamiliar`. What makes no sense is StorageCorrupt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, zip_longest
from typing import Any, Final, get_type_hints

import msgspec
from msgspec.structs import replace

from runcue import errors
from runcue.core.limits.meter import Cost
from runcue.core.model.events import EventDraft, News
from runcue.core.model.failure import Failure
from runcue.core.model.record import Attempt, Record, Spec
from runcue.core.model.settings import Questions, Rule, Settings
from runcue.core.model.state import Limits, Quantity, Worker
from runcue.core.schedule.plan import (
    Adjust,
    Cancel,
    Charge,
    Configure,
    Declare,
    DeclareSchedules,
    Edit,
    Ended,
    Entered,
    Hello,
    Item,
    Look,
    Lost,
    Missed,
    Observe,
    Outcome,
    Pause,
    PauseSchedule,
    Plan,
    Purge,
    PutSchedule,
    Ref,
    Revive,
    RunSchedule,
    Serve,
    Submit,
    Tell,
    Unschedule,
    Verdicts,
    Withdraw,
)
from runcue.errors import RuncueError, StorageCorrupt, quoted
from runcue.stores.sql import codec
from runcue.stores.sql.columns import COLUMNS
from runcue.stores.sql.forms import (
    RetryForm,
    ScheduleForm,
    SpecForm,
    retry_in,
    retry_out,
    schedule_in,
    schedule_out,
    spec_in,
    spec_out,
)

_encode = msgspec.json.Encoder(enc_hook=repr).encode
Given = list[tuple[str, int]]
"""Units that were started, each with the token of its attempt."""


class Unfamiliar(Exception):
    """Says that something was written by a newer release."""


# --- Values that travel in another form -----------------------------------------------------------


class _Alike(msgspec.Struct, array_like=True, gc=False):
    id: str
    params: msgspec.Raw


class _Submit(msgspec.Struct, omit_defaults=True):
    specs: list[SpecForm]  # type: ignore[valid-type] # it is made above
    is_plain: bool
    may_wait: bool = False
    services: frozenset[str] = frozenset()
    has_cost: bool = False
    is_answered: bool = True
    alike: list[list[_Alike]] = []
    """For each of the specs, those that follow it and differ in nothing but this; empty when there are none."""
    sizes: list[int] = []
    """How many units each of several submissions has that travel as one; empty where it is but one."""


class _Withdraw(msgspec.Struct):
    ref: Ref | None


class _Outcome(msgspec.Struct, array_like=True):
    id: str
    token: int
    result: Any
    failure: Failure | None
    has_ended: bool
    makes: tuple[str, ...]


class _Rule(msgspec.Struct, omit_defaults=True):
    retry: RetryForm
    implicit: tuple[str, ...] = ()
    services: tuple[str, ...] | None = None
    questions: Questions | None = None
    settings: Settings | None = None
    timeout: float | None = None


class _Hello(msgspec.Struct):
    worker: Worker
    rules: dict[str, _Rule]


class _Schedules(msgspec.Struct, omit_defaults=True):
    schedules: list[ScheduleForm]
    modules: dict[str, tuple[str, ...]] = {}


NOT_GIVEN: Final = msgspec.Raw(b"null")
"""What stands for params that stay as they are: params are an object."""


class _Edit(msgspec.Struct, omit_defaults=True):
    id: str
    params: msgspec.Raw
    services: tuple[str, ...] | None = None
    cost: Cost | None = None
    priority: float | None = None
    label: str | None = None


class _Adjust(msgspec.Struct):
    service: str
    limits: dict[str, Any]
    quantities: dict[str, Quantity | None]


def _submit_out(item: Submit) -> _Submit:
    specs: list[Any] = []
    alike: list[list[_Alike]] = []
    last: Spec | None = None
    for spec in item.specs:
        if last is not None and replace(spec, id=last.id, params=last.params) == last:
            alike[-1].append(_Alike(spec.id, msgspec.Raw(spec.params)))
        else:
            last = spec
            specs.append(spec_out(spec))
            alike.append([])
    return _Submit(specs, item.is_plain, item.may_wait, item.services, item.has_cost, item.is_answered,
                   alike if any(alike) else [])  # fmt: skip


def _submit_in(item: _Submit) -> Submit:
    specs: list[Spec] = []
    for spec, alike in zip_longest(item.specs, item.alike, fillvalue=()):
        first = spec_in(spec)
        specs.append(first)
        specs += [replace(first, id=one.id, params=bytes(one.params)) for one in alike]
    return Submit(specs, item.is_plain, item.may_wait, item.services, item.has_cost, item.is_answered)


def _rule_out(rule: Rule) -> _Rule:
    return _Rule(
        retry_out(rule.retry), rule.implicit, rule.services, rule.questions, rule.settings, rule.timeout
    )


def _rule_in(rule: _Rule) -> Rule:
    return Rule(
        retry_in(rule.retry), rule.implicit, rule.services, rule.questions, rule.settings, rule.timeout
    )


def _outcome_out(item: Outcome) -> _Outcome:
    return _Outcome(item.id, item.token, item.result, item.failure, item.has_ended, item.makes)


def _outcome_in(item: _Outcome) -> Outcome:
    return Outcome(item.id, item.token, item.result, item.failure, None, item.has_ended, item.makes)


def _edit_out(item: Edit) -> _Edit:
    params = NOT_GIVEN if item.params is None else msgspec.Raw(item.params)
    return _Edit(item.id, params, item.services, item.cost, item.priority, item.label)


def _edit_in(item: _Edit) -> Edit:
    params = None if item.params == NOT_GIVEN else bytes(item.params)
    services = None if item.services is None else codec.same_names(item.services)
    return Edit(item.id, params, services, item.cost, item.priority, item.label)


_LIMITS: Final = get_type_hints(Limits)


def _adjust_in(item: _Adjust) -> Adjust:
    limits = {name: msgspec.convert(value, _LIMITS[name]) for name, value in item.limits.items()}
    return Adjust(item.service, limits, item.quantities)


def _data_out(data: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The data of an event that an application emitted, as far as it travels."""
    if not data:
        return None if data is None else {}
    plain = {str(name): value for name, value in data.items() if name != "exception"}
    try:
        _encode(plain)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {ascii(name)[1:-1]: _shown(value) for name, value in plain.items()}
    return plain


def _shown(value: Any) -> Any:
    try:
        _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return quoted(value).encode(errors="replace").decode()
    return value


# --- Items ----------------------------------------------------------------------------------------

_Out = Callable[[Any], Any]
_OUT: Final[dict[type, tuple[str, _Out | None]]] = {
    Submit: ("submit", _submit_out),
    Withdraw: ("withdraw", lambda item: _Withdraw(item.ref)),
    Outcome: ("outcome", _outcome_out),
    Ended: ("ended", None),
    Entered: ("entered", None),
    Verdicts: ("verdicts", None),
    Cancel: ("cancel", None),
    Revive: ("revive", None),
    Edit: ("edit", _edit_out),
    Purge: ("purge", None),
    Configure: ("configure", None),
    Declare: ("declare", None),
    Adjust: ("adjust", None),
    Pause: ("pause", None),
    Tell: ("tell", lambda item: Tell(item.type, item.id, _data_out(item.data), item.token)),
    Serve: ("serve", None),
    Lost: ("lost", None),
    Charge: ("charge", None),
    Observe: ("observe", None),
    Missed: ("missed", None),
    PutSchedule: ("schedule", lambda item: schedule_out(item.schedule)),
    DeclareSchedules: (
        "schedules",
        lambda item: _Schedules([schedule_out(one) for one in item.schedules], item.modules),
    ),
    Unschedule: ("unschedule", None),
    PauseSchedule: ("pause_schedule", None),
    RunSchedule: ("run_schedule", None),
    Look: ("look", None),
    Hello: (
        "hello",
        lambda item: _Hello(item.worker, {name: _rule_out(rule) for name, rule in item.rules.items()}),
    ),
}
"""The name of each kind of item, and what makes the form in which it travels, if that is not its own."""


def _reader(kind: type, then: Callable[[Any], Item] | None = None) -> Callable[[msgspec.Raw], Item]:
    decode: Callable[[msgspec.Raw], Any] = msgspec.json.Decoder(kind).decode
    return decode if then is None else lambda text: then(decode(text))


_IN: Final[dict[str, Callable[[msgspec.Raw], Item]]] = {
    "withdraw": _reader(_Withdraw, lambda item: Withdraw(None, item.ref)),
    "outcome": _reader(_Outcome, _outcome_in),
    "adjust": _reader(_Adjust, _adjust_in),
    "edit": _reader(_Edit, _edit_in),
    "schedule": _reader(ScheduleForm, lambda said: PutSchedule(schedule_in(said))),
    "schedules": _reader(
        _Schedules, lambda said: DeclareSchedules([schedule_in(one) for one in said.schedules], said.modules)
    ),
    "hello": _reader(
        _Hello, lambda item: Hello(item.worker, {name: _rule_in(rule) for name, rule in item.rules.items()})
    ),
    **{name: _reader(kind) for kind, (name, out) in _OUT.items() if out is None and kind is not Adjust},
    "tell": _reader(Tell),
}
_decode_items = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]]).decode


_REPORTS: Final = frozenset({Outcome, Ended, Entered, Charge, Observe, Verdicts, Tell, Hello, Lost, Missed})
"""Items that get no answer."""


def items_text(items: Iterable[Item]) -> str:
    """Items as a post for the deciding process."""
    said: list[tuple[str, Any]] = []
    for item in _joined([*items]):
        if type(item) is _Several:
            said.append(("submit", _several_out(item)))
            continue
        name, out = _OUT[type(item)]
        said.append((name, item if out is None else out(item)))
    return _encode(said).decode()


def _joined(items: list[Item]) -> list[Any]:
    """Items as they travel: submissions in a row that are alike as one, which costs each but its id and params.

    Only behind the last item that gets an answer: an earlier release does not take them apart again, and answers name
    an item by its place.
    """
    found: list[Any] = []
    run: list[Submit] = []
    behind = len(items)
    while behind and (type(items[behind - 1]) in _REPORTS or _is_unanswered(items[behind - 1])):
        behind -= 1
    for place, item in enumerate(items):
        if place >= behind and type(item) is Submit:
            run.append(item)
            continue
        found += _as_one(run)
        run = []
        found.append(item)
    return found + _as_one(run)


def _is_unanswered(item: Item) -> bool:
    is_bare = type(item) is Submit and item.is_plain and not (item.is_answered or item.may_wait)
    return is_bare and not (item.services or item.has_cost)  # type: ignore[union-attr]


def _as_one(run: list[Submit]) -> list[Any]:
    return [_Several(run)] if len(run) > 1 else [*run]


class _Several(msgspec.Struct):
    """Several submissions that travel as one."""

    submits: list[Submit]


def _several_out(item: _Several) -> _Submit:
    found = _submit_out(Submit([spec for one in item.submits for spec in one.specs], True, is_answered=False))
    found.sizes = [len(one.specs) for one in item.submits]
    return found


def read_items(text: str) -> list[Item]:
    """The items in such a text."""
    try:
        return [item for name, body in _decode_items(text) for item in _items(name, body)]
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        raise codec.damaged("post", error) from error


def _items(name: str, body: msgspec.Raw) -> list[Item]:
    if name == "submit":
        return [*_submits_in(msgspec.json.decode(body, type=_Submit))]
    read = _IN.get(name)
    if read is None:
        raise Unfamiliar(f"an item of the kind {quoted(name)}")
    return [read(body)]


def _submits_in(item: _Submit) -> list[Submit]:
    """The submissions that travelled as one."""
    whole = _submit_in(item)
    if not item.sizes:
        return [whole]
    if sum(item.sizes) != len(whole.specs):
        raise ValueError("the sizes of submissions do not add up")
    rest = iter(whole.specs)
    return [Submit([*islice(rest, size)], whole.is_plain, is_answered=False) for size in item.sizes]


def submitted(text: str, work_id: str) -> Spec | None:
    """The spec of a unit in a post, if it is submitted there."""
    for name, body in _decode_items(text):
        if name == "submit":
            for spec in _submit_in(msgspec.json.decode(body, type=_Submit)).specs:
                if spec.id == work_id:
                    return spec
    return None


def accepted(text: str) -> list[Spec]:
    """The specs in a post that count as accepted before the deciding process has taken it."""
    items = (
        _submit_in(msgspec.json.decode(body, type=_Submit))
        for name, body in _decode_items(text)
        if name == "submit"
    )
    return [spec for item in items if not item.is_answered for spec in item.specs]


# --- Rules ----------------------------------------------------------------------------------------

_decode_rule = msgspec.json.Decoder(_Rule).decode


def rule_text(rule: Rule) -> str:
    """What deciding needs to know about a task, as text."""
    return _encode(_rule_out(rule)).decode()


def read_rule(name: str, text: str) -> Rule:
    """The rule in such a text."""
    return _rule_in(codec.read_with(_decode_rule, text, f"rule of task {quoted(name)}"))


# --- Parts of a plan ------------------------------------------------------------------------------


class _Starts(msgspec.Struct, omit_defaults=True):
    """The letter that can be taken back until it is read."""

    starts: list[tuple[str, int] | tuple[str, int, float | None]] = []
    """Id and token; of one that is rated, by when it has to begin (None: at any time)."""
    ask: list[str] = []
    again: int = 0
    depth: int = 0
    pressure: dict[str, float] = {}


class _Words(msgspec.Struct, omit_defaults=True):
    """The letter that cannot be taken back."""

    stop: list[int] = []
    replies: list[tuple[int, int, Any]] = []
    events: list[list[Any]] = []
    finals: list[int] = []
    is_notable: bool = False


_decode_starts = msgspec.json.Decoder(msgspec.defstruct("_ReadStarts", [
    ("starts", list[list[Any]], msgspec.field(default_factory=list)),
    ("ask", list[str], msgspec.field(default_factory=list)),
    ("again", int, 0),
    ("depth", int, 0),
    ("pressure", dict[str, float], msgspec.field(default_factory=dict)),
])).decode  # fmt: skip
_decode_words = msgspec.json.Decoder(_Words).decode

START, WORD = "start", "word"
"""The two kinds of letters: what can be taken back, and what cannot."""


def letters_of(part: Plan) -> list[tuple[str, str]]:
    """A part of a plan as letters to another process: the kind and the text of each."""
    found: list[tuple[str, str]] = []
    if part.start or part.ask:
        rated = part.rated
        starts: list[Any] = [
            (one.id, one.token, latest if math.isfinite(latest := rated[one.token]) else None)
            if one.token in rated
            else (one.id, one.token)
            for one in part.start
        ]
        asked = [record.id for record in part.ask]
        found.append((START, _encode(_Starts(starts, asked, part.again, part.depth, part.pressure)).decode()))
    if part.stop or part.replies or part.events:
        replies = [(*ref, _answer_out(answer)) for ref, answer in part.replies]
        events = [_news_out(news) for news in part.events]
        words = _Words(part.stop, replies, events, sorted(part.finals), part.is_notable)
        found.append((WORD, _encode(words).decode()))
    return found


def given_in(kind: str, text: str) -> Given:
    """The starts in a letter."""
    if kind != START:
        return []
    return [(one[0], one[1]) for one in _starts(text).starts]


def asked_in(kind: str, text: str) -> list[str]:
    """The units in a letter about which callbacks are called."""
    return list(_starts(text).ask) if kind == START else []


def named_in(kind: str, text: str) -> list[str]:
    """The units in a letter whose records have to be loaded."""
    if kind != START:
        return []
    said = _starts(text)
    return [*(one[0] for one in said.starts), *said.ask]


def read_letter(plan: Plan, kind: str, text: str, records: Mapping[str, Record]) -> Given:
    """Add what a letter says to a plan. Starts that were given up meanwhile are left out, and returned."""
    given_up: Given = []
    if kind == START:
        said = _starts(text)
        for id, token, *latest in said.starts:
            record = records.get(id)
            if record is None or record.token != token:
                given_up.append((id, token))
                continue
            plan.start.append(record)
            if latest:
                plan.rated[token] = math.inf if latest[0] is None else float(latest[0])
        plan.ask += [records[id] for id in said.ask if id in records]
        plan.again += said.again
        plan.depth, plan.pressure = said.depth, said.pressure
    elif kind == WORD:
        words = codec.read_with(_decode_words, text, "letter")
        first = len(plan.events)
        plan.stop += words.stop
        plan.replies += [((number, place), _answer_in(said)) for number, place, said in words.replies]
        plan.events += map(_news_in, words.events)
        plan.finals.update((first + place, plan.events[first + place]) for place in words.finals)
        plan.is_notable |= words.is_notable
    return given_up


def _starts(text: str) -> Any:
    return codec.read_with(_decode_starts, text, "letter")


# --- Answers --------------------------------------------------------------------------------------


def _answer_out(answer: Any) -> Any:
    """An answer as JSON: a plain value in a list, or an error with its fields."""
    if not isinstance(answer, BaseException):
        return [answer]
    kind, fields = type(answer), dict(answer.__dict__)
    if not isinstance(answer, RuncueError) or getattr(errors, kind.__name__, None) is not kind:
        return {"error": "RuncueError", "args": [f"{kind.__name__}: {answer}"], "fields": {}}
    return {"error": kind.__name__, "args": list(answer.args), "fields": fields}


def _answer_in(said: Any) -> Any:
    if isinstance(said, list):
        return said[0]
    kind = getattr(errors, said["error"], RuncueError)
    if not (isinstance(kind, type) and issubclass(kind, RuncueError)):
        kind = RuncueError
    error = kind.__new__(kind, *said["args"])
    for name, value in said["fields"].items():
        error.__dict__[name] = tuple(value) if isinstance(value, list) else value
    return error


# --- Events ---------------------------------------------------------------------------------------


def _news_out(news: News) -> list[Any]:
    if isinstance(news, Record):
        return [_record_out(news)]
    record = None if news.record is None else _record_out(news.record)
    return [news.type, news.at, record, _data_out(news.data)]


def _news_in(said: list[Any]) -> News:
    if len(said) == 1:
        return _record_in(said[0])
    type, at, record, data = said
    return EventDraft(type, float(at), None if record is None else _record_in(record), data)


def _record_out(record: Record) -> list[Any]:
    row = codec.insert_row(record, 0.0)[: len(COLUMNS)]
    lines = [list(line[1:]) for line in codec.attempt_rows(record)]
    return [[int(value) if isinstance(value, bool) else value for value in row], lines]


def _record_in(said: list[Any]) -> Record:
    try:
        row, lines = said
        history: tuple[Attempt, ...] = codec.read_attempts(row[0], map(tuple, lines)) if lines else ()
        return codec.read_row(tuple(row), history)
    except (TypeError, ValueError, LookupError) as error:
        raise StorageCorrupt(f"A stored letter is damaged ({error}). Restore a backup.") from error
