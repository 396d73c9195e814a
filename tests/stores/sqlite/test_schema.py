"""The tables of a queue file: made once, found by their indexes, never touched when they are too new."""

import apsw
import pytest
from msgspec.structs import fields

from runcue.core.model.record import WorkState
from runcue.core.model.state import BreakerState, Head, Worker
from runcue.errors import SchemaTooNew, StorageCorrupt
from runcue.stores.sql import codec, pruning, states
from runcue.stores.sql.finding import FIND
from runcue.stores.sql.records import OLDEST
from runcue.stores.sqlite import schema

PRUNE = """
    SELECT seq FROM work_units WHERE state IN ('completed', 'cancelled') AND completed_at < ?
    ORDER BY completed_at LIMIT 10
"""
DAMAGE = {
    "a table is gone": ("DROP TABLE letters", "'letters'"),
    "the counters are gone": ("DELETE FROM head", "'head'"),
}


def made() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    schema.migrate(connection)
    return connection


def pragma(connection: apsw.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchall()[0][0]


def columns(connection: apsw.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def test_an_empty_file_gets_all_tables_our_mark_and_the_version() -> None:
    connection = made()
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert found == schema.TABLES
    assert pragma(connection, "application_id") == schema.APPLICATION_ID
    assert pragma(connection, "user_version") == schema.VERSION == len(schema.MIGRATIONS)
    assert not connection.in_transaction


def test_migrating_again_changes_nothing() -> None:
    connection = made()
    before = pragma(connection, "schema_version"), connection.total_changes()
    schema.migrate(connection)
    assert (pragma(connection, "schema_version"), connection.total_changes()) == before


def test_every_value_has_its_columns() -> None:
    connection = made()
    assert columns(connection, "work_units") == {*codec.COLUMNS, "lease_expires_at", "updated_at", "extra"}
    assert {one.name for one in fields(Head)} < columns(connection, "head")
    assert {one.name for one in fields(Worker)} == columns(connection, "workers")
    assert {one.name for one in fields(BreakerState)} < columns(connection, "circuit_state")


def test_there_is_one_head() -> None:
    connection = made()
    assert connection.execute("SELECT count(*) FROM head").fetchall() == [(1,)]
    with pytest.raises(apsw.ConstraintError):
        connection.execute(f"INSERT INTO head (id, {', '.join(one.name for one in fields(Head))}) "
                           f"VALUES (2{', 0' * len(fields(Head))})")  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        codec.SELECT_PAGE,
        f"{codec.SELECT} WHERE id = ?",
        f"{codec.SELECT} WHERE watch_at <= ? ORDER BY watch_at LIMIT 10",
        f"{codec.SELECT} WHERE idempotency_key = ? ORDER BY seq DESC LIMIT 1",
        f"{codec.SELECT} WHERE state = 'failed' ORDER BY seq DESC LIMIT 10",
        f"{codec.SELECT} WHERE state = 'failed' AND task_type = ? ORDER BY seq DESC LIMIT 10",
        PRUNE,
        codec.ATTEMPT_SELECT,
        codec.START,
        codec.FINISH,
        codec.UPDATE,
        "SELECT work_id FROM dependencies WHERE needs = ?",
        "SELECT body FROM events WHERE first_seq > ? ORDER BY first_seq",
        f"{states.SERVICE_SELECT} WHERE services.name = ?",
    ],
)
def test_no_question_reads_the_whole_table_or_sorts_it(query: str) -> None:
    amount = 4 if query == codec.SELECT_PAGE else query.count("?")
    plan = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {query}", (1,) * amount)]
    tables = [step for step in plan if step.startswith(("SEARCH", "SCAN")) and step != "SCAN latest"]
    assert tables
    assert all(step.startswith("SEARCH") for step in tables)
    assert "USE TEMP B-TREE FOR ORDER BY" not in plan or query == codec.ATTEMPT_SELECT  # a handful of lines


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (f"{codec.SELECT} {FIND[WorkState.PENDING]} ORDER BY seq DESC LIMIT 10", "work_units_pending"),
        (f"{codec.SELECT} {FIND[WorkState.FAILED]} ORDER BY seq DESC LIMIT 10", "work_units_failed"),
        (f"{codec.SELECT} {FIND[WorkState.CANCELLED]} ORDER BY seq DESC LIMIT 10", "work_units_cancelled"),
        (OLDEST, "work_units_pending"),
    ],
)
def test_works_of_a_state_are_found_in_order_without_passing_those_of_others(query: str, index: str) -> None:
    [step] = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {query}", (1,) * query.count("?"))]
    assert step.split(" (")[0].endswith(f"USING INDEX {index}")


def test_starts_of_a_service_are_found_by_its_own_index() -> None:
    """A newcomer reads what its windows need: neither history nor other services cost it anything."""
    query = states.STARTS.format("service IN (?, ?)")
    plan = [str(row[3]) for row in made().execute(f"EXPLAIN QUERY PLAN {query}", ("a", "b", 1.0))]
    assert plan[0].endswith("service_log_of_service (service=? AND started_at>?)")


def test_services_with_starts_are_named_without_reading_the_starts() -> None:
    plan = [str(row[3]) for row in made().execute(f"EXPLAIN QUERY PLAN {states.STARTED}")]
    steps = [step for step in plan if "service_log" in step]
    assert [step.split(" (")[0] for step in steps] == [
        "SEARCH service_log USING COVERING INDEX service_log_of_service"
    ] * 2


def test_old_starts_are_found_in_the_order_they_were_written() -> None:
    plan = [str(row[3]) for row in made().execute(f"EXPLAIN QUERY PLAN {pruning.OLD_GRANTS}", (1.0, 500))]
    assert "USE TEMP B-TREE FOR ORDER BY" not in plan


def test_running_work_is_found_on_its_shelves() -> None:
    query = f"{codec.SELECT} {FIND[WorkState.RUNNING]} ORDER BY seq DESC LIMIT 10"
    plan = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {query}")]
    assert plan[0] == "SEARCH work_units USING INDEX work_units_on_shelf (shelf>? AND shelf<?)"


def test_a_page_is_found_by_number_among_many_of_one_place() -> None:
    plan = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {codec.SELECT_PAGE}", ("s", 1.0, 1, 10))]
    assert any("shelf=? AND place=? AND rowid>?" in step for step in plan)


def test_the_newest_come_first_without_sorting() -> None:
    plan = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {codec.SELECT} ORDER BY seq DESC LIMIT 10")]
    assert plan == ["SCAN work_units"]


def test_a_newer_schema_is_refused_and_left_alone() -> None:
    connection = made()
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    before = connection.serialize("main")
    with pytest.raises(SchemaTooNew, match=rf"version {schema.VERSION + 1}, this one knows {schema.VERSION}"):
        schema.migrate(connection)
    assert connection.serialize("main") == before


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE theirs (x)",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 3; CREATE TABLE theirs (x)",
    ],
)
def test_a_file_of_another_application_is_refused_and_left_alone(script: str) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(script)
    before = connection.serialize("main")
    with pytest.raises(StorageCorrupt, match="another application"):
        schema.migrate(connection)
    assert connection.serialize("main") == before


@pytest.mark.parametrize(("script", "told"), DAMAGE.values(), ids=DAMAGE)
def test_a_file_that_lost_a_table_is_refused(script: str, told: str) -> None:
    connection = made()
    connection.execute(script)
    with pytest.raises(StorageCorrupt, match=told):
        schema.migrate(connection)


def test_a_step_that_fails_leaves_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = made()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE later (x); nonsense"))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    before = connection.serialize("main")
    with pytest.raises(apsw.SQLError):
        schema.migrate(connection)
    assert not connection.in_transaction
    assert connection.serialize("main") == before


def test_only_the_missing_steps_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = made()
    connection.execute("INSERT INTO config VALUES ('kept', 1)")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE later (x)"))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    schema.migrate(connection)
    assert columns(connection, "later") == {"x"}
    assert connection.execute("SELECT * FROM config").fetchall() == [("kept", 1)]
    assert pragma(connection, "user_version") == schema.VERSION
