"""The examples run as they stand, each in a process of its own, and say what they should."""

import os
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def started(name: str, folder: Path) -> subprocess.Popen[str]:
    """An example under way, with a temporary directory of its own."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / name)],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(name: str, folder: Path) -> str:
    """What an example prints; it must end well and complain about nothing."""
    with started(name, folder) as process:
        output, errors = process.communicate(timeout=50)
    assert (process.returncode, errors) == (0, "")
    return output


def figure(name: str, output: str) -> int:
    """A figure of the demo's summary."""
    found = re.search(rf"^  {name} +(\d+)", output, re.MULTILINE)
    assert found is not None, output
    return int(found[1])


def test_the_quickstart_prints_its_results_in_order(tmp_path: Path) -> None:
    assert run("quickstart.py", tmp_path) == f"squares: {' '.join(str(n * n) for n in range(20))}\n"


def test_the_limits_are_kept_and_the_circuit_opens_and_closes(tmp_path: Path) -> None:
    output = run("limits.py", tmp_path)
    assert "api:   45 calls; at most 5 in 100 ms and 20 in a second" in output
    told = re.findall(r"flaky: (circuit .*)", output)
    assert (told[0], told[-1]) == ("circuit opened", "circuit closed")


def test_the_demo_does_everything_once_and_skips_it_the_second_time(tmp_path: Path) -> None:
    first = run("pipeline.py", tmp_path)
    assert "\x1b" not in first
    assert [figure(name, first) for name in ("documents", "completed", "skipped", "failed")] == [
        12,
        148,
        0,
        2,
    ]
    assert (figure("retries", first), figure("throttled", first)) == (13, 1)
    assert figure("busiest", first) <= 15
    assert "letter-2/7: Permanent: no text on this page" in first

    second = run("pipeline.py", tmp_path)
    assert [figure(name, second) for name in ("completed", "skipped", "failed")] == [0, 148, 2]
    assert "what is done is skipped" in second


def test_the_demo_sums_up_what_it_did_when_interrupted(tmp_path: Path) -> None:
    with started("pipeline.py", tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "")
    assert re.search(r"^Interrupted after .* s, \d+ works left for the next run$", output, re.MULTILINE)
    assert figure("completed", output) > 0


def test_the_durable_one_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    read: list[str] = []
    for _ in range(3):
        with started("durable.py", tmp_path) as process:
            assert process.stdout is not None
            lines = list(islice(process.stdout, 8))
            process.kill()
            read += [line for line in lines + process.stdout.readlines() if line.startswith("read page ")]
        assert process.returncode == -signal.SIGKILL
    last = run("durable.py", tmp_path).splitlines()
    read += [f"{line}\n" for line in last if line.startswith("read page ")]
    assert re.fullmatch(r"going on: \d+ of 61 were done before", last[0])
    assert last[-1] == f"done: {tmp_path / 'runcue-durable' / 'book.txt'}"
    assert set(read) == {f"read page {number}\n" for number in range(1, 61)}
    assert len(read) <= 60 + 3 * 4  # what ran when it was killed ran again, and nothing else
    book = (tmp_path / "runcue-durable" / "book.txt").read_text(encoding="utf-8")
    assert book == "".join(f"text of page {number}\n" for number in range(1, 61))

    again = run("durable.py", tmp_path)
    assert again.splitlines()[0] == "going on: 61 of 61 were done before"
    assert "read page" not in again
