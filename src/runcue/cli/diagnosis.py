"""What may be wrong with a queue: a function for each part of it, which yields findings and advice.

A finding is `ok`, a `warning` (a person should do something) or a `problem`, which has an exit code of its own.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from runcue.cli.failure import BRING_UP_TO_DATE, BUSY, CONFIGURATION, STORAGE, is_old
from runcue.cli.home import DATABASE, Home
from runcue.cli.reasons import Crew
from runcue.cli.screen import clean, counted, quoted, shown, span, typed
from runcue.cli.settings import KEYS
from runcue.host.system import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

OLDEST_SQLITE = (3, 51, 3)
LARGE_LOG = 64 * 1024**2
LITTLE_SPACE = 100 * 1024**2
LARGE_SKEW = 60.0
MOST_LOOKED_AT = 1000
RECOVER = "Stop the workers, then: queuectl doctor --recover"


class Finding(msgspec.Struct, frozen=True):
    """The state of one thing, and what to do about it."""

    level: str
    what: str
    advice: str = ""
    code: int = 0


def ok(what: str) -> Finding:
    """A finding that asks for nothing."""
    return Finding("ok", what)


def warning(what: str, advice: str) -> Finding:
    """A finding that a person should act on; the queue itself is sound."""
    return Finding("warning", what, advice)


def problem(what: str, advice: str, code: int = STORAGE) -> Finding:
    """A finding with an exit code of its own."""
    return Finding("problem", what, advice, code)


def versions() -> dict[str, str]:
    """The versions of runcue, Python and SQLite."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from runcue import __version__

    try:
        sqlite = ".".join(version("apsw").split(".")[:3])
    except PackageNotFoundError:
        sqlite = "?"
    return {"runcue": __version__, "python": platform.python_version(), "sqlite": sqlite}


def old_versions(found: dict[str, str]) -> Iterator[Finding]:
    """Whether this SQLite has known faults."""
    parts = found["sqlite"].split(".")
    if all(part.isdecimal() for part in parts) and tuple(map(int, parts)) < OLDEST_SQLITE:
        least = ".".join(map(str, OLDEST_SQLITE))
        what = f"SQLite {found['sqlite']} can damage files that several processes share"
        yield problem(what, f"Install apsw {least} or newer.", CONFIGURATION)


def place(home: Home) -> Iterator[Finding]:
    """Who owns the home, who may read and write it, and how much space its disk has."""
    complaints = home.complaints()
    for complaint in complaints:
        what, _, advice = complaint.text.partition(". ")
        yield problem(what.rstrip("."), advice, complaint.code)
    path = home.place()
    if complaints or not path.exists():
        return
    open_to_others = [
        one for one in (path, path / DATABASE) if one.exists() and one.stat().st_mode & files.OTHERS_READ
    ]
    for one in open_to_others:
        mode = "700" if one.is_dir() else "600"
        yield warning(f"Other users may read {shown(one)}", f"Do: chmod {mode} {quoted(str(one))}")
    for parent in path.parents:
        mode_bits = parent.stat().st_mode
        if mode_bits & files.OTHERS_WRITE & stat.S_IWOTH and not mode_bits & stat.S_ISVTX:
            yield warning(
                f"Anybody may rename what is in {shown(parent)}, and so exchange the home",
                "Use a home in a directory that only you may write to.",
            )
    if not open_to_others:
        yield ok(f"Only you can use {shown(path)}")
    yield from _space(path)


def _space(path: Path) -> Iterator[Finding]:
    free, has_names = files.free_space(path)
    if free < LITTLE_SPACE or not has_names:
        yield warning(f"Only {size(free)} are free on the disk of {shown(path)}", "Make room there.")
    else:
        yield ok(f"{size(free)} are free on its disk")


def storage(reader: runcue.Reader, facts: dict[str, Any]) -> Iterator[Finding]:
    """Whether the file is intact, and how large its log is; adds facts about the file to `facts`."""
    facts |= reader.health()
    problems = facts.pop("problems")
    for one in problems:
        yield problem(clean(one.replace("\n", " ")), RECOVER)
    if not problems:
        yield ok(f"The queue's file is intact ({size(facts['size'])})")
    if facts["log_size"] > LARGE_LOG:
        yield warning(
            f"The log beside the file has grown to {size(facts['log_size'])}",
            "Some program reads the queue without end: close it.",
        )
    skew = reader.now() - time.time()
    if abs(skew) > LARGE_SKEW:
        side = "ahead of" if skew > 0 else "behind"
        yield warning(
            f"Queue time is {span(abs(skew))} {side} the clock: the clock was set while workers ran",
            "It catches up after a restart of all workers.",
        )


def damage(error: Exception) -> Finding:
    """The finding about a file that could not be read; advises to recover it only where it is damaged."""
    import runcue as library

    text = clean(str(error)).rstrip(".")
    if isinstance(error, library.SchemaTooNew):
        return problem(text, "Install a newer runcue.", CONFIGURATION)
    if is_old(error):
        return problem(text.partition(". ")[0], BRING_UP_TO_DATE["queuectl"], CONFIGURATION)
    if isinstance(error, library.StorageInsecure):
        what, _, advice = text.partition(". ")
        return problem(what, advice, CONFIGURATION)
    if isinstance(error, library.StorageBusy):
        return problem(text, "Try again in a moment.", BUSY)
    if not isinstance(error, library.StorageCorrupt) or "--recover" not in text:
        return problem(text, "")
    return problem(text, RECOVER)


def crew(reader: runcue.Reader) -> Iterator[Finding]:
    """Which workers live, which do not respond, and how many jobs dead ones left behind."""
    from runcue.cli.shutdown import is_stopped

    workers = [one for one in reader.workers() if one["serving"]]
    states = {state: [one for one in workers if one["state"] == state] for state in ("alive", "unresponsive")}
    left = sum(one["running"] for one in reader.workers() if one["state"] == "gone")
    if states["alive"]:
        busy = sum(one["running"] > 0 for one in states["alive"])
        yield ok(f"{counted(len(states['alive']), 'worker')} alive, {busy} busy")
    stopped = [one for one in workers if is_stopped(one)]
    for one in stopped:
        yield warning(f"Worker {clean(one['id'])} is stopped", f"Continue it: kill -CONT {one['pid']}")
    for one in (one for one in states["unresponsive"] if one not in stopped):
        yield warning(
            f"Worker {clean(one['id'])} (pid {one['pid']}) has not moved for {span(one['silent_for'] or 0)}",
            f"See what it does; if it hangs: kill -9 {one['pid']}. What it ran is run again.",
        )
    if left:
        yield warning(
            f"{counted(left, 'job')} ran under a worker that is gone",
            "Nothing is lost: the next worker takes over."
            + ("" if states["alive"] else " Start one: queuectl worker start"),
        )


def waiting(reader: runcue.Reader) -> Iterator[Finding]:
    """Jobs that wait for something that a person has to do."""
    counts = reader.job_counts()
    number = counts["pending"] + counts["failed"]
    works = reader.list("pending", limit=MOST_LOOKED_AT) if number else []
    crew_now, paused = Crew(reader.workers()), reader.paused()
    if number and not crew_now.members:
        verb = "waits" if number == 1 else "wait"
        yield warning(
            f"{counted(number, 'job')} {verb} and no worker is running", "Start one: queuectl worker start"
        )
    for queue in sorted({work.queue for work in works}):
        if crew_now.members and not crew_now.serves(queue):
            yield warning(
                f"Jobs wait in the queue {clean(queue)}, which no worker serves",
                f"Start one: queuectl worker start --queue {quoted(queue)}",
            )
    for queue in paused:
        if reader.jobs("pending", queue=queue, limit=1) or reader.jobs("failed", queue=queue, limit=1):
            yield warning(
                f"Jobs wait in the queue {clean(queue)}, which is paused", f"queuectl resume {typed(queue)}"
            )
    lonely = [
        clean(why.work_id)
        for why in reader.explain_many(work.id for work in works if work.depends_on).values()
        if "never submitted" in why.details
    ]
    if lonely:
        yield warning(
            f"{counted(len(lonely), 'job')} cannot run, being after jobs that were never enqueued: "
            + ", ".join(lonely[:5]),
            f"See: queuectl why {lonely[0]}. Enqueue what is missing, or cancel.",
        )
    if counts["dead"]:
        yield ok(f"{counted(counts['dead'], 'dead job')} (queuectl dlq list)")


def services(reader: runcue.Reader) -> Iterator[Finding]:
    """Services on which nothing starts."""
    for one in reader.services():
        name = clean(one["name"])
        if one["circuit"] not in {None, "closed"}:
            yield warning(
                f"The circuit of {name} is {one['circuit']}: its jobs kept failing",
                "It is tried again by itself; see why: queuectl list --state failed",
            )
        if one["paused"]:
            yield warning(f"The service {name} is paused", f"Go on: queuectl resume {typed(one['name'])}")


def settings(reader: runcue.Reader) -> Iterator[Finding]:
    """Damaged settings, in place of which defaults are used."""
    for name, text in reader.config().items():
        try:
            if name in KEYS:
                KEYS[name].read(text)
        except ValueError as error:
            yield warning(
                f"The setting {name} is damaged and counts as not set: expected {error}",
                f"Set it anew: queuectl config set {name} VALUE",
            )


def size(number: float) -> str:
    """A number of bytes in words: 12 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 10 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"
