"""Where results go: checked before the run, which may take a while, and written after it.

Rules:
- A target is the name of a file, or `-` for stdout, which only one result may use.
- A target is opened only when there is something to write: it may be a pipe.
- The files that a run is made from are never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from runcue.host.address import is_address, plain
from runcue.sim.reading import BadConfig

STDOUT = "-"


def check(targets: Mapping[str, str | None], sources: Mapping[str, str | None]) -> None:
    """Refuse a target that cannot be written or is named twice; the message names the option."""
    taken = {_place(source): option for option, source in sources.items() if source not in {None, STDOUT}}
    for option, target in targets.items():
        if target is None:
            continue
        if target != STDOUT:
            _check_file(option, target)
        place = _place(target)
        if place in taken:
            raise BadConfig(option, f"another file than that of {taken[place]}", target)
        # two results may go to one device, such as /dev/null, but not to one file
        if target == STDOUT or Path(target).is_file() or not Path(target).exists():
            taken[place] = option


def write(target: str, content: bytes) -> None:
    """Put a result where it goes."""
    if target == STDOUT:
        click.echo(content, nl=False)
    else:
        with open(target, "wb") as file:  # noqa: PTH123 (a Path would name the file in another way in its errors)
            file.write(content)


def _check_file(option: str, target: str) -> None:
    if is_address(target):
        raise BadConfig(option, "a file, and no address", plain(target))
    path = Path(target)
    if target.endswith(os.sep) or path.is_dir():
        raise BadConfig(option, "a file", target)
    if not path.parent.is_dir():
        raise BadConfig(option, "a file in a folder that is there", target)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadConfig(option, "a file that may be written", target)


def _place(target: str) -> str | Path:
    return STDOUT if target == STDOUT else Path(target).resolve()
