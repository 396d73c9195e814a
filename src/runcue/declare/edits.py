"""What an edit of a unit changes, checked like a submission."""

from __future__ import annotations

from typing import Any

from runcue.core.model import parse
from runcue.core.model.record import Spec
from runcue.core.schedule.plan import Edit
from runcue.declare.registry import HIGHEST_PRIORITY, Registry
from runcue.errors import ConfigError, SubmitError


def edit_of(registry: Registry, spec: Spec, params: Any, priority: float | None) -> Edit:
    """The inbox item that gives a unit other params, another priority, or both."""
    if params is None and priority is None:
        raise ConfigError("edit() changes params=, priority= or both. Give one of them.")
    if priority is not None:
        priority = parse.number(priority, "priority", -HIGHEST_PRIORITY, HIGHEST_PRIORITY)
    edit = Edit(spec.id, priority=priority)
    known = registry.tasks.get(spec.task)
    if params is not None and known is None:  # a program that only operates: services stay as they are
        edit.params = parse.encode_params(params, registry.options.max_params)
    elif params is not None and known is not None:
        made = registry.spec(spec.task, make_id=lambda: spec.id, params=params, target=spec.target, queue=spec.queue,
                             priority=spec.priority if priority is None else priority)  # fmt: skip
        if made.extras is not None:
            raise SubmitError("edit() cannot hand on outputs of other units: submit the unit anew.")
        edit.params, edit.label = made.params, made.label
        if not known.is_plain:
            edit.services, edit.cost = made.services, made.cost
    return edit
