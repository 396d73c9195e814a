"""Chooses what speaks to the operating system: runcue.host.posix or runcue.host.windows.

Both have the same modules with the same public names, so that nothing else asks which system this is
(tests/test_architecture.py):

- `clock`: a clock that all processes share and nobody sets, the names of this boot and of this host
- `files`: files for one user alone, locks that end with their process, network drives, folders that are synced
- `processes`: whether and how a process ended, forks, ending this process at once
- `sockets`: listening to others
- `wake`: waking another process, and noticing its end

`executors/system.py` and `cli/system.py` choose in the same way for their own folders.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from runcue.host.windows import clock, files, processes, sockets, wake
else:
    from runcue.host.posix import clock, files, processes, sockets, wake

__all__ = ["clock", "files", "processes", "sockets", "wake"]
