"""One log line for each event, on the standard logger `runcue`, with key=value pairs and the same as `extra`.

runcue never configures logging: whoever runs it decides what is shown.
"""

from __future__ import annotations

import logging

from runcue.core.events import Event, Told, make_event, told
from runcue.core.plan import Plan

logger = logging.getLogger("runcue")

LEVELS = {
    "queued": logging.DEBUG,
    "started": logging.DEBUG,
    "completed": logging.DEBUG,
    "skipped": logging.DEBUG,
    "progress": logging.DEBUG,
    "queue_status": logging.DEBUG,
    "retrying": logging.INFO,
    "cancelled": logging.INFO,
    "service_status": logging.INFO,
    "service_rate_limited": logging.INFO,
    "circuit_half_open": logging.INFO,
    "circuit_closed": logging.INFO,
    "failed": logging.WARNING,
    "stale_completion": logging.WARNING,
    "circuit_opened": logging.WARNING,
    "backpressure_active": logging.WARNING,
    "callback_failed": logging.WARNING,
    "pending_warning": logging.WARNING,
    "stall_warning": logging.WARNING,
}


def log_events(plan: Plan) -> None:
    """Log what happened, as far as the logger wants to know."""
    least = logger.getEffectiveLevel()
    if least > logging.DEBUG and not plan.is_notable:
        return
    for news in plan.events:
        level = _level(told(news))
        if level >= least:
            event = make_event(0, news)
            fields = _fields(event)
            line = " ".join(f"{key}={_shown(value)}" for key, value in fields.items())
            logger.log(level, "%s: %s", event.name, line, extra={"runcue": {"event": event.name, **fields}})


def _level(words: Told) -> int:
    """How much an event matters: an attempt that fails is bad news only when it was the last."""
    if words.type == "failed" and words.data is not None and words.data.get("will_retry"):
        return logging.INFO
    return LEVELS[words.type]


def _fields(event: Event) -> dict[str, object]:
    fields: dict[str, object] = {
        "work_id": event.work_id,
        "task": event.task,
        "attempt": event.attempt,
        "service": event.service,
        "error": event.error,
        "will_retry": event.will_retry,
        "duration": None if event.duration is None else round(event.duration, 6),
    }
    fields.update((key, value) for key, value in event.data.items() if key not in fields)
    return {key: value for key, value in fields.items() if value is not None}


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else repr(text)
