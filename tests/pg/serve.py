"""Serves PostgreSQL to tests elsewhere: prints the address of a server, by TCP, and ends with its standard input.

python -m tests.pg.serve
"""

from __future__ import annotations

import sys

from tests.pg.server import Server


def main() -> None:
    """The program."""
    server = Server()
    server.start()
    try:
        sys.stdout.write(f"{server.dsn('postgres', tcp=True)}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
