"""Groups (`uses="ssh_*"`): any one of the services that a pattern matches, the least loaded first."""

from typing import Any

import pytest

from runcue.core.limits.service import Group, Limits, Service
from runcue.core.limits.services import Services
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.model.state import Grant
from runcue.core.schedule.starting import start
from runcue.errors import SubmitError
from tests.core.bench_of_core import START, Bench, costs, limits, sells
from tests.core.library import two

ANY = Rule(Retry())
TASKS = {"task": ANY, "other": ANY}


def bench_of(*services: Limits, **options: Any) -> Bench:
    return Bench(*services, rules=TASKS, status_interval=1e9, **options)


def submit(bench: Bench, *ids: str, services: tuple[str, ...] = ("ssh_*",), **fields: Any) -> None:
    bench.submit(*ids, services=services, **fields)


def chosen(bench: Bench, *ids: str) -> list[str | None]:
    """What these works were last started on."""
    return [bench.record(work_id).chosen for work_id in ids]


# --- Which one ------------------------------------------------------------------------------------


def test_work_goes_to_the_least_loaded_of_them_and_its_record_says_to_which() -> None:
    bench = bench_of(limits("ssh_a", concurrent=4), limits("ssh_b", concurrent=2))
    submit(bench, *"123456")
    assert chosen(bench, *"123456") == ["ssh_a", "ssh_b", "ssh_a", "ssh_b", "ssh_a", "ssh_a"]
    assert bench.record("2").services == ("ssh_b",)
    submit(bench, "7")
    bench.finish("4")
    assert (bench.started, chosen(bench, "7")) == (["7"], ["ssh_b"])


def test_the_load_of_a_service_is_that_of_its_fullest_limit() -> None:
    bench = bench_of(limits("ssh_a", concurrent=10, rate=(2, 60)), limits("ssh_b", concurrent=4))
    submit(bench, "1", "2", "3")
    assert chosen(bench, "1", "2", "3") == ["ssh_a", "ssh_b", "ssh_a"] or chosen(bench, "3") == ["ssh_b"]
    submit(bench, "4", "5", "6")
    assert chosen(bench, *"123456").count("ssh_a") == 2


def test_services_without_limits_are_used_alike() -> None:
    bench = bench_of(limits("ssh_a"), limits("ssh_b"))
    submit(bench, *"1234")
    assert chosen(bench, *"1234") == ["ssh_a", "ssh_b", "ssh_a", "ssh_b"]


@pytest.mark.parametrize("what", ["paused", "throttled", "tripped", "full"])
def test_one_that_cannot_be_used_is_passed_over(what: str) -> None:
    bench = bench_of(limits("ssh_a", concurrent=2, circuit_threshold=1), limits("ssh_b", concurrent=20))
    if what == "paused":
        bench.pause("ssh_a")
    else:
        submit(bench, "1", services=("ssh_a",))
        if what == "throttled":
            bench.fail("1", "throttled", after=30)
        elif what == "tripped":
            bench.fail("1", "error")
        else:
            submit(bench, "2", services=("ssh_a",))
    submit(bench, *"3456")
    assert chosen(bench, *"3456") == ["ssh_b"] * 4


def test_a_service_that_comes_later_joins_in_and_those_who_wait_use_it_at_once() -> None:
    bench = bench_of(limits("ssh_a", concurrent=1))
    submit(bench, "1", "2")
    assert bench.running == ["1"]
    bench.declare(limits("ssh_b", concurrent=1))
    assert (bench.started, chosen(bench, "2")) == (["2"], ["ssh_b"])
    bench.declare(limits("other", concurrent=1))
    submit(bench, "3")
    assert bench.started == []


def test_a_pattern_that_matches_nothing_is_refused_and_one_that_matches_later_is_not() -> None:
    bench = bench_of(limits("api"))
    submission = bench.submission("1", services=("ssh_*",))
    submission.services = frozenset({"ssh_*"})
    with pytest.raises(SubmitError, match="Unknown service"):
        bench.reply(submission)
    bench.declare(limits("ssh_a"))
    bench.reply(submission)
    assert bench.started == ["1"]


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("ssh_*", "ssh_a", True),
        ("*", "ssh_a", True),
        ("*_a", "ssh_a", True),
        ("s*_*", "ssh_a", True),
        ("ssh_*", "SSH_a", False),
        ("ssh_*", "x_ssh_a", False),
        ("*", "#threads", False),
        ("gpu[*]", "gpu[0]", True),
        ("gpu[01]*", "gpu0", False),
        ("gpu?*", "gpux", False),
        ("gpu?*", "gpu?1", True),
    ],
)
def test_a_star_is_all_that_is_special_in_a_pattern(pattern: str, name: str, is_match: bool) -> None:
    group = Group(pattern)
    service = Service(limits(name))
    group.admit(service)
    group.admit(service)
    assert group.members == ([service] if is_match else [])


def test_services_with_keys_and_their_keys_are_members_of_no_group() -> None:
    bench = bench_of(limits("ssh", each=limits("ssh", concurrent=1)), limits("ssh_a", concurrent=9))
    submit(bench, "1", services=("ssh[x]", "ssh"))
    submit(bench, "2", "3", services=("ssh*",))
    assert chosen(bench, "2", "3") == ["ssh_a", "ssh_a"]


# --- Waiting --------------------------------------------------------------------------------------


def test_work_that_finds_no_room_in_any_says_so_and_starts_when_one_has() -> None:
    bench = bench_of(limits("ssh_a", rate=(1, 60)), limits("ssh_b", rate=(1, 30)))
    submit(bench, "1", "2", "3")
    assert bench.running == ["1", "2"]
    bench.turn()
    why = bench.why("3")
    assert (why.reason, why.service, why.until) == ("rate", "ssh_*", START + 30)
    assert why.details == "each of 2: 1/1 used"
    bench.wake()
    assert (bench.started, bench.now, chosen(bench, "3")) == (["3"], START + 30, ["ssh_b"])


def test_why_none_of_them_may_be_used_is_what_holds_for_the_one_that_is_free_first() -> None:
    group = Group("ssh_*")
    why = group.blocked(0.0)
    assert why is not None
    assert why.details == "no service is called ssh_*"
    one, other = Service(limits("ssh_a", concurrent=1)), Service(limits("ssh_b"))
    group.admit(one)
    group.admit(other)
    assert group.blocked(0.0) is None
    one.active, other.is_paused = 1, True
    why = group.blocked(0.0)
    assert why is not None
    assert (why.reason, why.details) == ("concurrency", "each of 2: 1/1 running")
    other.is_paused, other.throttled_until = False, 9.0
    why = group.blocked(0.0)
    assert why is not None
    assert (why.reason, why.until) == ("throttled", 9.0)


def test_a_group_gains_room_when_the_first_of_its_members_does() -> None:
    group = Group("ssh_*")
    assert group.gains_at(0.0) == float("inf")
    for name, at in (("ssh_a", 5.0), ("ssh_b", 3.0)):
        service = Service(limits(name, rate=(1, 60.0)))
        service.recall([Grant(name, at)])
        group.admit(service)
    assert group.gains_at(6.0) == 63.0
    group.members[
        1
    ].is_paused = True  # nobody asks a paused one for room, so that its window is not looked at
    assert group.gains_at(64.0) == 65.0
    assert group.gains_at(66.0) == float("inf"), "never a moment that has passed"


def test_a_member_that_others_use_alone_has_its_limits_for_all() -> None:
    bench = bench_of(limits("ssh_a", concurrent=2), limits("ssh_b", concurrent=1))
    submit(bench, "own", services=("ssh_a",))
    submit(bench, *"123")
    assert bench.running == ["own", "1", "2"]
    submit(bench, "4", services=("ssh_a",), task="other")
    bench.finish("own")
    assert len(bench.started) == 1
    services = bench.scheduler.ledger.ready.services
    assert (services["ssh_a"].active, services["ssh_b"].active) == (2, 1)


def test_a_group_may_be_one_of_several_services() -> None:
    bench = bench_of(
        limits("ssh_a", concurrent=2), limits("ssh_b", concurrent=2), limits("disk", concurrent=3)
    )
    submit(bench, *"12345", services=("disk", "ssh_*"))
    assert bench.running == ["1", "2", "3"]
    assert bench.record("2").services == ("disk", "ssh_b")
    bench.finish("1")
    assert bench.started == ["4"]


# --- Failing --------------------------------------------------------------------------------------


def test_throttling_pauses_the_one_that_said_so_and_the_work_goes_to_another() -> None:
    bench = bench_of(limits("ssh_a", concurrent=2), limits("ssh_b", concurrent=2))
    submit(bench, "1")
    bench.fail("1", "throttled", after=30)
    assert (bench.started, chosen(bench, "1")) == (["1"], ["ssh_b"])
    services = bench.scheduler.ledger.ready.services
    assert (services["ssh_a"].throttled_until, services["ssh_b"].throttled_until) == (START + 30, 0.0)
    assert bench.record("1").failures == 0


def test_a_retry_may_choose_another() -> None:
    rules = {"task": Rule(Retry(2, base_delay=0.5, jitter=False))}
    bench = Bench(limits("ssh_a", concurrent=2, circuit_threshold=1), limits("ssh_b"), rules=rules)
    submit(bench, "1")
    assert chosen(bench, "1") == ["ssh_a"]
    bench.fail("1")
    bench.after(1)
    assert (bench.state("1"), chosen(bench, "1")) == ("running", ["ssh_b"])
    assert bench.facts("circuit_opened") == [{"service": "ssh_a", "failures": 1}]


# --- Quantities -----------------------------------------------------------------------------------


def test_work_goes_to_one_that_has_enough_left_for_it() -> None:
    bench = bench_of(sells("ssh_a", tokens=(100, 60)), sells("ssh_b", tokens=(1000, 60)))
    submit(bench, "1", cost=costs(tokens=90))
    submit(bench, "2", cost=costs(tokens=600))
    submit(bench, "3", cost=costs(tokens=200))
    assert chosen(bench, "1", "2", "3") == ["ssh_a", "ssh_b", "ssh_b"]
    submit(bench, "4", cost=costs(tokens=500))
    assert bench.started == []
    bench.turn()
    bench.wake()
    assert (bench.started, chosen(bench, "4")) == (["4"], ["ssh_b"])


def test_what_no_member_can_ever_hold_is_refused_and_what_one_can_is_not() -> None:
    bench = bench_of(
        sells("ssh_a", tokens=[(100, 1), (1000, 60)]), sells("ssh_b", tokens=(300, 60)), limits("disk")
    )
    with pytest.raises(
        SubmitError, match=r"needs 301 tokens, more than 'ssh_\*' ever allows \(300 in 60 s\)"
    ):
        submit(bench, "1", cost=costs(tokens=301))
    submit(bench, "2", cost=costs(tokens=300))
    assert chosen(bench, "2") == ["ssh_b"]
    with pytest.raises(SubmitError, match="costs images"):
        submit(bench, "3", cost=costs(images=1))
    bench.declare(limits("ssh_c"))
    submit(bench, "4", cost=costs(tokens=5000))
    assert chosen(bench, "4") == ["ssh_c"]


def test_a_service_beside_the_group_that_can_never_hold_it_refuses_it_as_well() -> None:
    bench = bench_of(sells("ssh_a", tokens=(1000, 60)), sells("meter", tokens=(100, 60)))
    with pytest.raises(SubmitError, match="more than 'meter' ever allows"):
        submit(bench, "1", services=("ssh_*", "meter"), cost=costs(tokens=500))


def test_a_member_that_comes_to_sell_something_is_asked_for_it() -> None:
    bench = bench_of(limits("ssh_a", concurrent=5), sells("meter", tokens=(1000, 60)))
    both = ("ssh_*", "meter")
    submit(bench, "1", services=both, cost=costs(tokens=10))
    bench.declare(sells("ssh_a", concurrent=5, tokens=(50, 60)))
    submit(bench, "2", services=both, cost=costs(tokens=40))
    submit(bench, "3", services=both, cost=costs(tokens=40))
    assert bench.running == ["1", "2"]
    bench.turn()
    bench.wake()
    assert bench.started == ["3"]


def test_what_the_far_side_of_a_member_says_holds_for_it_alone() -> None:
    bench = bench_of(limits("ssh_a"), limits("ssh_b", concurrent=1), sells("meter", tokens=(1000, 60)))
    both = ("ssh_*", "meter")
    submit(bench, "1", services=both, cost=costs(tokens=10))
    assert chosen(bench, "1") == ["ssh_a"]
    bench.observe("1", ("tokens", 50, 30))
    submit(bench, "2", services=both, cost=costs(tokens=100))
    submit(bench, "3", services=both, cost=costs(tokens=100))
    assert chosen(bench, "2", "3") == ["ssh_b", None]
    bench.wake()
    assert (chosen(bench, "3"), bench.now) == (["ssh_a"], START + 30)


def test_work_that_no_member_has_room_for_stays_in_line_whoever_wants_to_start_it() -> None:
    bench = bench_of(limits("ssh_a", concurrent=1))
    submit(bench, "1", "2")
    ledger = bench.scheduler.ledger
    ledger.begin(bench.now, bench.wall, None)
    record = bench.record("2")
    start(ledger, ledger.lanes.lane_of(record.spec), [record])
    assert ledger.working.records["2"].token == 0
    bench.finish("1")
    assert bench.started == ["2"]


# --- Several processes ----------------------------------------------------------------------------


def test_what_runs_on_a_member_elsewhere_counts_and_outlives_the_one_who_counted() -> None:
    services = limits("ssh_a", concurrent=1), limits("ssh_b", concurrent=1)
    _, one, other = two(*services, rules=TASKS, serving=("one",))
    submit(one, "1", "2", "3")
    assert one.started == ["1", "2"]
    other.serve()
    assert (other.started, other.active) == ([], {"ssh_a": 1, "ssh_b": 1})
    one.forget()
    one.turn()
    assert (one.started, one.active) == ([], {"ssh_a": 1, "ssh_b": 1})
    one.finish("2")
    other.turn()
    assert (other.started, chosen(other, "3")) == (["3"], ["ssh_b"])


def test_a_member_that_comes_to_have_keys_leaves_the_group_and_may_come_back() -> None:
    services = Services(lambda service: None)
    plain = limits("ssh_a", concurrent=1)
    services.declare(plain)
    services.declare(limits("ssh_b", concurrent=1))
    group = services.find("ssh_*")
    assert isinstance(group, Group)
    services.declare(Limits("ssh_a", each=plain))
    assert [member.name for member in group.members] == ["ssh_b"]
    assert services["ssh_a"].groups == ()
    services.declare(plain)
    assert [member.name for member in group.members] == ["ssh_b", "ssh_a"]
