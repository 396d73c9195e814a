"""The fixtures for everything in this folder."""

from tests.pg.fixtures import pg, pg_oldest, pg_oldest_server, pg_own, pg_proxy, pg_server

__all__ = ["pg", "pg_oldest", "pg_oldest_server", "pg_own", "pg_proxy", "pg_server"]
