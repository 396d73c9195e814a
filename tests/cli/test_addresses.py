"""Where a command wants a file or a folder, an address is refused (2), its password is hidden and nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from runcue.sim.main import invoke
from tests.cli.inside import Inside, refused
from tests.cli.works import Inside as InsideRuncue

POSTGRES = "postgresql://me:hunter2@host/queue"
OTHERS = [
    "mysql://me:hunter2@host/queue",
    "redis://:hunter2@host",
    "sqlite:///x.db",
    "file:///tmp/x",
    "http://host/x",
]
VERBS = [["status"], ["enqueue", "--", "true"], ["worker", "start"], ["doctor"]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which everything happens in."""
    found = tmp_path / "here"
    found.mkdir()
    monkeypatch.chdir(found)
    return found


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(folder, monkeypatch, capsys)


@pytest.fixture
def runcue(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InsideRuncue:
    return InsideRuncue(folder, monkeypatch, capsys)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_home_that_is_an_address_is_refused(inside: Inside, folder: Path, verb: list[str]) -> None:
    told = inside("--home", POSTGRES, *verb)
    refused(told, 2, "--home", "postgresql://me:***@host/queue", "is an address", "runcue status")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("address", [POSTGRES, *OTHERS])
def test_a_home_by_the_environment_that_is_an_address_is_refused(
    inside: Inside, folder: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUECTL_HOME", address)
    told = inside("enqueue", "--", "true")
    refused(told, 2, "QUEUECTL_HOME", "is an address")
    assert "hunter2" not in told.err
    assert list(folder.iterdir()) == []


def test_a_home_that_is_the_address_of_a_folder_is_refused_with_its_path(inside: Inside) -> None:
    refused(inside("--home", "file:///tmp/x", "status"), 2, "Say --home /tmp/x")


@pytest.mark.parametrize(
    "verb", [["status"], ["pause", "mail"], ["top"], ["dashboard"]], ids=lambda verb: verb[0]
)
@pytest.mark.parametrize("address", OTHERS[:2])
def test_a_queue_at_an_address_that_runcue_does_not_know_is_refused(
    runcue: InsideRuncue, folder: Path, address: str, verb: list[str]
) -> None:
    told = runcue(*verb, file=address)
    assert (told.code, told.out) == (2, ""), told
    assert "postgresql://" in told.err
    assert "hunter2" not in told.err
    assert list(folder.iterdir()) == []


def test_a_demo_is_not_kept_at_an_address(runcue: InsideRuncue, folder: Path) -> None:
    told = runcue.run("demo", "--keep", "file:///tmp/x")
    assert (told.code, told.out) == (2, ""), told
    assert "--keep" in told.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("option", ["--file", "--cwd"])
@pytest.mark.parametrize("address", OTHERS)
def test_a_job_is_neither_read_from_an_address_nor_run_there(
    inside: Inside, address: str, option: str
) -> None:
    told = inside("enqueue", option, address, *(["--", "true"] if option == "--cwd" else []))
    assert (told.code, told.out) == (2, ""), told
    assert "address" in told.err
    assert "hunter2" not in told.err


@pytest.mark.parametrize("option", ["--config", "--replay", "--report", "--html"])
@pytest.mark.parametrize("address", OTHERS)
def test_a_simulation_neither_reads_nor_writes_at_an_address(
    folder: Path, address: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([option, address]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "address" in told.err or "Give its path" in told.err
    assert "hunter2" not in told.err
    assert list(folder.iterdir()) == []
