"""Writes docs/cli.md: what `--help` prints for every command of queuectl, runcue and runcue-sim.

Run it after a change of a command: `python tools/cli_reference.py`. A test compares the page with what this gives.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from runcue.cli.main import program
from runcue.sim.main import command as sim

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 78
"""What click gives to help on a terminal of 80 columns or more."""
INTRODUCTION = """\
# The command line

What `--help` says of every command, made by `tools/cli_reference.py`. How to use them: [`queuectl`](#queuectl) in
[a queue for the terminal](guides/shell-queue.md), [`runcue`](#runcue) in [on call](guides/operating.md),
[`runcue-sim`](#runcue-sim) in [the simulator](guides/simulator.md).
"""


def page() -> str:
    """The page as it should be now."""
    parts = [INTRODUCTION]
    for name in ("queuectl", "runcue", "runcue-sim"):
        for path, text in helps(sim if name == "runcue-sim" else program(name), name):
            depth = "#" * (path.count(" ") + 2)
            parts.append(f"{depth} {path}\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def helps(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """The full name and the help of a command and of all below it, in their order."""
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=WIDTH, **command.context_settings
    )
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for one in command.list_commands(context):
            below = command.get_command(context, one)
            assert below is not None, "it is listed"
            yield from helps(below, one, context)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"docs/{PAGE.name}: {page().count('```text')} commands\n")
