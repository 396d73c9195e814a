"""The report as one page: what is in it, what never is, and that it stays small, safe and the same."""

import json
import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from runcue.sim.again import as_yaml
from runcue.sim.check import Violation
from runcue.sim.config import Config, load, with_changes
from runcue.sim.metrics import Metrics, Summary
from runcue.sim.page import page
from runcue.sim.plots import (
    MOST_POINTS,
    Band,
    Line,
    Point,
    chart,
    moment,
    number,
    path,
    said,
    scale,
    thin,
    tick_text,
)
from runcue.sim.report import Run
from runcue.sim.scenarios import SCENARIOS, scenario
from runcue.sim.world import Outcome, simulate

ROOT = Path(__file__).resolve().parent.parent.parent
LARGEST = 400_000
EVIL = "</script><img src=x onerror=alert(1)>\"'&"


def ran(config: Config) -> tuple[Summary, Outcome, Config]:
    metrics = Metrics(config)
    outcome = simulate(config, None, metrics, keep_calls=False)
    return metrics.finish(outcome), outcome, config


@cache
def of(name: str) -> tuple[Summary, Outcome, Config]:
    return ran(scenario(name))


class Outline(HTMLParser):
    """The elements of a page: those that are open, and everything that was ever said in attributes."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.words.append(data)


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


# the page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["burst", "cascade_failure", "priority_test"])
def test_a_page_shows_the_figures_of_its_run(name: str) -> None:
    summary, outcome, config = of(name)
    found = outline(page(summary, outcome, config))
    words = " ".join(" ".join(found.words).split())
    assert f"{summary.completed:,}" in words
    assert said(summary.latency.p99, "seconds") in words
    assert summary.bottleneck in words
    for title in ("Queue depth", "Throughput", "Latency", "At once", "The same again", *config.services):
        assert title in words
    assert found.seen["h1"] == found.seen["main"] == 1


def test_a_peak_is_the_highest_there_was_and_means_are_called_means() -> None:
    summary, outcome, config = of("burst")
    words = " ".join(" ".join(outline(page(summary, outcome, config)).words).split())
    assert max(value for _, value in summary.depth) < summary.depth_peak
    api = summary.services["api"]
    assert max(value for _, value in api.running) < api.running_peak
    assert f"units that wait, mean of 5 s peak waiting {summary.depth_peak}" in words
    assert f"At once mean of 5 s peak running {api.running_peak}" in words
    assert "Starts per min in the last 1 m peak started" in words


def test_a_page_of_two_runs_tells_them_apart() -> None:
    base, before, config = of("burst")
    changed, outcome, other = ran(with_changes(config, ["api.rate=120/min"]))
    broken = [Violation("rate", before.began_at + 5, "too many calls")]
    text = page(
        changed, outcome, other, violations=[], before=Run(base, before, config, broken),
        changes=["api.rate=120/min"],
    )  # fmt: skip
    words = " ".join(" ".join(outline(text).words).split())
    assert "Changed api.rate=120/min" in words
    assert "Base: 1 promise was not kept. rate at 0:00:05 too many calls" in words
    assert "Changed: Checked: every promise was kept." in words
    assert f"Bottleneck of the base {base.bottleneck}" in words
    assert f"peak base {base.depth_peak} waiting {changed.depth_peak}" in words
    assert 'data-name="base p95"' in text
    assert "runcue-sim --scenario burst --duration 600s --seed 1 --set api.rate=120/min" in words


def test_the_same_run_gives_the_same_bytes() -> None:
    config = scenario("cascade_failure")
    assert page(*ran(config)) == page(*ran(config))


def test_a_page_asks_no_network_for_anything() -> None:
    text = page(*of("cascade_failure"))
    assert "://" not in text
    assert not re.search(r"url\(|@import|\bfetch\b|XMLHttpRequest|import\(", text)
    found = outline(text)
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(found.seen)
    assert [entry for entry in found.attributes if entry[1] in {"src", "href", "srcset", "action"}] == []
    [policy] = [
        value for tag, name, value in found.attributes if tag == "meta" and value.startswith("default-src")
    ]
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='", policy)


def test_whatever_a_configuration_calls_things_is_text_on_the_page() -> None:
    config = load(
        json.dumps({
            "name": EVIL,
            "services": {EVIL: {"concurrent": 1, "rate": "30/min", "circuit_threshold": 1, "circuit_timeout": 5,
                                "behavior": {"latency": "100ms", "error_rate": 0.5}}},
            "workload": {"submit_rate": 1, "task_types": [EVIL], "priorities": [1, 2]}, "duration": "2m",
        }),
        name="any",
    )  # fmt: skip
    summary, outcome, _ = ran(config)
    violations = [Violation(EVIL, outcome.began_at + 5, EVIL, (EVIL,) * 9)]
    text = page(summary, outcome, config, violations=violations, command=f"runcue-sim {EVIL}")
    found = outline(text)
    assert found.seen["script"] == 1
    assert "img" not in found.seen
    assert [entry for entry in found.attributes if entry[1].startswith("on")] == []
    assert " ".join(found.words).count(EVIL) >= 5


def test_what_is_put_into_the_page_is_not_filled_again() -> None:
    config = msgspec.structs.replace(scenario("burst"), name="{{script}}")
    summary, outcome, _ = of("burst")
    assert "<h1>{{script}}</h1>" in page(summary, outcome, config)


def test_a_page_says_whether_promises_were_checked_and_kept() -> None:
    run = of("burst")
    assert "Checked" not in page(*run)
    assert "every promise was kept" in page(*run, violations=[])
    began_at = run[1].began_at
    bad = [Violation("window", began_at + 61.5, f"number {n}", ("w1",)) for n in range(60)]
    text = page(*run, violations=bad)
    assert "60 promises were not kept" in text
    assert "0:01:01.5" in text
    assert "… and 10 more" in text
    assert "every promise" not in text


def test_the_times_of_a_circuit_are_bands_and_words() -> None:
    summary, outcome, config = of("cascade_failure")
    text = page(summary, outcome, config)
    assert '<path class="open"' in text
    first = next(at for at, _, state in summary.circuits if state == "opened")
    assert f"opened at {moment(first)}" in text


def test_use_of_a_rate_is_drawn_within_its_limit() -> None:
    summary, outcome, config = of("burst")
    text = page(summary, outcome, config)
    [lines] = re.findall(r'data-name="started" d="([^"]*)"', text)
    values = [float(pair.split()[1]) for pair in re.findall(r"[-\d.]+ [-\d.]+", lines)]
    assert max(values) <= 60
    assert max(values) >= 58  # a burst to twice what it allows uses it up


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_command_on_the_page_repeats_the_run(name: str) -> None:
    config = scenario(name, 20.0)
    text = page(*(of("burst")[:2]), config)
    assert f"--scenario {name} --duration 20s --seed {config.seed}" in text
    changed = msgspec.structs.replace(config, timeout=12.5)
    assert "runcue-sim --config run.yaml" in page(*(of("burst")[:2]), changed)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_configuration_on_the_page_can_be_read_again(name: str) -> None:
    config = scenario(name)
    assert load(as_yaml(config), name="any") == config


def test_a_configuration_of_odd_names_can_be_read_again() -> None:
    config = load(
        json.dumps({
            "name": "no", "services": {"on": {}, "1e3": {"rate": ["5/s", "60/min"]}, "a: b": {"concurrent": 2}},
            "workload": {"count": 5, "submit_rate": 1, "priorities": {"0.5": 1, "-2": 3}, "uses": {"null": ["on"]},
                         "task_types": ["null", "~"]},
            "duration": 5,
        }),
        name="any",
    )  # fmt: skip
    assert load(as_yaml(config), name="any") == config


def test_a_page_of_many_services_and_changes_stays_small() -> None:
    summary, outcome, config = of("cascade_failure")
    long = [(float(360 * n), float(n % 97)) for n in range(480)]
    one = msgspec.structs.replace(
        summary.services["payments"], running=long, starts_per_minute=long, rates=["60/60s", "5/1s", "9/10s"]
    )
    name = "s" * 100
    everything = msgspec.structs.replace(
        summary, took=86400.0 * 2, step=360.0, depth=long, completed_per_minute=long, failed_per_minute=long,
        latency_p50=long, latency_p95=long, latency_p99=long,
        services={f"{name}{n}": one for n in range(300)},
        circuits=[(43.2 * n, f"{name}{n % 3}", ("opened", "half_open", "closed")[n // 3 % 3]) for n in range(2000)],
        errors={f"{'e' * 90}{n}": n for n in range(20)},
    )  # fmt: skip
    text = page(everything, outcome, config, violations=[Violation("r", 0.0, "t" * 9999)] * 500)
    assert len(text.encode()) <= LARGEST
    assert f"{name}299" in text or "more" in text


def test_a_run_in_which_nothing_happened_has_a_page() -> None:
    config = load("services: {api: {}}\nworkload: {submit_rate: 0.001}\nduration: 1s\n", name="quiet")
    text = page(*ran(config))
    assert "quiet" in text
    outline(text)


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript here")
def test_the_script_is_valid() -> None:
    script = ROOT / "src" / "runcue" / "sim" / "page.js"
    done = subprocess.run(["node", "--check", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# plots ------------------------------------------------------------------------------------------------------


def test_thinning_keeps_every_peak_and_the_order() -> None:
    points: list[Point] = [(float(n), 0.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    points[77_777] = (77_777.0, -9.0)
    kept = thin(points)
    assert len(kept) <= MOST_POINTS
    assert {points[54_321], points[77_777]} <= set(kept)
    assert kept == sorted(kept)
    assert thin(points[:10]) == points[:10]


def test_a_hole_in_a_line_stays_a_hole() -> None:
    assert path([(0, 1.0), (1, 2.0), (1, None), (5, 3.0)]) == "M0 1L1 2M5 3h0"
    holes: list[Point] = [(float(n), None) for n in range(MOST_POINTS * 2)]
    assert path(thin(holes)) == ""


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [(0.0, "count", "0"), (1234.0, "count", "1,234"), (3.25, "count", "3.2"), (0.2449, "seconds", "245 ms"),
     (2.5, "seconds", "2.5 s"), (134.0, "seconds", "2 m 14 s"), (91.06, "minute", "91.1/min")],
)  # fmt: skip
def test_values_are_said_with_their_unit(value: float, unit: str, words: str) -> None:
    assert said(value, unit) == words


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1 + 0.2, "0.3"), (1e-9, "0"), (1234567.0, "1234567"), (0.00001234, "0.000012"), (-0.0, "0")]
)  # fmt: skip
def test_numbers_take_little_room(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("highest", [0.003, 0.9, 1, 3, 4, 7, 18.3, 60, 106, 804, 99_999, 1e7])
@pytest.mark.parametrize("unit", ["count", "seconds"])
def test_an_axis_has_few_round_marks_within_it(highest: float, unit: str) -> None:
    top, marks = scale(highest, unit)
    assert top > highest
    assert len(marks) <= 4
    assert all(0 < mark <= highest + 1e-9 for mark in marks)
    if unit == "count":
        assert all(mark == int(mark) for mark in marks)
    if highest >= 1:
        assert marks


@pytest.mark.parametrize(("at", "step", "text"), [(0, 60, "0"), (30, 15, "30 s"), (120, 60, "2 min"),
                                                  (7200, 3600, "2 h"), (172800, 86400, "2 d")])  # fmt: skip
def test_marks_of_time_have_the_unit_of_their_step(at: float, step: float, text: str) -> None:
    assert tick_text(at, step) == text


def test_labels_beside_a_plot_do_not_touch() -> None:
    lines = [Line(f"line {n}", [(0.0, 1.0), (1.0, 1.0 + n / 1000)], "a") for n in range(4)]
    places = [float(found) for found in re.findall(r'bottom:([\d.-]+)%">line', chart("t", lines, end=1.0))]
    assert len(places) == 4
    gaps = [later - earlier for earlier, later in pairwise(places)]
    assert min(gaps) >= 10
    assert max(places) <= 100


def test_a_plot_of_one_moment_and_of_a_year_can_be_drawn() -> None:
    for end in (0.0, 0.5, 366 * 86400.0):
        text = chart("t", [Line("x", [(0.0, 1.0)])], end=end, bands=[Band(0.0, end, "half_open")], limit=2)
        assert '<path class="half_open"' in text
        assert "nan" not in text
        assert len(re.findall(r'style="left:', text)) <= 8
