"""What must not happen on a page: complaints on its console, errors, dialogs that nobody asked for."""

from playwright.async_api import ConsoleMessage, Page

ELSEWHERE = "net::ERR_NETWORK_CHANGED"
"""What a browser says of any page while somebody adds or removes a network device, as tests of several hosts do."""


class Mishaps:
    """What a page complained of."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of complaints that the test itself provokes."""
        self.has_network_changed = False

    def watch(self, page: Page) -> None:
        """Listen to that page from now on."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.found.append(f"dialog: {dialog.message}"))

    def _console(self, message: ConsoleMessage) -> None:
        if ELSEWHERE in message.text:
            self.has_network_changed = True
        elif message.type in ("error", "warning"):
            self.found.append(f"{message.type}: {message.text}")

    def check(self) -> None:
        """Nothing happened but what was to be expected."""
        rest = [one for one in self.found if not any(part in one for part in self.expected)]
        assert rest == [], rest
