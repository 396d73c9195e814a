"""A Dask cluster on this host, in processes of its own: for the tests of the executor and of the documentation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import BOUND

ROOT = Path(__file__).resolve().parents[2]
SERVE = "from runcue.executors.dask import cluster; cluster.keep(2, {control}, {says}, {folder!r})"


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Where a scheduler is that has two workers of one thread each."""
    theirs, control = os.pipe()
    heard, says = os.pipe()
    serve = SERVE.format(control=theirs, says=says, folder=str(folder))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {serve}"
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs, says], start_new_session=True)
    os.close(theirs)
    os.close(says)
    try:
        with os.fdopen(heard) as words:
            yield words.readline().strip()
    finally:
        os.close(control)
        process.wait(BOUND)
