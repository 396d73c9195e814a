"""Relays: what Outboxes gather in another database is moved into a queue, again and again.

Rules:
- A connection of a driver belongs to one thread: it is made and used there. After any error it is closed, and made
  anew the next time.
- An error of the first attempt is raised, since a wrong address or a missing table stays wrong. Later ones are
  logged, and it is tried again after a pause that grows.
- Any number of relays may move the same rows: whatever is moved twice is one unit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from runcue.api.client import Client
from runcue.core.model.parse import duration
from runcue.errors import ConfigError
from runcue.stores.sql.store_thread import StoreThread

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.api.signature import Duration

logger = logging.getLogger("runcue")

SHORTEST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts after an error: they grow from one to the other."""

Connect = Callable[[], Any]
"""Makes a DB-API connection to the database with the outbox."""


class Mover:
    """Moves the rows of one outbox. For one thread."""

    def __init__(self, client: Client, connect: Connect, table: str) -> None:
        self._client = client
        self._connect = connect
        self._table = table
        self._connection: Any = None

    def move(self) -> int:
        """Move the first rows, and say how many they were."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            return self._client.relay(self._connection, table=self._table)
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        """Close whatever is open."""
        self._let_go()
        self._client.close()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception as error:  # noqa: BLE001 (each driver has errors of its own)
                logger.debug("a connection to an outbox was not closed properly: %s", error)


async def relay(cue: Cue, connect: Connect, table: str, every: Duration) -> None:
    """Move what an outbox gathers until the Cue is closed, or this is cancelled."""
    pause = least = duration(every, "every")
    if cue.path is None:
        raise ConfigError(
            "cue.relay() moves units into a queue that outlives its process: Cue('queue.db') or "
            "Cue('postgresql://…'). Units in memory would be lost."
        )
    client = Client(cue.path, name=cue.name, insecure=cue._registry.options.insecure)
    mover, thread, has_moved = Mover(client, connect, table), StoreThread("runcue-relay"), False
    try:
        while not cue._is_closed:
            try:
                count = await thread.do(mover.move)
            except Exception as error:
                if not has_moved:
                    raise
                pause = min(max(2 * pause, SHORTEST_PAUSE), max(LONGEST_PAUSE, least))
                logger.warning(
                    "units of the outbox %s are not moved, trying again in %g s: %s", table, pause, error
                )
            else:
                pause, has_moved = least, True
                if count:
                    if cue._system is not None and not cue._is_closed:
                        cue.wake()
                    continue
            await asyncio.sleep(pause)
    finally:
        thread.after_all(mover.close)
        thread.close()
