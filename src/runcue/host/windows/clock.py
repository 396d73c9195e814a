"""The clock that all processes of this host share, and the names of this host, of its boot and of its time zone."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import secrets
import sys
import time
import winreg
from collections.abc import Callable, Iterator
from ctypes import byref
from ctypes.wintypes import DWORD, HANDLE

from runcue.host.windows import kernel

assert sys.platform == "win32"

KEY = r"Software\runcue\boot"
ACCESS = winreg.KEY_READ | winreg.KEY_WRITE
VOLATILE = 1
"""Such a key is kept in memory: it is gone when the machine starts anew."""
CREATED = 1
PATIENCE = 1.0
"""Seconds for which another process may take to give this boot a name."""


def _clock() -> Callable[[], float]:
    """Both clocks go on while the machine sleeps; the finer one is newer than some systems."""
    try:
        precise = ctypes.WinDLL("kernelbase").QueryInterruptTimePrecise
    except (OSError, AttributeError):
        return lambda: kernel.GetTickCount() / 1000
    precise.argtypes = (ctypes.POINTER(ctypes.c_uint64),)
    precise.restype = None

    def ticks() -> float:
        found = ctypes.c_uint64()
        precise(byref(found))
        return found.value / 1e7

    return ticks


boottime: Callable[[], float] = _clock()
"""Seconds on a clock that cannot be set and that all processes of this host share."""


@functools.cache
def boot_id() -> str:
    """The name of this boot of the machine: the first process that asks for one makes it up.

    The time of the boot would not do, as Windows corrects it whenever the clock is set.
    """
    key, disposition = HANDLE(), DWORD()
    error = kernel.CreateKey(
        winreg.HKEY_CURRENT_USER, KEY, 0, None, VOLATILE, ACCESS, None, byref(key), byref(disposition)
    )
    if error:
        raise OSError(0, ctypes.FormatError(error).strip(), KEY, error)
    assert key.value is not None
    is_ours = disposition.value == CREATED
    until = time.monotonic() + PATIENCE
    try:
        while True:
            if is_ours or time.monotonic() > until:  # whoever made the key was killed before it gave a name
                winreg.SetValueEx(key.value, "id", 0, winreg.REG_SZ, secrets.token_hex(8))
            try:
                return str(winreg.QueryValueEx(key.value, "id")[0])
            except FileNotFoundError:
                time.sleep(0.001)
    finally:
        winreg.CloseKey(key.value)


def host_name() -> str:
    """The name of this host, as people know it."""
    return platform.node() or "localhost"


def zone_names() -> Iterator[str]:
    """The names that the time zone of this machine may have: Windows itself has other names than all others."""
    given = os.environ.get("TZ")
    if given is not None:
        yield given
