"""Programs of Debian's, fetched and unpacked into a folder: neither root nor any change of the system is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PATIENCE = 300.0
"""Seconds that one call of apt-get may take."""


def fetch(home: Path, packages: Sequence[str], what: str) -> bool:
    """Unpack these packages into a folder; where that cannot be done, say so and go on without them."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        print(
            f"There is no {what}, and no apt-get to fetch it with: install it, or go without.",
            file=sys.stderr,
        )
        return False
    downloads, lists, cache = home / "packages", home / "lists", home / "cache"
    for folder in (downloads, lists / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    own = [f"-oDir::State::lists={lists}", f"-oDir::Cache={cache}"]
    own += ["-oDebug::NoLocking=true", "-oAPT::Sandbox::User="]
    try:
        for call in (["update"], ["download", *packages]):
            done = subprocess.run(
                ["apt-get", "-qq", *own, *call], cwd=downloads, check=False, timeout=PATIENCE
            )
            if done.returncode:
                print(
                    f"apt-get {call[0]} ended with {done.returncode}: no {what}. "
                    f"As root you can install it yourself: apt-get install {' '.join(packages)}",
                    file=sys.stderr,
                )
                return False
        for package in downloads.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(home)], check=True)
    finally:
        for folder in (downloads, lists, cache):
            shutil.rmtree(folder)
    return True
