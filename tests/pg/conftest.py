"""The fixtures for everything in this folder."""

from tests.pg.fixtures import pg, pg_own, pg_proxy, pg_server

__all__ = ["pg", "pg_own", "pg_proxy", "pg_server"]
