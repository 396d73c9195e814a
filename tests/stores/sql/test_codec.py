"""Values go into rows and come back equal; rows that make no sense are refused by name."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from runcue.core.model.parse import Rate
from runcue.core.model.record import Attempt, Extras, Progress, Record, Spec, Uniqueness, WorkState
from runcue.core.model.retry import BACKOFFS, Retry
from runcue.core.model.state import BreakerState, Grant, Head, Limits, Overdue, ServiceState, Worker
from runcue.errors import Permanent, StorageCorrupt
from runcue.stores.sql import codec, columns, statements, states
from runcue.stores.sqlite.schema import migrate
from runcue.stores.sqlite.statements import SQLITE
from tests.sample import fewer

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
real = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53).map(float)
whole = st.integers(0, 2**62)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
params = st.dictionaries(text, json_values, max_size=3).map(msgspec.json.encode)
names = st.lists(text, max_size=3).map(tuple)
attempts = st.builds(
    Attempt,
    number=whole,
    at=st.none() | real,
    duration=st.none() | real,
    error=text,
    worker=st.none() | text,
)
seconds = st.floats(0, 1e6) | st.integers(0, 10**6)
retries = st.builds(
    Retry, max_attempts=st.integers(1, 10**6), backoff=st.sampled_from(BACKOFFS), base_delay=seconds,
    max_delay=seconds, jitter=st.booleans(),
)  # fmt: skip
specs = st.builds(
    Spec,
    id=text,
    task=text,
    params=params,
    services=names,
    queue=text,
    target=st.none() | text,
    depends_on=names,
    priority=real | st.integers(-1000, 1000),
    run_at=st.none() | real,
    delay=st.none() | real,
    timeout=st.none() | real,
    dependency_timeout=st.none() | real,
    idempotency_key=st.none() | text,
    on_failed=text,
    is_named=st.booleans(),
    retry=st.none() | retries,
)


def records_of(spec: Spec) -> st.SearchStrategy[Record]:
    return st.builds(
        Record,
        id=st.just(spec.id),
        spec=st.just(spec),
        seq=whole,
        rank=real,
        created_at=real,
        state=st.sampled_from(WorkState),
        attempt=whole,
        spent=whole,
        failures=whole,
        token=whole,
        started_at=st.none() | real,
        completed_at=st.none() | real,
        next_retry_at=st.none() | real,
        throttled_since=st.none() | real,
        skipped=st.booleans(),
        result=json_values,
        error=st.none() | text,
        traceback=st.none() | text,
        history=st.lists(attempts, max_size=3).map(tuple),
        crashes=whole,
        worker=st.none() | text,
        missing=whole,
        since=real,
        index_key=st.none() | text,
        sort_key=real,
        watch_at=st.none() | real,
    )


records = specs.flatmap(records_of)
PLAIN_SPEC = Spec("w1", "extract", b'{"page":1}', ("api", "disk"))
PLAIN = Record("w1", PLAIN_SPEC, 4, 100.0, 100.5, index_key="ready/extract", sort_key=100.0)
FULL_SPEC = Spec(
    "w2", "täsk", b'{"text":"\xc3\xbc\\u0000"}', (), "night", "out\0.txt", ("a", "b"), 2.5, 1.0, 2.0, 3.0, 4.0, "key",
    "return", True, Retry(7, "power", 1.5, 9.0, jitter=False), (("tokens", 12.0), ("usd", 0.5)),
    "impört", "[1]", Extras((("run", "nightly"),), 8.0, ("a",), Uniqueness(60.0, "extend", 90.0)), "läbel",
)  # fmt: skip
FULL = Record(
    "w2", FULL_SPEC, 5, -1.5, 2.0, WorkState.FAILED, 2, 3, 4, 5, 6.0, 7.0, 8.0, 9.0, True, [1, {"a": None}], "error",
    "trace", (Attempt(1, None, None, "x"), Attempt(1, 1.5, 0.5, "y", "w")), 10, "worker", 11, 12.0, "index_key",
    13.0, 14.0, "ssh_a", 15.0, Progress(0.5, "hälf"),
)  # fmt: skip


def database() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    migrate(connection)
    return connection


def insert(connection: apsw.Connection, record: Record) -> None:
    connection.execute(statements.INSERT, codec.insert_row(record, 1.0))
    connection.executemany(statements.ATTEMPT_INSERT, codec.attempt_rows(record))


def stored(connection: apsw.Connection, work_id: str) -> Record:
    [row] = connection.execute(f"{statements.SELECT} WHERE id = ?", (work_id,)).fetchall()
    lines = connection.execute(statements.ATTEMPT_SELECT, (work_id, row[-1])).fetchall()
    return codec.read_row(row, codec.read_attempts(work_id, lines))


def column(connection: apsw.Connection, name: str) -> Any:
    return connection.execute(f"SELECT {name} FROM work_units").fetchall()[0][0]


# --- Work -----------------------------------------------------------------------------------------


@given(records)
@example(PLAIN)
@example(FULL)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    connection = database()
    insert(connection, record)
    assert stored(connection, record.id) == record


@settings(max_examples=fewer(50, 15))
@given(records, st.data())
@example(PLAIN, None)
def test_an_update_writes_all_that_can_change(record: Record, data: st.DataObject | None) -> None:
    other = FULL if data is None else data.draw(records_of(record.spec))
    later = replace(other, id=record.id, spec=record.spec, created_at=record.created_at, history=())
    connection = database()
    insert(connection, replace(record, history=()))
    connection.execute(statements.UPDATE, codec.update_row(later, 2.0))
    assert connection.changes() == 1
    assert stored(connection, record.id) == later


STARTED = ("state", "attempt", "token", "worker", "started_at", "next_retry_at", "index_key", "sort_key",
           "watch_at")  # fmt: skip
FINISHED = ("state", "spent", "token", "worker", "completed_at", "result", "error", "traceback", "index_key",
            "sort_key", "watch_at")  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "row_of", "changing"),
    [(statements.START, codec.start_row, STARTED), (statements.FINISH, codec.finish_row, FINISHED)],
)
@settings(max_examples=fewer(50, 15))
@given(before=records, data=st.data())
def test_a_start_and_a_finish_write_what_they_change_and_nothing_else(
    sql: str,
    row_of: Callable[[Record, float], tuple],
    changing: tuple[str, ...],
    before: Record,
    data: st.DataObject,
) -> None:
    other = replace(data.draw(records_of(before.spec)), seq=before.seq)
    connection = database()
    insert(connection, before)
    connection.execute(sql, row_of(other, 2.0))
    assert connection.changes() == 1
    assert stored(connection, before.id) == replace(
        before, **{name: getattr(other, name) for name in changing}
    )


def test_a_start_under_an_outdated_number_changes_nothing() -> None:
    connection = database()
    insert(connection, PLAIN)
    connection.execute(statements.START, codec.start_row(replace(PLAIN, seq=3, token=9), 2.0))
    assert connection.changes() == 0
    assert stored(connection, "w1") == PLAIN


def test_the_end_of_the_lease_and_the_time_of_the_write_are_kept() -> None:
    connection = database()
    insert(connection, PLAIN)
    assert (column(connection, "lease_expires_at"), column(connection, "updated_at")) == (None, 1.0)
    connection.execute(statements.START, codec.start_row(PLAIN, 2.0, 32.0))
    assert (column(connection, "lease_expires_at"), column(connection, "updated_at")) == (32.0, 2.0)
    connection.execute(statements.UPDATE, codec.update_row(PLAIN, 3.0, 33.0))
    assert (column(connection, "lease_expires_at"), column(connection, "updated_at")) == (33.0, 3.0)
    connection.execute(statements.FINISH, codec.finish_row(PLAIN, 4.0))
    assert (column(connection, "lease_expires_at"), column(connection, "updated_at")) == (None, 4.0)


def test_no_field_is_forgotten() -> None:
    values = {name: value for one in (FULL, FULL_SPEC) for name, value in msgspec.structs.asdict(one).items()}
    defaults = {one.name: one.default for kind in (Record, Spec) for one in fields(kind)}
    assert [name for name, value in values.items() if value == defaults[name]] == []


def test_stored_values_can_be_read_by_any_tool() -> None:
    connection = database()
    insert(connection, replace(FULL, spec=replace(FULL_SPEC, services=("api", "disk"))))
    kinds = connection.execute(
        "SELECT DISTINCT typeof(params), typeof(result), typeof(run_at) FROM work_units"
    )
    assert kinds.fetchall() == [("text", "text", "real")]
    assert column(connection, "services") == '["api","disk"]'
    assert column(connection, "depends_on") == '["a","b"]'
    assert column(connection, "result ->> '$[0]'") == 1
    assert column(connection, "state") == "failed"


def test_work_without_dependencies_has_none_stored() -> None:
    connection = database()
    insert(connection, PLAIN)
    assert column(connection, "depends_on") is None
    assert column(connection, "result") is None


def test_a_stored_null_is_read_as_no_result() -> None:
    connection = database()
    insert(connection, PLAIN)
    connection.execute("UPDATE work_units SET result = 'null'")
    assert stored(connection, "w1").result is None


def test_equal_names_come_back_as_the_same_objects() -> None:
    connection = database()
    insert(connection, replace(PLAIN, worker="worker"))
    one, two = stored(connection, "w1"), stored(connection, "w1")
    assert one.spec.services is two.spec.services
    assert one.spec.task is two.spec.task
    assert one.spec.queue is two.spec.queue
    assert one.index_key is two.index_key
    assert one.worker is two.worker


def test_services_that_were_written_are_read_as_the_very_same_tuple() -> None:
    services = ("written", "before", "read")
    connection = database()
    insert(connection, replace(PLAIN, spec=replace(PLAIN_SPEC, services=services)))
    assert stored(connection, "w1").spec.services is services


def test_no_more_is_remembered_than_is_good() -> None:
    connection = database()
    insert(connection, PLAIN)
    [row] = connection.execute(statements.SELECT).fetchall()
    for number in range(codec.MOST_REMEMBERED + 10):
        own = Retry(number + 1)
        spec = replace(PLAIN_SPEC, task=f"task{number}", services=(f"service{number}",), retry=own)
        written = codec.insert_row(replace(PLAIN, spec=spec), 1.0)
        record = codec.read_row(
            (*row[:2], spec.task, *row[3:6], written[6], *row[7:16], written[16], *row[17:])
        )
        assert (record.spec.task, record.spec.services, record.spec.retry) == (spec.task, spec.services, own)
    for remembered in (codec._names, codec._lists, codec._texts, codec._policies, codec._retries):
        assert len(remembered) <= codec.MOST_REMEMBERED


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("state", "dancing", "state is 'dancing'"),
        ("seq", "x", "seq"),
        ("priority", "high", "priority"),
        ("run_at", "tomorrow", "run_at"),
        ("queue", b"\xff", "queue"),
        ("queue", None, "queue"),
        ("params", "[1]", "params"),
        ("params", '{"a":', "JSON"),
        ("params", "", "JSON"),
        ("services", "{}", "JSON"),
        ("services", "[1]", "JSON"),
        ("depends_on", "a,b", "JSON"),
        ("result", "{", "JSON"),
        ("result", "[" * 100_000, "JSON"),
        ("token", 1.5, "token"),
        ("retry", "{", "JSON"),
        ("retry", "", "JSON"),
        ("retry", 3, "retry"),
        ("retry", b"3", "retry"),
        ("retry", "[3]", "retry"),
        ("retry", '"often"', "retry"),
        ("retry", "-1", "retry"),
        ("retry", "NaN", "JSON"),
        ("retry", '{"max_attempts":0}', "retry"),
        ("retry", '{"max_attempts":"3"}', "retry"),
        ("retry", '{"max_attempts":1e400}', "JSON"),
        ("retry", '{"backoff":[]}', "retry"),
        ("retry", '{"base_delay":{}}', "retry"),
        ("retry", '{"base_delay":-1}', "retry"),
        ("retry", '{"jitter":null}', "retry"),
        ("retry", '{"retry_on":[1]}', "retry"),
        ("retry", '{"tries":3}', "retry"),
        ("retry", '{"":{}}', "retry"),
        ("retry", "[" * 100_000, "JSON"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_with_its_id(name: str, value: object, told: str) -> None:
    connection = database()
    insert(connection, PLAIN)
    row = list(connection.execute(statements.SELECT).fetchall()[0])
    row[columns.COLUMNS.index(name)] = value
    with pytest.raises(StorageCorrupt, match=r"unit 'w1' is damaged: .*") as caught:
        codec.read_row(tuple(row))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_works_own_retries_are_stored_so_that_any_tool_can_read_them() -> None:
    connection = database()
    insert(connection, FULL)
    assert column(connection, "retry ->> '$.max_attempts'") == 7
    assert column(connection, "retry ->> '$.backoff'") == "power"
    assert column(connection, "retry ->> '$.retry_on'") is None
    connection.execute("""UPDATE work_units SET retry = '{"max_attempts": 4, "base_delay": 2}'""")
    assert stored(connection, "w2").spec.retry == Retry(4, base_delay=2)
    connection.execute("UPDATE work_units SET retry = NULL")
    assert stored(connection, "w2").spec.retry is None


def test_equal_retries_come_back_as_the_same_object() -> None:
    connection = database()
    insert(connection, FULL)
    assert stored(connection, "w2").spec.retry is stored(connection, "w2").spec.retry


def test_a_row_with_too_few_or_too_many_columns_is_refused() -> None:
    connection = database()
    insert(connection, PLAIN)
    [row] = connection.execute(statements.SELECT).fetchall()
    for wrong in (row[:-1], (*row, 1)):
        with pytest.raises(StorageCorrupt, match="'w1'"):
            codec.read_row(wrong)


def test_params_that_somebody_wrote_by_hand_may_begin_with_a_space() -> None:
    connection = database()
    insert(connection, PLAIN)
    connection.execute("""UPDATE work_units SET params = ' {"page": 2}'""")
    assert stored(connection, "w1").spec.params == b' {"page": 2}'


# --- Results --------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


class Number(int):
    """A number that JSON's encoder does not take for one."""


@pytest.mark.parametrize(
    "result",
    [None, True, 0, -(2**63), 2**64 - 1, 0.5, "", "ü 🎈", "x" * 20_000, [], {}, [1, [None, "a"]], {"a": {"b": [1.5]}},
     (1, 2), {"a": (1,)}, Colour.RED, Number(3), {"a": Number(3)}],
    ids=repr,
)  # fmt: skip
def test_a_result_that_json_can_hold_is_taken_and_comes_back(result: Any) -> None:
    kept = codec.stored_result(result)
    connection = database()
    insert(connection, replace(PLAIN, result=kept))
    assert repr(stored(connection, "w1").result) == repr(kept)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({1}, "set"),
        (b"x", "bytes"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (datetime(2026, 1, 1, tzinfo=UTC), "datetime"),
        ({1: 2}, "key"),
        ({"a": [1, {2}]}, r"result\.a\[1\] is of type set"),
        (2**64, "64"),
        ("\ud800", "surrogate"),
        (object(), "object"),
        (Decimal(1), "Decimal"),
        (PLAIN, "Record"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_a_result_that_would_come_back_changed_is_refused(result: Any, told: str) -> None:
    with pytest.raises(Permanent, match=told) as caught:
        codec.stored_result(result)
    assert str(caught.value).startswith("its result")
    assert "params" not in str(caught.value)


@pytest.mark.parametrize("make", [str, lambda text: [text]], ids=["text", "list"])
def test_a_result_that_is_too_large_is_refused(make: Callable[[str], Any]) -> None:
    codec.stored_result(make("x" * (codec.LARGEST_RESULT - 10)))
    with pytest.raises(Permanent, match="more than 1,048,576"):
        codec.stored_result(make("x" * codec.LARGEST_RESULT))


# --- Attempts -------------------------------------------------------------------------------------

LINES = tuple(Attempt(number, 1.0, 1.0, "no") for number in range(4))


def test_the_latest_lines_are_read_oldest_first() -> None:
    connection = database()
    insert(connection, replace(PLAIN, history=LINES))
    rows = connection.execute(statements.ATTEMPT_SELECT, ("w1", 2)).fetchall()
    assert codec.read_attempts("w1", rows) == LINES[2:]


def test_a_damaged_line_of_history_is_refused_with_the_id_of_its_work() -> None:
    with pytest.raises(StorageCorrupt, match="history of unit 'w1'"):
        codec.read_attempts("w1", [("one", 1.0, 1.0, "error", None)])


# --- Pages ----------------------------------------------------------------------------------------


def test_an_index_key_is_paged_in_the_order_of_sort_key_and_number() -> None:
    connection = database()
    places = {1: 5.0, 2: 5.0, 3: 5.0, 4: 1.0, 5: 9.0, 6: 5.0}
    for seq, place in places.items():
        spec = replace(PLAIN_SPEC, id=f"w{seq}")
        insert(connection, Record(spec.id, spec, seq, place, 1.0, index_key="s", sort_key=place))
    insert(connection, replace(PLAIN, id="other", seq=7, index_key="t"))
    seen, after = [], (float("-inf"), 0)
    for _ in range(10):
        page = [codec.read_row(row) for row in connection.execute(SQLITE.page, ("s", *after, 2))]
        if not page:
            break
        seen += [record.seq for record in page]
        after = page[-1].sort_key, page[-1].seq
    assert seen == [4, 1, 2, 3, 6, 5]


# --- Everything else ------------------------------------------------------------------------------

breakers = st.builds(
    BreakerState, state=text, failures=whole, epoch=whole, wait=real, changed_at=real, ramp=st.none() | whole,
    climbed=whole, running=whole, probe_deadline=st.none() | real,
)  # fmt: skip
rates = st.lists(st.builds(Rate, limit=whole, per=st.floats(0, 1e9)), max_size=2).map(tuple)
limits = st.builds(
    Limits, name=text, concurrent=st.none() | whole, rates=rates, circuit_threshold=st.none() | whole,
    circuit_timeout=real,
)  # fmt: skip
services = st.builds(
    ServiceState, limits=limits, is_paused=st.booleans(), throttled_until=real, throttle_streak=whole,
    breaker=st.none() | breakers,
)  # fmt: skip
workers = st.builds(
    Worker, id=text, host=text, boot=text, pid=whole, started_at=real, queues=st.none() | names,
    is_serving=st.booleans(), tasks=names, room=st.dictionaries(text, st.integers(-10, 10), max_size=3),
    hears=st.booleans(),
    overdue=st.builds(tuple, st.lists(st.builds(Overdue, token=whole, work_id=text, task=text, queue=text,
                                                services=names, chosen=st.none() | text), max_size=2)),
)  # fmt: skip
others = {"now": real, "decider": st.none() | text, "wake_at": st.none() | real}
heads = st.builds(Head, **{one.name: others.get(one.name, whole) for one in fields(Head)})


@given(heads)
def test_the_head_comes_back_as_it_was(head: Head) -> None:
    connection = database()
    [empty] = connection.execute(statements.HEAD_SELECT)
    assert states.read_head(empty) == Head()
    connection.execute(statements.HEAD_UPDATE, states.head_row(head, "worker 7"))
    [row] = connection.execute(statements.HEAD_SELECT)
    assert states.read_head(row) == head
    assert connection.execute("SELECT turn FROM head").fetchall() == [("worker 7",)]


@given(services, services)
def test_a_service_and_its_circuit_come_back_as_they_were_last(
    first: ServiceState, last: ServiceState
) -> None:
    connection = database()
    last = replace(last, limits=replace(last.limits, name=first.limits.name))
    for revision, service in enumerate((first, last), 1):
        connection.execute(statements.SERVICE_UPSERT, states.service_row(service, revision))
        circuit = states.circuit_row(service, revision)
        if circuit is None:
            connection.execute(statements.CIRCUIT_DELETE, (service.limits.name,))
        else:
            connection.execute(statements.CIRCUIT_UPSERT, circuit)
    [row] = connection.execute(f"{statements.SERVICE_SELECT} WHERE services.revision > ?", (1,))
    assert states.read_service(row) == last


def test_what_others_keep_of_a_service_survives_its_update() -> None:
    connection = database()
    service = ServiceState(Limits("api"))
    connection.execute(statements.SERVICE_UPSERT, states.service_row(service, 1))
    connection.execute("UPDATE services SET override = 'kept'")
    connection.execute(statements.SERVICE_UPSERT, states.service_row(service, 2))
    assert connection.execute("SELECT override, revision FROM services").fetchall() == [("kept", 2)]


@given(workers)
def test_a_worker_comes_back_as_it_was(worker: Worker) -> None:
    connection = database()
    connection.execute(statements.WORKER_UPSERT, states.worker_row(replace(worker, room={"old": 1})))
    connection.execute(statements.WORKER_UPSERT, states.worker_row(worker))
    [row] = connection.execute(statements.WORKER_SELECT)
    assert states.read_worker(row) == worker


@given(st.builds(Grant, service=text, at=real, amount=st.integers(-(2**53), 2**53), quantity=text))
def test_a_grant_comes_back_as_it_was(grant: Grant) -> None:
    connection = database()
    connection.execute(statements.GRANT_INSERT, states.grant_row(grant))
    [row] = connection.execute(statements.GRANT_SELECT)
    assert states.read_grant(row) == grant


SERVICE = ("api", 1, "[]", None, 300.0, 0, 0.0, 0, None, None, *[None] * 9)
WORKER = ("w", "host", "boot", 1, 1.0, None, 1, "[]", "{}", 0, "[]")


@pytest.mark.parametrize(
    ("read", "row", "told"),
    [
        (states.read_head, ("x",) * len(fields(Head)), "head"),
        (states.read_head, (1,), "head"),
        (states.read_service, (*SERVICE[:2], "{", *SERVICE[3:]), "service 'api'"),
        (states.read_service, (*SERVICE[:2], None, *SERVICE[3:]), "service 'api'"),
        (states.read_service, ("api", "many", *SERVICE[2:]), "service 'api'"),
        (states.read_service, (*SERVICE[:9], "api", *SERVICE[10:]), "circuit of service 'api'"),
        (states.read_service, (*SERVICE[:8], "{", *SERVICE[9:]), "service 'api'"),
        (states.read_service, (*SERVICE[:8], '{"width": "wide"}', *SERVICE[9:]), "service 'api'"),
        (states.read_worker, (*WORKER[:3], "pid", *WORKER[4:]), "worker 'w'"),
        (states.read_worker, (*WORKER[:8], '{"api": "x"}', *WORKER[9:]), "worker 'w'"),
        (states.read_worker, (*WORKER[:5], "night", *WORKER[6:]), "worker 'w'"),
        (states.read_worker, (*WORKER[:10], '[{"token": 1}]'), "worker 'w'"),
        (states.read_grant, ("api", None, 1), "service_log"),
    ],
)
def test_any_other_row_that_makes_no_sense_is_refused_by_name(
    read: Callable[[tuple], object], row: tuple, told: str
) -> None:
    with pytest.raises(StorageCorrupt, match="damaged") as caught:
        read(row)
    assert told in str(caught.value)
