"""A queue that is opened through a symbolic link is the one that the link leads to, with all that lies beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import runcue

BOUND = 240.0


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A link in a folder of its own, to a file that is yet to be made."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    path = tmp_path / "here" / "queue.db"
    path.symlink_to("../there/real.db")
    return path


def queue(path: Path) -> runcue.Cue:
    cue = runcue.Cue(path)

    @cue.task("say", executor="subprocess", retry=1)
    def say(work: runcue.Work) -> list[str]:
        return ["sh", "-c", "echo hello; exit 3"]

    return cue


async def said(path: Path) -> str:
    """The id of a command that printed something."""
    cue = queue(path)
    async with asyncio.timeout(BOUND), cue:
        id = await cue.submit("say")
        await cue.wait(id)
    await cue.close()
    return id


async def test_all_that_belongs_to_it_lies_beside_the_file(link: Path) -> None:
    id = await said(link)
    assert [one.name for one in link.parent.iterdir()] == ["queue.db"]
    found = {one.name for one in (link.parent.parent / "there").iterdir()}
    assert found == {"real.db", "real.db.files", "real.db.runcue"}
    for path in (link, link.resolve()):
        with runcue.Reader(path) as reader:
            assert reader.output(id).data == b"hello\n"


async def test_what_was_printed_is_deleted_with_its_unit_whatever_it_was_opened_by(link: Path) -> None:
    id = await said(link.resolve())
    cue = queue(link)
    await cue.purge(id)
    await cue.close()
    assert list(Path(f"{link.resolve()}.files").iterdir()) == []


async def test_a_link_that_leads_elsewhere_later_changes_nothing_for_who_has_it_open(link: Path) -> None:
    cue = queue(link)
    async with asyncio.timeout(BOUND), cue:
        await cue.submit("say", id="one")
        link.unlink()
        link.symlink_to("../there/other.db")
        await cue.submit("say", id="two")
        await cue.join()
        assert [one.id for one in await cue.list()] == ["two", "one"]
    await cue.close()
    assert not (link.parent.parent / "there" / "other.db").exists()
