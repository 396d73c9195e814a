"""Starts another Python that finds the same modules as this one."""

from __future__ import annotations

import os
import sys


def python_command(code: str) -> list[str]:
    """The command that runs code in a new Python, with the options and the module search path of this one."""
    from multiprocessing.spawn import get_command_line

    line = get_command_line()  # [python, options …, "-c", …]
    return [*line[: line.index("-c")], "-c", f"import sys; sys.path[:] = {search_path()!r}; {code}"]


def search_path() -> list[str]:
    """Where this process looks for modules, without entries that no other process could use."""
    return [entry for entry in sys.path if _is_path(entry)]


def _is_path(entry: object) -> bool:
    try:
        return isinstance(entry, str) and b"\0" not in os.fsencode(entry)
    except UnicodeEncodeError:
        return False
