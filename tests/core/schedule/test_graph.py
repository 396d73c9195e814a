"""Who waits for whom."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.core.schedule.graph import Graph, find_cycle

NAMES = st.sampled_from("abcdef")
NEEDS = st.dictionaries(NAMES, st.lists(NAMES, max_size=4), max_size=6)


def graph_of(**needs: str) -> Graph:
    """One edge for each letter: `graph_of(c="ab")` says that c waits for a and b."""
    graph = Graph()
    for work_id, letters in needs.items():
        graph.add(work_id, letters)
    return graph


def cycle_in(needs: dict[str, list[str]] | dict[str, str], starts: Sequence[str]) -> list[str] | None:
    return find_cycle(starts, lambda work_id: list(needs.get(work_id, ())))


# --- Waiting --------------------------------------------------------------------------------------


def test_work_waits_until_everything_it_needs_is_there() -> None:
    graph = graph_of(c="ab")
    assert graph.missing("c", "xab") == ["a", "b"]
    assert graph.satisfy("a") == ["c"]
    assert graph.missing("c", "xab") == ["b"]
    assert graph.satisfy("b") == ["c"]
    assert graph.missing("c", "xab") == []


def test_an_id_may_be_waited_for_before_it_comes() -> None:
    graph = graph_of(a="z")
    assert graph.is_awaited("z")
    assert not graph.is_awaited("a")


def test_those_who_wait_for_one_are_told_together_in_the_order_they_came() -> None:
    graph = graph_of(c="a", b="a", d="ab")
    assert graph.waiters("a") == ["c", "b", "d"]
    assert graph.satisfy("a") == ["c", "b", "d"]


def test_an_id_named_twice_is_waited_for_once() -> None:
    graph = graph_of(b="aaa")
    assert graph.waiters("a") == ["b"]
    assert graph.satisfy("a") == ["b"]


def test_an_id_that_came_frees_nobody_a_second_time() -> None:
    graph = graph_of(b="a")
    graph.satisfy("a")
    assert graph.satisfy("a") == []


def test_satisfying_an_unknown_id_changes_nothing() -> None:
    graph = graph_of(b="a")
    assert graph.satisfy("z") == []
    assert graph.missing("b", "a") == ["a"]


def test_nobody_waits_in_an_empty_graph() -> None:
    graph = Graph()
    assert not graph.is_awaited("a")
    assert (graph.missing("a", "b"), graph.waiters("a")) == ([], [])


def test_a_graph_has_edges_while_anybody_waits() -> None:
    graph = graph_of(b="a")
    assert graph.edges
    graph.satisfy("a")
    assert not graph.edges


def test_work_that_ended_waits_no_longer() -> None:
    graph = graph_of(c="ab", d="b")
    graph.drop("c", "abz")
    assert graph.missing("c", "ab") == []
    assert not graph.is_awaited("a")
    assert graph.waiters("b") == ["d"]


def test_those_who_wait_for_work_that_ended_go_on_waiting() -> None:
    graph = graph_of(b="a", c="b")
    graph.drop("b", "a")
    assert graph.waiters("b") == ["c"]


def test_dropping_an_unknown_id_changes_nothing() -> None:
    graph = graph_of(b="a")
    graph.drop("z", "ax")
    assert graph.missing("b", "a") == ["a"]


def test_ten_thousand_needs_of_one_work_are_one_wait() -> None:
    graph = Graph()
    needs = [str(number) for number in range(10_000)]
    graph.add("all", needs)
    assert [graph.satisfy(need) for need in needs] == [["all"]] * 10_000
    assert not graph.edges


@given(
    needs=NEEDS,
    steps=st.lists(st.tuples(st.sampled_from(["satisfy", "drop"]), NAMES), max_size=10),
)
def test_both_directions_of_every_edge_always_agree(
    needs: dict[str, list[str]], steps: list[tuple[str, str]]
) -> None:
    graph = Graph()
    edges = {(work_id, need) for work_id, ids in needs.items() for need in ids}
    for work_id, ids in needs.items():
        graph.add(work_id, ids)
    for step, name in steps:
        if step == "drop":
            graph.drop(name, "abcdef")
            edges = {edge for edge in edges if edge[0] != name}
        else:
            assert set(graph.satisfy(name)) == {work_id for work_id, need in edges if need == name}
            edges = {edge for edge in edges if edge[1] != name}
    for name in "abcdef":
        assert set(graph.missing(name, "abcdef")) == {need for work_id, need in edges if work_id == name}
        assert set(graph.waiters(name)) == {work_id for work_id, need in edges if need == name}
        assert graph.is_awaited(name) == any(need == name for _, need in edges)


# --- Cycles ---------------------------------------------------------------------------------------


def has_cycle(needs: dict[str, list[str]], starts: Sequence[str]) -> bool:
    """The same question, asked of every path there is."""

    def returns(path: list[str]) -> bool:
        return any(need in path or returns([*path, need]) for need in needs.get(path[-1], ()))

    return any(returns([start]) for start in starts)


@given(needs=NEEDS, starts=st.lists(NAMES, max_size=3))
def test_a_cycle_is_found_exactly_when_some_path_returns_to_itself(
    needs: dict[str, list[str]], starts: list[str]
) -> None:
    assert (cycle_in(needs, starts) is not None) == has_cycle(needs, starts)


@given(needs=NEEDS, starts=st.lists(NAMES, max_size=3))
def test_a_cycle_that_is_found_is_really_one(needs: dict[str, list[str]], starts: list[str]) -> None:
    ring = cycle_in(needs, starts)
    if ring is not None:
        assert ring[0] == ring[-1]
        assert len(set(ring)) == len(ring) - 1
        assert all(need in needs[work_id] for work_id, need in pairwise(ring))


@pytest.mark.parametrize(
    ("needs", "ring"),
    [
        ({"a": "a"}, ["a", "a"]),
        ({"a": "b", "b": "a"}, ["a", "b", "a"]),
        ({"a": "b", "b": "c", "c": "b"}, ["b", "c", "b"]),
        ({"a": "bc", "b": "d", "c": "d"}, None),
        ({"a": "bb"}, None),
        ({"b": "c", "c": "b"}, None),
    ],
    ids=["itself", "two", "behind a tail", "diamond", "named twice", "out of reach"],
)
def test_the_ring_is_named_and_nothing_else(needs: dict[str, str], ring: list[str] | None) -> None:
    assert cycle_in(needs, ["a"]) == ring


def test_a_chain_of_20000_is_walked_without_recursion() -> None:
    last = 20_000
    chain = {str(number): [str(number + 1)] for number in range(last)}
    assert cycle_in(chain, ["0"]) is None
    chain[str(last)] = ["0"]
    ring = cycle_in(chain, ["0"])
    assert ring is not None
    assert len(ring) == last + 2


def test_what_was_found_harmless_is_not_walked_again() -> None:
    looks: list[str] = []

    def needs_of(work_id: str) -> Sequence[str]:
        looks.append(work_id)
        return [] if work_id == "30" else [str(int(work_id) + 1)] * 2

    assert find_cycle(["0", "1", "2"], needs_of) is None
    assert len(looks) == 31
