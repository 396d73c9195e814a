"""Calls the application's `on_*` callbacks for committed events.

Plain callbacks are called on the loop as the events come. `async` ones run as tasks, one after the other for each
unit, so that `on_start` is over before `on_complete` begins. They have no time limit, and `stop()` waits for them. A
callback that raises is counted, and logged once for each cause; the unit's outcome stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from time import perf_counter
from typing import Any

from runcue.core.model.events import EventDraft, draft_of
from runcue.core.model.failure import is_kind
from runcue.core.model.record import Record, Work, WorkState
from runcue.core.schedule.plan import Plan
from runcue.engine.callback_errors import CallbackErrors
from runcue.errors import RuncueError

current_call: ContextVar[int] = ContextVar("runcue_callback", default=0)
"""The call of an `async` callback that this code belongs to, in its own task and in tasks that it made."""


class Hooks:
    """The `on_*` callbacks of one Cue, as a listener on the bus."""

    def __init__(
        self,
        callbacks: dict[str, Callable[..., Any]],
        report: CallbackErrors,
        wants_retry: Callable[[], bool],
        view: Callable[[Record], Work],
    ) -> None:
        self._callbacks = callbacks
        self._report = report
        self._failure_wants_retry = wants_retry
        self._view = view
        self._last: dict[str, asyncio.Task[None]] = {}
        self._under_way: set[int] = set()
        self.calling: str | None = None
        """The plain callback that is being called right now, for the watchdog."""

    def __call__(self, plan: Plan) -> None:
        """Call the callbacks for the events of a plan."""
        callbacks = self._callbacks
        if callbacks.keys().isdisjoint(ON.values()):
            return
        for place, event in enumerate(plan.events):
            draft = draft_of(event)
            kind = ON.get(draft.type)
            if kind is not None and kind in callbacks:
                arguments = self._arguments(draft, plan.errors.get(place))
                if arguments is not None:
                    self._call(kind, callbacks[kind], draft.record, arguments)

    async def drain(self) -> None:
        """Wait until every callback under way has ended."""
        while self._last:
            await asyncio.wait(list(self._last.values()))

    def is_calling(self) -> bool:
        """True when the calling code is part of an `async` callback."""
        return current_call.get() in self._under_way

    def _arguments(self, draft: EventDraft, error: BaseException | None) -> tuple[Any, ...] | None:
        """What the callback for an event is called with; None when it is not called for this one."""
        type, record, data = draft.type, draft.record, draft.data or {}
        if type == "backpressure_active":
            return (data["depth"], data["limit"]) if data["active"] else None
        if type == "stall_warning":
            return data["seconds"], data["pending"]
        if type == "group_done":
            return data["group"], {state: data[state] for state in map(str, WorkState)}
        if record is None:
            return None
        work = self._view(record)
        if type == "completed":
            return work, work.result, max(0.0, (record.completed_at or 0) - (record.started_at or 0))
        if type == "failed":
            error = RuncueError(record.error) if error is None else error
            if self._failure_wants_retry():
                return work, error, data["will_retry"]
            return None if data["will_retry"] else (work, error)
        if type == "pending_warning":
            return work, data["seconds"]
        return (work,)

    def _call(
        self, kind: str, callback: Callable[..., Any], record: Record | None, arguments: tuple[Any, ...]
    ) -> None:
        key = kind if record is None else record.id
        before = self._last.get(key)
        if before is not None:
            self._begin(key, self._after(before, kind, callback, arguments))
            return
        self.calling = kind
        began, answer = perf_counter(), None
        try:
            answer = callback(*arguments)
        except KeyboardInterrupt:  # Ctrl-C
            raise
        except BaseException as error:  # noqa: BLE001 (an application's callback may raise anything)
            self._report(kind, error)
            return
        finally:
            self.calling = None
            if self._report.observers and not asyncio.iscoroutine(answer):
                self._report.took(kind, perf_counter() - began)
        if asyncio.iscoroutine(answer):
            begun = self._begin(key, self._finish(kind, answer))
            begun.add_done_callback(lambda _: answer.close())  # if the loop ends before its first step

    async def _after(
        self, before: asyncio.Task[None], kind: str, callback: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> None:
        await asyncio.wait([before])

        async def call() -> None:
            answer = callback(*arguments)
            if asyncio.iscoroutine(answer):
                await answer

        await self._finish(kind, call())

    async def _finish(self, kind: str, answer: Coroutine[Any, Any, Any]) -> None:
        call = id(answer)
        current_call.set(call)
        self._under_way.add(call)
        began = perf_counter()
        try:
            await answer
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if is_kind(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the loop ends
            self._report(kind, error)
        finally:
            self._under_way.discard(call)
            if self._report.observers:
                self._report.took(kind, perf_counter() - began)

    def _begin(self, key: str, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name="runcue callback")
        self._last[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))
        return task

    def _forget(self, key: str, done: asyncio.Task[None]) -> None:
        if self._last.get(key) is done:
            del self._last[key]


ON = {
    "started": "on_start",
    "completed": "on_complete",
    "failed": "on_failure",
    "skipped": "on_skip",
    "cancelled": "on_cancel",
    "backpressure_active": "on_backpressure",
    "pending_warning": "on_pending_warning",
    "stall_warning": "on_stall_warning",
    "group_done": "on_group_done",
}
