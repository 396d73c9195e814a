"""CL10 for `runcue`: every verb on every kind of file that cannot be used, or not in every way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.test_matrix import (
    MAY_APPEAR,
    UNUSABLE,
    Quick,
    complaint,
    limited,
    locked,
    picture,
    settled_copy,
)

__all__ = ["limited"]

READING = ["status", "status --json", "list", "list --json", "show done", "show done --json", "explain limited",
           "logs done", "schedules", "schedules --json", "retry --all-failed --dry-run"]  # fmt: skip
CHANGING = [
    "pause api",
    "resume api",
    "set api --rate 5/s",
    "retry broken",
    "retry --all-failed --yes",
    "cancel later",
    "schedules run nightly",
]
SCREENS = ["top", "dashboard --no-browser --port 0"]
ALL = [*READING, *CHANGING, *SCREENS]
NOT_A_FILE = {"a_directory", "a_fifo"}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quick]:
    made = Quick(tmp_path_factory.mktemp("quick"), program="runcue")
    yield made
    made.close()


@pytest.fixture(scope="module")
def settled(works: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The queue with a work in every state, all of it in its file."""
    return settled_copy(works.parent, tmp_path_factory.mktemp("settled") / "made")


def placed(commands: list[str], file: Path) -> list[tuple[Path, list[str]]]:
    """Each command with the file behind its verb."""
    return [(file.parent, [verb, str(file), *args]) for verb, *args in map(str.split, commands)]


def gone_wrong(
    quick: Quick, file: Path, codes: dict[str, int], *, patience: float = 0
) -> list[tuple[str, str, object]]:
    """The commands that did not end with their code, and how they ended."""
    told = quick.all(placed([*codes], file), patience=patience)
    return [
        (command, found, said)
        for (command, code), said in zip(codes.items(), told, strict=True)
        if (found := complaint(said, code))
    ]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [(spoil, code) for spoil, code, _ in UNUSABLE],
    ids=[one[0].__name__ for one in UNUSABLE],
)
def test_a_file_that_cannot_be_used_is_told_by_every_verb_and_left_alone(
    spoil: Callable[[Path], None], code: int, quick: Quick, settled: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(settled, home)
    spoil(home / "queue.db")
    before = picture(home)
    code = 3 if spoil.__name__ in NOT_A_FILE else code
    assert not gone_wrong(quick, home / "queue.db", dict.fromkeys(ALL, code))
    after = picture(home)
    assert after.keys() - before.keys() <= MAY_APPEAR
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(("file_mode", "home_mode"), [(0o400, 0o700), (0o600, 0o500)], ids=["file", "folder"])
def test_what_may_only_be_read_is_read_and_not_changed(
    file_mode: int, home_mode: int, settled: Path, tmp_path: Path, limited: Quick
) -> None:  # fmt: skip
    home = tmp_path / "home"
    shutil.copytree(settled, home)
    before = picture(home)["queue.db"]
    (home / "queue.db").chmod(file_mode)
    home.chmod(home_mode)
    limited._program = "runcue"
    try:
        codes = dict.fromkeys(READING, 0) | dict.fromkeys(CHANGING, 3)
        assert not gone_wrong(limited, home / "queue.db", codes)
    finally:
        home.chmod(0o700)
    assert picture(home)["queue.db"] == before


def test_what_may_not_be_read_is_a_matter_of_permissions(
    settled: Path, tmp_path: Path, limited: Quick
) -> None:
    home = tmp_path / "home"
    shutil.copytree(settled, home)
    limited._program = "runcue"
    (home / "queue.db").chmod(0o000)
    unreadable = gone_wrong(limited, home / "queue.db", dict.fromkeys(ALL, 4))
    home.chmod(0o000)
    closed = gone_wrong(limited, home / "queue.db", dict.fromkeys(ALL, 4))
    home.chmod(0o700)
    assert not unreadable
    assert not closed


@pytest.mark.parametrize("even_for_readers", [False, True], ids=["for writers", "for all"])
def test_a_locked_queue_is_busy(even_for_readers: bool, quick: Quick, settled: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(settled, home)
    codes = dict.fromkeys(READING, 5 if even_for_readers else 0) | dict.fromkeys(CHANGING, 5)
    before = picture(home)["queue.db"]
    with locked(home, even_for_readers=even_for_readers):
        assert not gone_wrong(quick, home / "queue.db", codes, patience=0.2)
    assert picture(home)["queue.db"] == before
