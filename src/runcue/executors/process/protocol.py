"""What the owner of a process pool, its keeper and its workers send each other.

    owner ──ORDER──▶ keeper        owner ◀──REPORT── keeper        owner ◀──FRAME──▶ worker

Orders and reports have a fixed size. A frame is followed by as many bytes as it says. An order to start a worker
carries one end of the worker's channel as a descriptor. Keeper and workers import this module: it needs nothing but
`struct`.
"""

from __future__ import annotations

import struct

ORDER = struct.Struct("<cQd")
"""Owner to keeper: kind, number of the worker, seconds of grace."""
START, STOP, CLOSE = b"s", b"t", b"c"

REPORT = struct.Struct("<cQq")
"""Keeper to owner: kind, number of the worker, its exit code (GONE) or an errno (NOT_STARTED)."""
NOT_STARTED, GONE = b"n", b"g"

FRAME = struct.Struct("<cQQ")
"""Between owner and worker: kind; number of the call, key of the function or pid; bytes that follow."""
HELLO, FUNCTION, CALL, QUIT = b"h", b"f", b"c", b"q"
"""Owner to worker: the owner's module path, arguments and folder; a function to import; a call; an order to end."""
AWAKE, IMPORTED, BEGUN, SAID, RESULT, ERROR = b"a", b"i", b"b", b"s", b"r", b"e"
"""Worker to owner: its pid; the function is imported; it is called; it reports; its result; its error."""

LAST_GRACE = 1.0
"""Seconds that running functions have when the owner closes the pool."""
GIVE_UP_AFTER = 5.0
"""Seconds after which the keeper no longer waits for a process that SIGKILL does not end."""
