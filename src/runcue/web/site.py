"""One dashboard: its queue, its access rules, and what it answers at each address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs
from starlette.responses import Response

from runcue.web import actions, shapes
from runcue.web.broadcast import Broadcast, Overview
from runcue.web.describe import document
from runcue.web.fragments import schedules_fragment, status_fragment, works_fragment
from runcue.web.graph import graph_of
from runcue.web.guard import Refused
from runcue.web.printed import shown
from runcue.web.rows import detail_of, group_of, rows_of, schedule_of, service_of, why_of
from runcue.web.search import some
from runcue.web.streams import Events, LiveResponse, Seats, live
from runcue.web.table import STREAM, Call, Line

if TYPE_CHECKING:
    from runcue.web.file import Source
    from runcue.web.guard import Access

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

    def __init__(self, source: Source, access: Access, read_only: bool) -> None:
        self.source = source
        self.access = access
        self.seats = Seats()
        self.overview = Overview(source, read_only)
        self.broadcast = Broadcast(self.overview)
        self.events = Events(source, self.overview.clock, access.log_limit)

    def changed(self) -> None:
        """Show a change that was made here to all who watch, at once."""
        self.broadcast.hurry()

    def begin(self) -> None:
        """Accept live connections, also after `end_streams`."""
        self.broadcast.begin()
        self.events.begin()

    def end_streams(self) -> None:
        """End all live connections."""
        self.broadcast.end()
        self.events.end()

    async def close(self) -> None:
        """End all live connections, and close the queue."""
        self.end_streams()
        await self.source.close()


# looking --------------------------------------------------------------------------------------------------


async def page(call: Call) -> Response:
    """The page of the dashboard."""
    return _file("index.html")


async def static(call: Call) -> Response:
    """A file of the page."""
    return _file(call.name)


def _file(name: str) -> Response:
    kind = KINDS.get(Path(name).suffix)
    if kind is None or name not in os.listdir(STATIC):  # noqa: PTH208 (names alone, compared as text)
        raise Refused(404, "There is no such file.")
    return Response((STATIC / name).read_bytes(), headers={"Content-Type": kind})


async def status(call: Call) -> shapes.Status:
    """The overview, without the sample that only the live stream has."""
    return structs.replace(await call.site.overview.status(), sample=UNSET)


async def services(call: Call) -> shapes.Services:
    """The services."""
    found = await call.site.overview.status()
    return shapes.Services(services=found.services, services_more=found.services_more)


async def failures(call: Call) -> shapes.Failures:
    """The dead letters by error."""
    return (await call.site.overview.status()).failures


async def schedules(call: Call) -> shapes.Schedules:
    """The schedules."""
    clock = call.site.overview.clock
    found = await call.site.source.schedules()
    clock.tell(found.now)
    return shapes.Schedules(
        schedules=[schedule_of(one, found.last.get(one.last_id or ""), clock) for one in found.first],
        schedules_more=found.amount - len(found.first),
    )


async def stream_status(call: Call) -> Response:
    """The overview as it changes."""
    return LiveResponse(live(call.site.broadcast), call.site.seats, call.peer)


async def works(call: Call) -> shapes.Works:
    """A list of units."""
    source, clock, query = call.site.source, call.site.overview.clock, call.query
    now = await source.now()
    clock.tell(now)
    found, is_more = await some(source, **structs.asdict(query))
    pending = [work.id for work in found if work.state == "pending"]
    whys = await source.explain_many(pending) if pending else {}
    reasons = {work_id: why_of(why, clock, now) for work_id, why in whys.items()}
    counts = None if query.group is None else await source.group(query.group)
    return shapes.Works(
        works=await rows_of(found, clock, reasons),
        next=found[-1].id if is_more else None,
        group=None if counts is None else group_of(query.group, counts),
    )


async def work(call: Call) -> shapes.WorkPage:
    """One unit with its graph and its output."""
    source, clock = call.site.source, call.site.overview.clock
    found = await source.get(call.name)
    if found is None:
        raise actions.no_work(call.name)
    now = await source.now()
    clock.tell(now)
    why = why_of(await source.explain(found.id), clock, now) if found.state == "pending" else None
    return shapes.WorkPage(
        work=detail_of(found, clock, why),
        graph=await graph_of(source, found),
        output=await source.streams(found),
    )


async def output(call: Call) -> shapes.Output:
    """A piece of a command's output."""
    source, query = call.site.source, call.query
    found = await source.get(call.name)
    if found is None:
        raise actions.no_work(call.name)
    attempt = found.attempt if query.attempt is None else query.attempt
    part = await source.output(found.id, query.stream, attempt, query.start, query.tail)
    return shown(part, query.tail, is_over=attempt != found.attempt or found.state != "running")


async def stream_events(call: Call) -> Response:
    """The events as they happen."""
    site = call.site
    site.seats.check(call.peer)
    types, since = await site.events.start_of(call.query, call.request.headers.get("last-event-id"))
    return LiveResponse(site.events.sse(types, since), site.seats, call.peer)


async def metrics(call: Call) -> Response:
    """The metrics for Prometheus."""
    body, kind = await call.site.source.metrics()
    return Response(body, headers={"Content-Type": kind})


async def openapi(call: Call) -> dict[str, Any]:
    """The OpenAPI document."""
    return document(TABLE)


# operating ------------------------------------------------------------------------------------------------


def _one(verb: str) -> Any:
    async def act(call: Call) -> shapes.Changed:
        changed = await actions.one(call.site.source, verb, call.name, call.body.cascade)
        call.site.changed()
        return shapes.Changed(changed=changed)

    return act


def _many(verb: str) -> Any:
    async def act(call: Call) -> shapes.Outcome:
        answer = await actions.many(call.site.source, verb, call.body)
        call.site.changed()
        return answer

    return act


def _hold(kind: str, is_held: bool) -> Any:
    async def act(call: Call) -> shapes.Paused:
        paused = await actions.hold(call.site.source, kind, call.name, is_held)
        call.site.changed()
        return shapes.Paused(paused=paused)

    return act


def _hold_schedule(is_held: bool) -> Any:
    async def act(call: Call) -> shapes.Paused:
        return shapes.Paused(paused=await actions.hold_schedule(call.site.source, call.name, is_held))

    return act


async def run_schedule(call: Call) -> shapes.Submitted:
    """Submit a unit of a schedule now."""
    work_id = await actions.run_schedule(call.site.source, call.name)
    call.site.changed()
    return shapes.Submitted(id=work_id)


async def set_limits(call: Call) -> shapes.Service:
    """Change the limits of a service by hand."""
    source = call.site.source
    await actions.set_limits(source, call.name, call.body)
    call.site.changed()
    for found in await source.services():
        if found["name"] == call.name:
            return service_of(found, call.site.overview.clock)
    raise actions.no_service(call.name)


TABLE = (
    Line("GET", "/", page, "The dashboard", query=shapes.LinkQuery, kind="text/html"),
    Line("GET", "/static/{name}", static, "A part of the page", kind="*/*"),
    Line("GET", "/status", status, "Everything at a glance", shapes.Status, fragment=status_fragment),
    Line("GET", "/live", stream_status, "The overview as it changes (server-sent events)", kind=STREAM),
    Line("GET", "/services", services, "The services", shapes.Services),
    Line("GET", "/schedules", schedules, "The schedules", shapes.Schedules, fragment=schedules_fragment),
    Line("GET", "/failures", failures, "The dead letters by error", shapes.Failures),
    Line("GET", "/events", stream_events, "What happens (server-sent events)", query=shapes.EventsQuery, kind=STREAM),
    Line("GET", "/metrics", metrics, "Numbers for Prometheus", kind="text/plain"),
    Line("GET", "/openapi.json", openapi, "This description", dict[str, Any]),
    Line("GET", "/works", works, "A list of units, newest first", shapes.Works, query=shapes.WorksQuery,
         fragment=works_fragment),
    *(
        Line("POST", f"/works/{verb}", _many(verb), f"{verb.title()} all units of a filter", shapes.Outcome,
             body=shapes.Bulk)
        for verb in actions.STATES
    ),
    *(
        Line("POST", f"/works/{{name:path}}/{verb}", _one(verb), f"{verb.title()} one unit", shapes.Changed,
             body=shapes.One)
        for verb in actions.STATES
    ),
    Line("GET", "/works/{name:path}/output", output, "What a command printed", shapes.Output,
         query=shapes.OutputQuery),
    Line("GET", "/works/{name:path}", work, "All about one unit", shapes.WorkPage),
    *(
        Line("POST", f"/{kind}s/{{name:path}}/{verb}", _hold(kind, verb == "pause"), f"{verb.title()} a {kind}",
             shapes.Paused, body=shapes.Nothing)
        for kind in ("service", "queue")
        for verb in ("pause", "resume")
    ),
    *(
        Line("POST", f"/schedules/{{name:path}}/{verb}", _hold_schedule(verb == "pause"),
             f"{verb.title()} a schedule", shapes.Paused, body=shapes.Nothing)
        for verb in ("pause", "resume")
    ),
    Line("POST", "/schedules/{name:path}/run", run_schedule, "Submit a unit of a schedule now", shapes.Submitted,
         body=shapes.Nothing),
    Line("PATCH", "/services/{name:path}", set_limits, "Change the limits of a service", shapes.Service,
         body=shapes.Limits),
)  # fmt: skip
"""Every address. The first line that matches a request answers it."""
