"""What is not tried on Windows, and why: one list, by the names of tests.

An entry is a folder, a file, or a test (with all its examples, or one of them). Files that only import what Windows
does not have are left out as a whole, with a reason too. docs/platforms.md has the counts.
"""

from __future__ import annotations

import sys
from typing import Final

ON_WINDOWS: Final = {
    "tests/stores/presence/test_presence.py": "is about flock, FIFOs, pidfds and forks; test_windows.py is its twin",
    "tests/stores/sqlite/test_disk.py": "looks for open files in /proc, and has the log synced through descriptors",
    "tests/batch/test_interrupt.py": "sends SIGINT and SIGKILL to programs",
}
"""By the beginning of a test's name, why it is not tried on Windows."""


def apart(nodeid: str) -> str:
    """Why this test is not tried on this system; empty when it is."""
    if sys.platform != "win32":
        return ""
    return next((why for name, why in ON_WINDOWS.items() if _is_in(nodeid, name)), "")


def _is_in(nodeid: str, name: str) -> bool:
    return nodeid.startswith(name) and nodeid[len(name) : len(name) + 1] in {"", "/", ":", "["}
