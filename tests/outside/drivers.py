"""Connections of all the drivers that `connection=` knows, each with a transaction that a test ends as it likes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

import apsw
import psycopg
import pytest

from tests.outside.inserting import Outsider

Began = Callable[[str], AbstractAsyncContextManager[tuple[Any, Callable[[bool], Any]]]]
"""Opens a connection in a transaction; with that, what ends it, with a commit or without."""


@asynccontextmanager
async def psycopg_sync(dsn: str) -> AsyncIterator[Any]:
    connection = psycopg.connect(dsn)

    async def end(commits: bool) -> None:
        (connection.commit if commits else connection.rollback)()

    yield connection, end
    connection.close()


@asynccontextmanager
async def psycopg_async(dsn: str) -> AsyncIterator[Any]:
    connection = await psycopg.AsyncConnection.connect(dsn)

    async def end(commits: bool) -> None:
        await (connection.commit if commits else connection.rollback)()

    yield connection, end
    await connection.close()


@asynccontextmanager
async def psycopg_block(dsn: str) -> AsyncIterator[Any]:
    """A transaction within autocommit."""
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute("BEGIN")

    async def end(commits: bool) -> None:
        connection.execute("COMMIT" if commits else "ROLLBACK")

    yield connection, end
    connection.close()


@asynccontextmanager
async def asyncpg(dsn: str) -> AsyncIterator[Any]:
    driver = import_module("asyncpg")
    connection = await driver.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()

    async def end(commits: bool) -> None:
        await (transaction.commit if commits else transaction.rollback)()

    yield connection, end
    await connection.close()


def of_sqlalchemy(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def sqlalchemy_connection(dsn: str) -> AsyncIterator[Any]:
    library = import_module("sqlalchemy")
    engine = library.create_engine(of_sqlalchemy(dsn, "psycopg"))
    connection = engine.connect()

    async def end(commits: bool) -> None:
        (connection.commit if commits else connection.rollback)()

    yield connection, end
    connection.close()
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(dsn: str) -> AsyncIterator[Any]:
    library = import_module("sqlalchemy")
    orm = import_module("sqlalchemy.orm")
    engine = library.create_engine(of_sqlalchemy(dsn, "psycopg"))
    session = orm.Session(engine)

    async def end(commits: bool) -> None:
        (session.commit if commits else session.rollback)()

    yield session, end
    session.close()
    engine.dispose()


def _async(driver: str, *, with_session: bool) -> Began:
    @asynccontextmanager
    async def begun(dsn: str) -> AsyncIterator[Any]:
        import_module(driver)
        library = import_module("sqlalchemy.ext.asyncio")
        engine = library.create_async_engine(of_sqlalchemy(dsn, driver))
        connection = library.AsyncSession(engine) if with_session else await engine.connect()

        async def end(commits: bool) -> None:
            await (connection.commit if commits else connection.rollback)()

        yield connection, end
        await connection.close()
        await engine.dispose()

    return begun


@asynccontextmanager
async def django(dsn: str) -> AsyncIterator[Any]:
    connection = django_connection(dsn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Django's own connections are for code without a loop
        connection.set_autocommit(False)

        async def end(commits: bool) -> None:
            (connection.commit if commits else connection.rollback)()

        yield connection, end
        connection.close()


def django_connection(dsn: str, kind: str = "postgresql") -> Any:
    """A connection of Django's, which is made without its settings."""
    base = import_module(f"django.db.backends.{kind}.base")
    settings = import_module("django.conf").settings
    if not settings.configured:
        settings.configure(INSTALLED_APPS=[])
        import_module("django").setup()
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    defaults = {"CONN_MAX_AGE": 0, "AUTOCOMMIT": True, "OPTIONS": {}, "TIME_ZONE": None, "ATOMIC_REQUESTS": False,
                "CONN_HEALTH_CHECKS": False}  # fmt: skip
    return base.DatabaseWrapper(
        {
            **defaults,
            "NAME": given["dbname"],
            "USER": given.get("user", ""),
            "PASSWORD": given.get("password", ""),
            "HOST": given["host"],
            "PORT": str(given["port"]),
        }
    )


@asynccontextmanager
async def apsw_file(path: str) -> AsyncIterator[Any]:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(60_000)
    connection.execute("BEGIN")

    async def end(commits: bool) -> None:
        connection.execute("COMMIT" if commits else "ROLLBACK")

    yield connection, end
    connection.close()


ON_POSTGRES: dict[str, Began] = {
    "psycopg": psycopg_sync,
    "psycopg async": psycopg_async,
    "psycopg in a block": psycopg_block,
    "asyncpg": asyncpg,
    "SQLAlchemy connection": sqlalchemy_connection,
    "SQLAlchemy session": sqlalchemy_session,
    "SQLAlchemy async connection": _async("psycopg", with_session=False),
    "SQLAlchemy async session": _async("asyncpg", with_session=True),
    "Django": django,
}
ON_FILE: dict[str, Began] = {"apsw": apsw_file}

__all__ = ["ON_FILE", "ON_POSTGRES", "Began", "Outsider", "django_connection", "of_sqlalchemy"]
