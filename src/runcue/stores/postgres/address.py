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

DEFAULT: Final = "default"
SHORTEST: Final = 4
"""Signs that a secret must have to be looked for in a text: shorter ones are in every other word."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_LOGIN: Final = re.compile(r"(?<=://)(?P<user>[^:@/?#]*):(?P<secret>.*)@", re.DOTALL)
"""Up to the last @: a password may hold whatever its writer forgot to encode."""
_FIELD: Final = re.compile(r"(?P<name>[?&][^=&#]*=)(?P<secret>[^&#]*)")


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
        hidden = _LOGIN.sub(r"\g<user>:***@", self.url)
        return _FIELD.sub(lambda field: f"{field['name']}***" if _is_secret(field) else field[0], hidden)

    @property
    def shown(self) -> str:
        """The same inside a message."""
        return quoted(self.plain)

    def scrubbed(self, text: str) -> str:
        """What somebody else said of this address, without the password or a part of it."""
        text = text.replace(self.url, self.plain)
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> list[str]:
        found = [match["secret"] for match in _LOGIN.finditer(self.url)]
        found += [field["secret"] for field in _FIELD.finditer(self.url) if _is_secret(field)]
        for secret in list(found):
            found += [unquote(secret), *re.split(r"[:/?#@&\[\]]", secret)]
        return sorted({one for one in found if len(one) >= SHORTEST}, key=len, reverse=True)


def _is_secret(field: re.Match[str]) -> bool:
    name = unquote(field["name"][1:-1]).lower()
    return any(word in name for word in ("pass", "pwd", "secret", "token"))


def address_of(url: str, name: str) -> Address:
    """The address of a namespace; its name becomes part of a name in the database."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"name={quoted(name)} cannot name a queue in PostgreSQL. Use up to 40 small letters, digits and "
            "underscores, a letter first."
        )
    return Address(url, name)
