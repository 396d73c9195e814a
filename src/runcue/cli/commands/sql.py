"""`runcue sql`: what the owner of a database needs to know and to do about a queue in PostgreSQL."""

from __future__ import annotations

import click

from runcue.cli.failure import bad_input, misconfigured
from runcue.cli.groups import family
from runcue.cli.place import DEFAULT, File, on_file
from runcue.cli.screen import clean, note, say


@family(
    "sql",
    examples=["runcue sql dump > queue.sql", "runcue sql grant postgresql://app@db/shop web"],
)
def command() -> None:
    """Print the SQL of a queue in PostgreSQL, and grant roles to submit by it."""


@command.command(
    "dump",
    examples=["runcue sql dump | psql -v ON_ERROR_STOP=1 shop", "runcue sql dump --name mail --after 3"],
)
@click.option("--name", "--namespace", default=DEFAULT, metavar="NAME", help="Which queue of a database.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="VERSION",
    help="Only what a queue of that version lacks (SELECT version FROM runcue.about).",
)
def dump(name: str, after: int) -> None:
    """Print the SQL that makes a queue: its tables, their indexes and the functions by which SQL submits.

    A Cue does the same when it is opened for the first time. Run it by hand where programs may not create schemas: as
    the role that runs the units, which then owns the functions.
    """
    from runcue import ConfigError, postgres_schema

    try:
        text = postgres_schema(name, after=after)
    except ConfigError as error:
        if isinstance(error.__cause__, ImportError):  # the driver is an extra
            raise misconfigured(str(error)) from error
        raise
    say(text.rstrip())


@on_file("grant", examples=["runcue sql grant postgresql://app@db/shop web --tables"])
@click.argument("role", metavar="ROLE")
@click.option(
    "--tables",
    is_flag=True,
    help="Also submit in transactions of the role's own (connection=), and by a Client.",
)
def grant(place: File, role: str, tables: bool) -> None:
    """Let a role call the functions of a queue, submit and the others. Only its owner can grant that."""
    from runcue import Client

    if not place.is_server:
        raise bad_input(
            "Roles submit to queues in PostgreSQL. Give an address, such as postgresql://user@host/database."
        )
    if not place.exists:
        raise place.nothing()
    with Client(place.address, name=place.name) as client:
        client.grant(role, tables=tables)
    note(
        f"{clean(role)} may submit to {place.words.place}{', also on its own connections' if tables else ''}."
    )


command.add_command(grant)
