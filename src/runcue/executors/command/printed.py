"""Reads the output of commands from the files beside a queue, and deletes it together with its work unit."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from runcue.errors import StoreError, quoted
from runcue.executors.command.output import stem
from runcue.host.system import files

ENDINGS: Final = {"stdout": "out", "stderr": "err"}


class Output(msgspec.Struct, frozen=True):
    """A piece of an attempt's output: from byte `start` of its stream to byte `end`."""

    data: bytes
    start: int
    end: int
    attempt: int
    size: int = 0
    """How many bytes were printed so far, including those that are no longer kept."""


def files_folder(target: str) -> Path:
    """The folder with the output of commands."""
    return Path(f"{target}.files")


def read(folder: Path, work_id: str, attempt: int, stream: str, start: int, limit: int) -> Output:
    """The next piece of a stream, past bytes that are no longer kept; empty when there is no more."""
    path = folder / f"{stem(work_id, attempt)}.{ENDINGS[stream]}"
    try:
        file = files.open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return Output(b"", start, start, attempt)
    except OSError as error:
        raise StoreError(
            f"{quoted(str(path))} cannot be read: {error.strerror or error}.", str(path)
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise StoreError(f"{quoted(str(path))} is not a regular file. Move it away.", str(path))
        size = os.fstat(file).st_size
        if start > size:  # the file was emptied or shortened since: all of it is new
            start = 0
        start = files.first_data(file, start)
        data = files.read_at(file, limit, start)
    finally:
        os.close(file)
    return Output(data, start, start + len(data), attempt, max(size, start + len(data)))


def forget(target: str, works: Iterable[tuple[str, int]]) -> None:
    """Delete the output of work units, given by id and number of attempts."""
    folder = files_folder(target)
    if folder.is_dir():
        for work_id, attempts in works:
            for attempt in range(1, attempts + 1):
                for ending in ENDINGS.values():
                    files.remove(folder / f"{stem(work_id, attempt)}.{ending}")
