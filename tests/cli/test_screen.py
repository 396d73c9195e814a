"""What reaches a terminal: clean text, widths, colour, tables and times."""

from __future__ import annotations

import re
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runcue.cli import screen
from tests.cli.stock import NASTY


def is_safe(text: str) -> bool:
    """True when no terminal obeys or hides anything of it."""
    return not any(unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for sign in text)


def seen(text: str) -> int:
    """How many columns a text takes."""
    signs = [sign for sign in text if not unicodedata.combining(sign)]
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in signs)


@given(st.text())
def test_clean_text_is_one_line_that_no_terminal_obeys(text: str) -> None:
    assert is_safe(screen.clean(text))


@given(st.text(alphabet=st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert screen.clean(text) == text


def test_what_is_cleaned_can_still_be_read() -> None:
    assert screen.clean("a\tb\nc\x1b[2J\x9b\x7f") == "a\\tb\\nc\\x1b[2J\\x9b\\x7f"
    assert screen.clean("\u202eabc\ud800") == "\\u202eabc\\ud800"
    assert screen.clean("a\u00a0b") == "a b"
    assert screen.clean("grün 日本") == "grün 日本"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "40 ms"),
        (0.42, "0.4 s"),
        (9.96, "10 s"),
        (12, "12 s"),
        (59.7, "1 m"),
        (250, "4 m 10 s"),
        (7500, "2 h 5 m"),
        (3600, "1 h"),
        (86400 * 3, "3 d"),
        (86400 * 3 + 7200, "3 d 2 h"),
        (-5, "-5 s"),
        (float("inf"), "?"),
        (float("nan"), "?"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert screen.span(seconds) == text


def test_moments_are_those_of_the_jobs_view() -> None:
    assert screen.moment(1794807609.4384) == "2026-11-16T05:40:09.438Z"
    assert screen.moment(0) == "1970-01-01T00:00:00.000Z"
    assert screen.moment(None) == ""
    assert screen.moment(1e300) == "?"


@given(st.text(), st.integers(1, 40))
def test_cut_text_fits(text: str, width: int) -> None:
    cut = screen.cut(screen.clean(text), width)
    assert seen(cut) <= width


@given(st.text(), st.integers(0, 40))
def test_a_name_is_cut_in_its_middle_and_fits(text: str, width: int) -> None:
    whole = screen.clean(text)
    cut = screen.cut_middle(whole, width)
    assert seen(cut) <= width
    assert cut == whole or width == 0 or "…" in cut


def test_the_end_of_a_name_stays() -> None:
    assert screen.cut_middle("1a1e49e579dd30684b600000001", 12) == "1a1e4…000001"
    assert screen.cut_middle("日本語日本語", 7) == "日本…語"
    assert screen.cut_middle("abc", 3) == "abc"


def test_wide_signs_count_twice() -> None:
    assert screen.cut("日本語日本語", 5) == "日本…"


def test_coloured_text_is_cut_by_what_is_seen() -> None:
    assert screen.cut_styled("\x1b[1mabc\x1b[0mdef", 4) == "\x1b[1mabc\x1b[0m…"
    assert screen.cut_styled("\x1b[1mabc\x1b[0m", 3) == "\x1b[1mabc\x1b[0m"


@given(
    st.lists(st.lists(st.text(max_size=50), min_size=3, max_size=3), max_size=5),
    st.integers(20, 120),
)
def test_a_table_fits_the_terminal(rows: list[list[str]], columns: int) -> None:
    cells = [[screen.clean(cell) for cell in row] for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screen, "columns", lambda: columns)
        patch.setattr(screen, "is_terminal", lambda: True)
        patch.setenv("NO_COLOR", "1")
        for line in screen.aligned(("ONE", "TWO", "THREE"), cells):
            assert seen(line) <= columns


def test_the_widest_column_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "columns", lambda: 20)
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert screen.aligned(("ID", "COMMAND"), [("job1", "x" * 40)]) == [
        "ID    COMMAND",
        "job1  xxxxxxxxxxxxx…",
    ]


MADE_UP = "1a1e49e579dd30684b600000001"
HEADS = ("ID", "STATE", "TRIES", "PRIO", "COMMAND", "WAITING / ERROR")


@pytest.mark.parametrize(
    ("id", "columns", "heads"),
    [
        (MADE_UP, 82, [*HEADS[:-1], "WAITING / ERR…"]),
        (MADE_UP, 60, ["ID", "STATE", "COMMAND", "WAITING …"]),
        (MADE_UP, 40, ["ID", "STATE"]),
        (MADE_UP, 30, ["ID"]),
        ("page-77", 40, ["ID", "STATE", "COMMAND", "WAITING …"]),
        ("page-77", 20, ["ID", "STATE"]),
    ],
)
def test_other_columns_are_given_up_before_an_id(
    id: str, columns: int, heads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "columns", lambda: columns)
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    row = (id, "completed", "0/3", "0", "x" * 60, "y" * 60)
    head, line = screen.aligned(HEADS, [row])
    assert line.split()[:2] == [id, "completed"][: len(heads)]
    assert re.split("  +", head) == heads
    assert seen(line) <= columns


def test_a_very_long_id_leaves_room_and_one_that_must_be_cut_keeps_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    long = "a" * 90 + "-7"
    monkeypatch.setattr(screen, "columns", lambda: 80)
    name, state, *_ = screen.aligned(HEADS, [(long, "completed", "0/3", "0", "x" * 60, "y" * 60)])[1].split()
    assert (len(name) >= screen.LONGEST_NAME, name[-3:], state) == (True, "a-7", "completed")
    monkeypatch.setattr(screen, "columns", lambda: 12)
    assert screen.aligned(HEADS, [(MADE_UP, "pending", "", "", "", "")])[1] == "1a1e4…000001"


def test_in_a_pipe_a_table_is_lines_of_tabs_without_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    screen.table(("A", "B"), [("x\ty", "z" * 500), ("\x1b", "")])
    assert capsys.readouterr().out == "x\\ty\t" + "z" * 500 + "\n\\x1b\t\n"


def test_json_holds_nothing_that_a_terminal_obeys(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    screen.show_json([NASTY, "grün"])
    shown = capfdbinary.readouterr().out
    assert msgspec.json.decode(shown) == [NASTY, "grün"]
    assert is_safe(shown.decode().rstrip("\n"))
    assert "grün".encode() in shown


def test_what_the_locale_cannot_show_is_spelled() -> None:
    assert screen._spell("a… → · 日", "ascii") == "a... -> - \\u65e5"
    assert screen._spell("ü…", "latin-1") == "ü..."
    assert screen._spell("ü", "no-such-encoding") == "\\xfc"


def test_information_goes_to_stderr_and_data_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    screen.say("data")
    screen.note("note")
    screen.warn("careful")
    screen.progress("nobody sees this in a pipe")
    said = capsys.readouterr()
    assert said.out == "data\n"
    assert said.err == "note\nWarning: careful\n"
