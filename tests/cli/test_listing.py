"""Long lists: how much is shown, that it is said when there is more, and how everything is had."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import runcue
from runcue.cli.failure import Failure
from runcue.cli.pages import Pages, by_id
from tests.cli.inside import Inside, Told, refused
from tests.cli.works import Inside as InsideRuncue

Listing = Callable[..., Told]

IDS = [f"u{number:02}" for number in range(60)]
NEWEST_FIRST = IDS[::-1]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue with sixty units that failed for good, in the home of queuectl; only for reading."""
    path = tmp_path_factory.mktemp("long") / "home" / "queue.db"
    path.parent.mkdir(mode=0o700)

    async def make() -> None:
        cue = runcue.Cue(path)

        @cue.task("command")
        async def command(work: runcue.RunningWork) -> None:
            raise runcue.Permanent("no such luck")

        async with cue:
            await cue.submit_many([{"task": "command", "id": one} for one in IDS])
            await cue.join()
        await cue.close()

    asyncio.run(make())
    return path


@pytest.fixture
def queuectl(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(file.parent, monkeypatch, capsys)


@pytest.fixture
def runcue_on(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> InsideRuncue:
    return InsideRuncue(file, monkeypatch, capsys)


@pytest.fixture(params=["queuectl list", "queuectl dlq list", "runcue list"])
def listing(request: pytest.FixtureRequest, queuectl: Inside, runcue_on: InsideRuncue) -> Listing:
    """Each of the commands that list."""
    program, *verb = request.param.split()

    def run(*args: str) -> Told:
        return queuectl(*verb, *args) if program == "queuectl" else runcue_on(*verb, *args)

    return run


def ids(told: Told) -> list[str]:
    return [one["id"] for one in json.loads(told.out)]


def test_json_that_stops_before_the_end_says_so_on_stderr(listing: Listing) -> None:
    told = listing("--json")
    assert ids(told) == NEWEST_FIRST[:50]
    assert told.err == "There are more than these 50: use --limit or --all.\n"


def test_a_table_that_stops_before_the_end_says_the_same(listing: Listing) -> None:
    assert listing().err == listing("--json").err


def test_a_limit_that_is_just_enough_says_nothing(listing: Listing) -> None:
    told = listing("--json", "--limit", "60")
    assert (len(ids(told)), told.err) == (60, "")


@pytest.mark.parametrize("args", [["--all"], ["--limit", "0"]])
@pytest.mark.parametrize("page", [7, 60, 1000])
def test_everything_is_shown_in_order_however_it_is_read(
    listing: Listing, args: list[str], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runcue.cli.pages.PAGE", page)
    told = listing("--json", *args)
    assert (ids(told), told.err) == (NEWEST_FIRST, "")
    told = listing(*args)
    assert ([line.split("\t")[0] for line in told.out.splitlines()], told.err) == (NEWEST_FIRST, "")


def test_a_limit_beyond_one_page_is_kept(listing: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runcue.cli.pages.PAGE", 7)
    told = listing("--json", "--limit", "20")
    assert ids(told) == NEWEST_FIRST[:20]
    assert "more than these 20" in told.err


def test_a_limit_and_everything_cannot_both_be_meant(queuectl: Inside) -> None:
    refused(queuectl("list", "--all", "--limit", "5"), 2, "--limit", "--all")


def test_what_comes_after_a_page_is_found_when_its_last_row_was_deleted() -> None:
    there = [*"jihgfedcba"]

    def find(limit: int, before: str | None) -> list[dict[str, str]]:
        if before is not None and before not in there:
            raise runcue.WorkNotFound(before)
        rest = there if before is None else there[there.index(before) + 1 :]
        return [{"id": one} for one in rest[:limit]]

    pages = iter(Pages(find, None, by_id, page=4))
    assert [row["id"] for row in next(pages)] == [*"jihg"]
    there.remove("g")
    there.remove("f")
    assert [row["id"] for page in pages for row in page] == [*"edcba"]


def test_when_a_whole_page_was_deleted_meanwhile_it_is_said() -> None:
    there = [*"jihgfedcba"]

    def find(limit: int, before: str | None) -> list[dict[str, str]]:
        if before is not None:
            raise runcue.WorkNotFound(before)
        return [{"id": one} for one in there[:limit]]

    pages = iter(Pages(find, None, by_id, page=4))
    next(pages)
    with pytest.raises(Failure, match="deleted meanwhile"):
        next(pages)
