"""`queuectl worker`: start workers, stop them, see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from runcue.cli.failure import Failure
from runcue.cli.fields import duration, unicode
from runcue.cli.groups import F, declared, family
from runcue.cli.home import Home
from runcue.cli.screen import clean, counted, in_table, moment, note, say, show_json, shown, table
from runcue.cli.worker import MOST_JOBS, MOST_WORKERS, Orders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runcue.cli.detach import Child

START_PATIENCE = 120.0
"""Seconds that detached workers are given to come up."""
LAST_LINES = 5


@family(
    "worker",
    examples=["queuectl worker start --count 4", "queuectl worker start --detach", "queuectl worker stop"],
)
def command() -> None:
    """Start, stop and list the processes that run jobs."""


def crew_options(count: str, many: str, *more: Callable[[Any], Any]) -> Callable[[F], F]:
    """The options of a verb that starts workers; `many` are what they run, `more` stand before `--quiet`."""
    return declared(
        click.option(
            "--count", "-n", type=click.IntRange(1, MOST_WORKERS), default=1, show_default=True, help=count
        ),
        click.option(
            "--queue", "queues", multiple=True, metavar="NAME", help=f"Only {many} of this queue; may be repeated."
        ),
        *more,
        click.option("--quiet", "-q", is_flag=True, help="Say only what went wrong."),
    )  # fmt: skip


# start ----------------------------------------------------------------------------------------------------


@command.command(
    "start",
    examples=[
        "queuectl worker start",
        "queuectl worker start --count 4 --queue mail --queue reports",
        "queuectl worker start --count 2 --detach",
        "queuectl worker start --jobs 8",
    ],
)
@crew_options(
    "How many workers; each is a process of its own.",
    "jobs",
    click.option(
        "--jobs",
        "-j",
        type=click.IntRange(1, MOST_JOBS),
        default=1,
        show_default=True,
        help="How many jobs each worker runs at a time.",
    ),
    click.option("--detach", "-d", is_flag=True, help="Go on in the background, with a log file."),
)
@click.pass_context
def start(
    context: click.Context, count: int, queues: tuple[str, ...], jobs: int, detach: bool, quiet: bool
) -> None:
    """Run jobs, in processes of their own, until asked to stop.

    Ctrl-C (or SIGTERM) lets every worker finish what it runs and ends with 0. A second one puts running jobs back,
    without counting an attempt; a third one kills them. A worker that dies is replaced. Several starts run side by
    side.
    """
    from runcue.cli.detach import Parent, detached
    from runcue.cli.lines import Lines
    from runcue.cli.shutdown import Post
    from runcue.cli.supervisor import Supervisor

    home: Home = context.obj
    for key, text in (("the home", str(home.path)), *(("queue", one) for one in queues)):
        unicode(key, text)
    home.make()
    orders = Orders(
        home=str(home.path), insecure=home.insecure, jobs=jobs, queues=sorted(set(queues)) or None
    )
    if not detach:
        context.exit(Supervisor(orders, count, Lines(is_quiet=quiet), post=Post(home.path)).run_or_raise())
    other = detached(home.log)
    if isinstance(other, Parent):
        lines = Lines(home.log, is_quiet=quiet)
        supervisor = Supervisor(orders, count, lines, on_up=other.is_up, post=Post(home.path))
        code = supervisor.run()
        if supervisor.reason:
            lines.note(clean(supervisor.reason))
            other.is_not_up(supervisor.reason)
        context.exit(code)
    _wait(other, home)
    if not quiet:
        say(f"Started {counted(count, 'worker')} in the background, supervised by process {other.pid}.")
        note(f"Log: {shown(home.log)}\nStop: queuectl worker stop")


def _wait(supervisor: Child, home: Home) -> None:
    """Wait until the workers of a supervisor in the background are up; raises the reason why they are not."""
    try:
        supervisor.wait(START_PATIENCE)
    except Failure as failure:
        if failure.text:
            raise
        for line in _tail(home.log):
            note(clean(line))
        raise Failure(f"The workers did not start. Log: {shown(home.log)}", failure.code) from None


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            return file.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:]
    except OSError:
        return []


# stop -----------------------------------------------------------------------------------------------------


@command.command(
    "stop",
    examples=["queuectl worker stop", "queuectl worker stop --timeout 60", "queuectl worker stop --now"],
)
@click.option("--now", is_flag=True, help="Put running jobs back instead of letting them finish.")
@click.option("--timeout", metavar="TIME", help="Wait no longer than this: 90, 90s, 5m.")
@click.pass_obj
def stop(home: Home, now: bool, timeout: str | None) -> None:
    """Stop all workers after their current job, and wait for it.

    Ctrl-C ends the waiting only; so does --timeout, with exit code 124. When the queue cannot be read, the
    supervisors stop their workers all the same, and the exit code says what is wrong with it.
    """
    from runcue.cli.shutdown import Leaving

    patience = None if timeout is None else duration("--timeout", timeout)
    leaving = Leaving(home, at_once=now)
    try:
        leaving.wait(patience)
    except KeyboardInterrupt:
        note("Not waiting any longer. The workers leave when their jobs have ended.")
        raise
    if leaving.unreadable is not None:
        if leaving.supervisors:
            say(f"Stopped {counted(len(leaving.supervisors), 'supervisor')} with all workers.")
        raise leaving.unreadable
    if leaving.workers:
        say(f"Stopped {counted(len(leaving.workers), 'worker')}.")
    else:
        number = len(leaving.supervisors)
        say(f"Stopped {counted(number, 'supervisor')}." if number else "No worker is running.")


# list -----------------------------------------------------------------------------------------------------


@command.command("list", examples=["queuectl worker list", "queuectl worker list --json"])
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects.")
@click.pass_obj
def list_workers(home: Home, as_json: bool) -> None:
    """List the workers: who they are, since when, and what each runs."""
    from runcue.cli.shutdown import is_stopped, workers

    rows = []
    if home.exists:
        with home.reader() as reader:
            rows = workers(reader)
    if as_json:
        show_json([*map(_facts, rows)])
    elif rows:
        table(("ID", "PID", "STATE", "SINCE", "QUEUES", "JOB"), map(_row, rows))
        for row in filter(is_stopped, rows):
            note(f"Worker {row['id']} is stopped. Continue it: kill -CONT {row['pid']}")
    else:
        note("No worker is running. Start one: queuectl worker start")


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """A worker as data."""
    since, jobs = moment(row["started_at"]), row["jobs"]
    facts = {name: row[name] for name in ("id", "pid", "host")}
    running = {"job": jobs[0] if jobs else None, "jobs": jobs}
    return {**facts, "state": _state(row), "since": since, "queues": row["queues"], **running}


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    """A worker as a row of a table."""
    queues = "all" if row["queues"] is None else ", ".join(row["queues"])
    since, jobs = in_table(moment(row["started_at"])), ", ".join(row["jobs"]) or "-"
    return row["id"], str(row["pid"]), _state(row), since, queues, jobs


def _state(row: dict[str, Any]) -> str:
    """The state of a worker in one word: idle or busy when it is alive, else what is wrong with it."""
    from runcue.cli.shutdown import is_stopped

    if is_stopped(row):
        return "stopped"
    if row["state"] == "alive":
        return "busy" if row["jobs"] else "idle"
    return str(row["state"])
