"""The dashboard on Windows: as a program of its own, asked by HTTP, killed, and started again on the same port."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

if sys.platform != "win32":
    pytest.skip("of Windows", allow_module_level=True)

from tests.patience import BOUND, until_sync
from tests.queues import make_empty

PROGRAM = [sys.executable, "-c", "from runcue.cli.main import runcue; runcue()", "dashboard"]


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    found = tmp_path / "q.db"
    await make_empty(found)
    return found


@contextmanager
def dashboard(path: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], httpx.URL]]:
    """A dashboard under way, and its link; it is killed with the block."""
    with subprocess.Popen(
        [*PROGRAM, str(path), "--port", str(port), "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, httpx.URL(process.stdout.readline().strip())
        finally:
            process.kill()


def asker(link: httpx.URL) -> httpx.Client:
    """Somebody who has the link."""
    bearer = {"Authorization": f"Bearer {link.params['token']}"}
    return httpx.Client(base_url=link.join("/"), headers=bearer, timeout=BOUND)


def test_it_answers_over_http_and_shows_what_happens_live(path: Path) -> None:
    with dashboard(path) as (_, link), asker(link) as client:
        assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"
        assert client.get("/static/app.js").status_code == 200
        assert client.get("/status").json()["counts"]["pending"] == 0
        assert client.get("/works").json()["works"] == []
        assert client.post("/works/purge", json={}).status_code in {200, 400, 422}
        until_sync(lambda: client.get("/metrics").status_code == 200)  # whose library is read first
        with client.stream("GET", "/live") as live:
            assert next(live.iter_lines()) == "event: status"
        assert httpx.get(link.join("/status"), timeout=BOUND).status_code == 401


def test_a_taken_port_is_told_and_one_whose_dashboard_was_killed_is_free(path: Path) -> None:
    with dashboard(path) as (process, link):
        assert link.port is not None
        with dashboard(path, link.port) as (second, nothing):
            assert str(nothing) == ""
            assert second.wait(BOUND) == 6
            assert second.stderr is not None
            assert f"Port {link.port} of 127.0.0.1 is taken." in second.stderr.read()
        process.kill()
        process.wait(BOUND)
        with dashboard(path, link.port) as (_, again), asker(again) as client:
            assert client.get("/status").status_code == 200


def test_clients_that_are_gone_at_once_do_not_keep_others_out(path: Path) -> None:
    with dashboard(path) as (_, link), asker(link) as client:
        assert link.port is not None
        for _ in range(20):
            with socket.create_connection((link.host, link.port)) as gone:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("hh", 1, 0))
        assert client.get("/status").status_code == 200
