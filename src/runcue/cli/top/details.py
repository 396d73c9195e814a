"""The texts of the boxes about one unit: everything about it, and what it printed."""

from __future__ import annotations

from runcue import mask
from runcue.cli.commands.logs import safe
from runcue.cli.commands.show import attempts, page
from runcue.cli.lookup import the_job
from runcue.cli.place import Place
from runcue.cli.screen import clean

TAIL = 64 * 1024
"""Bytes of a stream that are shown: its end."""


def details(place: Place, id: str) -> str:
    """Everything about a unit."""
    found, facts = page(place, id)
    lines = [clean(found["why"]), ""]
    lines += [f"{name:<12}{clean(value)}" for name, value in facts.items() if value]
    if found["history"]:
        lines += ["", "Failed attempts"]
        lines += [f"{number:>3}  {at}  {took:>8}  {error}" for number, at, took, error in attempts(found)]
    if found.get("traceback"):
        lines += ["", "Traceback of the last attempt"]
        lines += [f"  {clean(line)}" for line in found["traceback"].rstrip("\n").splitlines()]
    return "\n".join(lines)


def printed(place: Place, id: str, stream: str) -> str:
    """The end of what the command of a unit printed to that stream, in its latest attempt, without secrets."""
    with the_job(place, id) as (reader, work, _):
        start, kept = 0, b""
        while (piece := reader.output(id, stream, start=start)).data:
            start, kept = piece.end, (kept + piece.data)[-TAIL:]
    if not kept:
        other = "stderr" if stream == "stdout" else "stdout"
        return f"Nothing was printed to {stream} yet. tab shows {other}. Only what commands print is kept."
    text = "\n".join(
        mask(safe(line)) for line in kept.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    )
    head = "…\n" if start > len(kept) else ""
    return f"{head}{text}\n[{work.state}, attempt {work.attempt}]"
