"""`runcue.progress`: what is drawn, where, and that nothing it meets can break a run."""

import asyncio
import io
import re
import sys
from itertools import pairwise
from typing import Any

import pytest

import runcue
from runcue import Cue
from runcue.api.progress import Picture, Tally, clock_text, last_text, live_text, rate_text


class Terminal(io.StringIO):
    """A stream that people look at."""

    def isatty(self) -> bool:
        return True


class Gone(Terminal):
    """A terminal that was closed on the other side, after some time."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)


def steady(cue: Cue) -> None:
    """A task that runs once a second."""
    cue.service("api", rate="1/s")

    @cue.task(uses="api")
    async def step(work: runcue.Work) -> None:
        if work.params.get("fail"):
            raise ValueError("no")


async def drawn(cue: Cue, stream: Any, count: int = 10, **options: Any) -> None:
    """Draw while so much is done."""
    steady(cue)
    async with cue, runcue.progress(cue, file=stream, **options):
        await cue.submit_many({"task": "step", "params": {"n": n}} for n in range(count))
        await cue.join()


# ---------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (150, "2:30"), (3723, "1:02:03"), (100 * 3600 + 5, "4d 4h")],
)
def test_a_time_is_written_as_people_read_it(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(1234, "1,234/s"), (12.34, "12.3/s"), (0.5, "30.0/min"), (0.001, "0.1/min")]
)
def test_a_rate_is_written_in_a_unit_that_gives_it_digits(rate: float, text: str) -> None:
    assert rate_text(rate) == text


@pytest.mark.parametrize(
    ("picture", "text"),
    [
        (Picture(Tally(120, 3, 2000), 12.3, 150), "120/2,000 done, 3 failed, 12.3/s, 2:30 left"),
        (Picture(Tally(120, 0, None), None, None), "120 done"),
        (Picture(Tally(0, 0, 5), 0.0, None), "0/5 done"),
    ],
)
def test_a_picture_is_told_with_what_is_known(picture: Picture, text: str) -> None:
    assert live_text(picture) == text


def test_the_last_line_tells_how_long_it_took() -> None:
    assert last_text(Tally(60, 1, 60), 30.0) == "60/60 done, 1 failed in 0:30 (2.0/s)"
    assert last_text(Tally(0, 0, 0), 0.0) == "0/0 done in 0:00"


# ---------------------------------------------------------------------------------------------- where to draw


async def test_what_is_no_terminal_gets_the_last_line_alone(cue: Cue) -> None:
    stream = io.StringIO()
    await drawn(cue, stream)
    assert stream.getvalue() == "10/10 done in 0:09 (1.1/s)\n"


@pytest.mark.usefixtures("without_rich")
async def test_without_rich_one_line_is_written_over(cue: Cue) -> None:
    stream = Terminal()
    await drawn(cue, stream)
    *lines, last = stream.getvalue().split("\r")
    assert "\n" not in "".join(lines)
    assert "6/10 done, 1.0/s, 0:04 left" in [re.sub(r"1\.\d/s", "1.0/s", line.rstrip()) for line in lines]
    assert last == "10/10 done in 0:09 (1.1/s)\n"


@pytest.mark.usefixtures("without_rich")
async def test_a_line_covers_what_was_there_before(cue: Cue) -> None:
    stream = Terminal()
    await drawn(cue, stream)
    lines = stream.getvalue().split("\r")[1:-1]
    assert all(len(after) >= len(before.rstrip()) for before, after in pairwise(lines))


async def test_with_rich_there_is_a_bar(cue: Cue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    before = sys.stdout, sys.stderr
    await drawn(cue, stream)
    text = stream.getvalue()
    assert "━" in text
    assert re.search(r"6/10 done, 1\.\d/s, 0:04 left", text)
    assert text.endswith("10/10 done in 0:09 (1.1/s)\n")
    assert (sys.stdout, sys.stderr) == before


async def test_stderr_is_where_it_is_drawn_unless_told_otherwise(
    cue: Cue, capsys: pytest.CaptureFixture[str]
) -> None:
    await drawn(cue, None, 2)
    assert capsys.readouterr().err == "2/2 done in 0:01 (2.0/s)\n"


# ------------------------------------------------------------------------------------------------ what counts


async def test_what_was_finished_before_does_not_count(cue: Cue) -> None:
    await drawn(cue, io.StringIO(), 5)
    stream = io.StringIO()
    async with cue, runcue.progress(cue, file=stream):
        await cue.submit("step", params={"fail": True})
        await cue.join()
    assert stream.getvalue().startswith("1/1 done, 1 failed in ")


async def test_a_total_may_be_known_before_everything_is_submitted(cue: Cue) -> None:
    stream = io.StringIO()
    await drawn(cue, stream, 3, total=20)
    assert stream.getvalue().startswith("3/20 done in ")


@pytest.mark.usefixtures("without_rich")
async def test_a_forecast_tells_how_long_it_takes(cue: Cue) -> None:
    async def forecast() -> float | None:
        return 7200.0

    stream = Terminal()
    await drawn(cue, stream, 3, forecast=forecast, total=6)
    first = re.search(r"(\d)/6 done[^\r]* (\d):00:00 left", stream.getvalue().split("left")[0] + "left")
    assert first is not None
    done, hours = map(int, first.groups())
    # The forecast of two hours is for the units that are queued, of three; the rest takes as long for each.
    assert hours == 2 * (6 - done) / (3 - done)


@pytest.mark.usefixtures("without_rich")
async def test_a_forecast_is_asked_for_now_and_then_and_counted_down(cue: Cue) -> None:
    asked = 0

    async def forecast() -> float | None:
        nonlocal asked
        asked += 1
        return 100.0

    stream = Terminal()
    await drawn(cue, stream, 6, forecast=forecast)  # takes 5 seconds
    assert asked == 3
    assert "1:39 left" in stream.getvalue()


@pytest.mark.usefixtures("without_rich")
async def test_a_forecast_that_fails_is_asked_no_more(cue: Cue, caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def forecast() -> float | None:
        nonlocal asked
        asked += 1
        raise LookupError("nobody knows")

    stream = Terminal()
    await drawn(cue, stream, 3, forecast=forecast)
    assert asked == 1
    assert "nobody knows" in caplog.text
    assert stream.getvalue().endswith("3/3 done in 0:02 (1.5/s)\n")


# ------------------------------------------------------------------------------------------ nothing breaks it


@pytest.mark.parametrize("writes", [0, 1, 5, 12])
@pytest.mark.parametrize("has_rich", [True, False])
async def test_a_terminal_that_goes_away_does_not_break_the_run(
    cue: Cue, writes: int, has_rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    before = sys.stdout, sys.stderr
    await drawn(cue, Gone(writes))
    assert (await cue.count())[runcue.WorkState.COMPLETED] == 10
    assert (sys.stdout, sys.stderr) == before


async def test_a_closed_stream_or_none_at_all_does_not_break_the_run(
    cue: Cue, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    await drawn(cue, closed, 2)
    monkeypatch.setattr(sys, "stderr", None)
    async with cue, runcue.progress(cue):
        await cue.submit("step")
        await cue.join()
    assert (await cue.count())[runcue.WorkState.COMPLETED] == 3


@pytest.mark.usefixtures("without_rich")
async def test_a_cue_that_is_closed_meanwhile_is_drawn_no_more(cue: Cue) -> None:
    steady(cue)
    stream = Terminal()
    async with runcue.progress(cue, file=stream):
        async with cue:
            await cue.submit("step")
            await cue.join()
        await cue.close()
    assert stream.getvalue().endswith(" done in 0:00\n")


async def test_an_error_inside_gets_out(cue: Cue) -> None:
    with pytest.raises(LookupError):
        async with cue, runcue.progress(cue, file=Terminal()):
            raise LookupError("mine")
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "runcue progress"]
