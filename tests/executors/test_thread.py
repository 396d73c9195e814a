"""Functions in threads: what is left when the system has no room for one more."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from runcue.executors.thread import ThreadExecutor
from runcue.host.clock import SystemClock


def test_a_thread_that_could_not_be_started_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    work: Any = SimpleNamespace(cancelled=False)
    task: Any = SimpleNamespace(call=lambda work: "done")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        executor = ThreadExecutor(SystemClock())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                await executor.run(work, task, None)
        assert not executor.is_busy(), "the store would take this process to be at work for ever"
        assert await executor.run(work, task, None) == "done"
        await executor.close()

    asyncio.run(main())
