"""A unit as it was submitted, and a schedule, as JSON texts and back.

Params are embedded as they are. Code does not travel: `Retry.retry_on`.
"""

from __future__ import annotations

import logging
from typing import Any, Final, get_type_hints

import msgspec
from msgspec.structs import astuple

from runcue.core.model.parse import YEAR_10000
from runcue.core.model.record import Spec
from runcue.core.model.retry import Backoff, Retry
from runcue.core.model.schedule import Schedule, Timing
from runcue.errors import quoted
from runcue.stores.sql import codec

logger = logging.getLogger("runcue")

_encode = msgspec.json.Encoder().encode


class RetryForm(msgspec.Struct, array_like=True, frozen=True):
    max_attempts: int
    backoff: Backoff
    base_delay: float
    max_delay: float
    jitter: bool


_SPEC: Final = get_type_hints(Spec) | {"params": msgspec.Raw, "retry": RetryForm | None}
SpecForm: Final = msgspec.defstruct("SpecForm", [*_SPEC.items()], array_like=True, gc=False)
_PARAMS, _RETRY = (Spec.__struct_fields__.index(name) for name in ("params", "retry"))
_NAMES: Final = [Spec.__struct_fields__.index(name) for name in ("task", "queue", "on_failed")]
_GROUP: Final = Spec.__struct_fields__.index("group")
_SERVICES: Final = Spec.__struct_fields__.index("services")


def retry_out(retry: Retry) -> RetryForm:
    return RetryForm(*astuple(retry)[:-1])


def retry_in(retry: RetryForm) -> Retry:
    return Retry(*astuple(retry))


def spec_out(spec: Spec) -> Any:
    values: list[Any] = [*astuple(spec)]
    values[_PARAMS] = msgspec.Raw(spec.params)
    if spec.retry is not None:
        values[_RETRY] = retry_out(spec.retry)
    return SpecForm(*values)


def spec_in(spec: Any) -> Spec:
    values = [*astuple(spec)]
    values[_PARAMS] = bytes(spec.params)
    values[_SERVICES] = codec.same_names(spec.services)
    for place in _NAMES:
        values[place] = codec.same_name(values[place])
    if spec.group is not None:
        values[_GROUP] = codec.same_name(spec.group)
    if spec.retry is not None:
        values[_RETRY] = retry_in(spec.retry)
    return Spec(*values)


# --- Schedules ---------------------------------------------------------

_NO_SCHEDULE: Final = Schedule("", Timing(), Spec("", "", b"", ()))
_SCHEDULE: Final = get_type_hints(Schedule) | {"spec": SpecForm}
ScheduleForm: Final[Any] = msgspec.defstruct("ScheduleForm", [
    (name, kind, getattr(_NO_SCHEDULE, name)) if name not in {"name", "timing", "spec"} else (name, kind)
    for name, kind in _SCHEDULE.items()
], omit_defaults=True)  # fmt: skip
_decode_schedule: Final = msgspec.json.Decoder(ScheduleForm).decode


def schedule_out(schedule: Schedule) -> Any:
    return ScheduleForm(schedule.name, schedule.timing, spec_out(schedule.spec), *astuple(schedule)[3:])


def schedule_in(said: Any) -> Schedule:
    return Schedule(said.name, said.timing, spec_in(said.spec), *astuple(said)[3:])


def schedule_text(schedule: Schedule) -> str:
    """A schedule as text."""
    return _encode(schedule_out(schedule)).decode()


def read_schedule(name: str, text: str) -> Schedule | None:
    """The schedule in such a text; None where it is damaged, which is logged."""
    try:
        found = schedule_in(_decode_schedule(text))
        _check(found, name)
        return found
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        logger.error("schedule %s cannot be read, and submits nothing: %s", quoted(name), error)
        return None


def _check(schedule: Schedule, name: str) -> None:
    """Refuse what no schedule can be, so that it stops nobody. One that is known to be wrong may be anything."""
    timing = schedule.timing
    if schedule.is_wrong and schedule.name == name:
        return
    times = (
        timing.every,
        timing.start,
        timing.until,
        timing.jitter,
        schedule.slot,
        schedule.due,
        schedule.as_of,
    )
    is_right = (
        schedule.name == name
        and (timing.every is None) != (timing.cron is None)
        and (timing.every is None or timing.every >= 1.0)
        and (schedule.slot is None) == (schedule.due is None)
        and all(one is None or 0.0 <= one < YEAR_10000 for one in times)
    )
    if not is_right:
        raise ValueError("its values make no sense")
