"""The whole queue at one moment, as data: what `status` shows and `--json` prints."""

from __future__ import annotations

from collections import Counter
from typing import Any

from runcue.cli.completing import STATES
from runcue.cli.screen import moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

MOST_EXPLAINED = 250
"""How many waiting jobs are asked for their reason; of the rest only the number is told."""
LAST_FAILURES = 5


def nothing() -> dict[str, Any]:
    """How a queue stands that nobody has made yet."""
    return {
        "jobs": dict.fromkeys(STATES, 0),
        "workers": [],
        "services": [],
        "paused": [],
        "waiting": [],
        "failures": [],
    }


def overview(reader: runcue.Reader) -> dict[str, Any]:
    """How a queue stands."""
    workers = [one for one in reader.workers() if one["serving"]]
    now = reader.now()
    counts = reader.job_counts()
    return {
        "jobs": {state: counts[state] for state in STATES},
        "workers": [{**one, "started_at": moment(one["started_at"])} for one in workers],
        "services": [_service(one, now) for one in reader.services()],
        "paused": reader.paused(),
        "waiting": _waiting(reader, counts, workers, now),
        "failures": _failures(reader, counts),
    }


def _service(one: dict[str, Any], now: float) -> dict[str, Any]:
    left = None if one["until"] is None else round(max(0.0, one["until"] - now), 3)
    return {**{name: value for name, value in one.items() if name != "until"}, "seconds": left}


def _waiting(
    reader: runcue.Reader, counts: dict[str, int], workers: list[dict[str, Any]], now: float
) -> list[dict[str, Any]]:
    """Why jobs wait, each reason with its number and the shortest time left, most frequent first."""
    if not counts["pending"] + counts["failed"]:
        return []
    from runcue.cli.reasons import Crew, label, waits

    jobs = [job for state in ("pending", "failed") for job in reader.jobs(state, limit=MOST_EXPLAINED)]
    numbers: Counter[str] = Counter()
    soonest: dict[str, float] = {}
    for why, text in waits(reader, jobs, now, Crew(workers)).values():
        reason = label(text)
        numbers[reason] += 1
        if why.until is not None:
            soonest[reason] = min(soonest.get(reason, why.until), why.until)
    found: list[dict[str, Any]] = [
        {"reason": reason, "jobs": number, "seconds": _seconds(soonest.get(reason), now)}
        for reason, number in numbers.most_common()
    ]
    rest = counts["pending"] + counts["failed"] - sum(numbers.values())
    if rest > 0:
        found.append({"reason": "not looked at", "jobs": rest, "seconds": None})
    return found


def _seconds(until: float | None, now: float) -> float | None:
    return None if until is None else round(max(0.0, until - now), 3)


def _failures(reader: runcue.Reader, counts: dict[str, int]) -> list[dict[str, Any]]:
    """The last failures: jobs that died or wait for their retry."""
    found = [
        job
        for state in ("dead", "failed")
        if counts[state]
        for job in reader.jobs(state, limit=LAST_FAILURES)
    ]
    found.sort(key=lambda job: job["updated_at"] or "", reverse=True)
    return found[:LAST_FAILURES]
