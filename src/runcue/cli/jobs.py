"""Jobs: reading them from JSON, submitting them, the task that runs them, and the Cue that all verbs use.

Rules:
- Nothing is guessed. A key that is unknown or given twice, a wrong type or a value out of range is refused with one
  line that names the key and the rule.
- The folder, the number of attempts and the timeout of a job are fixed and stored when it is enqueued. How long a
  retry waits is decided when the job fails, by the settings of that time.
- No path is made from an id, and no text of a job but its command reaches a shell.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import msgspec

from runcue.cli import place
from runcue.cli.failure import bad_input
from runcue.cli.fields import check, said
from runcue.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    import json

    from runcue import Command, Cue, Retry, Work
    from runcue.cli.home import Home

T = TypeVar("T")

TASK = "shell"
"""The name of the task that runs commands."""
MOST_PARAMS = 16 * 1024 * 1024
"""Bytes that a stored job may take; a line of input is always shorter."""
BACKOFF: Final = "power"
"""The kind of delays that all jobs have: `backoff_base ** attempts`."""
KEEPING = Settings(retention=None)
"""The settings of a Cue that is opened before the stored ones are known: it deletes nothing."""


class Job(msgspec.Struct, kw_only=True):
    """One job as it was given, checked; a field that is None was left out. Times are seconds."""

    command: str
    argv: list[str] | None = None
    id: str | None = None
    priority: int = 0
    max_retries: int | None = None
    timeout: float | None = None
    delay: float | None = None
    run_at: float | None = None
    queue: str = "default"
    after: list[str] = []
    key: str | None = None
    uses: list[str] = []
    cwd: str | None = None
    env: dict[str, str] = {}


# reading --------------------------------------------------------------------------------------------------


def parse_job(text: str | bytes, more: Mapping[str, Any] | None = None) -> Job:
    """Make a job of a JSON object and of `more`, checked fields that the object must not contradict."""
    fields = {key: check(key, value) for key, value in _object(text).items()}
    for key, value in (more or {}).items():
        if key == "env" and key in fields:
            value = _merged(fields[key], value)
        elif key in fields and fields[key] != value:
            raise bad_input(
                f"{key} is {said(fields[key])} in the JSON and {said(value)} beside it. Give it once."
            )
        fields[key] = value
    return make_job(fields)


def make_job(fields: Mapping[str, Any]) -> Job:
    """Make a job of checked fields."""
    for one, other in (("command", "argv"), ("delay", "run_at")):
        if one in fields and other in fields:
            raise bad_input(f"{one} and {other} are both given. Give one of them.")
    if "argv" in fields:
        from shlex import join

        return Job(command=join(fields["argv"]), **fields)
    if "command" not in fields:
        raise bad_input("command is missing: what is to be run?")
    return Job(**fields)


def _object(text: str | bytes) -> dict[str, object]:
    try:
        found = _decoder().decode(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except RecursionError:
        raise bad_input("This JSON is nested too deep: a job is a flat object.") from None
    except UnicodeDecodeError as error:
        raise bad_input(f"This is no UTF-8 text: byte {error.start + 1} is wrong.") from None
    except ValueError as error:  # JSONDecodeError, and numbers with too many digits
        where = f" at character {error.pos + 1}" if hasattr(error, "pos") else ""
        what = str(getattr(error, "msg", error)).partition(";")[0]
        raise bad_input(
            f'This is no JSON: {what}{where}. A job looks like {{"command": "sleep 2"}}.'
        ) from None
    if not isinstance(found, dict):
        raise bad_input(f'A job is a JSON object such as {{"command": "sleep 2"}}, not {said(found)}.')
    return found


@cache
def _decoder() -> json.JSONDecoder:
    from json import JSONDecoder

    return JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise bad_input(f"The key {said(twice)} is there twice. Give it once.")
    return found


def _no_constant(name: str) -> NoReturn:
    raise bad_input(f"{name} is no JSON number.")


def _merged(inside: dict[str, str], beside: dict[str, str]) -> dict[str, str]:
    for name in inside.keys() & beside.keys():
        if inside[name] != beside[name]:  # values may be secrets: they are not shown
            raise bad_input(f"env has {said(name)} in the JSON and otherwise beside it. Give it once.")
    return inside | beside


# submitting -----------------------------------------------------------------------------------------------


def options_of(job: Job, settings: Settings) -> dict[str, Any]:
    """The arguments of `Cue.submit` for a job; settings fill in what it leaves out.

    The delays of retries are only for a worker that cannot read the settings when the job fails.
    """
    params: dict[str, Any] = {"command": job.command}
    if job.argv is not None:
        params["argv"] = job.argv
    params["cwd"] = here() if job.cwd is None else job.cwd
    if job.env:
        params["env"] = job.env
    if job.uses:
        params["uses"] = job.uses
    attempts = settings.max_retries if job.max_retries is None else job.max_retries
    options = {
        "task": TASK,
        "params": params,
        "retry": _retry(max(attempts, 1), settings.backoff_base, settings.max_delay),
        "timeout": (settings.timeout if job.timeout is None else job.timeout) or None,
        "id": job.id,
        "priority": job.priority,
        "queue": job.queue,
        "delay": job.delay,
        "run_at": job.run_at,
        "depends_on": job.after or None,
        "idempotency_key": job.key,
    }
    return {name: value for name, value in options.items() if value is not None}


@cache
def _retry(attempts: int, base: float, longest: float) -> Retry:
    from runcue import Retry

    return Retry(max_attempts=attempts, backoff=BACKOFF, base_delay=base, max_delay=longest, jitter=False)


def here() -> str:
    """The current folder, in which jobs run that name no other."""
    try:
        folder = os.getcwd()  # noqa: PTH109 (a Path would only be made to be turned back)
    except FileNotFoundError:
        raise bad_input("The current folder no longer exists. Give --cwd, or go elsewhere.") from None
    return str(check("cwd", folder))


# the queue ------------------------------------------------------------------------------------------------


def open_cue(home: Home, settings: Settings, **more: Any) -> Cue:
    """A Cue on the queue of a home, with the task that runs commands. The file is opened at its first use."""
    from runcue import Cue

    cue = Cue(
        home.database,
        age_step=None,
        retention=settings.retention,
        output_limit=settings.log_limit,
        max_params=MOST_PARAMS,
        insecure=home.insecure,
        **more,
    )
    cue.task(TASK, executor="subprocess", uses=_uses, retry_delay=partial(delay_of, home))(
        partial(command_of, str(home.path))
    )
    return cue


def delay_of(home: Home, work: Work) -> float | None:
    """How long a job that has just failed waits, by the present settings; None when it has delays of its own."""
    if not keeps_to_settings(work):
        return None
    settings = settings_of(home)
    try:
        return min(float(settings.backoff_base) ** work.failures, settings.max_delay)
    except OverflowError:  # more than a float can hold
        return settings.max_delay


def keeps_to_settings(work: Work) -> bool:
    """True for a job of queuectl; one that another program submitted may have delays of its own."""
    return work.retry is not None and work.retry.backoff == BACKOFF and not work.retry.jitter


def _uses(work: Work) -> list[str]:
    found: list[str] = work.params.get("uses", [])
    return found


def command_of(home: str, work: Work) -> Command:
    """The command that a worker runs for a job; environment variables tell the command which job it is."""
    from runcue import Command

    params = work.params
    own = {"QUEUECTL_HOME": home, "QUEUECTL_JOB_ID": work.id, "QUEUECTL_ATTEMPT": str(work.attempt)}
    is_text = "argv" not in params
    args = params["command"] if is_text else params["argv"]
    return Command(args, shell=is_text, cwd=params.get("cwd"), env=own | params.get("env", {}))


def ask(home: Home, question: Callable[[Cue, Settings], Awaitable[T]], *, may_create: bool = False) -> T:
    """Call a function with the queue of a home and its settings; `may_create` allows making a missing queue."""
    if not home.exists:
        if not may_create:
            raise home.nothing()
        home.make()

    async def with_settings(cue: Cue) -> T:
        return await question(cue, Settings.of(await cue.get_config()))

    return place.ask_or_make(home, with_settings)


async def was_ended(cue: Cue, work_id: str) -> bool:
    """For an id without a job: True when the job ended and is no longer kept, False when there never was one."""
    from runcue import WorkNotFound

    try:
        await cue.explain(work_id)
    except WorkNotFound as error:
        return error.forgotten
    return False
