"""How anybody submits to a queue in a file from outside: one INSERT of rows that come as one text.

The statement asks the file which clock goes on for queue time, as `FileClock` does, and whether it is the file that
is meant: no other queue gets the rows.
"""

from __future__ import annotations

import time
from typing import Final

from runcue.ports import Insertion
from runcue.stores.presence import presence
from runcue.stores.sqlite.schema import shown

INSERT: Final = """
    INSERT INTO submissions (at, kind, id, item)
    SELECT max(now, iif(boot = {} AND anchor_epoch IS NOT NULL, anchor_epoch - anchor_boottime + {}, {})),
        json_extract(value, '$.kind'), json_extract(value, '$.id'), json_extract(value, '$.item')
    FROM head, pragma_database_list AS place, json_each({}) WHERE place.name = 'main' AND place.file = {}
    ORDER BY json_each.key
"""


def insertion_into(path: str) -> Insertion:
    """How to submit to the queue in the file at that path, which no link leads to."""
    return Insertion(
        "SQLite",
        shown(path),
        INSERT,
        lambda rows: (presence.boot_id(), presence.boottime(), time.time(), rows, path),
    )
