"""How a file is, whatever name leads to it."""

from __future__ import annotations

from pathlib import Path

import runcue
from runcue.testing import run


def test_a_queue_has_the_same_sizes_by_a_link_to_it(tmp_path: Path) -> None:
    path, link = tmp_path / "queue.db", tmp_path / "link.db"
    link.symlink_to(path)

    async def main() -> None:
        cue = runcue.Cue(path)
        await cue.set_config({"name": "value"})
        with runcue.Reader(path) as direct, runcue.Reader(link) as linked:
            sizes = [(found["size"], found["log_size"]) for found in (direct.health(), linked.health())]
        assert sizes[0] == sizes[1]
        assert min(sizes[0]) > 0
        await cue.close()

    run(main())
