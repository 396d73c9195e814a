"""A connection to PostgreSQL, used as one to SQLite is (sql/connection.py).

Rules:
- Within `piped()` statements are sent without waiting for their answers; reading an answer waits for all that was
  sent so far. So a turn costs two or three round trips, however many statements it has.
- The server may have been told to end every statement after a moment: that is changed before anything else is sent.
- Every wait has a limit: for a connection, a lock, a statement, a silent network. Where the server cannot enforce it
  because the network is dead, the wait is `timed` here, and a watching thread cuts the connection.
- The server ends a session that stands still inside a turn, so that a stopped process does not hold up others.
- Every error of PostgreSQL becomes one of ours (`translate`), without a password.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Protocol

import psycopg
from psycopg import RawCursor, errors, sql
from psycopg.pq import ExecStatus
from psycopg.types.string import TextLoader

from runcue.errors import RuncueError, StorageBusy, StorageFull, StorageReplaced, StoreError
from runcue.host.shortage import no_files
from runcue.stores.postgres.address import Address
from runcue.stores.postgres.bulk import Bulk, ByKey
from runcue.stores.postgres.texts import escaped, unescaped
from runcue.stores.postgres.watch import Watch

Row = tuple[Any, ...]

CONNECTING: Final = 10
"""Seconds to wait for a connection."""
LOCKED: Final = 12.0
"""Seconds to wait for a lock before looking who holds it."""
STATEMENT: Final = 60.0
"""Seconds that one statement may take."""
FIRST: Final = f"SET statement_timeout = {STATEMENT * 1000:.0f}; SELECT current_setting('synchronous_commit')"
"""What every session begins with: the limit of this user, database or server may be too short for anything."""
FIRST_TRIES: Final = 5
STANDSTILL: Final = 10.0
"""Seconds that a session may stand still inside a turn before the server ends it."""
ANSWER: Final = 15.0
"""Seconds to wait for an answer that takes no work, or for a commit of little."""
PACE: Final = 5e6
"""Signs a second that a server takes at least: so much longer may a commit of much take."""
LARGEST: Final = 500_000_000
"""Signs that travel as one text; PostgreSQL takes one gigabyte, and needs room to read them."""
SILENCE: Final = 15
"""Seconds without an answer to what was sent, after which a network counts as gone."""

ONE_MOMENT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
"""Whatever is read after this is as it was at one moment."""

_watch = Watch()
ENDED: Final = ("08", "57P0", "25P03", "25P04")
"""How the codes begin by which a server says that it has ended, or ends, this session."""
NOT_YET: Final = ("starting up", "shutting down", "recovery mode", "not yet accepting")
CROWDED: Final = ("too many clients", "too many connections", "remaining connection slots")
"""What a server says that refuses a connection; psycopg tells no code of it."""


class Sending(Protocol):
    """A connection with whatever session."""

    @property
    def address(self) -> Address:
        """Where it leads."""
        ...

    def execute(self, statement: str, bindings: Sequence[Any] = ()) -> RawCursor[Row]:
        """Send a statement."""
        ...


class Link:
    """One connection, for one thread at a time."""

    def __init__(self, address: Address, durability: str = "full", *, read_only: bool = False) -> None:
        self.address = address
        self.in_transaction = False
        """True between BEGIN and its end, as far as this side knows."""
        self._until: float | None = None
        self._closing = threading.Lock()
        self._sent_since = 0
        """How much was sent in the transaction under way."""
        self._piping = ExitStack()
        self._prepared: set[str] = set()
        try:
            self.raw = psycopg.connect(
                address.url,
                autocommit=True,
                prepare_threshold=2,
                cursor_factory=RawCursor,
                connect_timeout=CONNECTING,
                keepalives_idle=5,
                keepalives_interval=5,
                keepalives_count=2,
                tcp_user_timeout=SILENCE * 1000,
                fallback_application_name="runcue",
            )
        except (psycopg.Error, UnicodeError, ValueError) as error:
            raise translate(error, address) from cause_of(error, address)
        try:
            _watch.over(self)
            with self.timed(ANSWER):
                self._settle(durability, read_only)
        except BaseException as error:
            self.raw.close()
            if isinstance(error, psycopg.Error):
                raise translate(error, address) from cause_of(error, address)
            raise

    def _settle(self, durability: str, read_only: bool) -> None:
        synchronous_commit = self._begun()
        settings = {
            "search_path": sql.Identifier(self.address.schema).as_string(),
            "lock_timeout": f"{LOCKED * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{STANDSTILL * 1000:.0f}",
            "default_transaction_isolation": "read committed",
            "client_encoding": "UTF8",
            "extra_float_digits": "3",
            "tcp_keepalives_idle": "5",  # the server's side of it: who is cut off must not keep a lock
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "2",
            "tcp_user_timeout": f"{SILENCE * 1000}",
            "jit": "off",
            # Planning what turns and exchanges do costs more than doing it; who looks asks all kinds of things.
            "plan_cache_mode": "auto" if read_only else "force_generic_plan",
            "enable_hashjoin": "off",  # what joins here finds few rows by their keys
            "enable_mergejoin": "off",
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
            "max_parallel_workers_per_gather": "0",
            "default_transaction_read_only": "on" if read_only else "off",
        }
        if self.raw.info.server_version >= 140000:
            settings["idle_session_timeout"] = "0"  # between two turns a session has nothing to do
        if self.raw.info.server_version >= 170000:
            settings["transaction_timeout"] = f"{STATEMENT * 1000:.0f}"
        if durability == "relaxed":
            settings["synchronous_commit"] = "off"
        elif synchronous_commit == "off":  # what was accepted must last
            settings["synchronous_commit"] = "on"
        given = [text for setting in settings.items() for text in setting]
        calls = (f"set_config(${number}, ${number + 1}, false)" for number in range(1, len(given), 2))
        self.raw.execute(f"SELECT {', '.join(calls)}", given)
        self.raw.adapters.register_loader("text", TextAsWritten)

    def _begun(self) -> str:
        """Have statements take as long as they need, whatever was set for this user; whether commits are synced."""
        tries_left = FIRST_TRIES
        while True:
            try:
                cursor = self.raw.execute(FIRST)
            except errors.QueryCanceled as error:
                tries_left -= 1
                if not tries_left:
                    raise _too_short(self.address, error) from error
            else:
                cursor.nextset()
                row = cursor.fetchone()
                assert row is not None
                return str(row[0])

    # statements -------------------------------------------------------------------------------------------

    def execute(self, statement: str, bindings: Sequence[Any] = ()) -> RawCursor[Row]:
        """Send a statement."""
        return self._sent(statement, [plain(value) for value in bindings])

    def executemany(self, statement: str | Bulk | ByKey, rows: Iterable[Sequence[Any]]) -> None:
        """Send a statement for each of these rows, or one for all of them."""
        if isinstance(statement, str):
            for row in rows:
                self.execute(statement, row)
        elif some := list(rows):
            text, bindings = statement.sent(some)
            self._sent(text, list(bindings))

    def _sent(self, statement: str, bindings: list[Any]) -> RawCursor[Row]:
        cursor: RawCursor[Row] = RawCursor(self.raw)
        weight = sum(len(value) for value in bindings if isinstance(value, str))
        if weight > LARGEST:
            raise _too_much(self.address, f"{weight:,} characters")
        self._sent_since += weight
        with self.timed(STATEMENT):
            cursor.execute(statement, bindings)
            if self.raw.info.pipeline_status:  # the server may begin with it while the next is made
                self.raw.pgconn.flush()
        return cursor

    @contextmanager
    def timed(self, seconds: float) -> Iterator[None]:
        """A context that must not take longer than this; inside another such context it changes nothing."""
        is_outermost = self._until is None
        if is_outermost:
            self._until = time.monotonic() + seconds
        try:
            yield
        finally:
            if is_outermost:
                self._until = None

    @property
    def is_stuck(self) -> bool:
        """True when a `timed` wait takes too long: the network is dead without an error."""
        until = self._until
        return until is not None and time.monotonic() > until

    @contextmanager
    def piped(self) -> Iterator[None]:
        """A context in which statements are sent without waiting for answers that are not read."""
        with ExitStack() as piping:
            piping.enter_context(self.raw.pipeline())
            self._piping = piping
            try:
                yield
            except psycopg.Error:  # psycopg no longer knows which statements the server has prepared
                self.close()
                raise
            finally:
                try:
                    piping.close()
                except psycopg.Error:  # what mattered was answered before, or has raised by itself
                    self.close()

    def prepared(self, name: str, statement: str, bindings: Sequence[Any]) -> str:
        """A short statement that stands for this one, which is prepared under that name the first time."""
        if name not in self._prepared:
            self.execute(f"PREPARE {name} AS {statement}")
            self._prepared.add(name)
        return f"EXECUTE {name}({', '.join(sql.Literal(value).as_string() for value in bindings)})"

    def begin_with(self, *statements: str, locked: float = LOCKED) -> Row:
        """Begin a transaction with these statements, in one round trip; the row that the last of them found.

        They may wait so long for a lock. Not by `piped()`: after that the server would not notice when this session
        stands still.
        """
        self.in_transaction = True
        self._sent_since = 0
        with self.timed(locked + ANSWER):
            try:
                cursor = self.raw.execute(";".join(("BEGIN", *statements)))
            except errors.InvalidSqlStatementName:  # the session was made to forget its prepared statements
                self._prepared.clear()
                raise
        for _ in statements:
            cursor.nextset()
        row = cursor.fetchone()
        assert row is not None
        return tuple(row)

    def commit(self) -> None:
        """Commit, and wait for the answer, which ends `piped()`."""
        with self.timed(min(STATEMENT, ANSWER + self._sent_since / PACE)):
            done = self.execute("COMMIT")
            if self.raw.info.pipeline_status:  # its end waits for all answers and raises what went wrong
                self._piping.close()
        self.in_transaction = False
        if done.statusmessage != "COMMIT":  # PostgreSQL rolls back what has failed before
            self.close()  # and psycopg gives up all that is prepared
            raise StoreError(f"{self.address.shown} did not commit what it was given ({done.statusmessage}).")

    def undo(self) -> None:
        """Roll back what is under way, if the connection still can."""
        is_under_way, self.in_transaction = self.in_transaction, False
        if is_under_way and self.is_alive:
            with self.timed(ANSWER):  # not by a cursor: psycopg would give up all that is prepared
                done = self.raw.pgconn.exec_(b"ROLLBACK")
            if done.status != ExecStatus.COMMAND_OK:
                self.close()

    def leave(self) -> None:
        """End a transaction that wrote nothing."""
        self.in_transaction = False
        with self.timed(ANSWER):
            self.execute("COMMIT")

    @property
    def shown(self) -> str:
        """Where it leads, in a message."""
        return self.address.shown

    @property
    def is_alive(self) -> bool:
        """False once the connection is known to be lost or closed."""
        return not self.raw.closed

    def hang_up(self) -> None:
        """Cut the connection, from any thread: the thread that uses it gets an error, and closes it."""
        with self._closing:  # else its descriptor might be somebody else's by now
            try:
                with socket.socket(fileno=socket.dup(self.raw.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)
            except (OSError, psycopg.Error):  # it is cut already
                return

    def close(self) -> None:
        """Close it."""
        with self._closing:
            self.raw.close()


class TextAsWritten(TextLoader):
    """Texts as they were before they were escaped."""

    def load(self, data: Any) -> str:
        return unescaped(bytes(data).decode())


def plain(value: Any) -> Any:
    """A value as PostgreSQL takes it: True and False are 1 and 0, as in SQLite, and no text has a NUL."""
    if value is True or value is False:
        return int(value)
    return escaped(value) if isinstance(value, str) else value


# --- Errors ---------------------------------------------------------------------------------------


def translate(error: Exception, address: Address) -> Exception:
    """Our error for one of PostgreSQL or of the system; any other is returned as it is."""
    if isinstance(error, RuncueError):
        return error
    said = address.scrubbed(" ".join(str(error).split())).rstrip(".")
    where = address.shown
    if isinstance(error, errors.DiskFull | errors.OutOfMemory | errors.ConfigurationLimitExceeded):
        return StorageFull(f"{where} has no room left ({said}). Free some space there.", where)
    code = getattr(error, "sqlstate", None) or ""
    is_our_side = isinstance(error, OSError) or (isinstance(error, psycopg.OperationalError) and not code)
    if is_our_side and (lack := no_files(getattr(error, "errno", None), where, where)) is not None:
        return lack
    if _is_late(error):
        return StorageBusy(
            f"{where} ended a statement that took more than {STATEMENT:g} s ({said}). See what it waits for: a slow "
            "disk, or a session that holds its locks.",
            where,
        )
    if is_passing(error):
        problem = StorageBusy(
            f"{where} undid what was under way, because of another session ({said}). Try again.", where
        )
        problem.is_passing = True
        return problem
    if isinstance(error, errors.LockNotAvailable):
        return StorageBusy(
            f"{where} was busy for too long ({said}). Look for a session that holds its locks, and end it.",
            where,
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(
            f"The user of {where} may not do that ({said}). Grant it the schema {address.schema!r} with all its "
            "tables, or let it create that schema.",
            where,
        )
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return StoreError(
            f"{where} is read-only ({said}). Give the address of the primary server, and of a user that may write.",
            where,
        )
    is_refused = not code and "FATAL:" in said and not any(word in said for word in NOT_YET)
    if any(word in said for word in CROWDED) or isinstance(error, errors.TooManyConnections):
        return StorageBusy(
            f"{where} has no connection left ({said}). Each process needs three: raise max_connections.",
            where,
        )
    if is_refused or isinstance(error, errors.InvalidAuthorizationSpecification | errors.InvalidCatalogName):
        return StoreError(
            f"{where} refuses this connection ({said}). Check user, password and database.", where
        )
    if getattr(error, "sqlstate", None) is None and isinstance(error, psycopg.ProgrammingError | ValueError):
        return StoreError(f"{where} is no address of a database ({said}).", where)
    if code.startswith("54"):
        return _too_much(address, said)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreError(
            f"{where} cannot be reached ({said}). Check that the server runs and that this address leads there.",
            where,
        )
    if isinstance(error, psycopg.Error):
        return StoreError(f"{where} cannot be read or written ({said}).", where)
    return error


def translate_use(error: psycopg.Error, address: Address) -> Exception:
    """Our error for one that came while the queue's tables were used: missing tables mean another queue."""
    if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName):
        return replaced("holds no queue any more", address)
    return translate(error, address)


def replaced(what: str, address: Address) -> StorageReplaced:
    """The error of tables that are not those that were opened."""
    return StorageReplaced(f"{address.shown} {what}. Close this queue and open it anew.", address.plain)


def unknown(error: Exception, address: Address) -> StoreError:
    """The error of a commit that may or may not have taken place."""
    return StoreError(
        f"The connection to {address.shown} was lost in a commit ({translate(error, address)}): "
        "whether it lasts is unknown. Submit again with the same idempotency_key or id.",
        address.plain,
    )


def lost_commits(address: Address) -> StoreError:
    """The error of a queue that has lost commits that were seen before: an older copy came into its place."""
    return StoreError(
        f"{address.shown} has lost commits that it had answered, as an older copy of it would. What is there is read "
        "anew.",
        address.plain,
    )


def _too_much(address: Address, said: str) -> StoreError:
    where = address.shown
    return StoreError(f"That is too much for {where} at once ({said}). Submit it in smaller parts.", where)


def _too_short(address: Address, error: Exception) -> StoreError:
    said = address.scrubbed(" ".join(str(error).split())).rstrip(".")
    where = address.shown
    return StoreError(
        f"{where} ends every statement before it is done ({said}): the statement_timeout of this user, database or "
        "server is too short. Raise it: ALTER ROLE … SET statement_timeout = '1s'.",
        where,
    )


def _is_late(error: BaseException) -> bool:
    """Whether a statement took longer than it may, as far as the server says that in English."""
    return isinstance(error, errors.QueryCanceled) and "statement timeout" in str(error)


def cause_of(error: Exception, address: Address) -> Exception | None:
    """The cause to attach to an error of ours: None where its text holds a password."""
    said = str(error)
    return error if address.scrubbed(said) == said else None


def is_passing(error: BaseException) -> bool:
    """Whether an error came from a conflict with another session, so that trying again may succeed at once."""
    code = getattr(error, "sqlstate", None) or ""
    return (isinstance(error, errors.QueryCanceled) and not _is_late(error)) or code.startswith("40")


def is_gone(error: BaseException) -> bool:
    """Whether an error says that the connection was lost, so that a new one may help."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(ENDED)
