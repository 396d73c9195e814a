"""The exception that ends a command with one line on stderr and an exit code.

    raise not_found(f"No job {id}. See them: queuectl list")

The text says what is wrong, with which thing, and what to do. It is cleaned before it is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

JOB_FAILED = 1
BAD_INPUT = 2
STORAGE = 3
CONFIGURATION = 4
BUSY = 5
CONFLICT = 6
INTERNAL = 70
TIMED_OUT = 124
INTERRUPTED = 130
CLOSED_PIPE = 141


OLD = "was made by an older runcue"
"""The words in the library's message about a file that has to be migrated before it can be read."""
BRING_UP_TO_DATE = {
    "queuectl": "Bring it up to date: queuectl worker start, or any command that changes something",
    "runcue": "Bring it up to date: start its program, or use any command that changes something",
}
DAMAGED = "(runcue.recover, queuectl doctor --recover)"
"""The words in the library's message that name the ways to recover a damaged file."""


class Failure(Exception):
    """Ends the command: one line on stderr, and this exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def is_old(error: Exception) -> bool:
    """True when a file cannot be read only because an older version made it."""
    return OLD in str(error)


def saving(text: str, file: str | None, name: str) -> str:
    """The text of an error about a damaged file, with the command that recovers it in that program."""
    if DAMAGED not in text:
        return text
    if name == "queuectl" or file is None:
        return text.replace(f" {DAMAGED}", ": queuectl doctor --recover")
    from shlex import quote

    code = f"import runcue; runcue.recover({file!r})"
    typed = quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
    return text.replace(f" {DAMAGED}", f": python -c {typed}")


def advice(
    name: str, known: Sequence[str], spelled: Callable[[str], str] = str, cutoff: float = 0.6, most: int = 99
) -> str:
    """Advice on an unknown name: the nearest known one, or else all known names."""
    from difflib import get_close_matches  # only mistakes need it

    near = get_close_matches(name[:80], known, n=1, cutoff=cutoff)
    return (
        f"Did you mean {spelled(near[0])}?"
        if near
        else f"There are: {', '.join(map(spelled, known[:most]))}."
    )


def bad_input(text: str) -> Failure:
    """The failure about input that cannot be used (2)."""
    return Failure(text, BAD_INPUT)


def misconfigured(text: str) -> Failure:
    """The failure about a home, permissions, a version or settings (4)."""
    return Failure(text, CONFIGURATION)


def not_found(text: str) -> Failure:
    """The failure about something that does not exist (6)."""
    return Failure(text, CONFLICT)


def conflict(text: str) -> Failure:
    """The failure about something that exists already, or whose state does not allow this (6)."""
    return Failure(text, CONFLICT)
