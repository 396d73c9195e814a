"""The tables of a queue file: made once, found by their indexes, never touched when they are too new."""

import re
from types import NoneType
from typing import get_args

import apsw
import pytest
from msgspec.structs import asdict, fields

from runcue.core.model.record import WorkState
from runcue.core.model.state import BreakerState, Head, Worker
from runcue.errors import SchemaTooNew, StorageCorrupt
from runcue.stores.sql import columns, statements
from runcue.stores.sqlite import schema
from runcue.stores.sqlite.statements import SQLITE

PRUNE = """
    SELECT seq FROM work_units WHERE state IN ('completed', 'cancelled') AND completed_at < ?
    ORDER BY completed_at LIMIT 10
"""
KINDS = {str: "TEXT", int: "INTEGER", float: "REAL", bool: "INTEGER"}
NUMBERED = re.compile(r"\$\d+")
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


def bindings(query: str) -> int:
    return query.count("?") + len(set(NUMBERED.findall(query)))


def names(connection: apsw.Connection, table: str) -> set[str]:
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
    rows = connection.execute("PRAGMA table_info(work_units)").fetchall()
    assert {name: (kind, bool(is_needed or key)) for _, name, kind, is_needed, _, key in rows} == {
        column.name: (KINDS[column.plain_kind], NoneType not in get_args(column.kind))
        for column in columns.EVERY
    }
    for table, listed in (
        ("attempts", columns.ATTEMPT),
        ("service_log", columns.GRANT),
        ("letters", columns.LETTER),
    ):
        assert listed.keys() <= names(connection, table)
    assert {one.name for one in fields(Head)} < names(connection, "head")
    assert {one.name for one in fields(Worker)} == names(connection, "workers")
    assert {one.name for one in fields(BreakerState)} < names(connection, "circuit_state")


def test_there_is_one_head() -> None:
    connection = made()
    assert connection.execute("SELECT count(*) FROM head").fetchall() == [(1,)]
    with pytest.raises(apsw.ConstraintError):
        connection.execute(f"INSERT INTO head (id, {', '.join(one.name for one in fields(Head))}) "
                           f"VALUES (2{', 0' * len(fields(Head))})")  # fmt: skip


TEXTS = {
    f"{where} {name}": text
    for where, found in (("statements", vars(statements)), ("sqlite", asdict(SQLITE)))
    for name, text in found.items()
    if isinstance(text, str) and "$" in text and not name.startswith("__")
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_numbers_of_what_is_bound_first_appear_in_order(text: str) -> None:
    """SQLite takes $1 for a name, and gives names their numbers in the order in which they first appear."""
    found = list(dict.fromkeys(NUMBERED.findall(text)))
    assert found == [f"${number}" for number in range(1, len(found) + 1)]


@pytest.mark.parametrize(
    "query",
    [
        SQLITE.page,
        f"{statements.SELECT} WHERE id = ?",
        f"{statements.SELECT} WHERE watch_at <= ? ORDER BY watch_at LIMIT 10",
        f"{statements.SELECT} WHERE idempotency_key = ? ORDER BY seq DESC LIMIT 1",
        f"{statements.SELECT} WHERE state = 'failed' ORDER BY seq DESC LIMIT 10",
        f"{statements.SELECT} WHERE state = 'failed' AND task_type = ? ORDER BY seq DESC LIMIT 10",
        PRUNE,
        statements.ATTEMPT_SELECT,
        statements.START,
        statements.FINISH,
        statements.UPDATE,
        "SELECT work_id FROM dependencies WHERE needs = ?",
        "SELECT body FROM events WHERE first_seq > ? ORDER BY first_seq",
        f"{statements.SERVICE_SELECT} WHERE services.name = ?",
    ],
)
def test_no_question_reads_the_whole_table_or_sorts_it(query: str) -> None:
    plan = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {query}", (1,) * bindings(query))]
    tables = [step for step in plan if step.startswith(("SEARCH", "SCAN")) and step != "SCAN latest"]
    assert tables
    assert all(step.startswith("SEARCH") for step in tables)
    assert (
        "USE TEMP B-TREE FOR ORDER BY" not in plan or query == statements.ATTEMPT_SELECT
    )  # a handful of lines


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (
            f"{statements.SELECT} {SQLITE.by_state[WorkState.PENDING]} ORDER BY seq DESC LIMIT 10",
            "work_units_pending",
        ),
        (
            f"{statements.SELECT} {SQLITE.by_state[WorkState.FAILED]} ORDER BY seq DESC LIMIT 10",
            "work_units_failed",
        ),
        (
            f"{statements.SELECT} {SQLITE.by_state[WorkState.CANCELLED]} ORDER BY seq DESC LIMIT 10",
            "work_units_cancelled",
        ),
        (SQLITE.oldest, "work_units_pending"),
    ],
)
def test_works_of_a_state_are_found_in_order_without_passing_those_of_others(query: str, index: str) -> None:
    [step] = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {query}", (1,) * bindings(query))]
    assert step.split(" (")[0].endswith(f"USING INDEX {index}")


def test_starts_of_a_service_are_found_by_its_own_index() -> None:
    """A newcomer reads what its windows need: neither history nor other services cost it anything."""
    query = statements.STARTS.format("service IN (?, ?)")
    plan = [str(row[3]) for row in made().execute(f"EXPLAIN QUERY PLAN {query}", (1.0, "a", "b"))]
    assert plan[0].endswith("service_log_of_service (service=? AND started_at>?)")


def test_services_with_starts_are_named_without_reading_the_starts() -> None:
    plan = [str(row[3]) for row in made().execute(f"EXPLAIN QUERY PLAN {statements.STARTED}")]
    steps = [step for step in plan if "service_log" in step]
    assert [step.split(" (")[0] for step in steps] == [
        "SEARCH service_log USING COVERING INDEX service_log_of_service"
    ] * 2


def test_old_starts_are_found_in_the_order_they_were_written() -> None:
    plan = [str(row[3]) for row in made().execute(f"EXPLAIN QUERY PLAN {statements.OLD_GRANTS}", (500, 1.0))]
    assert "USE TEMP B-TREE FOR ORDER BY" not in plan


def test_running_work_is_found_by_its_index_keys() -> None:
    query = f"{statements.SELECT} {SQLITE.by_state[WorkState.RUNNING]} ORDER BY seq DESC LIMIT 10"
    plan = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {query}")]
    assert plan[0] == "SEARCH work_units USING INDEX work_units_by_index_key (index_key>? AND index_key<?)"


def test_a_page_is_found_by_number_among_many_of_one_sort_key() -> None:
    plan = [row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {SQLITE.page}", ("s", 1.0, 1, 10))]
    assert any("index_key=? AND sort_key=? AND rowid>?" in step for step in plan)


def test_the_newest_come_first_without_sorting() -> None:
    plan = [
        row[3] for row in made().execute(f"EXPLAIN QUERY PLAN {statements.SELECT} ORDER BY seq DESC LIMIT 10")
    ]
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
    assert names(connection, "later") == {"x"}
    assert connection.execute("SELECT * FROM config").fetchall() == [("kept", 1)]
    assert pragma(connection, "user_version") == schema.VERSION
