"""`queuectl show`: everything about one job. Values of its environment are never shown."""

from __future__ import annotations

from typing import Any

import click

from runcue.cli.completing import any_job
from runcue.cli.groups import verb
from runcue.cli.home import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

MASK = "***"


@verb("show", examples=["queuectl show job1", "queuectl show job1 --json | jq .history"])
@click.argument("id", shell_complete=any_job)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object: the columns of the jobs view, and more."
)
@click.pass_obj
def command(home: Home, id: str, as_json: bool) -> None:
    """Show everything about one job: what it is, how it stands, and every attempt that failed."""
    from runcue.cli.lookup import the_job
    from runcue.cli.reasons import Crew, again, sentence
    from runcue.cli.screen import show_json

    with the_job(home, id) as (reader, work, job):
        why, now, crew = reader.explain(id), reader.now(), Crew(reader.workers())
        way = again(reader, work)
    details = {**job, **_details(work), "why": sentence(why, job, now, crew, work.queue, way)}
    if as_json:
        show_json(details)
    else:
        _tell(details)


def _details(work: runcue.Work) -> dict[str, Any]:
    """What the jobs view does not tell."""
    from runcue.cli.screen import moment

    params, retry = work.params, work.retry
    result = work.result if isinstance(work.result, dict) else {}
    return {
        "queue": work.queue,
        "task": work.task,
        "argv": params.get("argv"),
        "cwd": params.get("cwd"),
        "env": {str(name): MASK for name in _names(params.get("env"))},
        "uses": list(work.services),
        "after": list(work.depends_on),
        "key": work.idempotency_key,
        "timeout": work.timeout,
        "backoff_base": None if retry is None else retry.base_delay,
        "max_delay": None if retry is None else retry.max_delay,
        "run_at": moment(work.run_at) or None,
        "started_at": moment(work.started_at) or None,
        "completed_at": moment(work.completed_at) or None,
        "exit_code": result.get("exit_code"),
        "history": [
            {
                "attempt": one.number,
                "at": moment(one.at) or None,
                "duration": None if one.duration is None else round(one.duration, 3),
                "error": one.error,
                "worker_id": one.worker,
            }
            for one in work.history
        ],
    }


def _names(env: object) -> list[object]:
    return list(env) if isinstance(env, dict) else []


def _tell(job: dict[str, Any]) -> None:
    from runcue.cli.reasons import tries
    from runcue.cli.screen import STATE_COLORS, aligned, clean, reason_of, say, span, styled

    say(f"{styled(clean(job['id']), bold=True)}  {styled(job['state'], fg=STATE_COLORS.get(job['state']))}")
    say(clean(job["why"]))
    say()
    started, ended = job["started_at"], job["completed_at"]
    facts = {
        "command": job["command"],
        "folder": job["cwd"],
        "environment": " ".join(f"{name}={value}" for name, value in job["env"].items()),
        "queue": job["queue"],
        "task": job["task"] if job["task"] != "shell" else None,
        "priority": f"{job['priority']:g}",
        "tries": f"{tries(job)} failed",
        "timeout": None if not job["timeout"] else span(job["timeout"]),
        "uses": ", ".join(job["uses"]),
        "after": ", ".join(job["after"]),
        "key": job["key"],
        "enqueued": job["created_at"],
        "runs at": job["next_run_at"] if job["state"] in {"pending", "failed"} else None,
        "started": started,
        "ended": ended,
        "exit code": None if job["exit_code"] is None else str(job["exit_code"]),
        "worker": job["worker_id"],
        "last error": reason_of(job["last_error"]) if job["last_error"] else None,
    }
    for name, value in facts.items():
        if value:
            say(f"{styled(f'{name:<12}', dim=True)}{clean(value)}")
    if job["history"]:
        say()
        say(styled("Failed attempts", bold=True))
        rows = [
            [
                str(one["attempt"]),
                one["at"] or "",
                "" if one["duration"] is None else span(one["duration"]),
                reason_of(one["error"]),
            ]
            for one in job["history"]
        ]
        for line in aligned(("", "AT", "TOOK", "ERROR"), rows, indent="  "):
            say(line)
