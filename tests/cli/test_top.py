"""The live screen: what it shows, its keys, and that it outlives whatever becomes of the file."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

import runcue
from runcue.cli.home import Home
from runcue.cli.place import File, Place
from runcue.cli.top import lines, look
from runcue.cli.top.app import PARTS, Main, Top
from runcue.cli.top.boxes import Box, Live, Logs, Question
from runcue.cli.top.look import Item, Look, Scene, Wish
from runcue.cli.top.table import Table
from tests.cli.crew import RUNCUE, environment
from tests.cli.works import CANARY
from tests.terminal import on_terminal, read_until

BOUND = 240.0
NEVER = threading.Event()
LOCKING = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each key the pilot looks whether the program has come to rest; more often than it does by itself."""
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.005)


@pytest.fixture
def file(works: Path, tmp_path: Path) -> Path:
    for one in works.parent.iterdir():
        shutil.copy(one, tmp_path / one.name)
    return tmp_path / "queue.db"


@asynccontextmanager
async def watching(
    place: Place | Path, *, size: tuple[int, int] = (80, 24), is_unicode: bool = True
) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    """The screen after its first look; it looks again when the test says so."""
    app = Top(File(str(place)) if isinstance(place, Path) else place, is_unicode=is_unicode, every=None)
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.main.scene is not None or bool(app.main.trouble))
        await pilot.pause()
        yield app, pilot


async def tick() -> None:
    """Let the screen and its threads go on: it tells nobody when it changes."""
    await asyncio.to_thread(NEVER.wait, 0.02)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until that is so, within a bound."""
    async with asyncio.timeout(BOUND):
        while not is_so():
            await tick()


async def shows(app: Top, *words: str) -> str:
    """Wait until all these words are on the screen, in one picture; all that is there."""
    text = ""
    try:
        async with asyncio.timeout(BOUND):
            while not all(re.search(word, text := screen_of(app)) for word in words):
                await tick()
    except TimeoutError:
        missing = [word for word in words if not re.search(word, text)]
        pytest.fail(f"{missing} did not come; this stands there:\n{text}")
    return text


def screen_of(app: Top) -> str:
    """What stands on the terminal, line by line; nothing while it is being laid out, or when it does not fit."""
    width, height = app.size
    found = ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]
    if len(found) != height or any(lines_width(line) != width for line in found):
        return ""
    return "\n".join(line.rstrip() for line in found)


def lines_width(line: str) -> int:
    from rich.cells import cell_len

    return cell_len(line)


def table(app: Top) -> Table:
    return app.main.query_one(Table)


def ids(app: Top) -> list[str]:
    return [item.id for item in table(app).items]


async def change(file: Path, *acts: Callable[[runcue.Cue], Awaitable[Any]]) -> None:
    cue = runcue.Cue(file, retention=None)
    try:
        for act in acts:
            await act(cue)
    finally:
        await cue.close()


def state(file: Path, id: str) -> str:
    with runcue.Reader(file) as reader:
        work = reader.get(id)
    assert work is not None
    return str(work.state)


# the picture ------------------------------------------------------------------------------------------------


async def test_everything_fits_on_80_by_24(file: Path) -> None:
    async with watching(file) as (app, _):
        words = [
            "runcue top", "pending 6  running 1  completed 1  failed 3  cancelled 1", "ended 0.0/s", "waiting 6",
            "why 1 ", "Services", "1 active   2 failed   3 recent   4 services", "WAITS FOR / ERROR", "queue paused",
            "after 1/2, 1 never submitted",
            "/ Filter d Details l Logs r Retry c Cancel p Pause s Sort tab View ? Help q Quit",
        ]  # fmt: skip
        drawn = (
            r"api +\[░{10}\] 0/4 running +1 of 1/h +◐ RATE USED UP \d", r"depot +0 running +- +○ OPEN \d",
            r"stuck +running +1 +read +for \d",
        )  # fmt: skip
        await shows(app, *map(re.escape, words), *drawn)


async def test_without_unicode_everything_is_ascii(file: Path) -> None:
    async with watching(file, is_unicode=False) as (app, pilot):
        for key in ("2", "4", "1"):
            await pilot.press(key)
            assert (await shows(app, "SERVICE|ID")).isascii()
        await pilot.press("down", "c")
        assert (await shows(app, "Yes, cancel it")).isascii()
        await pilot.press("n", "question_mark")
        assert (await shows(app, "choose a line")).isascii()


async def test_no_color_leaves_only_shades_of_grey(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with watching(file) as (app, _):
        await shows(app, "limited")
        picture = app.export_screenshot()
    inside = picture.split("</style>", 1)[1]
    colors = set(re.findall(r"fill: #([0-9a-f]{6})", picture)) | set(
        re.findall(r'fill="#([0-9a-f]{6})"', inside)
    )
    window = {"ff5f57", "febc2e", "28c840", "292929", "c5c8c6"}  # what the exporter draws around the terminal
    assert [color for color in colors - window if not color[:2] == color[2:4] == color[4:]] == []


async def test_a_small_terminal_still_shows_the_works(file: Path) -> None:
    async with watching(file, size=(40, 16)) as (app, pilot):
        await shows(app, "stuck")
        await pilot.resize_terminal(120, 40)
        await shows(app, "held +pending +0 +read +queue paused")


async def test_nothing_that_a_terminal_obeys_and_no_secret_comes_through(file: Path) -> None:
    async with watching(file, size=(160, 50)) as (app, pilot):
        texts = [await shows(app, "limited")]
        for key, words in (
            ("4", "SERVICE"),
            ("3", "done +completed"),
            ("2", r"broken .*https://me:\*{3}@host"),
        ):
            await pilot.press(key)
            texts.append(await shows(app, words))
        for id, words in (("nasty", "nasty has failed"), ("broken", r"token=\*{3}")):
            await choose(app, id)
            await pilot.press("d")
            texts.append(await shows(app, words, "Traceback"))
            await pilot.press("escape")
            await until(lambda: app.screen is app.main)
    for text in texts:
        assert all(sign.isprintable() or sign == "\n" for sign in text)
        assert "\u202e" not in text
        assert CANARY not in text


async def test_a_queue_of_jobs_speaks_of_jobs(stock: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(stock, home)
    async with watching(Home(str(home))) as (app, pilot):
        text = await shows(app, "queuectl top", r"pending 4  processing 1  completed 1  failed 1  dead 3")
        assert "stuck" in text
        await pilot.press("2")
        await shows(app, r"dead1 +dead +1/1 +fail +RuntimeError")
        await choose(app, "dead1")
        await pilot.press("r")
        await shows(app, "dead1 is tried again")


# choosing ---------------------------------------------------------------------------------------------------


async def test_views_are_chosen_by_tab_by_number_and_by_mouse(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await pilot.press("tab")
        await until(lambda: set(ids(app)) == {"broken", "nasty", "parcel"})
        await pilot.press("3")
        await until(lambda: set(ids(app)) == {"broken", "nasty", "parcel", "done", "dropped"})
        await pilot.press("shift+tab")
        await until(lambda: set(ids(app)) == {"broken", "nasty", "parcel"})
        await pilot.click("#tabs", offset=(40, 0))
        await until(lambda: ids(app) == ["api", "depot"])
        await shows(app, "1 of 1/h, 0 of 200,000 tokens")


async def test_a_filter_holds_while_it_is_typed_and_esc_ends_it(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await pilot.press("slash")
        field = app.main.query_one("#filter", Input)
        await until(lambda: app.focused is field)
        field.value = "paus"
        await until(lambda: ids(app) == ["held"])
        await pilot.press("enter")
        await shows(app, "filter: paus")
        await pilot.press("escape")
        await until(lambda: len(ids(app)) == 7)
        await pilot.press("slash")
        field.value = "!read"
        await until(lambda: set(ids(app)) == {"limited", "parcel-2"})
        await pilot.press("enter", "slash", "escape")
        await until(lambda: len(ids(app)) == 7)


async def test_keys_that_are_typed_into_the_filter_do_nothing_else(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await pilot.press("slash")
        await until(lambda: isinstance(app.focused, Input))
        await pilot.press(*"qcrp1")
        await until(lambda: app.main.wish.text == "qcrp1")
        await shows(app, "nothing here")
        assert app.is_running
        assert not isinstance(app.screen, Question)
        assert app.main.wish.view == "active"


async def test_a_filter_finds_what_is_not_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.cli.top.look.MOST", 3)
    monkeypatch.setattr("runcue.cli.top.look.MOST_SEARCHED", 5)
    file = tmp_path / "q.db"
    works = [{"task": "t", "id": f"w{number}", "params": {"n": f"x{number}y"}} for number in range(20)]
    cue = runcue.Cue(file)
    cue.task("t")(lambda work: None)
    await cue.submit_many(works)
    await cue.close()
    async with watching(file) as (app, pilot):
        await shows(app, "the newest of each state only")
        assert ids(app) == ["w17", "w18", "w19"]
        await pilot.press("slash", *"x2y")
        await until(lambda: "w2" in {item.id for item in app.main.scene.items} or ids(app) == [])  # type: ignore[union-attr]


async def test_lines_are_sorted(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await pilot.press("s")
        await shows(app, "sorted by task")
        await until(
            lambda: [item.what for item in table(app).items] == sorted(item.what for item in table(app).items)
        )
        await pilot.press("s")
        await until(lambda: ids(app)[0] == "again")
        await pilot.press("s", "s")
        await until(lambda: app.main.wish.order == "as it comes")


# nothing jumps ----------------------------------------------------------------------------------------------


def cursor_line(app: Top) -> tuple[str, int]:
    chosen = table(app).chosen
    assert chosen is not None
    return chosen.id, table(app)._index - table(app)._top


async def test_the_chosen_line_stays_where_it_is_whatever_comes_and_goes(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await pilot.press("down", "down", "down", "down")
        before = cursor_line(app)
        assert before[0] == ids(app)[4]
        await change(file, lambda cue: cue.cancel(ids(app)[1]), lambda cue: cue.cancel(ids(app)[2]))
        await app.main.look()
        assert cursor_line(app)[0] == before[0]
        assert len(ids(app)) == 5


async def test_a_chosen_work_that_ends_stays_until_the_cursor_moves(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await pilot.press("down", "down")
        chosen, line = cursor_line(app)
        await change(file, lambda cue: cue.cancel(chosen))
        await app.main.look()
        assert cursor_line(app) == (chosen, line)
        await shows(app, rf"{chosen} +cancelled")
        await pilot.press("down")
        await app.main.look()
        assert chosen not in ids(app)


async def test_a_cursor_that_nobody_moved_stays_on_the_first_line(file: Path) -> None:
    async with watching(file) as (app, pilot):
        first, second = ids(app)[:2]
        await change(file, lambda cue: cue.cancel(first))
        await app.main.look()
        assert ids(app)[0] == second
        assert cursor_line(app) == (second, 0)
        await pilot.press("down", "escape")
        assert cursor_line(app) == (second, 0)


async def test_of_many_lines_the_one_under_the_cursor_is_seen_and_stays_in_its_place(file: Path) -> None:
    async with watching(file) as (app, _):
        one, room = table(app), table(app).size.height - 1
        many = [Item(f"w{number:02}", "pending") for number in range(100)]
        one.put("active", many, None)
        for step in (room + 3, -1, -room, 1_000_000, -3, -1_000_000, 5):
            one.action_move(step)
            chosen = one.chosen
            assert chosen is not None
            await shows(app, chosen.id)
            assert one._top <= one._index < one._top + room
        one.action_page(1)
        assert one._index == 5 + room - 1
        one.action_move(60)
        one.action_move(-3)
        before = cursor_line(app)
        assert before[1] > 0
        one.put("active", many[10:], None)
        assert cursor_line(app) == before
        one.put("active", [Item("new", "running"), *many], None)
        assert cursor_line(app) == before


# acting -----------------------------------------------------------------------------------------------------


async def choose(app: Top, id: str) -> None:
    """Put the cursor on that line."""
    await until(lambda: id in ids(app))
    table(app).action_move(ids(app).index(id) - table(app)._index)
    assert cursor_line(app)[0] == id


async def test_details_tell_all_about_a_work(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await choose(app, "limited")
        await pilot.press("enter")
        await shows(app, "limited waits for the rate limit of api", r'params +\{"api_key":"\*\*\*"')
        assert isinstance(app.screen, Live)
        await pilot.press("escape")
        assert app.screen is app.main
        await pilot.press("2")
        await choose(app, "broken")
        await pilot.click(Table, offset=(3, 1 + ids(app).index("broken")), times=2)
        await shows(app, "broken has failed: its only attempt failed", "Failed attempts")
        await pilot.press("q")
        assert app.screen is app.main


async def test_logs_follow_what_a_command_prints(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    gate = tmp_path / "gate"
    cue = runcue.Cue(file)
    script = (
        f"echo first; echo bad >&2; until [ -e \"{gate}\" ]; do sleep 0.05; done; printf 'last\\033[2J\\n'"
    )
    cue.task("say", executor="subprocess")(lambda work: runcue.Command(script, shell=True))
    async with asyncio.timeout(BOUND), cue:
        await cue.submit("say", id="one")
        async with watching(file) as (app, pilot):
            await until(lambda: state(file, "one") == "running")
            await app.main.look()
            await pilot.press("l")
            await shows(app, "one  stdout", "first")
            assert isinstance(app.screen, Logs)
            await pilot.press("tab")
            await shows(app, "one  stderr", "bad")
            await pilot.press("tab")
            gate.touch()
            await cue.join()
            assert "\x1b" not in await shows(app, "last", r"\[completed, attempt 1\]")
    await cue.close()


async def test_a_failed_work_is_tried_again(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await pilot.press("2")
        await choose(app, "broken")
        await pilot.press("r")
        await shows(app, "broken is tried again")
        assert state(file, "broken") == "pending"
        await pilot.press("1")
        await choose(app, "later")
        await pilot.press("r")
        await shows(app, "later is pending: only what is failed can be tried again")


async def test_a_work_is_cancelled_after_a_question_by_key_or_mouse(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await choose(app, "later")
        for key in ("n", "escape", "enter", "y"):
            assert state(file, "later") == "pending"
            await pilot.press("c")
            await shows(app, r"Cancel unit later \(read\)\?")
            await pilot.press(key)
            await until(lambda: app.screen is app.main)
        await shows(app, "later is cancelled")
        assert state(file, "later") == "cancelled"
        await choose(app, "held")
        await pilot.press("c")
        await shows(app, "Cancel unit held")
        await pilot.click("#yes")
        await shows(app, "held is cancelled")
        assert state(file, "held") == "cancelled"


async def test_what_changed_meanwhile_is_told_with_its_name(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await choose(app, "later")
        await pilot.press("c")
        await shows(app, "Cancel unit later")
        await change(file, lambda cue: cue.cancel("later"))
        await pilot.press("y")
        await shows(app, r"later has ended already\.")
        await pilot.press("2")
        await choose(app, "broken")
        await until(lambda: app.main._since is None)  # it looks no more before the key
        await change(file, lambda cue: cue.retry("broken"))
        await pilot.press("r")
        await shows(app, r"broken is no longer failed\.")


async def test_a_service_is_paused_and_resumed(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await choose(app, "limited")
        await pilot.press("p")
        await shows(app, "Paused api", "○ PAUSED")
        await pilot.press("4")
        await choose(app, "api")
        await pilot.press("p")
        await shows(app, "Resumed api", "◐ RATE")
        await pilot.press("d")
        await shows(app, "Choose a unit first")
        await pilot.press("1")
        await choose(app, "later")
        await pilot.press("p")
        await shows(app, "uses no service")


@pytest.mark.parametrize("screen", [Main, Box, Logs, Question])
def test_a_key_does_the_same_with_caps_lock(screen: type[Screen[Any]]) -> None:
    actions = {
        key: binding.action
        for binding in screen.BINDINGS
        if isinstance(binding, Binding)
        for key in binding.key.split(",")
        if len(key) == 1 and key.isalpha() and key not in "jk"  # those move, as in vi
    }
    assert {key: actions.get(key.swapcase()) for key in actions} == actions


async def test_the_footer_names_each_key_once(file: Path) -> None:
    async with watching(file) as (app, _):
        footer = await shows(app, "Quit")
        assert footer.splitlines()[-1].split() == [
            "/", "Filter", "d", "Details", "l", "Logs", "r", "Retry", "c", "Cancel", "p", "Pause", "s", "Sort", "tab",
            "View", "?", "Help", "q", "Quit",
        ]  # fmt: skip


async def test_help_opens_and_closes_and_q_leaves(file: Path) -> None:
    async with watching(file) as (app, pilot):
        for key in ("question_mark", "escape", "q"):
            await pilot.press("question_mark")
            await shows(app, "choose a line", "leave; esc closes this")
            assert isinstance(app.screen, Box)
            await pilot.press(key)
            await until(lambda: app.screen is app.main)
        await pilot.press("q")
        await pilot.pause()
    assert app.return_code == 0


# what becomes of the file -----------------------------------------------------------------------------------


async def test_a_file_that_is_gone_is_told_and_one_that_comes_back_is_shown(file: Path) -> None:
    async with watching(file) as (app, _):
        away = file.with_name("away")
        away.mkdir()
        for one in file.parent.glob("queue.db*"):
            one.rename(away / one.name)
        await app.main.look()
        text = await shows(app, "! .*is not there", r"this was at \d\d:\d\d:\d\d UTC")
        assert "stuck" in text
        for one in away.iterdir():
            one.rename(file.parent / one.name)
        await app.main.look()
        await until(lambda: not app.main.trouble)
        assert "is not there" not in await shows(app, "stuck")


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process has the file open, and lets nobody else in."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCKING, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"locked"
        try:
            yield
        finally:
            process.communicate(timeout=BOUND)


async def test_a_locked_file_is_told_and_freezes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runcue.stores.sqlite import file as files

    monkeypatch.setattr(files, "OPENING", 0.1)
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    async with watching(file) as (app, pilot):
        app.main._look.close()
        with locked(file):
            await app.main.look()
            assert app.main.trouble
            await pilot.press("2")
            await shows(app, "! .*")
            await pilot.press("r")
        await app.main.look()
        await until(lambda: not app.main.trouble)


async def test_a_damaged_file_is_told(file: Path) -> None:
    async with watching(file) as (app, _):
        app.main._look.close()
        for one in file.parent.glob("queue.db-*"):
            one.unlink()
        file.write_bytes(b"\xa5" * 8192)
        await app.main.look()
        await shows(app, "! .*queue.db")


async def test_a_long_path_leaves_room_for_what_is_wrong(file: Path, tmp_path: Path) -> None:
    longer = tmp_path / "of a length which messages about it cut " / ("x" * 60) / file.name
    longer.parent.mkdir(parents=True)
    for one in file.parent.glob(f"{file.name}*"):
        shutil.move(one, longer.parent)
    async with watching(longer) as (app, _):
        app.main._look.close()
        longer.write_bytes(b"\xa5" * 8192)
        await app.main.look()
        await shows(app, "! 'queue.db' is")


async def test_a_slow_disk_freezes_nothing_and_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    look = Look.look

    def slow(self: Look, wish: Wish) -> Scene:
        assert gate.wait(BOUND)
        return look(self, wish)

    monkeypatch.setattr("runcue.cli.top.app.SLOW", 0.0)
    app = Top(File(str(file)), every=0.1)
    async with app.run_test(size=(80, 24)):
        await until(lambda: app.main.scene is not None)
        monkeypatch.setattr(Look, "look", slow)
        await shows(app, "is the disk busy")
        app.simulate_key("question_mark")
        await shows(app, "choose a line")
        app.simulate_key("escape")
        await until(lambda: app.screen is app.main)
        monkeypatch.setattr("runcue.cli.top.app.SLOW", BOUND)
        gate.set()
        await until(lambda: not app.main.trouble)


async def test_a_look_that_comes_too_late_finds_nothing_to_show(file: Path) -> None:
    async with watching(file) as (app, _):
        await app.main.query(Table).remove()
        await app.main.look()


@pytest.mark.parametrize("part", PARTS)
async def test_a_picture_that_comes_too_late_finds_nothing_to_be_put_into(part: str, file: Path) -> None:
    async with watching(file) as (app, _):
        await app.main.query(part).remove()
        await app.main.look()


async def test_an_act_that_fails_is_told(file: Path) -> None:
    async with watching(file) as (app, pilot):
        await choose(app, "later")
        for one in file.parent.glob("queue.db*"):
            if one.is_file():
                one.unlink()
        await pilot.press("c")
        await shows(app, "Cancel unit later")
        await pilot.press("y")
        await shows(app, "! .*is not there")


# words ------------------------------------------------------------------------------------------------------


def test_a_spark_is_as_wide_as_its_room_and_shows_the_newest() -> None:
    assert lines.spark([], 5) == "     "
    assert lines.spark([0, 0], 4) == "  ▁▁"
    assert lines.spark([9, 9, 9, 0, 1, 8], 3) == "▁▂█"


def test_no_line_of_the_table_is_wider_than_its_room() -> None:
    item = Item("x" * 90, "processing", "1000/1000", "日本語" * 30, "e" * 300)
    for width in (40, 80, 200):
        columns = lines.widths([item], width, lines.heads("active"))
        row = lines.line(item, columns, is_chosen=False, is_kept=False)
        assert lines_width("".join(words for words, _ in row)) <= width


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (100, ["ID", "STATE", "TRIES", "TASK", "WAITS FOR / ERROR"]),
        (60, ["ID", "STATE", "TASK", "WAITS FOR…"]),
        (40, ["ID", "STATE"]),
        (30, ["ID"]),
        (20, ["ID"]),
    ],
)
def test_an_id_stays_whole_while_other_columns_can_be_given_up(width: int, shown: list[str]) -> None:
    item = Item("1a1e49e579dd30684b600000001", "pending", "0/3", "read out/7.json", "rate reader, 0.4 s")
    names = lines.heads("active")
    columns = lines.widths([item], width, names)
    text = "".join(words for words, _ in lines.line(item, columns, is_chosen=False, is_kept=False))
    assert text.split()[0] == (item.id if width > 20 else "1a1e49e57…b600000001")
    assert lines_width(text) <= width
    assert re.split("  +", lines.head(columns, names)[0][0].rstrip()) == shown


@pytest.mark.parametrize(
    ("more", "word"),
    [({"circuit": "open", "seconds": 5.0}, "OPEN 5 s"), ({"circuit": "half_open"}, "HALF OPEN"),
     ({"paused": True}, "PAUSED"),
     ({"blocked": "rate", "seconds": 2.0}, "RATE USED UP 2 s"), ({}, "OK")],
)  # fmt: skip
def test_each_state_of_a_service_has_a_word(more: dict[str, Any], word: str) -> None:
    one = {"circuit": None, "paused": False, "blocked": None, "seconds": None, **more}
    assert lines.health(one)[1] == word


@pytest.mark.parametrize(
    ("more", "state"),
    [({}, "ready"), ({"circuit": "closed"}, "ready"), ({"circuit": "open"}, "open"),
     ({"circuit": "half_open"}, "half open"), ({"circuit": "closed", "paused": True}, "paused")],
)  # fmt: skip
def test_a_service_whose_circuit_is_closed_is_ready(more: dict[str, Any], state: str) -> None:
    one = {"name": "api", "running": 0, "concurrent": None, "rates": [], "quantities": [], "circuit": None,
           "paused": False, "blocked": None, "seconds": None}  # fmt: skip
    assert look._of_service({**one, **more}).state == state


# a real terminal --------------------------------------------------------------------------------------------


def test_it_runs_in_a_real_terminal_and_leaves_it_as_it_was(file: Path, tmp_path: Path) -> None:
    env = environment(tmp_path, {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"})
    with on_terminal([*RUNCUE, "top", str(file)], env) as ours:
        sent = read_until(ours, b"stuck")
        os.write(ours, b"q")
        sent += read_until(ours, b"\x1b[?1049l")
    assert b"Services" in sent
