"""Schedules as they are shown, and what can be done to one, for queuectl and runcue alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from runcue.cli.place import MANY, File, Place, ask, hiding, migrated
from runcue.cli.screen import clean, in_table, is_terminal, moment, note, say, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue
    from runcue import Cue

HEADS: Final = ("NAME", "WHEN", "NEXT", "LAST", "STATE")
MASK: Final = "***"
TAG: Final = "schedule"
"""The tag that the units of a schedule have: its value is the name of the schedule."""


def found(place: Place, reader: runcue.Reader, *, raw: bool = False) -> list[dict[str, Any]]:
    """Every schedule as data, with how its last unit stands. Times that are left are seconds."""
    now, wall = reader.now(), time.time()
    schedules = reader.schedules()
    ids = [one.last_id for one in schedules if one.last_id is not None]
    states = {row["id"]: row["state"] for row in place.rows(reader, ids=ids, limit=MANY)} if ids else {}
    return [_data(place, one, now, wall, states, raw=raw) for one in schedules]


def _data(
    place: Place,
    one: runcue.ScheduleInfo,
    now: float,
    wall: float,
    states: Mapping[str, str],
    *,
    raw: bool,
) -> dict[str, Any]:
    present = now if one.cron is None else wall  # slots of every= are moments of queue time
    left = None if one.next_at is None else round(max(0.0, one.next_at - present), 3)
    return {
        "name": one.name,
        "when": one.when,
        **(_unit(one, raw=raw) if isinstance(place, File) else _job(one, raw=raw)),
        "state": state_of(one),
        "next_at": moment(one.next_at) or None,
        "next_in": left,
        "last_at": moment(one.last_at) or None,
        "last_ago": None if one.last_at is None else round(max(0.0, now - one.last_at), 3),
        "last_id": one.last_id,
        "last_state": None if one.last_id is None else states.get(one.last_id),
        "runs": one.runs,
        "skipped": one.skipped,
        "paused": one.paused,
        "problem": one.problem,
        "every": one.every,
        "cron": one.cron,
        "tz": one.tz,
        "start": moment(one.start) or None,
        "until": moment(one.until) or None,
        "jitter": one.jitter,
        "overlap": one.overlap,
        "missed": one.missed,
        "queue": one.queue,
        "priority": one.priority,
        "source": one.source,
    }


def _unit(one: runcue.ScheduleInfo, *, raw: bool) -> dict[str, Any]:
    return {"task": one.task, "params": hiding(raw)(one.params)}


def _job(one: runcue.ScheduleInfo, *, raw: bool) -> dict[str, Any]:
    """What is run. Values of a job's environment are never shown."""
    params = one.params
    env = params.get("env")
    return {
        "command": hiding(raw)(params.get("command", one.task)),
        "cwd": params.get("cwd"),
        "env": {str(name): MASK for name in env} if isinstance(env, dict) else {},
        "uses": params.get("uses", []),
    }


def state_of(one: runcue.ScheduleInfo) -> str:
    """How a schedule stands: `active`, `paused`, `over`, or what is wrong."""
    if one.paused:
        return "paused"
    return one.problem or ("over" if one.next_at is None else "active")


def next_of(one: Mapping[str, Any]) -> str:
    """When its next unit comes: how long that is, and the moment; in a pipe the moment alone."""
    if one["next_at"] is None:
        return "-"
    return f"in {span(one['next_in'])}, {in_table(one['next_at'])}" if is_terminal() else str(one["next_at"])


def last_of(one: Mapping[str, Any]) -> str:
    """How its last unit stands, and when it came."""
    if one["last_at"] is None:
        return "-"
    state = one["last_state"] or "no longer kept"
    return f"{state}, {span(one['last_ago'])} ago" if is_terminal() else f"{state} {one['last_at']}"


def row_of(one: Mapping[str, Any]) -> tuple[str, ...]:
    """A schedule as a row of a table, without what it runs."""
    return one["name"], one["when"], next_of(one), last_of(one), one["state"]


# what can be done to one ----------------------------------------------------------------------------------


def hold(place: Place, name: str, go_on: str, *, is_paused: bool) -> None:
    """Pause a schedule, or let it go on; `go_on` is what to type for that."""

    async def change(cue: Cue) -> None:
        await (cue.schedules.pause if is_paused else cue.schedules.resume)(name)

    ask(place, change)
    if is_paused:
        say(f"Paused schedule {clean(name)}. Go on with: {go_on}")
    else:
        say(f"Resumed schedule {clean(name)}")


def run(place: Place, name: str) -> str:
    """Submit a unit of a schedule now; its id."""

    async def submit(cue: Cue) -> str:
        return str(await cue.run_now(name))

    return ask(place, submit)


def remove(place: Place, name: str) -> None:
    """Delete a schedule; raises where there is none."""
    from runcue import UnknownSchedule

    with migrated(place) as reader:
        known = {one.name: one.source for one in reader.schedules()}

    async def delete(cue: Cue) -> bool:
        return await cue.unschedule(name)

    if not ask(place, delete):
        raise UnknownSchedule(name, known)
    say(f"Removed schedule {clean(name)}. Its {place.words.many} stay.")
    if known.get(name) is not None:
        note(f"It is declared by {clean(str(known[name]))}, and comes back when that starts.")
