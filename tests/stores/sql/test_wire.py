"""What processes leave for each other comes back as it was."""

import math
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from runcue import errors
from runcue.core.model.events import EventDraft
from runcue.core.model.failure import Failure
from runcue.core.model.lifecycle import finished, started
from runcue.core.model.parse import Rate
from runcue.core.model.record import Attempt, Record, Spec
from runcue.core.model.retry import Retry
from runcue.core.model.schedule import Schedule, Timing
from runcue.core.model.settings import Questions, Rule, Settings
from runcue.core.model.state import Adaptive, Limits, Overdue, Quantity, Worker
from runcue.core.schedule.gates import Verdict
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
    Revive,
    RunSchedule,
    Serve,
    Submission,
    Submit,
    Tell,
    Unschedule,
    Verdicts,
    Withdraw,
)
from runcue.stores.sql import wire
from runcue.testing.manual_turns import NOW, pending, specimens

SPEC = Spec("a", "call", '{"text":"ü \u2028 \\u0000","n":1e-9}'.encode(), ("api", "gpu*"), "other", "t", ("x", "y"),
            -2.5, NOW, 3.0, 0.001, 1.5, "key 'one'", "return", True, Retry(5, "power", 2.0, 60.0, False),
            (("tokens", 12.5), ("calls", 1)))  # fmt: skip
SCHEDULE = Schedule("nightly", Timing(None, "0 3 * * *", "Europe/Zurich", NOW, NOW + 9.0, 2.5), SPEC, False,
                    "queue", "all", "app", NOW, NOW - 1, NOW + 1, NOW + 2.5, NOW - 3, NOW - 2, "a", 3, 2, True,
                    "why")  # fmt: skip
LIMITS = Limits("api", 3, (Rate(5, 60.0), Rate(1, 0.5)), 4, 20.0, (Quantity("tokens", (Rate(100, 60.0),)),),
                Adaptive(1, 2, 8), Limits("api", 1))  # fmt: skip
WORKER = Worker("w-1", "host", "boot", 7, NOW, ("a", "b"), True, ("call",), {"": 5, "threads": 2}, True, ("ready",),
                (Overdue(3, "a", "call", "q", ("api",), "api"),))  # fmt: skip
RULE = Rule(
    Retry(4, "linear", 1.0),
    ("threads",),
    ("api",),
    Questions(stale=True),
    Settings(max_queued=5, age_step=None),
)
ITEMS: list[Item] = [
    Submit([SPEC, Spec("b", "call", b"{}", ())], is_plain=False, may_wait=True, services=frozenset({"x"}),
           has_cost=True),
    Withdraw(None, (3, 1)),
    Outcome("a", 4, {"deep": [None, 1.5, "ü"]}, makes=("out.txt",)),
    Outcome("a", 4, failure=Failure("throttled", "no", "trace", 3.5, "api", True), has_ended=False),
    Ended("a", 4, True),
    Entered([(1, NOW, NOW + 1), (2, NOW, NOW)]),
    Charge(1, {"tokens": 2.5}),
    Missed(),
    Look(),
    Observe(1, None, [("", 5.0, 2.5), ("tokens", 1.0, 3.0)]),
    Verdicts([Verdict("a", NOW, False, True, 0.25, "lacks", "f", ("g",))]),
    Cancel("a", True, "because"),
    Revive("a", True),
    Edit("a", b'{"n":2}', ("api",), (("tokens", 2.5),), 3.0),
    Edit("a"),
    Purge(["a", "b"]),
    Configure({"a": "1", "b": None}),
    Declare(LIMITS, is_quiet=True),
    Adjust("api", {"concurrent": 3, "rates": (Rate(1, 2.0),), "adaptive": Adaptive(1, 2, 3)},
           {"tokens": Quantity("tokens", (Rate(1, 2.0),)), "gone": None}),
    Pause("api", True),
    Tell("progress", "a", {"fraction": 0.5, "text": "half"}, 4),
    Serve(frozenset({"a", "b"})),
    Serve(None),
    Lost("w-1"),
    Hello(WORKER, {"call": RULE, "note": Rule(Retry())}),
    PutSchedule(SCHEDULE),
    PutSchedule(Schedule("plain", Timing(every=60.0), Spec("", "call", b"{}", ()))),
    DeclareSchedules([SCHEDULE], {"app": ("nightly",), "other": ()}),
    Unschedule("nightly"),
    PauseSchedule("nightly", True),
    RunSchedule("nightly", "a"),
]  # fmt: skip


def said(item: Item) -> Any:
    """All fields of an item, for items compare by identity."""
    return [
        type(item),
        [said(value) if isinstance(value, Submit) else value for value in msgspec.structs.astuple(item)],
    ]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: type(item).__name__)
def test_an_item_comes_back_as_it_was(item: Item) -> None:
    [found] = wire.read_items(wire.items_text([item]))
    assert said(found) == said(item)


def test_there_is_every_kind_of_item() -> None:
    assert {type(item) for item in ITEMS} == set(Item.__args__) - {Submission}  # it has rows of its own


def test_params_are_no_text_within_a_text() -> None:
    assert '{"text":"ü' in wire.items_text([ITEMS[0]])


def test_what_units_have_in_common_travels_once() -> None:
    alike = [replace(SPEC, id=f"a{number}", params=b'{"n":%d}' % number) for number in range(3)]
    other = replace(SPEC, id="b", priority=7.0)
    item = Submit([*alike, other, replace(other, id="c"), alike[0]], is_plain=False)
    text = wire.items_text([item])
    assert said(*wire.read_items(text)) == said(item)
    assert text.count('"call"') == 3
    assert wire.submitted(text, "a2") == alike[2]


def singly(*ids: str, **fields: Any) -> list[Submit]:
    """Plain submissions of one unit each."""
    spec = Spec("", "call", b"{}", ("api",))
    return [Submit([replace(spec, id=id)], is_plain=True, is_answered=False, **fields) for id in ids]


@pytest.mark.parametrize(
    "items",
    [
        singly("a", "b", "c"),
        [*singly("a", "b"), Ended("x", 1), *singly("c", "d")],
        [*singly("a", "b"), Cancel("x"), *singly("c", "d"), Ended("x", 1)],
        [Submit([SPEC, SPEC], is_plain=True, is_answered=False), *singly("a")],
        [*singly("a", "b"), *singly("c", services=frozenset({"x"})), *singly("d", may_wait=True)],
        [Submit([SPEC], is_plain=True), *singly("a", "b")],
    ],
    ids=[
        "alike",
        "among reports",
        "around a request",
        "of several units",
        "with more",
        "behind an answered one",
    ],
)
def test_submissions_that_travel_as_one_come_back_singly_and_in_their_places(items: list[Item]) -> None:
    text = wire.items_text(items)
    assert [*map(said, wire.read_items(text))] == [*map(said, items)]
    assert [spec for item in items if isinstance(item, Submit) and not item.is_answered
            for spec in item.specs] == wire.accepted(text)  # fmt: skip


def test_what_submissions_have_in_common_travels_once() -> None:
    assert wire.items_text([*singly("a", "b"), Ended("x", 1), *singly("c", "d")]).count('"call"') == 2
    text = wire.items_text([Ended("x", 1), *singly("a", "b", "c")])
    assert text.count('"call"') == 1
    found = wire.submitted(text, "c")
    assert found is not None
    assert found.id == "c"


def test_before_an_item_that_is_answered_each_submission_travels_for_itself() -> None:
    """An earlier release finds it by its place, and does not take them apart."""
    text = wire.items_text([*singly("a", "b"), Cancel("x"), *singly("c", "d")])
    assert [name for name, _ in msgspec.json.decode(text)] == ["submit", "submit", "cancel", "submit"]


def test_code_and_exceptions_stay_at_home() -> None:
    hello = Hello(WORKER, {"call": replace(RULE, retry=Retry(3, retry_on=ValueError))})
    [found] = wire.read_items(wire.items_text([hello]))
    assert isinstance(found, Hello)
    assert found.rules["call"].retry == Retry(3)
    [outcome] = wire.read_items(wire.items_text([Outcome("a", 1, error=ValueError("x"))]))
    assert isinstance(outcome, Outcome)
    assert outcome.error is None
    tell = Tell("callback_failed", None, {"exception": ValueError("x"), "callback": "is_ready", "odd": {1j}})
    [told] = wire.read_items(wire.items_text([tell]))
    assert isinstance(told, Tell)
    assert told.data == {"callback": "is_ready", "odd": ["1j"]}


@pytest.mark.parametrize("value", [10**30, "\ud800", {"x": 10**400}])
def test_what_cannot_be_written_is_told_in_other_words(value: Any) -> None:
    [told] = wire.read_items(wire.items_text([Tell("progress", "a", {"n": 1, "odd": value})]))
    assert isinstance(told, Tell)
    assert told.data is not None
    assert told.data["n"] == 1
    assert "odd" in told.data


def test_a_newer_kind_of_item_is_told_apart_from_damage() -> None:
    with pytest.raises(wire.Unfamiliar):
        wire.read_items('[["cancel",{"id":"a"}],["dance",{}]]')
    for text in ("", "{}", '[["cancel",{"id":5}]]', '[["submit",{"specs":[[1]],"is_plain":true}]]',
                 '[["submit",{"specs":[],"is_plain":true,"alike":[[["a",{}]]]}]]',
                 '[["submit",{"specs":[],"is_plain":true,"sizes":[1]}]]'):  # fmt: skip
        with pytest.raises(errors.StorageCorrupt):
            wire.read_items(text)


def test_a_rule_comes_back() -> None:
    assert wire.read_rule("call", wire.rule_text(RULE)) == RULE
    with pytest.raises(errors.StorageCorrupt, match="call"):
        wire.read_rule("call", "[]")


def test_a_submitted_spec_is_found_by_its_id() -> None:
    text = wire.items_text([Cancel("a"), ITEMS[0]])
    assert wire.submitted(text, "a") == SPEC
    assert wire.submitted(text, "nobody") is None


# --- Parts ----------------------------------------------------------------------------------------


def travelled(part: Plan, *records: Record) -> Plan:
    plan = Plan()
    for kind, text in wire.letters_of(part):
        wire.read_letter(plan, kind, text, {record.id: record for record in records})
    return plan


def test_starts_and_questions_come_with_their_records() -> None:
    part = Plan()
    one, two, three = (started(pending(n), n, NOW, "me", "running/me") for n in (1, 2, 3))
    part.start, part.ask = [one, two, three], [pending(4)]
    part.rated = {1: NOW + 5, 2: math.inf}
    part.again, part.depth, part.pressure = 1, 9, {"api": 0.5}
    assert [kind for kind, _ in wire.letters_of(part)] == [wire.START]
    found = travelled(part, one, two, three, pending(4))
    assert found.start == [one, two, three]
    assert found.rated == part.rated
    assert (found.ask, found.again, found.depth, found.pressure) == ([pending(4)], 1, 9, {"api": 0.5})
    [(kind, text)] = wire.letters_of(part)
    assert wire.given_in(kind, text) == [("w1", 1), ("w2", 2), ("w3", 3)]
    assert wire.named_in(kind, text) == ["w1", "w2", "w3", "w4"]


def test_a_start_that_was_ended_meanwhile_is_left_out() -> None:
    part = Plan()
    one, two = (started(pending(n), n, NOW, "me", "running/me") for n in (1, 2))
    part.start = [one, two]
    assert travelled(part, finished(one, None, NOW), two).start == [two]
    assert travelled(part, replace(one, token=7)).start == []


def test_what_is_told_comes_with_the_record_as_it_stood() -> None:
    part = Plan()
    line = Attempt(1, NOW, 0.25, "ConnectionError: gone", "worker")
    failed = pending(30, history=(line,), error="x")
    part.events = [*specimens(), EventDraft("failed", NOW, failed, {"attempt": 1, "exception": ValueError("x")}),
                   EventDraft("queue_status", NOW, None, {"pending": 3}),
                   EventDraft("stall_warning", NOW)]  # fmt: skip
    part.finals = {5: part.events[5]}
    part.is_notable = True
    part.stop = [4, 5]
    found = travelled(part)
    wanted = part.events.copy()
    wanted[-3] = EventDraft("failed", NOW, failed, {"attempt": 1})
    assert found.events == wanted
    assert found.finals == {5: wanted[5]}
    assert (found.stop, found.is_notable) == ([4, 5], True)


def test_several_letters_make_one_plan() -> None:
    part, plan = Plan(), Plan()
    part.events = [pending(1), pending(2)]
    part.finals = {1: pending(2)}
    [(kind, text)] = wire.letters_of(part)
    for _ in range(2):
        wire.read_letter(plan, kind, text, {})
    assert len(plan.events) == 4
    assert sorted(plan.finals) == [1, 3]


@pytest.mark.parametrize("answer", [None, True, False, 7, "a text", ["a", "b"], []])
def test_an_answer_comes_back(answer: Any) -> None:
    part = Plan()
    part.replies = [((3, 1), answer)]
    assert travelled(part).replies == [((3, 1), answer)]


@pytest.mark.parametrize(
    "error",
    [
        errors.DuplicateWork("w", "key", "failed", "other params"),
        errors.DuplicateWork("w"),
        errors.DependencyCycle(["a", "b", "a"]),
        errors.QueueFull(5, 4, 9),
        errors.SubmitError("no"),
        errors.UnknownService("apii", ["api", "gpu"]),
        errors.UnknownTask("x"),
        errors.WorkNotFound("w", forgotten=True),
        errors.InvalidOption("cost", 5, "less"),
        errors.ConfigError("wrong"),
        errors.StoreError("gone", "place"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_with_its_fields(error: errors.RuncueError) -> None:
    part = Plan()
    part.replies = [((1, 0), error)]
    [(_, found)] = travelled(part).replies
    assert (type(found), str(found), found.__dict__) == (type(error), str(error), error.__dict__)


def test_an_error_of_another_kind_is_told_in_words() -> None:
    part = Plan()
    part.replies = [((1, 0), ZeroDivisionError("by what?"))]
    [(_, found)] = travelled(part).replies
    assert (type(found), str(found)) == (errors.RuncueError, "ZeroDivisionError: by what?")


def test_a_damaged_letter_is_told() -> None:
    for kind in (wire.START, wire.WORD):
        with pytest.raises(errors.StorageCorrupt):
            wire.read_letter(Plan(), kind, "[", {})
    with pytest.raises(errors.StorageCorrupt):
        wire.read_letter(Plan(), wire.WORD, '{"events":[[5]]}', {})
