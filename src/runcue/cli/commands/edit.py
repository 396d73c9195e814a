"""`queuectl edit` and `runcue edit`: other params or another priority for what waits or has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from runcue.cli.completion import any_job, any_work
from runcue.cli.failure import bad_input, conflict
from runcue.cli.fields import check, said
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.lookup import no_job
from runcue.cli.place import File, Place, ask, on_file
from runcue.cli.screen import clean, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue

Params = dict[str, Any]


@verb(
    "edit",
    examples=[
        "queuectl edit job1 --command 'make -j2 test'",
        "queuectl edit job1 --priority 5 --env DEBUG=1",
    ],
)
@click.argument("id", shell_complete=any_job)
@click.option("--command", metavar="TEXT", help="The shell command to run instead, by /bin/sh.")
@click.option("--priority", type=int, metavar="N", help="Higher runs first.")
@click.option("--uses", multiple=True, metavar="SERVICE", help="Keep to that service's limits. Repeatable.")
@click.option("--cwd", metavar="DIR", help="The folder it runs in.")
@click.option("--env", multiple=True, metavar="K=V", help="Set an environment variable. Repeatable.")
@click.pass_obj
def command(home: Home, /, id: str, priority: int | None, **flags: Any) -> None:
    """Edit a job that waits or is dead: what is not given stays as it is.

    A dead job stays dead until it is retried: queuectl dlq retry.
    """
    given = _checked({name: value for name, value in flags.items() if value not in (None, ())})

    def merged(before: Params) -> Params:
        params = {name: value for name, value in before.items() if name != "argv" or "command" not in given}
        env = {"env": {**before.get("env", {}), **given["env"]}} if "env" in given else {}
        return params | given | env

    priority = None if priority is None else check("priority", priority)
    if not given and priority is None:
        raise bad_input("Say what to change: --command, --priority, --uses, --cwd, --env.")
    _edit(home, id, merged if given else None, priority)


@on_file(
    "edit",
    examples=[
        """runcue edit queue.db page-7 --params '{"page": 8}'""",
        "runcue edit queue.db page-7 --priority 5",
    ],
)
@click.argument("id", shell_complete=any_work)
@click.option("--params", metavar="JSON", help="The params to run it with instead: one JSON object.")
@click.option("--priority", type=float, metavar="N", help="Higher runs first.")
def edit(place: File, id: str, params: str | None, priority: float | None) -> None:
    """Edit a unit that is pending or has failed: what is not given stays as it is.

    A failed unit stays failed until it is retried: runcue retry. Its services stay as its program chose them.
    """
    if params is None and priority is None:
        raise bad_input("Say what to change: --params, --priority.")
    found = None if params is None else _object(params)
    _edit(place, id, None if found is None else lambda before: found, priority)


def _edit(place: Place, id: str, change: Callable[[Params], Params] | None, priority: float | None) -> None:
    """Edit a unit; `change` makes its new params of those it has."""
    from runcue import ConfigError, SubmitError, WorkNotEditable

    place.check_id(id)

    async def edited(cue: Cue) -> None:
        work = await cue.get(id)
        if work is None:
            raise no_job(place, id)
        if work.state not in {"pending", "failed"}:
            raise _not_editable(place, id, place.words.state_of(work))
        params = None if change is None else change(work.params)
        try:
            await cue.edit(id, params=params, priority=priority)
        except WorkNotEditable as error:  # it has started just now
            raise _not_editable(place, id, error.state) from error
        except (ConfigError, SubmitError) as error:
            raise bad_input(str(error)) from error
        again = f" Run it again: {place.words.do('retry', clean(id))}" if work.state == "failed" else ""
        say(f"Edited {clean(id)}.{again}" if again else f"Edited {clean(id)}")

    ask(place, edited)


def _not_editable(place: Place, id: str, state: str) -> Exception:
    words = place.words
    others = "have failed" if words.has_programs else "are dead"
    return conflict(f"{clean(id)} is {state}: only {words.many} that wait or {others} can be edited.")


def _checked(flags: dict[str, Any]) -> Params:
    """The flags as params of a job, each checked as when it is enqueued."""
    found = dict(flags)
    if "env" in found:
        pairs = [text.partition("=") for text in found["env"]]
        lacking = next((name for name, sign, _ in pairs if not sign), None)
        if lacking is not None:
            raise bad_input(f"--env {said(lacking)} has no value: write NAME=VALUE.")
        found["env"] = {name: value for name, _, value in pairs}
    return {name: check(name, value) for name, value in found.items()}


def _object(text: str) -> Params:
    import msgspec

    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise bad_input(f'--params is no JSON object such as {{"page": 8}}: {error}.') from error
