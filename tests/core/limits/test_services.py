"""All services that a queue knows: what follows from a declaration, and what is let go of. Who waits at them."""

import math

import pytest

from runcue.core.limits.service import Group, Limits, Service
from runcue.core.limits.services import Services
from runcue.core.model.record import Record, Spec
from runcue.core.schedule.lane import ACTIVE, Lane
from runcue.core.schedule.line import Line
from tests.core.bench_of_core import costs, limits, sells

NOW = 100.0


class Known:
    """Services, and which of them were said to have changed."""

    def __init__(self, *declared: Limits) -> None:
        self.touched: list[str] = []
        self.new: list[str] = []
        self.services = Services(lambda service: self.touched.append(service.name))
        self.services.on_new = lambda service: self.new.append(service.name)
        for one in declared:
            self.services.declare(one)


def test_what_was_declared_is_found_and_nothing_else() -> None:
    services = Known(limits("a")).services
    assert services.find("a") is services["a"]
    for name in ("b", "a[x]", "b[x]", "[x]", "b*", ""):
        assert services.find(name) is None
        assert services.lookup(name) is None
    assert list(services) == ["a"]


def test_the_part_of_a_key_comes_to_be_when_it_is_first_looked_for() -> None:
    known = Known(limits("a", each=limits("a", concurrent=3)))
    assert known.services.lookup("a[x]") is None
    part = known.services.find("a[x]")
    assert part is not None
    assert (part.name, part.base, part.cap) == ("a[x]", "a", 3)
    assert known.services.find("a[x]") is part is known.services.lookup("a[x]")
    assert known.new == ["a", "a[x]"]
    assert known.services.declared == 1


def test_a_group_is_found_and_is_not_among_the_services() -> None:
    services = Known(limits("ssh_a"), limits("ssh_b"), limits("x")).services
    group = services.find("ssh_*")
    assert isinstance(group, Group)
    assert [one.name for one in group.members] == ["ssh_a", "ssh_b"]
    assert services.find("ssh_*") is group is services.lookup("ssh_*")
    assert list(services) == ["ssh_a", "ssh_b", "x"]


def test_declaring_the_same_again_is_nothing_new() -> None:
    known = Known(limits("a", concurrent=1))
    assert known.services.declare(limits("a", concurrent=1)) is None
    assert known.touched == []
    assert known.services.declare(limits("a", concurrent=2)) is known.services["a"]
    assert known.touched == ["a"]
    assert known.services.declared == 1


def test_declaring_a_service_with_keys_again_declares_its_keys() -> None:
    known = Known(limits("a", each=limits("a", concurrent=3)), limits("b[x]"))
    part = known.services.find("a[x]")
    assert part is not None
    known.services.declare(limits("a", each=limits("a", concurrent=5)))
    assert (part.cap, known.touched) == (5, ["a", "a[x]"])
    known.services.declare(limits("a", concurrent=1))  # it has no keys any more
    assert part.cap == 5


def test_a_new_service_joins_the_groups_that_match_it() -> None:
    known = Known(limits("ssh_a"))
    group = known.services.find("ssh_*")
    assert isinstance(group, Group)
    known.services.declare(limits("ssh_b"))
    known.services.declare(limits("x"))
    assert [one.name for one in group.members] == ["ssh_a", "ssh_b"]
    assert "ssh_*" in known.touched


def test_a_unit_that_names_no_key_uses_the_part_of_the_empty_key() -> None:
    services = Services(lambda service: None)
    services.declare(limits("api", each=limits("api", concurrent=1)))
    assert services.with_parts(["api", "other"]) == ["api[]", "api", "other"]
    assert services.with_parts(["api[a]", "api"]) == ["api[a]", "api"]


def test_keys_that_are_used_are_kept_however_idle_they_are() -> None:
    services = Known(limits("a", each=limits("a"))).services
    used, unused = services.find("a[x]"), services.find("a[y]")
    assert used is not None
    assert unused is not None
    services.drop_keys([used, services["a"]], NOW)
    assert list(services) == ["a", "a[x]"]


@pytest.mark.parametrize(("after", "is_known"), [(3599, True), (3600, False)])
def test_that_a_key_was_throttled_is_known_for_an_hour(after: float, is_known: bool) -> None:
    services = Known(limits("a", each=limits("a"))).services
    part = services.find("a[x]")
    assert part is not None
    until = part.throttle(NOW, None)
    services.drop_keys([], until + after)
    assert ("a[x]" in services) == is_known


# --- Who waits at a service -----------------------------------------------------------------------


def lane_at(service: Service, seq: int, turn: int = 0, **amounts: float) -> Lane:
    """A lane with one work, parked there."""
    records: dict[str, Record] = {}
    spec = Spec(f"{seq}", "t", b"{}", (service.name,), cost=costs(**amounts))
    records[spec.id] = record = Record(spec.id, spec, seq, 0.0, NOW)
    lane = Lane("t", Service(limits("queue")), (service,), Line(records))
    lane.line.push(record)
    lane.rank, lane.seq = 0.0, seq
    service.parked.add(turn, lane, 100)
    return lane


def test_those_who_wait_come_by_turn_then_by_rank() -> None:
    service = Service(limits())
    second, first, third = lane_at(service, 2), lane_at(service, 1), lane_at(service, 0, turn=1)
    order = []
    while (lane := service.parked.first()) is not None:
        order.append(lane)
        service.parked.remove(lane)
    assert order == [first, second, third]
    assert not service.parked


def test_those_who_cost_something_stand_apart_and_those_who_cost_too_much_are_not_in_line() -> None:
    service = Service(sells(tokens=(100, 60)))
    never, costly, free = lane_at(service, 1, tokens=101), lane_at(service, 2, tokens=5), lane_at(service, 3)
    other = lane_at(service, 4, images=5)
    parked = service.parked
    assert (parked.first(), parked.first_costly(), parked.first_free()) == (costly, costly, free)
    assert parked.take_affordable() == []
    assert len(parked) == 4
    service.declare(sells(tokens=(200, 60)))
    assert parked.take_affordable() == [never]
    assert parked.remove(costly) == 0
    assert (parked.first(), parked.first_costly()) == (free, None)
    parked.remove(free)
    assert parked.first() is other


def test_those_who_went_away_do_not_count_and_do_not_pile_up() -> None:
    service = Service(limits())
    gone, here = lane_at(service, 1), lane_at(service, 2)
    gone.where = ACTIVE
    assert service.parked.first() is here
    for _ in range(200):
        service.parked.add(0, here, 10)
    assert len(service.parked) <= 11
    here.rank = math.inf
    assert (service.parked.first(), service.parked.first_free()) == (None, None)


def test_what_a_service_started_has_to_be_remembered_for_its_longest_window() -> None:
    assert limits().longest == 0
    assert limits(rate=(1, 60)).longest == 60
    assert sells(rate=(1, 60), tokens=[(5, 7), (50, 90)]).longest == 90
    assert limits(rate=(1, 60), each=sells(tokens=(5, 3600))).longest == 3600
