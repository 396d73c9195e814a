"""The swarm: small worlds with many faults, in which every promise is kept; one seed, one trace."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

import runcue
from runcue.core.limits import service as service_limits
from runcue.sim import swarm, trial
from runcue.sim.promise import Violation, limits_of
from tests.sample import fewer

SEEDS = fewer(2000, 300)
"""In every run of the tests, in processes of their own."""
CHUNK = fewer(250, 50)


def known_seeds(path: Path) -> list[int]:
    """The seeds in a file as `swarm.run` writes it: one a line, with a comment after a #."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [int(line) for line in lines if line]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept_in_every_world(first: int, tmp_path: Path) -> None:
    report = swarm.run(range(first, first + CHUNK), jobs=1, keep=tmp_path / "seeds.txt")
    assert [f"{trace.seed}: {trace.violations[0]}" for trace in report.failures] == []
    assert report.seeds == CHUNK
    assert (report.fewest_nodes or 0) >= 2
    assert (report.fewest_works or 0) >= 50
    assert report.calm == [], "a fault fired in each of them"
    assert [kind for kind in trial.FAULTS if not report.faults[kind]] == [], "and each kind of fault in some"


def test_a_seed_that_failed_once_does_not_fail_again() -> None:
    seeds = known_seeds(Path(__file__).with_name("seeds.txt"))
    assert seeds, "there are some"
    assert {seed: list(map(str, swarm.play(seed).violations)) for seed in seeds} == {
        seed: [] for seed in seeds
    }


def test_one_seed_is_one_trace_in_any_process() -> None:
    seeds = [3, 7, 1530]  # in the last one, two nodes are woken at the same moment
    here = [swarm.play(seed) for seed in seeds]
    again = [swarm.play(seed) for seed in seeds]
    elsewhere = list(swarm.traces(seeds, jobs=1))
    assert [trace.digest for trace in here] == [trace.digest for trace in again]
    assert [trace.digest for trace in here] == [trace.digest for trace in elsewhere]
    assert here[0].digest != here[1].digest
    assert here == again == elsewhere


def test_a_seed_that_fails_is_told_with_its_first_violation_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = service_limits.Window.room
    monkeypatch.setattr(service_limits.Window, "room", lambda self, now: room(self, now) + 1)
    told: list[str] = []
    kept = tmp_path / "seeds.txt"
    report = swarm.run(range(4), keep=kept, tell=told.append)
    assert report.seeds == 4
    failed = [trace.seed for trace in report.failures]
    assert failed
    assert known_seeds(kept) == failed
    assert told[0] == f"seed {failed[0]}  # {report.failures[0].violations[0]}"
    assert kept.read_text().splitlines() == [line.removeprefix("seed ") for line in told]


def test_without_failures_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    swarm.run([1])
    assert list(tmp_path.iterdir()) == []


def test_a_known_seed_may_have_a_reason_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_text("# seeds\n\n12  # lost at 3: work w1\n7\n")
    assert known_seeds(file) == [12, 7]


def test_a_report_adds_up() -> None:
    report = swarm.Report()
    broken = Violation("rate", 1.0, "too many")
    report.add(swarm.Trace(1, 2, 50, 100, "a", {"crash": 2}, []))
    report.add(swarm.Trace(2, 3, 60, 100, "b", {}, [broken]))
    assert (report.seeds, report.works, report.events) == (2, 110, 200)
    assert (report.fewest_nodes, report.fewest_works) == (2, 50)
    assert report.calm == [2]
    assert report.faults == {**dict.fromkeys(trial.FAULTS, 0), "crash": 2}
    assert [trace.seed for trace in report.failures] == [2]


def test_a_seed_draws_the_same_world_each_time() -> None:
    assert trial.draw(11) == trial.draw(11)
    assert trial.draw(11) != trial.draw(12)


def test_worlds_differ_in_the_faults_they_have() -> None:
    moods = {frozenset(trial.draw(seed).moods) for seed in range(50)}
    kinds = Counter(act.kind for seed in range(200) for act in trial.draw(seed).acts)
    assert len(moods) > 20
    assert all(kinds[kind] for kind in ("crash", "pause", "limits", "leave", "cancel", "retry", "submit_cut"))
    assert all(trial.draw(seed).nodes >= 2 for seed in range(200))


def test_a_far_side_refuses_calls_in_worlds_in_which_a_concurrency_finds_itself() -> None:
    worlds = [trial.draw(seed) for seed in range(200)]
    adapting = [world for world in worlds if any(one.adaptive for one in world.services.values())]
    assert 20 < len(adapting) < 80
    assert all(("refused" in world.moods) == (world in adapting) for world in worlds)
    [service, *_] = [one for one in adapting[0].services.values() if one.adaptive]
    bounds = service.adaptive
    assert bounds is not None
    found = runcue.adaptive(min=bounds.min, start=bounds.start, max=bounds.max)
    assert service.options()["concurrent"] == found
    assert limits_of(service).concurrent == bounds.max


def test_processes_of_the_swarm_are_told_to_keep_tracebacks_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "no"):
        if before is not None:
            monkeypatch.setenv(swarm.NO_COLUMNS, before)
        with swarm._short_tracebacks():
            assert os.environ[swarm.NO_COLUMNS] == "1"
        assert os.environ.get(swarm.NO_COLUMNS) == before
