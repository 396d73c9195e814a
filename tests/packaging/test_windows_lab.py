"""A little of `make windows`, where its lab has been made: `make test` does that where there is Wine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / ".cache" / "windows"
SMOKE = ("tests/stores/presence/test_windows.py", "tests/executors/test_windows.py")
FEW = "killed or poke_wakes or turnstile or as_it_is"
"""What takes longest is left to `make windows`."""


@pytest.mark.skipif(
    not (LAB / ".ready").exists(),
    reason="there is no Windows lab here, for want of Wine: make windows makes one",
)
@pytest.mark.skipif(sys.platform == "win32", reason="the lab is on another system")
def test_what_a_queue_needs_of_windows_works_in_the_lab() -> None:
    done = subprocess.run(
        [
            str(LAB / "python"),
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-q",
            *SMOKE,
            "-k",
            FEW,
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,  # the limit of tests is shorter, but for a machine that has much to do
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
