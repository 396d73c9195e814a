"""The directory that holds a queue: where it is, and whether it is safe to use.

Rules:
- `--home`, else `QUEUECTL_HOME`, else `~/.queuectl`. Looking creates nothing; `make()` makes it for its owner alone.
- Commands in the queue run with their owner's rights. So a home, or a queue in it, that somebody else owns or may
  write to is refused unless `--insecure` is given.
- Modes do not hang on the umask, which stays what it was: jobs inherit it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runcue.cli.failure import Failure, bad_input, misconfigured, not_found
from runcue.cli.fields import job_id
from runcue.cli.place import hiding
from runcue.cli.screen import quoted, shown
from runcue.cli.words import QUEUECTL
from runcue.host.address import file_in, is_address, is_postgres, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click

    import runcue

VARIABLE = "QUEUECTL_HOME"
DATABASE = "queue.db"
LOG = "worker.log"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Home:
    """Where one queue lives. Whoever asks it for a path gets one whose permissions were looked at."""

    words = QUEUECTL

    def __init__(self, name: str | None = None, *, insecure: bool = False) -> None:
        self._name = name
        self.insecure = insecure
        self._checked: Path | None = None

    @property
    def path(self) -> Path:
        """The directory; checked at the first use, so that help is given whatever the home is like."""
        return self._checked or self.check()

    def check(self) -> Path:
        """The directory, or the first complaint about it."""
        place = self.place()
        for complaint in () if self.insecure else self.complaints():
            raise complaint
        self._checked = place
        return place

    @property
    def database(self) -> str:
        """The queue's file."""
        return str(self.path / DATABASE)

    @property
    def log(self) -> Path:
        """What detached workers say."""
        return self.path / LOG

    def place(self) -> Path:
        """The directory, not looked at yet."""
        if self._name == "":
            raise bad_input("--home is empty. Name a directory, or leave it out.")
        name = self._name or os.environ.get(VARIABLE) or "~/.queuectl"
        if "\0" in name:
            raise bad_input("A home's path cannot hold a NUL.")
        if is_address(name):
            raise _no_folder(name, "--home" if self._name else VARIABLE)
        try:
            return Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100 (resolve() would follow links)
        except (OSError, RuntimeError) as error:
            raise misconfigured(
                f"No home found: {_reason(error)}. Set QUEUECTL_HOME, or use --home DIR."
            ) from error

    def complaints(self) -> list[Failure]:
        """What is wrong with the home as it is there: nothing while it is missing."""
        found = []
        place = self.place()
        for path, is_directory in ((place, True), (place / DATABASE, False)):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError) as error:
                if isinstance(error, NotADirectoryError):
                    found.append(misconfigured(f"{shown(path)} lies below a file. Choose another --home."))
                continue
            except PermissionError:
                found.append(misconfigured(f"{shown(path)} cannot be looked at: permission denied."))
                continue
            except (OSError, ValueError) as error:
                found.append(bad_input(f"{shown(path)} is no usable path: {_reason(error)}."))
                continue
            is_kind = stat.S_ISDIR if is_directory else stat.S_ISREG
            if not is_kind(status.st_mode):
                kind = "directory" if is_directory else "file"
                found.append(
                    misconfigured(f"{shown(path)} is no {kind}. Move it away, or choose another --home.")
                )
            elif status.st_uid != os.geteuid():
                found.append(
                    misconfigured(
                        f"{shown(path)} belongs to another user (uid {status.st_uid}), who could make you run "
                        "anything. Use a home of your own, or --insecure."
                    )
                )
            elif status.st_mode & OTHERS_WRITE:
                found.append(
                    misconfigured(
                        f"Others may write to {shown(path)} and could make you run anything. "
                        f"Do: chmod go-w {quoted(str(path))}, or use --insecure."
                    )
                )
        return found

    def make(self) -> None:
        """Create the directory, for its owner alone, when it is missing."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.path.mkdir(mode=0o700)
            except FileExistsError:
                self.check()  # whoever made it, and when
            else:
                self.path.chmod(0o700)  # the umask may have taken away even our own rights
        except OSError as error:
            raise misconfigured(
                f"{shown(self.path)} cannot be created: {_reason(error)}. Set QUEUECTL_HOME, or use --home."
            ) from error

    @property
    def exists(self) -> bool:
        """True when there is a queue to look at; an empty file is one that somebody is just making."""
        file = Path(self.database)
        try:
            return file.stat().st_size > 0
        except (FileNotFoundError, NotADirectoryError):
            return file.is_symlink()
        except OSError as error:
            raise misconfigured(f"{shown(self.database)} cannot be looked at: {_reason(error)}.") from error

    def reader(self) -> runcue.Reader:
        """The queue, to look at: `with home.reader() as reader`. Only when it exists."""
        from runcue import Reader

        return Reader(self.database, insecure=self.insecure)

    def cue(self) -> runcue.Cue:
        """The queue, to change something; nothing is started or deleted by that."""
        from runcue.cli.jobs import KEEPING, open_cue

        return open_cue(self, KEEPING)

    def nothing(self) -> Failure:
        """There is no queue yet, so there is nothing that could be meant."""
        return not_found(
            f"There are no jobs in {shown(self.path)} yet. {self.words.add.replace('a job', 'one')}"
        )

    @staticmethod
    def check_id(text: str) -> str:
        """The id of a job that is asked for."""
        return job_id(text)

    @staticmethod
    def counts(reader: runcue.Reader) -> dict[str, int]:
        """How many jobs there are in each state."""
        return reader.job_counts()

    @staticmethod
    def rows(
        reader: runcue.Reader,
        state: str | None = None,
        *,
        queue: str | None = None,
        ids: Iterable[str] | None = None,
        limit: int = 100,
        before: str | None = None,
        raw: bool = False,
    ) -> list[dict[str, Any]]:
        """Rows of the jobs view, newest first; secrets in commands and errors are hidden unless asked for."""
        hide = hiding(raw)
        return [
            {**job, "command": hide(job["command"]), "last_error": hide(job["last_error"])}
            for job in reader.jobs(state, queue=queue, ids=ids, limit=limit, before=before)
        ]


def home_of(context: click.Context) -> Home:
    """The home that the global options named, for commands that want their context; others have `@click.pass_obj`."""
    home = context.find_object(Home)
    assert home is not None, "the top group finds the home before any command runs"
    return home


def _no_folder(address: str, source: str) -> Failure:
    """The home that was given is an address."""
    path = file_in(address)
    if path is not None:
        instead = f"Say {source}{'=' if source == VARIABLE else ' '}{quoted(path)}"
    elif is_postgres(address):
        instead = f"To look at a queue in PostgreSQL: runcue status {quoted(plain(address))}"
    else:
        instead = "Name a directory"
    return bad_input(
        f"{source} is the directory of a queue, and {plain(address)} is an address: queuectl keeps its queue in a "
        f"file. {instead}."
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
