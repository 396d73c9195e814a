"""`queuectl status` and `runcue status`: the whole queue on one screen, once or live."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.place import File, Place, on_file
from runcue.cli.reasons import Crew, label, told, tries, waits
from runcue.cli.screen import (
    STATE_COLORS,
    aligned,
    clean,
    fitted,
    flush,
    is_dumb,
    is_terminal,
    live,
    moment,
    say,
    show_json,
    span,
    styled,
)
from runcue.cli.services import as_table, services
from runcue.cli.words import Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

MOST_EXPLAINED = 250
"""How many waiting jobs, the newest, are explained; of the older ones only the number is shown."""
OLDER = "older"
"""The reason of the waiting jobs that are not explained."""
LAST_FAILURES = 5
INTERVAL = 0.25
"""Seconds between two looks of `--watch`."""
WATCH = "Keep updating it until Ctrl-C (exit code 130)."
AS_JSON = "Print an object; with --watch one line for each change."


@verb("status", examples=["queuectl status", "queuectl status --watch", "queuectl status --json | jq .jobs"])
@click.option("--watch", is_flag=True, help=WATCH)
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
@click.pass_obj
def command(home: Home, watch: bool, as_json: bool) -> None:
    """Show jobs, workers, services, what waits and why, and the last failures."""
    _status(home, watch, as_json)


@on_file(
    "status",
    examples=[
        "runcue status queue.db",
        "runcue status queue.db --json | jq .units",
        "runcue status postgresql://me@host/app",
    ],
)
@click.option("--watch", is_flag=True, help=WATCH)
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
def status(place: File, watch: bool, as_json: bool) -> None:
    """Show units, workers, services, what waits and why, and the last failures."""
    _status(place, watch, as_json)


def _status(place: Place, watch: bool, as_json: bool) -> None:
    if watch:
        _watch(place, as_json)
        return
    found = _look(place)
    if as_json:
        show_json(found)
        return
    for line in lines_of(found, place.words):
        say(line)


def _look(place: Place) -> dict[str, Any]:
    if not place.exists:
        return _nothing(place.words)
    with place.reader() as reader:
        return _overview(place, reader)


def _watch(place: Place, as_json: bool) -> None:
    import time

    if not as_json and is_terminal() and not is_dumb():
        with live() as draw:
            while True:
                draw(lines_of(_look(place), place.words))
                time.sleep(INTERVAL)
    last: object = None
    while True:
        found = _look(place)
        shown: object = found if as_json else lines_of(found, place.words)
        if _still(shown) != last:
            last = _still(shown)
            if as_json:
                show_json(found, pretty=False)
            else:
                say("\n".join((*lines_of(found, place.words), "")))
            flush()
        time.sleep(INTERVAL)


def _still(shown: object) -> object:
    """What is shown, without the numbers of seconds, which change all the time."""
    if not isinstance(shown, dict):
        return shown
    parts = (("workers", "silent_for"), ("waiting", "seconds"), ("services", "seconds"))
    return {**shown, **{part: [{**one, name: None} for one in shown[part]] for part, name in parts}}


# as data ------------------------------------------------------------------------------------------------


def _nothing(words: Words) -> dict[str, Any]:
    """The status of a queue that does not exist yet."""
    lists = ("workers", "services", "paused", "waiting", "failures")
    return {words.many: dict.fromkeys(words.states, 0), **{name: [] for name in lists}}


def _overview(place: Place, reader: runcue.Reader) -> dict[str, Any]:
    """The status of a queue."""
    workers = [one for one in reader.workers() if one["serving"]]
    now = reader.now()
    counts = place.counts(reader)
    return {
        place.words.many: {state: counts[state] for state in place.words.states},
        "workers": [{**one, "started_at": moment(one["started_at"])} for one in workers],
        "services": services(reader),
        "paused": reader.paused(),
        "waiting": waiting(place, reader, counts, workers, now),
        "failures": _failures(place, reader, counts),
    }


def waiting(
    place: Place, reader: runcue.Reader, counts: dict[str, int], workers: list[dict[str, Any]], now: float
) -> list[dict[str, Any]]:
    """Why jobs wait: each reason with the number of jobs and the shortest time left, most frequent first."""
    words = place.words
    if not sum(counts[state] for state in words.waiting):
        return []

    jobs = [job for state in words.waiting for job in place.rows(reader, state, limit=MOST_EXPLAINED)]
    numbers: Counter[str] = Counter()
    soonest: dict[str, float] = {}  # the shortest time left
    for why, text in waits(reader, jobs, now, Crew(workers), words).values():
        reason = label(text, words)
        numbers[reason] += 1
        if why.until is not None:
            left = round(max(0.0, why.until - now), 3)
            soonest[reason] = min(soonest.get(reason, left), left)
    found: list[dict[str, Any]] = [
        {"reason": reason, words.many: number, "seconds": soonest.get(reason)}
        for reason, number in numbers.most_common()
    ]
    rest = sum(counts[state] for state in words.waiting) - sum(numbers.values())
    if rest > 0:
        found.append({"reason": OLDER, words.many: rest, "seconds": None})
    return found


def _failures(place: Place, reader: runcue.Reader, counts: dict[str, int]) -> list[dict[str, Any]]:
    """The last failures: jobs that died or wait for their retry."""
    found = [
        job
        for state in dict.fromkeys((place.words.dead, "failed"))
        if counts[state]
        for job in place.rows(reader, state, limit=LAST_FAILURES)
    ]
    found.sort(key=lambda job: job["updated_at"] or "", reverse=True)
    return found[:LAST_FAILURES]


# as text --------------------------------------------------------------------------------------------------


def lines_of(found: dict[str, Any], words: Words) -> list[str]:
    """The lines of the screen."""
    heading = words.many.capitalize()
    lines = [*_lines(heading, _jobs(found[words.many])), *_lines("Workers", _workers(found["workers"]))]
    if found["paused"]:
        lines += _lines("Paused", [styled(f"queue {clean(queue)}", fg="yellow") for queue in found["paused"]])
    if found["waiting"]:
        lines += _lines("Waiting", [_reason(one, words) for one in found["waiting"]])
    if found["services"]:
        lines += ["", *aligned(*as_table(found["services"], all_columns=False))]
    if found["failures"]:
        rows = [_failed(job) for job in found["failures"]]
        lines += ["", *aligned(("LAST FAILURES", "STATE", "TRIES", "ERROR"), rows)]
    if advice := _advice(found, words):
        lines += ["", advice]
    return lines


def _lines(name: str, parts: list[str]) -> list[str]:
    """A name and its parts, on as many lines as the terminal needs."""
    heads = (styled(f"{name:<7}", bold=True), " " * 7)
    return [f"{heads[number > 0]} {line}" for number, line in enumerate(fitted(parts, " · ", indent=8))]


def _jobs(counts: dict[str, int]) -> list[str]:
    shown = []
    for state, number in counts.items():
        text = f"{number:,} {state}"
        shown.append(styled(text, fg=STATE_COLORS[state]) if number else styled(text, dim=True))
    return shown


def _workers(workers: list[dict[str, Any]]) -> list[str]:
    states = Counter(one["state"] for one in workers)
    gone = states.pop("gone", 0)
    shown = [f"{number} {state}" for state, number in states.items()] or [styled("none", dim=True)]
    if states:
        shown.append(f"{sum(one['running'] > 0 for one in workers if one['state'] != 'gone')} busy")
    what = "it" if gone == 1 else "they"
    return [*shown, f"{gone} died (what {what} ran is run again)"] if gone else shown


def _reason(one: dict[str, Any], words: Words) -> str:
    if one["reason"] == OLDER:
        return f"{one[words.many]:,} older ones ({words.do('list', '--all')} tells why)"
    left = "" if one["seconds"] is None else f" (next in {span(one['seconds'])})"
    return f"{one[words.many]:,} {clean(one['reason'])}{left}"


def _failed(job: dict[str, Any]) -> tuple[str, ...]:
    return clean(job["id"]), job["state"], tries(job), told(job["last_error"])


def _advice(found: dict[str, Any], words: Words) -> str:
    counts = found[words.many]
    waits = sum(counts[state] for state in words.waiting)
    if not any(counts.values()):
        text = f"Nothing here yet. {words.add}"
    elif waits and not any(one["state"] != "gone" for one in found["workers"]):
        text = f"{words.many.capitalize()} wait, and no worker is running. Start one: {words.do_start()}"
    elif counts[words.dead]:
        what, see = f"{words.dead.capitalize()} {words.many}", words.do("dead")
        text = f"{what} can be run again: {see}, {words.do('retry', 'ID')}"
    else:
        return ""
    return styled(text, dim=True)
