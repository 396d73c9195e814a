"""`cue.map`: one unit for each item, submitted as there is room, handed out as they end.

Rules:
- Never more than `window` items are ahead of whoever reads: asked for, submitted or ended, and not handed out yet.
  Nothing happens between two steps of the reader's loop but what was submitted before: a slow reader slows it down.
- As many units come out as items went in. Items that share a key share one unit, which comes once for each.
- What cannot be pulled or submitted ends the pulling. The items before it are handed out first, as by the built-in
  `map`; then its error is raised.
- Whoever leaves early takes nothing back: what was submitted runs on, and nothing more is submitted.
- A list and its like are pulled on the loop. Any other iterable may block, so it is pulled in a thread of its own;
  an async iterable in a task of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from runcue.core.model import parse
from runcue.core.model.events import draft_of
from runcue.core.model.record import Record, Spec, Work, view
from runcue.engine.handler import is_async
from runcue.errors import ConfigError, InvalidOption, RuncueError, SubmitError, quoted
from runcue.host.loops import hold, post_to_loop

if TYPE_CHECKING:
    from runcue.api.wiring import System
    from runcue.core.schedule.plan import Plan
    from runcue.declare.registry import Registry

Accept = Callable[[list[Spec]], Awaitable[list[str]]]
Params = Callable[[Any], dict[str, Any]]
Key = str | Callable[[Any], str | int]

NOBODY = ""
"""An id that no unit has."""
AT_HAND = (list, tuple, range, set, frozenset, deque)
"""Iterables that give their items without blocking."""


def works(
    system: System,
    registry: Registry,
    accept: Accept,
    task: str | Callable[..., Any],
    items: Iterable[Any] | AsyncIterable[Any],
    key: Key | None,
    params: Params | None,
    window: int,
) -> AsyncIterator[Work]:
    """Yield the unit of each item as it ends; arguments are checked at once."""
    form = Form(registry.get_task(task).name, key, params)
    size = parse.number(window, "window", 1, parse.HIGHEST_LIMIT, whole=True)
    most = registry.options.max_queued
    if most is not None:  # more would be refused, or drop units of this very map
        size = min(size, most)
    flow = Flow(system, registry, accept, form, size)
    return flow.works(puller(items, flow.intake))


class Form:
    """Makes a submission of each item."""

    def __init__(self, task: str, key: Key | None, params: Params | None) -> None:
        for name, function in (("key", key), ("params", params)):
            may_be_text = name == "key" and isinstance(function, str)
            if function is not None and not may_be_text and (not callable(function) or is_async(function)):
                also = ", or the name of a param" if name == "key" else ""
                raise InvalidOption(name, function, f"a plain function of an item{also}")
        self._task = task
        self._key = key
        self._params = params

    def entry(self, item: Any) -> dict[str, Any]:
        """The arguments of `submit` for one item."""
        if self._params is not None:
            params: Any = self._params(item)
        else:
            params = item if isinstance(item, dict) else {"item": item}
        entry = {"task": self._task, "params": params}
        if isinstance(self._key, str):
            value = params.get(self._key) if isinstance(params, dict) else None
            entry["idempotency_key"] = key_text(value, f"params[{self._key!r}], which is the key, is")
        elif self._key is not None:
            entry["idempotency_key"] = key_text(self._key(item), "key() returned")
        return entry


def key_text(value: object, what: str) -> str:
    """A key as text; whole numbers are fine, too."""
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return str(value)
    raise SubmitError(f"{what} {quoted(value)}. Expected text or a whole number.")


# --- Where items come from ------------------------------------------------------------------------


class Intake:
    """The items that were asked for, as they come in."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.items: deque[Any] = deque()
        self.asked = 0
        """How many items were asked for and have not come yet."""
        self.is_over = False
        self.error: BaseException | None = None
        """The error that ended the items early, if one did."""
        self._ring = ring

    def put(self, items: Iterable[Any]) -> None:
        """Take in items that have come."""
        before = len(self.items)
        self.items.extend(items)
        self.asked -= len(self.items) - before
        self._ring()

    def end(self, error: BaseException | None = None) -> None:
        """Note that no more items will come, and why."""
        self.asked = 0
        self.is_over = True
        self.error = error
        self._ring()


class Puller(Protocol):
    """Gets as many items as it is asked for."""

    def ask(self, count: int) -> None:
        """Get so many more items."""
        ...

    def close(self) -> None:
        """Stop getting items."""
        ...


def puller(items: object, intake: Intake) -> Puller:
    """Choose the puller that fits the kind of iterable."""
    if isinstance(items, AT_HAND):
        return AtHand(items, intake)
    if isinstance(items, AsyncIterable):
        return InTask(items, intake)
    if isinstance(items, Iterable) and not isinstance(items, (str, bytes, Mapping)):
        return InThread(items, intake)
    raise InvalidOption("items", items, "an iterable of items, plain or async")


class AtHand:
    """Items that are there already."""

    def __init__(self, items: Iterable[Any], intake: Intake) -> None:
        self._items = iter(items)
        self._intake = intake

    def ask(self, count: int) -> None:
        """Take so many items."""
        try:
            came = list(islice(self._items, count))
        except Exception as error:  # noqa: BLE001 (a list of somebody's own kind may raise anything)
            self._intake.end(error)
            return
        self._intake.put(came)
        if len(came) < count:
            self._intake.end()

    def close(self) -> None:
        """Nothing to end."""


class InThread:
    """Items of an iterable that may block, pulled one after the other in one thread."""

    def __init__(self, items: Iterable[Any], intake: Intake) -> None:
        self._items = items
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._asks: SimpleQueue[int] = SimpleQueue()
        self._came: deque[Any] = deque()
        self._is_told = False
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._release: Callable[[], None]

    def ask(self, count: int) -> None:
        """Let the thread pull so many items; on virtual time that takes no time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="runcue items", daemon=True)
            self._thread.start()
        self._release = hold(self._loop)
        self._asks.put(count)

    def close(self) -> None:
        """End the thread as soon as the iterable returns."""
        self._left.set()
        self._asks.put(0)

    def _serve(self) -> None:
        try:
            items = iter(self._items)
        except BaseException as error:  # noqa: BLE001 (raised where items are read)
            self._asks.get()
            post_to_loop(self._loop, self._served, True, error)
            return
        is_over = False
        while not is_over and (count := self._asks.get()):
            is_over, problem = self._pull(items, count)
            post_to_loop(self._loop, self._served, is_over, problem)

    def _pull(self, items: Any, count: int) -> tuple[bool, BaseException | None]:
        """Pull so many items; returns whether that was the end, and the error that caused it."""
        pulled = 0
        if self._left.is_set():
            return True, None
        try:
            for item in islice(items, count):
                pulled += 1
                self._came.append(item)
                if not self._is_told:
                    self._is_told = True
                    post_to_loop(self._loop, self._collect)
                if self._left.is_set():
                    return True, None
        except BaseException as error:  # noqa: BLE001 (raised where items are read)
            return True, error
        return pulled < count, None

    def _collect(self) -> None:
        self._is_told = False  # first: what comes from now on is told again
        came = []
        while self._came:
            came.append(self._came.popleft())
        self._intake.put(came)

    def _served(self, is_over: bool, error: BaseException | None) -> None:
        self._collect()
        self._release()
        if is_over:
            while not self._asks.empty():  # nobody serves these any more
                if self._asks.get():
                    self._release()
            self._intake.end(error)


class InTask:
    """Items of an async iterable, awaited one after the other."""

    def __init__(self, items: AsyncIterable[Any], intake: Intake) -> None:
        self._items = aiter(items)
        self._intake = intake
        self._wanted = 0
        self._task: asyncio.Task[None] | None = None

    def ask(self, count: int) -> None:
        """Await so many items."""
        self._wanted += count
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._pull(), name="runcue items")

    def close(self) -> None:
        """Stop awaiting items."""
        if self._task is not None:
            self._task.cancel()

    async def _pull(self) -> None:
        try:
            while self._wanted:
                item = await anext(self._items)
                self._wanted -= 1
                self._intake.put((item,))
        except StopAsyncIteration:
            self._intake.end()
        except asyncio.CancelledError as error:
            self._intake.end(error)  # whoever left does not look any more
            raise
        except Exception as error:  # noqa: BLE001 (raised where items are read)
            self._intake.end(error)


# --- From items to units --------------------------------------------------------------------------


class Flow:
    """One `map`: its items on their way from the iterable to the caller."""

    def __init__(self, system: System, registry: Registry, accept: Accept, form: Form, window: int) -> None:
        self._system = system
        self._registry = registry
        self._accept = accept
        self._form = form
        self._window = window
        self._is_shared = not system.store.is_inline
        self._enough = max(1, window // 4)
        """How much room makes it worthwhile to ask for more items while some units wait to be handed out."""
        self._bell = asyncio.Event()
        self.intake = Intake(self._bell.set)
        self._taken = 0
        """How many items were made into submissions."""
        self._futures: dict[str, asyncio.Future[Record | None]] = {}
        """Waits for units that another process may end; that of `NOBODY` only hears that the Cue is closed."""
        self._waiting: dict[str, int] = {}
        """How many items wait for each unit that has not ended."""
        self._coming: set[str] = set()
        """Ids that are being submitted and may not be stored yet."""
        self._finding: set[asyncio.Task[None]] = set()
        self._outside = 0
        """How many items wait for units that have not ended, in all."""
        self._ended: deque[Record] = deque()
        self._problem: BaseException | None = None
        self._broken: BaseException | None = None
        """The error after which no unit of this map will be reported."""

    async def works(self, source: Puller) -> AsyncIterator[Work]:
        """Yield every unit as it ends."""
        ended, listeners = self._ended, self._system.bus.listeners
        listeners.append(self._told)
        self._hear(NOBODY)
        try:
            while not self._is_over():
                self._bell.clear()
                if self._problem is None and not self.intake.is_over:
                    self._ask(source)
                if self._problem is None and self.intake.items:
                    await self._submit(source)
                while ended:
                    yield view(ended.popleft())
                    if self._room() >= self._enough:
                        break
                else:
                    if not self._is_over() and not self._room_for_more():
                        await self._bell.wait()
                if self._broken is not None:
                    raise self._broken
        finally:
            listeners.remove(self._told)
            source.close()
            for future in self._futures.values():
                future.cancel()
        problem = self.intake.error if self._problem is None else self._problem
        if problem is not None:
            raise problem

    def _room(self) -> int:
        return self._window - self.intake.asked - len(self.intake.items) - self._outside - len(self._ended)

    def _room_for_more(self) -> bool:
        return self._problem is None and not self.intake.is_over and self._room() > 0

    def _is_over(self) -> bool:
        is_dry = self.intake.is_over and not self.intake.items
        return (is_dry or self._problem is not None) and not self._outside and not self._ended

    def _ask(self, source: Puller) -> None:
        room = self._room()
        if room >= (self._enough if self._ended else 1):
            self.intake.asked += room
            source.ask(room)

    async def _submit(self, source: Puller) -> None:
        """Submit the items that have come, up to the first that is refused."""
        specs = self._specs()
        try:
            await self._put(specs)
        except SubmitError as error:
            if len(specs) > 1:
                await self._put_singly(specs)
            else:
                self._refuse(error, self._taken - 1)
        if self._problem is not None:
            source.close()
            self.intake.items.clear()

    def _specs(self) -> list[Spec]:
        """Check the items that have come, up to the first that is wrong."""
        items, first = self.intake.items, self._taken
        entries: list[dict[str, Any]] = []
        try:
            while items:
                entries.append(self._form.entry(items[0]))
                items.popleft()
        except Exception as error:  # noqa: BLE001 (from `key` or `params`: raised when it is its turn)
            self._refuse(error, first + len(entries))
        make_id = self._system.id_maker()
        try:
            specs = self._registry.specs(entries, make_id)
        except (ConfigError, SubmitError):  # one of them: the others are fine
            specs = []
            try:
                for entry in entries:
                    specs.append(self._registry.spec(make_id=make_id, **entry))
            except (ConfigError, SubmitError) as error:
                self._refuse(error, first + len(specs))
        self._taken += len(specs)
        return specs

    async def _put_singly(self, specs: list[Spec]) -> None:
        """Submit one by one the items that were refused together, up to the first that is refused."""
        first = self._taken - len(specs)
        for place, spec in enumerate(specs):
            try:
                await self._put([spec])
            except SubmitError as error:
                self._refuse(error, first + place)
                return

    def _refuse(self, error: Exception, place: int) -> None:
        """Take no item after this one."""
        if isinstance(error, (ConfigError, SubmitError)):
            error.args = (f"items[{place}]: {error}",)
        else:
            error.add_note(f"(raised for items[{place}] of a map)")
        self._problem = error

    async def _put(self, specs: list[Spec]) -> None:
        """Listen for the end of these units and then submit them, so that none can end unheard."""
        if not specs:
            return
        self._coming = {spec.id for spec in specs}
        for spec in specs:
            self._listen(spec.id)
        try:
            ids = await self._accept(specs)
        except BaseException:
            for spec in specs:
                self._unlisten(spec.id)
            raise
        finally:
            self._coming = set()
        known = []
        for spec, work_id in zip(specs, ids, strict=True):
            if spec.id == work_id:
                continue
            self._unlisten(spec.id)
            if work_id in self._waiting:
                self._waiting[work_id] += 1
                self._outside += 1
            else:
                self._listen(work_id)
                known.append(work_id)
        if known:
            await self._look_up(known)

    async def _look_up(self, ids: list[str]) -> None:
        """Hand out those of the units that existed before and have ended."""
        found = await self._system.store.get_many(ids)
        for work_id in ids:
            record = found.get(work_id)
            if record is None:
                if work_id in self._waiting:
                    raise await self._system.queries.not_found(work_id)
            elif record.state.is_final:
                self._end(record)
            elif self._system.engine.attempts.is_own(record):
                raise RuncueError(f"Work {work_id!r} waits for itself: its own handler cannot map over it.")

    # hearing of the end -----------------------------------------------------------------------------------

    def _listen(self, work_id: str) -> None:
        self._waiting[work_id] = 1
        self._outside += 1
        if self._is_shared:
            self._hear(work_id)

    def _unlisten(self, work_id: str) -> int:
        """Stop listening for a unit and return how many items waited for it."""
        count = self._waiting.pop(work_id, 0)
        self._outside -= count
        if self._is_shared and (future := self._futures.pop(work_id, None)) is not None:
            future.cancel()
        return count

    def _end(self, record: Record) -> None:
        """Hand out a unit that has ended, once for each of its items."""
        for _ in range(self._unlisten(record.id)):
            self._ended.append(record)
        self._bell.set()

    def _told(self, plan: Plan) -> None:
        """Take in the units that a turn of this process has ended."""
        for news in plan.finals.values():
            record = draft_of(news).record
            if record is not None and record.id in self._waiting:
                self._end(record)

    def _hear(self, work_id: str) -> None:
        future = self._futures[work_id] = self._system.engine.waiters.final(work_id)
        future.add_done_callback(partial(self._heard, work_id))

    def _heard(self, work_id: str, future: asyncio.Future[Record | None]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._break(error)
        elif (record := future.result()) is not None:
            self._end(record)
        else:  # gone; or it was looked for before it was there
            self._hear(work_id)
            if work_id not in self._coming:
                finding = asyncio.get_running_loop().create_task(self._find(work_id), name="runcue map")
                self._finding.add(finding)
                finding.add_done_callback(self._finding.discard)

    async def _find(self, work_id: str) -> None:
        try:
            await self._look_up([work_id])
        except (RuncueError, LookupError) as error:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        self._broken = error
        self._bell.set()
