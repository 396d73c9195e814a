"""No secret of a command's output is shown, wherever a piece of it begins or ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runcue import Cue
from runcue.web import app
from runcue.web.printed import AROUND, HIDDEN, Part, shown
from runcue.web.shapes import Output
from tests.web.conftest import PATIENCE, TOKEN, client

CANARY = "CANARY7"
"""Of which no two characters next to each other occur in anything else here."""
LINES = f"""one
password={CANARY}
two é password: {CANARY} postgres://me:{CANARY}@host/x
password:
{CANARY}
--token
  {CANARY}
50 %\r60 % token="{CANARY} {CANARY}"\r70 %\r
{{"api_key": "{CANARY}"}}
last secret={CANARY}""".encode()


def piece(data: bytes, first: int, limit: int, is_over: bool = True, around: int = AROUND) -> Output:
    """What is shown of a stream."""
    begin = max(0, first - around)
    return shown(Part(data[begin : first + limit + around], begin, first, len(data)), limit, is_over)


def leaks(text: str) -> bool:
    return any(CANARY[index : index + 2] in text for index in range(len(CANARY) - 1))


WHOLE = piece(LINES, 0, 10_000).text


def test_the_whole_is_shown_but_for_its_secrets() -> None:
    assert not leaks(WHOLE)
    assert WHOLE.startswith("one\npassword=***\ntwo é ")
    assert WHOLE.count("\n") == LINES.count(b"\n")


@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("is_over", [True, False])
def test_no_place_to_begin_or_to_end_shows_a_secret(limit: int, is_over: bool) -> None:
    for first in range(len(LINES)):
        found = piece(LINES, first, limit, is_over)
        assert not leaks(found.text), first
        assert found.text in WHOLE
        assert found.start <= first
        assert LINES[found.start - 1 : found.start] in (b"", b"\n", b"\r")


@pytest.mark.parametrize("step", [1, 5, 64])
def test_who_follows_while_it_is_printed_sees_the_same_in_the_end(step: int) -> None:
    told, end = "", 0
    for size in (*range(0, len(LINES), step), len(LINES)):
        found = piece(LINES[:size], end, 65_536, is_over=False)
        assert found.start == end
        told, end = told + found.text, found.end
        assert not leaks(told)
        assert WHOLE.startswith(told)
    for _ in range(3):
        found = piece(LINES, end, 65_536)
        told, end = told + found.text, found.end
    assert told == WHOLE


@pytest.mark.parametrize("limit", [1, 50, 65_536])
def test_who_reads_on_comes_to_the_end(limit: int) -> None:
    told, end = "", 0
    for _ in range(len(LINES)):
        found = piece(LINES, end, limit)
        assert found.start == end
        told, end = told + found.text, found.end
        if end == len(LINES):
            break
    assert told == WHOLE


def test_an_unfinished_line_is_held_back_while_the_command_runs() -> None:
    data = b"one\npassword=CAN"
    assert piece(data, 0, 100, is_over=False) == Output(text="one\n", start=0, end=4, size=len(data))
    for first in range(4, len(data)):
        assert piece(data, first, 100, is_over=False) == Output(text="", start=4, end=4, size=len(data))
    assert piece(data, 4, 100).text == "password=***"


@pytest.mark.parametrize("is_over", [True, False])
def test_of_a_line_whose_beginning_is_out_of_sight_nothing_is_shown(is_over: bool) -> None:
    data = b'password="' + b"x " * AROUND + CANARY.encode() + b'"\nafter\n'
    found = piece(data, 2 * AROUND, 100, is_over)
    assert found.text == f"{HIDDEN}\nafter\n"
    assert (found.start, found.end) == (2 * AROUND, len(data))


def test_a_line_whose_end_is_out_of_sight_is_hidden_and_passed() -> None:
    data = b"long: https://me:" + b"x" * 3 * AROUND + CANARY.encode() + b"@host\nafter\n"
    told, end = [], 0
    for _ in range(100):
        found = piece(data, end, 1000, is_over=False)
        assert found.end > end
        told.append(found.text)
        end = found.end
        if end == len(data):
            break
    assert not leaks("".join(told))
    assert set(told[:-1]) <= {HIDDEN, f"{HIDDEN}\n"}
    assert told[-1].endswith("after\n")


def test_where_the_beginning_is_no_longer_kept_the_rest_of_its_line_is_hidden() -> None:
    kept = f"{CANARY}\nafter\n".encode()
    found = shown(Part(kept, 4096, 4096, 4096 + len(kept)), 100, is_over=True)
    assert found.text == f"{HIDDEN}\nafter\n"


async def test_a_command_that_runs_and_then_is_done(tmp_path: Path) -> None:
    path, go_on = tmp_path / "q.db", tmp_path / "go on"
    cue = Cue(str(path))

    @cue.task(executor="subprocess", shell=True)
    def run(work: Any) -> str:
        wait = f"until test -e '{go_on}'; do sleep 0.05; done"
        return f"echo begin; printf 'password=CANA'; {wait}; printf 'RY7'"

    made = app(path, token=TOKEN)
    async with cue, made.router.lifespan_context(made), client(made) as asker:
        work_id = await cue.submit("run")
        size = 0

        async def output(**query: int) -> Any:
            return (await asker.get(f"/works/{work_id}/output", params=query)).json()

        async with asyncio.timeout(PATIENCE):
            while size < len("begin\npassword=CANA"):
                size = (await output()).get("size", 0)
        answer = await output()
        assert (answer["text"], answer["end"]) == ("begin\n", 6)
        assert (await output(start=12))["text"] == ""
        go_on.touch()
        assert (await cue.wait(work_id, 20)).state == "completed"
        answer = await output(start=6)
        assert (answer["text"], answer["end"]) == ("password=***", answer["size"])
        for start in range(answer["size"]):
            assert not leaks((await output(attempt=1, start=start, tail=3))["text"])
    await cue.close()
