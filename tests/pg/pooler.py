"""pgbouncer in front of a server, for one test."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.conninfo import conninfo_to_dict

from tests import programs


@contextmanager
def pooler(dsn: str, mode: str, **settings: object) -> Iterator[str]:
    """The way to a database, whose address by TCP is given, through pgbouncer in that mode."""
    found = programs.program("pgbouncer", "pgbouncer")
    server = conninfo_to_dict(dsn)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    folder = programs.folder_of_its_own("pooler")
    try:
        found = programs.readable(found, folder)
        more = "".join(f"{name} = {value}\n" for name, value in settings.items())
        (folder / "pooler.ini").write_text(
            f"[databases]\n* = host={server['host']} port={server['port']} user={server['user']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
            f"pool_mode = {mode}\n{more}"
        )
        programs.give(folder)
        call = [str(found.path), "-q", "pooler.ini"]
        with programs.served(call, found.environment, folder, lambda: programs.listens(("127.0.0.1", port))):
            yield f"postgresql://{server['user']}@127.0.0.1:{port}/{server['dbname']}"
    finally:
        shutil.rmtree(folder)
