"""The functions of Windows that runcue calls, with their types, and their errors as OSError."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_void_p, c_wchar_p, sizeof
from ctypes.wintypes import BOOL, DWORD, HANDLE, LARGE_INTEGER, LPCWSTR, ULARGE_INTEGER
from typing import Any, Final

assert sys.platform == "win32"

GENERIC_READ: Final = 0x80000000
GENERIC_WRITE: Final = 0x40000000
FILE_APPEND_DATA: Final = 0x0004
FILE_WRITE_ATTRIBUTES: Final = 0x0100
SYNCHRONIZE: Final = 0x00100000
SHARE_ALL: Final = 0x1 | 0x2 | 0x4
"""Others may read, write, and remove or rename the file."""
CREATE_NEW, CREATE_ALWAYS, OPEN_EXISTING, OPEN_ALWAYS, TRUNCATE_EXISTING = 1, 2, 3, 4, 5
FILE_ATTRIBUTE_NORMAL: Final = 0x80
GONE_WHEN_CLOSED: Final = 0x04000000
LOCK_NOW, LOCK_EXCLUSIVE = 0x1, 0x2
EVENT_MODIFY_STATE: Final = 0x0002
PROCESS_TERMINATE: Final = 0x0001
PROCESS_QUERY: Final = 0x1000
ALL_OF_A_PROCESS: Final = 0x1FFFFF
DRIVE_REMOTE: Final = 4
WAIT_OBJECT, WAIT_TIMEOUT, WAIT_FAILED = 0, 0x102, 0xFFFFFFFF
FOREVER: Final = 0xFFFFFFFF
MOST_WAITED: Final = 64
"""Handles that one call can wait for."""

ERROR_FILE_NOT_FOUND: Final = 2
ERROR_ACCESS_DENIED: Final = 5
ERROR_INVALID_PARAMETER: Final = 87
ERROR_SHARING_VIOLATION: Final = 32
ERROR_LOCK_VIOLATION: Final = 33
ERROR_ALREADY_EXISTS: Final = 183
STATUS_DELETE_PENDING: Final = 0xC0000056


class Overlapped(Structure):
    """Where in a file a call begins."""

    _fields_ = (
        ("internal", c_void_p),
        ("internal_high", c_void_p),
        ("offset", DWORD),
        ("offset_high", DWORD),
        ("event", HANDLE),
    )


class FileTime(Structure):
    """A moment in steps of 100 ns since 1601."""

    _fields_ = (("low", DWORD), ("high", DWORD))

    @property
    def ticks(self) -> int:
        """The moment as one number."""
        return int(self.high) << 32 | int(self.low)


class BasicLimits(Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = (
        ("process_time", LARGE_INTEGER),
        ("job_time", LARGE_INTEGER),
        ("flags", DWORD),
        ("least_memory", ctypes.c_size_t),
        ("most_memory", ctypes.c_size_t),
        ("most_processes", DWORD),
        ("affinity", ctypes.c_size_t),
        ("priority", DWORD),
        ("scheduling", DWORD),
    )


class ExtendedLimits(Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("basic", BasicLimits),
        ("transfers", ULARGE_INTEGER * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


class Accounting(Structure):
    """JOBOBJECT_BASIC_ACCOUNTING_INFORMATION."""

    _fields_ = (
        ("times", LARGE_INTEGER * 4),
        ("page_faults", DWORD),
        ("total", DWORD),
        ("active", DWORD),
        ("terminated", DWORD),
    )


_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_nt = ctypes.WinDLL("ntdll")
_registry = ctypes.WinDLL("advapi32")


def _declared(library: Any, name: str, answer: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype = answer
    function.argtypes = arguments
    called: Callable[..., Any] = function
    return called


CreateFile = _declared(_kernel, "CreateFileW", HANDLE, LPCWSTR, DWORD, DWORD, c_void_p, DWORD, DWORD, HANDLE)
LockFileEx = _declared(_kernel, "LockFileEx", BOOL, HANDLE, DWORD, DWORD, DWORD, DWORD, POINTER(Overlapped))
UnlockFileEx = _declared(_kernel, "UnlockFileEx", BOOL, HANDLE, DWORD, DWORD, DWORD, POINTER(Overlapped))
SetFileTime = _declared(
    _kernel, "SetFileTime", BOOL, HANDLE, POINTER(FileTime), POINTER(FileTime), POINTER(FileTime)
)
CloseHandle = _declared(_kernel, "CloseHandle", BOOL, HANDLE)
CreateEvent = _declared(_kernel, "CreateEventW", HANDLE, c_void_p, BOOL, BOOL, LPCWSTR)
OpenEvent = _declared(_kernel, "OpenEventW", HANDLE, DWORD, BOOL, LPCWSTR)
SetEvent = _declared(_kernel, "SetEvent", BOOL, HANDLE)
WaitForOne = _declared(_kernel, "WaitForSingleObject", DWORD, HANDLE, DWORD)
WaitForAny = _declared(_kernel, "WaitForMultipleObjects", DWORD, DWORD, POINTER(HANDLE), BOOL, DWORD)
OpenProcess = _declared(_kernel, "OpenProcess", HANDLE, DWORD, BOOL, DWORD)
CurrentProcess = _declared(_kernel, "GetCurrentProcess", HANDLE)
TerminateProcess = _declared(_kernel, "TerminateProcess", BOOL, HANDLE, ctypes.c_uint)
GetExitCode = _declared(_kernel, "GetExitCodeProcess", BOOL, HANDLE, POINTER(DWORD))
GetProcessTimes = _declared(_kernel, "GetProcessTimes", BOOL, HANDLE, *[POINTER(FileTime)] * 4)
CreateJob = _declared(_kernel, "CreateJobObjectW", HANDLE, c_void_p, LPCWSTR)
AssignToJob = _declared(_kernel, "AssignProcessToJobObject", BOOL, HANDLE, HANDLE)
SetJob = _declared(_kernel, "SetInformationJobObject", BOOL, HANDLE, ctypes.c_int, c_void_p, DWORD)
QueryJob = _declared(
    _kernel, "QueryInformationJobObject", BOOL, HANDLE, ctypes.c_int, c_void_p, DWORD, c_void_p
)
TerminateJob = _declared(_kernel, "TerminateJobObject", BOOL, HANDLE, ctypes.c_uint)
GetConsole = _declared(_kernel, "GetConsoleCP", ctypes.c_uint)
ConsoleEvent = _declared(_kernel, "GenerateConsoleCtrlEvent", BOOL, DWORD, DWORD)
GetTickCount = _declared(_kernel, "GetTickCount64", ctypes.c_uint64)
GetDriveType = _declared(_kernel, "GetDriveTypeW", ctypes.c_uint, LPCWSTR)
GetVolumePath = _declared(_kernel, "GetVolumePathNameW", BOOL, LPCWSTR, c_wchar_p, DWORD)
PeekPipe = _declared(
    _kernel, "PeekNamedPipe", BOOL, HANDLE, c_void_p, DWORD, c_void_p, POINTER(DWORD), c_void_p
)
SetPipe = _declared(_kernel, "SetNamedPipeHandleState", BOOL, HANDLE, POINTER(DWORD), c_void_p, c_void_p)
ResumeProcess = _declared(_nt, "NtResumeProcess", ctypes.c_long, HANDLE)
LastStatus = _declared(_nt, "RtlGetLastNtStatus", ctypes.c_ulong)
CreateKey = _declared(
    _registry, "RegCreateKeyExW", ctypes.c_long, HANDLE, LPCWSTR, DWORD, c_wchar_p, DWORD, DWORD, c_void_p,
    POINTER(HANDLE), POINTER(DWORD),
)  # fmt: skip


def failure(path: str | None = None) -> OSError:
    """The error of the last call, about that file if one is named."""
    number = ctypes.get_last_error()
    said = ctypes.FormatError(number).strip()
    return OSError(0, said, path, number)


def checked(answer: Any, path: str | None = None) -> Any:
    """The answer of a call that must not be nothing."""
    if not answer or answer == c_void_p(-1).value:
        raise failure(path)
    return answer


def open_process(pid: int, access: int) -> int | None:
    """A handle of that process, which keeps its pid from being used again; None when it is gone."""
    handle = OpenProcess(access, False, pid)
    if handle:
        return int(handle)
    if ctypes.get_last_error() == ERROR_INVALID_PARAMETER:
        return None
    raise failure()


def created_at(handle: int) -> int:
    """When a process was created, which together with its pid tells it from all others."""
    times = [FileTime() for _ in range(4)]
    checked(GetProcessTimes(handle, *(byref(one) for one in times)))
    return times[0].ticks


def exit_code(handle: int) -> int | None:
    """The exit code of a process; None while it runs."""
    if WaitForOne(handle, 0) != WAIT_OBJECT:
        return None
    code = DWORD()
    checked(GetExitCode(handle, byref(code)))
    return int(code.value)


def wait_for(handles: list[int], milliseconds: int = FOREVER) -> int | None:
    """Wait for the first of these that is set or has ended: its place in the list; None after that time."""
    array = (HANDLE * len(handles))(*handles)
    found = WaitForAny(len(handles), array, False, milliseconds)
    if found == WAIT_FAILED:
        raise failure()
    return None if found == WAIT_TIMEOUT else int(found) & 0x3F


class Event:
    """An event with a name, which other processes can set; waiting for it takes it back."""

    def __init__(self, name: str) -> None:
        self.handle: int = checked(CreateEvent(None, False, False, name), name)

    def is_taken(self) -> bool:
        """True if it was set; then it no longer is."""
        return bool(WaitForOne(self.handle, 0) == WAIT_OBJECT)

    def set(self) -> None:
        """Set it."""
        checked(SetEvent(self.handle))

    def close(self) -> None:
        """Let go of it; the name is gone with the last one who has it."""
        CloseHandle(self.handle)


def set_event(name: str) -> bool:
    """Set somebody's event; False when there is none of that name."""
    handle = OpenEvent(EVENT_MODIFY_STATE, False, name)
    if not handle:
        if ctypes.get_last_error() == ERROR_FILE_NOT_FOUND:
            return False
        raise failure(name)
    try:
        checked(SetEvent(handle))
    finally:
        CloseHandle(handle)
    return True


def size_of(value: Structure) -> int:
    """The bytes of a structure."""
    return sizeof(value)
