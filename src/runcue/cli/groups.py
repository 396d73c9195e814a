"""How verbs are declared, found and explained.

A verb is a click command made by `@verb`, a family of verbs (`dlq list`, `dlq retry`) a group made by `@family`:

    @verb("list", examples=["queuectl list --state failed"])
    @click.option("--limit", …)
    @click.pass_obj
    def command(home: Home, limit: int) -> None:
        \"\"\"List jobs, newest first.\"\"\"

Rules:
- A program's table has a line for each verb: its module, which is imported only when the verb is used, and its help.
  Where the command is not named `command` in the module, its name follows after a colon.
- Help shows what a verb does, then examples, then options. A wrong name gets the nearest right one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

import click

from runcue.cli.failure import advice

F = TypeVar("F", bound=Callable[..., Any])
HELP = {"help_option_names": ["-h", "--help"]}


class Verb(click.Command):
    """A command whose help shows examples before options."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **more: Any) -> None:
        more.setdefault("context_settings", HELP)
        super().__init__(*args, **more)
        self.examples = tuple(examples)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command does, examples, usage, and then what click would show."""
        self.format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)


class Family(Verb, click.Group):
    """A group of verbs, which suggests the nearest name for a wrong one."""

    command_class = Verb

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which they were declared."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs before the options, as most people look for those."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that was typed; raises an error that suggests the nearest one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            nearest = advice(args[0], known, repr, cutoff=0.5)
            raise click.UsageError(f"No command {_short(args[0])!r}. {nearest}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Family):
    """A program, which imports a verb when it is used. `verbs`: heading → name → (module, one line of help)."""

    def __init__(self, *args: Any, verbs: Mapping[str, Mapping[str, tuple[str, str]]], **more: Any) -> None:
        super().__init__(*args, **more)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the table."""
        return [name for table in self.verbs.values() for name in table]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb of that name."""
        for table in self.verbs.values():
            if cmd_name in table:
                module, _, name = table[cmd_name][0].partition(":")
                found = getattr(import_module(f"runcue.cli.commands.{module}"), name or "command")
                assert isinstance(found, click.Command)
                return found
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table, one line for each verb, without importing any."""
        for heading, table in self.verbs.items():
            with formatter.section(heading):
                formatter.write_dl([(name, line) for name, (_, line) in table.items()])


def verb(name: str, *, examples: Sequence[str] = (), **more: Any) -> Callable[[Callable[..., Any]], Verb]:
    """Declare a verb; the function's docstring is its help."""
    return click.command(name, cls=Verb, examples=examples, **more)


def family(name: str, *, examples: Sequence[str] = (), **more: Any) -> Callable[[Callable[..., Any]], Family]:
    """Declare a group of verbs: `@command.command("list", examples=[…])` adds one to it."""
    return click.group(name, cls=Family, examples=examples, **more)


def declared(*parts: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator for several options and arguments that verbs share; help shows them in this order."""

    def declare(function: F) -> F:
        for part in reversed(parts):
            function = part(function)
        return function

    return declare


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"
