"""The table of the live screen: a line for each unit, a cursor that stays on its unit, keys and mouse.

Rules:
- While other lines come and go, the chosen line keeps its place on the screen, until the cursor is moved.
- Until it is moved for the first time, the cursor stays on the first line, whichever unit that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from runcue.cli.top.lines import Row, head, heads, line, spelled, widths
from runcue.cli.top.look import Item

STYLES = {
    "plain": "", "soft": "dim", "strong": "bold", "good": "green", "warn": "yellow", "bad": "bold red",
    "chosen": "reverse",
}  # fmt: skip


def text_of(rows: Sequence[Row], *, is_unicode: bool) -> Text:
    """Turn rows of words and tones into text for the terminal."""
    text = Text(no_wrap=True, overflow="crop")
    for number, row in enumerate(rows):
        if number:
            text.append("\n")
        for words, tone in row:
            text.append(spelled(words, is_unicode), STYLES[tone])
    return text


class Table(Widget, can_focus=True):
    """The lines of one view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False), Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False), Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False), Binding("end,G", "move(1000000)", show=False),
    ]  # fmt: skip

    class Opened(Message):
        """A line was double-clicked."""

    def __init__(self, *, is_unicode: bool) -> None:
        super().__init__(id="table")
        self.items: Sequence[Item] = ()
        self.is_held = False
        """True once the cursor was moved: from then on it stays on its unit."""
        self._is_unicode = is_unicode
        self._view = ""
        self._kept: str | None = None
        self._index = 0
        self._top = 0

    @property
    def chosen(self) -> Item | None:
        """The unit under the cursor."""
        return self.items[self._index] if self.items else None

    def put(self, view: str, items: Sequence[Item], kept: Item | None) -> None:
        """Show these lines; `kept` is the chosen line when it is no longer among them."""
        before = self.chosen
        if view != self._view:
            self._view, self._top, self._index, self.is_held, before, kept = view, 0, 0, False, None, None
        self.items, self._kept = list(items), None
        if self.is_held and before is not None:
            place = self._index - self._top
            found = next((at for at, one in enumerate(self.items) if one.id == before.id), None)
            if found is None and kept is not None and kept.id == before.id:
                found = min(self._index, len(self.items))
                self.items, self._kept = [*self.items[:found], kept, *self.items[found:]], kept.id
            self._index = self._index if found is None else found
            self._top = self._index - place
        self._bound()

    def let_go(self) -> bool:
        """Put the cursor back on the first line; returns False when it had not been moved."""
        was_held, self.is_held, self._index, self._top = self.is_held, False, 0, 0
        self._bound()
        return was_held

    def _bound(self) -> None:
        """Keep the cursor and the first visible line within the list."""
        room = max(1, self.size.height - 1)
        self._index = max(0, min(self._index, len(self.items) - 1))
        self._top = max(self._index - room + 1, min(self._top, self._index))
        self._top = max(0, min(self._top, len(self.items) - room))
        self.refresh()

    def render(self) -> Text:
        """The heading and as many lines as there is room for."""
        width, height = self.size
        names = heads(self._view)
        columns = widths(self.items, width, names)
        rows = [head(columns, names)] if self.items else [[("nothing here", "soft")]]
        for at, item in enumerate(self.items[self._top : self._top + height - 1], self._top):
            rows.append(line(item, columns, is_chosen=at == self._index, is_kept=item.id == self._kept))
        return text_of(rows, is_unicode=self._is_unicode)

    # keys and mouse ---------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        """Move the cursor."""
        self.is_held = True
        self._index += step
        self._bound()

    def action_page(self, step: int) -> None:
        """Move the cursor by a screen."""
        self.action_move(step * max(1, self.size.height - 2))

    def on_click(self, event: events.Click) -> None:
        """Choose the line under the mouse; twice opens it."""
        at = self._top + event.y - 1
        if event.y < 1 or at >= len(self.items):
            return
        self.action_move(at - self._index)
        if event.chain == 2:
            self.post_message(self.Opened())

    def on_mouse_scroll_up(self) -> None:
        """Move up."""
        self.action_move(-1)

    def on_mouse_scroll_down(self) -> None:
        """Move down."""
        self.action_move(1)

    def on_resize(self) -> None:
        """Fit the lines into the new size."""
        self._bound()
