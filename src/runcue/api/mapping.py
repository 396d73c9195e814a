"""`cue.map`: submits one unit for each item as there is room, and yields each unit as it ends.

Rules:
- Never more than `window` items are ahead of the caller's loop: asked for, submitted or ended, and not yielded yet.
  Items are pulled and submitted only while the caller's loop waits for the next unit, so a slow loop slows the map.
- As many units are yielded as there were items. Items that share a key share one unit, which is yielded for each.
- An item that cannot be pulled or submitted ends the pulling. The units before it are yielded first, as by the
  built-in `map`; then its error is raised.
- A loop that is left early revokes nothing: submitted units run on, and nothing more is submitted.
- A list and its like are pulled on the loop. Any other iterable may block, so it is pulled in a thread of its own;
  an async iterable in a task of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from runcue.api.submission import accept
from runcue.core.model import parse
from runcue.core.model.events import draft_of
from runcue.core.model.record import Record, Spec, Work
from runcue.engine.handler import is_async
from runcue.errors import ConfigError, InvalidOption, RuncueError, SubmitError, quoted
from runcue.host.loops import hold, post_to_loop

if TYPE_CHECKING:
    from runcue.api.wiring import System
    from runcue.core.schedule.plan import Plan
    from runcue.declare.registry import Registry

Params = Callable[[Any], dict[str, Any]]
Key = str | Callable[[Any], str | int]

NO_UNIT = ""
"""An id that no unit has."""
AT_HAND = (list, tuple, range, set, frozenset, deque)
"""Iterables that give their items without blocking."""


def works(
    system: System,
    registry: Registry,
    task: str | Callable[..., Any],
    items: Iterable[Any] | AsyncIterable[Any],
    key: Key | None,
    params: Params | None,
    window: int,
) -> AsyncIterator[Work]:
    """Yield the unit of each item as it ends; arguments are checked at once."""
    known = registry.get_task(task)
    name = "item" if known.parameters is None else next(iter(known.parameters.names), "item")
    form = Form(known.name, key, params, name)
    size = parse.number(window, "window", 1, parse.HIGHEST_LIMIT, whole=True)
    most = registry.options.max_queued
    if most is not None:  # more would be refused, or displace units of this map
        size = min(size, most)
    flow = Flow(system, registry, form, size)
    return flow.works(puller(items, flow.intake))


class Form:
    """Makes a submission of each item."""

    def __init__(self, task: str, key: Key | None, params: Params | None, name: str) -> None:
        """`name` is that of the param that an item goes into which is no dict of params."""
        for option, function in (("key", key), ("params", params)):
            may_be_text = option == "key" and isinstance(function, str)
            if function is not None and not may_be_text and (not callable(function) or is_async(function)):
                also = ", or the name of a param" if option == "key" else ""
                raise InvalidOption(option, function, f"a plain function of an item{also}")
        self._task = task
        self._key = key
        self._params = params
        self._name = name

    def entry(self, item: Any) -> dict[str, Any]:
        """The arguments of `submit` for one item."""
        if self._params is not None:
            params: Any = self._params(item)
        else:
            params = item if isinstance(item, dict) else {self._name: item}
        entry = {"task": self._task, "params": params}
        if self._key is not None:
            entry["idempotency_key"] = key_of(self._key, item, params, "params")
        return entry


def key_of(key: Key, item: object, fields: object, where: str) -> str:
    """The key of an item as text, from a function of the item or from one of its fields."""
    if callable(key):
        value: object = key(item)
        what = "key() returned"
    else:
        value = fields.get(key) if isinstance(fields, dict) else None
        what = f"{where}[{key!r}], which is the key, is"
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return str(value)
    raise SubmitError(f"{what} {quoted(value)}. Expected text or a whole number.")


# --- Where items come from ------------------------------------------------------------------------


class Intake:
    """The items that have come from a puller."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.items: deque[Any] = deque()
        self.asked = 0
        """How many items were asked for and have not come yet."""
        self.is_over = False
        self.error: BaseException | None = None
        """The error that ended the items, if one did."""
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


def puller(items: object, intake: Intake) -> Puller:
    """Choose the puller that fits the kind of iterable."""
    if isinstance(items, InThread):
        return items.connect(intake)
    if isinstance(items, AT_HAND):
        return AtHand(items, intake)
    if isinstance(items, AsyncIterable):
        return InTask(items, intake)
    if isinstance(items, Iterable) and not isinstance(items, (str, bytes, Mapping)):
        return InThread(items).connect(intake)
    raise InvalidOption("items", items, "an iterable of items, plain or async")


class AtHand:
    """Items that are there already, as in a list."""

    def __init__(self, items: Iterable[Any], intake: Intake) -> None:
        self._items = iter(items)
        self._intake = intake

    def ask(self, count: int) -> None:
        """Take so many items."""
        try:
            came = list(islice(self._items, count))
        except Exception as error:  # noqa: BLE001 (a list of the application's own class may raise anything)
            self._intake.end(error)
            return
        self._intake.put(came)
        if len(came) < count:
            self._intake.end()

    def close(self) -> None:
        """Do nothing: no task or thread runs."""


class InThread:
    """Items of an iterable that may block, pulled one after the other in one thread.

    With `is_served` the caller provides the thread, which calls `serve`.
    """

    _intake: Intake
    _loop: asyncio.AbstractEventLoop
    _release: Callable[[], None]

    def __init__(self, items: Iterable[Any], *, is_served: bool = False) -> None:
        self._items = items
        self._is_served = is_served
        self._asks: SimpleQueue[int] = SimpleQueue()
        self._came: deque[Any] = deque()
        self._is_notified = False
        """True while `_collect` is on its way to the loop."""
        self._is_closed = threading.Event()

    def connect(self, intake: Intake) -> InThread:
        """Pass the items to an intake on the running loop."""
        self._intake, self._loop = intake, asyncio.get_running_loop()
        return self

    def ask(self, count: int) -> None:
        """Have the thread pull so many items; on virtual time that takes no time."""
        if not self._is_served:
            self._is_served = True
            threading.Thread(target=self._run, name="runcue items", daemon=True).start()
        self._release = hold(self._loop)
        self._asks.put(count)

    def close(self) -> None:
        """End the thread as soon as the iterable returns."""
        self._is_closed.set()
        self._asks.put(0)

    def _run(self) -> None:
        try:
            self.serve()
        except BaseException as error:  # noqa: BLE001 (raised where items are read)
            post_to_loop(self._loop, self._served, True, error)

    def serve(self) -> None:
        """Pull items in this thread whenever they are asked for, until their end or `close`."""
        items, is_over = None, False
        while not is_over and (count := self._asks.get()):
            items = iter(self._items) if items is None else items
            is_over = self._pull(items, count)
            post_to_loop(self._loop, self._served, is_over)

    def _pull(self, items: Iterator[Any], count: int) -> bool:
        """Pull so many items; True when there are no more to pull."""
        pulled = 0
        if self._is_closed.is_set():
            return True
        for item in islice(items, count):
            pulled += 1
            self._came.append(item)
            if not self._is_notified:
                self._is_notified = True
                post_to_loop(self._loop, self._collect)
            if self._is_closed.is_set():
                return True
        return pulled < count

    def _collect(self) -> None:
        self._is_notified = False  # first: items that come from now on notify again
        came = []
        while self._came:
            came.append(self._came.popleft())
        self._intake.put(came)

    def _served(self, is_over: bool, error: BaseException | None = None) -> None:
        self._collect()
        self._release()
        if is_over:
            while not self._asks.empty():  # the thread has ended
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
            self._intake.end(error)
            raise
        except Exception as error:  # noqa: BLE001 (raised where items are read)
            self._intake.end(error)


Puller = AtHand | InThread | InTask
"""Gets as many items as it is asked for."""


# --- From items to units --------------------------------------------------------------------------


class Flow:
    """One `map`: its items on their way from the iterable to the caller."""

    def __init__(self, system: System, registry: Registry, form: Form, window: int) -> None:
        self._system = system
        self._registry = registry
        self._form = form
        self._view = registry.view
        self._window = window
        self._is_shared = not system.store.is_inline
        self._enough = max(1, window // 4)
        """The room that is worth asking for more items while units wait to be yielded."""
        self._bell = asyncio.Event()
        self.intake = Intake(self._bell.set)
        self._taken = 0
        """How many items were submitted."""
        self._futures: dict[str, asyncio.Future[Record | None]] = {}
        """Waits for units that another process may end; that of `NO_UNIT` ends only with the Cue."""
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
        listeners.append(self._take_ends)
        self._watch(NO_UNIT)
        try:
            while not self._is_over():
                self._bell.clear()
                if self._problem is None and not self.intake.is_over:
                    self._ask(source)
                if self._problem is None and self.intake.items:
                    await self._submit(source)
                while ended:
                    yield self._view(ended.popleft())
                    if self._room() >= self._enough:
                        break
                else:
                    if not self._is_over() and not self._room_for_more():
                        await self._bell.wait()
                if self._broken is not None:
                    raise self._broken
        finally:
            listeners.remove(self._take_ends)
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
        except Exception as error:  # noqa: BLE001 (from `key` or `params`: raised after the units before it)
            self._refuse(error, first + len(entries))
        make_id = self._system.id_maker()
        try:
            specs = self._registry.specs(entries, make_id)
        except (ConfigError, SubmitError):  # find the first wrong one
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
        """Listen for the end of these units and then submit them, so that no end is missed."""
        if not specs:
            return
        self._coming = {spec.id for spec in specs}
        for spec in specs:
            self._listen(spec.id)
        try:
            ids = await accept(self._system, self._registry, specs)
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
        """Yield those of these units, which existed before, that have ended."""
        found = await self._system.store.get_many(ids)
        for work_id in ids:
            record = found.get(work_id)
            if record is None:
                if work_id in self._waiting:
                    raise await self._system.queries.not_found(work_id)
            elif record.state.is_final:
                self._end(record)
            elif self._system.engine.attempts.is_own(record):
                raise RuncueError(f"Unit {work_id!r} waits for itself: its own handler cannot map over it.")

    # waiting for the end ----------------------------------------------------------------------------------

    def _listen(self, work_id: str) -> None:
        self._waiting[work_id] = 1
        self._outside += 1
        if self._is_shared:
            self._watch(work_id)

    def _unlisten(self, work_id: str) -> int:
        """Stop listening for a unit and return how many items waited for it."""
        count = self._waiting.pop(work_id, 0)
        self._outside -= count
        if self._is_shared and (future := self._futures.pop(work_id, None)) is not None:
            future.cancel()
        return count

    def _end(self, record: Record) -> None:
        """Yield a unit that has ended, once for each of its items."""
        for _ in range(self._unlisten(record.id)):
            self._ended.append(record)
        self._bell.set()

    def _take_ends(self, plan: Plan) -> None:
        """Take in the units that ended in a plan."""
        for event in plan.finals.values():
            record = draft_of(event).record
            if record is not None and record.id in self._waiting:
                self._end(record)

    def _watch(self, work_id: str) -> None:
        future = self._futures[work_id] = self._system.engine.waiters.final(work_id)
        future.add_done_callback(partial(self._watched, work_id))

    def _watched(self, work_id: str, future: asyncio.Future[Record | None]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._break(error)
        elif (record := future.result()) is not None:
            self._end(record)
        else:  # its record is gone, or was not stored yet
            self._watch(work_id)
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
