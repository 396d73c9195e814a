"""A server tool: look at hosts over SSH, write a config, check it here, roll it out, and see that it arrived.

    python examples/server_tool.py                     on four small servers of its own on this machine
    python examples/server_tool.py --hosts web1 web2   on yours, by the names of your ~/.ssh/config

On each host it writes one file, ~/runcue-demo/site.json. One of the four servers of the demo is down at first: its
circuit opens, so that nobody knocks in vain, while work for the other hosts goes on as if nothing had happened. When
it is back, a single probe finds out and the rest follows.
"""

import argparse
import asyncio
import json
import logging
import os
import shlex
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from runcue import Cue, PriorityContext, Retry, Work, WorkState

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # lets this file run from anywhere

HOSTS = ["prod-1", "prod-2", "staging", "spare"]
DOWN_AT_FIRST = "spare"
COMES_UP_AFTER = 2.5
FILE = "~/runcue-demo/site.json"
PATIENCE = Retry(max_attempts=6, backoff="fixed", base_delay=0.2)

cue = Cue()
cue.service("llm", rate="30/min", concurrent=3)
began = time.monotonic()
inventory: dict[str, str] = {}


# --- Tasks: each returns a command, and runcue runs it where the executor says ------------------------


@cue.task(executor="ssh", uses="ssh_{host}", retry=PATIENCE, timeout=30)
def scan(work: Work) -> str:
    """Look at a host: a str is a line for its shell."""
    return "echo $(uname -sr) on $(uname -m)"


@cue.task(uses="llm", retry=3)
async def generate(work: Work) -> None:
    """Write the config. A real tool would ask a language model here, within the limits of the service."""
    await asyncio.sleep(0.3)
    site = {"server_name": work.params["site"], "workers": 4, "compress": True}
    Path(work.params["path"]).write_text(json.dumps(site), encoding="utf-8")


@cue.task(executor="subprocess")
def validate(work: Work) -> list[str]:
    """Check the config on this machine, before anybody sees it: a list needs no shell and no quoting."""
    return [sys.executable, "-m", "json.tool", work.params["path"]]


@cue.task(executor="ssh", uses="ssh_{host}", retry=PATIENCE, timeout=30)
def deploy(work: Work) -> str:
    """Write the file over there, so that nobody ever sees half of it."""
    text = shlex.quote(Path(work.params["path"]).read_text(encoding="utf-8"))
    return f"mkdir -p ~/runcue-demo && printf %s {text} > {FILE}.new && mv {FILE}.new {FILE}"


@cue.task(executor="ssh", uses="ssh_{host}", retry=PATIENCE, timeout=30)
def verify(work: Work) -> str:
    """Compare: another exit code than 0 is a failure."""
    text = shlex.quote(Path(work.params["path"]).read_text(encoding="utf-8"))
    return f"printf %s {text} | cmp - {FILE}"


@cue.priority
def prioritise(ctx: PriorityContext) -> float:
    """What was begun is finished first; a look around can wait."""
    return {"verify": 0.9, "deploy": 0.8, "generate": 0.5, "validate": 0.5}.get(ctx.work.task, 0.2)


async def roll_out(hosts: list[str], path: Path) -> None:
    """Submit everything at once; what depends on what is enough for the order."""
    params: dict[str, Any] = {"path": str(path), "site": "example.org"}
    written = await cue.submit(generate, params=params)
    checked = await cue.submit(validate, params=params, depends_on=[written])
    for host in hosts:
        of_host = {"host": host, "path": str(path)}
        scanned = await cue.submit(scan, params=of_host)
        deployed = await cue.submit(deploy, params=of_host, depends_on=[checked, scanned])
        await cue.submit(verify, params=of_host, depends_on=[deployed])


# --- What can be seen of it ---------------------------------------------------------------------------


def tell(subject: str, text: str) -> None:
    print(f"{time.monotonic() - began:6.2f} s  {subject:<10} {text}", flush=True)


@cue.on_complete
def completed(work: Work, result: Any, duration: float) -> None:
    host = work.params.get("host", "here")
    if work.task == "scan":
        inventory[host] = result["stdout"].strip()
    tell(host, f"{work.task}: {inventory[host] if work.task == 'scan' else 'done'}")


@cue.on_failure
def failed(work: Work, error: BaseException, will_retry: bool) -> None:
    ending = "" if will_retry else " (given up)"
    tell(work.params.get("host", "here"), f"{work.task}: {type(error).__name__}: {error}{ending}")


async def tell_circuits() -> None:
    said = {
        "circuit_opened": "circuit opened: nothing is sent to this host for now",
        "circuit_half_open": "circuit half open: one probe is on its way",
        "circuit_closed": "circuit closed: the host is back",
    }
    async for event in cue.events(list(said)):
        tell((event.service or "").removeprefix("ssh_"), said[event.type])


async def main(hosts: list[str]) -> int:
    """Roll out to these hosts, which your ssh config, keys and known_hosts must know."""
    logging.getLogger("runcue").setLevel(logging.ERROR)  # told here, not in the log
    for host in hosts:
        concurrent = 2 if "staging" in host else 1
        cue.service(f"ssh_{host}", concurrent=concurrent, circuit_threshold=3, circuit_timeout=1.0)
    with tempfile.TemporaryDirectory() as folder:
        async with cue:
            telling = asyncio.create_task(tell_circuits())
            await roll_out(hosts, Path(folder) / "site.json")
            await cue.join()
            counts = await cue.count()
        await telling
    await cue.close()
    done, lost = counts[WorkState.COMPLETED], counts[WorkState.FAILED]
    print(f"\n{done} units completed, {lost} failed, on {len(hosts)} hosts:")
    for host in hosts:
        print(f"  {host:<10} {inventory.get(host, 'never seen')}")
    return 1 if lost else 0


# --- The servers of the demo --------------------------------------------------------------------------


@asynccontextmanager
async def demo_hosts(folder: Path) -> AsyncIterator[None]:
    """Four hosts on loopback, and a home directory whose .ssh knows them: yours is not looked at."""
    from tests.executors.sshserver import Host

    settings = folder / ".ssh"
    settings.mkdir(mode=0o700)
    os.environ["HOME"] = str(folder)
    os.environ.pop("SSH_AUTH_SOCK", None)
    async with AsyncExitStack() as stack:
        for name in HOSTS:
            home = folder / name
            home.mkdir()
            host = await stack.enter_async_context(Host(settings, name, home=home))
            with (settings / "config").open("a", encoding="utf-8") as config:
                config.write(f"Host {name}\n  HostName 127.0.0.1\n  Port {host.port}\n  User demo\n")
                config.write(f'  IdentityFile "{host.client_key}"\n')
            if name == DOWN_AT_FIRST:
                await host.stop()
                coming = asyncio.create_task(come_up(host))
                stack.push_async_callback(asyncio.wait, [coming])
        yield


async def come_up(host: Any) -> None:
    await asyncio.sleep(COMES_UP_AFTER)
    tell(host.name, "is switched on")
    await host.start()


async def demo() -> int:
    with tempfile.TemporaryDirectory() as folder:
        async with demo_hosts(Path(folder)):
            return await main(HOSTS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Look at hosts over SSH and roll out a file.")
    parser.add_argument("--demo", action="store_true", help="on four servers of its own (the default)")
    parser.add_argument("--hosts", nargs="+", metavar="HOST", help="on these hosts, named as for ssh")
    given = parser.parse_args()
    try:
        sys.exit(asyncio.run(main(given.hosts) if given.hosts else demo()))
    except KeyboardInterrupt:
        sys.exit(130)
