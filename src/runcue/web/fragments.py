"""Status and lists as HTML fragments, for pages that are composed of such fragments (htmx).

A fragment has tables and lists, whose ids and classes do not change between versions, and no script or style. All
values from a queue are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from urllib.parse import urlencode

from starlette.datastructures import Headers
from starlette.requests import Request

from runcue.web.shapes import Row, Schedule, Schedules, Service, Status, Works

COLUMNS = ("id", "task", "target", "state", "attempt", "created", "note")
SCHEDULE_COLUMNS = ("name", "task", "what", "when", "next", "last", "state")
VARY = {"Vary": "Accept, HX-Request"}
_quality = re.compile(r";\s*q=([01](?:\.\d{1,3})?)\s*(?:;|\Z)").search


def wants_html(headers: Headers) -> bool:
    """Whether a request prefers HTML to JSON, as browsers do, and htmx unless it asks for JSON."""
    accepted = ",".join(headers.getlist("accept")).lower()
    html, json = _wanted(accepted, "text/html"), _wanted(accepted, "application/json")
    if headers.get("hx-request") == "true":
        return html > 0 and html >= json
    return html > json


def _wanted(accepted: str, kind: str) -> float:
    """The quality of a content type in an Accept header, from 0 to 1; the most exact entry counts."""
    if not accepted.strip():
        return 1.0
    found = {}
    for one in accepted.split(","):
        quality = _quality(one)
        found[one.partition(";")[0].strip()] = 1.0 if quality is None else float(quality[1])
    names = (kind, f"{kind.partition('/')[0]}/*", "*/*")
    return next((found[name] for name in names if name in found), 0.0)


# what they show -------------------------------------------------------------------------------------------


def status_fragment(found: Status, request: Request) -> str:
    """The overview: counts, services, reasons for waiting, and dead letters by error."""
    counts = {state: getattr(found.counts, state) for state in found.counts.__struct_fields__}
    cells = [_tag("td", _text(count), class_=f"runcue-{state}") for state, count in counts.items()]
    services = [_cells(_service(one)) for one in found.services]
    if found.services_more:
        services.append(_cells([f"and {found.services_more:,} more", "", "", ""]))
    return _tag(
        "section",
        _table("runcue-counts", counts, [_tag("tr", *cells)]),
        _table("runcue-services", ("service", "running", "used", "state"), services),
        _list("runcue-waiting", (f"{one.count:,} × {one.text}" for one in found.waiting.reasons)),
        _list(
            "runcue-failures", (f"{one.count:,} × {one.task}: {one.error}" for one in found.failures.groups)
        ),
        id="runcue-status",
    )


def _service(one: Service) -> list[str]:
    running = f"{one.running}" if one.concurrent is None else f"{one.running} of {one.concurrent:g}"
    used = [f"{rate.used:.12g} of {rate.rate}" for rate in one.rates]
    used += [f"{part.used:.12g} of {part.limit:.12g} {part.name}" for part in one.quantities]
    state = "paused" if one.paused else (one.blocked or "available")
    return [one.name, running, ", ".join(used), state.replace("_", " ")]


def works_fragment(found: Works, request: Request) -> str:
    """A page of the list, and the link to the next page."""
    rows = [_work(one) for one in found.works]
    older = []
    if found.next is not None:
        asked = [(name, value) for name, value in request.query_params.multi_items() if name != "before"]
        following = f"{request.url.path}?{urlencode([*asked, ('before', found.next)], errors='replace')}"
        older = [_tag("a", "older", id="runcue-older", href=following)]
    return _tag("section", _table("runcue-list", COLUMNS, rows), *older, id="runcue-works")


def _work(one: Row) -> str:
    note = one.error or ("" if one.why is None else one.why.text) or ("skipped" if one.skipped else "")
    cells = [_tag("td", _text(text)) for text in (one.id, one.task, one.target or "", one.state, one.attempt)]
    return _tag(
        "tr",
        *cells,
        _tag("td", _time(one.created_at)),
        _tag("td", _text(note)),
        class_=f"runcue-{one.state}",
        data_id=one.id,
    )


def schedules_fragment(found: Schedules, request: Request) -> str:
    """The schedules: when their units come, how the last ones stand, and what is wrong."""
    rows = [_schedule(one) for one in found.schedules]
    if found.schedules_more:
        rows.append(_cells([f"and {found.schedules_more:,} more", *[""] * (len(SCHEDULE_COLUMNS) - 1)]))
    return _tag("section", _table("runcue-schedule-list", SCHEDULE_COLUMNS, rows), id="runcue-schedules")


def _schedule(one: Schedule) -> str:
    state = "paused" if one.paused else one.problem or ("over" if one.next_at is None else "active")
    last = [] if one.last_at is None else [_text(one.last_state or "no longer kept"), " ", _time(one.last_at)]
    return _tag(
        "tr",
        *(_tag("td", _text(text)) for text in (one.name, one.task, one.title, one.when)),
        _tag("td", *([] if one.next_at is None else [_time(one.next_at)])),
        _tag("td", *last),
        _tag("td", _text(state)),
        data_id=one.name,
    )


def _time(moment: float) -> str:
    at = datetime.fromtimestamp(moment, UTC)
    return _tag("time", f"{at:%Y-%m-%d %H:%M:%S} UTC", datetime=f"{at:%Y-%m-%dT%H:%M:%SZ}")


# how it is written ----------------------------------------------------------------------------------------


def _tag(name: str, *inside: str, **attributes: str) -> str:
    """An element. `inside` is HTML already; the values of attributes are escaped here."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{given}>{''.join(inside)}</{name}>"


def _text(value: object) -> str:
    return escape(str(value))


def _cells(texts: Iterable[str]) -> str:
    return _tag("tr", *(_tag("td", _text(text)) for text in texts))


def _table(id: str, columns: Iterable[str], rows: Iterable[str]) -> str:
    head = _tag("tr", *(_tag("th", _text(name), scope="col") for name in columns))
    return _tag("table", _tag("thead", head), _tag("tbody", *rows), id=id)


def _list(id: str, texts: Iterable[str]) -> str:
    return _tag("ul", *(_tag("li", _text(text)) for text in texts), id=id)
