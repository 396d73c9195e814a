"""`queuectl resume`: what `queuectl pause` held back goes on."""

from __future__ import annotations

import click

from runcue.cli.commands.pause import hold
from runcue.cli.completing import queue_or_service
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.screen import clean, say


@verb("resume", examples=["queuectl resume openai", "queuectl resume default"])
@click.argument("name", metavar="QUEUE|SERVICE", shell_complete=queue_or_service)
@click.option("--queue", "is_queue", is_flag=True, help="It is a queue, even if no job uses it yet.")
@click.pass_obj
def command(home: Home, name: str, is_queue: bool) -> None:
    """Let a queue or a service go on."""
    say(f"Resumed {hold(home, name, is_queue, is_paused=False)} {clean(name)}")
