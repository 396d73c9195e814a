"""`runcue relay`: moves what an Outbox gathers in another database into a queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import click

from runcue.cli.application import found_at, is_name, raised
from runcue.cli.failure import STORAGE, Failure, bad_input, misconfigured
from runcue.cli.fields import duration
from runcue.cli.place import File, on_file
from runcue.cli.screen import clean, counted, say, shown
from runcue.host.address import is_address, is_server, plain

Connect = Callable[[], Any]

CONNECTING = 10
"""Seconds to wait for a connection, or for another process that writes to a file."""
MYSQL = ("mysql", "mariadb")


@on_file(
    "relay",
    examples=[
        "runcue relay queue.db --from shop.db",
        "runcue relay queue.db --from mysql://shop@db/shop",
        "runcue relay postgresql://app@db/units --from shop.database:connect",
        "runcue relay queue.db --from shop.db --once",
    ],
)
@click.option(
    "--from",
    "source",
    metavar="DATABASE",
    required=True,
    help="The file of an SQLite database, an address (mysql://, mariadb://, postgresql://), or module:function.",
)
@click.option("--table", default="runcue_outbox", show_default=True, help="The table of the Outbox.")
@click.option(
    "--every",
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait when nothing is there.",
)
@click.option("--once", is_flag=True, help="Move what is there, and end.")
def relay(place: File, source: str, table: str, every: str, once: bool) -> None:
    """Move the units of an Outbox into a queue, until interrupted.

    An application submits with `runcue.Outbox` in transactions of a database that the queue is not in. A row is
    deleted there after it is stored here, and however often it is moved it is one unit: so relays may be killed at
    any time, and several of them may run. The queue is not opened by it: no unit is started.

    With module:function the module is imported, the working directory first, and the function is called without
    arguments for each connection: any DB-API driver will do.
    """
    connect = _connecting(source, place)
    pause = duration("every", every)
    if not place.exists:
        raise place.nothing()
    if once:
        _move_all(place, connect, table)
        return
    import asyncio
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("runcue relay: %(message)s"))
    logging.getLogger("runcue").addHandler(handler)
    asyncio.run(place.cue().relay(connect, table=table, every=pause))


def _move_all(place: File, connect: Connect, table: str) -> None:
    from runcue import Client

    connection, count = connect(), 0
    try:
        with Client(place.address, name=place.name) as client:
            while moved := client.relay(connection, table=table):
                count += moved
    finally:
        connection.close()
    say(f"{counted(count, 'row')} moved.")


# --- Connections ----------------------------------------------------------------------------------


def _connecting(source: str, place: File) -> Connect:
    """What opens a connection to the database that was typed."""
    if is_server(source):
        return _told(source, lambda: _postgres(source))
    scheme = source.partition("://")[0].lower()
    if scheme in MYSQL:
        return _told(source, lambda: _mysql(source))
    if is_address(source):
        raise bad_input(
            f"{clean(plain(source))} is no database that runcue knows. Give a file, mysql://…, mariadb://…, "
            "postgresql://…, or module:function for any other."
        )
    if is_name(source) and not Path(source).exists():
        return _named(source)
    path = Path(source)
    if not path.is_file():
        raise Failure(f"{shown(source)} is not there. Give the file of an SQLite database.", STORAGE)
    if not place.is_server and place.exists and path.samefile(place.database):
        raise bad_input(
            "An Outbox is in another file than the queue. In the queue's own, submit with connection=."
        )
    return _told(source, lambda: _file(path))


def _told(source: str, connect: Connect) -> Connect:
    """The same, with an error that names the database."""

    def connected() -> Any:
        try:
            return connect()
        except (ImportError, Failure):
            raise
        except Exception as error:
            said = clean(f"{type(error).__name__}: {error}")
            raise Failure(f"{clean(plain(source))} cannot be reached: {said}", STORAGE) from error

    return connected


def _file(path: Path) -> Any:
    import sqlite3

    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=CONNECTING)


def _postgres(address: str) -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise misconfigured('postgresql:// needs psycopg: pip install "runcue[postgres]"') from error
    return psycopg.connect(address, connect_timeout=CONNECTING)


def _mysql(address: str) -> Any:
    try:
        import pymysql
    except ImportError as error:
        raise misconfigured("mysql:// needs PyMySQL: pip install pymysql") from error
    parts = urlsplit(address)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if wrong := sorted(options.keys() - {"unix_socket", "ssl_ca"}):
        raise bad_input(
            f"There is no option {clean(wrong[0])!r} in the address of a MySQL database here. There are: "
            "unix_socket, ssl_ca; with module:function it is opened as you like."
        )
    return pymysql.connect(
        host=parts.hostname or "localhost",
        port=parts.port or 3306,
        user=unquote(parts.username or "") or None,
        password=unquote(parts.password or ""),
        database=unquote(parts.path.lstrip("/")) or None,
        charset="utf8mb4",
        connect_timeout=CONNECTING,
        unix_socket=options.get("unix_socket"),
        ssl_ca=options.get("ssl_ca"),
    )


def _named(name: str) -> Connect:
    function, place = found_at(name)
    if not callable(function):
        raise bad_input(f"{place} is no function that returns a connection, but {type(function).__name__}.")

    def connected() -> Any:
        try:
            return function()
        except (Exception, SystemExit) as error:
            raise raised(f"{place}()", error) from error

    return connected
