"""A program sees the same whether its queue is in memory or in a file.

The same calls are made at the same virtual moments; answers, works, counters, services and every event have to be
equal. A difference is a mistake in runcue.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

import runcue
from runcue.testing import run
from tests.stores.traces import HORIZON, TRAITS, Seen, Step, Trace, make, played

SEEDS = range(16)


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """A trace fails on purpose, over and over: nobody wants to read that."""
    logger = logging.getLogger("runcue")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def shown(work: runcue.Work) -> dict[str, Any]:
    """All of a work but who tried it."""
    return asdict(replace(work, history=tuple(replace(line, worker=None) for line in work.history)))


def compare(memory: Seen, file: Seen) -> None:
    """Raise at the first difference."""
    assert file.answers == memory.answers
    assert file.events == memory.events
    assert {work.id: shown(work) for work in file.works} == {work.id: shown(work) for work in memory.works}
    assert file.counts == memory.counts
    assert file.services == memory.services


def both(trace: Trace, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Seen, Seen]:
    """What is seen in memory, and in a file."""
    return played(trace, None, monkeypatch), played(trace, path, monkeypatch)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_trace(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(*both(make(seed, traits=TRAITS), tmp_path / "queue.db", monkeypatch))


def test_traces_are_worth_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They start, fail, put off, throttle, cancel and revive, and not all they submit is accepted."""
    seen = [played(make(seed, traits=frozenset()), None, monkeypatch) for seed in SEEDS]
    types = {event[1] for one in seen for event in one.events}
    assert types >= {"started", "completed", "failed", "retrying", "cancelled", "circuit_opened"}
    errors = {str(work.error).partition(":")[0] for one in seen for work in one.works}
    assert errors >= {
        "prerequisite_failed",
        "timeout",
        "Permanent",
        "ConnectionError",
        "prerequisite_cancelled",
    }
    answers = [answer for one in seen for answer in one.answers]
    assert answers.count(True) > 5
    assert {answer[0] for answer in answers if isinstance(answer, tuple)} >= {"DuplicateWork", "QueueFull"}


def test_traces_have_duplicates_expiry_edits_and_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [played(make(seed, traits=TRAITS), None, monkeypatch) for seed in SEEDS]
    types = [event[1] for one in seen for event in one.events]
    assert types.count("edited") > 10
    works = [work for one in seen for work in one.works]
    assert sum(work.error == "expired" for work in works) > 5
    assert any(work.progress.text == "attempt 2" for work in works)
    answers = [answer for one in seen for answer in one.answers if isinstance(answer, tuple)]
    assert any("by unique=" in answer[1] for answer in answers)
    assert {"WorkNotEditable", "WorkNotFound"} <= {answer[0] for answer in answers}


def note(**arguments: Any) -> dict[str, Any]:
    """The smallest submission."""
    return {"task": "note", "params": {"sleep": 0}, **arguments}


SMALLEST: dict[str, tuple[dict[str, Any], list[Step], str]] = {
    "dependency_timeout": (
        {},
        [
            (1.0, "submit", note(id="a", depends_on=["never"], dependency_timeout=30)),
            (1.0, "submit", note(id="b", depends_on=["never"], dependency_timeout=30)),
        ],
        "whoever looked at one forgot when to look at the next",
    ),
    "pending_timeout": (
        {"pending_timeout": 20},
        [
            (1.0, "submit", note(id="a", depends_on=["never"])),
            (1.0, "submit", note(id="b", depends_on=["never"])),
        ],
        "whoever looked at one forgot when to look at the next",
    ),
    "stall_timeout": (
        {"stall_timeout": 15},
        [
            (1.0, "pause", {"name": "default"}),
            (1.0, "submit", note(id="a")),
            (1.0, "submit", note(id="b", depends_on=["a"])),
        ],
        "in a file what stalls fails index key by index key, so b before a",
    ),
    "drop_oldest": (
        {"max_queued": 2, "reject_policy": "drop_oldest"},
        [
            (1.0, "pause", {"name": "default"}),
            (1.0, "submit", note(id="a", delay=100)),
            (1.0, "submit", note(id="b", depends_on=["never"])),
            (1.0, "submit", note(id="c")),
        ],
        "in a file only work in mind can be dropped; when there is none the turns end",
    ),
}


@pytest.mark.parametrize(
    ("options", "steps"),
    [pytest.param(options, steps, id=name) for name, (options, steps, _) in SMALLEST.items()],
)
def test_the_smallest_trace(
    options: dict[str, Any], steps: list[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps[-1][0] < HORIZON
    compare(*both(Trace(options, steps), tmp_path / "queue.db", monkeypatch))


def test_a_revived_work_is_listed_as_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Step] = [
        (1.0, "submit", note(id="a", delay=1000)),
        (1.0, "submit", note(id="b", delay=1000)),
        (1.0, "cancel", {"work_id": "a"}),
        (1.0, "retry", {"work_id": "a"}),
    ]
    memory, file = both(Trace({}, steps), tmp_path / "queue.db", monkeypatch)
    assert [work.id for work in memory.works] == [work.id for work in file.works] == ["a", "b"]


def test_a_result_that_is_no_json_fails_its_attempt_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> tuple[runcue.Work, runcue.Work]:
        cue = runcue.Cue(tmp_path / "queue.db")

        @cue.task
        async def make(work: runcue.Work) -> Any:
            return object() if work.id == "odd" else "fine"

        async with cue:
            odd = await cue.wait(await cue.submit(make, id="odd"), timeout=240)
            good = await cue.wait(await cue.submit(make), timeout=240)
        await cue.close()
        return odd, good

    odd, good = run(main())
    assert (odd.state, good.state) == (runcue.WorkState.FAILED, runcue.WorkState.COMPLETED)
    assert "JSON" in str(odd.error)
