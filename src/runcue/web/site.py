"""One dashboard: what it looks at, who may come in, and what it answers at each address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs
from starlette.responses import Response

from runcue.web import actions
from runcue.web.broadcast import Broadcast, Overview
from runcue.web.describe import document
from runcue.web.fragments import status_fragment, works_fragment
from runcue.web.graph import graph_of
from runcue.web.guard import Refused
from runcue.web.printed import shown
from runcue.web.rows import detail_of, rows_of, service_of, why_of
from runcue.web.search import some
from runcue.web.shapes import (
    Bulk,
    Changed,
    EventsQuery,
    Failures,
    Limits,
    LinkQuery,
    Nothing,
    One,
    Outcome,
    Output,
    OutputQuery,
    Paused,
    Service,
    Services,
    Status,
    WorkPage,
    Works,
    WorksQuery,
)
from runcue.web.streams import Events, LiveResponse, Seats, live
from runcue.web.table import STREAM, Call, Line

if TYPE_CHECKING:
    from runcue.web.guard import Keeper
    from runcue.web.source import Source

STATIC = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


class Site:
    """The parts of one dashboard."""

    def __init__(self, source: Source, keeper: Keeper, read_only: bool) -> None:
        self.source = source
        self.keeper = keeper
        self.seats = Seats()
        self.overview = Overview(source, read_only)
        self.broadcast = Broadcast(self.overview)
        self.events = Events(source, self.overview.clock, keeper.log_limit)

    def changed(self) -> None:
        """Something was changed from here: whoever watches sees it at once."""
        self.broadcast.hurry()

    def begin(self) -> None:
        """Be there for whoever comes, also after an end."""
        self.broadcast.begin()
        self.events.begin()

    def end_streams(self) -> None:
        """Send everybody away who has a connection open."""
        self.broadcast.end()
        self.events.end()

    async def close(self) -> None:
        """Let go of everything."""
        self.end_streams()
        await self.source.close()


# looking --------------------------------------------------------------------------------------------------


async def page(call: Call) -> Response:
    """The dashboard itself."""
    return _file("index.html")


async def static(call: Call) -> Response:
    """A part of the page."""
    return _file(call.name)


def _file(name: str) -> Response:
    kind = KINDS.get(Path(name).suffix)
    if kind is None or name not in os.listdir(STATIC):  # noqa: PTH208 (names alone, compared as text)
        raise Refused(404, "There is no such file.")
    return Response((STATIC / name).read_bytes(), headers={"Content-Type": kind})


async def status(call: Call) -> Status:
    """Everything at a glance."""
    return structs.replace(await call.site.overview.status(), sample=UNSET)


async def services(call: Call) -> Services:
    """The services."""
    found = await call.site.overview.status()
    return Services(services=found.services, services_more=found.services_more)


async def failures(call: Call) -> Failures:
    """The dead letters by error."""
    return (await call.site.overview.status()).failures


async def stream_status(call: Call) -> Response:
    """The overview as it changes."""
    return LiveResponse(live(call.site.broadcast), call.site.seats, call.peer)


async def works(call: Call) -> Works:
    """A list of units."""
    source, clock, query = call.site.source, call.site.overview.clock, call.query
    now = await source.now()
    clock.tell(now)
    found, is_more = await some(source, **structs.asdict(query))
    pending = [work.id for work in found if work.state == "pending"]
    whys = await source.explain_many(pending) if pending else {}
    reasons = {work_id: why_of(why, clock, now) for work_id, why in whys.items()}
    return Works(works=await rows_of(found, clock, reasons), next=found[-1].id if is_more else None)


async def work(call: Call) -> WorkPage:
    """All about one unit."""
    source, clock = call.site.source, call.site.overview.clock
    found = await source.get(call.name)
    if found is None:
        raise actions.no_work(call.name)
    now = await source.now()
    clock.tell(now)
    why = why_of(await source.explain(found.id), clock, now) if found.state == "pending" else None
    return WorkPage(
        work=detail_of(found, clock, why),
        graph=await graph_of(source, found),
        output=await source.streams(found),
    )


async def output(call: Call) -> Output:
    """A piece of what a command printed."""
    source, query = call.site.source, call.query
    attempt = query.attempt
    found = await source.get(call.name)
    if found is None:
        raise actions.no_work(call.name)
    if attempt is None:
        attempt = found.attempt
    part = await source.output(found.id, query.stream, attempt, query.start, query.tail)
    return shown(part, query.tail, is_over=attempt != found.attempt or found.state != "running")


async def stream_events(call: Call) -> Response:
    """What happens, as it happens."""
    site = call.site
    site.seats.check(call.peer)
    types, since = await site.events.start_of(call.query, call.request.headers.get("last-event-id"))
    return LiveResponse(site.events.sse(types, since), site.seats, call.peer)


async def metrics(call: Call) -> Response:
    """The numbers for Prometheus."""
    body, kind = await call.site.source.metrics()
    return Response(body, headers={"Content-Type": kind})


async def openapi(call: Call) -> dict[str, Any]:
    """This description."""
    return document(TABLE)


# operating ------------------------------------------------------------------------------------------------


def _one(verb: str) -> Any:
    async def act(call: Call) -> Changed:
        changed = await actions.one(call.site.source, verb, call.name, call.body.cascade)
        call.site.changed()
        return Changed(changed=changed)

    return act


def _many(verb: str) -> Any:
    async def act(call: Call) -> Outcome:
        answer = await actions.many(call.site.source, verb, call.body)
        call.site.changed()
        return answer

    return act


def _hold(kind: str, is_held: bool) -> Any:
    async def act(call: Call) -> Paused:
        paused = await actions.hold(call.site.source, kind, call.name, is_held)
        call.site.changed()
        return Paused(paused=paused)

    return act


async def set_limits(call: Call) -> Service:
    """Change the limits of a service by hand."""
    source = call.site.source
    await actions.set_limits(source, call.name, call.body)
    call.site.changed()
    for found in await source.services():
        if found["name"] == call.name:
            return service_of(found, call.site.overview.clock)
    raise actions.no_service(call.name)


TABLE = (
    Line("GET", "/", page, "The dashboard", query=LinkQuery, kind="text/html"),
    Line("GET", "/static/{name}", static, "A part of the page", kind="*/*"),
    Line("GET", "/status", status, "Everything at a glance", Status, fragment=status_fragment),
    Line("GET", "/live", stream_status, "The overview as it changes (server-sent events)", kind=STREAM),
    Line("GET", "/services", services, "The services", Services),
    Line("GET", "/failures", failures, "The dead letters by error", Failures),
    Line("GET", "/events", stream_events, "What happens (server-sent events)", query=EventsQuery, kind=STREAM),
    Line("GET", "/metrics", metrics, "Numbers for Prometheus", kind="text/plain"),
    Line("GET", "/openapi.json", openapi, "This description", dict[str, Any]),
    Line("GET", "/works", works, "A list of units, newest first", Works, query=WorksQuery, fragment=works_fragment),
    *(
        Line("POST", f"/works/{verb}", _many(verb), f"{verb.title()} all units of a filter", Outcome, body=Bulk)
        for verb in actions.STATES
    ),
    *(
        Line("POST", f"/works/{{name:path}}/{verb}", _one(verb), f"{verb.title()} one unit", Changed, body=One)
        for verb in actions.STATES
    ),
    Line("GET", "/works/{name:path}/output", output, "What a command printed", Output, query=OutputQuery),
    Line("GET", "/works/{name:path}", work, "All about one unit", WorkPage),
    *(
        Line("POST", f"/{kind}s/{{name:path}}/{verb}", _hold(kind, verb == "pause"), f"{verb.title()} a {kind}",
             Paused, body=Nothing)
        for kind in ("service", "queue")
        for verb in ("pause", "resume")
    ),
    Line("PATCH", "/services/{name:path}", set_limits, "Change the limits of a service", Service, body=Limits),
)  # fmt: skip
"""Every address. The first that fits counts."""
