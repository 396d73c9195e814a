"""What is written about queuectl is true: the reference, the tour in the README, the guide, and the picture.

Commands in a ```console block begin with `$ `. Those of the tour and of the guide run in their order on a
terminal, in a home of their own. A line that a page shows below a command is one of those
that the command shows; `…` stands for whatever differs from day to day. Wherever else a page names a command, in
a block or within a line, there is such a command, and it has these options.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import click
import pytest

from runcue.cli.main import QUEUECTL, RUNCUE, program
from runcue.sim.main import command as sim
from tools import cli_reference, picture

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guides" / "shell-queue.md"
ON_CALL = ROOT / "docs" / "guides" / "operating.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"\s+# .*$")
SPAN = re.compile(r"(?<!`)`((?:queuectl|runcue|runcue-sim|make) [^`]+)`(?!`)")
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def section(page: Path, title: str) -> str:
    """One section of a page, from its heading to the next of the same depth."""
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found is not None, f"{page.name} has no section {title!r}"
    return found[1]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands in the blocks of a page, each with the lines that the page shows below it."""
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield COMMENT.sub("", command), [line for line in shown if line]


def is_shown(line: str, text: str) -> bool:
    """True when a terminal showed that line, but for what `…` stands for."""
    pattern = ".*".join(map(re.escape, line.split("…")))
    return re.search(rf"^{pattern}$", STYLE.sub("", text), re.MULTILINE) is not None


def test_a_line_is_compared_but_for_what_differs() -> None:
    assert is_shown("in …, well", "one\n\x1b[1min\x1b[0m 3 s, well\ntwo")
    assert not is_shown("in …, well", "in 3 s, ill")
    assert not is_shown("in", "in 3 s")


def test_commands_are_found_with_what_is_shown_below_them() -> None:
    text = "```console\n$ one  # first\nshown\n\n$ two '# no comment'\n```\n\n```text\n$ three\n```\n"
    assert list(commands(text)) == [("one", ["shown"]), ("two '# no comment'", [])]


# ------------------------------------------------------------------------------------------- the reference


def test_the_reference_is_what_help_says_now() -> None:
    assert cli_reference.PAGE.read_text("utf-8") == cli_reference.page(), "run: python tools/cli_reference.py"


def test_the_reference_shows_what_a_terminal_shows() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "runcue.cli", "service", "set", "--help"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    assert f"#### queuectl service set\n\n```text\n{shown}```\n" in cli_reference.page()


@pytest.mark.parametrize("verb", [verb for table in QUEUECTL.values() for verb in table])
def test_the_guide_speaks_of_every_verb(verb: str) -> None:
    assert re.search(rf"(queuectl|`){re.escape(f' {verb}')}|`{verb}\b", GUIDE.read_text("utf-8")), verb


@pytest.mark.parametrize("verb", [verb for table in RUNCUE.values() for verb in table])
def test_the_guide_for_who_is_on_call_speaks_of_every_verb(verb: str) -> None:
    assert re.search(rf"runcue {verb}\b|`{verb}\b", ON_CALL.read_text("utf-8")), verb


def test_what_who_is_on_call_is_shown_is_what_a_terminal_shows(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    seen = {}
    for command, lines in commands(ON_CALL.read_text("utf-8")):
        text, code = picture.on_terminal(command, tmp_path)
        assert code == 0, f"{command}: {text}"
        assert [line for line in lines if not is_shown(line, text)] == [], f"{command}: {text}"
        seen[command] = STYLE.sub("", text)
    story = seen["runcue demo --keep demo"]
    assert story.index("depot is left alone") < story.index("depot answers again")
    for words in (
        "page-9: ValueError: page 9 is empty",
        "completed  28",
        "failed     2",
        "parcels    5 arrived",
    ):
        assert words in story, words


# ------------------------------------------------------------------------------------------------- the tour


def test_the_picture_shows_the_tour() -> None:
    tour = [command for command, _ in commands(section(README, "queuectl: a queue for the terminal"))]
    assert tour == [step.command for step in picture.TOUR]
    assert f"]({picture.PICTURE.relative_to(ROOT).as_posix()})" in README.read_text("utf-8")
    drawn = picture.PICTURE.read_text("utf-8")
    words = [word for step in picture.TOUR for word in step.command.split()]
    assert [word for word in words if f">{escape(word)}</text>" not in drawn] == []


def test_the_picture_shows_nothing_of_the_machine_it_was_made_on() -> None:
    drawn = picture.PICTURE.read_text("utf-8")
    texts = re.findall(r">([^<>]*)</text>", drawn)
    assert [text for text in texts if re.match(r"/[a-z]+/|20[0-9][0-9]-(?!01-31)", text)] == []
    assert re.findall(r"https?://[^\"]*", drawn) == ["http://www.w3.org/2000/svg"]


def test_what_does_not_fit_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="cut"):
        picture.svg("x" * (picture.COLUMNS + 1))


def test_the_tour_goes_as_the_readme_says(tmp_path: Path) -> None:
    seen = {}
    for step, text, code in picture.session(tmp_path):
        assert code == step.code, f"{step.command}: {text}"
        seen[step.command] = text
    assert "LAST FAILURES" in seen["queuectl status"]
    assert "call-3" in seen["queuectl list"]
    assert "No such file" in seen["queuectl dlq list"]
    assert "1 data.csv" in seen["queuectl wait report && queuectl logs report"]
    assert "Stopped 2 workers." in seen["queuectl worker stop"]


def test_the_guide_goes_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    try:
        for command, lines in commands(GUIDE.read_text("utf-8")):
            if shutil.which(command.split()[0]) is None and not command.startswith("queuectl"):
                continue
            text, code = picture.on_terminal(command, tmp_path)
            assert code == 0, f"{command}: {text}"
            assert [line for line in lines if not is_shown(line, text)] == [], f"{command}: {text}"
    finally:
        picture.on_terminal("queuectl worker stop --now", tmp_path)


# ------------------------------------------------------------------------------------- all that pages name


def named(text: str) -> Iterator[list[str]]:
    """Every call of a program of ours in the blocks and within the lines of a page, in words."""
    lines = [command for command, _ in commands(text)]
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += [" ".join(span.split()) for span in SPAN.findall(outside)]
    for line in lines:
        words: list[str] = []
        for word in [*shlex.shlex(line, posix=True, punctuation_chars="();<>|&"), ";"]:
            if not set(word) <= set("();<>|&"):
                words += [] if not words and re.match(r"\w+=", word) else [word]
                continue
            if words and words[0] in {"queuectl", "runcue", "runcue-sim", "make"}:
                yield words
            words = []


def mistake(words: list[str]) -> str | None:
    """What is wrong with a call, or None: a verb that there is not, or an option that it has not."""
    name, *rest = words
    if name == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        wrong = [word for word in rest if re.fullmatch(r"[a-z-]+", word) and word not in targets]
        return f"make has no {wrong[0]}" if wrong else None
    command: click.Command = sim if name == "runcue-sim" else program(name)
    options: dict[str, click.Parameter | None] = {"--help": None, "--version": None}
    following = iter(rest)
    for word in following:
        for parameter in command.params:
            options |= dict.fromkeys([*parameter.opts, *parameter.secondary_opts], parameter)
        if word == "--":
            return None
        if re.match(r"--?[a-z]", word):
            option, is_given, _ = word.partition("=")
            if option not in options:
                return f"{command.name} has no {option}"
            if not is_given and not getattr(options[option], "is_flag", True):
                next(following, None)
        elif isinstance(command, click.Group):
            below = command.get_command(click.Context(command), word)
            if below is None:
                return f"{command.name} has no {word}"
            command = below
    return None


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_every_command_that_a_page_names_is_there_and_has_these_options(page: Path) -> None:
    wrong = [(words, mistake(words)) for words in named(page.read_text("utf-8"))]
    assert [(" ".join(words), what) for words, what in wrong if what is not None] == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("queuectl enqueue --id a -- ls --nonsense", None),
        ("queuectl enqueu --id a", "queuectl has no enqueu"),
        ("true | queuectl enqueue --idd a", "enqueue has no --idd"),
        ("A=1 runcue set q.db api --rate=2/s", None),
        ("runcue set q.db api --rates 2/s && true", "set has no --rates"),
        ("queuectl --home x config set max-retries 5", None),
        ("runcue-sim --scenario burst --sett a=1", "runcue-sim has no --sett"),
        ("make test ARGS=-x", None),
        ("make tests", "make has no tests"),
    ],
)
def test_a_mistake_in_a_command_is_found(line: str, what: str | None) -> None:
    found = [
        mistake(words) for words in named(f"```console\n$ {line}\n```\n\nand `{line.rpartition(' | ')[2]}`\n")
    ]
    assert found
    assert {str(one) for one in found} == {str(what)}
