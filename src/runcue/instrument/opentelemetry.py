"""Traces by OpenTelemetry: one span for each attempt, current while its handler runs.

Rules:
- A span begins a trace of its own: an attempt may run long after whoever submitted its work is gone, and in another
  process. Spans that the handler makes are its children, in a coroutine as in a thread.
- A failure is the span's status and an exception event. Work that is only put off (a snooze, a busy far side) did not
  fail; an attempt that was cancelled, timed out or stopped was given up.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from runcue.core.model.failure import describe, is_kind
from runcue.core.model.record import Work
from runcue.errors import ConfigError, RateLimited, Snooze

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class Traced(Protocol):
    """What can be traced: a Cue."""

    def around(self, function: Callable[[Any], AbstractContextManager[Any]], /) -> Any:
        """Enter what that function makes around each attempt."""
        ...


def trace(cue: Traced, tracer: Tracer | None = None) -> None:
    """Make a span for each attempt of that Cue, with this tracer or the application's usual one."""
    try:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, get_tracer, use_span
    except ImportError:
        raise ConfigError('trace() needs opentelemetry-api: pip install "runcue[otel]"') from None

    @contextmanager
    def attempt(work: Work) -> Iterator[Span]:
        own = get_tracer("runcue") if tracer is None else tracer
        span = own.start_span(work.task, Context(), SpanKind.CONSUMER, attributes_of(work))
        with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                _say(span, error)
                raise
            span.set_attribute("runcue.outcome", "returned")

    cue.around(attempt)


def attributes_of(work: Work) -> dict[str, str | int | tuple[str, ...]]:
    """What a span tells of its work."""
    return {
        "runcue.work.id": work.id,
        "runcue.task": work.task,
        "runcue.queue": work.queue,
        "runcue.attempt": work.attempt,
        "runcue.services": work.services,
    }


def _say(span: Span, error: BaseException) -> None:
    """How an attempt ended that did not return."""
    from opentelemetry.trace import Status, StatusCode

    if is_kind(error, (Snooze, RateLimited)):
        span.set_attribute("runcue.outcome", "put off")
        return
    if is_kind(error, CancelledError):
        span.set_attribute("runcue.outcome", "given up")
        span.set_status(Status(StatusCode.ERROR, "given up: cancelled, timed out or stopped"))
        return
    span.set_attribute("runcue.outcome", "raised")
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, describe(error)))
