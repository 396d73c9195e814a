"""What is handed out, made once for all tests: the wheel, the sdist, and an environment without any extra.

The environment is put together from the wheel and from what is installed here anyway, so that no index is asked.
`make wheel-test` does the same with a real installer.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
BOUND = 240

Bare = Callable[..., "subprocess.CompletedProcess[str]"]


class Built(NamedTuple):
    """The two files that a release consists of."""

    wheel: Path
    sdist: Path

    def metadata(self) -> Message:
        """What the wheel says about itself."""
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
            return message_from_bytes(archive.read(name))


@contextmanager
def _first(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """A folder that all workers of one run share, and whether it is still to be filled by whom it is given."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_first = not folder.exists()
        unfinished = folder.with_suffix(".new")
        if is_first:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
        yield (unfinished if is_first else folder), is_first
        if is_first:
            unfinished.rename(folder)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel and the sdist of this checkout."""
    with _first(tmp_path_factory, "dist") as (folder, is_first):
        if is_first:
            subprocess.run(
                [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
                cwd=ROOT,
                check=True,
                capture_output=True,
                timeout=BOUND,
            )
        final = folder.with_suffix("")
    (wheel,) = final.glob("*.whl")
    (sdist,) = final.glob("*.tar.gz")
    return Built(wheel, sdist)


def needed(requirements: list[str]) -> dict[str, Distribution]:
    """What these requirements bring along when no extra is asked for: all of it is installed here."""
    found: dict[str, Distribution] = {}
    open_ones = [Requirement(one) for one in requirements]
    while open_ones:
        one = open_ones.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        open_ones += [Requirement(text) for text in found[name].requires or []]
    return found


def _fill(site: Path, built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(site)
    for one in needed(built.metadata().get_all("Requires-Dist") or []).values():
        for file in one.files or []:
            if ".." in file.parts or "__pycache__" in file.parts:
                continue  # scripts, which stand elsewhere
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)


@pytest.fixture(scope="session")
def bare_env(tmp_path_factory: pytest.TempPathFactory, built: Built) -> Path:
    """An environment that has the wheel and what it needs, and no extra."""
    with _first(tmp_path_factory, "bare") as (folder, is_first):
        if is_first:
            venv.create(folder, symlinks=True, with_pip=False)
            (site,) = folder.glob("lib/python*/site-packages")
            _fill(site, built)
        return folder.with_suffix("")


@pytest.fixture(scope="session")
def bare(bare_env: Path) -> Bare:
    """`bare("-c", "import runcue")`: the Python of that environment, to its end."""

    def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        left_out = ("PYTHON", "QUEUECTL_", "RUNCUE_", "NO_COLOR", "CLICOLOR")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        environment |= {"QUEUECTL_HOME": str(cwd / "home"), "PYTHONPYCACHEPREFIX": str(bare_env / "pycache")}
        return subprocess.run(
            [str(bare_env / "bin" / "python"), "-W", "error", *args],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=BOUND,
            check=False,
        )

    return run
