"""The SQL of a queue in PostgreSQL, for whoever makes and changes schemas by hand."""

from __future__ import annotations

from runcue.core.model import parse
from runcue.declare import arguments
from runcue.errors import ConfigError
from runcue.stores.postgres.address import DEFAULT, address_of


def postgres_schema(name: str = DEFAULT, *, after: int = 0) -> str:
    """The SQL that makes a queue in PostgreSQL, or with `after` brings one of that version up to this one."""
    address = address_of("postgresql://", parse.name(name, "queue"))
    try:
        from runcue.stores.postgres.script import script
    except ImportError as error:
        raise ConfigError(arguments.NEEDS_PSYCOPG) from error
    return script(address, after)
