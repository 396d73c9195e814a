"""Distinguishes the address of a database from the path of a file.

Rules:
- A text that begins with a scheme is an address: `mysql://…`, `s3://…`, `file:x.db`. It is never used as a path,
  which would create folders called `mysql:` (write `./mysql:…` for such a file). `C:/x` is a path.
- pathlib.Path makes one slash of two (on Windows a backslash), so `postgresql:/…` is an address, too.
- An address is shown without its password.
"""

from __future__ import annotations

import os
import re
from typing import Final

from runcue.errors import quoted

SERVERS: Final = ("postgresql://", "postgres://")
"""The beginnings of the addresses of database servers that queues may be in."""
_SLASH: Final = f"[{re.escape(os.sep + (os.altsep or ''))}]"
_SCHEME: Final = re.compile(
    rf"\s*[a-z][a-z0-9+.-]+(:[a-z][a-z0-9+.-]*)*:{_SLASH}|\s*(file|sqlite):", re.IGNORECASE
)
_ONE_SLASH: Final = re.compile(rf"(\s*[a-z][a-z0-9+.-]+:){_SLASH}(?!{_SLASH})", re.IGNORECASE)
_FILE: Final = re.compile(r"(?:file:(?://(?:localhost)?(?=/))?|sqlite:///)(?P<path>[^?#]+)", re.IGNORECASE)


def is_address(text: str) -> bool:
    """True for an address of any kind, and not for a path."""
    return _SCHEME.match(text) is not None


def is_server(text: str) -> bool:
    """True for the address of a database server that queues may be in."""
    return text.startswith(SERVERS)


def file_in(address: str) -> str | None:
    """The path in the address of a file on this host; None for any other address."""
    found = _FILE.match(address.strip())
    return None if found is None or found["path"].startswith("//") else found["path"]


def advice(given: object) -> str:
    """Advice for an address that names no queue; empty when there is none."""
    if isinstance(given, os.PathLike):
        is_database = str(given).startswith(tuple(one.rstrip("/") for one in SERVERS))
        return "Give an address as text, not as a Path, which makes one slash of two." if is_database else ""
    path = file_in(given) if isinstance(given, str) else None
    return "" if path is None else f"Give its path: {quoted(path)}."


def plain(text: str) -> str:
    """The text as it may be shown: an address without its password, a path unchanged."""
    if not is_address(text):
        return text
    from runcue.host.masking import mask  # imported by the few callers that have an address

    found = _ONE_SLASH.match(text)
    if found is None:
        return str(mask(text))
    return str(mask(f"{found[1]}//{text[found.end() :]}")).replace("://", ":/", 1)
