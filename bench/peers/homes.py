"""Where the peers are: folders of their own under `.cache/peers`, apart from the project's environment.

arq has one for itself, because it holds back the Redis client and with it the others. Redis is what the PATH has, or
Debian's packages, unpacked into the same place; that needs apt-get and dpkg-deb, but neither root nor any change of
the system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec

from bench.child import ROOT

HERE = ROOT / ".cache" / "peers"
HOMES = {"python": "peers.txt", "arq": "peers-arq.txt"}
"""Folders, and the files in `requirements` that say what is in them."""
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
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE / home)]), **more}


def missing(home: str, needs: tuple[str, ...]) -> list[str]:
    """The packages of those that are needed that are neither in a home nor here."""
    return [name for name in needs if not (HERE / home / name).exists() and find_spec(name) is None]


def versions() -> dict[str, str]:
    """What is installed in all homes; where two differ, the first is told."""
    folders = [str(HERE / home) for home in reversed(HOMES)]
    return {found.name.lower(): found.version for folder in folders for found in distributions(path=[folder])}


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
    """Bring the peers and a Redis into `.cache/peers`, with uv or pip and apt-get, and nothing anywhere else."""
    uv = ROOT / ".cache" / "uv" / "bin" / "uv"
    tool = [str(uv), "pip", "install", "--compile-bytecode", "--python", sys.executable]
    if not uv.exists():
        tool = [sys.executable, "-m", "pip", "install"]
    for home, names in HOMES.items():
        wanted = ["--require-hashes", "--target", str(HERE / home), "-r", str(ROOT / "requirements" / names)]
        subprocess.run([*tool, *wanted], check=True)
    if redis() is None:
        _debian()


def _debian() -> None:
    """Fetch Debian's Redis; where that cannot be done, say so and go on: its users are lines without figures."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        print(
            "There is no Redis, and no apt-get to fetch one with: install it, or go without.", file=sys.stderr
        )
        return
    packages = DEBIAN / "packages"
    lists = DEBIAN / "lists"
    for folder in (packages, lists / "partial", DEBIAN / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    own = [f"-oDir::State::lists={lists}", f"-oDir::Cache={DEBIAN / 'cache'}"]
    own += ["-oDebug::NoLocking=true", "-oAPT::Sandbox::User="]
    for call in (["update"], ["download", *PACKAGES]):
        done = subprocess.run(["apt-get", "-qq", *own, *call], cwd=packages, check=False)
        if done.returncode:
            print(f"apt-get {call[0]} ended with {done.returncode}: no Redis.", file=sys.stderr)
            return
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(DEBIAN)], check=True)
    for folder in (packages, lists, DEBIAN / "cache"):
        shutil.rmtree(folder)
