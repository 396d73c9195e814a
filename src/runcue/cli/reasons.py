"""Why a job waits, in the words of queuectl or of runcue: a few for a column, a sentence or two for `why`.

The library explains what holds a job back and until when. This module adds whether any worker can run it: a process
that only submits or looks runs nothing, and a worker may serve certain queues only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runcue.cli.screen import clean, counted, is_terminal, quoted, reason_of, span, typed, typed_with
from runcue.cli.words import QUEUECTL, Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue

NOT_GONE = frozenset({"alive", "unresponsive", "unknown"})
TRIED = frozenset({"processing", "running", "completed"})
"""The states of jobs whose latest attempt did not fail."""
IN_LINE = frozenset({"ready", "inbox", "order", "not_started", "max_running", "threads", "unknown_task"})
"""Reasons of jobs that are ready, and wait only for a worker."""


class Crew:
    """The workers that run jobs: which queues they serve, and which are free. A queue of None is any queue."""

    def __init__(self, workers: Iterable[Mapping[str, Any]]) -> None:
        self.members = [one for one in workers if one.get("serving") and one["state"] in NOT_GONE]

    def of(self, queue: str | None) -> list[Mapping[str, Any]]:
        """The workers that serve that queue."""
        return [
            one for one in self.members if queue is None or one["queues"] is None or queue in one["queues"]
        ]

    def serves(self, queue: str | None) -> bool:
        """True when a worker serves that queue."""
        return bool(self.of(queue))

    def is_free(self, queue: str | None) -> bool:
        """True when a worker that serves that queue runs nothing."""
        return any(not one["running"] for one in self.of(queue))

    @property
    def is_choosy(self) -> bool:
        """True when some workers serve certain queues only."""
        return any(one["queues"] is not None for one in self.members)


def tries(job: Mapping[str, Any]) -> str:
    """Attempts so far, with the running one, and the most there can be: 1/3; only 1 where the most is unknown."""
    has_more = job["state"] in TRIED and not job.get("skipped")
    return _of(job["attempts"] + has_more, job["max_retries"])


def _of(number: int, most: int | None) -> str:
    return str(number) if most is None else f"{number}/{most}"


def told(error: str | None) -> str:
    """Why a job failed, on one line: in words on a terminal, as stored in a pipe."""
    return in_words(error) if is_terminal() else reason_of(error)


def in_words(error: str | None) -> str:
    """Why a job failed, on one line, in words."""
    text = reason_of(error)
    return ENDS[text][0] if text in ENDS else text


def explained(
    reader: runcue.Reader, work: runcue.Work, job: Mapping[str, Any], words: Words
) -> tuple[runcue.Explanation, float, str]:
    """Why a job stands where it does: the library's explanation, the queue's time, and the sentence for people."""
    why, now, crew = reader.explain(work.id), reader.now(), Crew(reader.workers())
    return why, now, sentence(why, job, now, crew, work.queue, again(reader, work, words), words)


def _left(why: runcue.Explanation, now: float) -> str:
    return "" if why.until is None else span(max(0.0, why.until - now))


def short(
    why: runcue.Explanation,
    job: Mapping[str, Any],
    now: float,
    crew: Crew,
    queue: str | None = None,
    words: Words = QUEUECTL,
) -> str:
    """What a job waits for, and how long, for a column: `rate openai, 12 s`, `retry 2/3 in 8 s`, `no worker`."""
    left = _left(why, now)
    match why.reason:
        case "retry":
            return f"retry {_of(job['attempts'] + 1, job['max_retries'])} in {left or '0 s'}"
        case "paused" if not why.service:
            return "queue paused"
        case "overdue":
            return "its last run has not ended"
        case "inbox" if crew.members:
            return "just accepted"
        case reason if reason in IN_LINE:
            if not crew.serves(queue):
                return "no worker" if not crew.members else f"no worker for queue {queue}"
            return "starts now" if crew.is_free(queue) else words.busy
        case reason:
            return f"{why.brief}, {left}" if left and reason != "dependency" else why.brief


def waits(
    reader: runcue.Reader, jobs: Iterable[Mapping[str, Any]], now: float, crew: Crew, words: Words = QUEUECTL
) -> dict[str, tuple[runcue.Explanation, str]]:
    """For each job that waits, by its id: the library's explanation, and a few words."""
    wait = {job["id"]: job for job in jobs if job["state"] in words.waiting}
    if not wait:
        return {}
    works = [reader.get(id) for id in wait] if crew.is_choosy else []
    queues = {work.id: work.queue for work in works if work is not None}
    whys = reader.explain_many(wait)
    return {id: (why, short(why, wait[id], now, crew, queues.get(id), words)) for id, why in whys.items()}


def label(text: str, words: Words = QUEUECTL) -> str:
    """The result of `short` without its numbers, so that jobs are counted by reason."""
    what, _, _ = text.partition(",")
    if what.startswith("after "):
        return f"after other {words.many}"
    return "retry" if what.startswith("retry ") else what


def again(reader: runcue.Reader, work: runcue.Work, words: Words = QUEUECTL) -> str:
    """How to run a dead job again, together with the dead jobs that it runs after; "" for a job that is not dead."""
    if work.state != "failed":
        return ""
    left, found = [work], {work.id: work}
    while left:
        one = left.pop()
        if one.error not in NEVER_RAN:
            continue
        needs = [need for need in map(reader.get, one.depends_on) if need is not None]
        dead = [need for need in needs if need.state == "failed"]
        if not dead or any(need.state == "cancelled" for need in needs):
            return f"It cannot be retried, as what it is to run after is gone or cancelled: {words.give} it anew."
        left += [need for need in dead if need.id not in found]
        found |= {need.id: need for need in dead}
        if len(found) > NAMED:
            return f"Run it again with all that it runs after: {words.do('retry', words.everything)}"
    ids = map(typed if len(found) == 1 else quoted, reversed(found))
    return f"Run {'it' if len(found) == 1 else 'them'} again: {words.do('retry', *ids)}"


def sentence(
    why: runcue.Explanation,
    job: Mapping[str, Any],
    now: float,
    crew: Crew,
    queue: str | None,
    again: str = "",
    words: Words = QUEUECTL,
) -> str:
    """Why a job does not run, until when, what is ahead of it, and what to do; `again` says how to run a dead one."""
    if why.reason == "failed":
        return f"{clean(job['id'])} {words.is_dead}: {_end(job, words)}. {again}".rstrip()
    text = _told(why, job, now, crew, queue, words)
    if job["state"] in words.waiting and not crew.members and why.reason not in IN_LINE:
        return f"{text} (No worker is running: {words.do_start()})"
    return text


ENDS = {
    "prerequisite_failed": (
        "never ran: what it runs after failed",
        "it never ran, because a {one} that it was to run after {is_dead}",
    ),
    "prerequisite_cancelled": (
        "never ran: what it runs after was cancelled",
        "it never ran, because a {one} that it was to run after was cancelled",
    ),
    "prerequisite_lost": (
        "never ran: what it runs after was lost",
        "it never ran, because a {one} that it was to run after was lost with a damaged file",
    ),
    "worker_lost": ("every worker that ran it died", "every worker that ran it died"),
    "dropped": ("dropped: the queue was full", "dropped"),
    "expired": ("not started in time", "it was not started before it expired"),
}
"""Errors that the job's command did not cause: in few words for a column, and as part of a sentence."""
NEVER_RAN = frozenset(name for name in ENDS if name.startswith("prerequisite"))
NAMED = 10
"""How many jobs are named in a command that is advised."""


def _end(job: Mapping[str, Any], words: Words) -> str:
    """How a job died, as part of a sentence."""
    error, failures = reason_of(job["last_error"]).rstrip("."), job["attempts"]
    tried = "its only attempt" if failures == 1 else f"the last of {failures} attempts"
    if error in ENDS:
        return ENDS[error][1].format(one=words.one, is_dead=words.is_dead)
    return f"{tried} failed: {error}" if failures else error


def _told(
    why: runcue.Explanation, job: Mapping[str, Any], now: float, crew: Crew, queue: str | None, words: Words
) -> str:
    name, left = clean(job["id"]), _left(why, now)
    service = clean(why.service or "")
    when = f" for another {left}" if left else ""
    verb = "is" if why.ahead == 1 else "are"
    ahead = f" {counted(why.ahead, words.one)} {verb} ahead of it." if why.ahead else ""
    match why.reason:
        case "running":
            watch = "" if words.has_programs else f" Watch it: {words.do('logs', name, '--follow')}"
            return f"{name} is running now.{watch}"
        case "inbox" if crew.members:
            return f"{name} was accepted; the next turn decides about it."
        case "given":
            return f"{name} was started: {clean(why.details)}."
        case "completed":
            see = "" if words.has_programs else f" See what it printed: {words.do('logs', name)}"
            return f"{name} has completed.{see}"
        case "cancelled":
            return f"{name} was cancelled and will not run."
        case "retry":
            most = job["max_retries"]
            times = counted(job["attempts"], "time") if most is None else f"{job['attempts']} of {most} times"
            return (
                f"{name} failed {times}, and is tried again in "
                f"{left or 'a moment'}. The last error: {reason_of(job['last_error']).rstrip('.')}."
            )
        case "scheduled":
            return f"{name} is not due yet: it runs in {left or 'a moment'}."
        case "snoozed":
            return f"{name} asked to be run later{': in ' + left if left else ''}."
        case "dependency":
            return _dependency(name, why, words)
        case "rate":
            return (
                f"{name} waits for the rate limit of {service}{when} ({clean(why.details)}).{ahead} "
                f"Change it: {words.do('set', typed_with(why.service or '', '--rate …'))}"
            )
        case "throttled":
            return f"{name} waits{when}: {service or 'its service'} asked to be left alone.{ahead}"
        case "concurrency":
            return (
                f"{name} waits for a slot of {service} ({clean(why.details)}).{ahead} "
                f"Allow more: {words.do('set', typed_with(why.service or '', '--concurrent …'))}"
            )
        case "circuit":
            return (
                f"{name} waits{when}: the circuit of {service} is {clean(why.details)} because calls "
                f"kept failing.{ahead} It is tried again by itself."
            )
        case "paused":
            held = why.service or queue or "default"
            what = "service" if service else "queue"
            advice = f"Go on: {words.do('resume', typed(held))}"
            return f"{name} waits because the {what} {clean(held)} is paused.{ahead} {advice}"
        case "overdue":
            return f"{name} waits for its last run, which was given up but has not ended yet."
        case reason if reason in IN_LINE:
            return _in_line(name, crew, queue, ahead, words)
        case reason:
            from runcue import mask

            details = clean(mask(why.details))
            return f"{name} waits: {reason.replace('_', ' ')} {details}.".replace(" .", ".") + ahead


def _dependency(name: str, why: runcue.Explanation, words: Words) -> str:
    names = ", ".join(map(clean, why.waits_for[:5])) + (" …" if len(why.waits_for) > 5 else "")
    said = f"{name} runs after other {words.many} ({clean(why.details)}). It still waits for: {names}."
    if "never submitted" in why.details:
        cancel = words.do("cancel", typed(why.work_id))
        return f"{said} {words.give.capitalize()} what is missing, or cancel it: {cancel}"
    return said


def _in_line(name: str, crew: Crew, queue: str | None, ahead: str, words: Words) -> str:
    if not crew.members:
        return f"{name} is ready, but no worker is running.{ahead} Start one: {words.do_start()}"
    if not crew.serves(queue):
        where = queue or "default"
        return (
            f"{name} is ready, but no worker takes {words.many} of the queue {clean(where)}.{ahead} "
            f"Start one: {words.do_start(where)}"
        )
    if crew.is_free(queue):
        return f"{name} is ready and starts in a moment.{ahead}"
    if words.has_programs:  # one runs many at once, as many as it sees fit
        return f"{name} is ready and in line: it starts as soon as its program has room.{ahead}"
    count = len(crew.of(queue))
    where = "" if count == len(crew.members) else f" of the queue {clean(queue or 'default')}"
    who = f"the only worker{where} is" if count == 1 else f"all {count} workers{where} are"
    more = words.do_start((queue or "default") if where else None)
    return f"{name} is ready, but {who} busy.{ahead} Start more: {more}"
