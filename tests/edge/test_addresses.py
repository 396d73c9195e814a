"""An address is never taken for a path: wherever a file or a folder is wanted, it is refused and nothing is made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue, Reader, Work, dependency_check_db, dependency_check_file, recover, write_output
from runcue.engine.artifacts import declared
from runcue.errors import RuncueError, SubmitError
from runcue.host.address import file_in, is_address, is_server

ADDRESSES = [
    "mysql://me:hunter2@host/queue",
    "postgresql+psycopg://me:hunter2@host/queue",
    "POSTGRESQL://me:hunter2@host/queue",
    " postgresql://me:hunter2@host/queue",
    "redis://:hunter2@host",
    "s3://me:hunter2@bucket/x",
    "http://me:hunter2@host/x",
    "file:///tmp/x.db",
    "file:x.db?mode=ro",
    "sqlite:///x.db",
]
WANTING: dict[str, Callable[[Any], Any]] = {
    "Cue": Cue,
    "Reader": Reader,
    "recover": recover,
    "dependency_check_db": lambda text: dependency_check_db("t", "c", database=text),
    "dependency_check_file": lambda text: dependency_check_file("{id}", base=text),
    "write_output": lambda text: write_output(text).__enter__(),
    "inputs": lambda text: declared(text, None, None),
    "outputs": lambda text: declared(None, [text], None),
}
"""Whatever wants a path, by its name."""


@pytest.mark.parametrize("wanting", WANTING)
@pytest.mark.parametrize("as_given", [str, Path])
@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_where_a_path_is_wanted_is_refused_and_nothing_is_made(
    wanting: str, as_given: Callable[[str], Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuncueError) as caught:
        WANTING[wanting](as_given(text))
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wanting", [Cue, Reader])
def test_the_address_of_a_database_is_given_as_text(wanting: Callable[[Path], Any]) -> None:
    with pytest.raises(RuncueError, match="as text, not as a Path"):
        wanting(Path("postgresql://me@host/queue"))


@pytest.mark.parametrize("wanting", [Cue, Reader])
def test_the_address_of_a_file_is_refused_with_its_path(wanting: Callable[[str], Any]) -> None:
    with pytest.raises(RuncueError, match=r"Give its path: '/tmp/x\.db'\."):
        wanting("file:///tmp/x.db")


def test_a_function_of_work_that_returns_an_address_is_refused() -> None:
    made = declared(None, lambda work: "s3://bucket/x", None)
    assert made is not None
    with pytest.raises(SubmitError, match="s3://bucket/x"):
        made.check(Work(id="w", task="ocr"))


@pytest.mark.parametrize("text", ADDRESSES)
def test_what_has_a_scheme_is_an_address(text: str) -> None:
    assert is_address(text)
    assert not is_server(text)


@pytest.mark.parametrize("text", ["postgresql://host/x", "postgres://host/x"])
def test_the_address_of_a_database_is_told_from_others(text: str) -> None:
    assert is_address(text)
    assert is_server(text)


@pytest.mark.parametrize(
    "text", ["queue.db", "a:b", "C:/x.db", "C:\\x.db", "./file:x", "x/y:/z", "10:30/x", "", ":/"]
)
def test_what_has_none_is_a_path(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///tmp/x.db", "/tmp/x.db"),
        ("file://localhost/tmp/x.db", "/tmp/x.db"),
        ("file:/tmp/x.db", "/tmp/x.db"),
        ("file:x.db?mode=ro", "x.db"),
        ("sqlite:///x.db", "x.db"),
        ("sqlite:////tmp/x.db", "/tmp/x.db"),
        ("sqlite://", None),
        ("file://host/x.db", None),
        ("mysql:///x.db", None),
    ],
)
def test_the_file_behind_an_address_is_found(text: str, path: str | None) -> None:
    assert file_in(text) == path
