"""Starts Chromium for the browser tests and for the pictures of the docs.

Which one is said by `$RUNCUE_CHROMIUM`, or by the file that tools/chromium.sh leaves behind. Libraries that were
fetched with it are known to the browser and to Playwright's driver alone, never to the tests themselves.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / ".cache" / "chromium" / "env"
ADVICE = "There is no Chromium: run tools/chromium.sh, or name one in RUNCUE_CHROMIUM."


def found() -> dict[str, str] | None:
    """What is needed to start it, by name; None when there is none."""
    if program := os.environ.get("RUNCUE_CHROMIUM"):
        return {"program": program, "libraries": "", "fonts": ""}
    if not NOTES.exists():
        return None
    notes = dict(line.split("=", 1) for line in NOTES.read_text(encoding="utf-8").splitlines())
    libraries = ":".join(str(ROOT / one) for one in notes["LIBRARIES"].split(":") if one)
    fonts = str(ROOT / notes["FONTS"]) if notes["FONTS"] else ""
    program = str(ROOT / notes["RUNCUE_CHROMIUM"])
    return {"program": program, "libraries": libraries, "fonts": fonts} if Path(program).exists() else None


@asynccontextmanager
async def chromium(*arguments: str) -> AsyncIterator[Browser]:
    """A browser; `arguments` are its own."""
    notes = found()
    if notes is None:
        raise RuntimeError(ADVICE)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    environment: dict[str, str | float | bool] = {**os.environ}
    if notes["libraries"]:
        environment["LD_LIBRARY_PATH"] = notes["libraries"]
    if notes["fonts"]:
        environment["FONTCONFIG_FILE"] = notes["fonts"]
    with _variable("LD_LIBRARY_PATH", notes["libraries"]):
        driver = await async_playwright().start()
    try:
        browser = await driver.chromium.launch(
            executable_path=notes["program"],
            env=environment,
            args=[*sandbox, "--font-render-hinting=none", *arguments],
        )
        try:
            yield browser
        finally:
            await browser.close()
    finally:
        await driver.stop()


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Have a variable of the environment for a moment."""
    if not value:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
