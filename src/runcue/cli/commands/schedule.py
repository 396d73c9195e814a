"""`queuectl schedule`: jobs that come at moments, as those of cron do, but retry and keep to limits.

Rules:
- The job of a schedule is made and checked as `enqueue` makes it, when the schedule is added.
- A queue in memory tries what is to be added first. So what cannot be is refused before anything is stored, or made.
- The schedules of a crontab are added in one turn: all of them, or none.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from runcue.cli import crontab
from runcue.cli import schedules as shared
from runcue.cli.completion import schedule
from runcue.cli.failure import BAD_INPUT, Failure, bad_input, conflict
from runcue.cli.fields import LocalTime, check, duration, moment, said
from runcue.cli.fields import name as checked_name
from runcue.cli.groups import declared, family
from runcue.cli.home import Home
from runcue.cli.jobs import MOST_PARAMS, TASK, Job, ask, command_of, make_job, options_of
from runcue.cli.new_job import (
    ARGV,
    Commanding,
    at_line,
    check_folders,
    check_services,
    place_options,
    run_options,
    say_if_alone,
    say_local,
    typed_fields,
    utf8,
)
from runcue.cli.place import hiding, look, migrated
from runcue.cli.screen import (
    aligned,
    clean,
    counted,
    note,
    reason_of,
    say,
    show_json,
    shown,
    span,
    styled,
    table,
    typed,
    warn,
)
from runcue.cli.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue, ScheduleInfo, Work

EXAMPLE: Final = 'queuectl schedule add nightly "0 3 * * *" -- backup.sh'
LARGEST: Final = 1024 * 1024
"""Bytes of a crontab."""
SHORTEST: Final = 1.0
RECENT: Final = 5
"""How many of the newest jobs `show` lists."""
UTC: Final = "UTC"
OVERLAP: Final = ("skip", "queue", "replace")
MISSED: Final = ("latest", "all", "none")
STDIN: Final = "-"


class Wanted(msgspec.Struct, frozen=True):
    """A schedule that is to be added, and the line of a crontab that it comes from (0: none)."""

    line: int
    name: str
    timing: dict[str, Any]
    job: Job

    def options(self, settings: Settings) -> dict[str, Any]:
        """The arguments of `Cue.schedule`, but for the name."""
        return {**options_of(self.job, settings), **self.timing}


zone_option = click.option(
    "--tz", metavar="ZONE", help="The time zone, such as Europe/Zurich.  [default: that of this machine]"
)
slot_options = declared(
    click.option(
        "--overlap",
        type=click.Choice(OVERLAP),
        default=OVERLAP[0],
        show_default=True,
        help="What to do while its last job has not ended: skip the slot, queue another job, or replace that one.",
    ),
    click.option(
        "--missed",
        type=click.Choice(MISSED),
        default=MISSED[0],
        show_default=True,
        help="Which slots count that came while no worker ran.",
    ),
    click.option("--jitter", metavar="TIME", help="Start each job later by up to this time."),
)


@family(
    "schedule",
    examples=[
        EXAMPLE,
        "queuectl schedule add ping --every 5m -- curl -fsS https://example.com/",
        "queuectl schedule list",
        "crontab -l | queuectl schedule import -",
    ],
)
def command() -> None:
    """Add jobs at moments, as cron does: with retries, limits, and a reason for everything."""


# adding ---------------------------------------------------------------------------------------------------


@command.command(
    "add",
    cls=Commanding,
    examples=[
        EXAMPLE,
        "queuectl schedule add ping --every 5m -- curl -fsS https://example.com/",
        "queuectl schedule add report @daily --tz Europe/Zurich --command 'make report > report.txt'",
        "queuectl schedule add scan '*/10 * * * *' --overlap replace --max-retries 1 --uses disk -- scan",
    ],
)
@click.argument("name")
@click.argument("cron", nargs=-1, metavar="[CRON]")
@click.option("--every", metavar="TIME", help="In place of CRON, an interval: 90s, 5m, 2h, 1d.")
@zone_option
@slot_options
@click.option("--start", metavar="WHEN", help="No slot before this: 2030-01-31T18:00:00Z, or epoch seconds.")
@click.option("--until", metavar="WHEN", help="No slot after this.")
@click.option("--command", metavar="TEXT", help="A shell command to run, by /bin/sh.")
@run_options
@place_options
@click.option("--replace", is_flag=True, help="Change the schedule of that name, if there is one.")
@click.pass_context
def add(
    context: click.Context,
    /,
    name: str,
    cron: tuple[str, ...],
    every: str | None,
    tz: str | None,
    overlap: str,
    missed: str,
    jitter: str | None,
    start: str | None,
    until: str | None,
    replace: bool,
    **flags: Any,
) -> None:
    """Add a schedule: a name, when its jobs come, and what they run.

    CRON has five fields in quotes (minute, hour, day of month, month, day of week), six with seconds before them, or
    is one of @hourly, @daily, @weekly, @monthly and @yearly. An interval counts from now, or from --start.
    """
    home: Home = context.obj
    job = _job(flags, context.meta.get(ARGV))
    timing = {**_slots(overlap, missed, jitter), **_when(cron, every, tz), **_limits(start, until)}
    wanted = Wanted(0, checked_name("name", utf8(name)), timing, job)
    _tried([wanted])
    found, is_new = ask(
        home, lambda cue, settings: _stored(cue, settings, [wanted], may_change=replace), may_create=True
    )
    say(f"{'Added' if is_new else 'Changed'} {clean(wanted.name)}: {_summary(found[0])}")
    if found[0].next_at is None and not found[0].paused:
        warn("It has no slot any more: see --until.")
    say_if_alone(home, {job.queue})


def _job(flags: Mapping[str, Any], argv: list[str] | None) -> Job:
    fields = typed_fields(flags, argv, EXAMPLE)
    if "command" not in fields and "argv" not in fields:
        raise bad_input(f"What is to be run? Put it behind --, as in: {EXAMPLE}")
    return make_job(fields)


def _when(cron: tuple[str, ...], every: str | None, tz: str | None) -> dict[str, Any]:
    """The arguments of `Cue.schedule` that say when: an interval, or a cron expression and its time zone."""
    if len(cron) > 1:
        raise bad_input(f"{said(cron[1])} is too much: put the fields of CRON in quotes, as in: {EXAMPLE}")
    if bool(cron) is (every is not None):
        given = "Both are" if cron else "Neither is"
        raise bad_input(f"A schedule has CRON or --every. {given} given. For example: {EXAMPLE}")
    if every is not None:
        if tz is not None:
            raise bad_input("--tz is for CRON: an interval is the same in every time zone. Leave it out.")
        return {"every": duration("every", every, low=SHORTEST)}
    return {"cron": utf8(cron[0]), "tz": _zone(tz)}


def _zone(given: str | None) -> str:
    """The time zone that was named, or that of this machine."""
    from runcue.host.calendar import machine_zone

    if given is not None:
        return str(utf8(given))
    found = machine_zone()
    if found is None:
        note("The time zone of this machine has no name that is known: UTC is taken. Name yours with --tz.")
    return found or UTC


def _slots(overlap: str, missed: str, jitter: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"overlap": overlap, "missed": missed}
    if jitter is not None:
        found["jitter"] = duration("jitter", jitter)
    return found


def _limits(start: str | None, until: str | None) -> dict[str, float]:
    found = {
        name: moment(name, text) for name, text in (("start", start), ("until", until)) if text is not None
    }
    for name, at in found.items():
        if isinstance(at, LocalTime):
            say_local(name, [at])
    return {name: float(at) for name, at in found.items()}


def _tried(wanted: Sequence[Wanted]) -> list[ScheduleInfo]:
    """What these schedules would be, in their order: a queue in memory takes them, or refuses one."""
    from runcue import ConfigError, Cue, SubmitError

    async def answer() -> list[ScheduleInfo]:
        cue = Cue(max_params=MOST_PARAMS)
        cue.task(TASK)(partial(command_of, ""))
        try:
            for one in wanted:
                try:
                    await cue.schedule(one.name, **one.options(Settings()))
                except (ConfigError, SubmitError) as error:
                    raise Failure(f"{at_line(one.line)}{error}", BAD_INPUT) from error
            found = {one.name: one for one in await cue.schedules()}
        finally:
            await cue.close()
        return [found[one.name] for one in wanted]

    return asyncio.run(answer())


async def _stored(
    cue: Cue, settings: Settings, wanted: Sequence[Wanted], *, may_change: bool = False
) -> tuple[list[ScheduleInfo], bool]:
    """Add all these schedules in one turn; how they stand, in their order, and whether they are new."""
    jobs = [(one.line, one.job) for one in wanted]
    await check_services(cue, jobs)
    check_folders(jobs)
    there = {one.name for one in await cue.schedules()}
    taken = [one.name for one in wanted if one.name in there]
    if taken and not may_change:
        raise conflict(
            f"There is a schedule {said(taken[0])} already. Choose another name, or change it with --replace."
        )
    await asyncio.gather(*(cue.schedule(one.name, **one.options(settings)) for one in wanted))
    found = {one.name: one for one in await cue.schedules()}
    return [found[one.name] for one in wanted], not taken


def _summary(one: ScheduleInfo) -> str:
    from runcue.cli.screen import moment as written

    when = "over" if one.next_at is None else f"next {written(one.next_at)}"
    return clean(f"{one.when}, {'paused' if one.paused else when}")


# importing ------------------------------------------------------------------------------------------------


@command.command(
    "import",
    examples=[
        "queuectl schedule import crontab.txt --dry-run",
        "crontab -l | queuectl schedule import -",
        "queuectl schedule import crontab.txt --max-retries 1 --missed none --overlap queue",
    ],
)
@click.argument("file", metavar="FILE")
@zone_option
@slot_options
@run_options
@click.option("--dry-run", is_flag=True, help="Print what would be added, and add nothing.")
@click.pass_obj
def take_over(
    home: Home,
    /,
    file: str,
    tz: str | None,
    overlap: str,
    missed: str,
    jitter: str | None,
    dry_run: bool,
    **flags: Any,
) -> None:
    """Add the jobs of a user's crontab as schedules: all of them, or none. FILE may be - for stdin.

    They run in the home folder with the crontab's variables, and their names are made of their commands. What is
    there already is left out, so a crontab can be imported again. With --max-retries 1, --missed none and --overlap
    queue they are run as cron runs them.
    """
    slots, more = _slots(overlap, missed, jitter), typed_fields(flags, None, EXAMPLE)
    text = _text(file)
    with _of(file):
        found = crontab.read(text, str(check("cwd", "~")), more)
        if not found.entries:
            raise bad_input("it holds no job: nothing to import.")
    zone = _zone(tz) if any(one.tz is None for one in found.entries) else UTC
    new, wanted = _named(found.entries, zone, slots, _there(home, may_migrate=not dry_run))
    with _of(file):
        listed = _tried(wanted)
    for one in found.notes:
        note(one)
    if wanted and not dry_run:
        listed, _ = ask(home, lambda cue, settings: _stored(cue, settings, wanted), may_create=True)
    hide = hiding(False)
    rows = [(one.name, one.when, hide(entry.command)) for one, entry in zip(listed, new, strict=True)]
    table(("NAME", "WHEN", "COMMAND"), rows)
    known = len(found.entries) - len(new)
    rest = f", {known:,} {'was' if known == 1 else 'were'} there already" if known else ""
    note(f"{'Would add' if dry_run else 'Added'} {counted(len(wanted), 'schedule')}{rest}.")
    if wanted and not dry_run:
        say_if_alone(home, {one.job.queue for one in wanted})


@contextmanager
def _of(file: str) -> Iterator[None]:
    """Name the crontab in a failure that is about a line of it, or about all of it."""
    name = "stdin" if file == STDIN else shown(file)
    try:
        yield
    except Failure as error:
        sign = "," if error.text.startswith("line ") else ":"
        raise Failure(f"{name}{sign} {error.text}", error.code) from error


def _text(file: str) -> str:
    """The text of a crontab."""
    name = "stdin" if file == STDIN else shown(file)
    try:
        data = _data(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise bad_input(f"{name} cannot be read: {reason}.") from error
    if len(data) > LARGEST:
        raise bad_input(f"{name} is longer than 1 MiB: it is no crontab.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise bad_input(f"{name}, line {line}: this is no UTF-8 text.") from None


def _data(file: str) -> bytes:
    if file == STDIN:
        if sys.stdin is None:
            raise bad_input("stdin is closed: there is nothing to read.")
        return sys.stdin.buffer.read(LARGEST + 1)
    with Path(file).open("rb") as opened:
        return opened.read(LARGEST + 1)


def _there(home: Home, *, may_migrate: bool) -> list[ScheduleInfo]:
    """The schedules of the queue, if there is one."""
    if not home.exists:
        return []
    with (migrated if may_migrate else look)(home) as reader:
        return reader.schedules()


def _named(
    entries: Sequence[crontab.Entry], zone: str, slots: Mapping[str, Any], there: Sequence[ScheduleInfo]
) -> tuple[list[crontab.Entry], list[Wanted]]:
    """The entries that are not there already, and the same as schedules with names of their own."""
    before = [(one.cron, one.tz, one.params) for one in there]
    new = [
        entry
        for entry in entries
        if (entry.cron, entry.tz or zone, options_of(entry.job, Settings())["params"]) not in before
    ]
    names = crontab.named(new, (one.name for one in there))
    return new, [
        Wanted(entry.line, name, {**slots, "cron": entry.cron, "tz": entry.tz or zone}, entry.job)
        for entry, name in zip(new, names, strict=True)
    ]


# looking --------------------------------------------------------------------------------------------------


@command.command(
    "list", examples=["queuectl schedule list", "queuectl schedule list --json | jq '.[].next_at'"]
)
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects: all that is known of each.")
@click.option("--raw", is_flag=True, help="Show secrets as they are, but for values of the environment.")
@click.pass_obj
def list_all(home: Home, as_json: bool, raw: bool) -> None:
    """List schedules: when their jobs come, how the last one ended, and what is wrong."""
    found: list[dict[str, Any]] = []
    if home.exists:
        with home.reader() as reader:
            found = shared.found(home, reader, raw=raw)
    if as_json:
        show_json(found)
    elif not found:
        note(f"No schedules. Add one: {EXAMPLE}")
    else:
        table((*shared.HEADS, "COMMAND"), ((*shared.row_of(one), one["command"]) for one in found))


@command.command("show", examples=["queuectl schedule show nightly"])
@click.argument("name", shell_complete=schedule)
@click.option("--json", "as_json", is_flag=True, help="Print one object: all that is known of it.")
@click.option("--raw", is_flag=True, help="Show secrets as they are, but for values of the environment.")
@click.pass_obj
def show(home: Home, name: str, as_json: bool, raw: bool) -> None:
    """Show one schedule, and its latest jobs."""
    from runcue import UnknownSchedule

    with look(home) as reader:
        found = {one["name"]: one for one in shared.found(home, reader, raw=raw)}
        if name not in found:
            raise UnknownSchedule(name, found)
        latest = reader.list(tags={shared.TAG: name}, limit=RECENT)
        jobs = {job["id"]: job for job in home.rows(reader, ids=[work.id for work in latest], limit=RECENT)}
    one = found[name]
    if as_json:
        show_json(one)
        return
    say(f"{styled(clean(name), bold=True)}  {clean(one['state'])}")
    say()
    for fact, value in _facts(one).items():
        if value:
            say(f"{styled(f'{fact:<12}', dim=True)}{clean(value)}")
    if latest:
        say()
        say(styled("Latest jobs", bold=True))
        for line in aligned(("ID", "STATE", "ENQUEUED", "ERROR"), _rows(latest, jobs), indent="  "):
            say(line)


def _facts(one: Mapping[str, Any]) -> dict[str, str | None]:
    """What `show` prints of a schedule, by name."""
    return {
        "when": one["when"],
        "next": None if one["next_at"] is None else f"{one['next_at']}, in {span(one['next_in'])}",
        "last": None if one["last_at"] is None else f"{shared.last_of(one)} ({one['last_id']})",
        "command": one["command"],
        "folder": one["cwd"],
        "environment": " ".join(f"{name}={value}" for name, value in one["env"].items()),
        "queue": one["queue"],
        "priority": f"{one['priority']:g}",
        "uses": ", ".join(one["uses"]),
        "starts": one["start"],
        "ends": one["until"],
        "jitter": span(one["jitter"]) if one["jitter"] else None,
        "overlap": one["overlap"],
        "missed": one["missed"],
        "runs": f"{one['runs']:,}",
        "skipped": f"{one['skipped']:,}",
    }


def _rows(latest: Sequence[Work], jobs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The latest jobs that still exist, as rows of a table."""
    found = (jobs[work.id] for work in latest if work.id in jobs)
    return [
        (
            job["id"],
            job["state"],
            job["created_at"],
            reason_of(job["last_error"]) if job["last_error"] else "",
        )
        for job in found
    ]


# what can be done to one ----------------------------------------------------------------------------------


@command.command("pause", examples=["queuectl schedule pause nightly"])
@click.argument("name", shell_complete=schedule)
@click.pass_obj
def pause(home: Home, name: str) -> None:
    """Let no job of a schedule come until it is resumed. Slots that pass meanwhile are left out."""
    shared.hold(home, name, home.words.do("schedule resume", typed(name)), is_paused=True)


@command.command("resume", examples=["queuectl schedule resume nightly"])
@click.argument("name", shell_complete=schedule)
@click.pass_obj
def resume(home: Home, name: str) -> None:
    """Let a paused schedule go on with its next slot."""
    shared.hold(home, name, "", is_paused=False)


@command.command("run", examples=["id=$(queuectl schedule run nightly)", "queuectl schedule run nightly"])
@click.argument("name", shell_complete=schedule)
@click.pass_obj
def run(home: Home, name: str) -> None:
    """Enqueue a job of a schedule now, whatever its slots, and print its id."""
    say(shared.run(home, name))


@command.command("remove", examples=["queuectl schedule remove nightly"])
@click.argument("name", shell_complete=schedule)
@click.pass_obj
def remove(home: Home, name: str) -> None:
    """Remove a schedule. Its jobs stay."""
    shared.remove(home, name)
