"""`runcue worker module:attribute`: the workers of an application that is written with runcue."""

from __future__ import annotations

import click

from runcue.cli.application import check
from runcue.cli.commands.worker import crew_options
from runcue.cli.fields import unicode
from runcue.cli.groups import verb
from runcue.cli.lines import Lines
from runcue.cli.supervisor import Supervisor
from runcue.cli.worker import Orders


@verb(
    "worker",
    examples=[
        "runcue worker app:cue",
        "runcue worker app:cue --count 4",
        "runcue worker shop.tasks:make_cue --queue mail",
    ],
)
@click.argument("name", metavar="MODULE:ATTRIBUTE")
@crew_options("How many processes.", "units")
@click.pass_context
def command(context: click.Context, name: str, count: int, queues: tuple[str, ...], quiet: bool) -> None:
    """Run the units of a Cue, in processes of their own, until asked to stop.

    MODULE is imported by every worker, the working directory first. ATTRIBUTE is a Cue, or a function without
    arguments that returns one; it may be dotted. Importing MODULE must not run it: that belongs under
    `if __name__ == "__main__":`. A Cue in memory is seen by its own process alone, and is refused.

    Ctrl-C (or SIGTERM) lets every worker finish what it runs and ends with 0. A second one puts running units back,
    without counting an attempt; a third one kills them. A worker that dies is replaced.

    Exit codes: 2 when there is no such Cue, 4 when it cannot be run or the application itself raises while it is
    imported (RUNCUE_DEBUG=1 shows its traceback).
    """
    orders = Orders(app=check(name), queues=sorted({unicode("queue", one) for one in queues}) or None)
    context.exit(Supervisor(orders, count, Lines(is_quiet=quiet)).run_or_raise())
