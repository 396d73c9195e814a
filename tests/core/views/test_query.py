"""Which works are asked for: what counts as being one of them."""

import pytest
from msgspec.structs import replace

from runcue.core.model.record import Extras, Record, Spec, WorkState
from runcue.core.views.query import Query, Row, by_task, first_since, marks_of

SPEC = Spec(
    id="Order-7",
    task="call",
    params=b'{"page": "Zwei"}',
    services=("openai", "db[customer]"),
    queue="night",
    target="/out/seven",
    idempotency_key="Key-9",
    group="import",
    extras=Extras((("run", "nightly"), ("who", "me"))),
    label="page Zwo-1",
)
RECORD = Record("Order-7", SPEC, 7, 0.0, 100.0, error="No line to host")


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        (Query(), True),
        (Query(WorkState.PENDING), True),
        (Query(WorkState.RUNNING), False),
        (Query(task="call"), True),
        (Query(task="Call"), False),
        (Query(queue="night"), True),
        (Query(queue="default"), False),
        (Query(service="openai"), True),
        (Query(service="db"), True),
        (Query(service="db[customer]"), True),
        (Query(service="open"), False),
        (Query(before=7), False),
        (Query(before=8), True),
        (Query(search="order-7"), True),
        (Query(search="SEVEN"), True),
        (Query(search="no LINE"), True),
        (Query(search='"zwei"'), True),
        (Query(search="zwölf"), False),
        (Query(search="%"), False),
        (Query(search="ZWO-1"), True),
        (Query(search="key-9"), True),
        (Query(group="import"), True),
        (Query(group="run"), False),
        (Query(tags=(("run", "nightly"),)), True),
        (Query(tags=(("run", "nightly"), ("who", "me"))), True),
        (Query(tags=(("run", "nightly"), ("who", "you"))), False),
        (Query(tags=(("", "import"),)), False),
        (Query(key="Key-9"), True),
        (Query(key="Key"), False),
        (Query(since=100.0), True),
        (Query(since=100.5), False),
        (Query(until=100.5), True),
        (Query(until=100.0), False),
        (Query(WorkState.PENDING, "call", queue="night", service="db", search="7", before=9), True),
        (Query(WorkState.PENDING, "call", queue="night", service="db", search="7", before=6), False),
    ],
)
def test_a_work_is_found_when_all_that_is_asked_is_true_of_it(query: Query, is_found: bool) -> None:
    assert query.finds(RECORD) is is_found


def test_what_a_work_has_not_got_is_not_searched() -> None:
    bare = replace(
        RECORD,
        spec=replace(SPEC, target=None, idempotency_key=None, group=None, extras=None, label=None),
        error=None,
    )
    assert marks_of(bare.spec) == ()
    assert not Query(group="import").finds(bare)
    assert not Query(tags=(("run", "nightly"),)).finds(bare)
    assert not Query(search="seven").finds(bare)
    assert not Query(search="line").finds(bare)
    assert not Query(search="none").finds(bare)


def test_only_what_is_alive_is_told_by_task() -> None:
    numbers = [("pending", "a", 3), ("running", "a", 1), ("failed", "a", 9), ("pending", "b", 2)]
    assert by_task(numbers) == {"pending": {"a": 3, "b": 2}, "running": {"a": 1}}


def test_a_unit_is_found_by_its_group_as_by_a_tag_without_a_name() -> None:
    assert marks_of(SPEC) == (("", "import"), ("run", "nightly"), ("who", "me"))
    assert marks_of(replace(SPEC, group=None)) == (("run", "nightly"), ("who", "me"))
    assert Query(group="import", tags=(("run", "nightly"),)).marks == (("", "import"), ("run", "nightly"))


def first(at: float, rows: list[Row]) -> int:
    def row_from(number: int) -> Row | None:
        return next((row for row in rows if row.seq >= number), None)

    return first_since(at, rows[-1].seq if rows else 0, row_from)


@pytest.mark.parametrize("at", [0.0, 99.0, 100.0, 101.0, 150.0, 199.0, 300.0])
def test_no_unit_of_a_time_has_a_number_before_the_first(at: float) -> None:
    rows = [Row(number, float(number), float(number)) for number in range(100, 200) if number % 3]
    rows[40] = Row(rows[40].seq, 5.0, rows[40].since)  # retried by hand: old, with a new number
    rows[50] = Row(rows[50].seq, rows[50].created_at, 500.0)  # failed, and waits since for its next attempt
    number = first(at, rows)
    assert all(row.seq >= number for row in rows if row.created_at >= at)


def test_the_first_number_of_a_time_is_found_in_a_few_steps() -> None:
    rows = [Row(number, float(number), float(number)) for number in range(1, 1000)]
    assert first(500.0, rows) == 500
    assert first(5000.0, rows) == 1000
    assert first(0.0, []) == 0
