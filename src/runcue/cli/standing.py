"""Which supervisors stand on a home, and how a process gets a signal that is meant for it and for nobody else.

Rules:
- A supervisor holds a lock on a file of its own below the home. The lock alone says whether it lives; the file says
  who it is. What is left of dead ones is removed by whoever looks.
- A pid may mean somebody else by the time it is used. So the process is taken hold of first, then it is asked
  whether the one that was meant still lives, and only then the signal is sent.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

FOLDER = "supervisors"


class Standing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A supervisor: its pid and host, and the file that it holds while it lives."""

    pid: int
    host: str
    path: str = ""

    def lives(self) -> bool:
        """True while it does."""
        return _is_held(Path(self.path))


class Post:
    """The lock of this process's own supervisor, from `with` to its end."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._path = self._folder / name
        self._new = self._folder / f".{name}"
        self._descriptor = -1

    def __enter__(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        facts = Standing(os.getpid(), os.uname().nodename)
        os.write(self._descriptor, msgspec.json.encode(facts))
        self._new.rename(self._path)

    def __exit__(self, *error: object) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def standing(home: Path) -> list[Standing]:
    """The supervisors that live on this home."""
    try:
        paths = sorted(path for path in (home / FOLDER).iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    found = []
    for path in paths:
        if _is_held(path):
            try:
                facts = msgspec.json.decode(path.read_bytes(), type=Standing)
            except (FileNotFoundError, msgspec.MsgspecError):
                continue  # it has just ended, or somebody else's file lies here
            found.append(msgspec.structs.replace(facts, path=str(path)))
        else:
            path.unlink(missing_ok=True)
    return found


def send(pid: int, number: signal.Signals, lives: Callable[[], bool]) -> bool:
    """Send a signal to that process if it is still the one that is meant; False when it is gone.

    Raises PermissionError where the process is another user's.
    """
    try:
        descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    try:
        if not lives():
            return False
        if descriptor is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
