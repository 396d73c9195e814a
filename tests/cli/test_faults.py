"""The rows of the fault catalogue that are about the command line, CL1 to CL9 and CL12; CL10 is in test_matrix.py.

Whatever is typed, piped, closed or broken: one line on stderr, an exit code that says what it was, and no traceback.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import Run, Watch
from tests.cli.crew import QUEUECTL, Crew, Supervisor, environment, gone
from tests.cli.inside import Told
from tests.cli.test_matrix import Quick, complaint, leave_nobody, picture, quick
from tests.patience import BOUND, until_sync

__all__ = ["quick"]

MIB = 1024 * 1024
NASTY = (
    "\x1b[2J\x1b]0;title\x07\x1b]8;;http://x\x07link\x1b]52;c;eA==\x07\x9b31m\x7f\rover [/bold] [red]x\u202e"
)
"""What a terminal would obey, and text that only looks like markup."""


def refused(said: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """It ended with that code, and said why in one line with these words in it."""
    assert not complaint(Told(said.returncode, said.stdout, said.stderr), code), said
    assert said.stderr.startswith("queuectl"), said
    for word in words:
        assert word in said.stderr, said


def in_shell(line: str, home: Path, env: Mapping[str, str | None] | None = None) -> Told:
    """A line of bash in which `$Q` is the program."""
    said = subprocess.run(
        ["/bin/bash", "-c", line.replace("$Q", shlex.join(QUEUECTL))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(home, env),
        timeout=BOUND,
        check=False,
    )
    return Told(said.returncode, said.stdout.decode(), said.stderr.decode())


def test_the_checks_of_this_file_see_what_is_wrong() -> None:
    for shown in (NASTY, "\x1b[2J", "a\rb", "a\x07", "\x9b31m", "a\x7f", "\u202e", "\x1b]0;x\x07"):
        with pytest.raises(AssertionError):
            harmless(f"fine\n{shown}\n")
    harmless("\x1b[1mID\x1b[0m\tgrüße…\n")
    for told in (Told(1, "", "x\n"), Told(2, "", "x\ny\n"), Told(2, "", ""), Told(2, "", "\x1b\n")):
        assert complaint(told, 2)
    assert complaint(Told(0, "Traceback (most recent call last)", ""), 0)
    assert not complaint(Told(2, "", "x\n"), 2)


# CL1: ids -------------------------------------------------------------------------------------------------

BAD_IDS = [
    "../../etc/passwd", "..", ".", "/abs", "a/b", "-rf", "", "x" * 10_000, "a ", "%2e%2e", "\u202eabc", "a\u200bb",
    "a\nb", "a\n", "\x1b[2J", "ä",
]  # fmt: skip
WITH_ID = ["why", "wait", "dlq retry", "dlq purge --yes"]


def test_cl1_an_id_that_could_be_anything_else_is_refused_everywhere(quick: Quick, home: Path) -> None:
    home.mkdir(mode=0o700)
    commands = [[verb, "--", id] for verb in ("show", "logs", "cancel") for id in BAD_IDS]
    commands += [[*verb.split(), "--", id] for verb in WITH_ID for id in BAD_IDS[:3]]
    commands += [["enqueue", "--id", id, "--", "true"] for id in BAD_IDS]
    commands += [["enqueue", "--after", id, "--", "true"] for id in BAD_IDS]
    commands += [["enqueue", json.dumps({"command": "true", "id": id})] for id in (*BAD_IDS, "a\0b")]
    commands += [["enqueue", json.dumps({"command": "true", "after": [id]})] for id in (*BAD_IDS, "a\0b")]
    told = quick.all([(home, args) for args in commands])
    for args, said in zip(commands, told, strict=True):
        assert not complaint(said, 2), (args, said)
        assert not said.out
        assert len(said.err) < 300, args
    assert picture(home) == {}


def test_cl1_an_id_that_is_a_bad_name_elsewhere_is_just_an_id(quick: Quick, home: Path) -> None:
    ids = ["CON", "a.", "nul.txt", "0", "x" * 128]
    assert [said.code for said in quick.all([(home, ["enqueue", "--id", id, "true"]) for id in ids])] == [
        2
    ] * 5
    added = quick.all([(home, ["enqueue", "--id", id, "--", "true"]) for id in ids])
    assert sorted(said.out for said in added) == sorted(f"Enqueued {id}\n" for id in ids), added
    assert [said.code for said in quick.all([(home, ["show", id]) for id in ids])] == [0] * 5
    assert not any(id in path.name for path in home.rglob("*") for id in ids[:3])


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("args", [["logs", "../../etc/passwd"], ["logs", "victim"], ["show", "victim"]])
def test_cl1_looking_opens_nothing_for_writing_and_nothing_that_an_id_names(
    args: list[str], crew: Crew, tmp_path: Path
) -> None:
    crew.enqueue({"id": "victim", "command": "true"})
    trace = tmp_path / "trace"
    traced = [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(trace),
        "-e",
        "trace=open,openat,openat2,creat,rename,unlink,mkdir",
    ]
    said = subprocess.run(
        [*traced, *QUEUECTL, *args],
        capture_output=True,
        text=True,
        env=environment(crew.home, {"PYTHONDONTWRITEBYTECODE": "1"}),
        timeout=BOUND,
        check=False,
    )
    if "ptrace" in said.stderr:
        pytest.skip("tracing is not allowed here")
    assert said.returncode == (0 if args[1] == "victim" else 2), said
    calls = trace.read_text().splitlines()
    assert any("queue.db" in call for call in calls) is (args[1] == "victim")
    assert not [call for call in calls if "passwd" in call or '/victim"' in call]
    changing = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|creat\(|rename\(|unlink\(|mkdir\(")
    assert not [call for call in calls if changing.search(call) and "/dev/" not in call]


# CL2: commands --------------------------------------------------------------------------------------------

REFUSED = {"empty": "", "spaces": "  ", "lines": "\n\n", "nul": "a\0b"}
KEPT = {
    "multi-line": "# first\ncat /proc/$$/cmdline > $OUT\n# grüße\n",
    "unicode": "cat /proc/$$/cmdline > $OUT; : 'grüße 你好 🎉 \u202e'",
    "spaces": "   cat   /proc/$$/cmdline > $OUT\t ",
    "quotes": "cat /proc/$$/cmdline > $OUT; : \"a'b\" \\\\ '$x' `true` \x1b\x07\x7f",
    "dash": "-dash 'a  b' -x",
}


@pytest.mark.parametrize("name", REFUSED)
def test_cl2_a_command_of_nothing_and_one_with_nul_are_refused(name: str, quick: Quick, home: Path) -> None:
    ways = [["enqueue", json.dumps({"command": REFUSED[name]})]]
    if name != "nul":
        ways += [["enqueue", "--command", REFUSED[name]], ["enqueue", "--", REFUSED[name], "x"]]
    for said in quick.all([(home, args) for args in ways]):
        assert not complaint(said, 2), said
        assert "command" in said.err or "argv" in said.err
    assert not home.exists()


def test_cl2_any_other_command_runs_to_the_byte(crew: Crew, tmp_path: Path) -> None:
    """The shell's own command line tells what it was given; of 2 MB, too long for one, what they print."""
    dash = tmp_path / "-dash"
    dash.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@" > "$OUT"\n')
    dash.chmod(0o755)
    long = "grüße\n" * 300_000
    given = {name: ["--command", text] for name, text in KEPT.items()}
    given["argv"] = [
        "--",
        "sh",
        "-c",
        'printf "%s|" "$@" > "$OUT"',
        "-",
        "a  b",
        "",
        "-n",
        "ü\n",
        "$HOME",
        "*",
    ]
    path = f"PATH={tmp_path}:{os.environ['PATH']}"
    for name, args in given.items():
        said = crew.run("enqueue", "--id", name, "--env", f"OUT={tmp_path / name}", "--env", path, *args)
        assert said.returncode == 0, said
    command = f"printf %s '{long}' > \"{tmp_path}/long\""
    assert len(command.encode()) > 2_000_000
    said = crew.run("enqueue", "-", input=json.dumps({"id": "long", "command": command}, ensure_ascii=False))
    assert said.returncode == 0, said.stderr
    crew.start()
    crew.until_state("completed")
    assert (tmp_path / "long").read_text() == long
    assert (tmp_path / "dash").read_text() == "-dash\na  b\n-x\n".replace("-dash", str(dash), 1)
    assert (tmp_path / "argv").read_text() == "a  b||-n|ü\n|$HOME|*|"
    for name in KEPT.keys() - {"dash"}:
        *_, last = (tmp_path / name).read_bytes().removesuffix(b"\0").split(b"\0")
        assert last == KEPT[name].encode(), name
    with crew.reading() as reader:
        assert {id: work.params["command"] for id in KEPT if (work := reader.get(id))} == KEPT


# CL3: JSON ------------------------------------------------------------------------------------------------

JOB = '{"id": "a", "command": "true", %s}'
BAD_JSON = {
    "no JSON": ("sleep 2 }", "no JSON object"),
    "half an object": ('{"command": "true"', "no JSON"),
    "twice": ('{"command": "true", "command": "false"}', "'command' is there twice"),
    "twice inside": (JOB % '"env": {"A": "1", "A": "2"}', "'A' is there twice"),
    "unknown": (JOB % '"prioritee": 1', "Did you mean priority?"),
    "1e400": (JOB % '"timeout": 1e400', "timeout cannot be inf"),
    "a long number": (JOB % f'"priority": {"9" * 100_000}', "digits"),
    "NaN": (JOB % '"delay": NaN', "NaN is no JSON number"),
    "no number": (JOB % '"max_retries": "3"', "max_retries cannot be '3': expected a whole number"),
    "below": (JOB % '"max_retries": -1', "max_retries cannot be -1"),
    "beyond": (
        JOB % '"max_retries": 9223372036854775808',
        "max_retries cannot be a number of more than 63 bits",
    ),
    "true": (JOB % '"max_retries": true', "max_retries cannot be true"),
    "a fraction": (JOB % '"max_retries": 1.5', "max_retries cannot be 1.5"),
    "null": (JOB % '"queue": null', "queue cannot be null"),
    "an object": (JOB % '"after": {}', "after cannot be an object"),
    "a list": ('{"command": ["true"]}', "command cannot be the list of 'true'"),
    "half a pair": ('{"command": "\\ud800"}', "no valid Unicode"),
    "deep": ('{"a":' * 20_000, "nested too deep"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_cl3_a_bad_payload_is_refused_with_its_key_and_rule(name: str, quick: Quick, home: Path) -> None:
    text, words = BAD_JSON[name]
    [typed] = quick.all([(home, ["enqueue", text])])
    [piped] = quick.all([(home, ["enqueue", "-"])], piped=text.encode())
    for said in (typed, piped):
        assert not complaint(said, 2), said
        assert len(said.err) < 400
    assert words in typed.err
    assert "line 1" in piped.err
    assert not home.exists()


@pytest.mark.parametrize(
    "start", [b"[" * 100_000, b'{"a":' * 100_000, b'{"command": "', b'{"priority": ' + b"9" * MIB]
)
def test_cl3_no_payload_takes_memory(start: bytes, home: Path, tmp_path: Path) -> None:
    """Each with 100 MB of nothing after it, and without."""
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(start)
    for size, words in ((100 * MIB, "line 1: it is longer than 4 MiB"), (len(start), "line 1")):
        os.truncate(file, size)
        said = subprocess.run(
            [
                "/bin/sh",
                "-c",
                'ulimit -d 102400 && exec "$0" "$@"',
                *QUEUECTL,
                "enqueue",
                "--file",
                str(file),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(home),
            timeout=BOUND,
            check=False,
        )
        refused(said, 2, words)
    assert not home.exists()


# CL4, CL5: settings and choices ---------------------------------------------------------------------------


def test_cl4_a_setting_that_makes_no_sense_is_refused_and_changes_nothing(quick: Quick, crew: Crew) -> None:
    crew.enqueue({"id": "a", "command": "true"})
    bad = [
        "max_retries abc", "max_retries -1", f"max_retries 1{'0' * 30}", "max_retries 1.5", "max_retries",
        "backoff_base 0", "backoff_base -1", "backoff_base inf", "max_delay -1", "timeout soon", "retention never",
        "log_limit -5", "log_limit 1e400", "colour blue", "../x 1", "shutdown true",
    ]  # fmt: skip
    before = picture(crew.home)
    told = quick.all([(crew.home, ["config", "set", "--", *text.split()]) for text in bad])
    for text, said in zip(bad, told, strict=True):
        assert not complaint(said, 2), (text, said)
        assert text.split()[0].replace("../", "") in said.err or "VALUE" in said.err, said
    assert picture(crew.home) == before


def test_cl4_damaged_settings_stop_neither_commands_nor_workers(crew: Crew, quick: Quick) -> None:
    crew.enqueue({"id": "before", "command": "true"})
    connection = apsw.Connection(str(crew.database))
    connection.execute(
        "INSERT OR REPLACE INTO config (key, value) VALUES ('max_retries', 'abc'), ('backoff_base', '-1'), "
        "('timeout', x'ff'), ('retention', ''), ('max_delay', '1e400'), (x'00', '\x1b[2J')"
    )
    connection.close()
    verbs = [
        "enqueue --id later -- true",
        "list",
        "status",
        "config list",
        "show before",
        "doctor",
        "service list",
    ]
    for verb, said in zip(verbs, quick.all([(crew.home, verb.split()) for verb in verbs]), strict=True):
        assert said.code == 0, (verb, said)
        assert all(line.isprintable() for line in said.err.splitlines()), said
    supervisor = crew.start()
    crew.until_state("completed", "before", "later")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0
    assert "Traceback" not in supervisor.said()


@pytest.mark.parametrize(
    "args",
    [
        ["--state", "xyz"], ["--state", ""], ["--limit", "-1"], ["--limit", "1000000000000"],
        ["--limit", "ten"], ["--sort", "id; DROP TABLE"], ["extra"],
    ],
)  # fmt: skip
def test_cl5_a_choice_that_is_not_there_is_refused(args: list[str], quick: Quick, home: Path) -> None:
    [said] = quick.all([(home, ["list", *args])])
    assert not complaint(said, 2), said
    assert "See: queuectl list --help" in said.err


def test_cl5_a_queue_with_a_name_of_sql_is_just_a_name(quick: Quick, crew: Crew) -> None:
    name = "x'; DROP TABLE work_units; --"
    crew.enqueue({"id": "a", "command": "true", "queue": name}, {"id": "b", "command": "true"})
    [said] = quick.all([(crew.home, ["list", "--json", "--queue", name])])
    assert [row["id"] for row in json.loads(said.out)] == ["a"]
    assert set(crew.jobs()) == {"a", "b"}


@pytest.mark.parametrize(
    "args",
    [
        ["worker", "start", "--queue", "\udcff"], ["worker", "start", "--detach", "--queue", "\udcff"],
        ["enqueue", "--", "echo", "\udcff"], ["enqueue", "--cwd", "\udcff", "--", "true"],
        ["enqueue", "--env", "A=\udcff", "--", "true"], ["enqueue", "--queue", "\udcff", "--", "true"],
        ["enqueue", "--file", ""], ["enqueue", "--file", "\udcff"], ["service", "set", "\udcff", "--rate", "1/s"],
        ["pause", "\udcff"], ["show", "\udcff"], ["config", "set", "timeout", "\udcff"], ["\udcff"],
    ],
    ids=ascii,
)  # fmt: skip
def test_bytes_that_are_no_text_are_refused(args: list[str], quick: Quick, home: Path) -> None:
    try:
        [said] = quick.all([(home, args)])
    finally:
        leave_nobody(home)
    assert not complaint(said, 2), said
    assert not home.exists()


# CL6: streams, locales, terminals -------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_cl6_closed_streams_harm_nobody(closed: str, crew: Crew) -> None:
    crew.enqueue({"id": "a", "command": "true"})
    verbs = ["list", "status --json", "enqueue --id new -- true", "logs a", "show nobody", "list --limit x"]
    codes = " ".join(f"$($Q {verb} {closed}; echo $? >&9)" for verb in verbs)
    said = in_shell(f"exec 9>&1; : {codes}", crew.home)
    assert said.out.split() == ["0", "0", "0", "0", "6", "2"]
    assert "Traceback" not in said.err
    assert set(crew.jobs()) == {"a", "new"}


def test_cl6_nothing_to_read_is_no_job(home: Path) -> None:
    said = in_shell("$Q enqueue - <&-", home)
    assert not complaint(said, 2), said
    said = in_shell("$Q enqueue <&-", home)
    assert not complaint(said, 2), said


@pytest.mark.parametrize("verb", ["list --limit 5000", "list --json --limit 5000", "list --limit 5000 2>&1"])
def test_cl6_a_reader_who_has_enough_ends_it_quietly(verb: str, crew: Crew) -> None:
    crew.enqueue(*({"command": f"echo {'x' * 50}"} for _ in range(2000)))
    said = in_shell(f"$Q {verb} | head -1; echo ${{PIPESTATUS[0]}} >&2", crew.home)
    assert said.err in (
        {"141\n", "0\n"} if "--json" in verb else {"141\n"}
    )  # JSON is one line: all may be read
    assert said.out.count("\n") == 1


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_cl6_a_locale_without_letters_shows_what_it_can(locale: str, crew: Crew) -> None:
    plain = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    said = in_shell(
        "$Q enqueue --id a --queue grün -- sh -c 'echo grüße 你好; echo ärger >&2; exit 1'", crew.home, plain
    )
    assert said == (0, "Enqueued a\n", "")
    crew.enqueue({"id": "b", "command": "echo grüße; echo ärger >&2; exit 1", "max_retries": 1})
    supervisor = Supervisor([*QUEUECTL, "worker", "start"], environment(crew.home, plain), crew.home.parent)
    try:
        supervisor.until("b  dead")
    finally:
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0
        supervisor.end()
    assert supervisor.said().isascii()
    verbs = [
        "list",
        "show a",
        "show b",
        "status",
        "logs b",
        "dlq list",
        "why a",
        "worker list",
        "doctor",
        "--help",
    ]
    told = in_shell("; ".join(f"$Q {verb} || exit 99" for verb in verbs), crew.home, plain)
    assert told.code == 0, told
    assert "Traceback" not in told.err
    assert told.out.isascii()
    assert told.err.isascii()
    assert "gr\\xfc\\xdfe" in told.out
    document = in_shell("$Q list --json", crew.home, plain)
    assert all("grüße" in row["command"] for row in json.loads(document.out))


@pytest.mark.parametrize(
    "env",
    [{}, {"COLUMNS": "20"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"TERM": None, "COLUMNS": "x"}],
    ids=str,
)
def test_cl6_any_terminal_will_do(
    env: dict[str, str | None], stock: Path, on_terminal: Watch, home: Path
) -> None:
    shutil.copytree(stock, home)
    for verb in ("list", "status", "show nasty", "dlq list"):
        code, shown = on_terminal(*verb.split(), columns=20, env=env)
        assert code == 0, shown
        assert "Traceback" not in shown
        is_plain = bool(env.keys() & {"NO_COLOR"}) or env.get("TERM") == "dumb"
        assert not (is_plain and "\x1b" in shown), shown
        if verb in {"list", "dlq list"}:
            bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)
            assert max(map(len, bare.splitlines())) <= 20, shown


# CL7: what a terminal would obey --------------------------------------------------------------------------

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def harmless(shown: str) -> None:
    """Nothing in it moves a cursor, rings, sets a title or hides anything; colours are our own."""
    for line in _COLOUR.sub("", shown).replace("\t", "").split("\n"):
        assert line.isprintable(), ascii(line)
    assert not re.search(r"[\x7f-\x9f]", shown), ascii(shown)


@contextmanager
def on_a_terminal(home: Path, *args: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], str]]]:
    """A command under way on a terminal, and a way to wait for what it shows ("" is its end): all it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*QUEUECTL, *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(home, {"TERM": "xterm"}),
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = bytearray()

    def until_shown(text: str) -> str:
        def look() -> bool:
            try:
                shown.extend(piece := os.read(ours, 65536))
            except BlockingIOError:
                piece = b"-"
            except OSError:  # nobody has the other side any more
                piece = b""
            return text.encode() in shown if text else not piece

        until_sync(look, f"to show {text!r}")
        return shown.decode().replace("\r\n", "\n")

    try:
        yield process, until_shown
    finally:
        os.close(ours)
        process.kill()
        process.wait(BOUND)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A home whose jobs are as nasty as can be, all of them run; and what the worker showed on its terminal."""
    home = tmp_path_factory.mktemp("nasty") / "home"
    folder = home.parent / NASTY.replace("/", "")
    folder.mkdir()
    quoted = shlex.quote(NASTY)
    command = f"printf '%s\\n\\233 31m' {quoted}; printf '%s\\n' {quoted} >&2; exit 1 # [/bold]"
    common = {
        "command": command,
        "cwd": str(folder),
        "env": {NASTY.replace("=", ""): NASTY},
        "queue": "[/bold]",
    }
    with Crew(home) as crew:
        crew.enqueue(
            {**common, "id": "dead", "max_retries": 1, "key": NASTY},
            {**common, "id": "again", "max_retries": 9},
            {**common, "id": "after", "after": ["again"]},
            {"id": "argv", "argv": ["printf", "%s", NASTY]},
            {"id": "missing", "argv": [NASTY], "max_retries": 1},
        )
        with on_a_terminal(home, "worker", "start") as (process, until_shown):
            for text in ("dead:", "retry 2/9", "argv", "completed", "missing"):
                until_shown(text)
            crew.until_state("dead", "dead", "missing")
            crew.until_state("completed", "argv")
            process.send_signal(signal.SIGINT)
            shown = until_shown("")
            assert process.wait(BOUND) == 0
        yield home, shown


SHOWING = [
    "list", "show dead", "show again", "show missing", "status", "logs dead", "dlq list", "why again", "why after",
    "wait dead", "worker list", "doctor",
]  # fmt: skip


def test_cl7_a_worker_shows_nothing_that_a_terminal_would_obey(nasty: tuple[Path, str]) -> None:
    harmless(nasty[1])
    assert "dead" in nasty[1]


@pytest.mark.parametrize("verb", SHOWING)
def test_cl7_a_terminal_is_shown_nothing_that_it_would_obey(verb: str, nasty: tuple[Path, str]) -> None:
    with on_a_terminal(nasty[0], *verb.split()) as (process, until_shown):
        shown = until_shown("")
        assert process.wait(BOUND) == (1 if verb.startswith("wait") else 0), shown
    harmless(shown)
    assert "Traceback" not in shown
    if verb in {"show dead", "logs dead"}:
        assert "[/bold]" in shown
        assert "\\x07" in shown


def test_cl7_json_is_valid_and_as_harmless(nasty: tuple[Path, str], quick: Quick) -> None:
    verbs = [
        "list",
        "show dead",
        "status",
        "dlq list",
        "worker list",
        "service list",
        "doctor",
        "config list",
    ]
    told = quick.all([(nasty[0], [*verb.split(), "--json"]) for verb in verbs])
    for verb, said in zip(verbs, told, strict=True):
        assert said.code == 0, (verb, said)
        json.loads(said.out)
        harmless(said.out)
    assert NASTY in json.loads(told[1].out)["command"]
    with on_a_terminal(nasty[0], "list", "--json") as (_, until_shown):
        shown = until_shown("")
    harmless(shown)
    assert NASTY in json.loads(shown)[0]["command"] or NASTY in json.loads(shown)[-1]["command"]


def test_cl7_what_is_wrong_is_said_as_harmlessly(nasty: tuple[Path, str]) -> None:
    for args in (
        ["show", NASTY], [NASTY], ["enqueue", NASTY], ["config", "get", NASTY], ["pause", NASTY],
        ["enqueue", "--file", NASTY], ["enqueue", json.dumps({"command": "x", NASTY: 1})],
        ["list", "--state", NASTY], ["service", "set", "x", "--rate", NASTY],
    ):  # fmt: skip
        with on_a_terminal(nasty[0], *args) as (process, until_shown):
            shown = until_shown("")
            assert process.wait(BOUND) == 2, shown
        harmless(shown)
        assert shown.count("\n") == 1, shown


def test_cl7_raw_is_what_the_job_printed(nasty: tuple[Path, str]) -> None:
    said = subprocess.run(
        [*QUEUECTL, "logs", "dead", "--stdout", "--raw"],
        capture_output=True, env=environment(nasty[0]), timeout=BOUND, check=True,
    )  # fmt: skip
    assert said.stdout == NASTY.encode() + b"\n\x9b 31m"


# CL8, CL9: several at once --------------------------------------------------------------------------------


def begin(home: Path, *args: str) -> subprocess.Popen[str]:
    """A command under way."""
    return subprocess.Popen(
        [*QUEUECTL, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(home),
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> Told:
    """How it ended."""
    out, err = process.communicate(timeout=BOUND)
    return Told(process.returncode, out, err)


def test_cl8_of_eight_who_enqueue_or_retry_one_job_one_wins_and_it_runs_once(
    crew: Crew, quick: Quick, tmp_path: Path
) -> None:
    crew.start()
    command = f'echo run >> "{tmp_path}/runs"; test -e "{tmp_path}/mended"'
    for args in (
        ["enqueue", "--id", "one", "--max-retries", "1", "--command", command],
        ["dlq", "retry", "one"],
    ):
        told = quick.all([(crew.home, args)] * 8)
        assert sorted(said.code for said in told) == [0, *[6] * 7], told
        assert all(said.err.count("\n") == 1 for said in told if said.code)
        crew.until_state("completed" if "retry" in args else "dead", "one")
        (tmp_path / "mended").touch()
    assert (tmp_path / "runs").read_text() == "run\n" * 2


def test_cl9_a_number_of_workers_that_cannot_be_is_refused_and_disturbs_nobody(
    crew: Crew, tmp_path: Path
) -> None:
    crew.enqueue({"id": "runs", "command": f'until test -e "{tmp_path}/go"; do sleep 0.05; done'})
    supervisor = crew.start()
    crew.until_state("processing", "runs")
    before = crew.workers()
    started = [begin(crew.home, "worker", "start", "--count", text) for text in ("0", "-1", "10000", "abc")]
    for process in started:
        said = ended(process)
        assert not complaint(said, 2), said
        assert "--count" in said.err
    assert [row["pid"] for row in crew.workers()] == [row["pid"] for row in before]
    (tmp_path / "go").touch()
    crew.until_state("completed", "runs")
    assert crew.jobs()["runs"]["attempts"] == 0
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0


def test_jobs_that_are_added_while_workers_run_all_run_once(crew: Crew, quick: Quick, tmp_path: Path) -> None:
    crew.start("--count", "2")
    command = f'echo $JOB >> "{tmp_path}/runs"'
    adding = [
        (crew.home, ["enqueue", "--id", f"j{number}", "--env", f"JOB={number}", "--command", command])
        for number in range(24)
    ]
    assert {said.code for said in quick.all(adding)} == {0}
    crew.until_state("completed")
    assert sorted(map(int, (tmp_path / "runs").read_text().split())) == list(range(24))


def test_two_who_stop_the_workers_at_once_both_see_them_leave(crew: Crew) -> None:
    supervisor = crew.start("--count", "2")
    workers = [row["pid"] for row in crew.workers()]
    told = [ended(process) for process in [begin(crew.home, "worker", "stop") for _ in range(2)]]
    assert [(said.code, said.err) for said in told] == [(0, "")] * 2
    assert gone(workers)
    assert supervisor.wait() == 0


# CL12: whose home it is -----------------------------------------------------------------------------------


def modes(home: Path) -> set[tuple[str, int]]:
    """The modes of everything in a home and of itself, directories told from files."""
    found = set()
    for path in (home, *home.rglob("*")):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        found.add(("directory" if stat.S_ISDIR(status.st_mode) else "file", stat.S_IMODE(status.st_mode)))
    return found


def test_cl12_whatever_the_umask_a_home_is_its_owners_alone(crew: Crew) -> None:
    told = in_shell(
        "umask 000; $Q enqueue --id a -- sh -c 'echo out; umask' && $Q enqueue --id long -- sleep 60 && "
        "$Q worker start --detach",
        crew.home,
    )
    assert told.code == 0, told
    try:
        crew.until_state("completed", "a")
        crew.until_state("processing", "long")
        assert modes(crew.home) == {("directory", 0o700), ("file", 0o600)}
        names = {path.name for path in crew.home.iterdir()}
        assert names >= {
            "queue.db",
            "queue.db-wal",
            "queue.db-shm",
            "queue.db.files",
            "queue.db.runcue",
            "worker.log",
        }
    finally:
        assert crew.run("worker", "stop", "--now").returncode == 0
    assert modes(crew.home) == {("directory", 0o700), ("file", 0o600)}
    assert crew.run("logs", "a").stdout.split() == ["out", "0000"], (
        "jobs keep the umask of whoever started workers"
    )


@pytest.mark.parametrize("spoil", ["group", "world", "owner", "file"])
def test_cl12_a_home_that_others_own_or_may_write_to_is_refused(
    spoil: str, crew: Crew, quick: Quick, queuectl: Run
) -> None:
    crew.enqueue({"id": "a", "command": "true"})
    if spoil == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(crew.home, 12345, 12345)
    elif spoil == "file":
        crew.database.chmod(0o666)
    else:
        crew.home.chmod({"group": 0o770, "world": 0o707}[spoil])
    before = picture(crew.home)
    verbs = ["list", "status", "show a", "enqueue -- true", "worker start", "worker stop", "doctor"]
    if spoil == "group":
        verbs += ["logs a", "wait a", "cancel a", "dlq retry --all", "worker start --detach", "worker list"]
        verbs += ["config set timeout 5", "pause default", "service list"]
    try:
        told = quick.all([(crew.home, verb.split()) for verb in verbs])
    finally:
        leave_nobody(crew.home)
    for verb, said in zip(verbs, told, strict=True):
        assert not complaint(said, 4), (verb, said)
    assert picture(crew.home) == before
    refused(queuectl("list"), 4, "--insecure")
    for args in (["list"], ["enqueue", "--id", "b", "--", "true"], ["worker", "list"]):
        assert queuectl("--insecure", *args).returncode == 0


# interruptions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 500_000])
def test_a_batch_that_is_killed_halfway_is_there_as_a_whole_or_not_at_all(size: int, crew: Crew) -> None:
    crew.enqueue({"id": "first", "command": "true"})
    file = crew.home.parent / "jobs.jsonl"
    file.write_text('{"command": "echo some words that take room"}\n' * 10_000)
    log = crew.home / "queue.db-wal"
    with crew.begun("enqueue", "--file", str(file)) as process:
        until_sync(
            lambda: (log.exists() and log.stat().st_size >= size) or process.poll() is not None, "to store"
        )
        process.kill()
        process.wait(BOUND)
    with crew.reading() as reader:
        assert reader.job_counts()["pending"] in {1, 10_001}
        assert reader.health()["problems"] == []
    assert crew.run("enqueue", "--", "true").returncode == 0


def until_it_waits(pid: int) -> None:
    """Return when a command has loaded what it needs and sleeps, whenever one looks."""
    looks = 0

    def look() -> bool:
        nonlocal looks
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        has_loaded = "msgspec" in Path(f"/proc/{pid}/maps").read_text()
        looks = looks + 1 if has_loaded and state == "S" else 0
        return looks >= 3

    until_sync(look, "to wait")


@pytest.mark.parametrize(
    "args",
    [
        ["wait", "later"],
        ["wait", "--all"],
        ["logs", "-f", "later"],
        ["status", "--watch"],
        ["enqueue", "-"],
        ["demo"],
    ],
    ids=" ".join,
)
def test_ctrl_c_ends_whatever_takes_long(args: list[str], crew: Crew) -> None:
    crew.enqueue({"id": "later", "command": "true", "delay": 3600})
    with on_a_terminal(crew.home, *args) as (process, until_shown):
        until_it_waits(process.pid)
        if args == ["demo"]:
            until_shown("started")
        process.send_signal(signal.SIGINT)
        shown = until_shown("")
        assert process.wait(BOUND) == 130, shown
    assert "Traceback" not in shown
    assert "Error" not in shown
    assert shown.count("\x1b[?1049h") == shown.count("\x1b[?1049l")


def test_ctrl_c_ends_the_waiting_for_workers_and_not_their_work(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue({"id": "runs", "command": f'until test -e "{tmp_path}/go"; do sleep 0.05; done'})
    supervisor = crew.start()
    crew.until_state("processing", "runs")
    with on_a_terminal(crew.home, "worker", "stop") as (process, until_shown):
        until_shown("Waiting for 1 running")
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 130
        assert "Not waiting any longer" in until_shown("")
    (tmp_path / "go").touch()
    assert supervisor.wait() == 0
    assert crew.jobs()["runs"]["state"] == "completed"


def test_a_home_that_is_deleted_under_workers_is_told_and_they_leave(crew: Crew, tmp_path: Path) -> None:
    crew.enqueue({"id": "runs", "command": f'echo $$ > "{tmp_path}/pid"; exec sleep 600'})
    supervisor = crew.start()
    shell = int(
        until_sync(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the job to run")
    )
    shutil.rmtree(crew.home)
    assert supervisor.wait() == 3
    assert "Traceback" not in supervisor.said()
    assert "The home is gone" in supervisor.said()
    assert "was deleted" in supervisor.said()
    assert not crew.home.exists()
    until_sync(lambda: gone([shell]), "the job to end")


# a full disk ----------------------------------------------------------------------------------------------

FULL = """
mount -t tmpfs -o size=1m none "$DISK" || exit 77
$Q enqueue --id before -- true || exit 1
dd if=/dev/zero of="$DISK/fill" bs=4k 2> /dev/null
for verb in "enqueue --id b -- true" "config set timeout 5" "cancel before" "pause default" \
            "service set x --rate 1/s" "worker start" list status "show before"; do
    $Q $verb > "$SAID/out" 2> "$SAID/err"
    echo "$verb: $? $(wc -l < "$SAID/err") $(cat "$SAID/err")"
done
rm "$DISK/fill"
$Q enqueue --id after -- true
$Q list --json
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can mount a small disk"
)
def test_a_full_disk_is_told_in_one_line_and_costs_nothing(tmp_path: Path) -> None:
    disk, said = tmp_path / "disk", tmp_path / "said"
    disk.mkdir()
    said.mkdir()
    script = FULL.replace("$Q", shlex.join(QUEUECTL))
    done = subprocess.run(
        ["unshare", "-m", "/bin/bash", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(disk / "home", {"DISK": str(disk), "SAID": str(said)}),
        timeout=BOUND,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("a small disk cannot be mounted here")
    first, *lines, last, rows = done.stdout.splitlines()
    assert (first, last) == ("Enqueued before", "Enqueued after")
    assert [row["id"] for row in json.loads(rows)] == ["after", "before"]
    for line in lines:
        verb, _, told = line.partition(": ")
        code, number, *_ = told.split()
        may_go_on = verb in {"list", "status", "show before"}
        assert (code, number) == ("3", "1") or (may_go_on and (code, number) == ("0", "0")), line
        assert code == "0" or re.search(r"No room|No space|disk", told), line
