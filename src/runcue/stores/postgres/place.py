"""What belongs to a queue in PostgreSQL on one host: where its files are, and who can see them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from runcue.stores import presence


def place_of(identity: str) -> str:
    """Where on this host the files are that belong to a queue elsewhere: the same for every process of a user."""
    folder = Path(tempfile.gettempdir()) / f"runcue-{os.getuid()}"
    return str(folder / hashlib.sha256(identity.encode()).hexdigest()[:16])


def boot_of(directory: Path) -> str | None:
    """Names those who can see each other's files, until the host is started anew; None where nobody sees any."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return f"{presence.boot_id()} {found.st_dev:x}:{found.st_ino:x}"
