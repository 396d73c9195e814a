"""Which works are asked for: what counts as being one of them."""

import pytest
from msgspec.structs import replace

from runcue.core.model.record import Record, Spec, WorkState
from runcue.core.views.query import Query, by_task

SPEC = Spec(
    id="Order-7",
    task="call",
    params=b'{"page": "Zwei"}',
    services=("openai", "db[customer]"),
    queue="night",
    target="/out/seven",
)
RECORD = Record("Order-7", SPEC, 7, 0.0, 0.0, error="No line to host")


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
        (Query(search="zwo"), False),
        (Query(search="%"), False),
        (Query(WorkState.PENDING, "call", queue="night", service="db", search="7", before=9), True),
        (Query(WorkState.PENDING, "call", queue="night", service="db", search="7", before=6), False),
    ],
)
def test_a_work_is_found_when_all_that_is_asked_is_true_of_it(query: Query, is_found: bool) -> None:
    assert query.finds(RECORD) is is_found


def test_what_a_work_has_not_got_is_not_searched() -> None:
    bare = replace(RECORD, spec=replace(SPEC, target=None), error=None)
    assert not Query(search="seven").finds(bare)
    assert not Query(search="line").finds(bare)
    assert not Query(search="none").finds(bare)


def test_only_what_is_alive_is_told_by_task() -> None:
    numbers = [("pending", "a", 3), ("running", "a", 1), ("failed", "a", 9), ("pending", "b", 2)]
    assert by_task(numbers) == {"pending": {"a": 3, "b": 2}, "running": {"a": 1}}
