"""The program: its options, its output, its exit codes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from html import escape
from pathlib import Path

import pytest

import runcue
from runcue.sim import main as program
from runcue.sim.main import invoke
from runcue.sim.scenarios import SCENARIOS
from runcue.sim.world import Outcome, Simulation
from runcue.testing import run
from tests.cli.crew import ignoring

QUICK = ["--scenario", "single_queue", "--count", "20"]


def out(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What it says on stdout; it has to end with that code."""
    found = invoke(arguments)
    said = capsys.readouterr()
    assert found == code, said.err
    return said.out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line in which it refuses."""
    assert invoke(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("runcue-sim: ")
    return said.err


def test_alone_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys)
    assert text == out(capsys, "--help")
    assert text.index("Examples:") < text.index("Options:")


def test_it_has_the_version_of_runcue(capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "--version") == f"runcue-sim {runcue.__version__}\n"


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out(capsys, "--list-scenarios").splitlines()
    assert [line.split()[0] for line in lines] == list(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_passes_its_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "--scenario", name, "--duration", "60s", "--check")
    assert "every promise was kept" in text


def test_both_families_of_flags_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "results.json"
    out(capsys, "--count", "40", "--latency", "50", "--jitter", "0.2", "--error-rate", "0.1", "--rate-limit", "20/1",
        "--concurrent", "5", "--seed", "3", "--report", str(report))  # fmt: skip
    config = json.loads(report.read_bytes())["config"]
    api = config["services"]["api"]
    assert (config["seed"], config["workload"]["count"]) == (3, 40)
    assert (api["concurrent"], api["rates"], api["behaviour"]["error_rate"]) == (5, ["20/1s"], 0.1)
    latency = api["behaviour"]["latency"]
    assert latency["distribution"] == "uniform"
    assert (latency["min"], latency["max"]) == pytest.approx((0.04, 0.06))


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    said = [
        out(capsys, "--scenario", "recovery", "--duration", "20s", "--report", str(file)) for file in files
    ]
    assert said[0] == said[1]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert str(tmp_path) not in files[0].read_text()


def test_a_report_on_stdout_is_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*QUICK, "--report", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["summary"]["submitted"] == 20
    assert "throughput" in said.err


def test_a_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.html"
    out(capsys, *QUICK, "--html", str(file))
    assert file.read_text().lstrip().lower().startswith("<!doctype html>")


def test_a_replay_says_how_it_was_and_how_to_have_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def happen() -> None:
        cue = runcue.Cue(tmp_path / "a run.db", durability="relaxed")

        @cue.task
        async def step(work: runcue.RunningWork) -> None:
            await asyncio.sleep(1)

        async with cue:
            await cue.submit(step)
            await cue.join()

    run(happen())
    source, page = str(tmp_path / "a run.db"), tmp_path / "page.html"
    text = out(
        capsys, "--replay", source, "--seed", "3", "--html", str(page), "--report", str(tmp_path / "r.json")
    )
    assert "  recorded    1 unit · 1 completed · 0 failed · 1 attempt in 1 s" in text
    assert escape(f"runcue-sim --replay '{source}' --seed 3") in page.read_text()
    assert json.loads((tmp_path / "r.json").read_text())["recorded"]["facts"]["completed"] == 1
    assert "workload.submit_rate: expected no change" in refusal(
        capsys, "--replay", source, "--set", "workload.submit_rate=5"
    )


def test_no_more_of_a_rate_is_used_than_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "--count", "20", "--rate-limit", "40/min", "--latency", "1", "--duration", "2s")
    assert "50% of 40/min" in text


def test_a_condition_that_holds_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, *QUICK, "--fail-on", "completed<10000", "--fail-on", "failed>0", code=1)
    assert "completed<10000: it is 20" in text
    assert "failed>0" not in text
    out(capsys, *QUICK, "--fail-on", "failed>0")


def test_a_broken_promise_fails_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runcue.sim.check import Checker, Violation

    broken = [Violation("rate", 1_700_000_005.0, f"too many, {number}") for number in range(9)]
    monkeypatch.setattr(Checker, "finish", lambda self, *ended: broken)
    text = out(capsys, *QUICK, "--check", "--seed", "77", code=1)
    assert "rate at 5 s: too many, 0" in text
    assert "and 4 more" in text
    assert "seed 77" in text


def test_a_line_about_one_of_two_runs_says_which(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runcue.sim.check import Checker, Violation

    runs = iter([[], [Violation("rate", 1_700_000_005.0, "too many")]])
    monkeypatch.setattr(Checker, "finish", lambda self, *ended: next(runs))
    text = out(capsys, *QUICK, "--set", "workload.count=30", "--check", "--fail-on", "completed>25", code=1)
    assert "  check       base: every promise was kept" in text
    assert "  broken      changed: rate at 5 s: too many" in text
    assert "  failed      changed: completed>25: it is 30" in text


def test_conditions_are_about_the_changed_run(capsys: pytest.CaptureFixture[str]) -> None:
    out(capsys, *QUICK, "--set", "workload.count=30", "--fail-on", "completed<25")


def test_a_page_of_two_runs_shows_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.html"
    out(capsys, *QUICK, "--set", "workload.count=30", "--check", "--html", str(file))
    text = file.read_text()
    assert "Base: <strong>Checked:</strong>" in text
    assert "Changed: <strong>Checked:</strong>" in text
    assert '<th scope="row">completed</th><td>20</td><td>30</td>' in text
    assert "--set workload.count=30" in text


def test_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "results.json"
    text = out(capsys, "--scenario", "burst", "--duration", "120s", "--set", "api.rate=120/min", "--set",
               "api.concurrent=20", "--report", str(report))  # fmt: skip
    assert "difference" in text
    found = json.loads(report.read_bytes())
    assert found["changes"] == ["api.rate=120/min", "api.concurrent=20"]
    assert found["changed"]["config"]["services"]["api"]["rates"] == ["120/60s"]
    assert {row["metric"] for row in found["differences"]} >= {
        "throughput",
        "latency p95",
        "api rate-limited",
    }


def test_a_configuration_is_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("services: {api: {rate: 10/s}}\nworkload: {count: 15, pattern: chain}\n")
    assert "15 submitted" in out(capsys, "--config", str(file))


def test_a_circle_is_counted_and_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "circle.yaml"
    file.write_text("services: {api: }\nworkload: {pattern: circular, count: 10}\n")
    assert "10 circular" in out(capsys, "--config", str(file), "--check")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--scenario", "nope"], "--scenario: expected one of steady_load"),
        (["--scenario", "burst", "--config", "x.yaml"], "--config: expected no --scenario beside it"),
        (["--config", "missing.yaml"], "No such file"),
        (["--bogus"], "No such option"),
        (["extra"], "unexpected extra argument"),
        (["--count", "many"], "--count: expected a whole number"),
        (["--count", "0"], "--count: expected a whole number from 1"),
        (["--latency", "-5"], "--latency: expected a number from 0"),
        (["--latency", "nan"], "--latency: expected a number"),
        (["--jitter", "2"], "--jitter: expected a number from 0 to 1"),
        (["--error-rate", "1.5"], "--error-rate: expected a number from 0 to 1"),
        (["--rate-limit", "20"], "--rate-limit: expected a rate"),
        (["--concurrent", "0"], "--concurrent: expected a whole number"),
        (["--seed", "-1"], "--seed: expected a whole number from 0"),
        (["--speed", "0"], "--speed: expected a number from 0.001"),
        (["--swarm", "0"], "--swarm: expected a whole number from 1"),
        (["--swarm", "3", "--report", "x"], "--swarm plays worlds of its own: it takes no --report"),
        (["--swarm", "3", "--scenario", "burst"], "it takes no --scenario"),
        (["--jobs", "2", "--scenario", "burst"], "--jobs is for --swarm"),
        (["--tui", "--check", "--scenario", "burst"], "--tui shows a run and judges nothing"),
        (["--duration", "200 parsecs"], "--duration: expected a time such as"),
        (["--fail-on", "p95"], "--fail-on: expected a metric"),
        (["--fail-on", "zig>3"], "--fail-on: expected one of p50"),
        (["--set", "api.rte=3"], "services.api.rte: expected a known key, got 'rte'; did you mean rate?"),
        (["--set", "rate"], "--set[0]: expected a path, ="),
        (["--set", "api.rate=1/s", "--tui"], "--tui shows one run: use --set without it"),
        (["--report", "missing/folder/results.json"], "--report: expected a file in a folder that is there"),
        (["--html", "missing/folder/report.html"], "--html: expected a file in a folder that is there"),
        (["--report", "."], "--report: expected a file, got '.'"),
        (["--report", "folder/"], "--report: expected a file, got 'folder/'"),
        (["--report", "one", "--html", "./one"], "--html: expected another file than that of --report"),
        (["--report", "-", "--html", "-"], "--html: expected another file than that of --report"),
        (["--config", "mine.yaml", "--html", "mine.yaml"], "--html: expected another file than that of --config"),
        (["--replay", "run.db", "--report", "run.db"], "--report: expected another file than that of --replay"),
        (["--replay", "run.db", "--latency", "5"], "--latency: expected no --replay beside it: calls go as they"),
        (["--replay", "run.db", "--error-rate", "0"], "--error-rate: expected no --replay beside it"),
        (["--tui", "--scenario", "burst"], "--tui needs a terminal"),
        (["--scenrio", "burst"], "No such option '--scenrio'. Did you mean --scenario? See: runcue-sim --help"),
        (["--scenario", "bursts"], "got 'bursts'; did you mean burst?"),
        (["--set", "aip.rate=1/s"], "got 'aip'; did you mean api?"),
        (["--set", "services.aip.rate=1/s"], "services.aip: expected one of api, got 'aip'; did you mean api?"),
        (["--set", "workload.pattern=dimond"], "got 'dimond'; did you mean diamond?"),
        (["--set", "worklod.count=3"], "got 'worklod'; did you mean workload?"),
        (["--fail-on", "faild>3"], "got 'faild'; did you mean failed?"),
        (["--fail-on", "api.rate_limted>3s"], "did you mean api.rate_limited?"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_runs(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(capsys, *arguments)


def test_a_file_that_may_not_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, int]] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((Path(path), mode)))
    target = tmp_path / "results.json"
    assert "--report: expected a file that may be written" in refusal(capsys, *QUICK, "--report", str(target))
    target.touch()
    assert "--report: expected a file that may be written" in refusal(capsys, *QUICK, "--report", str(target))
    assert asked == [(tmp_path, os.W_OK), (target, os.W_OK)]


def test_a_device_takes_any_number_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    out(capsys, *QUICK, "--report", os.devnull, "--html", os.devnull)


def test_a_page_on_stdout_is_the_page_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*QUICK, "--html", "-"]) == 0
    said = capsys.readouterr()
    assert said.out.lower().startswith("<!doctype html>")
    assert "throughput" in said.err


def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("services: {api: {behavior: {error_rate: 1.5}}}\n")
    assert "services.api.behavior.error_rate: expected a share from 0 to 1, got 1.5" in refusal(
        capsys, "--config", str(file)
    )


def test_a_huge_file_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "huge.yaml"
    with file.open("wb") as hole:
        hole.truncate(100 * 1024 * 1024)
    assert "at most 1,048,576 bytes" in refusal(capsys, "--config", str(file))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"services: \xff\xfe")
    assert "text in UTF-8" in refusal(capsys, "--config", str(file))


def test_a_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Is a directory" in refusal(capsys, "--config", str(tmp_path))


def test_a_mistake_of_ours_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: object) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(program, "_carried_out", broken)
    monkeypatch.delenv("RUNCUE_DEBUG", raising=False)
    assert invoke(QUICK) == 70
    assert capsys.readouterr().err == (
        "runcue-sim: internal error: ZeroDivisionError: oops; set RUNCUE_DEBUG=1 for details\n"
    )


def test_a_missing_extra_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(job: object) -> int:
        raise ModuleNotFoundError("No module named 'yaml'", name="yaml")

    monkeypatch.setattr(program, "_carried_out", missing)
    assert "pip install 'runcue[sim]'" in refusal(capsys, *QUICK)


def test_at_a_speed_the_run_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "burst", "--duration", "60s", "--report", "-"]
    assert out(capsys, *arguments) == out(capsys, *arguments, "--speed", "1000")


@pytest.mark.parametrize("is_ignored", [False, True])
def test_ctrl_c_ends_it_unless_it_was_started_to_ignore_that(
    is_ignored: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Simulation.run

    async def disturbed(simulation: Simulation) -> Outcome:
        signal.raise_signal(signal.SIGINT)
        return await play(simulation)

    monkeypatch.setattr(Simulation, "run", disturbed)
    with ignoring(signal.SIGINT) if is_ignored else nullcontext():
        code = invoke(QUICK)
    assert (code, "throughput" in capfd.readouterr().out) == ((0, True) if is_ignored else (130, False))


def test_recovery_in_real_time_kills_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "crash.yaml"
    file.write_text("""
services: {api: {concurrent: 4, behavior: {latency: 100ms}}}
workload: {count: 10}
store: file
kills: [{at: 500ms, down: 100ms}]
duration: 1s
drain: 50s
""")
    text = out(capsys, "--config", str(file), "--realtime")
    assert "10 completed" in text
    assert "unfinished" not in text


def test_every_exit_code_is_in_the_help_and_in_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    codes = [0, program.FAILED, program.BAD_INPUT, program.INTERNAL, program.INTERRUPTED, program.CLOSED_PIPE]
    told = out(capsys, "--help").partition("Exit codes:")[2]
    assert [int(line.split()[0]) for line in told.splitlines() if line.strip()] == codes
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "simulator.md").read_text("utf-8")
    table = guide.partition("| exit code | |\n|---|---|\n")[2].partition("\n\n")[0]
    assert [int(code) for row in table.splitlines() for code in row.split("|")[1].split(",")] == codes


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_mistake(closed: str, tmp_path: Path) -> None:
    line = f'exec "$0" -m runcue.sim --count 5 --report results.json {closed}'
    ended = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=240,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads((tmp_path / "results.json").read_bytes())["summary"]["completed"] == 5


def test_it_is_a_program(tmp_path: Path) -> None:
    needed = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
    needed["PYTHONPATH"] = str(Path(program.__file__).parents[2])  # it is not installed everywhere
    ended = subprocess.run(
        [sys.executable, "-m", "runcue.sim", *QUICK], env={"PYTHONIOENCODING": "ascii", **needed},
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=240,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "single_queue - seed 1" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_missed_when_all_comes_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "--count", "12000", "--rate-limit", "500/1", "--concurrent", "1000", "--check")
    assert "12,000 submitted · 12,000 completed" in text
    assert "incomplete" not in text
    assert "every promise was kept" in text
