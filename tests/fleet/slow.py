"""A process whose exchanges take as long as a test likes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runcue import Cue

Step = Callable[..., Coroutine[Any, Any, Any]]


class Slow:
    """The exchanges and turns of a Cue: each may be waited for, and held up when it is done and not yet known."""

    def __init__(self, cue: Cue, monkeypatch: pytest.MonkeyPatch) -> None:
        assert cue._system is not None
        store, self._engine = cue._system.store, cue._system.engine
        self._done, self._may_end = asyncio.Event(), asyncio.Event()
        self._may_end.set()
        for name in ("exchange", "turn"):
            monkeypatch.setattr(store, name, self._slowly(getattr(store, name)))

    def _slowly(self, step: Step) -> Step:
        async def slowly(*given: Any) -> Any:
            received = await step(*given)
            self._done.set()
            await self._may_end.wait()
            return received

        return slowly

    async def next(self) -> None:
        """Wait until another one is done."""
        self._done.clear()
        self._engine.wake()
        await self._done.wait()

    def hold(self) -> None:
        """Let none of them be known from now on."""
        self._may_end.clear()

    def let_go(self) -> None:
        """Let them be known."""
        self._may_end.set()
