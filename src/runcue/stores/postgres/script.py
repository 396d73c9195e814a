"""What the owner of a database is given as SQL: the tables and functions of a queue, and who may submit by them.

A script does what the first Cue would do: whoever may not create a schema has it run by somebody who may.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Final

import psycopg
from psycopg import errors, sql

from runcue.errors import ConfigError, StoreError, quoted
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.functions import GRANTED
from runcue.stores.postgres.link import Sending, cause_of, translate
from runcue.stores.postgres.schema import APPLICATION, HEAD_INSERT, MIGRATIONS, VERSION, turn_of

OWN_IDENTITY: Final = "replace(gen_random_uuid()::text, '-', '')"
MADE: Final = """\
-- The queue {name} of runcue: schema {schema}, version {version}.
-- As the role of the programs that run its units:  psql -v ON_ERROR_STOP=1
BEGIN;
{turn};
CREATE SCHEMA IF NOT EXISTS {schema};
SET LOCAL search_path = {schema};
{steps}
{insert};
INSERT INTO about VALUES ('{application}', {version});
COMMIT;
"""
RENEWED: Final = """\
-- The queue {name} of runcue: schema {schema}, from version {after} to version {version}.
-- As the owner of the schema:  psql -v ON_ERROR_STOP=1
BEGIN;
{turn};
SET LOCAL search_path = {schema};
DO $check$ BEGIN
    IF (SELECT version FROM about) <> {after} THEN
        RAISE EXCEPTION 'the queue {name} is not of version {after}';
    END IF;
END $check$;
{steps}
UPDATE about SET version = {version};
COMMIT;
"""
BY_FUNCTIONS: Final = (
    "GRANT USAGE ON SCHEMA {schema} TO {role}",
    f"GRANT EXECUTE ON FUNCTION {', '.join(f'{{schema}}.{name}' for name in GRANTED)} TO {{role}}",
)
BY_TABLES: Final = (
    "GRANT INSERT ON {schema}.submissions TO {role}",
    "GRANT SELECT ON {schema}.head, {schema}.about TO {role}",
)
GRANTS_OPTION: Final = (
    "SELECT pg_has_role(current_user, relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass($1)"
)


def script(address: Address, after: int = 0) -> str:
    """The SQL that makes a queue, or brings one of that version up to this one."""
    if not 0 <= after < VERSION:
        raise ConfigError(
            f"after={quoted(after)} is no version with steps after it: they are counted up to {VERSION}."
        )
    text = RENEWED if after else MADE
    steps = "\n".join(f"{dedent(step).strip().removesuffix(';')};" for step in MIGRATIONS[after:])
    return text.format(
        name=address.name,
        schema=address.schema,
        version=VERSION,
        after=after,
        turn=turn_of(address),
        steps=steps,
        insert=HEAD_INSERT.replace("$1", OWN_IDENTITY),
        application=APPLICATION,
    )


def grant(link: Sending, role: str, *, with_tables: bool) -> None:
    """Let a role submit by the functions of a queue, and on connections of its own."""
    address, where = link.address, link.address.shown
    try:
        row = link.execute(GRANTS_OPTION, (f"{address.schema}.submissions",)).fetchone()
        if row is None or not row[0]:
            raise StoreError(
                f"The user of {where} does not own the queue {address.name!r}. Grant as the role that made it.",
                where,
            )
        for statement in (*BY_FUNCTIONS, *(BY_TABLES if with_tables else ())):
            named = sql.SQL(statement).format(
                schema=sql.Identifier(address.schema), role=sql.Identifier(role)
            )
            link.execute(named.as_string())
    except errors.UndefinedObject as error:
        raise ConfigError(f"{where} has no role {quoted(role)}. Create it first: CREATE ROLE …") from error
    except psycopg.Error as error:
        raise translate(error, address) from cause_of(error, address)
