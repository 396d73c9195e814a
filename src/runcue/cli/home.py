"""The directory that holds a queue: where it is, and whether it is safe to use.

Rules:
- It is `--home`, else `QUEUECTL_HOME`, else `~/.queuectl`. Only `make()` creates it, for its owner alone.
- Jobs run with the rights of the user who starts the workers. So a home, or a queue in it, that another user owns or
  may write to is refused unless `--insecure` is given.
- The modes of files do not depend on the umask, and the umask is not changed, because jobs inherit it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from runcue.cli.failure import Failure, bad_input, misconfigured, not_found
from runcue.cli.place import Row, hiding
from runcue.cli.screen import quoted, shown
from runcue.cli.words import QUEUECTL
from runcue.host.address import file_in, is_address, is_server, plain
from runcue.host.system import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

VARIABLE = "QUEUECTL_HOME"
DATABASE = "queue.db"
LOG = "worker.log"


class Home:
    """The directory of one queue. Its paths are given out only after their permissions were checked."""

    words = QUEUECTL

    def __init__(self, name: str | None = None, *, insecure: bool = False) -> None:
        self._name = name
        self.insecure = insecure
        self._checked: Path | None = None

    @property
    def path(self) -> Path:
        """The directory; checked at the first use, so that `--help` works with a bad home, too."""
        return self._checked or self.check()

    def check(self) -> Path:
        """The directory; raises the first complaint about it."""
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
        """The log file of detached workers."""
        return self.path / LOG

    def place(self) -> Path:
        """The directory, unchecked."""
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
        """What is wrong with the home and its queue; nothing while they are missing."""
        place = self.place()
        found = (_complaint(place, is_directory=True), _complaint(place / DATABASE, is_directory=False))
        return [one for one in found if one is not None]

    def make(self) -> None:
        """Create the directory where it is missing, for its owner alone."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.path.mkdir(mode=0o700)
            except FileExistsError:
                self.check()  # another user may have created it since
            else:
                self.path.chmod(0o700)  # the umask may have taken away even the owner's rights
        except OSError as error:
            raise misconfigured(
                f"{shown(self.path)} cannot be created: {_reason(error)}. Set QUEUECTL_HOME, or use --home."
            ) from error

    @property
    def exists(self) -> bool:
        """True when there is a queue to look at; an empty file belongs to a process that is creating it."""
        file = Path(self.database)
        try:
            return file.stat().st_size > 0
        except (FileNotFoundError, NotADirectoryError):
            return file.is_symlink()
        except OSError as error:
            raise misconfigured(f"{shown(self.database)} cannot be looked at: {_reason(error)}.") from error

    def reader(self) -> runcue.Reader:
        """Open the queue to look at it: `with home.reader() as reader`. Only when it exists."""
        from runcue import Reader

        return Reader(self.database, insecure=self.insecure)

    def cue(self) -> runcue.Cue:
        """Open the queue to change it; that alone starts and deletes nothing."""
        from runcue.cli.jobs import KEEPING, open_cue

        return open_cue(self, KEEPING)

    def nothing(self) -> Failure:
        """The failure where there is no queue yet."""
        return not_found(
            f"There are no jobs in {shown(self.path)} yet. {self.words.add.replace('a job', 'one')}"
        )

    @staticmethod
    def check_id(text: str) -> str:
        """The id of a job as typed; raises when it cannot be one."""
        from runcue.cli.fields import job_id

        return job_id(text)

    @staticmethod
    def counts(reader: runcue.Reader) -> dict[str, int]:
        """The number of jobs in each state."""
        return reader.job_counts()

    @staticmethod
    def rows(
        reader: runcue.Reader, state: str | None = None, *, raw: bool = False, **which: Any
    ) -> list[Row]:
        """The newest jobs, as rows of the jobs view."""
        hide = hiding(raw)
        return [
            {**job, "command": hide(job["command"]), "last_error": hide(job["last_error"])}
            for job in reader.jobs(state, **which)
        ]


def _complaint(path: Path, *, is_directory: bool) -> Failure | None:
    """Why a home, or the file in it, may not be used; None when it may, or is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return misconfigured(f"{shown(path)} lies below a file. Choose another --home.")
    except PermissionError:
        return misconfigured(f"{shown(path)} cannot be looked at: permission denied.")
    except (OSError, ValueError) as error:
        return bad_input(f"{shown(path)} is no usable path: {_reason(error)}.")
    kind, is_kind = ("directory", stat.S_ISDIR) if is_directory else ("file", stat.S_ISREG)
    if not is_kind(status.st_mode):
        return misconfigured(f"{shown(path)} is no {kind}. Move it away, or choose another --home.")
    if status.st_uid != files.user():
        return misconfigured(
            f"{shown(path)} belongs to another user (uid {status.st_uid}), who could make you run "
            "anything. Use a home of your own, or --insecure."
        )
    if status.st_mode & files.OTHERS_WRITE:
        return misconfigured(
            f"Others may write to {shown(path)} and could make you run anything. "
            f"Do: chmod go-w {quoted(str(path))}, or use --insecure."
        )
    return None


def _no_folder(address: str, source: str) -> Failure:
    """The failure where an address was given as the home."""
    path = file_in(address)
    if path is not None:
        instead = f"Say {source}{'=' if source == VARIABLE else ' '}{quoted(path)}"
    elif is_server(address):
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
