"""What must not happen on a page: complaints on its console, errors, dialogs that nobody asked for."""

from playwright.async_api import ConsoleMessage, Page


class Mishaps:
    """What a page complained of."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of complaints that the test itself provokes."""

    def watch(self, page: Page) -> None:
        """Listen to that page from now on."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.found.append(f"dialog: {dialog.message}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"{message.type}: {message.text}")

    def check(self) -> None:
        """Nothing happened but what was to be expected."""
        rest = [one for one in self.found if not any(part in one for part in self.expected)]
        assert rest == [], rest
