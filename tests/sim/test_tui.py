"""The live screen, driven by its keys, on virtual time: `app.step` is the clock."""

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding
from textual.pilot import Pilot

import runcue
from runcue.sim import scene as words
from runcue.sim.config import Config, load
from runcue.sim.player import Player
from runcue.sim.scene import Knobs, Scene
from runcue.sim.tui import Help, Watch, keep
from runcue.sim.workload import Arrival
from runcue.sim.world import simulate
from tests.terminal import on_terminal, read_until

YAML = """
name: demo
seed: 3
duration: 10m
services:
  mock_api: {max_concurrent: 5, rate_limit: 60, rate_window: 60, behavior: {latency: 200ms}}
  mock_ssh: {max_concurrent: 1, circuit_threshold: 3, circuit_timeout: 60, behavior: {latency: 1s}}
workload: {submit_rate: 1/s, arrivals: regular}
"""


def config(**changes: Any) -> Config:
    return load(YAML, name="demo") if not changes else load(YAML + changes["more"], name="demo")


@asynccontextmanager
async def watching(
    player: Player | None = None, *, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[tuple[Watch, Pilot[None]]]:
    app = Watch(player or Player(config()), **options)
    app.is_stopped = True  # time passes when the test says so
    async with app.run_test(size=size) as pilot:
        yield app, pilot


def screen_of(app: Watch) -> list[str]:
    """What stands on the terminal, line by line."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    assert len(strips) == height
    lines = ["".join(segment.text for segment in strip) for strip in strips]
    assert {len(line) for line in lines} == {width}
    return [line.rstrip() for line in lines]


# the picture ------------------------------------------------------------------------------------------------


async def test_all_four_panels_fit_on_80_by_24() -> None:
    async with watching() as (app, pilot):
        await app.step(30)
        await pilot.pause()
        shown = screen_of(app)
    text = "\n".join(shown)
    for title in ("Queue", "Services", "Recent Events", "Controls"):
        assert title in text
    assert re.search(r"Queued: \d+ +Running: \d+ +Completed: \d+ +Failed: 0", text)
    assert re.search(r"mock_api \[[█░]{10}\] \d/5 concurrent +\d+/60 rate +● OK", text)
    assert re.search(r"mock_ssh \[[█░]{10}\] \d/1 concurrent +- +● OK", text)
    assert re.search(r"0:00:\d\d\.\d work_completed +id=w\d+  task=mock_api  duration=200ms", text)
    assert "[E] Error rate 0 %  [L] Latency ×1  [R] Submit rate ×1  [P] Pause" in text
    assert "[Q] Quit" in text
    assert "demo   seed 3   0:00:30" in shown[0]


async def test_without_unicode_everything_is_ascii() -> None:
    async with watching(is_unicode=False) as (app, pilot):
        await app.step(30)
        await pilot.press("c")
        await pilot.pause()
        shown = "\n".join(screen_of(app))
    assert shown.isascii()
    assert re.search(r"mock_api \[[#.]{10}\]", shown)
    assert "Latency x1" in shown


async def test_no_color_leaves_only_shades_of_grey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with watching() as (app, pilot):
        await app.step(30)
        await pilot.pause()
        picture = app.export_screenshot()
    inside = picture.split("</style>", 1)[1]
    colors = set(re.findall(r"fill: #([0-9a-f]{6})", picture)) | set(
        re.findall(r'fill="#([0-9a-f]{6})"', inside)
    )
    window = {"ff5f57", "febc2e", "28c840", "292929", "c5c8c6"}  # what the exporter draws around the terminal
    assert [color for color in colors - window if not color[:2] == color[2:4] == color[4:]] == []


async def test_a_small_terminal_still_shows_the_keys() -> None:
    async with watching(size=(40, 16)) as (app, pilot):
        await app.step(30)
        await pilot.pause()
        assert "Queue" in "\n".join(screen_of(app))


async def test_of_many_services_the_chosen_one_is_shown() -> None:
    many = "\n".join(f"  s{number:02}: {{concurrent: 1}}" for number in range(30))
    player = Player(load(f"services:\n{many}\nworkload: {{submit_rate: 1}}\n", name="many"))
    async with watching(player) as (app, pilot):
        await app.step(1)
        await pilot.pause()
        assert "s00  [" in "\n".join(screen_of(app))
        await pilot.press("shift+tab")
        await pilot.pause()
        shown = "\n".join(screen_of(app))
        assert "▸ s29  [" in shown
        assert "[Q] Quit" in shown


async def test_another_size_is_drawn_at_once() -> None:
    async with watching() as (app, pilot):
        await app.step(60)
        await pilot.resize_terminal(100, 40)
        await pilot.pause()
        assert sum("work_completed" in line for line in screen_of(app)) > 15


# the keys ---------------------------------------------------------------------------------------------------


def knobs(app: Watch) -> Knobs:
    assert app.scene is not None
    return app.scene.knobs


async def test_small_letters_are_small_steps_and_capitals_big_ones() -> None:
    async with watching() as (app, pilot):
        await pilot.press("e", "E", "E")
        assert knobs(app).error_rate == pytest.approx(0.21)
        await pilot.press("l", "L")
        assert knobs(app).latency == 2.5
        await pilot.press("r", "R")
        assert knobs(app).arrivals == 2.5


async def test_the_error_rate_ends_at_half_and_begins_anew() -> None:
    async with watching() as (app, pilot):
        await pilot.press("E", "E", "E", "E", "E")
        assert knobs(app).error_rate == 0.5
        await pilot.press("e")
        assert knobs(app).error_rate == 0.0


async def test_the_arrows_turn_what_was_turned_last_both_ways() -> None:
    async with watching() as (app, pilot):
        await pilot.press("e", "up", "shift+up", "down")
        assert knobs(app).error_rate == pytest.approx(0.11)
        await pilot.press("L", "shift+down", "shift+down")
        assert knobs(app).latency == 0.5
        await pilot.press("R", "down")
        assert knobs(app).arrivals == 1.6


async def test_a_higher_error_rate_makes_works_fail() -> None:
    async with watching() as (app, pilot):
        await pilot.press("E", "E", "E", "E", "E")
        await app.step(120)
        assert app.scene is not None
        assert {event.type for event in app.scene.recent} >= {"failed", "retrying"}


async def test_c_opens_the_circuit_of_the_chosen_service_and_c_again_mends_it() -> None:
    async with watching() as (app, pilot):
        await pilot.press("tab", "tab", "c")
        assert (knobs(app).chosen, knobs(app).down) == ("mock_ssh", ("mock_ssh",))
        await app.step(30)
        await pilot.pause()
        assert re.search(r"▸ mock_ssh .* ○ OPEN", "\n".join(screen_of(app)))
        await pilot.press("C")
        await app.step(120)
        await pilot.pause()
        assert re.search(r"mock_ssh .* ● OK", "\n".join(screen_of(app)))


async def test_p_holds_arrivals_back_and_lets_them_go_on() -> None:
    async with watching() as (app, pilot):
        await app.step(10)
        await pilot.press("p")
        assert app.player.simulation.is_paused
        await app.step(1)
        before = app.player.simulation.outcome.submitted
        await app.step(60)
        assert app.player.simulation.outcome.submitted == before
        await pilot.pause()
        assert "arrivals paused" in "\n".join(screen_of(app))
        await pilot.press("p")
        await app.step(10)
        assert app.player.simulation.outcome.submitted > before


@pytest.mark.parametrize("more", ["", "store: file\nnodes: 2\n"])
@pytest.mark.parametrize("key", ["k", "K"])
async def test_k_kills_a_task_that_runs(key: str, more: str) -> None:
    async with watching(Player(config(more=more))) as (app, pilot):
        await pilot.press("tab", "tab")
        while not app.player.simulation.services["mock_ssh"].running:
            await app.step(0.25)
        await pilot.press(key)
        await pilot.pause()
        assert "killed a task of mock_ssh" in "\n".join(screen_of(app))
        await app.step(2)
        assert app.scene is not None
        assert any("was killed" in (event.error or "") for event in app.scene.recent)


async def test_k_says_when_nothing_runs_that_it_could_kill() -> None:
    async with watching() as (app, pilot):
        await pilot.press("k")
        await pilot.pause()
        assert "no task is running there" in "\n".join(screen_of(app))


def test_a_key_does_the_same_in_either_case_and_a_capital_takes_at_most_a_bigger_step() -> None:
    actions = {
        key: str(binding.action).partition(",")[0]
        for binding in Watch.BINDINGS
        if isinstance(binding, Binding)
        for key in binding.key.split(",")
    }
    shown = "".join(text for row in words.control_rows(Scene(0.0, 1.0, {}, []), 1.0) for text, _ in row)
    letters = re.findall(r"\[([A-Z])\]", shown)
    assert letters == [*"ELRPCKSQ"]
    assert {key: actions.get(key.swapcase()) for key in actions if len(key) == 1} == {
        key: action for key, action in actions.items() if len(key) == 1
    }
    assert {actions[letter] for letter in letters} == {
        "turn('error'", "turn('latency'", "turn('arrivals'", "pause", "failure", "kill", "save", "leave"
    }  # fmt: skip


@pytest.mark.parametrize("key", ["n", "N"])
async def test_n_kills_a_node_and_brings_it_back(key: str) -> None:
    player = Player(config(more="store: file\nnodes: 2\n"))
    async with watching(player) as (app, pilot):
        await app.step(10)
        await pilot.press(key)
        assert app.scene is not None
        assert app.scene.nodes == "1/2"
        await app.step(5)
        await pilot.press(key)
        assert app.scene.nodes == "2/2"


async def test_a_queue_in_memory_says_that_it_has_no_node_to_kill() -> None:
    async with watching() as (app, pilot):
        await pilot.press("n")
        await pilot.pause()
        assert "store: file" in "\n".join(screen_of(app))


async def test_s_saves_what_it_is_given_and_says_where(tmp_path: Path) -> None:
    player = Player(config())
    async with watching(player, save=lambda: keep(player, b"{}", tmp_path)) as (app, pilot):
        await app.step(12)
        await pilot.press("s", "S")
        await pilot.pause()
        assert "saved runcue-sim-demo-12s-2.json" in "\n".join(screen_of(app))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "runcue-sim-demo-12s-2.json",
        "runcue-sim-demo-12s.json",
    ]


async def test_a_snapshot_that_cannot_be_written_is_no_end(tmp_path: Path) -> None:
    player = Player(config())
    async with watching(player, save=lambda: keep(player, b"{}", tmp_path / "none")) as (app, pilot):
        await pilot.press("s")
        await pilot.pause()
        assert "not saved: No such file or directory" in "\n".join(screen_of(app))


async def test_the_speed_has_steps_and_space_stops_the_clock() -> None:
    async with watching(speed=10) as (app, pilot):
        await pilot.press("plus")
        assert app.speed == 25
        await pilot.press("minus", "minus")
        assert app.speed == 5
        was_stopped = app.is_stopped
        await pilot.press("space")
        assert app.is_stopped is not was_stopped


@pytest.mark.parametrize("key", ["question_mark", "escape", "q"])
async def test_help_opens_and_closes(key: str) -> None:
    async with watching() as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, Help)
        assert "error rate up by 1 or 10 points" in "\n".join(screen_of(app))
        await pilot.press(key)
        await pilot.pause()
        assert not isinstance(app.screen, Help)
        assert app.is_running


async def test_q_leaves() -> None:
    async with watching() as (app, pilot):
        await pilot.press("q")
        await pilot.pause()
    assert app.return_code == 0


async def test_a_key_pressed_on_the_way_out_does_no_harm() -> None:
    async with watching() as (app, _):
        pass
    app.show()


# the player -------------------------------------------------------------------------------------------------


def test_a_run_that_is_watched_takes_the_same_course_as_one_that_is_not() -> None:
    told: list[list[tuple[str, float, str | None]]] = [[], []]
    player = Player(config(), lambda event: told[0].append((event.type, event.at, event.work_id)))
    while player.outcome is None:
        player.advance(7.0)
    player.close()
    alone = simulate(config(), None, lambda event: told[1].append((event.type, event.at, event.work_id)))
    assert told[0] == told[1]
    assert player.outcome.counts == alone.counts


def test_a_player_shows_the_end_and_stays_there() -> None:
    player = Player(config(more="drain: 60s\n"))
    scene = player.advance(2000.0)
    assert scene.has_ended
    assert player.advance(10.0) is scene
    assert player.do(Player.pause) is scene
    player.close()
    player.close()


def test_a_player_can_be_closed_in_the_middle_and_before_it_began() -> None:
    player = Player(config())
    player.advance(10.0)
    player.close()
    assert player.outcome is not None
    assert not player.outcome.is_whole
    assert player.outcome.ended_at - player.outcome.began_at == pytest.approx(10.0)
    Player(config()).close()


def test_all_that_happened_before_it_was_closed_is_heard() -> None:
    heard: list[str] = []
    player = Player(config(), lambda event: heard.append(event.type))
    player.advance(10.1)
    player.close()
    assert heard.count("queued") == player.simulation.outcome.submitted == 10


def test_a_simulation_that_breaks_says_so_to_whoever_plays_it() -> None:
    def broken() -> Iterator[Arrival]:
        yield from ()
        raise ZeroDivisionError("in the workload")

    player = Player(config(), arrivals=broken())
    with pytest.raises(ZeroDivisionError, match="in the workload"):
        player.advance(10.0)
    player.close()


# words ------------------------------------------------------------------------------------------------------


def test_names_from_outside_cannot_speak_to_the_terminal() -> None:
    event = runcue.Event("failed", 1, 5.0, "w1", "a\x1b[2Jb", error="bad\x07\nsecond line")
    text = words.details(event)
    assert text == r"id=w1  task=a\x1b[2Jb  error=bad\x07"


def test_a_line_of_events_is_never_wider_than_its_room() -> None:
    event = runcue.Event("failed", 1, 5.0, "w" * 90, "task" * 40, error="e" * 300)
    scene = Scene(now=0.0, duration=1.0, counts={}, services=(), recent=(event,))
    [row] = words.event_rows(scene, 60, 5)
    assert sum(len(text) for text, _ in row) == 60


def test_a_service_without_limits_is_shown_too() -> None:
    one = {"name": "free", "running": 3, "concurrent": None, "rates": [], "circuit": None, "paused": False}
    scene = Scene(now=0.0, duration=1.0, counts={}, services=(one,))
    [row] = words.service_rows(scene, 76)
    assert "3 running" in "".join(text for text, _ in row)


@pytest.mark.parametrize(
    ("circuit", "is_paused", "is_down", "word"),
    [("open", False, False, "OPEN"), ("half_open", False, True, "HALF"), ("closed", True, False, "PAUSED"),
     (None, False, True, "DOWN"), ("closed", False, False, "OK")],
)  # fmt: skip
def test_each_state_of_a_service_has_a_word(circuit: str, is_paused: bool, is_down: bool, word: str) -> None:
    assert words.circuit({"circuit": circuit, "paused": is_paused}, is_down)[1] == word


# a real terminal --------------------------------------------------------------------------------------------


def test_it_runs_in_a_real_terminal_leaves_it_as_it_was_and_reports_how_far_it_came(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(YAML, encoding="utf-8")
    options = ["--config", "demo.yaml", "--tui", "--speed", "100", "--report", "so-far.json"]
    env = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    with on_terminal([sys.executable, "-m", "runcue.sim", *options], env, tmp_path) as ours:
        shown = read_until(ours, b"work_completed")
        os.write(ours, b"q")
        shown += read_until(ours, b"before its end")
    assert b"Recent Events" in shown
    assert b"\x1b[?1049l" in shown
    found = json.loads((tmp_path / "so-far.json").read_bytes())
    assert 0 < found["left_at"] == found["summary"]["took"] < 1200
    assert found["summary"]["completed"] > 0
