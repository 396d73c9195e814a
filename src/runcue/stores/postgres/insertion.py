"""How anybody submits to a queue in PostgreSQL from outside: one INSERT of rows that come as one text.

The statement names the schema, since no search_path can be relied on, and the identity of the queue: no other queue
gets the rows. It takes no lock that anybody waits for, and notifies nobody: a NOTIFY would make all transactions of
the server that notify wait for each other's commits.
"""

from __future__ import annotations

from typing import Final

from runcue.ports import Insertion
from runcue.stores.postgres.address import Address

INSERT: Final = """
    INSERT INTO {schema}.submissions (at, kind, id, item)
    SELECT greatest(head.now, CAST(extract(epoch FROM clock_timestamp()) AS float8) + head.clock_offset),
        given.kind, given.id, given.item
    FROM {schema}.head, json_to_recordset(CAST({{}} AS json)) AS given(kind text, id text, item text)
    WHERE head.identity = {{}}
"""


def insertion_into(address: Address, identity: str) -> Insertion:
    """How to submit to the queue with that identity, at that address."""
    return Insertion(
        "PostgreSQL", address.shown, INSERT.format(schema=address.schema), lambda rows: (rows, identity)
    )
