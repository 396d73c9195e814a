"""The line of a lane: work in order of rank, of which the store may hold more than is in mind."""

import pytest

from runcue.core.model.record import Record, Spec
from runcue.core.schedule import line
from runcue.core.schedule.line import SHORTEST_PAGE, Line, Page
from runcue.core.schedule.plan import Key

BEYOND: Key = (float("inf"), 0)


class Stock:
    """A store of ranks, and a line that reads from it."""

    def __init__(self, *ranks: float) -> None:
        self.records: dict[str, Record] = {}
        self.stored = [make(seq, rank) for seq, rank in enumerate(ranks, 1)]
        self.reads: list[Key | None] = []
        self.line = Line(self.records)
        self.line.page = self.page
        self.line.reset(None if not ranks else (ranks[0], 1))

    def page(self, after: Key | None, limit: int) -> Page:
        self.reads.append(after)
        rest = [one for one in self.stored if after is None or (one.rank, one.seq) > after][:limit]
        self.records.update((one.id, one) for one in rest)
        return rest, (rest[-1].rank, rest[-1].seq) if rest else after, len(rest) >= limit

    def push(self, seq: int, rank: float) -> Record:
        record = make(seq, rank)
        self.records[record.id] = record
        self.line.push(record)
        return record

    def take(self, most: int, limit: Key = BEYOND) -> list[int]:
        return [record.seq for record in self.line.take(most, limit)]


def make(seq: int, rank: float) -> Record:
    return Record(f"w{seq}", Spec(f"w{seq}", "task", b"{}", ()), seq, rank, 0.0)


def full(more: int = 8) -> Stock:
    """A stock of one page and some more, ranked 1, 2, 3, …"""
    return Stock(*(float(rank) for rank in range(1, SHORTEST_PAGE + more + 1)))


def test_the_first_is_known_before_anything_is_read() -> None:
    stock = full()
    assert stock.line.key() == (1.0, 1)
    assert stock.reads == []


def test_what_came_in_this_turn_may_be_before_all_that_is_stored() -> None:
    stock = full()
    stock.push(100, 0.5)
    assert stock.line.key() == (0.5, 100)
    assert stock.reads == []


def test_pages_follow_one_another_in_order() -> None:
    stock = full(more=3)
    amount = len(stock.stored)
    assert stock.take(5) == [1, 2, 3, 4, 5]
    assert stock.take(amount) == list(range(6, amount + 1))
    assert stock.reads == [None, (float(SHORTEST_PAGE), SHORTEST_PAGE)]
    assert not stock.line.more
    assert stock.line.head() is None


def test_a_page_is_as_long_as_there_is_room() -> None:
    stock = full(more=40)
    assert len(stock.take(SHORTEST_PAGE + 20)) == SHORTEST_PAGE + 20
    assert stock.reads == [None]


def test_what_came_in_this_turn_takes_its_place_on_the_page_that_is_read() -> None:
    stock = full()
    stock.push(100, 2.5)
    assert stock.take(4) == [1, 2, 100, 3]


def test_what_came_in_this_turn_beyond_the_page_waits_for_the_next() -> None:
    stock = full(more=3)
    amount = len(stock.stored)
    stock.push(100, amount - 0.5)
    stock.push(101, 1_000.0)
    taken = stock.take(amount + 10)
    assert taken == [*range(1, amount), 100, amount, 101]


def test_what_comes_beyond_the_end_is_not_put_before_what_the_store_has() -> None:
    stock = full(more=3)
    stock.take(SHORTEST_PAGE - 1)
    stock.push(100, SHORTEST_PAGE + 1.5)
    stock.push(101, SHORTEST_PAGE - 0.5)
    assert stock.take(5) == [101, SHORTEST_PAGE, SHORTEST_PAGE + 1, 100, SHORTEST_PAGE + 2]


def test_several_beyond_the_end_wait_as_well() -> None:
    stock = full(more=1)
    stock.take(1)
    several = [make(100, 500.0), make(101, 501.0)]
    stock.records.update((one.id, one) for one in several)
    stock.line.extend(several)
    assert [one.seq for one in stock.line.fresh] == [100, 101]
    assert stock.take(100)[-2:] == [100, 101]


def test_what_was_written_is_read_and_not_kept_twice() -> None:
    stock = full()
    stock.take(1)
    late = stock.push(100, 1_000.0)
    stock.line.written()
    assert stock.line.fresh == []
    stock.stored.append(late)
    assert stock.take(100).count(100) == 1


def test_of_a_line_that_got_very_long_the_end_is_left_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "MOST", 10)
    stock = Stock()
    for seq in range(1, 11):
        stock.stored.append(stock.push(seq, float(seq)))
    stock.line.shorten()
    assert len(stock.records) == 10
    stock.stored.insert(0, stock.push(11, 0.5))
    stock.line.left()  # another one is gone
    del stock.records["w2"], stock.stored[2]
    stock.line.shorten()
    assert [*stock.records] == ["w1", "w3", "w4", "w5", "w11"]
    stock.push(12, 4.5)
    stock.push(13, 100.0)
    assert [record.seq for record in stock.line.fresh] == [13], "it comes after what the store has"
    assert stock.take(100) == [11, 1, 3, 4, 12, 5, 6, 7, 8, 9, 10, 13]


def test_a_long_line_of_which_nothing_is_left_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "MOST", 10)
    stock = Stock()
    for seq in range(1, 13):
        stock.push(seq, float(seq))
    stock.records.clear()
    stock.line.shorten()
    assert stock.take(100) == []
    assert stock.reads == []


def test_a_line_that_no_store_has_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "MOST", 2)
    stock = Stock()
    stock.line.page = None
    for seq in range(1, 6):
        stock.push(seq, float(seq))
    stock.line.shorten()
    assert stock.take(100) == [1, 2, 3, 4, 5]


def test_a_line_that_was_reset_begins_with_what_the_store_says() -> None:
    stock = full()
    stock.take(1)
    stock.push(100, 1.5)
    assert not stock.line.is_untouched
    del stock.stored[:10]
    stock.line.reset((11.0, 11))
    assert stock.line.is_untouched
    assert stock.take(2) == [11, 12]


def test_a_line_of_an_empty_index_key_reads_nothing() -> None:
    stock = full()
    stock.line.reset(None)
    assert stock.line.key() is None
    assert stock.take(3) == []
    assert stock.reads == []


def test_an_index_key_that_is_empty_after_all_has_no_head() -> None:
    stock = full()
    stock.stored.clear()
    assert stock.line.key() == (1.0, 1)
    assert stock.line.head() is None
    assert not stock.line.more


def test_a_page_of_which_nothing_is_left_is_followed_by_the_next() -> None:
    stock = full(more=2)
    stock.take(1)
    for seq in range(2, SHORTEST_PAGE + 1):
        del stock.records[f"w{seq}"]
        stock.line.left()
    head = stock.line.head()
    assert head is not None
    assert head.seq == SHORTEST_PAGE + 1


def test_nothing_is_taken_beyond_the_limit_over_the_end_of_a_page() -> None:
    stock = full()
    last = float(SHORTEST_PAGE + 2)
    assert stock.take(100, (last, SHORTEST_PAGE + 2)) == list(range(1, SHORTEST_PAGE + 3))


def test_when_one_left_the_first_is_read_and_not_believed() -> None:
    stock = Stock(1.0, 2.0, 3.0)
    assert stock.line.key() == (1.0, 1)
    assert not stock.reads
    del stock.stored[0]
    stock.line.left()
    assert stock.line.key() == (2.0, 2)
    assert stock.reads == [None]
