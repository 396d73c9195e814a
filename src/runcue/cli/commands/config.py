"""`queuectl config`: the settings that are stored with the queue."""

from __future__ import annotations

import click

from runcue.cli.completion import setting
from runcue.cli.groups import HELP, family
from runcue.cli.home import Home
from runcue.cli.screen import note, say, show_json, table
from runcue.cli.settings import KEYS, Settings, check, key_of, settings_of


@family(
    "config",
    examples=[
        "queuectl config list",
        "queuectl config set max-retries 5",
        "queuectl config get backoff_base",
    ],
)
def command() -> None:
    """Read and change settings; they hold for jobs that are enqueued, and workers that start, from then on."""


@command.command("list", examples=["queuectl config list --json"])
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object: name → value and default, as numbers."
)
@click.pass_obj
def list_all(home: Home, as_json: bool) -> None:
    """Show all settings, and which were changed."""
    settings, defaults = settings_of(home), Settings()
    if as_json:
        show_json({name: {"value": settings.number(name), "default": defaults.number(name)} for name in KEYS})
        return
    table(
        ("SETTING", "VALUE", "DEFAULT", "MEANING"),
        [(name, settings.text(name), defaults.text(name), key.line) for name, key in KEYS.items()],
    )


@command.command("get", examples=["queuectl config get max-retries"])
@click.argument("key", shell_complete=setting)
@click.option("--json", "as_json", is_flag=True, help="Print an object: name → value.")
@click.pass_obj
def get(home: Home, key: str, as_json: bool) -> None:
    """Print one setting."""
    name = key_of(key)
    settings = settings_of(home)
    if as_json:
        show_json({name: settings.number(name)})
    else:
        say(settings.text(name))


@command.command(
    "set",
    examples=["queuectl config set max-retries 5", "queuectl config set timeout 10m"],
    context_settings={**HELP, "ignore_unknown_options": True},
)
@click.argument("key", shell_complete=setting)
@click.argument("value")
@click.pass_obj
def change(home: Home, key: str, value: str) -> None:
    """Change one setting; `default` takes the change back.

    max_retries and timeout hold for jobs that are enqueued from then on, backoff_base and max_delay for every job
    that fails from then on, retention and log_limit for workers that are started later.
    """
    from runcue.cli.jobs import ask

    name = key_of(key)
    text = None if value.strip().lower() == "default" else check(name, value)
    ask(home, lambda cue, _: cue.set_config({name: text}), may_create=True)
    note(f"{name} is now {Settings().text(name) if text is None else text}.")
