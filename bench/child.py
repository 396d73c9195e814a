"""A process of its own for a part of a measure: python -m bench.child module function arguments-as-JSON.

The function prepares, calls `ready()` and gets the moment at which everybody begins (of `perf_counter`, which all
processes of a machine share here); what it returns is its answer, as JSON.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 120.0
"""Seconds after which nobody waits any more."""
HEAD_START = 0.05
"""Seconds between saying when to begin and that moment."""


class Child:
    """Such a process, seen from the one that started it."""

    def __init__(self, module: str, function: str, *arguments: Any) -> None:
        self.name = f"{module}.{function}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", module, function, json.dumps(arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    @property
    def has_ended(self) -> bool:
        """Is there no such process any more?"""
        return self._process.poll() is not None

    def until_ready(self) -> None:
        """Wait until it has prepared."""
        assert self._process.stdout is not None
        found, _, _ = select.select([self._process.stdout], [], [], LONGEST)
        said = self._process.stdout.readline() if found else b"nothing"
        if said != b"ready\n":
            raise RuntimeError(f"{self.name} said {said!r} instead of being ready")

    def begin(self, at: float) -> None:
        """Tell it when to begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{at!r}\n".encode())

    def answer(self) -> Any:
        """Wait for what its function returns."""
        try:
            said, _ = self._process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{self.name} had no answer after {LONGEST:g} s") from error
        if self._process.returncode:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}")
        return json.loads(said)


def answers(*asked: tuple[Any, ...]) -> list[Any]:
    """What several functions return that begin at the same moment, each in its process."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(*one)) for one in asked]
        for child in children:
            child.until_ready()
        at = perf_counter() + HEAD_START
        for child in children:
            child.begin(at)
        return [child.answer() for child in children]


def ready() -> float:
    """In the child: say that everything is prepared; the moment to begin."""
    print("ready", flush=True)
    return float(sys.stdin.readline())


def main() -> None:
    """In the child: call what was asked for, and print its answer."""
    module, function, arguments = sys.argv[1:]
    print(json.dumps(getattr(import_module(module), function)(*json.loads(arguments))))


if __name__ == "__main__":
    main()
