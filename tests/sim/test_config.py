"""Configurations: what may be written, what it means, and how what is wrong is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.sim.config import BadConfig, Config, load, parse, with_changes
from runcue.sim.reading import pretty_rate, rate_of, span
from runcue.sim.scenarios import SCENARIOS, scenario

SEED = """
services:
  mock_api:
    max_concurrent: 5
    rate_limit: 60
    rate_window: 60
    behavior:
      latency: {distribution: normal, mean: 200ms, stddev: 50ms}
      error_rate: 0.05        # 5% fail with retryable error
      timeout_rate: 0.02
      permanent_error_rate: 0.01
  mock_ssh:
    max_concurrent: 1
    behavior:
      latency: {distribution: uniform, min: 500ms, max: 2000ms}
      error_rate: 0.10
      circuit_test: true
workload:
  pattern: random
  pattern_weights: {none: 0.3, single: 0.3, fan_out: 0.2, diamond: 0.2}
  fan_out_width: 5
  chain_depth: 4
  task_types: [extract, transform, load]
"""
PLAIN = "services: {api: {rate: 60/min}}"


def test_a_file_in_the_older_words_is_understood() -> None:
    config = load(SEED, name="mine")
    api, ssh = config.services["mock_api"], config.services["mock_ssh"]
    assert (api.concurrent, api.windows()) == (5, [(60, 60.0)])
    assert (api.behaviour.latency.mean, api.behaviour.latency.stddev) == (0.2, 0.05)
    assert (ssh.behaviour.latency.min, ssh.behaviour.latency.max) == (0.5, 2.0)
    assert (api.circuit_threshold, ssh.circuit_threshold) == (None, 5)
    assert config.workload.pattern_weights == {"none": 0.3, "single": 0.3, "fan_out": 0.2, "diamond": 0.2}
    assert config.uses() == {"extract": ["mock_api"], "transform": ["mock_ssh"], "load": ["mock_api"]}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("seconds", [1.0, 300.0, 86400.0])
def test_a_scenario_is_shown_in_the_form_it_is_read_from(name: str, seconds: float) -> None:
    config = scenario(name, seconds)
    assert parse(msgspec.json.decode(msgspec.json.encode(config)), name="other") == config
    assert config.duration == seconds


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("services: {api: {behavior: {latency: 200 parsecs}}}", "services.api.behavior.latency", "200ms, 90s, 5m"),
        ("services: {api: {behavior: {latency: {distribution: normal, mean: 1s, stddev: -1}}}}",
         "services.api.behavior.latency.stddev", "from 0 s"),
        ("services: {api: {behavior: {latency: {distribution: normal}}}}", "services.api.behavior.latency.mean",
         "the mean of"),
        ("services: {api: {behavior: {latency: {distribution: zipf, mean: 1}}}}",
         "services.api.behavior.latency.distribution", "one of fixed, uniform"),
        ("services: {api: {behavior: {latency: {distribution: uniform, min: 2, max: 1}}}}",
         "services.api.behavior.latency.min", "no more than max"),
        ("services: {api: {behavior: {error_rate: 1.5}}}", "services.api.behavior.error_rate", "from 0 to 1"),
        ("services: {api: {behavior: {error_rate: 0.6, timeout_rate: 0.6}}}", "services.api.behavior.error_rate",
         "at most 1 together"),
        ("services: {api: {behavior: {error_rate: .nan}}}", "services.api.behavior.error_rate", "from 0 to 1"),
        ("services: {api: {rate: 60}}", "services.api.rate", "60/min"),
        ("services: {api: {rate: 60/fortnight}}", "services.api.rate", "60/min"),
        ("services: {api: {rate_window: 60}}", "services.api.rate_window", "rate_limit beside it"),
        ("services: {api: {rate_limit: 60/min, rate_window: 60}}", "services.api.rate_window", "none"),
        ("services: {api: {concurrent: 0}}", "services.api.concurrent", "whole number from 1"),
        ("services: {api: {concurrent: true}}", "services.api.concurrent", "whole number from 1"),
        ("services: {api: {concurrent: 1, max_concurrent: 2}}", "services.api.max_concurrent", "not both"),
        ("services: {api: {concurent: 1}}", "services.api.concurent", "did you mean concurrent?"),
        ("services: {}", "services", "at least one service"),
        ("", "services", "at least one service"),
        ("[]", "the configuration", "services: and workload:"),
        ("services: {api: {}, api: {}}", "services.api", "each key once"),
        ("services: {api: }\nworkload: {fan_out_width: 1000000000}", "workload.fan_out_width", "from 1 to 1,000"),
        ("services: {api: }\nworkload: {count: 1e9}", "workload.count", "a whole number"),
        ("services: {api: }\nworkload: {pattern: spiral}", "workload.pattern", "one of none, single"),
        ("services: {api: }\nworkload: {submit_rate: 0}", "workload.submit_rate", "more than 0"),
        ("services: {api: }\nduration: 300d\nworkload: {submit_rate: 9000}", "workload.submit_rate", "10,000,000"),
        ("services: {api: }\nworkload: {pattern_weights: {spiral: 1}}", "workload.pattern_weights", "one of none"),
        ("services: {api: }\nworkload: {priorities: {high: 1}}", "workload.priorities", "numbers"),
        ("services: {api: }\nworkload: {priorities: {1: 0}}", "workload.priorities", "more than 0"),
        ("services: {api: }\nworkload: {uses: {a: b}}", "workload.uses.a", "a service (api)"),
        ("services: {api: }\nduration: -5s", "duration", "a time such as"),
        ("services: {api: }\nduration: 2000-01-01", "duration", "a time such as"),
        ("services: {api: }\nretry: {backoff: wild}", "retry.backoff", "one of exponential"),
        ("services: {api: }\nkills: [{at: 5}]", "store", "file"),
        ("services: {api: }\nstore: file\nkills: [{at: 5, node: 3}]", "kills[0].node", "below nodes"),
        ("services: {api: {behavior: {timeout_rate: 0.1}}}\ntimeout: null", "timeout", "a time, because"),
        ("services: {api: {behavior: {outages: [{at: 1, to: 2}]}}}", "services.api.behavior.outages[0].to",
         "known key"),
        ("services:\n\tapi: 1", "line 2, column 1", "not indented with tabs"),
        ("services: {api: [}", "line 1", "readable YAML"),
        ("services: !!python/object/apply:os.system [touch /tmp/owned]", "services", "without tags"),
        ("services: {api: !!python/name:os.system x}", "services.api", "without tags"),
        ("services: !!set {a, b}", "services", "without tags"),
        ("services: {? [a] : b}", "services", "keys that are text"),
        ("services: *unknown", "line 1", "undefined alias"),
        ("services: {api: }\n---\nservices: {api: }", "line 2", "another document"),
        ('services: {"\\u001b[31m": }', "services", "a name of 1 to"),
        ("services: {" + "x" * 500 + ": }", "services", "a name of 1 to"),
        ("services: {api: }\nseed: " + "9" * 5000, "seed", "fewer digits"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_path_and_what_was_expected(
    text: str, path: str, expected: str
) -> None:
    with pytest.raises(BadConfig) as refused:
        load(text, name="mine")
    message = str(refused.value)
    assert message.startswith(path)
    assert expected in message
    assert len(message) < 500


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(BOMB, "aliases counted in full", id="billion laughs"),
        pytest.param("services: &a {api: *a}", "levels", id="contains itself"),
        pytest.param("[" * 1_000_000, "levels", id="deep"),
        pytest.param("{a: " * 100_000, "levels", id="deep mappings"),
        pytest.param("- " * 500_000, "levels", id="deep lists"),
        pytest.param("- a\n" * 250_000, "10,000 values", id="long"),
        pytest.param("services: {api: {}}\n" * 50_000, "10,000 values", id="the same key"),
        pytest.param("x" * (1024 * 1024 + 1), "1,048,576 bytes", id="large"),
    ],
)
def test_what_is_too_large_is_given_up_early(text: str, expected: str) -> None:
    with pytest.raises(BadConfig, match=expected):
        load(text, name="mine")


@given(st.text(alphabet="abc:{}[]-,&*!|>'\"#%@`\n\t 0123.", max_size=60))
def test_any_text_is_a_configuration_or_refused(text: str) -> None:
    for whole in (text, f"services: {{api: {text}}}", f"services: {{api: }}\nworkload: {text}"):
        try:
            found: object = load(whole, name="mine")
        except BadConfig as refused:
            found = refused
        assert isinstance(found, Config) or str(found).isprintable()


def test_a_change_reaches_any_value() -> None:
    config = load(PLAIN, name="mine")
    changed = with_changes(
        config,
        ["api.rate=120/min", "api.concurrent=20", "api.error_rate=5%", "api.latency=300ms", "duration=1h", "retry=5",
         "workload.priorities={0: 1, 5: 2}", "services.api.circuit_threshold=3"],
    )  # fmt: skip
    api = changed.services["api"]
    assert (api.rates, api.concurrent, api.circuit_threshold) == (["120/60s"], 20, 3)
    assert (api.behaviour.error_rate, api.behaviour.latency.mean) == (0.05, 0.3)
    assert (changed.duration, changed.retry.max_attempts) == (3600.0, 5)
    assert changed.workload.priorities == {0.0: 1.0, 5.0: 2.0}
    assert config == load(PLAIN, name="mine")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("api.rte=1", "services.api.rte"),
        ("nobody.rate=1/s", "nobody"),
        ("api.rate", "api.rate"),
        ("=5", "=5"),
        ("api=5", "services.api"),
        ("api.rate.x.y=5", "services.api.rates"),
        ("workload.pattern=[", "workload.pattern: expected a value"),
        ("duration=!!python/name:os.system", "duration"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change: str, path: str) -> None:
    with pytest.raises(BadConfig) as refused:
        with_changes(load(PLAIN, name="mine"), [change])
    assert str(refused.value).startswith(path)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ("60/min", (60, 60)),
        ("20/1", (20, 1)),
        ("100/10s", (100, 10)),
        ("1.5k/h", (1500, 3600)),
        ("5/s", (5, 1)),
    ],
)
def test_rates_are_read_in_all_their_forms(given: str, limit: tuple[float, float]) -> None:
    assert rate_of(given) == limit


def test_rates_and_times_are_shown_as_people_write_them() -> None:
    assert [pretty_rate(text) for text in ("60/60s", "20/1s", "7/90s")] == ["60/min", "20/s", "7/90s"]
    shown = [
        span(seconds) for seconds in (0, 0.0004, 0.05, 0.2, 0.9996, 2.345, 59.96, 90, 5400, 86400 * 2 + 3600)
    ]
    assert shown == [
        "0 s",
        "0.4 ms",
        "50 ms",
        "200 ms",
        "1 s",
        "2.35 s",
        "1 m",
        "1 m 30 s",
        "1 h 30 m",
        "2 d 1 h",
    ]
