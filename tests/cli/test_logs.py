"""`queuectl logs`: what jobs printed, safe for terminals, and followed while they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

import runcue
from runcue.cli.commands.logs import safe
from tests.cli.crew import environment
from tests.cli.inside import Inside, refused, worker

NASTY = (
    r"a\033[31mred\033[0m \033]0;title\007\033]52;c;eA==\007 \233 \302\233 \007 x\rhidden "
    r"[/bold] \177 \342\200\256 \377"
)


def nasty(inside: Inside) -> None:
    """Run a job that prints what terminals obey."""
    inside("enqueue", "--id", "a", "--command", f"printf '{NASTY}\\n\\tend\\n'")
    inside.work()


def test_stdout_and_stderr_go_where_they_went(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--command", "echo out; echo err >&2; printf rest")
    inside.work()
    assert inside("logs", "a") == (0, "out\nrest\n", "err\n")
    assert inside("logs", "a", "--stdout") == (0, "out\nrest\n", "")
    assert inside("logs", "a", "--stderr") == (0, "err\n", "")


def test_what_a_terminal_would_obey_is_spelled_out(inside: Inside) -> None:
    nasty(inside)
    told = inside("logs", "a")
    assert told.out == (
        "ared \\x1b]0;title\\x07\\x1b]52;c;eA==\\x07 \\x9b \\x9b \\x07 x\n"
        "hidden [/bold] \\x7f \\u202e \\xff\n"
        "\tend\n"
    )  # fmt: skip


def test_a_terminal_gets_nothing_that_it_would_obey(inside: Inside, home: Path) -> None:
    import pty

    nasty(inside)
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "runcue.cli", "logs", "a"],
        env=environment(home, {"TERM": "xterm"}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        timeout=240,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 10_000)
    os.close(ours)
    assert done.returncode == 0
    assert b"hidden" in shown
    plain = shown.replace(b"\r\n", b"\n")  # the terminal's own way to end a line
    assert not [byte for byte in plain if (byte < 0x20 and byte not in b"\t\n") or 0x7F <= byte <= 0x9F], (
        plain
    )


def test_raw_is_what_the_job_printed(inside: Inside, home: Path) -> None:
    nasty(inside)
    done = subprocess.run(
        [sys.executable, "-m", "runcue.cli", "logs", "a", "--raw"],
        env=environment(home), capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    printed = subprocess.run(
        ["/bin/sh", "-c", f"printf '{NASTY}\\n\\tend\\n'"], capture_output=True, check=True
    )
    assert done.stdout == printed.stdout


@given(some.binary(max_size=200))
def test_any_line_is_safe(line: bytes) -> None:
    assert safe(line).replace("\t", "").isprintable()


def test_colours_are_taken_out_and_text_stays() -> None:
    assert safe("\x1b[1;31mgrüße\x1b[0m\t\x1b[2K🎉".encode()) == "grüße\t🎉"


def test_a_line_that_ends_with_carriage_return_and_newline_is_one_line(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--command", r"printf 'one\r\ntwo\r\n10%%\r20%%'")
    inside.work()
    assert inside("logs", "a").out == "one\ntwo\n10%\n20%\n"


@pytest.mark.parametrize(
    ("number", "out"), [("0", ""), ("1", "5\n"), ("2", "4\n5\n"), ("100", "1\n2\n3\n4\n5\n")]
)
def test_the_last_lines_are_enough(inside: Inside, number: str, out: str) -> None:
    inside("enqueue", "--id", "a", "--command", "seq 5")
    inside.work()
    assert inside("logs", "a", "--lines", number).out == out


def test_last_lines_of_much_output_with_no_end(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--command", "seq 300000; printf last")
    inside.work()
    assert inside("logs", "a", "-n", "2").out == "300000\nlast\n"
    assert len(inside("logs", "a").out) == len("last\n") + sum(
        len(f"{number}\n") for number in range(1, 300_001)
    )


def enqueue_two_attempts(inside: Inside, home: Path) -> None:
    """A job that fails twice, and prints which attempt it is."""
    inside("config", "set", "backoff-base", "0.01")
    command = "echo x >> n; wc -l < n; false"
    inside("enqueue", "--id", "a", "--max-retries", "2", "--cwd", str(home), "--command", command)


def test_each_attempt_has_its_own(inside: Inside, home: Path) -> None:
    enqueue_two_attempts(inside, home)
    inside.work()
    assert inside("logs", "a").out == "2\n"
    assert inside("logs", "a", "--attempt", "1").out == "1\n"
    assert inside("logs", "a", "--attempt", "2").out == "2\n"
    refused(inside("logs", "a", "--attempt", "3"), 6, "no attempt 3", "the last is 2")
    refused(inside("logs", "a", "--attempt", "0"), 2, "attempt")


def test_nothing_printed_is_said(inside: Inside) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    assert inside("logs", "a") == (0, "", "a has printed nothing yet: it is not running.\n")
    inside.work()
    assert inside("logs", "a") == (0, "", "a printed nothing, or it is no longer kept.\n")


def test_of_a_flood_the_end_is_kept(inside: Inside, home: Path) -> None:
    inside("config", "set", "log-limit", "128k")
    inside("enqueue", "--id", "a", "--command", "yes 0123456789abcde | head -c 3000000; echo end")
    with worker(home):
        assert inside("wait", "a", "--timeout", "40").code == 0
    told = inside("logs", "a")
    assert told.out.endswith("0123456789abcde\nend\n")
    assert len(told.out) < 3_000_000


def test_what_is_no_longer_kept_is_said(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    inside("enqueue", "--id", "a", "--", "true")
    pieces = iter([SimpleNamespace(data=b"end\n", start=5000, end=5004), SimpleNamespace(data=b"")])
    monkeypatch.setattr(runcue.Reader, "output", lambda reader, *args, **options: next(pieces))
    assert inside("logs", "a", "--stdout") == (0, "end\n", "(5,000 bytes of stdout are no longer kept)\n")


def test_a_job_is_followed_to_its_end(inside: Inside, home: Path) -> None:
    go = home / "go"
    inside(
        "enqueue",
        "--id",
        "a",
        "--command",
        f'echo one; echo two >&2; until test -e "{go}"; do sleep 0.02; done; echo three',
    )
    with worker(home), subprocess.Popen(
        [sys.executable, "-m", "runcue.cli", "logs", "a", "--follow"],
        env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        go.touch()
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (0, "three\n", "two\n")


def test_a_job_is_followed_from_attempt_to_attempt(inside: Inside, home: Path) -> None:
    enqueue_two_attempts(inside, home)
    with worker(home):
        told = inside("logs", "a", "-f")
    assert told.code == 0
    assert told.out.splitlines()[-1] == "2"
    refused(inside("logs", "a", "-f", "--attempt", "1"), 2, "--attempt")
