"""Damaged queue files: what can be read becomes a queue again, and what was there stays there."""

import asyncio
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from runcue import Cue, Reader, SchemaTooNew, StorageBusy, StorageCorrupt, StoreError, WorkState
from runcue.stores.sqlite import schema
from runcue.stores.sqlite.recovery import recover as recovery
from runcue.stores.sqlite.recovery.copy import IDS, shapes
from runcue.stores.sqlite.recovery.pages import Leaf, Log, Pages
from runcue.stores.sqlite.recovery.rebuild import LEAP
from runcue.stores.sqlite.recovery.recover import Rescue, recover
from tests.handlers import no_op
from tests.stores.hands import change, take_back

PATIENCE = 240.0
SIZE = 4096
SHAPES = shapes()
COPIED = ("work_units", "attempts", "forgotten", "services", "service_log", "events", "paused_queues",
          "config")  # fmt: skip

CHILD = """
import asyncio, sys
from runcue import Cue

async def main():
    cue = Cue(sys.argv[1])

    @cue.task
    async def hang(work):
        print("started", flush=True)
        await asyncio.Event().wait()

    async with cue:
        await cue.submit("hang", id="hanging")
        await asyncio.Event().wait()

asyncio.run(main())
"""


# --- A queue with something of everything ---------------------------------------------------------


class Sound(NamedTuple):
    """A sound queue whose last worker was killed: its file with and without its log, and where its rows are."""

    file: bytes
    log: bytes
    whole: bytes
    roots: dict[str, int]
    pages: dict[str, dict[Any, set[int]]]
    """Table → key of a row → the pages it stands on."""

    @property
    def amount(self) -> int:
        return len(self.whole) // SIZE

    def page_of(self, work_id: str) -> int:
        return min(self.pages["work_units"][work_id])


def declared(path: Path) -> Cue:
    cue = Cue(path, retention=None)
    cue.service("api", rate="100000/s", concurrent=5)

    @cue.task(uses="api", retry=2)
    async def note(work: Any) -> str:
        if work.params.get("is_bad"):
            raise ValueError("bad")
        return str(work.id)

    cue.task("hang")(no_op)
    return cue


async def fill(path: Path) -> None:
    cue = declared(path)
    items: list[dict[str, Any]] = [
        {"task": "note", "id": f"done{n:02}", "params": {"n": n, "is_bad": n % 8 == 0, "text": "x" * 100}}
        for n in range(40)
    ]
    async with cue:
        await cue.submit_many(items)
        await cue.join(timeout=PATIENCE)
    await cue.submit_many(
        {"task": "note", "id": f"new{n:02}", "params": {"text": "x" * (5000 if n == 5 else 100)}}
        for n in range(30)
    )
    await cue.submit("note", id="after", depends_on=["new00"])
    await cue.submit("note", id="after-that", depends_on=["after"])
    await cue.submit("note", id="late", delay=3600)
    await cue.pause("slow")
    await cue.set_config({"max_retries": "5"})
    await cue.close()
    connection = apsw.Connection(str(path))
    connection.executemany(
        "INSERT INTO forgotten VALUES (?, 'completed')", [(f"gone{n:03}{'z' * 40}",) for n in range(120)]
    )
    connection.execute("DELETE FROM attempts WHERE work_id BETWEEN 'done10' AND 'done27'")
    connection.execute("DELETE FROM work_units WHERE id BETWEEN 'done10' AND 'done27'")
    connection.execute("UPDATE head SET failed = (SELECT count(*) FROM work_units WHERE state = 'failed')")
    connection.close()


def kill_its_worker(path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
    finally:
        child.kill()
        child.communicate(timeout=PATIENCE)


def places(path: Path, roots: dict[str, int]) -> dict[str, dict[Any, set[int]]]:
    """On which pages each row of a sound file stands; a page with long rows counts with all that they spill to."""
    pages = Pages(str(path))
    found: dict[str, dict[Any, set[int]]] = {}
    for table in COPIED:
        found[table] = {}
        todo = [roots[table]]
        while todo:
            number = todo.pop()
            leaf = Leaf(pages, number)
            todo += [below for below, _ in leaf.below]
            for row in leaf.rows:
                values = dict(zip(SHAPES[table].columns, SHAPES[table].row(row), strict=False))
                found[table][key_of(table, values)] = {number, *leaf.spilled}
    pages.close()
    return found


def key_of(table: str, values: dict[str, Any]) -> Any:
    return values["id"] if table == "work_units" else next(iter(values.values()))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    path = tmp_path_factory.mktemp("sound") / "queue.db"
    logging.disable()
    try:
        asyncio.run(fill(path))
    finally:
        logging.disable(logging.NOTSET)
    kill_its_worker(path)
    file, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    roots: dict[str, int] = dict(
        connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0").fetchall()  # type: ignore[arg-type]
    )
    connection.close()
    return Sound(file, log, path.read_bytes(), roots, places(path, roots))


# --- Damage ---------------------------------------------------------------------------------------


def noise(data: bytes, *numbers: int) -> bytes:
    """The same with some pages full of chance."""
    changed, chance = bytearray(data), random.Random(sum(numbers))
    for number in numbers:
        changed[(number - 1) * SIZE : number * SIZE] = chance.randbytes(SIZE)
    return bytes(changed)


def tried(path: Path, data: bytes, log: bytes | None = None) -> Rescue | StoreError:
    """What is made of a file with that in it; whatever happens, that is still there."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    if log is not None:
        Path(f"{path}-wal").write_bytes(log)
    try:
        made: Rescue | StoreError = recover(path)
    except StoreError as error:
        made = error
    names = [one.name for one in path.parent.iterdir()]
    assert not [name for name in names if ".rescue-" in name]
    if isinstance(made, StoreError):
        assert "\n" not in str(made)
        assert not [name for name in names if ".damaged-" in name]
        kept = path
    else:
        assert not Path(f"{path}-wal").exists()
        assert sys.platform == "win32" or path.stat().st_mode & 0o777 == 0o600
        kept = Path(made.kept_as)
    assert kept.read_bytes() == data
    assert log is None or Path(f"{kept}-wal").read_bytes() == log
    return made


def saved(path: Path, data: bytes, log: bytes | None = None) -> Rescue:
    """The same where something is made of it."""
    made = tried(path, data, log)
    assert isinstance(made, Rescue), made
    return made


def rows_of(path: Path, table: str) -> dict[Any, dict[str, Any]]:
    connection = apsw.Connection(str(path))
    columns = SHAPES[table].columns
    found = [
        dict(zip(columns, row, strict=True))
        for row in connection.execute(f"SELECT {','.join(columns)} FROM {table}")
    ]
    connection.close()
    return {key_of(table, row): row for row in found}


WRONG = {
    "SELECT 1 FROM head WHERE pending != (SELECT count(*) FROM work_units WHERE state = 'pending')",
    "SELECT 1 FROM head WHERE running != (SELECT count(*) FROM work_units WHERE state = 'running')",
    "SELECT 1 FROM head WHERE failed != (SELECT count(*) FROM work_units WHERE state = 'failed')",
    "SELECT 1 FROM head WHERE blocked != (SELECT count(*) FROM work_units WHERE missing)",
    "SELECT 1 FROM head WHERE seq < (SELECT max(seq) FROM work_units)",
    "SELECT 1 FROM head WHERE token < (SELECT max(token) FROM work_units)",
    "SELECT 1 FROM head WHERE last_event_seq < (SELECT max(first_seq + amount - 1) FROM events)",
    "SELECT 1 FROM work_units WHERE (index_key IS NULL) = (state IN ('pending', 'running'))",
    "SELECT 1 FROM work_units WHERE state = 'running' AND leased_by NOT IN (SELECT id FROM workers)",
    "SELECT 1 FROM work_units WHERE history != (SELECT count(*) FROM attempts WHERE work_id = work_units.id)",
    "SELECT 1 FROM attempts WHERE work_id NOT IN (SELECT id FROM work_units)",
    "SELECT 1 FROM dependencies WHERE work_id NOT IN (SELECT id FROM work_units)",
    """SELECT index_key, sort_key, seq FROM (SELECT index_key, sort_key, seq, row_number() OVER
    (PARTITION BY index_key ORDER BY sort_key, seq) AS n FROM work_units WHERE state = 'pending') WHERE n = 1
    EXCEPT SELECT name, sort_key, seq FROM index_heads""",
    """SELECT 1 FROM index_heads
    WHERE sort_key IS NOT NULL AND seq NOT IN (SELECT seq FROM work_units WHERE index_key = name)""",
}
"""What finds nothing in a queue whose rows agree."""


def is_consistent(path: Path) -> bool:
    """Whether SQLite has nothing to say against a file, and its rows say nothing against each other."""
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    found = {statement for statement in WRONG if connection.execute(statement).fetchall()}
    connection.close()
    assert found == set()
    return True


def check_kept(sound: Sound, path: Path, damaged: set[int]) -> None:
    """Every row that stands on undamaged pages is there, as far as its work is."""
    works = rows_of(path, "work_units").keys()
    before = rows_before(sound, path)
    for table, rows in sound.pages.items():
        found = rows_of(path, table)
        for key, pages in rows.items():
            if pages & damaged or (table == "attempts" and before[key]["work_id"] not in works):
                continue
            assert key in found, f"{table} has lost {key!r}"


def rows_before(sound: Sound, path: Path) -> dict[Any, dict[str, Any]]:
    whole = path.with_name("whole.db")
    if not whole.exists():
        whole.write_bytes(sound.whole)
    return rows_of(whole, "attempts")


async def finish(path: Path) -> dict[str, WorkState]:
    """Have a Cue do what there is to do, and something new; how each work stands then."""
    cue = declared(path)
    async with cue:
        fresh = await cue.submit("note")
        assert (await cue.wait(fresh, timeout=PATIENCE)).state is WorkState.COMPLETED
        waiting = [
            work.id for state in ("pending", "running") for work in await cue.list(state) if work.id != "late"
        ]
        await cue.join(waiting, timeout=PATIENCE)
        assert (await cue.count())[WorkState.RUNNING] == 0
        states = {work.id: work.state for work in await cue.list(limit=1000)}
    await cue.close()
    return states


@pytest.fixture
def fresh_paths(tmp_path: Path) -> Callable[[int], Path]:
    return lambda number: tmp_path / str(number) / "queue.db"


# --- Anywhere in the file -------------------------------------------------------------------------


def test_every_row_of_a_sound_file_is_read_as_sqlite_reads_it(sound: Sound, path: Path) -> None:
    path.write_bytes(sound.whole)
    made = recover(path, force=True)
    assert (made.lost, made.problems) == ({}, ())
    for table in COPIED:
        before, after = rows_of(Path(made.kept_as), table), rows_of(path, table)
        for rows in (before, after):
            for row in rows.values():
                row.pop("revision", None)
        assert after == before, table
    assert is_consistent(path)


def test_a_page_of_noise_costs_what_is_on_it_and_nothing_else(
    sound: Sound, fresh_paths: Callable[[int], Path]
) -> None:
    free = 0
    for number in range(1, sound.amount + 1):
        path = fresh_paths(number)
        made = tried(path, noise(sound.whole, number))
        if isinstance(made, StoreError):
            assert "is not damaged" in str(made)
            free += 1
            continue
        assert made.problems
        assert is_consistent(path), number
        check_kept(sound, path, {number})
    assert free < 8


def test_a_flipped_bit_near_the_beginning_of_any_page_costs_no_other_page(
    sound: Sound, fresh_paths: Callable[[int], Path]
) -> None:
    chance = random.Random(5)
    for number in range(1, sound.amount + 1):
        path, data = fresh_paths(number), bytearray(sound.whole)
        data[(number - 1) * SIZE + chance.randrange(100)] ^= 1 << chance.randrange(8)
        made = tried(path, bytes(data))
        if isinstance(made, StoreError):
            assert isinstance(made, SchemaTooNew) or "is not damaged" in str(made)
            continue
        assert is_consistent(path), number
        check_kept(sound, path, {number})


def test_of_a_file_that_was_cut_off_the_beginning_is_kept(
    sound: Sound, fresh_paths: Callable[[int], Path]
) -> None:
    kept = 0
    for number in range(1, sound.amount):
        path = fresh_paths(number)
        made = tried(path, sound.whole[: number * SIZE + number % 2])
        if isinstance(made, StoreError):
            assert "Nothing can be read" in str(made)
            continue
        kept += 1
        assert is_consistent(path), number
        check_kept(sound, path, set(range(number + 1, sound.amount + 1)))
    assert kept > sound.amount // 2


@pytest.mark.parametrize(
    "what",
    ["sqlite_schema", "work_units", "index_heads", "workers", "head", "events", "services", "dependencies"],
)
async def test_a_cue_works_on_what_was_saved(sound: Sound, path: Path, what: str) -> None:
    saved(path, noise(sound.whole, sound.roots.get(what, 1)))
    states = await finish(path)
    assert states.pop("late") is WorkState.PENDING
    assert states.keys() >= {"hanging", "after-that", "new29", "done01"}
    assert {state for name, state in states.items() if name.startswith(("new", "after", "hang"))} == {
        WorkState.COMPLETED
    }
    assert is_consistent(path)


async def test_a_cue_works_on_what_is_left_after_much_damage(sound: Sound, path: Path) -> None:
    numbers = [sound.roots["work_units"], sound.roots["head"], sound.roots["workers"], sound.page_of("new10")]
    made = saved(path, noise(sound.whole, *numbers))
    assert made.lost["work_units"] > 0
    states = await finish(path)
    assert len(states) == made.tables["work_units"] + 1
    assert is_consistent(path)


# --- What must not happen -------------------------------------------------------------------------


def test_deleted_work_does_not_come_back(sound: Sound, path: Path) -> None:
    made = saved(path, noise(sound.whole, sound.roots["work_units"]))
    assert rows_of(path, "work_units").keys() == sound.pages["work_units"].keys()
    assert "work_units" not in made.lost


def test_what_may_be_deleted_is_left_out_and_that_is_said(sound: Sound, path: Path) -> None:
    trunk = int.from_bytes(sound.whole[32:36])
    assert trunk
    made = saved(path, noise(sound.whole, trunk, sound.roots["work_units"]))
    assert made.tables["work_units"] == 0
    assert made.lost["work_units"] == len(sound.pages["work_units"])
    assert "left out: whether their rows were deleted or lost is unknown" in "\n".join(made.problems)


async def test_no_number_is_given_out_twice_when_the_counters_are_lost(sound: Sound, path: Path) -> None:
    path.write_bytes(sound.whole)
    with Reader(path) as reader:
        told = [event.seq for event in reader.events()][-1]
    saved(path, noise(sound.whole, sound.roots["head"]))
    await finish(path)
    with Reader(path) as reader:
        events = list(reader.events(since=told))
    assert events[0].type == "gap"
    assert events[0].missed == LEAP
    assert [event.seq for event in events] == list(range(told + LEAP, events[-1].seq + 1))
    tokens = [row["token"] for row in rows_of(path, "head").values()]
    assert tokens[0] > LEAP


def test_events_that_are_lost_between_others_leave_a_gap(sound: Sound, path: Path) -> None:
    pages = sorted({min(found) for found in sound.pages["events"].values()})
    saved(path, noise(sound.whole, pages[1]))
    with Reader(path) as reader:
        events = list(reader.events())
    [gap] = [event for event in events if event.type == "gap"]
    assert [event.seq for event in events if event.seq > gap.seq] == list(
        range(gap.seq + 1, events[-1].seq + 1)
    )
    before = [event.seq for event in events if event.seq < gap.seq]
    assert before == list(range(1, gap.seq - gap.missed + 1))


async def test_work_that_depends_on_lost_work_fails_until_somebody_retries_it(
    sound: Sound, path: Path
) -> None:
    made = saved(path, noise(sound.whole, sound.page_of("new00")))
    assert "'after'" in "\n".join(made.problems)
    with Reader(path) as reader:
        found = {name: reader.get(name) for name in ("new00", "after", "after-that")}
    assert found["new00"] is None
    assert found["after"] is not None
    assert (found["after"].state, found["after"].error) == (WorkState.FAILED, "prerequisite_lost")
    assert found["after-that"] is not None
    assert found["after-that"].error == "prerequisite_failed"
    cue = declared(path)
    await cue.submit("note", id="new00")
    await cue.retry("after", cascade=True)
    await cue.close()
    states = await finish(path)
    assert {states[name] for name in ("new00", "after", "after-that")} == {WorkState.COMPLETED}


def test_a_row_that_makes_no_sense_is_left_out_and_counted(sound: Sound, path: Path) -> None:
    path.write_bytes(sound.whole)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE work_units SET params = '{' WHERE id = 'new03'")
    connection.execute("UPDATE services SET rates = 'x'")
    connection.close()
    made = recover(path)
    assert made.lost == {"services": 1, "work_units": 1}
    assert any("'new03'" in problem for problem in made.problems)
    assert is_consistent(path)


# --- The log --------------------------------------------------------------------------------------


def test_what_is_in_the_log_is_kept(sound: Sound, path: Path) -> None:
    made = saved(path, noise(sound.file, sound.roots["attempts_of_work"]), sound.log)
    assert rows_of(path, "work_units")["hanging"]["state"] == "running"
    assert made.lost == {}


def test_a_page_that_is_whole_in_the_log_is_not_lost(sound: Sound, path: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(sound.log)
    with log.open("rb") as file:
        numbers = sorted(Log(file).places)
    assert sound.roots["head"] in numbers
    path.write_bytes(noise(sound.file, *numbers))
    Path(f"{path}-wal").write_bytes(sound.log)
    with pytest.raises(StoreError, match="is not damaged"):
        recover(path)


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8])
def test_a_damaged_log_is_kept_up_to_the_damage(sound: Sound, path: Path, share: float) -> None:
    log = bytearray(sound.log)
    log[int(len(log) * share) + 50 : int(len(log) * share) + 60] = b"!" * 10
    made = saved(path, sound.file, bytes(log))
    assert any("log is damaged" in problem for problem in made.problems)
    assert is_consistent(path)
    [head] = rows_of(path, "head").values()
    assert head["last_event_seq"] > LEAP


# --- Refusals and interruptions -------------------------------------------------------------------


def other_application(path: Path) -> None:
    change(path, "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")


def newer(path: Path) -> None:
    connection = apsw.Connection(str(path))
    schema.migrate(connection)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()


def text(path: Path) -> None:
    path.write_text("Dear diary,\n" * 1000)


def empty(path: Path) -> None:
    path.touch()


def zeros(path: Path) -> None:
    path.write_bytes(bytes(100 * SIZE))


def directory(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def nothing(path: Path) -> None:
    assert not path.exists()


REFUSED = {
    other_application: (StorageCorrupt, "another application"),
    newer: (SchemaTooNew, "newer runcue"),
    text: (StorageCorrupt, "no SQLite file"),
    empty: (StorageCorrupt, "no SQLite file"),
    zeros: (StorageCorrupt, "no SQLite file"),
    directory: (StoreError, "no file"),
    fifo: (StoreError, "no file"),
    nothing: (StoreError, "does not exist"),
}


@pytest.mark.parametrize(("make", "refusal"), REFUSED.items(), ids=[make.__name__ for make in REFUSED])
def test_what_is_no_queue_is_refused_in_one_line_and_left_alone(
    make: Callable[[Path], None], refusal: tuple[type[StoreError], str], path: Path
) -> None:
    make(path)
    before = [(one.name, one.lstat().st_size) for one in path.parent.iterdir()]
    for force in (False, True):
        with pytest.raises(StoreError, match=refusal[1]) as caught:
            recover(path, force=force)
        assert type(caught.value) is refusal[0]
        assert "\n" not in str(caught.value)
    assert [(one.name, one.lstat().st_size) for one in path.parent.iterdir()] == before


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match="no name of a file"):
        recover(name)


def test_a_queue_that_is_not_damaged_is_left_alone_even_if_its_worker_was_killed(
    sound: Sound, path: Path
) -> None:
    made = tried(path, sound.file, sound.log)
    assert isinstance(made, StoreError)
    assert "is not damaged" in str(made)


async def test_a_queue_that_somebody_has_open_is_left_alone(sound: Sound, path: Path) -> None:
    path.write_bytes(sound.whole)
    cue = declared(path)
    await cue.submit("note")
    before = path.read_bytes()
    with pytest.raises(StorageBusy, match=f"is open in process {os.getpid()}"):
        recover(path, force=True)
    assert path.read_bytes() == before
    await cue.close()


def test_a_file_that_changes_meanwhile_is_not_exchanged(
    sound: Sound, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints = recovery._Image.complaints

    def meddle(image: Any) -> list[str]:
        path.write_bytes(sound.whole + bytes(SIZE))
        return complaints(image)

    path.write_bytes(sound.whole)
    monkeypatch.setattr(recovery._Image, "complaints", meddle)
    with pytest.raises(StorageBusy, match="was changed meanwhile"):
        recover(path, force=True)
    assert path.read_bytes() == sound.whole + bytes(SIZE)


@pytest.mark.parametrize("step", range(6))
def test_wherever_it_is_interrupted_it_can_be_done_again(
    sound: Sound, path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    file = noise(sound.file, sound.roots["attempts_of_work"])
    path.write_bytes(file)
    Path(f"{path}-wal").write_bytes(sound.log)
    steps = iter(range(100))
    sync = recovery._sync

    def interrupt(name: str) -> None:
        if next(steps) == step:
            raise OSError(5, "Input/output error")
        sync(name)

    with monkeypatch.context() as patched:
        patched.setattr(recovery, "_sync", interrupt)
        with pytest.raises(StoreError, match="Input/output error"):
            recover(path)
    assert file in {one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
    recover(path, force=True)
    assert rows_of(path, "work_units").keys() == sound.pages["work_units"].keys()
    assert is_consistent(path)
    originals = [one for one in path.parent.iterdir() if one.is_file() and one.read_bytes() == file]
    assert any(
        Path(f"{one}-wal").read_bytes() == sound.log for one in originals if Path(f"{one}-wal").exists()
    )


def test_what_a_killed_rescue_left_is_swept_up(sound: Sound, path: Path) -> None:
    path.with_name("queue.db.rescue-1-ab").write_bytes(b"half")
    saved(path, noise(sound.whole, sound.roots["head"]))


# --- Older files ----------------------------------------------------------------------------------


def test_a_damaged_file_of_the_first_version_becomes_one_of_this_version(sound: Sound, path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(schema.MIGRATIONS[0]).fetchall()
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1")
    columns = [row[1] for row in connection.execute("PRAGMA table_info(work_units)")]
    donor = path.with_name("donor.db")
    donor.write_bytes(sound.whole)
    works = rows_of(donor, "work_units").values()
    connection.executemany(
        f"INSERT INTO work_units VALUES ({', '.join('?' * len(columns))})",
        [
            [row[{"shelf": "index_key", "place": "sort_key"}.get(str(name), str(name))] for name in columns]
            for row in works
        ],
    )
    [(root,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'work_units'").fetchall()
    connection.close()
    assert isinstance(root, int)
    made = saved(path, noise(path.read_bytes(), root))
    assert made.tables["work_units"] == len(works)
    with Reader(path) as reader:
        assert reader.count()[WorkState.RUNNING] == 1


@pytest.fixture
def older(sound: Sound, path: Path) -> bytes:
    """The sound file as the version before step 6 would have written it."""
    path.write_bytes(sound.whole)
    take_back(path, 5)
    return path.read_bytes()


def test_nothing_is_lost_of_a_sound_file_with_the_names_before_step_6(
    sound: Sound, older: bytes, path: Path
) -> None:
    made = recover(path, force=True)
    assert (made.lost, made.problems) == ({}, ())
    donor = path.with_name("donor.db")
    donor.write_bytes(sound.whole)
    for table in COPIED:
        before, after = rows_of(donor, table), rows_of(path, table)
        for rows in (before, after):
            for row in rows.values():
                row.pop("revision", None)
        assert after == before, table
    assert is_consistent(path)


@pytest.mark.parametrize("table", ["work_units", "shelves", "set_aside", "head", "work_units_on_shelf", IDS])
def test_a_damaged_file_with_the_names_before_step_6_is_recovered(
    sound: Sound, older: bytes, path: Path, table: str
) -> None:
    connection = apsw.Connection(str(path))
    [(root,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    connection.close()
    assert isinstance(root, int)
    made = saved(path, noise(older, root))
    assert made.tables["work_units"] == len(sound.pages["work_units"])
    assert "work_units" not in made.lost
    assert is_consistent(path)
    states = asyncio.run(finish(path))
    assert WorkState.PENDING not in {state for work, state in states.items() if work != "late"}
