"""A stranger's program is checked against the wheel: what is right passes, what is marked as wrong is refused.

`make typing` asks other checkers than mypy as well.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.packaging.conftest import BOUND, ROOT


def checked(folder: Path, env: Path) -> subprocess.CompletedProcess[str]:
    """What mypy says about the programs in a folder, with no configuration and no source of ours."""
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", f"--cache-dir={folder / 'cache'}"]
    return subprocess.run(
        [*command, f"--python-executable={env / 'bin' / 'python'}", "api.py", "wrong.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


def test_the_types_of_the_wheel_are_what_users_are_told(bare_env: Path, tmp_path: Path) -> None:
    for name in ("api.py", "wrong.py"):
        shutil.copyfile(ROOT / "tests" / "typing" / name, tmp_path / name)
    done = checked(tmp_path, bare_env)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "wrong.py").open("a") as file:
        file.write("cue.nonsense\n")
    done = checked(tmp_path, bare_env)
    assert done.returncode == 1
    assert '"Cue" has no attribute "nonsense"' in done.stdout
