"""Clocks that are set, hosts that sleep or start anew, and loops that stand still, with the queue in a file."""

from __future__ import annotations

from typing import Any

import pytest

from runcue.stores.presence.presence import last_beat, side_directory, workers
from tests.faults.stage import Actor, Scene
from tests.patience import BOUND
from tests.torture import history
from tests.torture.history import now
from tests.torture.swarm import reading

HOUR = 3600.0
YEAR = 365 * 86400.0
METERED: dict[str, Any] = {"services": {"api": {"rate": "3/h"}}, "tasks": {"note": {"uses": "api"}}}
"""A program whose notes may be made three times an hour."""


def used_up(scene: Scene, **script: Any) -> Actor:
    """A program that has used its three notes of this hour."""
    actor = scene.running(**METERED, **script)
    for number in range(3):
        actor.submit(id=f"w{number}")
        actor.until_state(f"w{number}", "completed")
    return actor


def check_waits(actor: Actor, work_id: str) -> float:
    """That work waits for its service, and for no longer than the window; for how long."""
    why = actor.ask("explain", work_id=work_id)
    assert (why["state"], why["reason"]) == ("pending", "rate")
    left: float = why["until"] - actor.ask("get", work_id=work_id)["created_at"]
    assert 0 < left <= 1.01 * HOUR
    return left


# --- TM1, TM2, TM3: the clock on the wall ---------------------------------------------------------


@pytest.mark.parametrize("jump", [HOUR, 10 * YEAR, -HOUR])
def test_setting_the_clock_empties_no_window_and_delays_nothing(scene: Scene, jump: float) -> None:
    """TM1, TM2: nor is running work taken for overdue, nor its program for dead."""
    actor = used_up(scene, options={"lease": 0.5})
    other = scene.running(**METERED, options={"lease": 0.5})
    actor.submit("hold", id="held", timeout=600)
    scene.until_started("held")
    for one in (actor, other):
        one.ask("shift", wall=jump)
    actor.submit(id="w3")
    assert check_waits(actor, "w3") > 0.9 * HOUR
    check_waits(other, "w3")
    other.submit("stall", id="soon", delay=0.2, params={"seconds": 0})
    actor.until_state("soon", "completed")
    assert actor.ask("get", work_id="held")["state"] == "running"
    for one in (actor, other):  # either may have been given it
        one.ask("let_go")
    assert actor.until_state("held", "completed")["attempt"] == 1
    assert scene.starts() == {"w0": 1, "w1": 1, "w2": 1, "soon": 1, "held": 1}


def test_a_clock_set_while_nobody_was_there_empties_no_window(scene: Scene) -> None:
    """TM1, TM2: on the same boot, whatever the time of day is said to be now."""
    used_up(scene).close()
    for number, jump in enumerate((YEAR, -YEAR)):
        actor = scene.play(**METERED)
        actor.ask("shift", wall=jump)
        actor.ask("start")
        name = actor.submit(id=f"late{number}")
        check_waits(actor, name)
        actor.close()
    assert sum(scene.starts().values()) == 3


def test_programs_whose_clocks_differ_share_one_window(scene: Scene) -> None:
    """TM3: queue time is the same for all on one host."""
    early, late = scene.play(**METERED), scene.play(**METERED)
    early.ask("shift", wall=-300)
    late.ask("shift", wall=300)
    for one in (early, late):
        one.ask("start")
    for number in range(4):
        early.submit(id=f"e{number}")
        late.submit(id=f"l{number}")
    early.until(lambda found: len(found) == 3, "list", state="completed")
    times = [early.ask("get", work_id=f"{who}{number}")["created_at"] for number in range(4) for who in "el"]
    assert times == sorted(times)
    assert times[-1] - times[0] < BOUND
    early.submit("stall", id="soon", delay=0.2, params={"seconds": 0})
    late.until_state("soon", "completed")
    assert sum(scene.starts().values()) == 3 + 1


# --- TM4, PD15: sleep, and a new boot -------------------------------------------------------------


def test_a_host_that_slept_robs_nobody_and_the_time_it_slept_counts(scene: Scene) -> None:
    """TM4: eight hours pass while work runs; leases are kept by locks, and windows are over."""
    actor = used_up(scene, options={"lease": 0.5})
    other = scene.running(**METERED, options={"lease": 0.5})
    actor.submit("hold", id="held")
    scene.until_started("held")
    actor.submit(id="w3")
    check_waits(actor, "w3")
    for one in (actor, other):
        one.ask("shift", boottime=8 * HOUR, wall=8 * HOUR)
    for one in (actor, other):
        one.submit("stall", params={"seconds": 0})  # something to wake up for
    actor.until_state("w3", "completed")
    assert other.ask("get", work_id="held")["state"] == "running"
    for one in (actor, other):  # whichever runs it
        one.ask("let_go")
    assert other.until_state("held", "completed")["attempt"] == 1
    assert set(scene.starts().values()) == {1}


@pytest.mark.parametrize("uptime", [-20_000.0, 1e6], ids=["after a reboot", "on another machine"])
@pytest.mark.parametrize("wall", [30 * 86400.0, -30 * 86400.0])
def test_after_a_reboot_running_work_is_taken_up_at_once_and_windows_still_hold(
    scene: Scene, wall: float, uptime: float
) -> None:
    """PD15: queue time goes on where it was; the time off does not count, whatever the clocks say."""
    actor = used_up(scene, boot="one")
    actor.submit("hold", id="held")
    scene.until_started("held")
    before = actor.ask("get", work_id="held")["created_at"]
    actor.kill()
    for number, boot in enumerate(("two", "three")):
        actor = scene.play(**METERED, boot=boot)
        actor.ask("shift", boottime=uptime * (number + 1), wall=wall)
        actor.ask("start")
        name = actor.submit(id=f"late{number}")
        assert check_waits(actor, name) > 0.9 * HOUR
        after = actor.ask("get", work_id=name)["created_at"]
        assert before <= after < before + BOUND
        before = after
        scene.until_started("held", times=number + 2)  # the work of the last boot is not left lying
        actor.kill()
    assert scene.starts()["w0"] == scene.starts()["w2"] == 1
    assert not scene.starts()["late0"]


# --- TM6, TM8 -------------------------------------------------------------------------------------


def test_times_are_stored_as_numbers(scene: Scene) -> None:
    """TM6: text would not sort as time does."""
    actor = used_up(scene)
    actor.submit("note", id="later", delay=100)
    actor.close()
    with reading(scene.database) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        found = 0
        for table in tables:
            names = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
            for name in names:
                if name.endswith("_at") or name in {"at", "now", "since"}:
                    kinds = {kind for (kind,) in connection.execute(f"SELECT typeof({name}) FROM {table}")}
                    assert kinds <= {"real", "null"}, (table, name)
                    found += "real" in kinds
    assert found > 6


def test_a_loop_that_stands_still_goes_on_giving_signs_of_life(scene: Scene) -> None:
    """TM8: a handler holds the loop for many times the lease; its work stays its own."""
    actor = scene.running(options={"lease": 0.3})
    directory = side_directory(scene.database)
    [worker] = workers(directory)
    other = scene.running(options={"lease": 0.3})
    call = actor.tell("submit", task="stall", id="stalled", params={"seconds": 1.2})
    scene.until_started("stalled")
    beats, bound = set(), now() + BOUND
    while not any(line.op == "end" for line in history.read(scene.folder)):
        assert now() < bound, "it stands still for ever"
        beats.add(last_beat(directory, worker))
    assert len(beats) > 3, "its heart stood still as well"
    assert actor.answer(call) == "stalled"
    work = other.until_state("stalled", "completed")
    assert (work["attempt"], scene.starts()["stalled"]) == (1, 1)
