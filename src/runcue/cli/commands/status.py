"""`queuectl status`: the whole queue on one screen, once or live."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from runcue.cli.groups import verb
from runcue.cli.home import Home

INTERVAL = 0.25
"""Seconds between two looks of `--watch`."""


@verb("status", examples=["queuectl status", "queuectl status --watch", "queuectl status --json | jq .jobs"])
@click.option("--watch", is_flag=True, help="Keep showing it until Ctrl-C (exit code 130).")
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object; with --watch one line for each change."
)
@click.pass_obj
def command(home: Home, watch: bool, as_json: bool) -> None:
    """Show jobs, workers, services, what waits and why, and the last failures."""
    from runcue.cli.screen import say, show_json

    if watch:
        _watch(home, as_json)
        return
    found = _look(home)
    if as_json:
        show_json(found)
        return
    for line in lines_of(found, is_there=home.exists):
        say(line)


def _look(home: Home) -> dict[str, Any]:
    from runcue.cli.overview import nothing, overview

    if not home.exists:
        return nothing()
    with home.reader() as reader:
        return overview(reader)


def _watch(home: Home, as_json: bool) -> None:
    import time

    from runcue.cli.screen import is_terminal, live, say, show_json

    if not as_json and is_terminal():
        with live() as draw:
            while True:
                draw(lines_of(_look(home), is_there=home.exists))
                time.sleep(INTERVAL)
    last: object = None
    while True:
        found = _look(home)
        shown: object = found if as_json else lines_of(found, is_there=home.exists)
        if _still(shown) != last:
            last = _still(shown)
            if as_json:
                show_json(found, pretty=False)
            else:
                say("\n".join((*lines_of(found, is_there=home.exists), "")))
            _flush()
        time.sleep(INTERVAL)


def _still(shown: object) -> object:
    """What is shown without the seconds that pass by themselves."""
    if not isinstance(shown, dict):
        return shown
    workers = [{**one, "silent_for": None} for one in shown["workers"]]
    waiting = [{**one, "seconds": None} for one in shown["waiting"]]
    services = [{**one, "seconds": None} for one in shown["services"]]
    return {**shown, "workers": workers, "waiting": waiting, "services": services}


def _flush() -> None:
    import sys

    if sys.stdout is not None:
        sys.stdout.flush()


# as text --------------------------------------------------------------------------------------------------


def lines_of(found: dict[str, Any], *, is_there: bool) -> list[str]:
    """The screen, line by line."""
    lines = [*_lines("Jobs", _jobs(found["jobs"])), *_lines("Workers", _workers(found["workers"]))]
    if found["paused"]:
        lines += _lines("Paused", _paused(found["paused"]))
    if found["waiting"]:
        lines += _lines("Waiting", [_reason(one) for one in found["waiting"]])
    if found["services"]:
        lines += ["", *_services(found["services"])]
    if found["failures"]:
        lines += ["", *_failures(found["failures"])]
    if advice := _advice(found, is_there=is_there):
        lines += ["", advice]
    return lines


def _lines(name: str, parts: list[str]) -> list[str]:
    """The parts after their name, on as many lines as the terminal needs."""
    from runcue.cli.screen import fitted, styled

    heads = (styled(f"{name:<7}", bold=True), " " * 7)
    return [f"{heads[number > 0]} {line}" for number, line in enumerate(fitted(parts, " · ", indent=8))]


def _jobs(counts: dict[str, int]) -> list[str]:
    from runcue.cli.screen import STATE_COLORS, styled

    shown = []
    for state, number in counts.items():
        text = f"{number:,} {state}"
        shown.append(styled(text, fg=STATE_COLORS[state]) if number else styled(text, dim=True))
    return shown


def _workers(workers: list[dict[str, Any]]) -> list[str]:
    from runcue.cli.screen import styled

    states = Counter(one["state"] for one in workers)
    gone = states.pop("gone", 0)
    shown = [f"{number} {state}" for state, number in states.items()] or [styled("none", dim=True)]
    if states:
        shown.append(f"{sum(one['running'] > 0 for one in workers if one['state'] != 'gone')} busy")
    return [*shown, f"{gone} gone"] if gone else shown


def _paused(queues: list[str]) -> list[str]:
    from runcue.cli.screen import clean, styled

    return [styled(f"queue {clean(queue)}", fg="yellow") for queue in queues]


def _reason(one: dict[str, Any]) -> str:
    from runcue.cli.screen import clean, span

    left = "" if one["seconds"] is None else f" (next in {span(one['seconds'])})"
    return f"{one['jobs']:,} {clean(one['reason'])}{left}"


def _services(services: list[dict[str, Any]]) -> list[str]:
    from runcue.cli.screen import aligned, clean, span

    rows = []
    for one in services:
        rates = ", ".join(f"{rate['used']} of {rate['rate']}" for rate in one["rates"])
        limit = "" if one["concurrent"] is None else f"/{one['concurrent']}"
        left = "" if one["seconds"] is None else f", {span(one['seconds'])}"
        now = "paused" if one["paused"] else f"{one['blocked']}{left}" if one["blocked"] else "open"
        rows.append(
            (clean(one["name"]), f"{one['running']}{limit}", rates or "-", one["circuit"] or "-", now)
        )
    return aligned(("SERVICE", "RUNNING", "RATE", "CIRCUIT", "NOW"), rows)


def _failures(jobs: list[dict[str, Any]]) -> list[str]:
    from runcue.cli.reasons import tries
    from runcue.cli.screen import aligned, clean, reason_of

    rows = [(clean(job["id"]), job["state"], tries(job), reason_of(job["last_error"])) for job in jobs]
    return aligned(("LAST FAILURES", "STATE", "TRIES", "ERROR"), rows)


def _advice(found: dict[str, Any], *, is_there: bool) -> str:
    from runcue.cli.screen import styled

    counts = found["jobs"]
    if not is_there or not any(counts.values()):
        text = "Nothing here yet. Add a job: queuectl enqueue -- echo hello"
    elif counts["pending"] + counts["failed"] and not any(one["state"] != "gone" for one in found["workers"]):
        text = "Jobs wait, and no worker is running. Start one: queuectl worker start"
    elif counts["dead"]:
        text = "Dead jobs can be run again: queuectl dlq list, queuectl dlq retry ID"
    else:
        return ""
    return styled(text, dim=True)
