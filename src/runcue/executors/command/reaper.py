"""One small process beside each worker that ends its commands when the worker is no longer there to do it.

It is a shell that reads lines from a pipe: `+ 123` a process group was started, `- 123` it is over. When the pipe
ends, because the worker closed it or died in whatever way, it kills every group that is not over, and on Linux
everything that is left in their sessions. Rules:

- It starts with the first command and lives in a session of its own: Ctrl-C and SIGTERM do not reach it.
- A group is forgotten before its leader is reaped: until then the kernel gives the number to nobody else.
- It holds a job lock of its own, so that nobody takes the worker for gone before everything is dead.
- A reaper that died or got stuck is replaced, and its successor told of everything that runs.
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
"""Seconds that `close` waits for the reaper before it is killed."""

# ${list#* x } and its like cut a word out of a list; kill is called for groups first, then for what has left its
# group but not its session, until a look at all processes finds nothing, or for about two seconds.
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
    """Keep Popen from waiting for a process, and from warning of it when the program ends while it runs."""
    started.returncode = 0


class Reaper:
    """Ends registered process groups when this process is gone."""

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
        """The process, when there is one."""
        return None if self._shell is None else self._shell.pid

    def start(self) -> None:
        """Be ready for a group; raises OSError when the system has no room for another process."""
        with self._lock:
            if self._shell is None and not self._is_missing:
                self._start()

    def register(self, group: int) -> None:
        """Have this group killed when this process is gone."""
        with self._lock:
            self._groups.add(group)
            self._tell(b"+ %d\n" % group)

    def forget(self, group: int) -> None:
        """Leave this group alone from now on; to be called before its leader is reaped."""
        with self._lock:
            self._groups.discard(group)
            self._tell(b"- %d\n" % group)

    def close(self) -> None:
        """End the reaper, and with it everything that is still registered; the next command starts another."""
        with self._lock:
            shell = self._let_go()
            self._groups.clear()
        if shell is not None:
            shell.send_signal(signal.SIGCONT)  # somebody may have stopped it
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
            lock = self._jobs.take(REAPER)
            self._shell = Popen(
                [SHELL, "-c", SCRIPT],
                stdin=reading,
                stdout=DEVNULL,
                stderr=DEVNULL,
                cwd="/",
                env={"PATH": os.defpath},
                start_new_session=True,
                pass_fds=() if lock is None else (lock,),
            )
        except FileNotFoundError:  # a system without a shell: the job locks alone have to do
            self._is_missing = True
        finally:
            os.close(reading)
            if self._shell is None:
                close(writing)
                self._jobs.release(REAPER)
        if self._shell is not None:
            self._at_exit = weakref.finalize(self, disown, self._shell)
            os.set_blocking(writing, False)
            self._pipe = writing
            self._jobs.started(REAPER, self._shell.pid)
            if self._groups:
                self._write(b"".join(b"+ %d\n" % group for group in self._groups))

    def _tell(self, line: bytes) -> None:
        if self._is_missing or self._owner != os.getpid():
            return
        if self._shell is not None and self._write(line):
            return
        if self._shell is not None:
            self._shell.kill()  # before its pipe is closed, which would have it kill what lives
            self._shell.wait()
            self._let_go()
            self._jobs.release(REAPER)
        if self._groups:
            try:
                self._start()
            except OSError:  # no room for a process just now: everything is told to the one that comes next
                return

    def _write(self, line: bytes) -> bool:
        before = None
        if signal.getsignal(signal.SIGPIPE) is not signal.SIG_IGN:  # a program gave it its meaning back
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        try:
            return os.write(self._pipe, line) == len(line)
        except BlockingIOError:  # it was stopped, or is stuck
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
