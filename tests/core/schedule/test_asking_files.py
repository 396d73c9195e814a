"""Work that lacks a declared input: when it is asked about again, and because of whom."""

import pytest

from runcue.core.schedule.gates import FEW, FIRST_WAIT, LONGEST_WAIT, Allowance, MissingFiles, Questions
from runcue.core.schedule.plan import Plan, Verdicts
from tests.core.bench_of_core import Bench, limits

FILES = Questions(files=True)
BOTH = Questions(files=True, ready=True)


def lacking(bench: Bench, **files: str) -> None:
    """Each of these works was found to lack that file."""
    verdicts = [
        bench.verdict(work_id, ready=False, why="lacks", lacks=path) for work_id, path in files.items()
    ]
    bench.turn(Verdicts(verdicts))


def finish(bench: Bench, work_id: str, *makes: str) -> Plan:
    """That work completes and makes these files."""
    outcome = bench.success(work_id)
    outcome.makes = makes
    return bench.turn(outcome)


def producing(*consumers: str, questions: Questions = FILES) -> Bench:
    """A bench on which "producer" runs while these are asked about."""
    bench = Bench(questions=questions)
    bench.submit("producer")
    bench.answer("producer")
    bench.submit(*consumers)
    return bench


def test_declared_files_are_a_gate() -> None:
    assert FILES.gates
    assert not Questions(score=True).gates


def test_completing_a_producer_has_exactly_its_consumers_asked() -> None:
    bench = producing("a", "b", "c")
    lacking(bench, a="/a", b="/b", c="/c")
    finish(bench, "producer", "/b")
    assert bench.asked == ["b"]


def test_all_consumers_of_one_file_are_asked_in_the_order_they_came() -> None:
    bench = producing("a", "b", "c", "d")
    lacking(bench, a="/x", b="/x", c="/x", d="/y")
    finish(bench, "producer", "/x")
    assert bench.asked == ["a", "b", "c"]


def test_a_completion_that_makes_nothing_asked_for_asks_nobody() -> None:
    bench = producing("a")
    lacking(bench, a="/a")
    finish(bench, "producer", "/elsewhere")
    assert bench.asked == []
    assert bench.plan.wake_at == bench.now + FIRST_WAIT


def test_who_is_held_back_by_a_callback_is_asked_at_any_completion() -> None:
    bench = producing("a", "b", questions=BOTH)
    bench.turn(
        Verdicts(
            [
                bench.verdict("a", ready=False, why="lacks", lacks="/a"),
                bench.verdict("b", ready=False, why="not_ready"),
            ]
        )
    )
    finish(bench, "producer")
    assert bench.asked == ["b"]


def test_a_file_from_outside_is_found_by_the_clock() -> None:
    bench = Bench(questions=FILES)
    bench.submit("a")
    rests = []
    for _ in range(12):
        lacking(bench, a="/a")
        rests.append(bench.plan.wake_at - bench.now)
        bench.wake()
        assert bench.asked == ["a"]
    assert rests[0] == pytest.approx(FIRST_WAIT)
    assert rests == sorted(rests)
    assert rests[-1] == pytest.approx(LONGEST_WAIT)


def test_who_was_woken_in_vain_is_asked_again_soon() -> None:
    bench = producing("a")
    for _ in range(12):
        lacking(bench, a="/a")
        bench.wake()
    lacking(bench, a="/a")
    finish(bench, "producer", "/a")
    assert bench.asked == ["a"]
    lacking(bench, a="/a")  # a network share may show it a little later
    assert bench.plan.wake_at == pytest.approx(bench.now + FIRST_WAIT)


def test_a_file_made_while_its_consumer_is_being_asked_has_it_asked_once_more() -> None:
    bench = producing("a")
    assert bench.asked == ["a"]
    finish(bench, "producer", "/a", "/b")
    lacking(bench, a="/a")
    assert bench.asked == ["a"]
    lacking(bench, a="/a")  # that answer is newer than the file
    assert bench.asked == []
    gates = bench.scheduler.ledger.gates
    assert gates is not None
    assert not gates._missing_files.made  # nobody is being asked


def test_a_file_made_before_a_question_does_not_answer_the_next() -> None:
    bench = producing("a")
    finish(bench, "producer", "/a")
    lacking(bench, a="/other")
    assert bench.asked == []
    bench.wake()
    lacking(bench, a="/a")  # it is gone again
    assert bench.asked == []


def test_skipping_a_producer_has_its_consumers_asked() -> None:
    bench = Bench(questions=FILES)
    bench.submit("consumer", "other")
    lacking(bench, consumer="/a", other="/b")
    bench.submit("producer")
    bench.answer("producer", stale=False, makes=("/a",))
    assert bench.state("producer") == "completed"
    assert bench.asked == ["consumer"]


def test_a_producer_and_its_consumer_answered_together_leave_nobody_waiting() -> None:
    bench = Bench(questions=FILES)
    bench.submit("producer", "consumer")
    bench.turn(
        Verdicts(
            [
                bench.verdict("producer", stale=False, makes=("/a",)),
                bench.verdict("consumer", ready=False, why="lacks", lacks="/a"),
            ]
        )
    )
    assert bench.asked == ["consumer"]


def test_who_went_away_is_not_asked_when_the_file_comes() -> None:
    bench = producing("a", "b", "c")
    lacking(bench, a="/x", b="/x", c="/c")
    bench.cancel("a")
    bench.cancel("c")
    finish(bench, "producer", "/x", "/c")
    assert bench.asked == ["b"]


def test_the_woken_wait_for_their_share_of_the_time_and_go_before_the_never_asked() -> None:
    bench = producing("a", "b")
    lacking(bench, a="/a", b="/b")
    bench.allowance = Allowance(first=1, again=0)
    outcome = bench.success("producer")
    outcome.makes = ("/a", "/b")
    bench.turn(outcome, bench.submission("fresh"))
    assert bench.asked == ["a"]
    assert bench.plan.again == 0
    assert bench.plan.wake_at == pytest.approx(bench.now + FIRST_WAIT / 5)
    bench.wake()
    assert bench.asked == ["b"]
    bench.wake()
    assert bench.asked == ["fresh"]


def test_the_woken_who_left_before_their_turn_are_passed_over() -> None:
    bench = producing("a", "b")
    lacking(bench, a="/a", b="/a")
    bench.allowance = Allowance(first=0, again=0)
    finish(bench, "producer", "/a")
    bench.cancel("a")
    bench.allowance = Allowance()
    bench.turn()
    assert bench.asked == ["b"]


def test_the_woken_of_a_closed_queue_are_asked_when_it_is_opened() -> None:
    bench = producing("a")
    lacking(bench, a="/a")
    bench.pause("default")
    finish(bench, "producer", "/a")
    assert bench.asked == []
    bench.after(60)
    assert bench.asked == []
    bench.resume("default")
    assert bench.asked == ["a"]


def test_what_it_lacks_is_told_to_who_asks_why() -> None:
    bench = producing("a", "b")
    bench.turn(
        Verdicts(
            [
                bench.verdict("a", ready=False, why="lacks", lacks="/pages/1.png"),
                bench.verdict("b", ready=False, why="unseen"),
            ]
        )
    )
    assert [(why.reason, why.details) for why in map(bench.why, ("a", "b"))] == [
        ("not_ready", "its input /pages/1.png is not there"),
        ("not_ready", "its files cannot be looked at"),
    ]


def test_questions_that_were_asked_often_leave_nothing_behind() -> None:
    bench = Bench(limits(), questions=FILES, allowance=Allowance(first=FEW, again=0))
    bench.submit("producer")
    bench.answer("producer")
    bench.submit("a", "b")
    lacking(bench, a="/a", b="/b")
    gates = bench.scheduler.ledger.gates
    assert gates is not None
    for _ in range(2 * FEW):  # each wake-up leaves an entry among those who rest
        gates.completed(("/a",))
        bench.turn()
        lacking(bench, a="/a")
    assert sum(map(len, gates._resting.values())) <= FEW + 20
    assert not gates._recheck
    bench.allowance = Allowance()
    bench.after(1)
    assert sorted(bench.asked) == ["a", "b"]


# --- The book of who lacks what -------------------------------------------------------------------


def test_one_who_waits_for_a_file_is_taken_once() -> None:
    book = MissingFiles()
    book.add("/x", "a")
    assert list(book.take("/x")) == ["a"]
    assert list(book.take("/x")) == []


def test_several_who_wait_for_a_file_are_taken_together() -> None:
    book = MissingFiles()
    for work_id in "abc":
        book.add("/x", work_id)
    book.drop("/x", "b")
    book.drop("/x", "nobody")
    assert list(book.take("/x")) == ["a", "c"]


def test_a_file_nobody_waits_for_any_more_is_forgotten() -> None:
    book = MissingFiles()
    for work_id in "ab":
        book.add("/x", work_id)
    book.add("/y", "c")
    for path, work_id in (("/x", "a"), ("/x", "b"), ("/y", "c"), ("/y", "c"), ("/z", "d")):
        book.drop(path, work_id)
    assert [list(book.take(path)) for path in ("/x", "/y")] == [[], []]
    assert not book._waiting


def test_another_than_the_one_who_waits_changes_nothing() -> None:
    book = MissingFiles()
    book.add("/x", "a")
    book.drop("/x", "b")
    assert list(book.take("/x")) == ["a"]


def test_only_what_was_made_since_the_oldest_question_is_remembered() -> None:
    book = MissingFiles()
    for number in range(1, 5 * FEW):
        book.note(f"/{number}", number, lambda: number - 10)  # noqa: B023 (it is called at once)
    assert len(book.made) <= FEW + 11
    assert book.made[f"/{5 * FEW - 1}"] == 5 * FEW - 1
    for number in range(5 * FEW, 9 * FEW):
        book.note(f"/{number}", number, lambda: 5 * FEW)
    assert len(book.made) == 4 * FEW - 1
    assert min(book.made.values()) > 5 * FEW


def test_whatever_is_made_while_somebody_is_asked_is_kept_for_the_answer_however_much_it_is() -> None:
    bench = producing("a")
    finish(bench, "producer", *(f"/{number}" for number in range(FEW + 5)))
    assert bench.asked == []
    lacking(bench, a="/3")
    assert bench.asked == ["a"]
