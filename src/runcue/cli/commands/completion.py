"""`queuectl completion`: the script with which a shell completes verbs, options, ids and names."""

from __future__ import annotations

import click

from runcue.cli.groups import verb
from runcue.cli.screen import say


@verb(
    "completion",
    examples=[
        "queuectl completion bash > ~/.local/share/bash-completion/completions/queuectl",
        'queuectl completion zsh > "${fpath[1]}/_queuectl"',
        "queuectl completion fish > ~/.config/fish/completions/queuectl.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    Verbs and options are completed, and from the queue the ids of jobs and the names of queues and services.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "the choices are the shells that click knows"
    script = found(context.find_root().command, {}, "queuectl", "_QUEUECTL_COMPLETE")
    say((script.source_template % script.source_vars()).strip())
