"""`runcue.map`: calls a function for many items, within limits, for scripts and notebooks.

Rules:
- The calling thread blocks and pulls the items itself, as they may depend on that thread. Everything else happens on
  a loop in another thread, so `map` also works where the calling thread runs a loop.
- A failure, an error in the items and Ctrl-C all end a batch early in one way: no more calls start, and running ones
  have `GRACE` seconds to end. A second Ctrl-C leaves them no time.
- In memory, items and results are passed on as they are. With a store both have to be JSON, and every item needs a
  key, by which a second run finds what is done.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import copy_context
from threading import Event, Thread
from typing import Any, Final, Literal, TypeVar, Unpack, overload

from runcue.api.cue import Cue
from runcue.api.mapping import InThread, Key, key_of
from runcue.api.progress import Bar, Tally
from runcue.api.signature import Duration, MapOptions, RateValue
from runcue.core.model.parse import key as parse_key
from runcue.core.model.record import Work, WorkState
from runcue.core.model.retry import Retry
from runcue.declare.options import choice
from runcue.engine.handler import is_async, spoken, takes, unwrapped, yields
from runcue.errors import (
    ConfigError,
    InvalidOption,
    SubmitError,
    WorkCancelled,
    WorkFailed,
    WorkTimedOut,
    quoted,
)
from runcue.host.loops import post_to_loop

logger = logging.getLogger("runcue")

Item = TypeVar("Item")
R = TypeVar("R")

NOT_DONE: Final = ...
"""The result of an item that was not done when Ctrl-C was pressed."""
GRACE: Final = 10.0
"""Seconds that running calls have left when the batch ends early."""
WINDOW: Final = 1000
"""How many items are submitted ahead of the results, at least."""


@overload
def map(  # noqa: A001
    function: Callable[[Item], Coroutine[Any, Any, R]],
    items: Iterable[Item],
    *,
    errors: Literal["raise"] = "raise",
    **options: Unpack[MapOptions],
) -> list[R]: ...
@overload
def map(  # noqa: A001
    function: Callable[[Item], R],
    items: Iterable[Item],
    *,
    errors: Literal["raise"] = "raise",
    **options: Unpack[MapOptions],
) -> list[R]: ...
@overload
def map(  # noqa: A001
    function: Callable[[Item], Any],
    items: Iterable[Item],
    *,
    errors: str,
    **options: Unpack[MapOptions],
) -> list[Any]: ...
def map(  # noqa: A001 (as runcue.map it stands beside the built-in one, and means the same)
    function: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    rate: RateValue | None = None,
    concurrent: int | None = 5,
    retry: int | Retry | dict[str, Any] | None = None,
    timeout: Duration | None = None,
    progress: bool = False,
    errors: str = "raise",
    store: str | os.PathLike[str] | None = None,
    key: Key | None = None,
) -> list[Any]:
    """Call `function(item)` for every item, within limits, and return the results in order.

    The first failure is raised (`errors="raise"`) or takes its place among the results (`"return"`), as `WorkFailed`.
    Ctrl-C returns the results so far, with `...` in all other places. With `store=` and `key=` a second run goes on
    where the first one ended.
    """
    cue = Cue(store, keep_finished=0, retention=None)
    if cue.path is not None and key is None:
        raise ConfigError(
            f"store={quoted(store)} needs a key=, by which the next run finds what is done: "
            "a function of an item that returns text, or the name of a key in each."
        )
    batch = Batch(function, items, key, cue.path is not None)
    batch.should_raise = choice(errors, "errors", ("raise", "return")) == "raise"
    cue.service(batch.name, rate=rate, concurrent=concurrent)
    cue.task(batch.name, uses=batch.name, retry=retry, timeout=timeout)(batch.handler)
    batch.window = max(WINDOW, 2 * concurrent if isinstance(concurrent, int) else 0)
    batch.is_drawn = bool(progress)
    return batch.run(cue)


class Batch:
    """One call of `map`. Each item has a label: its key, or else its number. Items that share one share one call."""

    should_raise = True
    is_drawn = False
    window = WINDOW

    def __init__(
        self, function: Callable[..., Any], items: Iterable[Any], key: Key | None, is_stored: bool
    ) -> None:
        _check_arguments(function, items, key)
        self._function = function
        self._items = items
        self._key = key
        self._is_stored = is_stored
        name = getattr(unwrapped(function), "__name__", "")
        self.name = name if name.isidentifier() else "map"
        self.handler: Callable[[Any], Any] = self._call_async if is_async(function) else self._call
        self._feed = InThread(self._pull(), is_served=True)
        self._labels: list[str] = []
        """The label of every item so far, in order."""
        self._values: dict[str, Any] = {}
        """The items by their labels."""
        self._outcomes: dict[str, Any] = {}
        """The results by label."""
        self._raised: dict[str, Exception] = {}
        """The exception of the latest attempt of each call."""
        self._failed = 0
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_halted = False
        self._over = Event()  # on Python 3.11, a thread whose join() was interrupted looks as if it had ended
        self._broken: BaseException | None = None

    # in the calling thread --------------------------------------------------------------------------------

    def run(self, cue: Cue) -> list[Any]:
        """The results of all items, in order."""
        thread = Thread(target=copy_context().run, args=(self._work, cue), name="runcue map", daemon=True)
        problem: BaseException | None = None
        thread.start()
        try:
            self._feed.serve()
            self._over.wait()
        except BaseException as error:  # noqa: BLE001 (Ctrl-C, or from the items: raised below)
            problem = error
            self._end_early()
        if isinstance(problem, KeyboardInterrupt):
            done, taken = len(self._outcomes), len(self._values)
            logger.warning("map(%s) was interrupted: %d done, %d not", self.name, done, taken - done)
            problem = None
        for ending in (problem, self._broken, self._failure):
            if ending is not None:
                raise ending
        return [self._outcomes.get(label, NOT_DONE) for label in self._labels]

    def _end_early(self) -> None:
        self._halt()
        try:
            self._over.wait()
        except KeyboardInterrupt:
            self._halt()
            self._over.wait()
            raise

    def _pull(self) -> Iterator[str]:
        """Yield the labels of items as they come, each once."""
        for number, item in enumerate(self._items):
            label = str(number) if self._key is None else parse_key(key_of(self._key, item, item, "item"))
            is_new = label not in self._values
            if is_new:
                self._values[label] = item
            elif self._values[label] != item:
                raise SubmitError(
                    f"items[{number}] has the key {quoted(label)} of another item. Make keys differ."
                )
            self._labels.append(label)
            if is_new:
                yield label

    def _halt(self) -> None:
        """Start no more calls; the second time, stop waiting for running ones, too."""
        self._is_halted = True
        if self._loop is not None and self._task is not None:
            post_to_loop(self._loop, self._task.cancel)

    # on the loop ------------------------------------------------------------------------------------------

    def _work(self, cue: Cue) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main(cue))
        except BaseException as error:  # noqa: BLE001 (raised in the calling thread)
            self._broken = error
        finally:
            self._over.set()
            self._feed.close()

    async def _main(self, cue: Cue) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        cue.on_complete(self._completed)  # after an early end `cue.map` reports no more results
        drawing: AbstractAsyncContextManager[Any] = Bar(self._look) if self.is_drawn else nullcontext()
        try:
            if not self._is_halted:
                async with drawing:
                    await self._map(cue)
        except asyncio.CancelledError:
            if not self._is_halted:
                raise

    async def _map(self, cue: Cue) -> None:
        key = str if self._is_stored else None
        labels: Any = self._feed
        cue.start()
        try:
            async for work in cue.map(self.name, labels, key=key, params=self._params, window=self.window):
                self._take_end(work)
                if self._failure is not None:
                    break
        finally:
            try:
                await cue.stop(GRACE)
            except asyncio.CancelledError:
                await cue.stop(0)
                raise
            finally:
                await cue.close()

    def _params(self, label: str) -> dict[str, Any]:
        return {"item": self._values[label] if self._is_stored else label}

    def _label_of(self, work: Work) -> str:
        return work.idempotency_key or "" if self._is_stored else str(work.params["item"])

    def _completed(self, work: Work, result: Any, duration: float) -> None:
        if (label := self._label_of(work)) in self._values:
            self._outcomes[label] = result

    def _take_end(self, work: Work) -> None:
        """Take in the unit of a call that has ended."""
        label = self._label_of(work)
        raised = self._raised.pop(label, None)
        if work.state is WorkState.COMPLETED:
            self._outcomes[label] = work.result
            return
        failure: WorkFailed | WorkCancelled
        if work.state is WorkState.CANCELLED:
            failure = WorkCancelled(work)
        else:
            failure = (WorkTimedOut if work.error == "timeout" else WorkFailed)(work)
        failure.__cause__ = raised
        self._outcomes[label] = failure
        self._failed += 1
        if self.should_raise:
            failure.add_note(f"(raised for the item {quoted(self._values[label])})")
            self._failure = failure

    async def _look(self) -> Tally:
        shared = len(self._labels) - len(self._values)
        total = len(self._items) - shared if isinstance(self._items, Sized) else None
        return Tally(len(self._outcomes), self._failed, total)

    # the calls themselves ---------------------------------------------------------------------------------

    def _call(self, work: Any) -> Any:
        label, item = self._begin(work)
        try:
            return self._function(item)
        except Exception as error:
            self._raised[label] = error
            raise

    async def _call_async(self, work: Any) -> Any:
        label, item = self._begin(work)
        try:
            return await self._function(item)
        except Exception as error:
            self._raised[label] = error
            raise

    def _begin(self, work: Any) -> tuple[str, Any]:
        label = self._label_of(work)
        self._raised.pop(label, None)
        return label, work.params["item"] if self._is_stored else self._values[label]


def _check_arguments(function: object, items: object, key: object) -> None:
    """Refuse arguments that could never work."""
    if not callable(function) or not takes(function, 1):
        raise ConfigError(f"map() calls a function with each item, which {spoken(function)} does not take.")
    if yields(function):
        raise ConfigError(f"{spoken(function)} yields, so that calling it does nothing. Return the result.")
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidOption("items", items, "an iterable of items")
    if key is not None and not isinstance(key, str) and (not callable(key) or is_async(key)):
        raise InvalidOption("key", key, "a plain function of an item, or the name of a key in each item")
