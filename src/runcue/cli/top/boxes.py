"""The boxes over the live screen: help, a question, the details of a unit, and what it printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from runcue.cli.screen import clean
from runcue.cli.top.background import in_background
from runcue.cli.top.lines import spelled

EVERY = 1.0
"""Seconds between two looks at what an open box shows."""

HELP = """\
up down      choose a line; also j k, page up and down, the mouse
tab 1 2 3 4  active, failed, recent, services
/            filter: a text in any column; !text leaves it out
esc          back: out of a box, the filter, the chosen line
enter d      all about a unit: fields, attempts, why it waits
l            what its command printed, and follow it
r            try it again once it has failed or was cancelled
c            cancel it, after a question
p            pause its service, or resume it
s            sort: as it comes, by task, by tries, by age
q            leave; esc closes this"""


class Box(ModalScreen[None]):
    """Text in a frame that can be scrolled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,Q,question_mark,enter,d,D", "dismiss", "Close", priority=True),
        Binding("up,k", "scroll(-1)", show=False), Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False), Binding("pagedown,space", "scroll(10)", show=False),
    ]  # fmt: skip
    name = ""

    def __init__(self, title: str, text: str = "", *, is_unicode: bool) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self.is_unicode = is_unicode

    def compose(self) -> ComposeResult:
        """A frame with text."""
        box = VerticalScroll(
            Static(self._shown(self._text), id="text", markup=False), id="box", classes="box"
        )
        box.border_title = Text(spelled(clean(self._title), self.is_unicode))
        box.border_subtitle = "esc back"
        box.set_class(not self.is_unicode, "ascii")
        box.can_focus = False
        yield box

    def put(self, text: str) -> None:
        """Show another text."""
        if self.is_attached and text != self._text:
            self._text = text
            self.query_one("#text", Static).update(self._shown(text))

    def action_scroll(self, lines: int) -> None:
        """Move the text."""
        self.query_one("#box", VerticalScroll).scroll_relative(y=lines, animate=False)

    def _shown(self, text: str) -> Text:
        return Text(spelled(text, self.is_unicode))


class Live(Box):
    """A box whose text is refreshed in the background."""

    def __init__(
        self, title: str, ask: Callable[[], str], *, is_unicode: bool, is_tail: bool = False
    ) -> None:
        super().__init__(title, "…", is_unicode=is_unicode)
        self._ask = ask
        self._is_busy = False
        self._is_tail = is_tail

    async def on_mount(self) -> None:
        """Ask now, and then every second."""
        await self.ask()
        self.set_interval(EVERY, self.ask)

    async def ask(self) -> None:
        """Ask once more, unless the last answer has not come yet."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            text = await in_background(self._ask)
        except Exception as error:  # noqa: BLE001 (every error is shown in the box)
            text = clean(str(error)) or type(error).__name__
        finally:
            self._is_busy = False
        if not self.is_attached:
            return
        box = self.query_one("#box", VerticalScroll)
        was_at_end = box.scroll_y >= box.max_scroll_y
        self.put(text)
        if self._is_tail and was_at_end:
            box.scroll_end(animate=False)


class Logs(Live):
    """What a command printed, followed to its end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "other", priority=True),
        Binding("l,L", "dismiss", priority=True),
    ]

    def __init__(self, id: str, ask: Callable[[str], str], *, is_unicode: bool) -> None:
        super().__init__(f"{id}  stdout", lambda: ask(self.stream), is_unicode=is_unicode, is_tail=True)
        self.stream = "stdout"
        self._id = id

    def on_screen_resume(self) -> None:
        """Say how to get to the other stream."""
        self.query_one("#box").border_subtitle = "tab the other stream, esc back"

    async def action_other(self) -> None:
        """Show the other stream."""
        self.stream = "stderr" if self.stream == "stdout" else "stdout"
        title = Text(spelled(clean(f"{self._id}  {self.stream}"), self.is_unicode))
        self.query_one("#box").border_title = title
        await self.ask()


class Question(ModalScreen[bool]):
    """A question that is answered by yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,Y", "answer(True)", priority=True),
        Binding("n,N,escape,q,Q", "answer(False)", priority=True),
    ]

    def __init__(self, text: str, yes: str, *, is_unicode: bool) -> None:
        super().__init__()
        self._text = text
        self._yes = yes
        self.is_unicode = is_unicode

    def compose(self) -> ComposeResult:
        """The question and two buttons; the harmless one is chosen."""
        box = VerticalScroll(
            Static(Text(spelled(self._text, self.is_unicode))),
            Horizontal(
                Button(f"Yes, {self._yes} (y)", id="yes", compact=True, variant="error"),
                Button("No (n)", id="no", compact=True),
                id="buttons",
            ),
            classes="box",
            id="question",
        )
        box.set_class(not self.is_unicode, "ascii")
        box.can_focus = False
        yield box

    def on_mount(self) -> None:
        """Focus No, so that Enter alone does no harm."""
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Close with the answer of the button."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Close with the answer of the key."""
        self.dismiss(answer)
