"""Checks the files that a task declares: whether a unit's inputs exist, and whether its outputs are valid.

Rules:
- A path is a template with places that params fill, or is returned by a function of work. A relative path starts
  from the working directory of the process, as it does for handlers.
- What fills a place is a name or a relative path, as text or a whole number. It cannot lead out of the folder that
  its template names: no "..", nothing absolute, nothing empty, no NUL.
- A file or folder exists when it can be reached, links followed. One that this process may not look at counts as
  missing, and the error is reported. After any other error the unit is not ready, and is checked again.
- ready   all inputs exist
- valid   all outputs exist, none is older than an input or than `max_age`; equal times are valid
- A check is `stat` calls and nothing else. They may take long (a network share that is gone), so the judge makes
  them, with its time limit.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from errno import EISDIR
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TextIO, TypeAlias, overload

import msgspec

from runcue.core.model.record import Work
from runcue.engine.handler import is_plain_function
from runcue.errors import ConfigError, InvalidOption, SubmitError, quoted
from runcue.host.address import is_address, plain
from runcue.host.system import files

StrPath: TypeAlias = str | os.PathLike[str]
Names: TypeAlias = Callable[[Work], StrPath | Iterable[StrPath]]

EXPECTED: Final = "a path, a list of paths, or a plain function of work that returns them"
NANOSECONDS: Final = 1_000_000_000

PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}", re.ASCII)
"""A place in a template that a param fills."""
_separator = re.compile(r"[/\\]")
_is_plain_name = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII).fullmatch


# --- What is declared -----------------------------------------------------------------------------


class Paths(msgspec.Struct, frozen=True):
    """The inputs or the outputs that a task declares: makes the paths for a unit."""

    option: str
    templates: tuple[tuple[str, ...], ...] = ()
    """Each is split: text, the name of a param, text, and so on."""
    function: Names | None = None

    def of(self, work: Work) -> list[str]:
        """The paths for a unit; SubmitError when they cannot be made."""
        if self.function is not None:
            return self._returned(self.function, work)
        return [
            template[0] if len(template) == 1 else self._filled(template, work) for template in self.templates
        ]

    def _filled(self, template: tuple[str, ...], work: Work) -> str:
        parts = list(template)
        for place in range(1, len(parts), 2):
            value = work.params.get(parts[place])
            if type(value) is int:
                parts[place] = str(value)
            elif type(value) is str and (_is_plain_name(value) or _stays_below(value)):
                parts[place] = value
            else:
                raise self._unfit(template, parts[place], work)
        return "".join(parts)

    def _unfit(self, template: tuple[str, ...], key: str, work: Work) -> SubmitError:
        shown = "".join(f"{{{part}}}" if place % 2 else part for place, part in enumerate(template))
        value = work.params.get(key)
        if key not in work.params:
            problem = f"params has no {key!r}. Pass it."
        elif isinstance(value, str):
            problem = f"params[{key!r}] is {quoted(value)}. Pass a name or a relative path without '..'."
        else:
            problem = f"params[{key!r}] is {quoted(value)}. Pass text or a whole number."
        return SubmitError(f"Task {quoted(work.task)} has {self.option}={quoted(shown)}, and {problem}")

    def _returned(self, function: Names, work: Work) -> list[str]:
        where = f"The {self.option}= of task {quoted(work.task)}"
        try:
            answer: Any = function(work)
            paths = [answer] if isinstance(answer, (str, os.PathLike)) else _listed(answer)
        except Exception as error:
            raise SubmitError(f"{where} raised {quoted(error)}.") from error
        found = None if paths is None else [_text(path) for path in paths]
        if found is None or None in found:
            raise SubmitError(f"{where} returned {quoted(answer)}, not a path or a list of paths.")
        texts = [path for path in found if path is not None]
        for path in filter(is_address, texts):
            raise SubmitError(f"{where} returned {quoted(plain(path))}, which is an address and no path.")
        return texts


class Finding(msgspec.Struct, frozen=True):
    """The result of checking the files of one unit."""

    is_ready: bool = True
    lacks: str = ""
    """The first input that does not exist, as an absolute path; empty when the check failed."""
    is_stale: bool | None = None
    """None when the task declares no outputs."""
    makes: tuple[str, ...] = ()
    """Valid outputs, as absolute paths."""
    trouble: OSError | None = None
    """The error of a file that this process may not look at."""


UNSEEN: Final = Finding(is_ready=False)
"""The check failed: the unit waits, and is checked again."""


class Artifacts(msgspec.Struct, frozen=True):
    """The files that one task declares."""

    inputs: Paths
    outputs: Paths
    max_age: float | None = None

    def check(self, work: Work) -> None:
        """Raise SubmitError when the paths for a unit cannot be made."""
        self.inputs.of(work)
        self.outputs.of(work)

    def makes(self, work: Work) -> tuple[str, ...]:
        """The outputs of a unit, as absolute paths: one file has one name, however it was written."""
        return _absolute(self.outputs.of(work))

    def look(self, work: Work, wall: float) -> Finding:
        """Check the files of a unit; an OSError means that the check failed."""
        newest = 0
        for path in self.inputs.of(work):
            at, trouble = _changed_at(path)
            if at is None:
                return Finding(is_ready=False, lacks=_absolute([path])[0], trouble=trouble)
            newest = max(newest, at)
        outputs = self.outputs.of(work)
        if not outputs:
            return Finding()
        if self.max_age is not None:
            newest = max(newest, int((wall - self.max_age) * NANOSECONDS))
        for path in outputs:
            at, trouble = _changed_at(path)
            if at is None or at < newest:
                return Finding(is_stale=True, trouble=trouble)
        return Finding(is_stale=False, makes=_absolute(outputs))


def declared(inputs: object, outputs: object, max_age: float | None) -> Artifacts | None:
    """Read what `task()` was given about files; None when it was given nothing."""
    if max_age is not None and outputs is None:
        raise ConfigError("max_age= is how old outputs may be: it needs outputs=. Give both, or neither.")
    if inputs is None and outputs is None:
        return None
    return Artifacts(_paths("inputs", inputs), _paths("outputs", outputs), max_age)


def _paths(option: str, value: Any) -> Paths:
    if value is None:
        return Paths(option)
    if is_plain_function(value):
        return Paths(option, function=value)
    given = value if isinstance(value, (list, tuple)) else [value]
    templates: list[tuple[str, ...]] = []
    for one in given:
        template = _text(one)
        if template is None:
            raise InvalidOption(option, one, EXPECTED)
        if is_address(template):
            raise InvalidOption(option, plain(template), "paths of files on this host, and no address")
        parts = PLACE.split(template)
        if any("{" in text or "}" in text for text in parts[::2]):
            raise InvalidOption(option, one, "places that name a param, as in 'pages/{page}.png'")
        templates.append(tuple(parts))
    return Paths(option, tuple(templates))


def _listed(answer: Any) -> list[Any] | None:
    is_list = isinstance(answer, Iterable) and not isinstance(answer, (bytes, Mapping))
    return list(answer) if is_list else None


def _text(value: object) -> str | None:
    """A path as text; None for what cannot be one."""
    text: object = os.fspath(value) if isinstance(value, os.PathLike) else value
    return str.__str__(text) if isinstance(text, str) and text and "\0" not in text else None


def _stays_below(value: str) -> bool:
    """True for a name or relative path that stays below the folder it is appended to, on any system."""
    has_names = all(part.strip(" .") for part in _separator.split(value))
    return has_names and "\0" not in value and not os.path.splitdrive(value)[0]


def _absolute(paths: list[str]) -> tuple[str, ...]:
    return tuple(map(os.path.abspath, paths))  # links are not followed, as that would have to ask the disk


def _changed_at(path: str) -> tuple[int | None, OSError | None]:
    """When a file was last changed, in nanoseconds; None when it is missing, with the error if access was denied."""
    try:
        return os.stat(path).st_mtime_ns, None  # noqa: PTH116 (a Path costs more than the call)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except PermissionError as error:
        return None, error


# --- Writing --------------------------------------------------------------------------------------


@overload
def write_output(
    path: StrPath, mode: Literal["w"] = "w", *, encoding: str = "utf-8"
) -> AbstractContextManager[TextIO]: ...
@overload
def write_output(path: StrPath, mode: Literal["wb"]) -> AbstractContextManager[BinaryIO]: ...
def write_output(path: StrPath, mode: str = "w", *, encoding: str = "utf-8") -> AbstractContextManager[Any]:
    """Write a file whole or not at all: `with runcue.write_output("text/1.txt") as file: file.write(…)`.

    It is written under another name in the same folder (which is made if it does not exist), and renamed when the
    block ends without an error. Until then, whatever happens, the file stays as it was.
    """
    if mode not in {"w", "wb"}:
        raise InvalidOption("mode", mode, "'w' for text or 'wb' for bytes")
    target = _text(path)
    if target is None:
        raise InvalidOption("path", path, "the path of a file, as text or a Path")
    if is_address(target):
        raise InvalidOption("path", plain(target), "the path of a file, and no address")
    return _writing(Path(target), mode, encoding if mode == "w" else None)


@contextmanager
def _writing(path: Path, mode: str, encoding: str | None) -> Iterator[Any]:
    target = path.resolve()  # a link stays a link: its target is written
    if target.is_dir():
        raise IsADirectoryError(EISDIR, "write_output() writes files, and this is a folder", str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.parent / f".runcue-{secrets.token_hex(8)}.part"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    descriptor = os.open(unfinished, flags, 0o666)
    try:
        try:
            # The caller may close the file: the descriptor stays open until everything is on the disk.
            with open(descriptor, mode, encoding=encoding, closefd=False) as file:
                yield file
            if target.exists():  # keep its permissions
                unfinished.chmod(target.stat().st_mode & 0o777)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        files.replace(unfinished, target)
    except BaseException:
        files.remove(unfinished)
        raise
    files.sync_folder(target.parent)
