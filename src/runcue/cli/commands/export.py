"""`runcue export`: results of many units as a file with one JSON object a line.

Rules:
- Units are read page by page, newest first: an export of any size takes little memory.
- A file is written beside its place and takes it when it is whole: an export that fails leaves the old one.
- Results are written as they are: who exports them wants them whole. Only the owner may read the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import click

from runcue.cli.choice import choosing, chosen
from runcue.cli.commands.listing import summary
from runcue.cli.failure import bad_input
from runcue.cli.pages import Pages
from runcue.cli.place import File, look, on_file
from runcue.cli.screen import counted, note, shown

EXPORTED = ("id", "task", "label", "idempotency_key", "group", "tags", "params", "result", "completed_at")
STDOUT = "-"


@on_file(
    "export",
    examples=[
        "runcue export queue.db --group import-7 --results out.jsonl",
        "runcue export queue.db --tag run=nightly --results - | jq .result",
    ],
)
@choosing(state=False)
@click.option("--results", "where", metavar="FILE", required=True, help="The file to write, or - for stdout.")
def export(place: File, where: str, **wanted: Any) -> None:
    """Write the results of completed units, newest first: one JSON object a line.

    Secrets are written as they are, to a file that only you may read. A file that is there already is replaced
    once the new one is complete.
    """
    import msgspec

    which = chosen(wanted)
    with look(place) as reader, _written(where) as write:
        pages = Pages(
            lambda limit, before: reader.list("completed", limit=limit, before=before, **which),
            None,
            lambda work: work.id,
        )
        number = 0
        for work in pages.rows():
            found = summary(work, raw=True)
            write(msgspec.json.encode({name: found[name] for name in EXPORTED}) + b"\n")
            number += 1
    note(f"{counted(number, 'result')} written" + ("" if where == STDOUT else f" to {shown(where)}"))


@contextmanager
def _written(where: str) -> Iterator[Callable[[bytes], object]]:
    """A function that writes to a file, which is there when all was written."""
    if where == STDOUT:
        yield lambda data: click.echo(data, nl=False)
        return
    path = Path(where)
    if path.is_dir():
        raise bad_input(f"--results cannot be {shown(where)}: it is a folder.")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file: IO[bytes] = os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise bad_input(f"--results cannot be {shown(where)}: {error.strerror}.") from error
    try:
        with file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            beside.unlink()
        raise
