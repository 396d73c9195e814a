"""Traces: one span for each attempt, current while its handler runs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, Tracer

import runcue
from runcue import ConfigError, Cue, RunningWork
from runcue.instrument.opentelemetry import trace
from tests.instrument.seen import BOUND, until


class Traces:
    """A tracer, and the spans it made."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer: Tracer = provider.get_tracer("tests")

    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in this order."""
        return list(self._kept.get_finished_spans())


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture(params=["memory", "file"])
async def cue(request: pytest.FixtureRequest, tmp_path: Path, traces: Traces) -> AsyncIterator[Cue]:
    one = Cue() if request.param == "memory" else Cue(tmp_path / "queue.db")
    trace(one, traces.tracer)
    yield one
    await one.close()


def context(span: ReadableSpan) -> SpanContext:
    known = span.get_span_context()
    assert known is not None
    return known


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_an_attempt_is_a_span_with_its_work(cue: Cue, traces: Traces) -> None:
    cue.service("api", concurrent=1)

    @cue.task(uses="api")
    async def call(work: RunningWork) -> str:
        return "done"

    async with cue:
        await cue.submit(call, id="page-7", queue="night")
        assert await cue.result("page-7", timeout=BOUND) == "done"
    [span] = traces.spans()
    assert span.name == "call"
    assert span.kind is SpanKind.CONSUMER
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "runcue.work.id": "page-7",
        "runcue.task": "call",
        "runcue.queue": "night",
        "runcue.attempt": 1,
        "runcue.services": ("api",),
        "runcue.outcome": "returned",
    }


@pytest.mark.parametrize("where", ["coroutine", "thread"])
async def test_spans_of_the_handler_are_its_children(cue: Cue, traces: Traces, where: str) -> None:
    @cue.task
    async def coroutine(work: RunningWork) -> None:
        with traces.tracer.start_as_current_span("inner"):
            await asyncio.sleep(0)

    @cue.task
    def thread(work: RunningWork) -> None:
        with traces.tracer.start_as_current_span("inner"):
            pass

    async with cue:
        await cue.submit(where)
        await cue.join(timeout=BOUND)
    inner, outer = traces.spans()
    assert inner.parent is not None
    assert inner.parent.span_id == context(outer).span_id
    assert api.get_current_span() is api.INVALID_SPAN


async def test_works_side_by_side_have_their_own_spans(cue: Cue, traces: Traces) -> None:
    together = asyncio.Barrier(3)

    @cue.task
    async def call(work: RunningWork) -> None:
        await together.wait()
        with traces.tracer.start_as_current_span(f"inner {work.id}"):
            await together.wait()

    async with cue:
        await cue.submit_many({"task": "call", "id": name} for name in "abc")
        await cue.join(timeout=BOUND)
    outer = {
        context(span).span_id: attributes(span)["runcue.work.id"]
        for span in traces.spans()
        if span.name == "call"
    }
    inner = {span.name: outer[span.parent.span_id] for span in traces.spans() if span.parent is not None}
    assert inner == {"inner a": "a", "inner b": "b", "inner c": "c"}


async def test_each_attempt_begins_a_trace_wherever_the_cue_was_started(cue: Cue, traces: Traces) -> None:
    @cue.task(retry=runcue.Retry(max_attempts=2, base_delay=0.0))
    async def call(work: RunningWork) -> None:
        if work.attempt == 1:
            raise OSError

    with traces.tracer.start_as_current_span("start-up"):
        async with cue:
            await cue.submit(call)
            await cue.join(timeout=BOUND)
    one, two, _ = traces.spans()
    assert [attributes(span)["runcue.attempt"] for span in (one, two)] == [1, 2]
    assert one.parent is None
    assert two.parent is None
    assert len({context(span).trace_id for span in traces.spans()}) == 3


async def test_a_failure_is_the_status_and_an_exception(cue: Cue, traces: Traces) -> None:
    @cue.task
    async def call(work: RunningWork) -> None:
        raise OSError("disk full")

    async with cue:
        await cue.submit(call)
        await cue.join(timeout=BOUND)
    [span] = traces.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "OSError: disk full"
    [event] = span.events
    assert event.name == "exception"
    assert dict(event.attributes or {})["exception.message"] == "disk full"
    assert attributes(span)["runcue.outcome"] == "raised"


@pytest.mark.parametrize("signal", [runcue.Snooze(3600), runcue.RateLimited(3600)])
async def test_to_be_put_off_is_no_failure(cue: Cue, traces: Traces, signal: Exception) -> None:
    cue.service("api", concurrent=1)

    @cue.task(uses="api")
    async def call(work: RunningWork) -> None:
        raise signal

    async with cue:
        await cue.submit(call)
        await until(cue, "started")
    [span] = traces.spans()
    assert span.status.status_code is StatusCode.UNSET
    assert span.events == ()
    assert attributes(span)["runcue.outcome"] == "put off"


async def test_an_attempt_that_is_given_up_says_so(cue: Cue, traces: Traces) -> None:
    @cue.task
    async def call(work: RunningWork) -> None:
        await asyncio.Event().wait()

    async with cue:
        work_id = await cue.submit(call)
        await until(cue, "started")
        await cue.cancel(work_id)
        await cue.join(timeout=BOUND)
    [span] = traces.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "given up: cancelled, timed out or stopped"
    assert attributes(span)["runcue.outcome"] == "given up"


async def test_without_a_tracer_the_usual_one_is_asked() -> None:
    cue = Cue()
    trace(cue)

    @cue.task
    async def call(work: RunningWork) -> bool:
        return api.get_current_span().is_recording()

    async with cue:
        assert await cue.result(await cue.submit(call), timeout=BOUND) is False


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError) as caught:
        trace(Cue())
    assert str(caught.value) == 'trace() needs opentelemetry-api: pip install "runcue[otel]"'
