"""Where a queue in PostgreSQL is: the address of a database, and one namespace in it.

Rules:
- A password is never shown: not in an error, not in a log, not in a repr.
- A namespace is a PostgreSQL schema of its own, so that queues in one database do not know of each other.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import msgspec

from runcue.errors import ConfigError, quoted

SCHEMES: Final = ("postgresql://", "postgres://")
DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_SECRETS: Final = (
    re.compile(r"(?<=://)[^/?#]*?:(?P<secret>[^/?#]*)@"),
    re.compile(r"[?&](?:ssl)?password=(?P<secret>[^&#]*)"),
)


class Address(msgspec.Struct, frozen=True):
    """The address as it was given, and the namespace."""

    url: str
    name: str = DEFAULT

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"

    @property
    def schema(self) -> str:
        """The PostgreSQL schema that holds the tables."""
        return "runcue" if self.name == DEFAULT else f"runcue_{self.name}"

    @property
    def plain(self) -> str:
        """The address without its password."""
        return self.scrubbed(self.url)

    @property
    def shown(self) -> str:
        """The same inside a message."""
        return quoted(self.plain)

    def scrubbed(self, text: str) -> str:
        """That text without the password, however it is written in it."""
        for secret in self._secrets():
            for form in {secret, unquote(secret)}:
                text = text.replace(form, "***")
        return text

    def _secrets(self) -> list[str]:
        found = [match["secret"] for pattern in _SECRETS for match in pattern.finditer(self.url)]
        return sorted(filter(None, found), key=len, reverse=True)


def is_address(target: str) -> bool:
    """Whether that names a PostgreSQL database."""
    return target.startswith(SCHEMES)


def address_of(url: str, name: str) -> Address:
    """The address of a namespace; its name becomes part of a name in the database."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"name={quoted(name)} cannot name a queue in PostgreSQL. Use up to 40 small letters, digits and "
            "underscores, a letter first."
        )
    return Address(url, name)
