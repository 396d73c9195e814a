"""A Dask cluster on this host, in processes of its own: a scheduler, and workers with one thread each.

    owner ──pipe──▶ cluster process (LocalCluster: scheduler, nannies) ──spawn──▶ worker, worker, …

- The cluster has a process of its own: its scheduler does not load the owner's loop, no worker imports the owner's
  script again, and all of it can be ended at once, because it is one session.
- It lives as long as the owner keeps the pipe open. Then functions have `LAST_GRACE` seconds, and all is killed.
- It holds a job lock, which the kernel frees at its death: a process that takes over the work units of a dead owner
  ends the cluster first.
- It listens on the loopback interface only, at ports that the system chooses, and has no dashboard.
- One thread of the owner starts it and waits for its end. The end means that its session has no members.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
import weakref
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING, Any

from runcue.core.model.failure import describe
from runcue.host.descriptors import close, forking, guard
from runcue.host.interpreter import python_command
from runcue.host.loops import post_to_loop
from runcue.host.posix.processes import cause_of_death, end_sessions, ignore_signal

if TYPE_CHECKING:
    from runcue.executors.process_locks import Jobs

LAST_GRACE = 1.0
"""Seconds that running functions have when the cluster is closed."""
PATIENCE = 3.0
"""Seconds after which a cluster that has to end is killed; after as many again it is left alone."""
SILENT = "100"
"""A level above all of Dask's log messages: what matters to a work unit is in its error."""


class Cluster:
    """A local cluster, from its owner: the address of its scheduler, how to end it, and when it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int, jobs: Jobs, token: str) -> None:
        self.address: asyncio.Future[str] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.loop = loop
        self.process: Popen[bytes] | None = None
        """The cluster process; its thread sets this."""
        with forking:
            theirs, ours = os.pipe()
            self._pipe = [guard(ours)]
        # A cluster that is never closed ends when this object is collected.
        self._let_go = weakref.finalize(self, _close_all, self._pipe)
        arguments = (size, jobs, token, theirs, weakref.ref(self))
        try:
            threading.Thread(target=_keep, args=arguments, name="runcue-dask", daemon=True).start()
        except RuntimeError:  # no room for a thread: the attempt fails, and the next one tries again
            self._let_go()
            os.close(theirs)
            raise

    async def close(self) -> None:
        """End the cluster, and return when nothing of it is left; if it hangs, it is killed."""
        self._let_go()
        await asyncio.wait([self.ended], timeout=PATIENCE)
        if not self.ended.done() and self.process is not None:
            self.process.kill()
            await asyncio.wait([self.ended], timeout=PATIENCE)

    def over(self, reason: str) -> None:
        """Take in that nothing of the cluster is left; called on the loop."""
        if not self.address.done():
            self.address.set_exception(OSError(reason))
            self.address.exception()  # mark it as seen: perhaps no call waits for it
        _set(self.ended, None)


def _set(future: asyncio.Future[str] | asyncio.Future[None], value: str | None) -> None:
    if not future.done():
        future.set_result(value)  # type: ignore[arg-type]


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        close(descriptors.pop())


def _keep(size: int, jobs: Jobs, token: str, control: int, owner: weakref.ref[Cluster]) -> None:
    """Start a cluster and wait for its end; runs in the cluster's thread."""
    reason, folder = "the cluster process died", ""
    try:
        heard, says = os.pipe()
        try:
            folder = tempfile.mkdtemp(prefix="runcue-dask-")
            code = f"from runcue.executors.dask import cluster; cluster.keep({size}, {control}, {says}, {folder!r})"
            process = jobs.start(
                token,
                lambda _: python_command(code),
                [control, says],
                stdin=DEVNULL,
                env={"DASK_LOGGING__DISTRIBUTED": SILENT, **os.environ},
            )
        except BaseException:
            os.close(heard)
            raise
        finally:
            os.close(control)
            os.close(says)
        if (cluster := owner()) is not None:
            cluster.process = process
        with os.fdopen(heard, encoding="utf-8") as words:
            said = words.readline().strip()
        if said and cluster is not None:
            post_to_loop(cluster.loop, _set, cluster.address, said)
        del cluster  # this thread must not keep the Cluster alive
        reason = f"the cluster process died: {cause_of_death(process.wait())}"
        end_sessions({process.pid})
        jobs.release(token)
    except Exception as error:  # noqa: BLE001 (the executor waits for the reason, whatever it is)
        reason = f"the cluster process could not be started: {describe(error)}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a cluster that was killed did not remove it
        if (cluster := owner()) is not None:
            post_to_loop(cluster.loop, cluster.over, reason)


# --- In the cluster process -----------------------------------------------------------------------------


def keep(size: int, control: int, says: int, folder: str) -> None:
    """Be a cluster of `size` workers until the pipe `control` is closed; its address is written to the pipe `says`.

    Dask writes its files into `folder`, which is removed at the end.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # from a service manager: the owner decides
        signal.signal(getattr(signal, name), ignore_signal)
    os.set_inheritable(control, False)
    os.set_inheritable(says, False)
    is_closed = asyncio.run(_serve(size, control, says, folder))
    # Workers that still run may write into it: errors do not matter.
    shutil.rmtree(folder, ignore_errors=True)
    if not is_closed:
        os.killpg(0, signal.SIGKILL)  # running functions, their children, and this process


async def _serve(size: int, control: int, says: int, folder: str) -> bool:
    """Run the cluster; True when everything could be closed in time."""
    # LocalCluster does Dask's part. In the owner's process it would share the loop, its workers would import the
    # script again, children of functions would outlive it, and no lock would tell recovery when it is gone.
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
