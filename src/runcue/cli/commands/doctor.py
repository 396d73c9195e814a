"""`queuectl doctor`: looks for trouble and says what to do; `--recover` saves what can be read of a damaged file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from runcue.cli import diagnosis as look
from runcue.cli.failure import bad_input, not_found
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.screen import clean, note, say, show_json, shown, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue.cli.diagnosis import Finding


@verb("doctor", examples=["queuectl doctor", "queuectl doctor --json", "queuectl doctor --recover"])
@click.option(
    "--recover", is_flag=True, help="Build the queue's file anew from what can be read; the old one is kept."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print an object: versions, storage, findings.")
@click.pass_context
def command(context: click.Context, recover: bool, yes: bool, as_json: bool) -> None:
    """Look for trouble, and say what to do.

    Exit code 0 when the queue is sound (jobs may still wait for something), 3 when its file is damaged,
    4 when a version or a permission is wrong, 5 when others keep it busy.
    """
    home: Home = context.obj
    if recover:
        _recover(home, yes, as_json)
        return
    facts, findings = _examine(home)
    code = next((found.code for found in findings if found.code), 0)
    (_tell_json if as_json else _tell)(home, facts, findings, code)
    context.exit(code)


def _examine(home: Home) -> tuple[dict[str, Any], list[Finding]]:
    from runcue import RuncueError

    facts: dict[str, Any] = look.versions()
    findings = [*look.old_versions(facts), *look.place(home)]
    if any(found.code for found in findings) and not home.insecure:
        return facts, findings
    if not home.exists:
        return facts, [*findings, look.ok("There is no queue yet; the first job makes it")]
    try:
        with home.reader() as reader:
            findings += look.storage(reader, facts)
            for part in (look.crew, look.waiting, look.services, look.settings):
                findings += part(reader)
    except RuncueError as error:
        findings.append(look.damage(error))
    return facts, findings


def _tell_json(home: Home, facts: dict[str, Any], findings: list[Finding], code: int) -> None:
    place = os.fsencode(home.place()).decode("utf-8", "backslashreplace")
    versions = {name: facts.get(name) for name in ("runcue", "python", "sqlite", "schema")}
    sizes = {name: facts.get(name) for name in ("size", "log_size")}
    said = {"healthy": code == 0, "exit_code": code, "home": place, "versions": versions}
    show_json({**said, **sizes, "findings": findings})


def _tell(home: Home, facts: dict[str, Any], findings: list[Finding], code: int) -> None:
    schema = f" · schema {facts['schema']}" if "schema" in facts else ""
    say(f"runcue {facts['runcue']} · Python {facts['python']} · SQLite {facts['sqlite']}{schema}")
    say(f"home {shown(home.place())}")
    say()
    colors = {"ok": "green", "warning": "yellow", "problem": "red"}
    for found in findings:
        say(f"{styled(f'{found.level:<8}', fg=colors[found.level], bold=True)} {found.what}.")
        if found.advice:
            say(f"         → {found.advice}")
    say()
    warnings = sum(found.level == "warning" for found in findings)
    things = "1 thing needs" if warnings == 1 else f"{warnings} things need"
    sound = f"The queue is sound; {things} attention." if warnings else "All is well."
    say("There is a problem: see above." if code else sound)


def _recover(home: Home, yes: bool, as_json: bool) -> None:
    import sys

    if not home.exists:
        raise not_found(f"There is no queue in {shown(home.path)}: nothing to recover.")
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise bad_input("There is no terminal to ask on. Add --yes to build the queue's file anew.")
        click.confirm(
            "Build the queue's file anew from what can be read? The old one is kept.", abort=True, err=True
        )
    from runcue import recover

    found = recover(home.database, force=_has_problems(home), insecure=home.insecure)
    if as_json:
        show_json(found)
        return
    for problem in found.problems:
        note(clean(problem))
    say(f"Kept: {_numbers(found.tables)}.")
    if any(found.lost.values()):
        say(f"Lost: {_numbers(found.lost)}.")
    say(f"The damaged file is still there: {shown(found.kept_as)}")


def _has_problems(home: Home) -> bool:
    """True when the file can be read, but a check finds damage."""
    from runcue import StoreError

    try:
        with home.reader() as reader:
            return bool(reader.health()["problems"])
    except StoreError:
        return False


def _numbers(rows: Mapping[str, int]) -> str:
    names = {"work_units": "jobs", "head": None, "index_heads": None, "circuit_state": None}
    told = {names.get(name, name): number for name, number in rows.items() if number}
    return (
        ", ".join(f"{clean(name.replace('_', ' '))} {number:,}" for name, number in told.items() if name)
        or "nothing"
    )
