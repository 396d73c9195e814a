"""Where the peers are: folders of their own under `.cache/peers`, apart from the project's environment.

arq has one for itself, because it holds back the Redis client and with it the others; so has honker, whose wheels
need a newer glibc than some systems have. What is written for Node comes by npm. Redis is what the PATH has, or
Debian's packages, unpacked into the same place; that needs apt-get and dpkg-deb, but neither root nor any change of
the system.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from bench.child import ROOT
from bench.peers import debian

HERE = ROOT / ".cache" / "peers"
HOMES = {"python": "peers.txt", "arq": "peers-arq.txt", "honker": "peers-honker.txt", "node": "peers-npm"}
"""Folders, and the files in `requirements` that say what is in them; of npm's it is a folder with its two files."""
OPTIONAL = ("honker",)
"""Homes that may stay empty: an installation that fails says so in one line, and the others go on."""
SERVERS = ("valkey-server", "redis-server")
PACKAGES = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2")
DEBIAN = HERE / "redis"
INSTALL = ".venv/bin/python -m bench.peers --install"


def use(home: str) -> None:
    """Find in this process what is installed in a home; nothing is found twice."""
    folder = str(HERE / home)
    if home and folder not in sys.path:
        sys.path.append(folder)


def environment(home: str, **more: str) -> dict[str, str]:
    """The environment of a program that finds what is installed in a home, and the project."""
    paths = os.pathsep.join([str(ROOT), str(HERE / home)])
    return {**os.environ, "PYTHONPATH": paths, "RUNCUE_BENCH_HOME": str(HERE / home), **more}


def missing(home: str, needs: tuple[str, ...]) -> list[str]:
    """The packages of those that are needed that are neither in a home nor here."""
    if home == "node":
        programs = [] if shutil.which("node") else ["node"]
        return programs + [name for name in needs if not (HERE / home / "node_modules" / name).exists()]
    return [name for name in needs if not (HERE / home / name).exists() and find_spec(name) is None]


def versions() -> dict[str, str]:
    """What is installed in all homes; where two differ, the first is told."""
    folders = [str(HERE / home) for home in reversed(HOMES)]
    packages = (HERE / "node" / "node_modules").glob("*/package.json")
    told = [json.loads(path.read_text(encoding="utf-8")) for path in packages]
    return {
        **{str(one["name"]): str(one["version"]) for one in told},
        **{found.name.lower(): found.version for folder in folders for found in distributions(path=[folder])},
    }


def redis() -> tuple[str, dict[str, str]] | None:
    """The program of a Redis or Valkey server, and the environment it needs."""
    for name in SERVERS:
        if found := shutil.which(name):
            return found, dict(os.environ)
    program = DEBIAN / "usr" / "bin" / "redis-server"
    if not program.exists():
        return None
    libraries = os.pathsep.join(str(folder) for folder in (DEBIAN / "usr" / "lib").glob("*-linux-gnu"))
    return str(program), {**os.environ, "LD_LIBRARY_PATH": libraries}


def install() -> None:
    """Bring the peers, the programs of `shell_queues` and a Redis into `.cache/peers`, and nothing anywhere else.

    Python's packages come by uv or pip, Node's by npm, all else by apt-get.
    """
    uv = ROOT / ".cache" / "uv" / "bin" / "uv"
    tool = [str(uv), "pip", "install", "--compile-bytecode", "--python", sys.executable]
    if not uv.exists():
        tool = [sys.executable, "-m", "pip", "install"]
    for home, names in HOMES.items():
        if home == "node":
            _npm(ROOT / "requirements" / names)
            continue
        wanted = ["--require-hashes", "--target", str(HERE / home), "-r", str(ROOT / "requirements" / names)]
        if home in OPTIONAL:
            wanted += ["--only-binary", ":all:"]
        done = subprocess.run([*tool, *wanted], check=home not in OPTIONAL)
        if done.returncode:
            print(f"{home} cannot be installed here: its row will say so.", file=sys.stderr)
    if redis() is None:
        debian.fetch(DEBIAN, PACKAGES, "Redis")
    from bench import shell_queues  # children of the measures need none of it

    shell_queues.install()


def _npm(names: Path) -> None:
    """Fetch what is written for Node, as its lock says; without npm it stays away."""
    npm = shutil.which("npm")
    if npm is None:
        print("There is no npm: what is written for Node will not be measured.", file=sys.stderr)
        return
    home = HERE / "node"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(names / name, home / name)
    done = subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=home, check=False)
    if done.returncode:
        print(
            f"npm ended with {done.returncode}: what is written for Node will not be measured.",
            file=sys.stderr,
        )
