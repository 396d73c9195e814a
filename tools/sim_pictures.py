"""Makes docs/images/sim-tui.svg and sim-report.png:  python -m tools.sim_pictures

Rules:
- Nothing is staged: the screen is that of a run, stopped at a moment at which there is something to see, and the
  report is what `runcue-sim --html` writes.
- The screen is the same on every machine: virtual time, one seed. It loads no font from elsewhere.
- The report is drawn by Chromium: see tools/chromium.sh.
"""

import asyncio
import logging
import re
import sys
from pathlib import Path

from runcue.sim.check import Checker
from runcue.sim.config import load
from runcue.sim.metrics import Metrics
from runcue.sim.page import page
from runcue.sim.player import Player
from runcue.sim.scenarios import scenario
from runcue.sim.scene import Scene
from runcue.sim.tui import Watch
from runcue.sim.world import simulate
from tests.browser.chromium import ADVICE, chromium, found

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, HEIGHT = 1000, 1290
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"

WATCHED = """
name: my_test
seed: 7
duration: 10m
services:
  mock_api:
    max_concurrent: 5
    rate_limit: 120
    rate_window: 60
    behavior: {latency: {distribution: normal, mean: 2s, stddev: 500ms}, error_rate: 0.05}
  mock_ssh:
    max_concurrent: 1
    behavior: {latency: {distribution: uniform, min: 500ms, max: 2000ms}, error_rate: 0.02}
  mock_gpu:
    max_concurrent: 2
    circuit_threshold: 5
    circuit_timeout: 30s
    behavior: {latency: 800ms, outages: [{at: 100s, for: 60s}]}
workload: {submit_rate: 4, task_types: [extract, copy, analyze], arrivals: regular}
"""
WORTH_SHOWING = (110.0, 160.0)
"""Seconds of that run between which the picture is taken: as soon as a circuit is half open."""


async def screen() -> str:
    """The live screen at a moment at which a service is tried again."""
    app = Watch(Player(load(WATCHED, name="my_test")), speed=10)
    app.is_stopped = True
    async with app.run_test(size=(80, 24)) as pilot:
        await app.step(WORTH_SHOWING[0])
        while not is_worth_it(app.scene):
            await app.step(0.1)
        app.is_stopped = False
        app.show()
        await pilot.pause()
        return app.export_screenshot(title="runcue-sim --config my_test.yaml --tui --speed 10")


def is_worth_it(scene: Scene | None) -> bool:
    """True when a circuit is half open and the events say so."""
    if scene is None or scene.now > WORTH_SHOWING[1]:
        raise RuntimeError("the picture would not show what it is for: no circuit is half open")
    is_half_open = any(one["circuit"] == "half_open" for one in scene.services)
    return is_half_open and any(event.type == "circuit_half_open" for event in scene.recent[:3])


def without_fonts(picture: str) -> str:
    """The picture without the fonts that it would load from elsewhere."""
    picture = re.sub(r"\s*<!--.*?-->", "", picture, flags=re.DOTALL)
    picture = re.sub(r"\s*@font-face \{.*?\n    \}", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code, monospace", FONTS).replace(
        "font-family: arial", "font-family: sans-serif"
    )
    if "://" in picture.replace("http://www.w3.org/2000/svg", ""):
        raise RuntimeError("the picture would load something from elsewhere")
    return picture


def report() -> str:
    """The page of a run in which a service fails and comes back."""
    config = scenario("cascade_failure")
    metrics, checker = Metrics(config), Checker(config)
    outcome = simulate(config, None, metrics, checker)
    return page(
        metrics.finish(outcome),
        outcome,
        config,
        violations=checker.finish(outcome.calls, outcome.counts, outcome.ended_at),
    )


async def draw(text: str, target: Path) -> None:
    """Draw the upper part of a page."""
    async with chromium() as browser:
        view = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        await view.set_content(text)
        await view.screenshot(path=target)


def main() -> int:
    """Write both pictures; 1 when there is no Chromium for the second."""
    logging.getLogger("runcue").setLevel(logging.CRITICAL)
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "sim-tui.svg").write_text(without_fonts(asyncio.run(screen())), encoding="utf-8")
    print("docs/images/sim-tui.svg")
    if found() is None:
        print(ADVICE)
        return 1
    asyncio.run(draw(report(), IMAGES / "sim-report.png"))
    print("docs/images/sim-report.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
