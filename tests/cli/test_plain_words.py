"""What people are shown can be read without knowing how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue.cli import reasons
from runcue.cli.commands import status
from runcue.cli.home import Home
from runcue.cli.reasons import Crew, sentence, short, told, tries
from runcue.cli.services import standing
from runcue.cli.top import lines
from runcue.cli.words import QUEUECTL


@pytest.mark.parametrize(
    ("state", "failed", "shown"),
    [
        ("pending", 0, "0/3"),
        ("processing", 0, "1/3"),
        ("running", 1, "2/3"),
        ("completed", 0, "1/3"),
        ("completed", 2, "3/3"),
        ("failed", 1, "1/3"),
        ("dead", 3, "3/3"),
        ("cancelled", 0, "0/3"),
    ],
)
def test_tries_counts_attempts_also_the_one_that_runs_and_the_one_that_succeeded(
    state: str, failed: int, shown: str
) -> None:
    assert tries({"state": state, "attempts": failed, "max_retries": 3}) == shown


def test_what_was_skipped_was_not_tried() -> None:
    assert tries({"state": "completed", "attempts": 0, "max_retries": None, "skipped": True}) == "0"


def test_status_says_where_the_reasons_of_older_jobs_are(
    stock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MOST_EXPLAINED", 1)
    found = status._look(Home(str(stock)))
    assert found["waiting"][-1] == {"reason": "older", "jobs": 3, "seconds": None}
    assert "3 older ones (queuectl list --all tells why)" in "\n".join(status.lines_of(found, QUEUECTL))


@pytest.mark.parametrize(
    ("gone", "words"),
    [(1, "1 died (what it ran is run again)"), (2, "2 died (what they ran is run again)")],
)
def test_status_says_what_becomes_of_what_dead_workers_ran(gone: int, words: str) -> None:
    alive, dead = {"state": "alive", "running": 0}, {"state": "gone", "running": 1}
    assert status._workers([alive, *[dead] * gone]) == ["1 alive", "0 busy", words]


def service(**more: Any) -> dict[str, Any]:
    known = {"name": "api", "running": 4, "concurrent": None, "rates": [], "quantities": [], "circuit": None}
    return {**known, "paused": False, "blocked": None, "seconds": None, **more}


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, "ready"),
        ({"paused": True, "blocked": "paused"}, "paused"),
        ({"blocked": "rate", "seconds": 53.0}, "rate used up, 53 s"),
        ({"blocked": "concurrency"}, "all slots taken"),
        ({"blocked": "throttled", "seconds": 30.0}, "asked for a pause, 30 s"),
        ({"blocked": "circuit", "circuit": "open", "seconds": 240.0}, "circuit open, 4 m"),
        ({"blocked": "circuit", "circuit": "half_open"}, "circuit half open"),
    ],
)
def test_a_service_says_in_words_what_holds_it_back(more: dict[str, Any], shown: str) -> None:
    assert standing(service(**more)) == shown


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"rates": [{"rate": "4/s", "used": 4, "limit": 4}]}, "4 of 4/s"),
        (
            {
                "rates": [{"rate": "60/min", "used": 6, "limit": 60}],
                "quantities": [{"name": "tokens", "used": 150_000, "limit": 200_000}],
            },
            "150,000 of 200,000 tokens",
        ),
        ({}, "-"),
    ],
)
def test_top_says_how_much_of_the_fullest_rate_is_used(more: dict[str, Any], shown: str) -> None:
    parts = [text.strip() for text, _ in lines._service(service(**more), 10)]
    assert parts[3] == shown


@pytest.mark.parametrize("error", sorted(reasons.NEVER_RAN))
def test_a_job_that_never_ran_says_so_on_a_terminal_and_keeps_its_code_in_a_pipe(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(error) == error
    monkeypatch.setattr(reasons, "is_terminal", lambda: True)
    assert told(error).startswith("never ran: what it runs after ")


def test_a_job_that_nobody_has_decided_over_yet_was_accepted() -> None:
    why = runcue.Explanation(
        "a", runcue.WorkState.PENDING, "inbox", "accepted; the deciding process has yet to take it in"
    )
    job = {"id": "a", "state": "pending"}
    busy = Crew([{"serving": True, "state": "alive", "queues": None, "running": 1}])
    assert sentence(why, job, 0.0, busy, None) == "a was accepted; the next turn decides about it."
    assert "no worker is running" in sentence(why, job, 0.0, Crew([]), None)
    assert short(why, job, 0.0, busy, None) == "just accepted"
    assert short(why, job, 0.0, Crew([]), None) == "no worker"
