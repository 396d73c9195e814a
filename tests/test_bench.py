"""Every measure runs and reports; whether its figures are good is for `make bench` to say, on a quiet machine."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import __main__ as bench_main
from bench import cost, figures, fleet, shell_queues, writing
from bench.fleet import crowd, noops
from bench.fleet.queues import PEERS
from bench.measure import Line
from bench.peers import __main__ as peers_main
from bench.peers import charts, homes, report, running, throughput, timed
from bench.peers import lines as peers_lines
from bench.peers.board import Board
from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.places import Places

ROOT = Path(__file__).resolve().parent.parent
IN_MEMORY = (
    *("dispatch", "depth", "memory", "blocked", "priority", "latency", "limiter", "batches", "imports"),
    *("cost", "typed"),
)
IN_A_FILE = ("durable", "rows", "history", "finding", "schedules", "processes", "dashboard")
NAMES = (*IN_MEMORY, *IN_A_FILE, "outside", "fleet")


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
    assert "Traceback" not in done.stderr, "a process of this measure has failed"
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
            row("runcue, file", speed=10_000.0, slowest=9_000.0, client=6e-5, server=0.0, count=20_000),
            row("runcue, PostgreSQL", speed=5_000.0, client=8e-5, server=4e-5, count=20_000),
            row("saq, Redis", speed=8_000.0, client=1e-3, server=1e-4, count=2_000),
            row("rq, Redis", gone),
        ],
        "latency": [
            row("runcue, file", p50=0.0009, slowest=0.0011, p99=0.002, count=300),
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
    results.write_text(json.dumps({"figures": {}, "peers": stored()}), encoding="utf-8")
    report.main(results, page, tmp_path)
    once = page.read_text(encoding="utf-8")
    report.main(results, page, tmp_path)
    assert page.read_text(encoding="utf-8") == once
    assert once.startswith("# Peers\n\n<!-- peers: throughput -->\n")
    assert once.endswith("\nThe end.\n")
    assert "old" not in once
    assert "| **runcue** | file | 10,000 | 9,000 | 1 × | 0.5 × | 60 + 0 | everything |" in once
    assert "| saq | Redis | 8,000 |  | 1.2 × | 0.62 × | 1,000 + 100 | nothing |" in once
    assert "| **runcue** | file | 0.9 | 1.1 | 2 |" in once
    assert "| saq | Redis | 4 | 0 of 4 | none within 60 s |" in once


def test_a_contender_that_no_run_has_met_is_a_row_that_says_so() -> None:
    rows = report.TABLES["throughput"](stored()).splitlines()
    late = [row for row in rows if "not measured yet" in row]
    assert any(row.startswith("| flexiq | SQLite |") for row in late)
    assert any(row.startswith("| graphile-worker | PostgreSQL |") for row in late)
    assert not any(
        row.startswith(("| **runcue** | file |", "| saq | Redis |", "| rq | Redis |")) for row in late
    )


def test_what_could_not_be_had_is_told_with_what_was_tried_and_what_its_project_publishes() -> None:
    table = report.TABLES["unavailable"](stored())
    assert "| River (Go, PostgreSQL) | PyPI's `riverqueue` inserts only" in table
    assert "published by its own project, on its own machine" in table
    assert not any("River" in report.TABLES[name](stored()) for name in ("throughput", "latency", "recovery"))


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


def test_the_goals_are_measured_against_the_best_of_the_others() -> None:
    found = stored()
    found["throughput"].append(
        {"key": "pgqueuer, PostgreSQL", "name": "pgqueuer", "store": "PostgreSQL", "error": "", "speed": 1_000.0,
         "client": 6e-5, "server": 3e-5, "count": 2_000}
    )  # fmt: skip
    told = {line.name: line for line in peers_lines.goals(found)}
    assert told["runcue, file: units for each second of a core, to the best"].value == pytest.approx(1.5)
    assert told["runcue, PostgreSQL: units for each second of a core, to the best"].passed is False
    assert told["runcue, file: submit to start, to the best"].value == pytest.approx(0.3)
    assert told["runcue, file: submit to start, to the best"].goal == "≤ 1.2 ×"
    assert "saq" not in str([line.note for line in told.values() if "core" in line.name]), "saq keeps nothing"


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


def test_a_peer_whose_tables_cannot_be_made_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(where: str) -> None:
        raise ValueError("no such settings")

    module = SimpleNamespace(NEEDS=(), HOME="", prepare=broken)
    monkeypatch.setattr(timed, "queue", lambda name: module)
    with Places() as places:
        rows = throughput.measure(places, [Contender("huey", "file", "SQLite", "", "", "")], quick=True)
    assert rows[0]["error"] == "ValueError: no such settings"


def test_a_home_that_may_stay_empty_does_not_keep_others_from_being_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []

    def run(call: list[str], **settings: Any) -> SimpleNamespace:
        calls.append(call)
        is_honker = any("peers-honker" in word for word in call)
        assert settings["check"] is not is_honker
        return SimpleNamespace(returncode=int(is_honker))

    monkeypatch.setattr(homes, "HERE", tmp_path)
    monkeypatch.setattr(homes, "redis", lambda: ("redis-server", {}))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shell_queues, "install", lambda: None)
    homes.install()
    assert sum("--require-hashes" in call for call in calls) == 3
    said = capsys.readouterr().err
    assert "honker cannot be installed here" in said
    assert "There is no npm" in said


def test_every_contender_has_a_module_that_says_what_it_needs() -> None:
    for contender in CONTENDERS:
        found = importlib.import_module(f"bench.peers.queues.{contender.name}")
        assert isinstance(found.NEEDS, tuple)
        assert found.HOME in {"", *homes.HOMES}
        assert str(found.__doc__).startswith(f"{contender.label}: ")


# --- Figures on pages -----------------------------------------------------------------------------


def some_figures() -> dict[str, Any]:
    """Figures of several runs, as `bench --write` keeps them."""
    speeds = [Line("many", value, "×", at_least=1.0) for value in (1.1, 0.93, 1.02)]
    waits = [Line("wait", value, "ms", below=2) for value in (0.61, 0.74)]
    plain = [Line("units", value, "/s") for value in (33_123.4, 45_678.9)]
    return {
        "dispatch: many": figures.figure(speeds, "2026-11-16"),
        "durable: wait": figures.figure(waits, "2026-11-17"),
        "durable: units": figures.figure(plain, "2026-11-18"),
        "cost: late": {
            "date": "",
            "unit": "",
            "runs": [],
            "worst": None,
            "best": None,
            "goal": "≤ 1 ×",
            "missed": 0,
        },
    }


def test_a_figure_keeps_every_run_the_worst_and_the_best() -> None:
    found = some_figures()
    assert found["dispatch: many"] == {
        "date": "2026-11-16", "unit": "×", "runs": [1.1, 0.93, 1.02], "worst": 0.93, "best": 1.1, "goal": "≥ 1 ×",
        "missed": 1,
    }  # fmt: skip
    assert (found["durable: wait"]["worst"], found["durable: wait"]["best"]) == (0.74, 0.61)
    assert (found["durable: units"]["worst"], found["durable: units"]["best"]) == (33_123.4, 45_678.9)


def test_marked_places_are_filled_and_all_else_stays() -> None:
    page = (
        "| <!-- bench: dispatch: many -->9<!-- / --> × | <!-- goal: dispatch: many --><!-- / --> |\n"
        "<!-- bench: durable: units; rounded --><!-- / -->, <!-- bench: durable: wait --><!-- / --> ms, "
        "<!-- goal: durable: wait -->x<!-- / -->, <!-- days: durable --><!-- / -->, "
        "<!-- bench: cost: late --><!-- / -->, <!-- goal: cost: late --><!-- / -->\n"
    )
    once = figures.filled(page, some_figures())
    assert figures.filled(once, some_figures()) == once
    assert re.sub("<!-- .+? -->", "", once) == (
        "| 0.93–1.10 × | ≥ 1 ×, **missed** in 1 of 3 runs |\n"
        "33,000–46,000, 0.61–0.74 ms, < 2 ms, 2026-11-17 to 2026-11-18, not measured yet, ≤ 1 ×\n"
    )


def test_a_mark_without_a_figure_is_an_error_that_names_it() -> None:
    with pytest.raises(KeyError, match=r"no figure 'dispatch: gone' in figures\.json"):
        figures.filled("<!-- bench: dispatch: gone --><!-- / -->", some_figures())


def test_the_file_keeps_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    whole = {"figures": some_figures(), "peers": stored()}
    figures.keep(whole, path)
    assert figures.stored(path) == whole
    running.kept({"latency": [], "seconds": {"latency": 7}}, path)
    kept = figures.stored(path)
    assert kept["figures"] == whole["figures"]
    assert kept["peers"]["latency"] == []
    assert kept["peers"]["throughput"] == stored()["throughput"]
    assert kept["peers"]["seconds"] == {"throughput": 600, "latency": 7}


def test_pages_say_what_the_file_of_figures_says() -> None:
    assert figures.stale(figures.stored()) == [], "run python -m bench.figures"


def test_every_figure_of_the_file_agrees_with_itself() -> None:
    for key, one in figures.stored()["figures"].items():
        assert key.partition(": ")[0] in {*bench_main.NAMES, writing.BUSY}
        if one["runs"]:
            assert {one["worst"], one["best"]} == {min(one["runs"]), max(one["runs"])}
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"])
        assert 0 <= one.get("missed", 0) <= len(one["runs"])


def test_no_page_shows_a_range_of_a_measure_that_nothing_would_measure_again() -> None:
    assert figures.wanted().keys() <= {*bench_main.NAMES, writing.BUSY}


def a_round() -> crowd.Round:
    return crowd.Round(speed=90, ideal=100, client=1e-3, server=1e-3, logged=2000, submitted=100, p50=1e-3, p99=2e-3,
                       worst=3e-3, others=0.0)  # fmt: skip


@pytest.mark.parametrize("measure", ["fleet", writing.BUSY])
def test_a_fleet_gives_every_line_that_pages_show(measure: str) -> None:
    told: dict[str, Any] = {**fleet.USUAL, **writing.ORDERS[measure]}
    is_busy = bool(told.get("busy"))
    rounds = {
        (name, store, processes): a_round()
        for store in told["stores"]
        for name in ("runcue", *(PEERS if store == "postgres" else ()))
        for processes in told["processes"]
    }
    lines = crowd.lines(crowd.Found(rounds, {}), is_busy)
    if "noop" in told["parts"]:
        shapes = ((kind, several) for kind, (several, _) in noops.KINDS.items())
        found = {
            (kind, store, shape): noops.Round(1_000, 1e-5, 0.0)
            for kind, several in shapes
            for store in told["stores"]
            for shape in (noops.SINGLE, noops.Shape(1, several), noops.Shape(several, 1))
        }
        lines += noops.lines(found)
    names = {line.name for line in lines}
    assert len(names) == len(lines), "a line is kept by its name"
    others = ("idle", "one place", "a used-up rate")
    assert {line for line in figures.wanted()[measure] if not any(word in line for word in others)} <= names


def test_writing_measures_in_passes_and_keeps_what_failed_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "figures.json", tmp_path / "page.md"
    old = {"date": "2026-01-01", "unit": "s", "runs": [5.0], "worst": 5.0, "best": 5.0}
    figures.keep({"figures": {"b: time": old}, "peers": {}}, path)
    page.write_text("<!-- bench: a: speed --><!-- / --> <!-- bench: b: time --><!-- / -->", encoding="utf-8")
    order: list[str] = []

    def lines_of(name: str) -> list[Line]:
        order.append(name)
        if name == "b":
            raise RuntimeError("nothing to measure")
        return [Line("speed", float(len(order)), "/s")]

    monkeypatch.setattr(figures, "FILE", path)
    monkeypatch.setattr(figures, "PAGES", (page,))
    monkeypatch.setattr(figures, "stored", lambda: json.loads(path.read_text(encoding="utf-8")))
    monkeypatch.setattr(figures, "keep", lambda found: path.write_text(json.dumps(found), encoding="utf-8"))
    monkeypatch.setattr(
        figures,
        "pages",
        lambda found: {page: figures.filled(page.read_text(encoding="utf-8"), found["figures"])},
    )
    monkeypatch.setattr(writing, "lines_of", lines_of)
    assert writing.write(["a", "b"], runs=2) == 1
    assert order == ["a", "b", "a", "b"]
    kept = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert kept["a: speed"]["runs"] == [1.0, 3.0]
    assert kept["b: time"] == old
    assert re.sub("<!-- .+? -->", "", page.read_text(encoding="utf-8")) == "1.00–3.00 5.00"
    said = capsys.readouterr().err
    assert "b failed: nothing to measure" in said
    assert "no run gave 'b: time'" in said


def test_writing_is_for_whole_sizes_alone() -> None:
    done = bench("--write", "--quick", "memory")
    assert done.returncode == 2
    assert "--write measures whole sizes" in done.stderr


def test_details_are_for_pages_and_json_alone() -> None:
    told = bench_main.table(
        "m", "Timed: x.", [Line("a", 1, "s"), Line("b", 2, "s", is_detail=True)], quick=False
    )
    assert "a" in told
    assert "b  " not in told


# --- Costs ----------------------------------------------------------------------------------------


def test_instructions_are_the_difference_between_many_units_and_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(call: list[str], **_: Any) -> SimpleNamespace:
        count = int(call[-1])
        return SimpleNamespace(returncode=0, stderr=f"==1== Collected : {5_000_000 + 300 * count}\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert cost.instructions("memory, submit_many", "valgrind") == 300


def test_without_valgrind_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(cost, "answers", lambda *asked: [1e-5])
    lines = cost.measure(quick=False)
    assert [line.note for line in lines if line.name == "instructions were not counted"] == [
        "there is no valgrind here"
    ]


def test_programs_that_are_not_here_are_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_queues, "found", lambda name: "/usr/bin/xargs" if name == "xargs" else None)
    assert shell_queues.missing() == ["tsp", "parallel", "pueue"]
    assert list(shell_queues.contenders(1)) == [
        shell_queues.FLOOR, "four loops of subprocess.run", "xargs -P4"
    ]  # fmt: skip
    assert shell_queues.GOALS == {"xargs -P4": 0.6, "task-spooler -S 4": 1.0, "pueue, parallel 4": 1.0}


# --- No-ops of a fleet ----------------------------------------------------------------------------


def test_several_processes_are_compared_with_one_that_has_the_same_load() -> None:
    def round_(speed: float) -> noops.Round:
        return noops.Round(speed, 1e-5, 0.0)

    found: noops.Rounds = {
        ("in one namespace", "file", noops.SINGLE): round_(1_000),
        ("in one namespace", "file", noops.Shape(1, 8)): round_(500),
        ("in one namespace", "file", noops.Shape(8, 1)): round_(800),
    }
    told = {line.name: line for line in noops.lines(found)}
    single = told["file, 8 in one namespace, to 1 with 1 loop"]
    same = told["file, 8 in one namespace, to 1 with 8 loops"]
    assert (single.value, single.goal, single.passed) == (0.8, "≥ 1 ×", False)
    assert (same.value, same.goal, same.passed) == (1.6, "≥ 1 ×", True)
    assert noops.table(found)[-1][4:7] == ["800", "0.80 ×", "1.60 ×"]
