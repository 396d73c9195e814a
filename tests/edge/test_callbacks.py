"""Ready-made callbacks: right answers for plain cases, and no way out of the folder or the statement."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.core.model.record import PriorityContext, Work
from runcue.declare.callbacks import (
    dependency_check_db,
    dependency_check_file,
    priority_by_wait_time,
    priority_constant,
)
from runcue.errors import ConfigError, InvalidOption
from tests.edge.nonsense import ODDITIES, anything

YEAR = 365 * 86400.0


def waited(seconds: float) -> PriorityContext:
    return PriorityContext(Work(id="a", task="t"), seconds, 1)


# --- Priority -------------------------------------------------------------------------------------


def test_what_waited_longer_scores_higher_for_years() -> None:
    times = [0.0, 0.001, 1.0, 60.0, 3600.0, 86400.0, YEAR, YEAR + 1, 10 * YEAR, 10 * YEAR + 1]
    scores = [priority_by_wait_time(waited(time)) for time in times]
    assert scores == sorted(set(scores))
    assert scores[0] == 0.0
    assert scores[4] == 0.5
    assert scores[-1] < 1.0


@given(st.floats(0, 30 * YEAR), st.floats(0, 30 * YEAR))
def test_the_score_by_wait_time_grows_and_stays_within_0_and_1(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= priority_by_wait_time(waited(low)) <= priority_by_wait_time(waited(high)) <= 1


def test_work_from_the_future_has_not_waited() -> None:
    assert priority_by_wait_time(waited(-5)) == 0


def test_a_constant_score_is_the_same_for_all() -> None:
    priority = priority_constant(0.5)
    assert priority(waited(0)) == priority(waited(YEAR)) == 0.5


@pytest.mark.parametrize("score", [-0.1, 1.1, math.nan, math.inf, "0.5", None, True])
def test_a_constant_score_is_a_number_from_0_to_1(score: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid score: "):
        priority_constant(score)


# --- Files ----------------------------------------------------------------------------------------


def test_a_dependency_is_satisfied_once_its_file_exists(tmp_path: Path) -> None:
    check = dependency_check_file("{id}.json", tmp_path)
    assert check("a") is False
    (tmp_path / "a.json").touch()
    assert check("a") is True
    assert check("b") is False


def test_the_base_is_the_folder_of_the_moment_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check = dependency_check_file("{id}")
    (tmp_path / "a").touch()
    monkeypatch.chdir("/")
    assert check("a")


def test_a_missing_base_satisfies_nothing_until_it_exists(tmp_path: Path) -> None:
    check = dependency_check_file("{id}", str(tmp_path / "later"))
    assert not check("a")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a").touch()
    assert check("a")


def test_the_task_is_part_of_the_path_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "ocr").mkdir()
    (tmp_path / "ocr" / "a.txt").touch()
    check = dependency_check_file("{task}/{id}.txt", tmp_path)
    assert check.wants_task
    assert check("a", "ocr")
    assert check("a", task="ocr")
    assert not check("a", "other")
    assert not dependency_check_file("{id}", tmp_path).wants_task
    assert not check("a"), "a work nobody knows has no output"


@pytest.mark.parametrize(
    "pattern",
    [
        "../../{id}",
        "a/../../{id}",
        "./{id}",
        "/etc/{id}",
        "\\\\server\\{id}",
        "C:\\{id}",
        "{0.__class__}",
        "{id.__class__}",
        "{id!r}",
        "{id:>10}",
        "{}{id}",
        "{ID}",
        "{id",
        "{{id}}",
        "fixed.txt",
        "a\0{id}",
        "",
        5,
        None,
        b"{id}",
    ],
)
def test_a_bad_pattern_is_refused_when_it_is_made(pattern: Any) -> None:
    with pytest.raises(ValueError, match=r"^Invalid pattern: "):
        dependency_check_file(pattern)


@pytest.mark.parametrize("base", ["", "a\0b", 5, None, b"x"])
def test_a_bad_base_is_refused_when_it_is_made(base: Any) -> None:
    with pytest.raises(ValueError, match=r"^Invalid base: "):
        dependency_check_file("{id}", base)


@pytest.mark.parametrize(
    "work_id", ["..", ".", "", "../secret", "/etc/passwd", "a/b", "a\\b", "a\0b", 5, None]
)
@pytest.mark.parametrize("pattern", ["{id}", "deep/{id}", "{id}/secret"])
def test_an_id_that_is_no_file_name_is_never_satisfied(pattern: str, work_id: Any, tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "deep").mkdir(parents=True)
    (base / "a").mkdir()
    for place in (tmp_path / "secret", base / "secret", base / "a" / "b"):
        place.touch()
    assert dependency_check_file(pattern, base)(work_id) is False


def test_two_harmless_halves_make_no_way_up(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    (tmp_path / "base").mkdir()
    assert not dependency_check_file("{id}{task}/secret", tmp_path / "base")(".", ".")


def test_dots_inside_an_id_are_just_characters(tmp_path: Path) -> None:
    (tmp_path / "a..b").touch()
    assert dependency_check_file("{id}", tmp_path)("a..b")


def test_a_link_out_of_the_base_does_not_count(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (tmp_path / "secret").touch()
    (base / "inside").touch()
    (base / "out").symlink_to(tmp_path / "secret")
    (base / "folder").symlink_to(tmp_path, target_is_directory=True)
    (base / "in").symlink_to(base / "inside")
    (base / "broken").symlink_to(base / "nothing")
    check = dependency_check_file("{id}", base)
    assert not check("out")
    assert not dependency_check_file("folder/{id}", base)("secret")
    assert check("in")
    assert not check("broken")


def test_the_base_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    assert dependency_check_file("{id}", tmp_path / "link")("a")


def test_a_file_where_a_folder_should_be_satisfies_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert not dependency_check_file("{id}/out.txt", tmp_path)("a")


@given(anything, anything)
def test_nonsense_about_a_file_gives_a_check_or_a_value_error(pattern: Any, base: Any) -> None:
    try:
        check = dependency_check_file(pattern, base)
    except ConfigError:
        return
    assert check.wants_task or "{id}" in check.pattern


@given(st.text(), st.text())
def test_no_id_and_no_task_ever_reaches_outside_the_base(work_id: str, task: str) -> None:
    here = Path(__file__).resolve().parent
    check = dependency_check_file("{task}/{id}", here / "nothing")
    assert not check(work_id, task)


# --- Databases ------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "results.db"
    connection = apsw.Connection(str(path))
    connection.execute('CREATE TABLE results (work_id TEXT, "select" TEXT, number INTEGER)')
    connection.execute("INSERT INTO results VALUES ('a', 'b', 5)")
    endless = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id FROM n"
    connection.execute(f"CREATE VIEW slow AS {endless}")
    connection.close()
    return path


def test_a_dependency_is_satisfied_once_its_row_exists(database: Path) -> None:
    check = dependency_check_db("results", "work_id", database)
    assert check("a") is True
    assert check("b") is False
    assert dependency_check_db("results", "number", str(database))("5")


def test_identifiers_are_quoted_and_values_bound(database: Path) -> None:
    assert dependency_check_db("results", "select", database)("b")
    check = dependency_check_db("results", "work_id", database)
    assert not check("x' OR '1'='1")
    assert not check('"; DROP TABLE results; --')
    assert check("a")


@pytest.mark.parametrize(
    "name",
    [
        "users; DROP TABLE x--",
        'a"b',
        "a'b",
        "a b",
        "1a",
        "",
        "ä",
        "a\n",
        "a" * 64,
        "a" * 1_000_000,
        None,
        5,
        b"a",
    ],
)
def test_an_identifier_is_a_plain_word(name: Any) -> None:
    with pytest.raises(ValueError, match=r"^Invalid table: ") as info:
        dependency_check_db(name, "id")
    assert len(str(info.value)) < 300
    with pytest.raises(ValueError, match=r"^Invalid column: "):
        dependency_check_db("results", name)


@pytest.mark.parametrize("database", ["", ":memory:", "a\0b", 5, b"x"])
def test_a_database_is_a_file(database: Any) -> None:
    with pytest.raises(ValueError, match=r"^Invalid database: "):
        dependency_check_db("results", "work_id", database)


def test_a_missing_column_is_an_error_and_not_text(database: Path) -> None:
    with pytest.raises(Exception, match=r"no such column"):
        dependency_check_db("results", "nothing", database)("nothing")


def test_a_missing_table_raises(database: Path) -> None:
    with pytest.raises(Exception, match=r"no such table"):
        dependency_check_db("nothing", "id", database)("a")


def test_a_missing_file_raises_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"unable to open"):
        dependency_check_db("results", "work_id", tmp_path / "none.db")("a")
    assert os.listdir(tmp_path) == []  # noqa: PTH208 (names are all that matters)


def test_an_endless_query_is_cut_off(database: Path) -> None:
    with pytest.raises(Exception, match=r"interrupt"):
        dependency_check_db("slow", "id", database)("-1")


def test_the_database_is_never_written_to(database: Path) -> None:
    before = database.read_bytes()
    dependency_check_db("results", "work_id", database)("a")
    assert database.read_bytes() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]


def test_a_check_without_a_database_takes_the_cues_own(database: Path) -> None:
    check = dependency_check_db("results", "work_id")
    with pytest.raises(ConfigError, match=r"never given a database"):
        check("a")
    with pytest.raises(ConfigError, match=r"this Cue is in no file. Name one"):
        check.bind(None)
    assert check.bind(str(database))("a")
    assert check.database is None


def test_a_named_database_stays(database: Path) -> None:
    check = dependency_check_db("results", "work_id", database)
    assert check.bind(None) == check.bind("/other.db") == check


def test_a_missing_driver_is_said_when_the_check_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apsw", None)
    with pytest.raises(ConfigError, match=r"needs apsw. Install it"):
        dependency_check_db("results", "work_id", "some.db").bind(None)


def test_each_oddity_is_refused_or_understood() -> None:
    for value in ODDITIES:
        makers: list[Callable[[Any], object]] = [
            dependency_check_file,
            lambda value: dependency_check_file("{id}", value),
            dependency_check_file("{id}"),
            lambda value: dependency_check_db(value, "id"),
            lambda value: dependency_check_db("results", "id", value),
            priority_constant,
        ]
        for make in makers:
            try:
                make(value)
            except ConfigError:
                pass


@given(anything, anything, anything)
def test_nonsense_about_a_database_gives_a_check_or_a_value_error(
    table: Any, column: Any, database: Any
) -> None:
    try:
        check = dependency_check_db(table, column, database)
    except ConfigError:
        return
    assert check.table.isidentifier()
    assert check.column.isidentifier()
