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
"""How many waiting jobs are asked for their reason, the newest; of the rest only the number is told."""
OLDER = "older"
"""What stands in place of a reason for those."""
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
    """What is shown without the seconds that pass by themselves."""
    if not isinstance(shown, dict):
        return shown
    workers = [{**one, "silent_for": None} for one in shown["workers"]]
    waiting = [{**one, "seconds": None} for one in shown["waiting"]]
    services = [{**one, "seconds": None} for one in shown["services"]]
    return {**shown, "workers": workers, "waiting": waiting, "services": services}


# as data ------------------------------------------------------------------------------------------------


def _nothing(words: Words) -> dict[str, Any]:
    """How a queue stands that nobody has made yet."""
    return {
        words.many: dict.fromkeys(words.states, 0),
        "workers": [],
        "services": [],
        "paused": [],
        "waiting": [],
        "failures": [],
    }


def _overview(place: Place, reader: runcue.Reader) -> dict[str, Any]:
    """How a queue stands."""
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
    """Why jobs wait, each reason with its number and the shortest time left, most frequent first."""
    words = place.words
    if not sum(counts[state] for state in words.waiting):
        return []

    jobs = [job for state in words.waiting for job in place.rows(reader, state, limit=MOST_EXPLAINED)]
    numbers: Counter[str] = Counter()
    soonest: dict[str, float] = {}
    for why, text in waits(reader, jobs, now, Crew(workers), words).values():
        reason = label(text, words)
        numbers[reason] += 1
        if why.until is not None:
            soonest[reason] = min(soonest.get(reason, why.until), why.until)
    found: list[dict[str, Any]] = [
        {"reason": reason, words.many: number, "seconds": _seconds(soonest.get(reason), now)}
        for reason, number in numbers.most_common()
    ]
    rest = sum(counts[state] for state in words.waiting) - sum(numbers.values())
    if rest > 0:
        found.append({"reason": OLDER, words.many: rest, "seconds": None})
    return found


def _seconds(until: float | None, now: float) -> float | None:
    return None if until is None else round(max(0.0, until - now), 3)


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
    """The screen, line by line."""
    heading = words.many.capitalize()
    lines = [*_lines(heading, _jobs(found[words.many])), *_lines("Workers", _workers(found["workers"]))]
    if found["paused"]:
        lines += _lines("Paused", _paused(found["paused"]))
    if found["waiting"]:
        lines += _lines("Waiting", [_reason(one, words) for one in found["waiting"]])
    if found["services"]:
        lines += ["", *_services(found["services"])]
    if found["failures"]:
        lines += ["", *_failed(found["failures"])]
    if advice := _advice(found, words):
        lines += ["", advice]
    return lines


def _lines(name: str, parts: list[str]) -> list[str]:
    """The parts after their name, on as many lines as the terminal needs."""
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


def _paused(queues: list[str]) -> list[str]:
    return [styled(f"queue {clean(queue)}", fg="yellow") for queue in queues]


def _reason(one: dict[str, Any], words: Words) -> str:
    if one["reason"] == OLDER:
        return f"{one[words.many]:,} older ones ({words.do('list', '--all')} tells why)"
    left = "" if one["seconds"] is None else f" (next in {span(one['seconds'])})"
    return f"{one[words.many]:,} {clean(one['reason'])}{left}"


def _services(found: list[dict[str, Any]]) -> list[str]:
    return aligned(*as_table(found, all_columns=False))


def _failed(jobs: list[dict[str, Any]]) -> list[str]:
    rows = [(clean(job["id"]), job["state"], tries(job), told(job["last_error"])) for job in jobs]
    return aligned(("LAST FAILURES", "STATE", "TRIES", "ERROR"), rows)


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
