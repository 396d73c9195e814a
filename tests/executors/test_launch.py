"""What a command sees of this process, and where it is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runcue.executors.command.launch import environment, program

pytestmark = pytest.mark.skipif(os.name == "nt", reason="folders of PATH are separated otherwise there")


def executable(path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_a_change_of_the_environment_is_seen_by_the_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEUECTL_HOME", raising=False)
    for name in [name for name in os.environ if name.startswith("RUNCUE_")]:
        monkeypatch.delenv(name)
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE", "PGSSLKEY"):
        monkeypatch.delenv(name, raising=False)
    assert environment(None) is None
    monkeypatch.setenv("MARK", "one")
    assert environment({"MORE": "x"}) == {**os.environ, "MORE": "x"}
    monkeypatch.setenv("MARK", "two")
    assert environment({"MORE": "x"}) == {**os.environ, "MORE": "x"}
    monkeypatch.setenv("PGPASSWORD", "secret")
    shown = environment(None)
    assert shown is not None
    assert shown == {name: value for name, value in os.environ.items() if name != "PGPASSWORD"}
    monkeypatch.delenv("PGPASSWORD")
    assert environment(None) is None


def test_what_one_command_is_given_is_not_given_to_the_next() -> None:
    given = environment({"MORE": "x"})
    assert given is not None
    given["OTHER"] = "y"
    assert {"MORE", "OTHER"}.isdisjoint(environment({"THIRD": "z"}) or {})


def test_the_first_folder_that_has_the_program_is_taken(tmp_path: Path) -> None:
    first, second = executable(tmp_path / "a" / "tool"), executable(tmp_path / "b" / "tool")
    search = f"{tmp_path}/none:{tmp_path}/a:{tmp_path}/b"
    assert program("tool", search) == first
    Path(first).chmod(0o644)
    assert program("tool", search) == second
    Path(first).unlink()
    Path(first).mkdir()  # may be searched, and is no program
    assert program("tool", search) == second


@pytest.mark.parametrize("search", [None, "", ":/bin", ".:/bin", "bin:/bin", "/no/such/folder"])
def test_what_depends_on_the_folder_of_the_command_is_left_to_the_system(search: str | None) -> None:
    assert program("sh", search) is None


@pytest.mark.parametrize("name", ["", "/bin/sh", "./sh", "bin/sh"])
def test_a_path_is_no_name_to_look_for(name: str) -> None:
    assert program(name, "/bin:/usr/bin") is None
