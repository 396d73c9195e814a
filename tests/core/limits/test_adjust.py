"""Limits that somebody sets by hand: what changes, what stays, and until when they hold."""

from typing import Any

import pytest
from msgspec.structs import replace

from runcue.core.limits.service import Limits
from runcue.core.limits.services import Services
from runcue.core.model.parse import rates
from runcue.core.model.state import Adaptive, Quantity, adjusted
from runcue.core.schedule.plan import Adjust
from runcue.core.views.explain import THREADS
from runcue.errors import UnknownService
from tests.core.bench_of_core import Bench, limits

DECLARED = limits("api", concurrent=5)
BY_HAND = limits("api", concurrent=2)


def known() -> Services:
    services = Services(lambda service: None)
    services.declare(DECLARED)
    return services


def test_what_is_set_by_hand_holds_while_the_program_declares_the_same_again() -> None:
    services = known()
    services.adjust(services["api"], BY_HAND)
    assert services["api"].limits == BY_HAND
    assert services.declare(DECLARED) is None
    assert (services["api"].limits, services["api"].declared) == (BY_HAND, DECLARED)


def test_it_ends_when_the_program_declares_something_new() -> None:
    services = known()
    services.adjust(services["api"], BY_HAND)
    new = limits("api", concurrent=9)
    assert services.declare(new) is services["api"]
    assert (services["api"].limits, services["api"].declared) == (new, None)


def test_what_was_set_by_hand_and_is_then_declared_is_the_programs_own() -> None:
    services = known()
    services.adjust(services["api"], BY_HAND)
    assert services.declare(BY_HAND) is services["api"], "others have to hear of it"
    assert (services["api"].limits, services["api"].declared) == (BY_HAND, None)
    assert services.declare(DECLARED) is services["api"]
    assert services["api"].limits == DECLARED


def test_setting_twice_remembers_what_the_program_said() -> None:
    services = known()
    services.adjust(services["api"], BY_HAND)
    services.adjust(services["api"], limits("api", concurrent=3))
    assert services["api"].declared == DECLARED
    services.adjust(services["api"], DECLARED)
    assert services["api"].declared is None


def test_another_process_sees_both() -> None:
    services, elsewhere = known(), known()
    services.adjust(services["api"], BY_HAND)
    state = services["api"].state()
    elsewhere.apply(state.limits)
    elsewhere["api"].load(state)
    assert elsewhere.declare(DECLARED) is None
    assert elsewhere["api"].limits == BY_HAND


def test_what_is_not_given_stays() -> None:
    whole = Limits(
        "api",
        5,
        rates("60/min"),
        3,
        10.0,
        (Quantity("tokens", rates("9/min")), Quantity("pages", rates("5/s"))),
    )
    assert adjusted(whole, {}, {}) == whole
    assert adjusted(whole, {"concurrent": None}, {}) == replace(whole, concurrent=None)
    fewer = adjusted(
        whole, {"rates": rates("1/s")}, {"tokens": None, "words": Quantity("words", rates("2/s"))}
    )
    assert [one.name for one in fewer.quantities] == ["pages", "words"]
    assert (fewer.rates, fewer.circuit_threshold) == (rates("1/s"), 3)


def test_where_there_are_keys_each_key_is_meant() -> None:
    whole = Limits("api", 50, each=Limits("api", 5))
    assert adjusted(whole, {"concurrent": 2}, {}) == Limits("api", 50, each=Limits("api", 2))


def test_limits_are_said_as_people_say_them() -> None:
    whole = Limits("a", 5, rates(["60/min", "1000/day"]), 3, 10.0, (Quantity("tokens", rates("200k/min")),))
    assert str(whole) == "60/min, 1000/day, 5 at once, 200000 tokens/min, circuit opens after 3"
    assert str(Limits("a")) == "no limits"
    assert str(Limits("a", adaptive=Adaptive(1, 2, 9))) == "1 to 9 at once"
    assert str(Limits("a", 9, each=Limits("a", 2))) == "9 at once, each key 2 at once"


# --- As a turn takes it in ------------------------------------------------------------------------


def by_hand(bench: Bench, name: str, **changes: Any) -> Any:
    return bench.reply(Adjust(name, changes, {}))


def test_a_turn_sets_limits_starts_what_fits_now_and_tells_everybody() -> None:
    bench = Bench(limits("api", concurrent=1))
    bench.submit("a", "b", "c")
    assert by_hand(bench, "api", concurrent=2) is None
    assert bench.started == ["b"]
    assert bench.facts("service_status")[-1] == {"service": "api", "limits": "2 at once"}
    assert bench.scheduler.ledger.ready.services["api"].declared == limits("api", concurrent=1)


def test_a_service_that_is_not_there_and_a_key_of_one_are_refused() -> None:
    bench = Bench(limits("api", each=limits("api", concurrent=1)), limits(THREADS, concurrent=1), rules={})
    assert bench.scheduler.ledger.ready.services.find("api[x]")
    for name in ("apu", "api[x]", THREADS):
        with pytest.raises(UnknownService) as refused:
            by_hand(bench, name, rates=rates("1/s"))
        assert refused.value.known == ("api",)
