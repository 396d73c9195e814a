"""What belongs to a queue in PostgreSQL on one host: where its files are, whose they are, and who can see them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from runcue.errors import StorageInsecure
from runcue.host.system import files
from runcue.stores.presence import presence
from runcue.stores.sqlite import owner


def place_of(identity: str) -> str:
    """Where on this host the files are that belong to a queue elsewhere: the same for every process of a user."""
    folder = Path(tempfile.gettempdir()) / f"runcue-{files.user()}"
    return str(folder / hashlib.sha256(identity.encode()).hexdigest()[:16])


def make_place(local: str) -> None:
    """Make the folder for such files, for this user alone; one that is not is refused."""
    try:
        presence.make_directory(Path(local).parent)
    except StorageInsecure as error:
        raise _advised(error) from error


def check_place(local: str) -> None:
    """Refuse a folder for such files that is there, and not this user's alone."""
    folder = str(Path(local).parent)
    try:
        owner.check_found(folder, os.lstat(folder))
    except OSError:  # it is not there, and nothing in it
        return
    except StorageInsecure as error:
        raise _advised(error) from error


def _advised(error: StorageInsecure) -> StorageInsecure:
    return StorageInsecure(
        f"{error} Or set TMPDIR to a folder of your own, for all processes of this host.", error.store
    )


def boot_of(directory: Path) -> str | None:
    """Names those who can see each other's files, until the host is started anew; None where nobody sees any."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return f"{presence.boot_id()} {found.st_dev:x}:{found.st_ino:x}"
