"""Every measure runs and reports; whether its figures are good is for `make bench` to say, on a quiet machine."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.peers import __main__ as peers_main
from bench.peers import charts, homes, report, running, throughput
from bench.peers import lines as peers_lines
from bench.peers.board import Board
from bench.peers.contenders import CONTENDERS
from bench.peers.places import Places

ROOT = Path(__file__).resolve().parent.parent
IN_MEMORY = ("dispatch", "depth", "memory", "blocked", "priority", "latency", "limiter", "batches", "imports")
IN_A_FILE = ("durable", "rows", "history", "processes", "dashboard")
NAMES = (*IN_MEMORY, *IN_A_FILE, "fleet")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_measure_gives_figures_and_says_what_it_timed(name: str) -> None:
    done = bench(name, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["measures"]
    assert found["measure"] == name
    assert found["what"].startswith(("Timed: ", "Measured: ", "Counted: "))
    assert found["figures"]
    assert all(figure["value"] >= 0 and figure["unit"] is not None for figure in found["figures"])


def test_the_table_shows_goals_but_judges_no_tiny_run() -> None:
    done = bench("memory", "--quick")
    assert "each of 1,000 queued" in done.stdout
    assert "≤ 1,024 B" in done.stdout
    assert "pass" not in done.stdout


def test_an_unknown_measure_is_refused_with_those_there_are() -> None:
    done = bench("memroy")
    assert done.returncode == 2
    assert "unknown measure 'memroy'; there are dispatch, depth, memory" in done.stderr


# --- The comparison with peers --------------------------------------------------------------------


def stored() -> dict[str, Any]:
    """A small result, as a run would keep it: runcue, a peer that was faster, and one that is not here."""

    def row(key: str, error: str = "", **figures: float) -> dict[str, Any]:
        name, _, store = key.partition(", ")
        return {"key": key, "name": name, "store": store, "error": error, **figures}

    gone = "not here: rq; python -m bench.peers --install"
    return {
        "date": "2026-11-16",
        "seconds": {"throughput": 600},
        "machine": {"system": "Linux x86_64", "cores": 2, "memory": 24, "python": "3.11.7", "load": 0.1},
        "versions": {"runcue": "0.1", "saq": "0.26"},
        "throughput": [
            row("runcue, file", speed=10_000.0, client=6e-5, server=0.0, count=20_000),
            row("runcue, PostgreSQL", speed=5_000.0, client=8e-5, server=4e-5, count=20_000),
            row("saq, Redis", speed=8_000.0, client=1e-3, server=1e-4, count=2_000),
            row("rq, Redis", gone),
        ],
        "latency": [
            row("runcue, file", p50=0.0009, p99=0.002, count=300),
            row("saq, Redis", p50=0.003, p99=0.01, count=300),
            row("rq, Redis", gone),
        ],
        "limits": [
            {"name": "runcue", "how": "rate=…", "limit": 100, "error": "", "exceeded": 0, "worst": 100,
             "used": 99.9, "processor": 4e-5, "count": 400},
            {"name": "aiolimiter", "how": "async with", "limit": 100, "error": "", "exceeded": 192, "worst": 199,
             "used": 119.7, "processor": 3e-5, "count": 400},
        ],
        "recovery": [
            row("runcue, file", running=4, again=4, seconds=0.7, works=4, bound=60.0),
            row("saq, Redis", running=4, again=0, seconds=0.0, works=4, bound=60.0),
            row("rq, Redis", gone),
        ],
    }  # fmt: skip


def test_the_page_gets_every_table_and_keeps_its_words(tmp_path: Path) -> None:
    page, results = tmp_path / "peers.md", tmp_path / "results.json"
    marks = "".join(f"<!-- peers: {name} -->\nold\n<!-- end -->\n" for name in report.TABLES)
    page.write_text(f"# Peers\n\n{marks}\nThe end.\n", encoding="utf-8")
    results.write_text(json.dumps(stored()), encoding="utf-8")
    report.main(results, page, tmp_path)
    once = page.read_text(encoding="utf-8")
    report.main(results, page, tmp_path)
    assert page.read_text(encoding="utf-8") == once
    assert once.startswith("# Peers\n\n<!-- peers: throughput -->\n")
    assert once.endswith("\nThe end.\n")
    assert "old" not in once
    assert "| **runcue** | file | 10,000 | 1 × | 0.5 × | 60 + 0 | everything |" in once
    assert "| saq | Redis | 8,000 | 1.2 × | 0.62 × | 1,000 + 100 | nothing |" in once
    assert "| saq | Redis | 4 | 0 of 4 | none within 60 s |" in once


def test_who_is_not_here_is_a_row_with_the_reason() -> None:
    gone = "not here: rq; python -m bench.peers --install"
    for name in ("throughput", "latency", "recovery"):
        assert sum(gone in line for line in report.TABLES[name](stored()).splitlines()) == 1
    found = [line for line in peers_lines.all_lines(stored()) if line.name == "rq, Redis was not measured"]
    assert [line.note for line in found] == [gone] * 3


def test_the_page_says_where_runcue_is_behind() -> None:
    assert report.behind(stored()) == (
        "- Throughput, runcue, file: ahead of every peer measured.\n"
        "- Throughput, runcue, PostgreSQL: behind saq, Redis (1.60 ×).\n"
        "- Latency, p50, runcue, file: ahead of every peer measured.\n"
        "- Processor for each start at 100/s: less than runcue: aiolimiter.\n"
    )


def test_pictures_are_drawn_of_what_was_measured() -> None:
    found = report.pictures(stored())
    assert list(found) == [f"peers-{name}.svg" for name in ("throughput", "latency", "limits", "recovery")]
    for picture in found.values():
        drawn = ElementTree.fromstring(picture)
        assert drawn.get("viewBox", "").startswith("0 0 700 ")
        assert "prefers-color-scheme: dark" in picture
    widths = [float(bar) for bar in re.findall(r'class="(?:ours|other)" x="200" y="\d+" width="([\d.]+)"',
                                               found["peers-throughput.svg"])]  # fmt: skip
    assert widths == sorted(widths, reverse=True)
    assert len(widths) == 3


def test_the_scale_of_a_picture_is_logarithmic_where_it_says_so() -> None:
    scale = charts.Scale([20.0, 9_000.0], is_log=True)
    assert scale.ticks() == [10, 100, 1_000, 10_000]
    assert scale.at(100) == pytest.approx(charts.ROOM / 3)
    plain = charts.Scale([199.9], is_log=False)
    assert plain.ticks() == [0, 50, 100, 150, 200]
    assert plain.at(100) == pytest.approx(charts.ROOM / 2)


def test_a_peer_that_cannot_be_installed_or_started_is_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(homes, "HERE", tmp_path)
    monkeypatch.setattr(homes, "find_spec", lambda name: None)
    monkeypatch.setattr(homes, "redis", lambda: None)
    chosen = [one for one in CONTENDERS if one.key in {"arq, Redis", "celery, Redis"}]
    with Places() as places:
        rows = throughput.measure(places, chosen, quick=True)
        monkeypatch.setattr(throughput, "absent", lambda name: "")
        without_server = throughput.measure(places, chosen[:1], quick=True)
    assert rows[0]["error"].startswith("not here: arq, redis; ")
    assert rows[1]["error"].startswith("not here: celery, kombu, redis; ")
    assert without_server[0]["error"].startswith("there is no redis-server or valkey-server; ")


def test_the_board_counts_for_all_and_gives_each_process_a_place(tmp_path: Path) -> None:
    path = str(tmp_path / "board")
    with Board(path) as watch, Board.claimed(path) as one, Board.claimed(path) as other:
        one.ran()
        other.ran(2)
        one.start(7)
        assert watch.total() == 3
        assert watch.started(7) > 0
        assert watch.started(8) == 0
        assert watch.processes() == [os.getpid()] * 2
        watch.stop()
        assert other.stopped


def test_installing_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(sys, "argv", ["bench.peers", "--install"])
    monkeypatch.setattr(homes, "install", lambda: done.append("installed"))
    monkeypatch.setattr(running, "run", lambda *_, **__: done.append("measured"))
    peers_main.main()
    assert done == ["installed"]


def test_every_contender_has_a_module_that_says_what_it_needs() -> None:
    for contender in CONTENDERS:
        found = importlib.import_module(f"bench.peers.queues.{contender.name}")
        assert isinstance(found.NEEDS, tuple)
        assert found.HOME in {"", *homes.HOMES}
        assert str(found.__doc__).startswith(f"{contender.name}: ")
