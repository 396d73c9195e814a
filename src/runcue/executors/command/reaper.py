"""The reaper: a small process beside each worker that kills the worker's commands when the worker is gone.

It is a shell that reads lines from a pipe: `+ 123` a process group was started, `- 123` the group is over. When the
pipe ends, because the worker closed it or died, the reaper kills every group that is not over, and on Linux all
that is left in their sessions. Rules:

- It starts with the first command and has a session of its own: Ctrl-C and SIGTERM do not reach it.
- A group is removed before its leader is reaped: until then the kernel does not give its number away.
- It holds a job lock of its own, so that recovery takes the worker for gone only when all its commands are dead.
- A reaper that died or hangs is replaced, and its successor gets the list of all running groups.
- Between the start of a command and its `+` lie microseconds in which only the job lock protects.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from subprocess import DEVNULL, Popen, TimeoutExpired

from runcue.executors.process_locks import REAPER, Jobs
from runcue.host.descriptors import close, guard

SHELL = "/bin/sh"
PATIENCE = 5.0
"""Seconds that `close` waits before it kills the reaper."""

# ${list#* x } and its like cut a word out of a list. The script kills the groups first, then processes that left
# their group but not their session, until it finds none, or for about two seconds.
SCRIPT = r"""
trap '' HUP INT QUIT TERM
live=' '
while read -r what group; do
    case $what in
        +) live="$live$group " ;;
        -) case $live in *" $group "*) live="${live%% $group *} ${live#* $group }" ;; esac ;;
    esac
done
[ "$live" = ' ' ] && exit
for group in $live; do kill -s KILL -- "-$group"; done
[ -r /proc/self/stat ] || exit
rounds=0
while [ $rounds -lt 100 ]; do
    found=
    for file in /proc/[0-9]*/stat; do
        read -r line < "$file" || continue
        set -- ${line##*) }
        case $1 in Z | X) continue ;; esac
        case $live in *" $4 "*) ;; *) continue ;; esac
        found=yes
        pid=${file#/proc/}
        kill -s KILL "${pid%/stat}"
    done
    [ "$found" ] || exit
    sleep 0.02
    rounds=$((rounds + 1))
done
"""


def disown(started: Popen[bytes]) -> None:
    """Keep Popen from waiting for a process, and from warning when the program ends before it."""
    started.returncode = 0


class Reaper:
    """Kills registered process groups when this process, the worker, is gone."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._groups: set[int] = set()
        self._pipe = -1
        self._shell: Popen[bytes] | None = None
        self._at_exit: weakref.finalize[[Popen[bytes]], Reaper] | None = None
        self._is_missing = False
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The pid of the reaper process; None while there is none."""
        return None if self._shell is None else self._shell.pid

    def start(self) -> None:
        """Start the reaper process, if it does not run; OSError when the system has no room for another process."""
        with self._lock:
            if self._shell is None and not self._is_missing:
                self._start()

    def register(self, group: int) -> None:
        """Add a process group that the reaper kills when the worker is gone."""
        with self._lock:
            self._groups.add(group)
            self._send(b"+ %d\n" % group)

    def forget(self, group: int) -> None:
        """Remove a group; call this before its leader is reaped."""
        with self._lock:
            self._groups.discard(group)
            self._send(b"- %d\n" % group)

    def close(self) -> None:
        """End the reaper, and with it everything that is still registered; the next command starts another."""
        with self._lock:
            shell = self._let_go()
            self._groups.clear()
        if shell is not None:
            shell.send_signal(signal.SIGCONT)  # it may have been stopped
            try:
                shell.wait(PATIENCE)
            except TimeoutExpired:
                shell.kill()
                shell.wait()
            self._jobs.release(REAPER)

    def _start(self) -> None:
        reading, writing = os.pipe()
        guard(writing)
        try:
            self._shell = self._jobs.start(
                REAPER,
                lambda _: [SHELL, "-c", SCRIPT],
                stdin=reading,
                stdout=DEVNULL,
                stderr=DEVNULL,
                cwd="/",
                env={"PATH": os.defpath},
            )
        except FileNotFoundError:  # a system without a shell: recovery goes by the job locks alone
            self._is_missing = True
        finally:
            os.close(reading)
            if self._shell is None:
                close(writing)
        if self._shell is not None:
            self._at_exit = weakref.finalize(self, disown, self._shell)
            os.set_blocking(writing, False)
            self._pipe = writing
            if self._groups:
                self._write(b"".join(b"+ %d\n" % group for group in self._groups))

    def _send(self, line: bytes) -> None:
        if self._is_missing or self._owner != os.getpid():
            return
        if self._shell is not None and self._write(line):
            return
        if self._shell is not None:
            self._shell.kill()  # before its pipe is closed, or it would kill the running commands
            self._shell.wait()
            self._let_go()
            self._jobs.release(REAPER)
        if self._groups:
            try:
                self._start()
            except OSError:  # no room for a process just now: the next reaper gets the whole list
                return

    def _write(self, line: bytes) -> bool:
        before = None
        if signal.getsignal(signal.SIGPIPE) is not signal.SIG_IGN:  # the application restored its default
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        try:
            return os.write(self._pipe, line) == len(line)
        except BlockingIOError:  # the reaper was stopped, or hangs
            return False
        except BrokenPipeError:
            if before is not None and signal.SIGPIPE not in before:
                signal.sigwait({signal.SIGPIPE})
            return False
        finally:
            if before is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _let_go(self) -> Popen[bytes] | None:
        shell, self._shell = self._shell, None
        if self._at_exit is not None:
            self._at_exit.detach()
        if self._pipe != -1:
            close(self._pipe)
            self._pipe = -1
        return shell
