"""All measures, one after the other, and one file of figures, with the machine and the versions of everything.

A measure never ends the run: who is not here, cannot start or fails is a row with the reason.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import apsw

from bench import figures
from bench.peers import homes, latency, limits, recovery, throughput
from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.places import Places
from runcue import __version__
from tests.pg.server import installations

MEASURES = ("throughput", "latency", "limits", "recovery")
SHOWN = frozenset(
    (
        *(
            "absurd-sdk",
            "aiolimiter",
            "aiometer",
            "arq",
            "asyncpg",
            "awa-pg",
            "celery",
            "dbos",
            "dramatiq",
            "flexiq",
        ),
        *(
            "graphile-worker",
            "hiredis",
            "honker",
            "huey",
            "pgqueuer",
            "procrastinate",
            "psycopg",
            "pyrate-limiter",
        ),
        *("redis", "rq", "saq", "taskiq", "taskiq-redis", "uvloop"),
    )
)
"""The packages whose versions are told."""


def chosen(names: list[str]) -> tuple[Contender, ...]:
    """The contenders of these names, or all."""
    return tuple(one for one in CONTENDERS if not names or one.name in names)


def run(measures: tuple[str, ...], names: list[str], *, quick: bool) -> dict[str, Any]:
    """Everything that is asked for."""
    found: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "machine": machine(),
                             "versions": versions(), "seconds": {}}  # fmt: skip
    everybody = chosen(names)
    usual = tuple(one for one in everybody if one.kind != "redis-aof")
    with Places() as places:
        for measure in measures:
            print(f"{measure} …", file=sys.stderr, flush=True)
            began = perf_counter()
            if measure == "throughput":
                found[measure] = throughput.measure(places, everybody, quick=quick)
            elif measure == "latency":
                found[measure] = latency.measure(places, usual, quick=quick)
            elif measure == "limits":
                found[measure] = limits.measure(quick=quick)
            else:
                found[measure] = recovery.measure(places, usual, quick=quick)
            found["seconds"][measure] = round(perf_counter() - began)
    return found


def kept(found: dict[str, Any], path: Path = figures.FILE) -> None:
    """Put what was found into the file of all figures; measures that were not taken this time stay as they are."""
    stored = figures.stored(path)
    before = stored["peers"]
    stored["peers"] = {**before, **found, "seconds": {**before.get("seconds", {}), **found["seconds"]}}
    figures.keep(stored, path)


def machine() -> dict[str, Any]:
    """What everything ran on, and how busy it was."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory": round(memory / 2**30),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def versions() -> dict[str, str]:
    """Of everything that took part."""
    here = {name: version for name, version in homes.versions().items() if name in SHOWN}
    sqlite = {"SQLite (runcue)": apsw.sqlite_lib_version(), "SQLite (huey, dbos)": sqlite3.sqlite_version}
    return {"runcue": __version__, **sqlite, **servers(), **dict(sorted(here.items()))}


def servers() -> dict[str, str]:
    """The versions of the servers, where they are."""
    found = {}
    if binaries := installations():
        found["PostgreSQL"] = said(str(binaries[0] / "postgres"))
    if redis := homes.redis():
        found["Redis"] = said(redis[0], redis[1])
    return found


def said(program: str, environment: dict[str, str] | None = None) -> str:
    """The number in what a program says of its version."""
    done = subprocess.run(
        [program, "--version"], env=environment, capture_output=True, text=True, check=False
    )
    words = done.stdout.replace("v=", "").split()
    return next((word for word in words if word[:1].isdigit()), "unknown")
