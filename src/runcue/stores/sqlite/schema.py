"""The tables of a queue file, and how a file comes to have them.

Rules:
- Times are seconds (REAL), lists and results are JSON (TEXT): any SQLite tool can read the file.
- A unit's `seq` is its row number. It orders units by age and ends every index at no cost, which makes the three
  writes of a unit's life a tenth cheaper than a row number of SQLite's own would. Reviving a unit gives it a new one.
- Every write pays for every index: all but the one on ids are partial, and hold only the rows that are looked up.
- `history` counts the rows of `attempts` that a unit has: most have none, and no query has to find that out.
- `index_heads` names the first pending unit under each index key. A row without `sort_key` and `seq` says that there
  is none; it stays so that other processes read that.
- `forgotten` says how deleted units ended, `quarantine` where damaged units were (sql/pruning.py, sql/quarantine.py).
- `lease_expires_at` is the end of the worker's lease, which it renews three times as often. It is there for people to
  read: on one host the kernel's lock shows who lives.
- `inbox` holds what processes left for the deciding process, `letters` what it decided for others, as JSON
  (sql/wire.py): reading a row deletes it. `submissions` holds what was submitted from outside (sql/submissions.py).
  `tasks` holds the rules of tasks; `fleet` of head counts changes of workers.
- `extra` holds what few units or services have, as one JSON object: the cost of a unit, the service that it was
  started on, its tags and the like; a service's quantities, keys and adaptive limit. `key` of service_log names a
  quantity.
- `unit_tags` has the tags of units that are kept, and as the tag without a name their groups; `unit` is the number of
  the unit, and `ending` how it ended (0: it has not). `unit_groups` counts the units of each group, kept or not.
- `schedules` holds what submits units at moments, as JSON (sql/wire.py).
- Nothing reads or writes `override` and `adaptive` of services.
- Step 2 deletes the events, whose form has changed since. Readers of events see a gap there.
- A step of MIGRATIONS is never changed once it was released; a new one is added and VERSION counts them.
"""

from __future__ import annotations

import re
from typing import Final

import apsw

from runcue.errors import QUOTED_LENGTH, SchemaTooNew, StorageCorrupt, quoted

ADVICE: Final = "Save what can be read (runcue.recover, queuectl doctor --recover), or restore a backup."
APPLICATION_ID: Final = 0x52435545  # "RCUE"

JOBS: Final = """
    SELECT
        id,
        CASE WHEN json_valid(params) THEN coalesce(json_extract(params, '$.command'), task_type) ELSE task_type END
            AS command,
        CASE state
            WHEN 'pending' THEN iif(failures > 0, 'failed', 'pending')
            WHEN 'running' THEN 'processing'
            WHEN 'failed' THEN 'dead'
            ELSE state
        END AS state,
        failures AS attempts,
        CASE WHEN json_valid(retry) THEN coalesce(json_extract(retry, '$.max_attempts'), 1) ELSE 1 END AS max_retries,
        iif(priority = CAST(priority AS INTEGER), CAST(priority AS INTEGER), priority) AS priority,
        strftime('%Y-%m-%dT%H:%M:%fZ', created_at, 'unixepoch') AS created_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', updated_at, 'unixepoch') AS updated_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(next_retry_at, run_at, created_at + coalesce(delay, 0)), 'unixepoch')
            AS next_run_at,
        substr(last_error, 1, 512) AS last_error,
        iif(token, leased_by, NULL) AS worker_id
    FROM work_units
"""
"""Units in the words of queuectl: the view `jobs`, for people with a SQLite tool and for the Reader."""

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE work_units (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        task_type TEXT NOT NULL,
        queue TEXT NOT NULL,
        target TEXT,
        params TEXT NOT NULL,
        services TEXT NOT NULL,
        depends_on TEXT,
        priority REAL NOT NULL,
        run_at REAL,
        delay REAL,
        timeout REAL,
        dependency_timeout REAL,
        idempotency_key TEXT,
        on_failed TEXT NOT NULL,
        is_named INTEGER NOT NULL,
        state TEXT NOT NULL,
        rank REAL NOT NULL,
        since REAL NOT NULL,
        shelf TEXT,
        place REAL NOT NULL,
        watch_at REAL,
        missing INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        spent INTEGER NOT NULL,
        failures INTEGER NOT NULL,
        crashes INTEGER NOT NULL,
        token INTEGER NOT NULL,
        leased_by TEXT,
        lease_expires_at REAL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        started_at REAL,
        completed_at REAL,
        next_retry_at REAL,
        throttled_since REAL,
        skipped INTEGER NOT NULL,
        result TEXT,
        last_error TEXT,
        traceback TEXT,
        history INTEGER NOT NULL,
        extra TEXT
    );
    CREATE INDEX work_units_on_shelf ON work_units (shelf, place) WHERE shelf IS NOT NULL;
    CREATE INDEX work_units_to_watch ON work_units (watch_at) WHERE watch_at IS NOT NULL;
    CREATE INDEX work_units_by_key ON work_units (idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE INDEX work_units_to_prune ON work_units (completed_at) WHERE state IN ('completed', 'cancelled');
    CREATE INDEX work_units_pending ON work_units (seq) WHERE state = 'pending';
    CREATE INDEX work_units_failed ON work_units (state) WHERE state = 'failed';
    CREATE INDEX work_units_cancelled ON work_units (state) WHERE state = 'cancelled';

    CREATE TABLE attempts (
        id INTEGER PRIMARY KEY,
        work_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        at REAL,
        duration REAL,
        error TEXT NOT NULL,
        worker TEXT
    );
    CREATE INDEX attempts_of_work ON attempts (work_id);

    CREATE TABLE dependencies (
        needs TEXT NOT NULL,
        work_id TEXT NOT NULL,
        PRIMARY KEY (needs, work_id)
    ) WITHOUT ROWID;

    CREATE TABLE forgotten (
        id TEXT PRIMARY KEY,
        state TEXT NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE set_aside (
        seq INTEGER PRIMARY KEY,
        shelf TEXT,
        watch_at REAL
    );

    CREATE TABLE shelves (
        name TEXT PRIMARY KEY,
        place REAL,
        seq INTEGER,
        revision INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE services (
        name TEXT PRIMARY KEY,
        concurrent INTEGER,
        rates TEXT NOT NULL,
        circuit_threshold INTEGER,
        circuit_timeout REAL NOT NULL,
        is_paused INTEGER NOT NULL,
        throttled_until REAL NOT NULL,
        throttle_streak INTEGER NOT NULL,
        override TEXT,
        adaptive TEXT,
        revision INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE circuit_state (
        service TEXT PRIMARY KEY,
        state TEXT NOT NULL,
        failures INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        wait REAL NOT NULL,
        changed_at REAL NOT NULL,
        ramp INTEGER,
        climbed INTEGER NOT NULL,
        running INTEGER NOT NULL,
        probe_deadline REAL,
        revision INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE service_log (
        id INTEGER PRIMARY KEY,
        service TEXT NOT NULL,
        key TEXT,
        started_at REAL NOT NULL,
        work_id TEXT,
        amount INTEGER NOT NULL
    );
    CREATE INDEX service_log_by_time ON service_log (started_at);

    CREATE TABLE workers (
        id TEXT PRIMARY KEY,
        host TEXT NOT NULL,
        boot TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started_at REAL NOT NULL,
        queues TEXT,
        active TEXT NOT NULL,
        revision INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE mail (
        id INTEGER PRIMARY KEY,
        worker TEXT NOT NULL,
        token INTEGER NOT NULL
    );

    CREATE TABLE events (
        revision INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        first_seq INTEGER NOT NULL,
        amount INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE INDEX events_by_seq ON events (first_seq);

    CREATE TABLE paused_queues (
        name TEXT PRIMARY KEY
    ) WITHOUT ROWID;

    CREATE TABLE config (
        key TEXT PRIMARY KEY,
        value
    ) WITHOUT ROWID;

    CREATE TABLE head (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        revision INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        token INTEGER NOT NULL,
        told INTEGER NOT NULL,
        now REAL NOT NULL,
        pending INTEGER NOT NULL,
        running INTEGER NOT NULL,
        completed INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        cancelled INTEGER NOT NULL,
        blocked INTEGER NOT NULL,
        turn TEXT,
        anchor_epoch REAL,
        anchor_boottime REAL,
        boot TEXT
    );
    INSERT INTO head (id, revision, seq, token, told, now, pending, running, completed, failed, cancelled,
                      blocked)
    VALUES (1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    """,
    f"""
    ALTER TABLE work_units ADD COLUMN retry TEXT;
    ALTER TABLE workers ADD COLUMN is_serving INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX work_units_retrying ON work_units (seq) WHERE state = 'pending' AND failures > 0;
    CREATE VIEW jobs AS {JOBS};
    DELETE FROM events;
    """,
    """
    ALTER TABLE services ADD COLUMN extra TEXT;
    """,
    """
    DROP INDEX service_log_by_time;
    CREATE INDEX service_log_of_service ON service_log (service, started_at);
    """,
    """
    DROP TABLE mail;
    ALTER TABLE workers DROP COLUMN active;
    ALTER TABLE workers DROP COLUMN revision;
    ALTER TABLE workers ADD COLUMN tasks TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE workers ADD COLUMN room TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE workers ADD COLUMN hears INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE workers ADD COLUMN callbacks TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE workers ADD COLUMN overdue TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE head ADD COLUMN decider TEXT;
    ALTER TABLE head ADD COLUMN wake_at REAL;
    ALTER TABLE head ADD COLUMN fleet INTEGER NOT NULL DEFAULT 0;

    CREATE TABLE inbox (
        id INTEGER PRIMARY KEY,
        worker TEXT NOT NULL,
        number INTEGER NOT NULL,
        at REAL NOT NULL,
        body TEXT NOT NULL
    );

    CREATE TABLE letters (
        id INTEGER PRIMARY KEY,
        worker TEXT NOT NULL,
        kind TEXT NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX letters_of_worker ON letters (worker);

    CREATE TABLE tasks (
        name TEXT PRIMARY KEY,
        rule TEXT NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    DROP INDEX work_units_on_shelf;
    ALTER TABLE work_units RENAME COLUMN shelf TO index_key;
    ALTER TABLE work_units RENAME COLUMN place TO sort_key;
    CREATE INDEX work_units_by_index_key ON work_units (index_key, sort_key) WHERE index_key IS NOT NULL;
    ALTER TABLE shelves RENAME TO index_heads;
    ALTER TABLE index_heads RENAME COLUMN place TO sort_key;
    ALTER TABLE set_aside RENAME TO quarantine;
    ALTER TABLE quarantine RENAME COLUMN shelf TO index_key;
    ALTER TABLE head RENAME COLUMN told TO last_event_seq;
    """,
    """
    ALTER TABLE work_units ADD COLUMN group_name TEXT;
    ALTER TABLE work_units ADD COLUMN unique_key TEXT;
    """,
    """
    CREATE INDEX work_units_by_unique_key ON work_units (unique_key) WHERE unique_key IS NOT NULL;
    """,
    """
    ALTER TABLE work_units ADD COLUMN label TEXT;

    CREATE TABLE unit_tags (
        tag TEXT NOT NULL,
        value TEXT NOT NULL,
        ending INTEGER NOT NULL,
        unit INTEGER NOT NULL,
        PRIMARY KEY (tag, value, ending, unit)
    ) WITHOUT ROWID;

    CREATE TABLE unit_groups (
        name TEXT PRIMARY KEY,
        pending INTEGER NOT NULL,
        running INTEGER NOT NULL,
        completed INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        cancelled INTEGER NOT NULL,
        created_at REAL,
        done_at REAL
    ) WITHOUT ROWID;
    CREATE INDEX unit_groups_done ON unit_groups (done_at) WHERE done_at IS NOT NULL;
    """,
    """
    CREATE TABLE submissions (
        number INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        kind TEXT NOT NULL,
        id TEXT NOT NULL,
        item TEXT NOT NULL
    );
    """,
    """
    CREATE TABLE schedules (
        name TEXT PRIMARY KEY,
        body TEXT NOT NULL
    ) WITHOUT ROWID;
    """,
)
VERSION: Final = len(MIGRATIONS)

FORMER_NAMES: Final = {
    "shelves": "index_heads", "set_aside": "quarantine", "work_units_on_shelf": "work_units_by_index_key",
}  # fmt: skip
"""What step 6 renamed: tables and indexes by the names that a damaged file of an earlier version still has."""

SINCE: Final = {
    name: version
    for version, step in enumerate(MIGRATIONS, 1)
    for name in re.findall(r"CREATE TABLE (\w+)", step)
}
"""The version that brought each table: a file of an earlier one does not have it."""

TABLES: Final = frozenset({
    "attempts", "circuit_state", "config", "dependencies", "events", "forgotten", "head", "inbox",
    "index_heads", "letters", "paused_queues", "quarantine", "schedules", "service_log", "services", "submissions",
    "tasks", "unit_groups", "unit_tags", "work_units", "workers",
})  # fmt: skip


def shown(path: str) -> str:
    """A path inside a message; of a long one the end, which tells more than its beginning."""
    return quoted(path if len(path) <= QUOTED_LENGTH else f"…{path[1 - QUOTED_LENGTH :]}")


def migrate(connection: apsw.Connection) -> None:
    """Bring a file to this version in one transaction, once, however many processes want to."""
    if version_of(connection) < VERSION:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = version_of(connection)  # another process may have been here meanwhile
            for step in MIGRATIONS[version:]:
                connection.execute(step).fetchall()  # it stops at every row that is not fetched
            if version < VERSION:
                connection.execute(
                    f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}"
                )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    check_tables(connection)


def version_of(connection: apsw.Connection) -> int:
    """The version of a file's tables, 0 for an empty file; refuses what is not ours and what is newer."""
    [(application, version, tables)] = connection.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), "
        "(SELECT count(*) FROM sqlite_schema)"
    )
    check_header(connection.filename, application, version, is_empty=not tables)
    return int(version)


def check_header(path: str, application: int, version: int, *, is_empty: bool = False) -> None:
    """Refuse a file of another application, and one that a newer runcue made."""
    if application != APPLICATION_ID and not (is_empty and application == version == 0):
        raise StorageCorrupt(
            f"{shown(path)} is a SQLite file of another application, no runcue queue. Choose another file.",
            path,
        )
    if application == APPLICATION_ID and version < 1:
        raise StorageCorrupt(
            f"{shown(path)} is damaged: its schema has the version {version}. {ADVICE}", path
        )
    if version > VERSION:
        raise SchemaTooNew(
            f"{shown(path)} was made by a newer runcue: its schema is version {version}, this one knows {VERSION}. "
            "Nothing was changed; use the newer runcue.",
            path,
        )


def check_tables(connection: apsw.Connection) -> None:
    """Refuse a file of ours that has lost a table or its counters."""
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    lost = sorted(TABLES - found)
    if not lost and not connection.execute("SELECT count(*) FROM head").fetchall()[0][0]:
        lost = ["head"]
    if lost:
        path = connection.filename
        raise StorageCorrupt(
            f"{shown(path)} is damaged: table {quoted(lost[0])} is gone or empty. {ADVICE}", path
        )
