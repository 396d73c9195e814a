"""What arrives when."""

from collections import Counter
from itertools import islice

import pytest
from msgspec.structs import replace

from runcue.sim.config import Config, Workload, load, parse
from runcue.sim.workload import Arrival, arrivals, shapes


def config(workload: str, more: str = "") -> Config:
    return load(f"services: {{api: }}\nduration: 10m\nworkload: {workload}\n{more}", name="test")


def links(arrival: Arrival) -> list[tuple[str, tuple[str, ...]]]:
    """Names and needs, with the letters of the order they stand in."""
    letters = {work.id: chr(ord("A") + place) for place, work in enumerate(arrival.works)}
    return [(letters[work.id], tuple(letters[need] for need in work.needs)) for work in arrival.works]


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("{pattern: none}", "A"),
        ("{pattern: single}", "A B:A"),
        ("{pattern: chain, chain_depth: 4}", "A B:A C:B D:C"),
        ("{pattern: fan_out, fan_out_width: 3}", "A B:A C:A D:A"),
        ("{pattern: fan_in, fan_out_width: 3}", "A B C D:ABC"),
        ("{pattern: diamond}", "A B:A C:A D:BC"),
        ("{pattern: diamond, diamond_width: 3}", "A B:A C:A D:A E:BCD"),
        ("{pattern: complex, fan_out_width: 2}", "A B:A C:A D:B E:C F:DE G:F"),
        ("{pattern: circular}", "A:B B:A"),
    ],
)
def test_a_pattern_has_its_shape(workload: str, expected: str) -> None:
    group = next(arrivals(config(workload)))
    shown = " ".join(f"{name}:{''.join(needs)}" if needs else name for name, needs in links(group))
    assert shown == expected


def test_random_draws_patterns_by_their_weights() -> None:
    some = islice(
        arrivals(config("{pattern: random, pattern_weights: {none: 3, diamond: 1}, submit_rate: 100}")), 2000
    )
    found = Counter(arrival.pattern for arrival in some)
    assert set(found) == {"none", "diamond"}
    assert 1350 < found["none"] < 1650


def test_levels_cycle_through_the_task_types() -> None:
    group = next(arrivals(config("{pattern: chain, chain_depth: 4, task_types: [extract, transform, load]}")))
    assert [work.task for work in group.works] == ["extract", "transform", "load", "extract"]
    singles = islice(arrivals(config("{task_types: [a, b]}")), 4)
    assert [group.works[0].task for group in singles] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("pattern", ["none", "chain", "complex"])
def test_as_many_works_arrive_as_the_rate_says_whatever_their_pattern(pattern: str) -> None:
    made = sum(len(group.works) for group in arrivals(config(f"{{pattern: {pattern}, submit_rate: 5}}")))
    assert made == pytest.approx(3000, rel=0.1)


def test_a_burst_lasts_as_long_as_it_is_told_to() -> None:
    burst = "{arrivals: regular, submit_rate: 1, submit_rates: [{at: 100, rate: 10}, {at: 200, rate: 2}]}"
    times = [group.at for group in arrivals(config(burst))]
    assert [sum(low < at <= low + 100 for at in times) for low in (0, 100, 200)] == [100, 1000, 200]
    assert times == sorted(times)


def test_regular_arrivals_are_as_far_apart_as_the_rate_says() -> None:
    times = [group.at for group in arrivals(config("{arrivals: regular, submit_rate: 30/min}"))]
    assert times[:3] == [2.0, 4.0, 6.0]
    assert times[-1] < 600


def test_a_count_without_a_rate_arrives_at_once_and_is_exact() -> None:
    groups = list(arrivals(config("{count: 10, pattern: chain, chain_depth: 4}")))
    assert [len(group.works) for group in groups] == [4, 4, 2]
    assert {group.at for group in groups} == {0.0}


def test_ids_are_never_used_twice() -> None:
    ids = [
        work.id for group in arrivals(config("{pattern: random, submit_rate: 10}")) for work in group.works
    ]
    assert len(ids) == len(set(ids)) > 1000


def test_priorities_come_from_a_lot_of_their_own() -> None:
    plain, ranked = (
        list(arrivals(config(f"{{submit_rate: 5{more}}}"))) for more in ("", ", priorities: {0: 1, 9: 1}")
    )
    assert [group.at for group in plain] == [group.at for group in ranked]
    found = Counter(group.works[0].priority for group in ranked)
    assert found[9.0] == pytest.approx(len(ranked) / 2, rel=0.1)


def test_one_seed_gives_one_workload() -> None:
    one = config("{pattern: random, priorities: [0, 1]}")
    assert list(arrivals(one)) == list(arrivals(one))
    assert list(arrivals(one)) != list(arrivals(replace(one, seed=2)))


def test_works_linked_by_is_ready_make_artifacts() -> None:
    group = next(arrivals(config("{pattern: single, linked_by: is_ready}")))
    assert [(work.makes, work.needs) for work in group.works] == [("w1", ()), ("w2", ("w1",))]


def test_a_shape_needs_only_what_it_has() -> None:
    for pattern in ("single", "chain", "fan_out", "fan_in", "diamond", "complex"):
        shape = shapes(pattern, Workload())
        assert all(0 <= need < place for place, (_, needs) in enumerate(shape) for need in needs)


def test_a_workload_without_an_end_is_made_bit_by_bit() -> None:
    endless = parse(
        {"services": {"api": None}, "duration": "24h", "workload": {"submit_rate": 100}}, name="test"
    )
    assert len(list(islice(arrivals(endless), 5))) == 5
