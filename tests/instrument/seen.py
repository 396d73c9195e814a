"""What the tests of instruments look through."""

import asyncio
import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

from runcue import Cue

BOUND = 240
"""Seconds within which whatever a test waits for has to happen."""


def numbers(text: bytes) -> dict[str, float]:
    """What an exposition says, by `name{label}`, without the buckets of histograms."""
    return {
        f"{sample.name}{{{','.join(sample.labels.values())}}}" if sample.labels else sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


async def until(cue: Cue, type: str, amount: int = 1) -> None:
    """Wait until that was told so often."""
    async with asyncio.timeout(BOUND):
        async for _ in cue.events(type):
            amount -= 1
            if not amount:
                return


def modules_after(code: str) -> set[str]:
    """The modules in a fresh interpreter after that code."""
    command = [sys.executable, "-W", "error", "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=True)
    return set(done.stdout.split())
