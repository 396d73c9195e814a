"""`queuectl show` and `runcue show`: everything about one job.

Values of a job's environment are never shown, other secrets only with `--raw`.
"""

from __future__ import annotations

from typing import Any

import click

from runcue.cli.commands.listing import summary
from runcue.cli.completion import any_job, any_work
from runcue.cli.groups import verb
from runcue.cli.home import Home
from runcue.cli.lookup import the_job
from runcue.cli.place import File, Place, hiding, on_file
from runcue.cli.reasons import explained, tries
from runcue.cli.screen import STATE_COLORS, aligned, clean, moment, reason_of, say, show_json, span, styled
from runcue.cli.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue
    from runcue.cli.settings import Settings

MASK = "***"


@verb("show", examples=["queuectl show job1", "queuectl show job1 --json | jq .history"])
@click.argument("id", shell_complete=any_job)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object: the columns of the jobs view, and more."
)
@click.option("--raw", is_flag=True, help="Show secrets as they are, but for values of the environment.")
@click.pass_obj
def command(home: Home, id: str, as_json: bool, raw: bool) -> None:
    """Show everything about one job: what it is, how it stands, and every attempt that failed.

    Passwords, tokens and the like in its command, key and errors are shown as ***.
    """
    _show(home, id, as_json, raw)


@on_file("show", examples=["runcue show queue.db page-7", "runcue show queue.db page-7 --json | jq .params"])
@click.argument("id", shell_complete=any_work)
@click.option("--json", "as_json", is_flag=True, help="Print one object: all that is known of it.")
@click.option("--raw", is_flag=True, help="Show passwords, tokens and other secrets as they are.")
def show(place: File, id: str, as_json: bool, raw: bool) -> None:
    """Show everything about one unit: what it is, how it stands, and every attempt that failed.

    Secrets in target, params, result, key and errors are shown as ***.
    """
    _show(place, id, as_json, raw)


def _show(place: Place, id: str, as_json: bool, raw: bool) -> None:
    found, facts = page(place, id, raw)
    if as_json:
        show_json(found)
        return
    state = found["state"]
    say(f"{styled(clean(found['id']), bold=True)}  {styled(state, fg=STATE_COLORS.get(state))}")
    say(clean(found["why"]))
    say()
    for name, value in facts.items():
        if value:
            say(f"{styled(f'{name:<12}', dim=True)}{clean(value)}")
    if found["history"]:
        say()
        say(styled("Failed attempts", bold=True))
        for line in aligned(("", "AT", "TOOK", "ERROR"), attempts(found), indent="  "):
            say(line)
    if found.get("traceback"):
        say()
        say(styled("Traceback of the last attempt", bold=True))
        for line in found["traceback"].rstrip("\n").splitlines():
            say(f"  {clean(line)}")


def page(place: Place, id: str, raw: bool = False) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Everything about one job as data, and what people are shown of it, by name."""
    with the_job(place, id, raw=raw) as (reader, work, job):
        settings = _settings(reader, work)
        _, _, text = explained(reader, work, job, place.words)
    if isinstance(place, File):
        found = {**_work_details(work, raw), "why": text}
        return found, _work_facts(found)
    found = {**job, **_details(work, settings, raw), "why": text}
    return found, _facts(found)


def _settings(reader: runcue.Reader, work: runcue.Work) -> Settings | None:
    """The settings, if they decide how long the job's retries wait; None where the job has delays of its own."""
    from runcue.cli.jobs import keeps_to_settings

    return Settings.of(reader.config()) if keeps_to_settings(work) else None


def _details(work: runcue.Work, settings: Settings | None, raw: bool) -> dict[str, Any]:
    """What `show --json` prints of a job beside the columns of the jobs view."""
    hide = hiding(raw)
    params, retry = work.params, work.retry
    env = params.get("env")
    result = work.result if isinstance(work.result, dict) else {}
    return {
        "queue": work.queue,
        "task": work.task,
        "argv": params.get("argv") if raw else _argv(params.get("argv")),
        "cwd": params.get("cwd"),
        "env": {str(name): MASK for name in env} if isinstance(env, dict) else {},
        "uses": list(work.services),
        "after": list(work.depends_on),
        "key": hide(work.idempotency_key),
        "timeout": work.timeout,
        "backoff_base": settings.backoff_base if settings else retry and retry.base_delay,
        "max_delay": settings.max_delay if settings else retry and retry.max_delay,
        "run_at": moment(work.run_at) or None,
        "expires_at": moment(work.expires_at) or None,
        "progress": hide(_progress(work)),
        "started_at": moment(work.started_at) or None,
        "completed_at": moment(work.completed_at) or None,
        "exit_code": result.get("exit_code"),
        "history": _history(work, raw),
    }


def _progress(work: runcue.Work) -> dict[str, Any] | None:
    """How far the handler of a unit said that it is; None before it said anything."""
    fraction, text = work.progress.fraction, work.progress.text
    return None if fraction is None and text is None else {"fraction": fraction, "text": text}


def _how_far(progress: dict[str, Any] | None) -> str | None:
    """Progress in a few words: `40 %, page 4 of 10`."""
    if progress is None:
        return None
    share = "" if progress["fraction"] is None else f"{progress['fraction']:.0%}".replace("%", " %")
    return ", ".join(filter(None, (share, progress["text"])))


def _argv(argv: object) -> object:
    """The arguments without secrets: an argument behind an option such as --password is masked as a whole."""
    from runcue import mask

    if not isinstance(argv, list):
        return mask(argv)
    return [
        MASK if mask(f"{before} x").endswith(MASK) else mask(one)
        for before, one in zip(["", *argv[:-1]], argv, strict=True)
    ]


def _history(work: runcue.Work, raw: bool) -> list[dict[str, Any]]:
    hide = hiding(raw)
    return [
        {
            "attempt": one.number,
            "at": moment(one.at) or None,
            "duration": None if one.duration is None else round(one.duration, 3),
            "error": hide(one.error),
            "worker_id": one.worker,
        }
        for one in work.history
    ]


def _facts(job: dict[str, Any]) -> dict[str, str | None]:
    """What `show` prints of a job, by name."""
    return {
        "command": job["command"],
        "folder": job["cwd"],
        "environment": " ".join(f"{name}={value}" for name, value in job["env"].items()),
        "queue": job["queue"],
        "task": job["task"] if job["task"] != "shell" else None,
        "priority": f"{job['priority']:g}",
        "tries": tries(job) + (f", {job['attempts']} failed" if job["attempts"] else ""),
        "timeout": None if not job["timeout"] else span(job["timeout"]),
        "uses": ", ".join(job["uses"]),
        "after": ", ".join(job["after"]),
        "key": job["key"],
        "enqueued": job["created_at"],
        "runs at": job["next_run_at"] if job["state"] in {"pending", "failed"} else None,
        "expires": job["expires_at"] if job["state"] in {"pending", "failed"} else None,
        "started": job["started_at"],
        "progress": _how_far(job["progress"]),
        "ended": job["completed_at"],
        "exit code": None if job["exit_code"] is None else str(job["exit_code"]),
        "worker": job["worker_id"],
        "last error": reason_of(job["last_error"]) if job["last_error"] else None,
    }


def _work_details(work: runcue.Work, raw: bool) -> dict[str, Any]:
    """What `show --json` prints of a unit; secrets are masked unless `raw`."""
    hide = hiding(raw)
    return {
        **summary(work, raw=raw),
        "traceback": hide(work.traceback),
        "depends_on": list(work.depends_on),
        "timeout": work.timeout,
        "dependency_timeout": work.dependency_timeout,
        "retry": None if work.retry is None else {"max_attempts": work.retry.max_attempts},
        "expires_at": moment(work.expires_at) or None,
        "progress": hide(_progress(work)),
        "history": _history(work, raw),
    }


def _work_facts(work: dict[str, Any]) -> dict[str, str | None]:
    """What `show` prints of a unit, by name."""
    most = "" if work["retry"] is None else f" of {work['retry']['max_attempts']}"
    failed = f", {work['failures']}{most} failed" if work["failures"] else ""
    waits = work["state"] == "pending"
    return {
        "label": work["label"],
        "task": work["task"],
        "group": work["group"],
        "tags": " ".join(f"{name}={value}" for name, value in work["tags"].items()),
        "target": work["target"],
        "params": _json(work["params"]) if work["params"] else None,
        "result": None if work["result"] is None else _json(work["result"]),
        "queue": work["queue"],
        "priority": f"{work['priority']:g}" if work["priority"] else None,
        "attempt": f"{work['attempt']}{failed}",
        "timeout": None if not work["timeout"] else span(work["timeout"]),
        "uses": ", ".join(work["services"]),
        "after": ", ".join(work["depends_on"]),
        "key": work["idempotency_key"],
        "submitted": work["created_at"],
        "runs at": (work["next_retry_at"] or work["run_at"]) if waits else None,
        "expires": work["expires_at"] if waits else None,
        "started": work["started_at"],
        "progress": _how_far(work["progress"]),
        "ended": work["completed_at"],
        "skipped": "its output was valid already" if work["skipped"] else None,
        "worker": work["worker"],
        "last error": reason_of(work["error"]) if work["error"] else None,
    }


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value, enc_hook=repr).decode()


def attempts(found: dict[str, Any]) -> list[list[str]]:
    """The failed attempts as rows: number, when, how long it took, why."""
    return [
        [
            str(one["attempt"]),
            one["at"] or "",
            "" if one["duration"] is None else span(one["duration"]),
            reason_of(one["error"]),
        ]
        for one in found["history"]
    ]
