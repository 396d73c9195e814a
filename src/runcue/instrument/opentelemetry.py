"""OpenTelemetry traces: one span for each attempt, which is the current span while its handler runs.

Rules:
- Each span begins a trace of its own: an attempt may run in another process than the submitter's, and long after it.
  Spans that the handler makes are its children, in coroutines and in threads.
- A failure sets the span's status and adds an exception event. A unit that is put off (snoozed, or rate limited) has
  not failed; an attempt that was cancelled, timed out or stopped is `given up`.
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
    """What `trace` needs of a Cue."""

    def around(self, function: Callable[[Any], AbstractContextManager[Any]], /) -> Any:
        """Enter the context manager that `function` returns around each attempt."""
        ...


def trace(cue: Traced, tracer: Tracer | None = None) -> None:
    """Make a span for each attempt of a Cue, with this tracer or the application's default one."""
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
                _note_error(span, error)
                raise
            span.set_attribute("runcue.outcome", "returned")

    cue.around(attempt)


def attributes_of(work: Work) -> dict[str, str | int | tuple[str, ...]]:
    """The attributes of a span, from the work unit of its attempt."""
    return {
        "runcue.work.id": work.id,
        "runcue.task": work.task,
        "runcue.queue": work.queue,
        "runcue.attempt": work.attempt,
        "runcue.services": work.services,
    }


def _note_error(span: Span, error: BaseException) -> None:
    """Note on the span how an attempt that raised has ended."""
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
