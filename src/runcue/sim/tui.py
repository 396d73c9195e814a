"""The live screen: shows a simulation while it runs, and has keys that change it.

Rules:
- The simulation runs in a thread of its own, on virtual time (player.py); the screen says how far it goes.
- 80 columns and 24 lines are enough. Colour says nothing that a word does not say; NO_COLOR and terminals without
  Unicode are respected.
- A key does the same in either case. Where it turns something, a small letter is a small step, a capital a big one;
  the arrow keys turn what was turned last, both ways.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from runcue.sim.config import Config
from runcue.sim.player import Player
from runcue.sim.plots import moment
from runcue.sim.scene import Row, Scene, clean, control_rows, event_rows, queue_rows, service_rows, spelled
from runcue.sim.workload import Arrival
from runcue.sim.world import Listener, Outcome

T = TypeVar("T")

FRAME = 0.1
"""Real seconds between two pictures."""

LONGEST_STEP = 0.5
"""The most real seconds that one step makes up for: a slow machine runs slower, and its screen still answers."""

SPEEDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 25, 60, 100, 250, 600, 1000, 3600)
STYLES = {"plain": "", "soft": "dim", "strong": "bold", "good": "green", "warn": "yellow", "bad": "bold red"}

KNOBS: dict[str, tuple[Callable[[Player, float], None], float, float]] = {
    "error": (Player.turn_error_rate, 0.01, 0.1),
    "latency": (Player.turn_latency, 1.25, 2.0),
    "arrivals": (Player.turn_arrivals, 1.25, 2.0),
}
"""What turns each knob, and its small and its big step: an error rate is added to, the others are multiplied."""

HELP = """\
e E        error rate up by 1 or 10 points; after 50 % it begins anew
l L        latency up by a quarter, or twofold
r R        units arrive faster, by a quarter or twofold
up down    turn what was turned last up or down; with shift in big steps
c          let services fail every call, or answer again
p          pause arrivals, or go on
k          kill one running task
n          kill a node, or start a dead one again (store: file)
s          save the figures so far as JSON, in this folder
tab        choose one service for E L C K, or all
+ -        run faster or slower
space      stop the clock, or let it go on
q          leave; ? closes this"""


class Help(ModalScreen[None]):
    """What the keys do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "Close", show=False, priority=True)
    ]

    def __init__(self, is_unicode: bool) -> None:
        super().__init__()
        self._is_unicode = is_unicode

    def compose(self) -> ComposeResult:
        """One box of text."""
        box = Static(HELP, id="help", markup=False)
        box.set_class(not self._is_unicode, "ascii")
        yield box


class Events(Vertical):
    """The panel of events, which gets the rest of the screen: when its size changes, everything is drawn again."""

    def on_resize(self) -> None:
        """Draw everything again, even while the clock is stopped."""
        app = self.app
        if isinstance(app, Watch):
            app.show()


class Watch(App[None]):
    """Queue, services, recent events and controls of one running simulation."""

    TITLE = "runcue-sim"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; background: $background; }
    Static { width: 1fr; }
    .panel { border: round $foreground 35%; border-title-color: $foreground; padding: 0 1; height: auto; }
    .panel.ascii { border: ascii $foreground 35%; }
    #services-box { max-height: 12; height: auto; }
    #events-box { height: 1fr; min-height: 3; overflow: hidden; }
    Help { align: center middle; }
    #help { width: 78; height: auto; border: round $foreground 35%; padding: 0 1; background: $surface; }
    #help.ascii { border: ascii $foreground 35%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "turn('error', 1, 0)", priority=True), Binding("E", "turn('error', 1, 1)", priority=True),
        Binding("l", "turn('latency', 1, 0)", priority=True), Binding("L", "turn('latency', 1, 1)", priority=True),
        Binding("r", "turn('arrivals', 1, 0)", priority=True), Binding("R", "turn('arrivals', 1, 1)", priority=True),
        Binding("up", "again(1, 0)", priority=True), Binding("down", "again(-1, 0)", priority=True),
        Binding("shift+up", "again(1, 1)", priority=True), Binding("shift+down", "again(-1, 1)", priority=True),
        Binding("c,C", "failure", priority=True), Binding("p,P", "pause", priority=True),
        Binding("k,K", "kill", priority=True), Binding("n,N", "kill_node", priority=True),
        Binding("s,S", "save", priority=True), Binding("tab", "choose(1)", priority=True),
        Binding("shift+tab", "choose(-1)", priority=True), Binding("plus,equals_sign", "speed(1)", priority=True),
        Binding("minus", "speed(-1)", priority=True), Binding("space", "stop", priority=True),
        Binding("question_mark,h,H", "help", priority=True), Binding("q,Q,ctrl+c", "leave", priority=True),
    ]  # fmt: skip

    def __init__(
        self,
        player: Player,
        *,
        speed: float = 1.0,
        is_unicode: bool = True,
        save: Callable[[], Path] | None = None,
    ) -> None:
        super().__init__()
        self.player = player
        self.speed = speed
        self.is_stopped = False
        self.is_unicode = is_unicode
        self.scene: Scene | None = None
        self._save = save
        self._turned = "error"
        self._thread = ThreadPoolExecutor(1, "simulation")
        self._steps = asyncio.Lock()
        self._said = ""

    def compose(self) -> ComposeResult:
        """Four panels below each other."""
        kinds = {"services": VerticalScroll, "events": Events}
        for name, title in (
            ("queue", "Queue"), ("services", "Services"), ("events", "Recent Events"), ("controls", "Controls")
        ):  # fmt: skip
            box = kinds.get(name, Vertical)(Static(id=name, markup=False), id=f"{name}-box", classes="panel")
            box.border_title = title
            box.can_focus = False
            box.set_class(not self.is_unicode, "ascii")
            yield box

    async def on_mount(self) -> None:
        """Show the first moment, and go on."""
        await self.step(0.0)
        self.run_worker(self._go_on(), exclusive=True)

    async def on_unmount(self) -> None:
        """End the simulation with the screen."""
        await self._in_thread(self.player.close)
        self._thread.shutdown()

    # time -------------------------------------------------------------------------------------------------

    async def _go_on(self) -> None:
        """One picture after the other, each as far on as the clock is."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(FRAME)
            now = time.monotonic()
            passed, before = min(now - before, LONGEST_STEP), now
            if not self.is_stopped:
                await self.step(passed * self.speed)

    async def step(self, seconds: float) -> None:
        """Let the simulation go on by so much, and show it."""
        async with self._steps:
            self.scene = await self._in_thread(lambda: self.player.advance(seconds, LONGEST_STEP))
        self.show()

    async def turn(self, act: Callable[[Player], object]) -> None:
        """Do something to the simulation, and show it."""
        async with self._steps:
            self.scene = await self._in_thread(lambda: self.player.do(act))
        self.show()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # the picture ------------------------------------------------------------------------------------------

    def show(self) -> None:
        """Draw the scene as it is now."""
        scene = self.scene
        if scene is None or not self.query("#controls"):  # not there yet, or on its way out
            return
        width = max(20, self.size.width - 4)
        self._put("queue", queue_rows(scene))
        self._put("services", service_rows(scene, width))
        self._bring_up(scene)
        room = max(1, self.query_one("#events-box").size.height)
        self._put("events", event_rows(scene, width, room))
        self._put("controls", control_rows(scene, self.speed))
        config = self.player.simulation.config
        state = "stopped" if self.is_stopped else f"{moment(scene.duration)} in all"
        state = "ended" if scene.has_ended else state
        title = f"{clean(config.name)}   seed {config.seed}   {moment(scene.now)}   {state}"
        self.query_one("#queue-box").border_title = self._spelled(f"Queue   {title}")
        self.query_one("#controls-box").border_title = self._spelled(f"Controls   {self._said}".rstrip())

    def _bring_up(self, scene: Scene) -> None:
        """Where not all services fit, the chosen one is among those that are shown."""
        box = self.query_one("#services-box")
        places = [place for place, one in enumerate(scene.services) if one["name"] == scene.knobs.chosen]
        box.scroll_to(y=max(0, (places or [0])[0] - box.size.height + 1), animate=False)

    def _put(self, name: str, rows: list[Row]) -> None:
        text = Text(no_wrap=True, overflow="ellipsis" if self.is_unicode else "crop")
        for number, row in enumerate(rows):
            if number:
                text.append("\n")
            for words, tone in spelled(row, self.is_unicode):
                text.append(words, STYLES[tone])
        self.query_one(f"#{name}", Static).update(text)

    def _spelled(self, words: str) -> Text:
        return Text(spelled([(words, "plain")], self.is_unicode)[0][0])

    def say(self, words: str) -> None:
        """Tell what a key did, beside the controls."""
        self._said = words
        self.show()

    # keys -------------------------------------------------------------------------------------------------

    async def action_turn(self, knob: str, direction: int, is_big: int) -> None:
        """Turn a knob up or down, by a small or a big step."""
        self._turned = knob
        act, *steps = KNOBS[knob]
        step = steps[is_big]
        if direction < 0:
            step = -step if knob == "error" else 1 / step
        await self.turn(lambda player: act(player, step))

    async def action_again(self, direction: int, is_big: int) -> None:
        """Turn the knob that was turned last."""
        await self.action_turn(self._turned, direction, is_big)

    async def action_failure(self) -> None:
        """Let services fail, or answer again."""
        await self.turn(Player.break_services)

    async def action_pause(self) -> None:
        """Hold arrivals back, or let them come."""
        await self.turn(Player.pause)

    async def action_kill(self) -> None:
        """Let one running task die."""
        found: list[str | None] = []
        await self.turn(lambda player: found.append(player.kill_task()))
        self.say(f"killed a task of {clean(found[0])}" if found and found[0] else "no task is running there")

    async def action_kill_node(self) -> None:
        """Let a node die, or come back."""
        if self.player.simulation.config.store == "memory":
            self.say("a queue in memory has no node to kill: store: file has")
            return
        await self.turn(Player.kill_node)

    async def action_choose(self, step: int) -> None:
        """Choose what the keys are about."""
        await self.turn(lambda player: player.choose(step))

    def action_speed(self, step: int) -> None:
        """Go faster, or slower."""
        if step > 0:
            self.speed = min((speed for speed in SPEEDS if speed > self.speed), default=self.speed)
        else:
            self.speed = max((speed for speed in SPEEDS if speed < self.speed), default=self.speed)
        self.show()

    def action_stop(self) -> None:
        """Stop the clock, or let it go on."""
        self.is_stopped = not self.is_stopped
        self.show()

    async def action_save(self) -> None:
        """Save the figures so far."""
        if self._save is None or self.scene is None:
            return
        try:
            path = await self._in_thread(self._save)
        except OSError as error:
            self.say(f"not saved: {clean(str(error.strerror or error))}")
        else:
            self.say(f"saved {clean(path.name)}")

    def action_help(self) -> None:
        """Show what the keys do, or no longer."""
        if isinstance(self.screen, Help):
            self.pop_screen()
        else:
            self.push_screen(Help(self.is_unicode))

    def action_leave(self) -> None:
        """Leave, and leave the help first if it is there."""
        if isinstance(self.screen, Help):
            self.pop_screen()
        else:
            self.exit()


def play(
    config: Config,
    *listeners: Listener,
    speed: float = 1.0,
    arrivals: Iterable[Arrival] | None = None,
    save: Callable[[Player], bytes] | None = None,
) -> Outcome:
    """Show a simulation live until the user leaves, and return its outcome so far.

    `save` makes the text of a snapshot, which goes into a new file in the current folder.
    """
    player = Player(config, *listeners, arrivals=arrivals)
    app = Watch(
        player, speed=speed, is_unicode=speaks_unicode(), save=save and (lambda: keep(player, save(player)))
    )
    app.run()
    if app.return_code:
        raise RuntimeError("the simulation failed; the reason stands above")
    assert player.outcome is not None, "the screen closes what it shows"
    return player.outcome


def keep(player: Player, text: bytes, folder: Path = Path()) -> Path:
    """Write a snapshot into a new file of that folder."""
    simulation = player.simulation
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", simulation.config.name)[:40]
    stem = f"runcue-sim-{name}-{int(simulation.now)}s"
    for number in range(1, 1000):
        path = folder / f"{stem}{'' if number == 1 else f'-{number}'}.json"
        try:
            with path.open("xb") as file:
                file.write(text)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, "there are a thousand snapshots of this moment", str(folder))


def speaks_unicode() -> bool:
    """True when the terminal can be taken to show more than ASCII."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    return encoding.startswith("utf") and os.environ.get("TERM") not in {"dumb", "linux"}
