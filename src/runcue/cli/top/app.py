"""The live screen: counts, services, units and why they wait, and keys to act on them.

Rules:
- The queue is read and changed in the background, so a slow disk or a locked file never freezes the screen. While the
  queue cannot be read the last picture stays, with a line that says why, and reading is tried again.
- At most two pictures a second. 80 columns and 24 lines are enough. NO_COLOR and terminals without Unicode are
  respected.
- Before anything that cannot be undone the screen asks, and names the unit.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from runcue.cli.place import Place, ask
from runcue.cli.screen import clean, shown
from runcue.cli.top import lines
from runcue.cli.top.background import in_background
from runcue.cli.top.boxes import HELP, Box, Live, Logs, Question
from runcue.cli.top.details import details, printed
from runcue.cli.top.look import ORDERS, VIEWS, Item, Look, Scene, Wish
from runcue.cli.top.table import Table, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue

EVERY = 0.5
"""Seconds between two reads of the queue."""
SLOW = 2.0
"""Seconds after which a read that has not ended is reported."""
KEEP_WORDS = 6.0
"""Seconds for which the result of a key is shown."""
PARTS = ("#queue", "#queue-box", "#services-box", "#services", "#tabs", "#said")
"""The widgets that show a snapshot; when the screen closes they are removed one by one."""


class Tabs(Static):
    """The views, to be clicked on."""

    def put(self, view: str, *, is_unicode: bool) -> None:
        """Highlight that view."""
        text = Text(no_wrap=True)
        for number, name in enumerate(VIEWS, 1):
            style = "reverse" if name == view else "dim"
            text.append(f" {number} {name} ", f"{style}")
            text.append(" ")
        self.update(text)

    def on_click(self, event: events.Click) -> None:
        """Choose the view under the mouse."""
        left = event.x
        for name in VIEWS:
            left -= len(name) + 5
            if left < 0:
                self.post_message(self.Chosen(name))
                return

    class Chosen(Message):
        """A view was clicked on."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view = view


class Main(Screen[None]):
    """The main screen: queue, services, table and keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("enter,d,D", "details", "Details", key_display="d"),
        Binding("l,L", "logs", "Logs"),
        Binding("r,R", "retry", "Retry"),
        Binding("c,C", "cancel", "Cancel"),
        Binding("p,P", "pause", "Pause"),
        Binding("s,S", "sort", "Sort"),
        Binding("v,V", "view(1)", "View", key_display="tab"),
        Binding("tab", "view(1)", show=False, priority=True),
        Binding("shift+tab", "view(-1)", show=False, priority=True),
        *(Binding(str(number), f"choose('{name}')", show=False) for number, name in enumerate(VIEWS, 1)),
        Binding("escape", "back", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q,Q", "leave", "Quit"),
        Binding("ctrl+c", "leave", show=False),
    ]

    def __init__(self, place: Place, *, is_unicode: bool, every: float | None = EVERY) -> None:
        super().__init__()
        self.place = place
        self.is_unicode = is_unicode
        self.scene: Scene | None = None
        self.wish = Wish()
        self.trouble = ""
        self._every = every
        self._look = Look(place)
        self._since: float | None = None
        self._again = False
        self._said = ""
        self._said_until = 0.0

    def compose(self) -> ComposeResult:
        """The queue, its services, the table, and the keys."""
        for name, kind in (("queue", Vertical), ("services", VerticalScroll)):
            box = kind(Static(id=name, markup=False), id=f"{name}-box", classes="panel")
            box.set_class(not self.is_unicode, "ascii")
            box.can_focus = False
            yield box
        box = Vertical(
            Tabs(id="tabs", markup=False), Table(is_unicode=self.is_unicode), id="table-box", classes="panel"
        )
        box.set_class(not self.is_unicode, "ascii")
        yield box
        yield Input(
            placeholder="a text in any column, or !text to leave out what has it", id="filter", compact=True
        )
        yield Static(id="said", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        """Take the first snapshot, and go on taking them."""
        self.query_one("#services-box").border_title = "Services"
        self.query_one("#filter").display = False
        self.query_one(Table).focus()
        self._show()
        self.run_worker(self._go_on(), exclusive=True)

    def _title(self) -> str:
        """The title: the program and the file, or the end of a long path."""
        name = f"{self.place.words.program} top   "
        path, room = shown(self.place.database), max(8, self.size.width - len(name) - 8)
        return name + (path if len(path) <= room else f"…{path[1 - room :]}")

    # looking ----------------------------------------------------------------------------------------------

    async def _go_on(self) -> None:
        await self.look()
        while self._every is not None:
            await asyncio.sleep(self._every)
            if self._since is None:
                self.run_worker(self.look(), group="look")
            elif time.monotonic() - self._since > SLOW:
                self.trouble = f"no answer for {time.monotonic() - self._since:.0f} s: is the disk busy?"
                self._show()

    async def look(self) -> None:
        """Read the queue; where it is being read, read it once more afterwards."""
        if self._since is not None:
            self._again = True
            return
        self._again = True
        while self._again:
            self._again = False
            self._since = time.monotonic()
            try:
                await self._look_once()
            finally:
                self._since = None

    async def _look_once(self) -> None:
        if not (tables := self.query(Table)):  # the screen is being left
            return
        table = tables.first()
        chosen = table.chosen
        wish = replace(self.wish, keep=chosen.id if table.is_held and chosen is not None else None)
        try:
            scene = await in_background(lambda: self._look.look(wish))
        except Exception as error:  # noqa: BLE001 (every error is shown, and the next look opens the queue anew)
            self.trouble = self._one_line(error)
        else:
            self.trouble = ""
            self.scene = scene
            if replace(scene.wish, keep=None) == self.wish:  # else the user has chosen another view since
                table.put(scene.wish.view, scene.items, scene.kept)
        self._show()

    # the picture ------------------------------------------------------------------------------------------

    def _show(self) -> None:
        if not (self.is_attached and all(self.query(part) for part in PARTS)):
            return  # not there yet, or not any more
        width = max(20, self.size.width - 4)
        scene = self.scene
        self.query_one("#queue-box").border_title = self._spelled(self._title())
        if scene is not None:
            self._put("queue", lines.overview(scene, width, self.place.words.dead))
            self._put("services", lines.services(scene, width))
        self.query_one("#services-box").display = scene is not None and bool(scene.services)
        self.query_one(Tabs).put(self.wish.view, is_unicode=self.is_unicode)
        self._show_words(scene)

    def _show_words(self, scene: Scene | None) -> None:
        """Show an error, or else what a key did, or else the filter and the order."""
        if self.trouble:
            what = self.trouble.partition(". ")[0].rstrip(".")
            stale = "" if scene is None else f" (this was at {scene.at} UTC)"
            row = [(f"! {what}{stale}", "bad")]
        elif self._said and time.monotonic() < self._said_until:
            row = [(self._said, "strong")]
        else:
            parts = [f"filter: {self.wish.text}"] if self.wish.text else []
            parts += [f"sorted by {self.wish.order}"] if self.wish.order != ORDERS[0] else []
            if scene is not None and scene.is_cut:
                parts.append("the newest of each state only")
            if scene is not None and not scene.items and scene.wish.text:
                parts.append("nothing matches")
            row = [(clean(" · ".join(parts)), "soft")]
        self._put("said", [lines.fit(row, max(20, self.size.width - 2))])

    def _put(self, name: str, rows: list[lines.Row]) -> None:
        self.query_one(f"#{name}", Static).update(text_of(rows, is_unicode=self.is_unicode))

    def _spelled(self, words: str) -> Text:
        return Text(lines.spelled(words, self.is_unicode))

    def _one_line(self, error: Exception) -> str:
        """An error in one line; with the file's name alone, because the title has its path."""
        from runcue.cli.main import failure_of

        text = clean(failure_of(error, self.place.words.program).text)
        path, name = self.place.database, clean(Path(self.place.database).name)
        ways = (shown(path), clean(path))  # and of a long one the end
        spelled = "|".join([rf"(?<=')…[^']*/{re.escape(name)}(?=')", *map(re.escape, ways)])
        return re.sub(spelled, lambda _: name, text, count=1)

    def say(self, words: str) -> None:
        """Show what a key did."""
        self._said, self._said_until = words, time.monotonic() + KEEP_WORDS
        self._show()

    def on_resize(self) -> None:
        """Redraw at the new size."""
        self._show()

    # choosing what is shown -------------------------------------------------------------------------------

    async def action_view(self, step: int) -> None:
        """Go to the next view."""
        await self.action_choose(VIEWS[(VIEWS.index(self.wish.view) + step) % len(VIEWS)])

    async def action_choose(self, view: str) -> None:
        """Show that view."""
        await self._wish(replace(self.wish, view=view))

    async def on_tabs_chosen(self, message: Tabs.Chosen) -> None:
        """Show the view that was clicked on."""
        await self.action_choose(message.view)

    async def action_sort(self) -> None:
        """Go to the next order."""
        order = ORDERS[(ORDERS.index(self.wish.order) + 1) % len(ORDERS)]
        await self._wish(replace(self.wish, order=order))

    async def _wish(self, wish: Wish) -> None:
        self.wish = wish
        self._show()
        await self.look()

    def action_filter(self) -> None:
        """Begin to type a filter."""
        field = self.query_one("#filter", Input)
        field.display, field.value = True, self.wish.text
        self.query_one("#said").display = False
        field.focus()

    async def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the filter while it is typed."""
        if self.query_one("#filter").display:
            await self._wish(replace(self.wish, text=event.value))

    def on_input_submitted(self) -> None:
        """Keep the filter, and return the focus to the table."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#said").display = True
        self.query_one(Table).focus()

    async def action_back(self) -> None:
        """Go one step back: close the filter and clear it, or put the cursor back on the first line."""
        if self.query_one("#filter").display or self.wish.text:
            self._close_filter()
            await self._wish(replace(self.wish, text=""))
        elif self.query_one(Table).let_go():
            await self.look()

    # acting -----------------------------------------------------------------------------------------------

    def _chosen(self) -> Item | None:
        """The unit under the cursor; where there is none, says so and returns None."""
        item = self.query_one(Table).chosen
        if item is None or self.wish.view == "services":
            self.say(f"Choose a {self.place.words.one} first: 1, 2 or 3 shows them.")
            return None
        return item

    def action_details(self) -> None:
        """Open a box with everything about the chosen unit."""
        if (item := self._chosen()) is not None:
            place, id = self.place, item.id
            self.app.push_screen(Live(id, lambda: details(place, id), is_unicode=self.is_unicode))

    def on_table_opened(self) -> None:
        """Open the details of a double-clicked line."""
        self.action_details()

    def action_logs(self) -> None:
        """Open a box with what the chosen unit printed."""
        if (item := self._chosen()) is not None:
            place, id = self.place, item.id
            ask_for = Logs(id, lambda stream: printed(place, id, stream), is_unicode=self.is_unicode)
            self.app.push_screen(ask_for)

    def action_retry(self) -> None:
        """Try the chosen unit again."""
        if (item := self._chosen()) is None:
            return
        words = self.place.words
        if item.state not in {words.names.get(state, state) for state in words.may_retry}:
            self.say(f"{clean(item.id)} is {item.state}: only what is {words.dead} can be tried again.")
            return
        name = clean(item.id)
        self._do(
            lambda cue: cue.retry(item.id), f"{name} is tried again.", f"{name} is no longer {item.state}."
        )

    def action_cancel(self) -> None:
        """Cancel the chosen unit, after a question."""
        if (item := self._chosen()) is None:
            return
        words = self.place.words
        if item.state in {"completed", words.dead, "cancelled", "gone"}:
            self.say(f"{clean(item.id)} is {item.state} already.")
            return

        name = clean(item.id)

        def answered(is_meant: bool | None) -> None:
            if is_meant:
                self._do(
                    lambda cue: cue.cancel(item.id), f"{name} is cancelled.", f"{name} has ended already."
                )

        text = f"Cancel {words.one} {name} ({clean(item.what)[:200]})? What runs after it will not run."
        self.app.push_screen(Question(text, "cancel it", is_unicode=self.is_unicode), answered)

    def action_pause(self) -> None:
        """Pause or resume the service of the chosen line."""
        item = self.query_one(Table).chosen
        name = None if item is None else item.service
        found = (
            next((one for one in self.scene.services if one["name"] == name), None) if self.scene else None
        )
        if name is None or found is None:
            self.say("That one uses no service: 4 shows the services.")
        elif found["paused"]:
            self._do(lambda cue: cue.resume(name), f"Resumed {clean(name)}.")
        else:
            self._do(
                lambda cue: cue.pause(name), f"Paused {clean(name)}: nothing more starts on it. p resumes it."
            )

    def _do(self, change: Callable[[Cue], Awaitable[object]], done: str, undone: str = "") -> None:
        """Change the queue in the background, and show the result."""

        async def do() -> None:
            try:
                answer = await in_background(lambda: ask(self.place, change))
            except Exception as error:  # noqa: BLE001 (it is shown)
                self.say(f"! {self._one_line(error)}")
                return
            self.say(undone if answer is False and undone else done)
            await self.look()

        self.run_worker(do(), group="do")

    def action_help(self) -> None:
        """Open the help."""
        self.app.push_screen(Box("Keys", HELP, is_unicode=self.is_unicode))

    def action_leave(self) -> None:
        """Quit."""
        self.app.exit()


class Top(App[None]):
    """The live screen of one queue."""

    TITLE = "runcue top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; background: $background; }
    Static { width: 1fr; }
    .panel { border: round $foreground 35%; border-title-color: $foreground; padding: 0 1; height: auto; }
    .panel.ascii, .box.ascii { border: ascii $foreground 35%; }
    #queue-box { height: 5; }
    #services-box { max-height: 7; height: auto; }
    #table-box { height: 1fr; min-height: 5; }
    #tabs { height: 1; }
    #table { height: 1fr; }
    #said, #filter { height: 1; padding: 0 1; }
    #said, #queue, #services, #tabs { text-wrap: nowrap; text-overflow: clip; }
    Box, Live, Logs, Question { align: center middle; }
    .box { width: 90%; max-width: 110; height: auto; max-height: 90%; border: round $foreground 35%; padding: 0 1;
           background: $surface; border-title-color: $foreground; border-subtitle-color: $foreground 60%; }
    #question { width: 64; }
    #buttons { height: 1; margin-top: 1; width: auto; }
    #buttons Button { margin-right: 2; }
    """

    def __init__(self, place: Place, *, is_unicode: bool = True, every: float | None = EVERY) -> None:
        super().__init__()
        self.main = Main(place, is_unicode=is_unicode, every=every)

    def get_default_screen(self) -> Screen[object]:
        """The main screen, under all boxes."""
        return self.main  # type: ignore[return-value]


def speaks_unicode() -> bool:
    """True when the terminal probably shows Unicode."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    return encoding.startswith("utf") and os.environ.get("TERM") not in {"dumb", "linux"}


def run(place: Place) -> None:
    """Show that queue until the user quits."""
    app = Top(place, is_unicode=speaks_unicode())
    app.run()
    if app.return_code:
        raise RuntimeError("the screen failed; the reason stands above")
