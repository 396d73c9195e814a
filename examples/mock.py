"""Stand-ins for services outside: they take their time and fail now and then.

Which calls fail depends on the page alone, so that every run of the demo tells the same story.
"""

import asyncio
from zlib import crc32


class TooManyRequests(Exception):
    """What an HTTP client would raise for status 429."""

    retry_after = 1.0


class UnreadablePage(Exception):
    """What an OCR service would say of an empty scan."""


class Ocr:
    """Reads pages: about one in nine breaks off at first, one is unreadable, and one call is one too many."""

    def __init__(self) -> None:
        self.calls = 0
        self.refused = 0

    async def read(self, image: str, is_first_try: bool) -> str:
        """The text on a page."""
        self.calls += 1
        lot = crc32(image.encode())
        if self.calls == 50:
            self.refused += 1
            raise TooManyRequests
        await asyncio.sleep(0.15 + lot % 200 / 1000)
        if "blank" in image:
            raise UnreadablePage("no text on this page")
        if is_first_try and lot % 9 == 0:
            raise ConnectionError("connection reset by ocr")
        return image.replace("scan of", "text of")


class Llm:
    """Summarises texts; it is slow, and takes two at a time."""

    async def summarise(self, texts: list[str]) -> str:
        """One line for all of them."""
        await asyncio.sleep(0.4)
        return f"{len(texts)} pages, from {texts[0]!r} to {texts[-1]!r}"
