"""A MariaDB server for the tests that ask for one: gone with the process that asked for it, reached by a socket."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from tests import programs


class MariaDB:
    """A server, and databases on it."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    def database(self) -> str:
        """Make a database, and give its address."""
        name = f"shop_{next(self._numbers)}"
        connection = pymysql.connect(unix_socket=self._socket, user="root")
        connection.cursor().execute(f"CREATE DATABASE {name}")
        connection.close()
        return f"mysql://root@localhost/{name}?unix_socket={self._socket}"

    def connect(self, address: str, **options: Any) -> Any:
        """A connection to a database."""
        name = address.partition("?")[0].rpartition("/")[2]
        return pymysql.connect(unix_socket=self._socket, user="root", database=name, **options)


@contextmanager
def mariadb() -> Iterator[MariaDB]:
    """A server without data, whom everybody is root for."""
    found = programs.program("mariadbd", "mariadb")
    folder = programs.folder_of_its_own("mariadb")
    try:
        found = programs.readable(found, folder)
        (folder / "datadir").mkdir()
        programs.give(folder)
        messages = [] if found.home is None else [
            f"--lc-messages-dir={found.home / 'usr/share/mysql'}",
            f"--character-sets-dir={found.home / 'usr/share/mysql/charsets'}",
        ]  # fmt: skip
        places = [f"--{name}={folder / name}" for name in ("datadir", "socket", "pid-file")]
        call = [
            str(found.path), "--no-defaults", *messages, *places, "--skip-networking", "--skip-grant-tables",
            "--skip-log-bin", "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0",
            "--innodb-use-native-aio=0", "--character-set-server=latin1",
        ]  # fmt: skip
        place = str(folder / "socket")
        with programs.served(call, found.environment, folder, lambda: programs.listens(place)):
            yield MariaDB(place)
    finally:
        shutil.rmtree(folder)
