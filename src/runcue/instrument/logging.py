"""Logs a line for each event on the standard logger `runcue`: key=value pairs in the text, and as `extra`.

runcue never configures logging: the application decides what is shown. `JsonFormatter` makes each line a JSON object.
It can write any record: a value that is not JSON becomes a text, and secrets are hidden.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from runcue.core.limits.headers import asked
from runcue.core.model.events import EVENTS, Event, EventDraft, draft_of, make_event
from runcue.core.model.failure import clean
from runcue.core.schedule.plan import Plan

logger = logging.getLogger("runcue")

QUIET: Final = frozenset(
    {"queued", "started", "completed", "skipped", "progress", "queue_status", "schedule_fired"}
)
"""Everyday events, which are logged at DEBUG."""
WARNINGS: Final = frozenset(
    {
        "failed",
        "stale_completion",
        "circuit_opened",
        "backpressure_active",
        "callback_failed",
        "pending_warning",
        "stall_warning",
    }
)
"""Events that need attention. Every other event, a new one included, is logged at INFO."""
STOPPED: Final = frozenset({"held back", "refused"})
"""Changes of a schedule after which nothing comes of it."""
LEVELS: Final = dict.fromkeys(EVENTS, logging.INFO) | {
    **dict.fromkeys(QUIET, logging.DEBUG),
    **dict.fromkeys(WARNINGS, logging.WARNING),
}


def log_events(plan: Plan) -> None:
    """Log the events of a plan, down to the level of the logger."""
    least = logger.getEffectiveLevel()
    if least > logging.DEBUG and not plan.is_notable:
        return
    for emitted in plan.events:
        if least > logging.DEBUG and type(emitted) is not EventDraft:
            continue  # an everyday event
        level = _level(draft_of(emitted))
        if level >= least:
            event = make_event(0, emitted)
            fields = _fields(event)
            line = " ".join(f"{key}={_shown(value)}" for key, value in fields.items())
            logger.log(level, "%s: %s", event.name, line, extra={"runcue": {"event": event.name, **fields}})


def _level(draft: EventDraft) -> int:
    """The level of an event: a failed attempt is a warning only if no other follows, and a change of a schedule only
    when nothing comes of it."""
    if draft.type == "schedule_changed" and draft.data is not None and draft.data.get("change") in STOPPED:
        return logging.WARNING
    if draft.type == "failed" and draft.data is not None and draft.data.get("will_retry"):
        return logging.INFO
    return LEVELS.get(draft.type, logging.INFO)  # a newer runcue may emit an event that is not in the table


def _fields(event: Event) -> dict[str, object]:
    from runcue.host.masking import mask  # imported by the first line that is logged

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
    shown: dict[str, object] = mask({key: value for key, value in fields.items() if value is not None})
    return shown


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else repr(text)


# JSON -----------------------------------------------------------------------------------------------------

LONGEST: Final = 16_384
"""Characters of the text for a value that is not JSON."""
USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "runcue"}
"""Attributes of every log record; all others were given as `extra`."""

BREAKS: Final = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}
"""Characters that JSON allows inside a text, and that some readers take for the end of a line."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then the event with its fields, or the `extra` given.

    Use it with any handler: `handler.setFormatter(runcue.JsonFormatter())`.
    """

    def __init__(self) -> None:
        super().__init__()
        from runcue.host.masking import mask  # imported only where JSON is wanted

        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        """The line for a log record, without its line end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        fields = getattr(record, "runcue", None)
        given = fields if isinstance(fields, dict) else {}
        extra = {key: value for key, value in vars(record).items() if key not in USUAL}
        for key, value in (given | extra).items():
            line.setdefault(str(key), value)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        shown = ",".join(f"{self._json(key)}:{self._shown(key, value)}" for key, value in line.items())
        return "{" + shown.translate(BREAKS) + "}"

    def _shown(self, key: str, value: object) -> str:
        """One field as JSON, without secrets; a value that is not JSON becomes a text."""
        hidden = asked(self._mask, {key: value})
        if hidden is None:  # masking failed, as with a value that cannot be compared
            return self._json(_type_name(value))
        try:
            return self._json(hidden[key])
        except Exception:  # noqa: BLE001 (a value of the application may raise anything, and the line is needed)
            return self._json(self._as_text(hidden[key]))

    def _json(self, value: object) -> str:
        return msgspec.json.encode(value, enc_hook=self._as_text).decode()

    def _as_text(self, value: object) -> str:
        """Any value as a text, without secrets."""
        return str(self._mask(_as_text(value)))


def _message(record: logging.LogRecord) -> str:
    """The message of a record; if its arguments do not fit, the unformatted message and then the arguments."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 (the standard library would print this error in place of the line)
        return f"{_as_text(record.msg)} {_as_text(record.args)}"


def _as_text(value: object) -> str:
    text = asked(repr, value) if isinstance(value, BaseException) else asked(str, value)
    return clean(text if isinstance(text, str) else _type_name(value), LONGEST)


def _type_name(value: object) -> str:
    return f"<{type(value).__name__}>"
