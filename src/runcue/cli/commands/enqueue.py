"""`queuectl enqueue`: one job from JSON, flags or a command line, or many from lines of JSON, in one commit.

Rules:
- All input is read and checked before anything is stored: all jobs of a batch are accepted, or none.
- Input is read in pieces and its size is limited; errors name the line.
- Flags beside JSON fill in keys that it leaves out.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from runcue.cli.completion import any_job
from runcue.cli.failure import BAD_INPUT, STORAGE, Failure, bad_input, conflict, not_found
from runcue.cli.fields import LocalTime, said
from runcue.cli.home import Home
from runcue.cli.jobs import ask, make_job, options_of, parse_job, was_ended
from runcue.cli.lookup import no_job
from runcue.cli.new_job import (
    ARGV,
    Commanding,
    Numbered,
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
from runcue.cli.place import migrated
from runcue.cli.screen import (
    counted,
    flush,
    listed,
    progress,
    quoted,
    say,
    shown,
    span,
    warn,
)
from runcue.host.address import is_address, plain

if TYPE_CHECKING:
    from runcue import Cue
    from runcue.cli.settings import Settings

MIB = 1024 * 1024
LONGEST_LINE = 4 * MIB
LARGEST_BATCH = 256 * MIB
MOST_JOBS = 100_000
TOLD_EVERY = 2_000
"""Lines between two signs of progress."""
LONGEST_ADVICE = 200
"""Characters of a command that advice repeats at most."""
STDIN = "-"

_item = re.compile(r"items\[([0-9]+)\]: ").match


class Enqueue(Commanding):
    """The verb, which is given jobs in many ways."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line: all ways to give what is to be run."""
        return ["[OPTIONS]", "[JSON | - | -- PROGRAM ARGUMENT…]"]


@click.command(
    "enqueue",
    cls=Enqueue,
    examples=[
        'queuectl enqueue \'{"id": "job1", "command": "sleep 2"}\'',
        "queuectl enqueue --id backup --command 'tar cz ~/notes > notes.tgz'",
        "queuectl enqueue --after backup --delay 5m -- rsync notes.tgz host:",
        "queuectl enqueue --file jobs.jsonl",
        "id=$(queuectl enqueue -q -- make test)",
    ],
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.option("--id", "id", metavar="ID", help="The job's id.  [default: a new one]")
@click.option("--command", metavar="TEXT", help="A shell command to run, by /bin/sh.")
@click.option("--file", "file", metavar="PATH", help="Read jobs from a file of JSON lines; - is stdin.")
@run_options
@click.option("--delay", metavar="TIME", help="Start only after this time has passed: 90, 90s, 5m, 2h, 7d.")
@click.option(
    "--run-at", metavar="WHEN", help="Start no earlier than this: 2030-01-31T18:00:00Z, or epoch seconds."
)
@click.option(
    "--after",
    multiple=True,
    metavar="ID",
    shell_complete=any_job,
    help="Start only after that job has completed. Repeatable.",
)
@click.option("--key", metavar="KEY", help="Enqueue only once for this key, however often this is run.")
@place_options
@click.option("-q", "--quiet", is_flag=True, help="Print the id alone, or one id on each line.")
@click.pass_context
def command(
    context: click.Context, /, words: tuple[str, ...], file: str | None, quiet: bool, **flags: Any
) -> None:
    """Add a job, or many at once: all of them, or none.

    Without a command, JSON or --file, lines of JSON are read from a pipe.
    """
    began = time.monotonic()
    fields = typed_fields(flags, context.meta.get(ARGV), "queuectl enqueue -- sleep 2")
    jobs = _jobs(utf8(words), file, fields)
    say_local("run_at", [job.run_at for _, job in jobs if isinstance(job.run_at, LocalTime)])
    home: Home = context.obj
    for _, job in jobs:
        if job.key is not None and job.id is None:
            job.id = _new_id()
    named = [job.id for _, job in jobs if job.key is not None and job.id is not None]
    there = _there(home, named)
    ids = ask(home, lambda cue, settings: _accepted(home, cue, settings, jobs), may_create=True)
    try:
        if quiet:
            for one in ids:
                say(one)
        else:
            _tell(jobs, ids, there, time.monotonic() - began)
        flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        text = f"Enqueued {listed(ids)}, but that could not be printed: {error.strerror}."
        raise Failure(text, STORAGE) from error
    if not quiet:
        say_if_alone(home, {job.queue for _, job in jobs})


def _new_id() -> str:
    """An id for a job with a key: when submitting returns another id, an earlier job has the key."""
    return f"{int(time.time() * 1000):011x}-{os.urandom(6).hex()}"


def _there(home: Home, ids: Sequence[str]) -> set[str]:
    """The ids among these that the queue already has."""
    if not ids or not home.exists:
        return set()
    with migrated(home) as reader:
        return {row["id"] for row in reader.jobs(ids=ids, limit=len(ids))}


def _tell(jobs: Sequence[Numbered], ids: Sequence[str], there: set[str], spent: float) -> None:
    """Print what was enqueued; `there` are the ids that the queue had before."""
    pairs = [(one, job) for one, (_, job) in zip(ids, jobs, strict=True) if job.key is not None]
    old = [one for one, job in pairs if one != job.id or one in there]
    if len(ids) == 1:
        key = said(jobs[0][1].key)
        say(f"Already enqueued: {ids[0]} has the key {key}" if old else f"Enqueued {ids[0]}")
        return
    new = len(ids) - len(old)
    rest = f", {len(old):,} {'was' if len(old) == 1 else 'were'} there already" if old else ""
    say(f"Enqueued {counted(new, 'job')} in {span(spent)}{rest}")


# reading --------------------------------------------------------------------------------------------------


def _jobs(words: tuple[str, ...], file: str | None, given: dict[str, Any]) -> list[Numbered]:
    """The jobs to enqueue: from JSON, a file, flags or stdin."""
    if words == (STDIN,) and file is None:
        file, words = STDIN, ()
    if words and file is not None:
        raise bad_input("A job and --file are both given. Give one of them.")
    if words:
        _check_words(words)
        return [(0, parse_job(words[0], given))]
    if file is not None:
        found = _from_file(file, given)
        if not found:
            raise bad_input(f"{'stdin' if file == STDIN else shown(file)} holds no job: nothing to enqueue.")
        return found
    if "command" in given or "argv" in given:
        return [(0, make_job(given))]
    found = [] if sys.stdin is None or sys.stdin.isatty() else _from_file(STDIN, given)
    if not found:
        raise bad_input("Nothing to enqueue. Give a command, as in: queuectl enqueue -- sleep 2")
    return found


def _check_words(words: tuple[str, ...]) -> None:
    """Refuse arguments that are not exactly one JSON object."""
    first = words[0].lstrip()
    if first.startswith("{"):
        if len(words) > 1:
            raise bad_input(f"{said(words[1])} is too much: give one job as JSON, or many with --file.")
    elif not first or first[0] in '["':
        raise bad_input(f'{said(words[0])} is no JSON object such as {{"command": "sleep 2"}}.')
    else:
        if len(words) == 1 and " " in first:
            how, flag = "give it with --command", "--command"
        else:
            how, flag = "put -- before it", "--"
        line = " ".join(map(quoted, words))
        is_exact = len(line) <= LONGEST_ADVICE and all(word.isprintable() for word in words)
        # A line that is cut would run something else.
        advice = f": queuectl enqueue {flag} {line}" if is_exact else "."
        raise bad_input(f"{said(words[0])} is no JSON object. To run a command, {how}{advice}")


def _from_file(file: str, given: dict[str, Any]) -> list[Numbered]:
    for name in ("id", "key"):
        if name in given:
            raise bad_input(f"--{name} is for one job. Give each its own in its line.")
    if not file:
        raise bad_input("--file is empty. Name a file, or - for stdin.")
    if file == STDIN:
        if sys.stdin is None:
            raise bad_input("stdin is closed: there is nothing to read.")
        return _from_lines(sys.stdin.buffer, "stdin", given)
    if is_address(file):
        raise bad_input(
            f"{plain(file)} is an address, and --file reads files. Fetch it, and pipe it to --file -."
        )
    try:
        with open(file, "rb") as lines:  # noqa: PTH123 (a Path refuses what open() explains)
            return _from_lines(lines, shown(file), given)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise bad_input(f"{shown(file)} cannot be read: {reason}.") from error


def _from_lines(lines: BinaryIO, name: str, given: dict[str, Any]) -> list[Numbered]:
    found: list[Numbered] = []
    places: dict[str, int] = {}
    number = size = 0
    line = b""
    try:
        while line := lines.readline(LONGEST_LINE + 1):
            number, size = number + 1, size + len(line)
            if len(line) > LONGEST_LINE:
                raise bad_input("it is longer than 4 MiB.")
            if size > LARGEST_BATCH or len(found) >= MOST_JOBS:
                raise bad_input(f"more than {MOST_JOBS:,} jobs or 256 MiB at once. Split the input.")
            if not line.strip():
                continue
            job = parse_job(line, given)
            if job.id is not None and places.setdefault(job.id, number) != number:
                raise conflict(f"line {places[job.id]} has the id {job.id} already.")
            found.append((number, job))
            if number % TOLD_EVERY == 0:
                progress(f"Read {len(found):,} jobs …")
    except Failure as error:
        is_array = number == 1 and line.strip()[:1] == b"["
        advice = " Each line is one job: jq -c '.[]' makes lines of an array." if is_array else ""
        raise Failure(f"{name}, line {number}: {error.text}{advice}", error.code) from error
    finally:
        if number >= TOLD_EVERY:
            progress("")
    return found


# storing --------------------------------------------------------------------------------------------------


async def _accepted(home: Home, cue: Cue, settings: Settings, jobs: Sequence[Numbered]) -> list[str]:
    """Store all these jobs in one commit; returns their ids."""
    from runcue import ConfigError, DependencyCycle, DuplicateWork, SubmitError

    await check_services(cue, jobs)
    await _check_after(home, cue, jobs)
    check_folders(jobs)
    is_long = len(jobs) >= TOLD_EVERY
    if is_long:
        progress(f"Storing {len(jobs):,} jobs …")
    try:
        return list(await cue.submit_many(options_of(job, settings) for _, job in jobs))
    except DuplicateWork as error:
        if error.key is None:
            raise conflict(f"There is a job {error.work_id} already. Choose another id, or none.") from error
        raise conflict(
            f"The key {said(error.key)} belongs to {error.work_id}, which runs something else "
            "or somewhere else. Choose another key."
        ) from error
    except DependencyCycle as error:
        way = " after ".join(error.cycle[:8])
        raise conflict(f"These jobs would wait for each other: {way}. Leave out one `after`.") from error
    except (ConfigError, SubmitError) as error:
        found = _item(str(error))
        if found is None:
            raise
        number = jobs[int(found[1])][0]
        text = str(error)[found.end() :]
        raise Failure(f"line {number}: {text}" if number else text, BAD_INPUT) from error
    finally:
        if is_long:
            progress("")


async def _check_after(home: Home, cue: Cue, jobs: Sequence[Numbered]) -> None:
    """Refuse a job that runs after an unknown one: it would wait for ever."""
    own = {job.id for _, job in jobs}
    needs = {need: number for number, job in reversed(jobs) for need in job.after if need not in own}
    if not needs:
        return
    states: dict[str, str] = {}
    if home.exists:
        with home.reader() as reader:
            states = {row["id"]: row["state"] for row in reader.jobs(ids=needs, limit=len(needs))}
    for need, number in needs.items():
        state = states.get(need)
        if state in {"dead", "cancelled"}:
            warn(f"{need} is {state}: what is to run after it is dead at once.")
        elif state is None and not await was_ended(cue, need):
            raise not_found(at_line(number) + no_job(home, need, " to run after").text)
