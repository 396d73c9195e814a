"""The server tool runs as it stands: one host is down at first, and the others do not notice."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """What the example prints, in a process and with a temporary directory of its own."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "server_tool.py"), *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "HOME": str(folder), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_every_host_gets_its_config_and_only_the_one_that_was_down_waits(tmp_path: Path) -> None:
    code, output = run(tmp_path)
    assert code == 0
    assert "\n14 units completed, 0 failed, on 4 hosts:\n" in output
    for host in ("prod-1", "prod-2", "staging", "spare"):
        for task in ("scan", "deploy", "verify"):
            assert len(re.findall(rf" {host} +{task}: (?!Unreachable)", output)) == 1, output
    assert set(re.findall(r"(\S+) +\w+: Unreachable", output)) == {"spare"}
    circuit = re.findall(r"(\S+) +circuit (\w+)", output)
    assert {host for host, _ in circuit} == {"spare"}
    assert (circuit[0][1], circuit[-1][1]) == ("opened", "closed")
    assert list(tmp_path.iterdir()) == []  # it tidied up, and left the home directory alone


def test_it_can_be_interrupted_and_leaves_nothing(tmp_path: Path) -> None:
    begun = subprocess.Popen(
        [sys.executable, "-u", str(ROOT / "examples" / "server_tool.py")],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert begun.stdout is not None
        assert begun.stdout.readline()
        begun.send_signal(signal.SIGINT)
        _, errors = begun.communicate(timeout=240)
    finally:
        begun.kill()
    assert (begun.returncode, errors) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_nobody_knows_is_given_up(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host nobody\n  HostName 127.0.0.1\n  Port 1\n")
    code, output = run(tmp_path, "--hosts", "nobody")
    assert code == 1
    assert "nobody     scan: Unreachable: nobody: connection refused." in output
    assert "  nobody     never seen\n" in output
