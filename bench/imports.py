"""Timed: the import statement alone, inside a fresh interpreter with compiled bytecode; best of ten."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.measure import Line, best_in_turns

TIMED = "import time; {before}; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"


def seconds(before: str, statement: str) -> float:
    """How long a statement takes in a new interpreter in which another one has run."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    code = TIMED.format(before=before, statement=statement)
    return float(subprocess.check_output([sys.executable, "-c", code], env=environment, text=True))


def measure(quick: bool) -> list[Line]:
    """What an application pays for importing runcue."""
    statements = (
        ("pass", "import asyncio"),
        ("pass", "import runcue"),
        ("import asyncio", "from runcue import Cue"),
    )
    for before, statement in statements:
        seconds(before, statement)  # compiles
    contenders = [lambda pair=pair: seconds(*pair) for pair in statements]
    asyncio, package, cue = best_in_turns(2 if quick else 10, *contenders)
    note = f"import asyncio {1e3 * asyncio:.1f}"
    return [
        Line("import runcue", 1e3 * package, "ms", at_most=10, note=note),
        Line("Cue, above asyncio", 1e3 * cue, "ms", at_most=60),
    ]
