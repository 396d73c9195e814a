"""How processes of this host end."""

from __future__ import annotations

import sys
from typing import Final

from runcue.host.windows import kernel

assert sys.platform == "win32"

KILLED: Final = 9
"""The exit code of a process that is ended at once."""
CAUSES: Final = {
    0xC0000005: " (an access violation: a crash in native code)",
    0xC00000FD: " (a stack overflow)",
    0xC0000409: " (native code gave up)",
    0xC000013A: " (Ctrl-C)",
    0xC0000142: " (a library could not be started)",
}


def end_self() -> None:
    """End this process at once, without a chance to tidy up."""
    kernel.TerminateProcess(kernel.CurrentProcess(), KILLED)


def signal_name(number: int) -> str:
    """The number: exit codes are no signals here."""
    return str(number)


def cause_of_death(code: int) -> str:
    """An exit code in words."""
    code &= 0xFFFFFFFF
    return f"exit code {code if code < 0x80000000 else hex(code)}{CAUSES.get(code, '')}"
