"""What is handed out: the wheel holds the package and nothing else, the sdist all that it takes to test itself."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import runcue
from tests.packaging.conftest import ROOT, Built

EXTRAS = {"all", "dask", "metrics", "otel", "postgres", "sim", "ssh", "tui", "web"}
NOT_IN_ALL = {"all", "dask"}  # Dask brings more than all others together


def source_files() -> set[str]:
    """Every file of the package, as the checkout has it."""
    src = ROOT / "src"
    return {
        file.relative_to(src).as_posix()
        for file in (src / "runcue").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    about = f"runcue-{runcue.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == source_files()
    assert {name.removeprefix(about) for name in names if name.startswith(about)} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["py.typed", "web/static/index.html", "web/static/app.js", "sim/page.html"])
def test_files_that_are_no_code_are_in_the_wheel(built: Built, name: str) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        assert archive.read(f"runcue/{name}") == (ROOT / "src" / "runcue" / name).read_bytes()


def test_the_wheel_runs_on_any_machine_with_python(built: Built) -> None:
    assert built.wheel.name == f"runcue-{runcue.__version__}-py3-none-any.whl"


def test_the_sdist_is_a_checkout(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "Makefile", "README.md", "pyproject.toml", "requirements/test.txt"):
        assert name in names
    for start in ("src/runcue/", "tests/", "tools/", "docs/", "examples/", "bench/", "changelog.d/"):
        assert any(name.startswith(start) for name in names), start
    assert [name for name in names if re.match(r"\.(venv|cache|git/|ci)|dist/|build/", name)] == []
    assert [name for name in names if "__pycache__" in name] == []


def test_nothing_that_git_tracks_is_left_out_of_the_sdist(built: Built) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=240, text=True
    )
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked - names if not name.startswith(".ci/")} == set()


def test_the_base_install_needs_five_packages(built: Built) -> None:
    requires = [Requirement(one) for one in built.metadata().get_all("Requires-Dist") or []]
    base = {one.name for one in requires if one.marker is None or one.marker.evaluate({"extra": ""})}
    assert base == {"apsw", "click", "cronsim", "msgspec", "tzdata"}


def test_every_extra_but_dask_is_in_all(built: Built) -> None:
    about = built.metadata()
    assert set(about.get_all("Provides-Extra") or []) == EXTRAS
    of: dict[str, set[str]] = {extra: set() for extra in EXTRAS}
    for text in about.get_all("Requires-Dist") or []:
        one = Requirement(text)
        for extra in EXTRAS:
            if one.marker is not None and one.marker.evaluate({"extra": extra}):
                of[extra].add(one.name)
    assert all(of.values())
    assert of["all"] == set[str]().union(*(of[extra] for extra in EXTRAS - NOT_IN_ALL))


def test_what_the_wheel_says_about_itself(built: Built) -> None:
    about = built.metadata()
    assert (about["Name"], about["Version"]) == ("runcue", runcue.__version__)
    assert about["License-Expression"] == "MIT"
    assert about["Description-Content-Type"] == "text/markdown"
    assert about["Requires-Python"] == ">=3.11"
    assert str(about.get_payload()).startswith("# runcue\n")


def test_every_program_of_the_wheel_leads_somewhere(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("entry_points.txt"))
        text = archive.read(name).decode()
    programs = re.findall(r"^(\S+) = ([\w.]+):(\w+)$", text, re.MULTILINE)
    assert {program for program, _, _ in programs} == {"queuectl", "runcue", "runcue-sim"}
    for _, module, function in programs:
        file = ROOT / "src" / Path(*module.split(".")).with_suffix(".py")
        assert re.search(rf"^def {function}\(\) -> None:", file.read_text("utf-8"), re.MULTILINE)
