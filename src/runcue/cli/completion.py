"""What the shell offers for completion: ids, names and states, read from the queue without changing it.

After any error nothing is offered, because a message would disturb what is being typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from runcue.cli.home import Home
from runcue.cli.lookup import queues
from runcue.cli.settings import KEYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue
    from runcue.cli.place import Place

MOST = 200
"""How many of the newest jobs are offered."""

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _from_queue(ask: Callable[[runcue.Reader], Iterable[str]]) -> Completer:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        given: dict[str, Any] = context.find_root().params
        place: Place = context.params.get("place") or Home(
            given.get("home"), insecure=bool(given.get("insecure"))
        )
        try:
            if not place.exists:
                return []
            with place.reader() as reader:
                return sorted(
                    {one for one in ask(reader) if one.startswith(incomplete) and one.isprintable()}
                )
        except Exception:  # noqa: BLE001 (a line on stderr would spoil what is being typed)
            return []

    return complete


def _jobs(*states: str) -> Completer:
    return _from_queue(
        lambda reader: [job["id"] for state in states or (None,) for job in reader.jobs(state, limit=MOST)]
    )


def _works(*states: str) -> Completer:
    return _from_queue(
        lambda reader: [work.id for state in states or (None,) for work in reader.list(state, limit=MOST)]
    )


any_job = _jobs()
live_job = _jobs("pending", "failed", "processing")
dead_job = _jobs("dead")
any_work = _works()
live_work = _works("pending", "running")
failed_work = _works("failed", "cancelled")
queue = _from_queue(queues)
service = _from_queue(lambda reader: [one["name"] for one in reader.services()])
schedule = _from_queue(lambda reader: [one.name for one in reader.schedules()])
queue_or_service = _from_queue(lambda reader: [*queues(reader), *(one["name"] for one in reader.services())])


def setting(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names of settings."""
    return [name for name in KEYS if name.startswith(incomplete.replace("-", "_"))]
