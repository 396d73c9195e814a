"""Real processes on one PostgreSQL queue, killed at random and at crash points; and the server killed under them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.pg.proxy import Proxy
from tests.pg.server import Server
from tests.torture.checker import Grant, Storage
from tests.torture.history import now
from tests.torture.swarm import Herd, Plan, Result, Round, play, sweep

BOUND = 240.0


class Database:
    """A queue in a database."""

    def __init__(self, url: str) -> None:
        self.target = url

    def inspected(self) -> tuple[list[Grant], Storage]:
        """What the tables say of themselves."""
        with psycopg.connect(self.target) as connection:
            rows = connection.execute(
                "SELECT service, started_at, amount, coalesce(work_id, '') FROM runcue.service_log ORDER BY id"
            ).fetchall()
            left: list[tuple[int]] = connection.execute("SELECT count(*) FROM runcue.workers").fetchall()
        grants = [Grant(str(name), float(at), int(amount), str(work)) for name, at, amount, work in rows]
        integrity = "ok" if left[0][0] <= 1 else f"{left[0][0]} workers are left"
        return grants, Storage(integrity=(integrity,))


@pytest.fixture(scope="module")
def herd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Herd]:
    with pytest.MonkeyPatch.context() as patch:  # what lies on this host lies in a folder of the tests
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("local")))
        with Herd() as processes:
            yield processes


@pytest.mark.parametrize("seed", [1, 2])
def test_random_kills_break_no_promise(herd: Herd, tmp_path: Path, seed: int, pg: str) -> None:
    result = play(herd, tmp_path, Plan(seed, kills=12, seconds=1.5, works=20), Database(pg))
    assert result.violations == [], f"seed {seed}, kept in {result.folder}"
    assert result.kills >= 12
    assert result.works >= 20


CRASHES = [
    plan for plan in sweep(1, 1) if plan.crash_times == 1 and not plan.crash_at.startswith("turn.unsynced")
]
"""The server syncs within its commit: there is nothing between the two."""


@pytest.mark.parametrize("plan", CRASHES, ids=lambda plan: f"{plan.crash_role} {plan.crash_at}")
def test_a_death_at_a_crash_point_breaks_no_promise(herd: Herd, tmp_path: Path, plan: Plan, pg: str) -> None:
    result = play(herd, tmp_path, plan, Database(pg))
    assert result.violations == [], f"kept in {result.folder}"
    assert result.kills, "the crash point was never passed"


# --- A server in trouble --------------------------------------------------------------------------


class Troubled(Round):
    """A round in which nobody is killed but something happens to the server, over and over while work goes on."""

    expected = ("StoreError(", "StorageBusy(")
    away = "cannot be reached"

    def __init__(self, herd: Herd, folder: Path, url: str, trouble: Callable[[], None]) -> None:
        plan = Plan(1, workers=2, submitters=2, kills=0, calls=60)
        super().__init__(herd, folder, plan, Database(url))
        self._trouble = trouble

    def _until_submitted(self) -> None:
        self._until_all_are_there()
        thread = threading.Thread(target=self._trouble)
        thread.start()
        super()._until_submitted()
        thread.join(BOUND)
        assert not thread.is_alive()

    def _replace(self) -> None:
        """Nobody is sent to a server that is away: who opens a queue then is told so, and ends."""
        if not self.due:
            return
        try:
            psycopg.connect(self.site.target).close()
        except psycopg.OperationalError:
            return
        super()._replace()

    def _until_all_are_there(self) -> None:
        bound = now() + BOUND
        with psycopg.connect(self.site.target, autocommit=True) as connection:
            while now() < bound:
                self._listen(now() + 0.05)
                if connection.execute("SELECT to_regclass('runcue.workers')").fetchall() == [(None,)]:
                    continue
                if connection.execute("SELECT count(*) FROM runcue.workers").fetchall() == [(4,)]:
                    return
        raise AssertionError("not all came")


def is_kept(result: Result, least: int) -> None:
    """No promise was broken, and there was something to break. How soon work runs again is none in such trouble."""
    broken = [one for one in result.violations if one.invariant != "I10"]
    assert broken == [], f"kept in {result.folder}"
    assert result.works >= least


def test_sessions_that_are_ended_break_no_promise(herd: Herd, tmp_path: Path, pg: str) -> None:
    pause, ended = threading.Event(), []

    def trouble() -> None:
        with psycopg.connect(pg, autocommit=True) as connection:
            for _ in range(10):
                pause.wait(0.2)
                ended.extend(
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE pid != pg_backend_pid() AND datname = current_database()"
                    ).fetchall()
                )

    is_kept(Troubled(herd, tmp_path, pg, trouble).run(), 50)
    assert len(ended) > 10


def test_a_server_that_is_killed_and_comes_back_breaks_no_promise(
    herd: Herd, tmp_path: Path, pg_own: Server
) -> None:
    pause = threading.Event()
    crashes = []

    def trouble() -> None:
        for _ in range(3):
            pause.wait(0.3)
            pg_own.crash()
            pause.wait(0.2)
            pg_own.start()
            crashes.append(1)

    is_kept(Troubled(herd, tmp_path, pg_own.database(), trouble).run(), 50)
    assert len(crashes) == 3


def test_answers_that_are_lost_break_no_promise(herd: Herd, tmp_path: Path, pg: str, pg_proxy: Proxy) -> None:
    pause = threading.Event()

    def trouble() -> None:
        for number in range(12):
            pause.wait(0.1)
            before = pg_proxy.done.total()
            if number % 2:
                pg_proxy.cut_after_commit()
            else:
                pg_proxy.cut_before_commit()
            for _ in range(100):  # one that decides for all commits less often than many did
                if pg_proxy.done.total() > before:
                    break
                pause.wait(0.02)
        pg_proxy.pass_all()

    round_ = Troubled(herd, tmp_path, pg_proxy.dsn(pg), trouble)
    is_kept(round_.run(), 50)
    assert pg_proxy.done["cut after"] >= 3
    assert pg_proxy.done["cut before"] >= 3
