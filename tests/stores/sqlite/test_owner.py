"""A queue of which anything belongs to somebody else, or is open to others, is refused before it is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import runcue
from runcue.stores.presence import presence
from runcue.stores.sqlite import file
from runcue.stores.sqlite.owner import BESIDE

OTHER = 12345
PENDING = runcue.WorkState.PENDING
FOLDERS = (".runcue", ".files")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")

GiveAway = Callable[[Path], None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Have a file belong to somebody else; who may not give any away becomes somebody else himself."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, OTHER, OTHER, follow_symlinks=False)
        else:
            user = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    return give


@pytest.fixture
async def queue(tmp_path: Path) -> Path:
    """A queue with a unit in it, and nobody on it."""
    path = tmp_path / "queue.db"
    await submitted(path)
    return path


async def submitted(path: Path, *, insecure: bool = False) -> None:
    cue = runcue.Cue(path, insecure=insecure)
    cue.task("note")(print)
    await cue.submit("note")
    await cue.close()


async def write(path: Path) -> None:
    """Use it as a program does."""
    await submitted(path)


async def read(path: Path) -> None:
    """Look at it from outside."""
    runcue.Reader(path).close()


async def rescue(path: Path) -> None:
    """Make a new one of it."""
    runcue.recover(path, force=True)


def planted(queue: Path, suffix: str) -> Path:
    """What lies beside the queue under that name: if nothing does, something is put there."""
    path = Path(f"{queue}{suffix}")
    if suffix in FOLDERS:
        path.mkdir(mode=0o700, exist_ok=True)
    else:
        path.touch(mode=0o600)
    return path


def picture(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything that is there, to the byte."""
    return {
        str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


async def refused(queue: Path, why: str) -> None:
    """Whoever wants to use it is told why not, and nothing is changed."""
    before = picture(queue.parent)
    for use in (write, read, rescue):
        with pytest.raises(runcue.StorageInsecure, match=why):
            await use(queue)
    assert picture(queue.parent) == before


@pytest.mark.parametrize("suffix", ["", *BESIDE])
async def test_what_belongs_to_another_user_is_refused_and_left_as_it_is(
    suffix: str, queue: Path, give_away: GiveAway
) -> None:
    give_away(planted(queue, suffix))
    await refused(queue, "belongs to user .* one user, or choose another place")


@pytest.mark.parametrize("suffix", ["", *BESIDE])
async def test_what_others_may_write_to_is_refused_and_left_as_it_is(suffix: str, queue: Path) -> None:
    path = planted(queue, suffix)
    for bits in (0o020, 0o002):  # by their group, and all of them
        path.chmod(path.stat().st_mode & ~0o022 | bits)
        await refused(queue, r"Other users may write to .* \(chmod go-w\)")


async def test_others_may_read_it(queue: Path) -> None:
    queue.chmod(0o644)
    await write(queue)
    await read(queue)


async def test_who_knows_why_uses_it_all_the_same(queue: Path) -> None:
    queue.chmod(0o666)
    await submitted(queue, insecure=True)
    with runcue.Reader(queue, insecure=True) as reader:
        assert reader.count()[PENDING] == 2
    assert runcue.recover(queue, force=True, insecure=True).tables["work_units"] == 2


@as_root
async def test_what_belongs_to_root_can_be_read_by_everybody(
    queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with runcue.Reader(queue) as reader:
        assert reader.count()[PENDING] == 1


async def test_a_file_that_another_user_made_in_the_last_moment_is_refused(
    tmp_path: Path, give_away: GiveAway
) -> None:
    path = tmp_path / "queue.db"

    def made_meanwhile(_: str) -> None:
        path.touch()
        give_away(path)

    with pytest.raises(runcue.StorageInsecure, match="belongs to user"):
        file.open_file(str(path), probe=made_meanwhile)
    assert not path.stat().st_size


async def test_a_log_that_another_user_made_while_the_file_was_opened_is_refused(
    queue: Path, give_away: GiveAway, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_it = file._opened

    def made_meanwhile(path: str) -> object:
        opened = open_it(path)
        give_away(Path(f"{path}-wal"))
        return opened

    monkeypatch.setattr(file, "_opened", made_meanwhile)
    which = "-wal" if os.geteuid() == 0 else ""  # to who becomes somebody else all of it belongs to another
    with pytest.raises(runcue.StorageInsecure, match=f"{which}' belongs to user"):
        await write(queue)


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o755])
async def test_a_link_of_another_user_is_followed_only_where_not_everybody_can_make_one(
    mode: int, queue: Path, tmp_path: Path, give_away: GiveAway
) -> None:
    if os.geteuid() != 0:
        pytest.skip("the file that it leads to has to be ours")
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    link = folder / "queue.db"
    link.symlink_to(queue)
    give_away(link)
    if mode == 0o1777:
        with pytest.raises(runcue.StorageInsecure, match="belongs to user"):
            await write(link)
        os.chown(link, 0, 0, follow_symlinks=False)
    await write(link)
    await read(link)


@as_root
async def test_a_lock_of_another_user_is_refused_even_to_root(queue: Path) -> None:
    folder = presence.side_directory(queue)
    for name in ("turn", "1-other.lock"):
        (folder / name).touch(mode=0o600)
        os.chown(folder / name, OTHER, OTHER)
    with pytest.raises(runcue.StorageInsecure, match="belongs to user 12345"):
        await write(queue)
    with pytest.raises(runcue.StorageInsecure, match="belongs to user 12345"):
        presence.is_alive(folder, "1-other")
