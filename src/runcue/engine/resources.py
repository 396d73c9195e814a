"""Opens what handlers share, such as a database's connections: once in a process, when first needed.

Each resource lives in a task of its own, which opens and closes it: many context managers must be left by the task
that entered them. An error while opening fails the attempts that wait for it; the next attempt tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from runcue.core.model.failure import describe
from runcue.engine.callback_errors import log_trouble
from runcue.errors import ResourceFailed

logger = logging.getLogger("runcue")


class Resource(msgspec.Struct, frozen=True, eq=False):
    """How to make one resource."""

    kind: Any
    """Its type: handlers that annotate a parameter with it get the resource."""
    name: str
    open: Callable[..., AbstractAsyncContextManager[Any]]
    needs: Mapping[str, Any]
    """The resources that it is made with: parameters of `open`, and their types."""


class Holding(msgspec.Struct, eq=False):
    """A resource that is open, or about to be."""

    value: asyncio.Future[Any]
    is_over: asyncio.Event
    task: asyncio.Task[None] | None = None


class Resources:
    """The resources of one process."""

    def __init__(self, declared: Mapping[Any, Resource]) -> None:
        self._declared = declared
        self._held: dict[Any, Holding] = {}
        """The resources that are open, in the order in which they were."""

    async def given(self, kinds: Iterable[Any]) -> dict[Any, Any]:
        """The resources of these types, opened if they are not."""
        return {kind: await self._value(self._declared[kind]) for kind in kinds}

    async def close(self, grace: float) -> None:
        """Close what is open, the last one first. One that takes longer than `grace` seconds is cancelled."""
        while self._held:
            kind, holding = self._held.popitem()
            holding.is_over.set()
            if holding.task is not None:
                if not holding.value.done():
                    holding.task.cancel()
                _, late = await asyncio.wait([holding.task], timeout=grace)
                if late:
                    name = self._declared[kind].name
                    logger.warning("the resource %s was still closing after %g s, and is left", name, grace)
                    holding.task.cancel()

    async def _value(self, resource: Resource) -> Any:
        needed: dict[Any, Any] = {}
        if resource.kind not in self._held:
            needed = await self.given(resource.needs.values())
        holding = self._held.get(resource.kind)  # another attempt may have begun it meanwhile
        if holding is None:
            loop = asyncio.get_running_loop()
            holding = self._held[resource.kind] = Holding(loop.create_future(), asyncio.Event())
            arguments = {name: needed[kind] for name, kind in resource.needs.items()}
            holding.task = loop.create_task(self._hold(resource, holding, arguments), name="runcue resource")
        try:
            return await asyncio.shield(holding.value)
        except Exception as error:
            raise ResourceFailed(resource.name, describe(error)) from error

    async def _hold(self, resource: Resource, holding: Holding, arguments: dict[str, Any]) -> None:
        """Open a resource, keep it until it is over, and close it."""
        value = holding.value
        try:
            async with resource.open(**arguments) as opened:
                value.set_result(opened)
                await holding.is_over.wait()
        except BaseException as error:  # noqa: BLE001 (an application's code may raise anything)
            if value.done():
                log_trouble(f"the resource {resource.name} raised when it was closed", error)
            else:
                if self._held.get(resource.kind) is holding:
                    del self._held[resource.kind]
                value.set_exception(_plain(error))
                value.exception()  # seen: nobody may be waiting any more


def _plain(error: BaseException) -> Exception:
    """An error that may be raised where the resource is awaited; a future does not accept every exception."""
    is_plain = isinstance(error, Exception) and not isinstance(error, (StopIteration, asyncio.CancelledError))
    return error if is_plain else RuntimeError(describe(error))  # type: ignore[return-value]
