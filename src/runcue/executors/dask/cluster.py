"""A Dask cluster on this host, in processes of its own: a scheduler, and workers with one thread each.

    owner ──pipe──▶ cluster process (scheduler, nannies) ──spawn──▶ worker, worker, …

- It is apart from the owner's process: the scheduler does not load its loop, no worker imports its script again, and
  everything can be ended at once, because it is one session.
- It lives as long as the owner keeps the pipe open. Then functions have `LAST_GRACE` seconds, and all is killed.
- It holds a job lock, which is free when it is dead: whoever takes over the work of a dead owner ends it first.
- It listens on the loopback interface alone, at ports that the system chooses, and has no dashboard.
- One thread of the owner starts it and waits for its end. "Ended" means that nobody is left in its session.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from typing import TYPE_CHECKING, Any

from runcue.core.model.failure import describe
from runcue.host.descriptors import close, forking, guard
from runcue.host.loops import post_to_loop
from runcue.host.processes import cause_of_death, end_sessions, ignore_signal, python_command

if TYPE_CHECKING:
    from runcue.executors.process_locks import Jobs

LAST_GRACE = 1.0
"""Seconds that functions which still run are given when the cluster is closed."""
PATIENCE = 3.0
"""Seconds after which a cluster that was told to end is killed, and so many again until it is left alone."""
SILENT = "100"
"""A level above all of Dask's messages: what matters to a work is in its error."""


class Cluster:
    """A local cluster, from its owner: where its scheduler is, how to end it, and when it is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int, jobs: Jobs, token: str) -> None:
        self.address: asyncio.Future[str] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._process: subprocess.Popen[bytes] | None = None
        with forking:
            theirs, ours = os.pipe()
            self._pipe = [guard(ours)]
        # Where nobody closes it, it ends all the same.
        self._let_go = weakref.finalize(self, _close_all, self._pipe)
        arguments = (size, jobs, token, theirs, weakref.ref(self))
        try:
            threading.Thread(target=_keep, args=arguments, name="runcue-dask", daemon=True).start()
        except RuntimeError:  # no room for it: the attempt fails, and the next one tries again
            self._let_go()
            os.close(theirs)
            raise

    async def close(self) -> None:
        """End it, and return when nothing of it is left; a cluster that hangs is killed."""
        self._let_go()
        await asyncio.wait([self.ended], timeout=PATIENCE)
        if not self.ended.done() and self._process is not None:
            self._process.kill()
            await asyncio.wait([self.ended], timeout=PATIENCE)

    def starts(self, process: subprocess.Popen[bytes]) -> None:
        """There is a process; called in the cluster's thread."""
        self._process = process

    def listens(self, address: str) -> None:
        """Its scheduler can be reached; called in the cluster's thread."""
        post_to_loop(self._loop, _set, self.address, address)

    def is_over(self, reason: str) -> None:
        """Nothing of it is left; called in the cluster's thread."""
        post_to_loop(self._loop, self._over, reason)

    def _over(self, reason: str) -> None:
        if not self.address.done():
            self.address.set_exception(OSError(reason))
            self.address.exception()  # perhaps nobody waits for it any more
        _set(self.ended, None)


def _set(future: asyncio.Future[str] | asyncio.Future[None], value: str | None) -> None:
    if not future.done():
        future.set_result(value)  # type: ignore[arg-type]


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        close(descriptors.pop())


def _keep(size: int, jobs: Jobs, token: str, control: int, owner: weakref.ref[Cluster]) -> None:
    """Start a cluster and wait for its end: that is all its thread does."""
    reason, folder = "the cluster process died", ""
    try:
        heard, says = os.pipe()
        try:
            folder = tempfile.mkdtemp(prefix="runcue-dask-")
            process = _started(size, jobs, token, control, says, folder)
        except BaseException:
            os.close(heard)
            raise
        finally:
            os.close(control)
            os.close(says)
        if (cluster := owner()) is not None:
            cluster.starts(process)
        with os.fdopen(heard, encoding="utf-8") as words:
            said = words.readline().strip()
        if said and cluster is not None:
            cluster.listens(said)
        del cluster  # one that is forgotten is let go of
        reason = f"the cluster process died: {cause_of_death(process.wait())}"
        end_sessions({process.pid})
        jobs.release(token)
    except Exception as error:  # noqa: BLE001 (whatever it is, somebody waits to hear of it)
        reason = f"the cluster process could not be started: {describe(error)}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a cluster that was killed has left it there
        if (cluster := owner()) is not None:
            cluster.is_over(reason)


def _started(
    size: int, jobs: Jobs, token: str, control: int, says: int, folder: str
) -> subprocess.Popen[bytes]:
    code = f"from runcue.executors.dask import cluster; cluster.keep({size}, {control}, {says}, {folder!r})"
    lock = jobs.take(token)
    try:
        process = subprocess.Popen(
            python_command(code),
            stdin=subprocess.DEVNULL,
            pass_fds=[control, says] if lock is None else [control, says, lock],
            env={"DASK_LOGGING__DISTRIBUTED": SILENT, **os.environ},
            start_new_session=True,
        )
    except BaseException:
        jobs.release(token)
        raise
    jobs.started(token, process.pid)
    return process


# --- In the cluster process -----------------------------------------------------------------------------


def keep(size: int, control: int, says: int, folder: str) -> None:
    """Be a cluster of so many workers until `control` is closed; its address is told to `says`.

    What Dask writes goes to that folder, which is removed at the end.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # a service manager's: the owner decides
        signal.signal(getattr(signal, name), ignore_signal)
    os.set_inheritable(control, False)
    os.set_inheritable(says, False)
    is_closed = asyncio.run(_serve(size, control, says, folder))
    shutil.rmtree(folder, ignore_errors=True)  # workers that are still there may write to it
    if not is_closed:
        os.killpg(0, signal.SIGKILL)  # functions that still run, their children, and this


async def _serve(size: int, control: int, says: int, folder: str) -> bool:
    """True when everything could be closed in time."""
    import dask
    from distributed import LocalCluster

    dask.config.set({"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []})
    cluster: Any = LocalCluster(
        n_workers=size,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        memory_limit=0,
        local_directory=folder,
        silence_logs=int(SILENT),
        asynchronous=True,
    )  # type: ignore[no-untyped-call]
    await cluster
    os.write(says, f"{cluster.scheduler_address}\n".encode())
    os.close(says)
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(control, over.set)
    await over.wait()
    try:
        async with asyncio.timeout(LAST_GRACE):
            await cluster.close()
    except TimeoutError:
        return False
    return True
