"""Programs that some tests need beside Python: the system's, or what tools/server.sh has fetched into .cache.

Where one is missing, its tests are skipped, with the reason.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest

CACHE = Path(__file__).resolve().parent.parent / ".cache"
BOUND = 240.0
"""Seconds that a program may take to be ready, or to end, on a busy machine."""
LOOK = 0.01
"""Seconds between two looks at whether it is ready."""
KEEPER = 'exec 3<&0; "$@" & server=$!; (cat <&3; kill $server) 2> /dev/null & wait $server'
"""Ends a server with its own standard input, and ends with the server."""


class Program(NamedTuple):
    """A program, and the folder with what was fetched with it, if it was fetched."""

    path: Path
    home: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """What it is started with."""
        libraries = {} if self.home is None else {"LD_LIBRARY_PATH": str(self.home / "lib")}
        return {"LC_ALL": "C", "PATH": os.defpath, **libraries}


def program(name: str, fetched: str) -> Program:
    """A program by its name; or the one that `tools/server.sh` fetched under another."""
    places = f"{os.defpath}:/usr/sbin:/usr/local/sbin:/usr/local/bin:{os.environ.get('PATH', '')}"
    if found := shutil.which(name, path=places):
        return Program(Path(found), None)
    home = CACHE / fetched
    path = home / "usr" / "sbin" / name
    if not path.exists():
        pytest.skip(f"There is no {name} for this test: install it, or run tools/server.sh {fetched}.")
    return Program(path, home)


def folder_of_its_own(name: str) -> Path:
    """An empty folder for a server: where its user may go, and with a path that a socket's may be longer than."""
    return Path(
        tempfile.mkdtemp(prefix=f"runcue-{name}-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)
    )


def owner() -> dict[str, Any]:
    """As whom a server runs that refuses to run as root, for subprocess; nothing for everybody but root."""
    import pwd  # only servers need it, which run on POSIX systems alone

    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def give(folder: Path) -> None:
    """Let the server's user have a folder and all that is in it."""
    who = owner()
    for path in (folder, *folder.rglob("*")) if who else ():
        os.chown(path, who["user"], who["group"], follow_symlinks=False)


def readable(given: Program, folder: Path) -> Program:
    """The same where the server's user can read it: what was fetched is copied, since it may lie anywhere."""
    if given.home is None or not owner():
        return given
    home = folder / "program"
    shutil.copytree(given.home, home, symlinks=True)
    return Program(home / given.path.relative_to(given.home), home)


@contextmanager
def served(
    call: Sequence[str], environment: dict[str, str], folder: Path, is_ready: Callable[[], bool]
) -> Iterator[None]:
    """Run a server, which ends with this process however that ends. What it says goes into the file `log`."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "sh", *call],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,  # an interrupt from the keyboard is for the tests, which then end it
            **owner(),
        )
    try:
        deadline = monotonic() + BOUND
        while not is_ready():
            if monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{call[0]} did not start: {(folder / 'log').read_text()[-1500:]}")
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK)
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(BOUND)


def listens(place: str | tuple[str, int]) -> bool:
    """Is there somebody at that Unix socket, or at that address?"""
    with socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET) as trial:
        trial.settimeout(1)
        return trial.connect_ex(place) == 0
