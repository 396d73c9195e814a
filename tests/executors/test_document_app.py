"""The document application runs as it stands, does nothing twice, and goes on where it was killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import runcue
from tests.patience import lives, until_sync

ROOT = Path(__file__).resolve().parents[2]
DONE = ("contract", "invoice", "manual", "minutes", "drawing")


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The application under way, with a temporary directory of its own."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "document_app.py"), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "TMPDIR": str(folder),
            "PYTHONWARNINGS": "error",
            "PYTHONPATH": str(Path(runcue.__file__).parent.parent),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path) -> str:
    """What it prints; it must end well and complain about nothing."""
    with started(folder) as process:
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (0, "")
    return output


def calls(output: str) -> tuple[int, int, int]:
    """How often the two services were called, and how often they refused."""
    found = re.search(r"calls +(\d+) of the language model, (\d+) of the storage\n  refused +(\d+)", output)
    assert found is not None, output
    return int(found[1]), int(found[2]), int(found[3])


def test_every_document_is_dealt_with_once(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert re.search(r"manual has 9 pages \(found by process \d+\)", first)
    assert "drawing/split failed: WorkerLost: the process that ran it died: signal:KILL" in first
    assert "scan/split failed: Permanent: there is no text in it" in first
    assert "llm asked to slow down: paused for 0.5 s" in first
    assert [name for name in DONE if f"{name} is done" in first] == list(DONE)
    model, _, refused = calls(first)
    assert refused == 2  # had more been called at once than the services allow, there would be more
    assert model >= 24 + 5 + refused - 1
    [folder] = tmp_path.glob("runcue-documents-*")
    assert {file.stem for file in folder.glob("*.summary")} == set(DONE)
    assert "9 pages, from 'PAGE 1 OF THE MANUAL.'" in (folder / "manual.summary").read_text()

    second = run(tmp_path)
    assert "6 dealt with before" in second
    assert calls(second) == (0, 0, 0)
    assert "split" not in second


def test_it_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdout is not None
        workers: set[int] = set()
        for line in process.stdout:
            workers |= {int(pid) for pid in re.findall(r"found by process (\d+)", line)}
            if "invoice is done" in line:
                break
        process.kill()
    assert workers
    until_sync(lambda: not any(map(lives, workers)), "the workers died with it")

    last = run(tmp_path)
    assert re.search(r"6 documents in .*, [1-5] dealt with before", last)
    assert "invoice has" not in last
    [folder] = tmp_path.glob("runcue-documents-*")
    assert {file.stem for file in folder.glob("*.summary")} == set(DONE)


def test_it_does_not_begin_anew_while_another_one_runs(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdout is not None
        assert "6 documents" in process.stdout.readline()
        with started(tmp_path, "--fresh") as second:
            output, errors = second.communicate(timeout=240)
        assert (second.returncode, output, errors.count("\n")) == (1, "", 1)
        assert errors.startswith("Another one is at work in ")
        process.kill()
    with started(tmp_path, "--fresh") as third:
        output, errors = third.communicate(timeout=240)
    assert (third.returncode, errors) == (0, "")
    assert "dealt with before" not in output
