"""What runs on a Dask worker: one call of a handler, which begins only when the owner of the call allows it.

    worker ──ask──▶ owner ──go or no──▶ worker ──begun, progress …──▶ owner
                                           └── the answer: what Dask keeps as the result of its task

- Slow preparations (imports, unpickling) come before the worker asks. After "go" nothing is left but the call.
- Dask may run a task again by itself: when a worker is lost, or the result with it. The owner says "go" once for each
  call, so that the second run ends here and the handler is never called twice.
- The owner listens to a topic of the scheduler's event log, and answers with events of the scheduler: worker and
  owner need no connection to each other. No answer within `PATIENCE` means "no": the owner is gone, or stuck.
- A call always returns bytes: a letter, and the result or exception as process/answer.py packs it.

executor.py sends `call` to the workers by name: runcue has to be installed there.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from uuid import uuid4

from distributed import get_worker
from distributed.utils import sync

from runcue.core.model.failure import describe
from runcue.core.model.record import Work
from runcue.errors import Permanent
from runcue.executors.process.answer import pack_error, pack_result
from runcue.executors.process.reporter import Reporter, pool_work
from runcue.ports import unit_elsewhere

ASK, BEGUN, SAID = "ask", "begun", "said"
RESULT, ERROR, REFUSED = b"r", b"e", b"n"

NO = "-no"
"""The suffix of the event that, set beside that of a ticket, means "no"."""
PATIENCE = 30.0
"""Seconds that a worker waits for the owner's "go" or "no"."""
KEPT_FUNCTIONS = 256


def call(topic: str, key: str, body: bytes) -> bytes:
    """Call a handler for the owner that listens to `topic`; its result or exception is the answer."""
    worker: Any = get_worker()
    try:
        handler, values = pickle.loads(body)
        function = _imported(handler)
        if not _may_begin(worker, topic, key):
            return REFUSED
        reporter = Reporter(
            lambda verb, words: worker.log_event(topic, [SAID, key, pickle.dumps((verb, words))])
        )
        work = pool_work(values, reporter)
        worker.log_event(topic, [BEGUN, key])
        return RESULT + pack_result(function(work))
    except BaseException as error:  # noqa: BLE001 (anything that a function raises is its answer)
        return ERROR + pack_error(error, __file__)
    finally:
        unit_elsewhere.set(None)


def _may_begin(worker: Any, topic: str, key: str) -> bool:
    """Ask the owner, which says "go" at most once for each call."""
    ticket = f"runcue-{uuid4().hex}"
    worker.log_event(topic, [ASK, key, ticket, worker.contact_address])
    answer: bool = sync(worker.loop, _answered, worker.scheduler, ticket)
    return answer


async def _answered(scheduler: Any, ticket: str) -> bool:
    if not await scheduler.event_wait(name=ticket, timeout=PATIENCE):
        return False
    is_refused: bool = await scheduler.event_is_set(name=ticket + NO)
    await scheduler.event_clear(name=ticket)
    if is_refused:
        await scheduler.event_clear(name=ticket + NO)
    return not is_refused


@lru_cache(maxsize=KEPT_FUNCTIONS)
def _imported(handler: bytes) -> Callable[[Work], Any]:
    try:
        function: Callable[[Work], Any] = pickle.loads(handler)
    except Exception as error:
        raise Permanent(
            f"its handler cannot be imported on the Dask worker ({describe(error)}): install its module there"
        ) from error
    return function
