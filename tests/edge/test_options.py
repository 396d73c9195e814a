"""The options of a Cue become exact, or are refused with their name."""

from datetime import timedelta
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.core.model.settings import Settings
from runcue.declare.options import CHECKS, Options
from runcue.errors import ConfigError, InvalidOption, UnknownOption
from tests.edge.nonsense import ODDITIES, anything

NAMES = Options.__struct_fields__


def test_a_cue_without_options_has_the_documented_ones() -> None:
    assert Options.of() == Options(
        name="default",
        max_queued=None,
        reject_policy="reject",
        block_timeout=None,
        default_timeout=None,
        max_threads=256,
        callback_timeout=0.1,
        grace=10,
        keep_finished=100_000,
        status_interval=1,
        progress_interval=1,
        pending_timeout=None,
        pending_warn_after=None,
        stall_timeout=None,
        stall_warn_after=None,
        max_params=256 * 1024,
        age_step=60,
        throttle_timeout=3600,
        pool_size=None,
        lease=30,
        retention=7 * 86400,
        service_log_retention=86400,
        durability="full",
    )


def test_every_option_has_a_check_and_passes_it_with_its_default() -> None:
    assert set(CHECKS) == set(NAMES)
    defaults = {name: getattr(Options(), name) for name in NAMES}
    assert Options.of(**defaults) == Options()


@pytest.mark.parametrize("given", [90, 90.0, timedelta(seconds=90), "90s", "1.5m", "90000ms"])
@pytest.mark.parametrize(
    "name",
    [
        "block_timeout",
        "default_timeout",
        "callback_timeout",
        "grace",
        "status_interval",
        "progress_interval",
        "pending_timeout",
        "pending_warn_after",
        "stall_timeout",
        "stall_warn_after",
        "age_step",
        "throttle_timeout",
        "lease",
        "retention",
        "service_log_retention",
    ],
)
def test_a_duration_may_come_in_any_form(name: str, given: object) -> None:
    assert getattr(Options.of(**{name: given}), name) == 90.0


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("max_queue", "max_queued"),
        ("keep_finish", "keep_finished"),
        ("reject_polcy", "reject_policy"),
        ("maxthreads", "max_threads"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest_name(given: str, meant: str) -> None:
    with pytest.raises(UnknownOption, match=rf"Cue has no option '{given}'. Did you mean '{meant}'?"):
        Options.of(**{given: 1})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("name", ""),
        ("name", "a\nb"),
        ("max_queued", 0),
        ("max_queued", -5),
        ("max_queued", True),
        ("max_queued", "100"),
        ("max_queued", 10**10),
        ("reject_policy", "drop"),
        ("reject_policy", None),
        ("block_timeout", -1),
        ("default_timeout", 0),
        ("default_timeout", "1w"),
        ("default_timeout", 1e10),
        ("max_threads", 0),
        ("max_threads", 10_001),
        ("callback_timeout", None),
        ("callback_timeout", 0),
        ("grace", None),
        ("keep_finished", -1),
        ("keep_finished", 1.5),
        ("status_interval", 0),
        ("max_params", 1),
        ("age_step", 0),
        ("throttle_timeout", float("nan")),
        ("pool_size", 0),
        ("pool_size", "4"),
        ("lease", 0),
        ("lease", None),
        ("retention", -1),
        ("service_log_retention", "soon"),
        ("durability", "none"),
        ("durability", None),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, given: object) -> None:
    with pytest.raises(InvalidOption, match=rf"^Invalid {name if name != 'name' else 'Cue name'}: ") as info:
        Options.of(**{name: given})
    assert len(str(info.value)) < 300


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("block_timeout", 0),
        ("grace", 0),
        ("progress_interval", 0),
        ("throttle_timeout", 0),
        ("keep_finished", 0),
        ("keep_finished", None),
        ("age_step", None),
        ("max_queued", 1),
        ("max_threads", 10_000),
        ("max_params", 2),
        ("pool_size", 1),
        ("retention", 0),
        ("retention", None),
        ("durability", "relaxed"),
    ],
)
def test_the_edges_of_the_ranges_are_allowed(name: str, given: object) -> None:
    assert getattr(Options.of(**{name: given}), name) == given


@given(st.dictionaries(st.sampled_from(NAMES), anything, max_size=3))
def test_nonsense_gives_options_or_a_config_error(given: dict[str, Any]) -> None:
    try:
        options = Options.of(**given)
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
        assert len(str(error)) < 400  # noqa: PT017
    else:
        kept = {name: getattr(options, name) for name in NAMES}
        assert Options.of(**kept) == options


@pytest.mark.parametrize("name", NAMES)
def test_each_oddity_is_refused_or_understood_in_time(name: str) -> None:
    for value in ODDITIES:
        began = thread_time()
        try:
            Options.of(**{name: value})
        except ConfigError:
            pass
        assert thread_time() - began < 1


def test_what_decides_is_handed_on_as_settings() -> None:
    options = Options.of(max_queued=5, reject_policy="block", age_step=None, stall_timeout="5m")
    assert options.settings() == Settings(
        max_queued=5, reject_policy="block", age_step=None, stall_timeout=300.0
    )


def test_options_of_other_stores_decide_nothing() -> None:
    others = Options.of(
        pool_size=4, lease="1m", retention="1d", service_log_retention="1h", durability="relaxed"
    )
    assert others.settings() == Options().settings()


def test_options_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        Options.of().max_queued = 5  # type: ignore[misc]
