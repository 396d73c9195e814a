"""The checker finds every planted bug by the name of its invariant, and nothing where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torture import history
from tests.torture.checker import (
    INVARIANTS,
    EventDraft,
    Grant,
    Storage,
    Violation,
    check,
    grants_over_rate,
    recoveries,
    windows_exceeded,
)
from tests.torture.history import Kind, Line, Log, TornHistory
from tests.torture.planted import BUGS, SEVERAL_HOSTS, Pretended
from tests.torture.seen import Limits, Policy, Rate, Row, Seen, Service

SEEDS = 40


def violations(world: Pretended) -> list[Violation]:
    """What the checker says about a pretended queue."""
    return check(
        world.history, world.dump(), world.limits, grants=world.grants, events=world.told, storage=Storage()
    )


@pytest.mark.parametrize("one_host", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_queue_that_keeps_its_promises_passes(seed: int, one_host: bool) -> None:
    world = Pretended(seed, one_host=one_host).run()
    assert violations(world) == []
    assert len(world.dump()) > 20
    assert any(line.op == "death" for line in world.history)


@pytest.mark.parametrize(("bug", "invariant"), BUGS.items())
def test_a_planted_bug_is_found_by_the_name_of_its_invariant(bug: str, invariant: str) -> None:
    one_host = bug not in SEVERAL_HOSTS
    for seed in range(SEEDS):
        found = {
            violation.invariant for violation in violations(Pretended(seed, bug, one_host=one_host).run())
        }
        if invariant in found:
            assert violations(Pretended(seed, one_host=one_host).run()) == []
            return
    pytest.fail(f"no seed below {SEEDS} gave it away")


def test_every_invariant_has_a_bug_that_breaks_it() -> None:
    assert set(BUGS.values()) | {"I9", "I14"} == set(INVARIANTS)


# --- single rules, by hand ------------------------------------------------------------------------


class Story:
    """A short history, told line by line: a line is a tenth of a second after the one before."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.rows: list[Row] = []
        self.t = 10.0

    def tell(self, actor: str, kind: Kind, op: str, **fields: Any) -> Story:
        self.t += fields.pop("wait", 0.1)
        names = ("call", "work", "attempt", "token", "services")
        known = {name: fields.pop(name) for name in names if name in fields}
        self.lines.append(Line(self.t, 1, actor, kind, op, data=fields, **known))
        return self

    def submit(self, *tags: str, answer: Kind | None = "ok", key: str | None = None) -> Story:
        call = len(self.lines) + 1
        self.tell("submitter", "invoke", "submit", call=call, tags=list(tags), key=key)
        if answer is not None:
            self.tell("submitter", answer, "submit", call=call, ids=[f"id-{tag}" for tag in tags])
        return self

    def start(self, tag: str, attempt: int = 1, actor: str = "worker", wait: float = 0.1) -> Story:
        return self.tell(actor, "info", "start", work=f"id-{tag}", attempt=attempt, token=f"{tag}.{attempt}",
                         services=("api",), tag=tag, task="work", wait=wait)  # fmt: skip

    def end(self, tag: str, attempt: int = 1, outcome: str = "ok", wait: float = 0.1) -> Story:
        return self.tell("worker", "info", "end", work=f"id-{tag}", token=f"{tag}.{attempt}", outcome=outcome,
                         wait=wait)  # fmt: skip

    def stored(self, tag: str, state: str = "completed", attempt: int = 1, **more: Any) -> Story:
        result = f"{tag}.{attempt}" if state == "completed" else None
        row = {
            "id": f"id-{tag}",
            "tag": tag,
            "state": state,
            "attempt": attempt,
            "result": result,
            "depends_on": (),
        }
        self.rows.append(row | more)
        return self

    def found(self, limits: Limits | None = None, **more: Any) -> list[str]:
        checked = limits or Limits()
        return [violation.invariant for violation in check(self.lines, self.rows, checked, **more)]


def test_a_submit_without_an_answer_may_have_happened_or_not() -> None:
    assert Story().submit("a", answer=None).found() == []
    assert Story().submit("a", answer=None).start("a").end("a").stored("a").found() == []


def test_each_slot_of_a_schedule_has_one_unit_and_none_is_left_out() -> None:
    def slots(*seconds: str) -> Story:
        story = Story()
        for number, second in enumerate(seconds):
            story.stored(f"schedule/tick/2026-01-01T00:00:{second}Z", id=f"u{number}")
        return story

    assert [one for one in slots("00.250", "01.250", "02.250").found() if one == "I9"] == []
    assert "I9" in slots("00.250", "02.250").found()
    assert slots("00.250", "01.250", "01.250").found()[-1] == "I9"


def test_a_batch_without_an_answer_is_there_whole_or_not_at_all() -> None:
    assert Story().submit("a", "b", answer=None).stored("a", "cancelled").found() == ["I1"]
    assert Story().submit("a", "b", answer=None).stored("a", "failed").stored("b", "failed").found() == []


def test_what_a_leaving_worker_gave_up_runs_again_though_its_answer_came_later() -> None:
    story = Story().submit("a").start("a").tell("worker", "info", "down").end("a", wait=0.4)
    story.start("a", attempt=2, actor="other").end("a", attempt=2).stored("a", attempt=2)
    assert story.found(Limits(stop_within=0.3)) == []
    assert story.found(Limits(stop_within=0.5)) == ["I4"]


def test_what_was_refused_is_not_there() -> None:
    assert Story().submit("a", answer="fail").found() == []
    assert Story().submit("a", answer="fail").stored("a", "failed").found() == ["I1"]


def test_pending_after_the_drain_is_lost() -> None:
    assert Story().submit("a").stored("a", "pending").found() == ["I1"]


def test_a_result_that_nobody_gave_is_doubtful() -> None:
    assert Story().submit("a").start("a").end("a").stored("a", result="a.7").found() == ["I3"]


def test_a_start_after_a_death_is_called_for_and_after_a_clean_end_is_not() -> None:
    story = Story().submit("a").start("a").end("a")
    story.tell("parent", "info", "death", target="worker", clean=False).start("a", 2, "other").stored(
        "a", "cancelled", 2
    )
    assert story.found() == []
    story = Story().submit("a").start("a").end("a")
    story.tell("parent", "info", "death", target="worker", clean=True).start("a", 2, "other").stored(
        "a", "cancelled", 2
    )
    assert story.found() == ["I4"]


def test_a_retry_waits_as_its_policy_says() -> None:
    limits = Limits(tasks={"work": Policy(attempts=2, delay=0.5)})
    story = Story().submit("a").start("a").end("a", outcome="fail")
    assert story.start("a", 2).end("a", 2).stored("a", attempt=2).found(limits) == ["I11"]
    story = Story().submit("a").start("a").end("a", outcome="fail")
    assert story.start("a", 2, wait=0.6).end("a", 2).stored("a", attempt=2).found(limits) == []


def test_the_time_in_which_nobody_could_work_is_no_recovery_time() -> None:
    story = Story().tell("worker", "info", "up").submit("a").start("a")
    story.tell("parent", "info", "death", target="worker").tell("other", "info", "up", wait=30.0)
    story.tell("parent", "info", "stop", target="third").tell(
        "parent", "info", "go", target="third", wait=30.0
    )
    story.start("a", 2, "other", wait=0.5).tell(
        "other", "info", "end", work="id-a", token="a.2", outcome="ok"
    )
    story.stored("a", attempt=2)
    assert story.found() == []
    assert recoveries(Seen(story.lines, story.rows, Limits())) == pytest.approx([0.6])
    assert story.found(Limits(recovery=0.5)) == ["I10"]


def test_the_time_that_the_machine_gave_to_others_is_no_recovery_time() -> None:
    story = Story().tell("worker", "info", "up").tell("other", "info", "up").submit("a").start("a")
    story.tell("parent", "info", "death", target="worker")
    for share in (0.1, 0.1, 1.0):
        story.tell("parent", "info", "share", since=story.t, share=share, wait=2.0)
    story.start("a", 2, "other", wait=0.5).tell(
        "other", "info", "end", work="id-a", token="a.2", outcome="ok"
    )
    story.stored("a", attempt=2)
    assert recoveries(Seen(story.lines, story.rows, Limits())) == pytest.approx([2 * 0.2 + 2 * 1.0 + 0.5])
    assert story.found(Limits(recovery=3.0)) == []
    assert story.found(Limits(recovery=2.8)) == ["I10"]


def test_a_window_is_exceeded_wherever_it_begins() -> None:
    edge = [0.9, 0.95, 1.01, 1.02]
    assert windows_exceeded(edge, Rate(3, 1.0), 0.0) == [(0.9, pytest.approx(0.12))]
    assert windows_exceeded([0.0, 0.5, 1.0, 1.5], Rate(2, 1.0), 0.0) == []
    assert windows_exceeded([0.0, 0.5, 0.998], Rate(2, 1.0), 0.0) != []
    assert windows_exceeded([0.0, 0.5, 0.998], Rate(2, 1.0), 0.005) == []


def test_grants_are_held_to_the_rate_exactly() -> None:
    limits = Limits(services={"api": Service(rates=(Rate(2, 1.0),))})
    assert Story().found(limits, grants=[Grant("api", 5.0, 2), Grant("api", 6.0)]) == []
    assert Story().found(limits, grants=[Grant("api", 5.0, 2), Grant("api", 5.999)]) == ["I6"]


def test_starts_count_from_when_they_were_granted_whatever_time_they_had_to_begin() -> None:
    """What is stored is the end of that time: 20 ms on a busy machine, 10 ms on one that is quiet again."""
    limits = Limits(services={"api": Service(rates=(Rate(2, 1.0),))})
    for second, third, counted_at, found in (
        (5.0, 6.0, 6.01, 0),
        (5.0, 5.999, 6.01, 1),
        (5.0, 5.999, 6.1, 1),
        (5.0, 6.0, 5.999, 1),
    ):
        moments = {"a": 5.0, "b": second, "c": third}
        counted = {"a": 5.02, "b": second + 0.02, "c": counted_at}
        grants = [Grant("api", at, work=work) for work, at in counted.items()]
        told = [EventDraft(seq, "started", work, at=at) for seq, (work, at) in enumerate(moments.items())]
        assert len(list(grants_over_rate(grants, limits, told))) == found


def test_each_start_is_counted_and_what_was_given_back_is_not() -> None:
    limits = Limits(services={"api": Service(rates=(Rate(1, 1.0),))})
    told = [EventDraft(1, "started", "a", at=5.0), EventDraft(2, "started", "a", at=5.5)]
    back = [Grant("api", 5.01, 1, "a"), Grant("api", 5.01, -1, "a"), Grant("api", 5.51, 1, "a")]
    assert list(grants_over_rate(back, limits, told)) == []
    assert len(list(grants_over_rate([back[0], back[2]], limits, told))) == 1, "two within one second"
    assert len(list(grants_over_rate(back[2:], limits, told))) == 1, "the first is not counted"


def test_nothing_is_told_after_the_end() -> None:
    story = Story().submit("a").stored("a", "cancelled")
    told = [EventDraft(1, "queued", "id-a"), EventDraft(2, "cancelled", "id-a", True)]
    assert story.found(events=told) == []
    assert story.found(events=[*told, EventDraft(3, "started", "id-a")]) == ["I12", "I12"]
    assert story.found(events=told[:1]) == ["I12"]


@pytest.mark.parametrize(
    "storage",
    [
        Storage(integrity=("row 3 missing from index",)),
        Storage(foreign_keys=("edges",)),
        Storage(version=1, expected_version=2),
        Storage(modes={"queue.db": 0o100644}),
        Storage(modes={"queue.db.runcue/": 0o040755}),
    ],
)
def test_an_unsound_file_is_named(storage: Storage) -> None:
    assert Story().found(storage=storage) == ["I14"]


# --- histories on disk ----------------------------------------------------------------------------


def test_lines_of_all_actors_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    one, two = Log(tmp_path, "one"), Log(tmp_path, "two")
    call = one.invoke("submit", tags=["a"])
    two.write("info", "start", work="id-a", token="a.1", services=("api",), tag="a")
    one.write("ok", "submit", call=call, ids=["id-a"])
    one.close()
    two.close()
    lines = history.read(tmp_path)
    assert [(line.actor, line.op, line.call) for line in lines] == [
        ("one", "submit", 1),
        ("two", "start", 0),
        ("one", "submit", 1),
    ]
    assert lines[1].services == ("api",)


def test_a_torn_last_line_counts_as_not_written(tmp_path: Path) -> None:
    log = Log(tmp_path, "one")
    log.write("info", "up")
    log.write("info", "down")
    log.close()
    file = tmp_path / "one.history"
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert [line.op for line in history.read(tmp_path)] == ["up"]
    file.write_bytes(whole[5:])
    with pytest.raises(TornHistory, match=r"one\.history"):
        history.read(tmp_path)
