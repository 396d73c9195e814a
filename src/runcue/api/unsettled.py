"""Checks what is submitted by a program that knows tasks by name alone, and makes rows of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from runcue.api.submission import outside_id
from runcue.core.model import parse
from runcue.declare.options import Options
from runcue.declare.registry import Registry
from runcue.declare.task import Task
from runcue.declare.unit import Unit
from runcue.errors import SubmitError, quoted
from runcue.stores.sql.submissions import Row, unit_row


class Unsettled:
    """Units whose services, and timeout if they have none, are those of their task. From any thread."""

    def __init__(self) -> None:
        self._registry = Registry(Options.of(), is_shared=True)
        self._one_at_a_time = threading.Lock()

    def row(self, task: Any, options: Mapping[str, Any]) -> Row:
        """A unit: a task by its name with options, or a unit as a value."""
        given = {**_arguments(task), **options}
        with self._one_at_a_time:
            self._know(given.get("task"))
            spec = self._registry.spec(make_id=outside_id, **given)
        return unit_row(spec, is_settled=False)

    def rows(self, items: object) -> list[Row]:
        """Many units; the error says which one is wrong."""
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise SubmitError(
                f"submit_many takes a list of dicts of submit's arguments, not {quoted(items)}."
            )
        given = [_arguments(item) for item in items]
        with self._one_at_a_time:
            for item in given:
                self._know(item.get("task"))
            specs = self._registry.specs(given, outside_id)
        return [unit_row(spec, is_settled=False) for spec in specs]

    def _know(self, task: object) -> None:
        """Let any name stand for a task: the programs that declare it know more of it."""
        if not isinstance(task, str):
            raise SubmitError(
                f"A task is submitted by its name here, not by {quoted(task)}. Give the name as text."
            )
        if task not in self._registry.tasks:
            self._registry.tasks[task] = Task(parse.name(task, "task"), _not_here)


def _arguments(item: Any) -> dict[str, Any]:
    """What is submitted, as the arguments of `submit`."""
    if isinstance(item, Unit):
        return item.arguments()
    if isinstance(item, Mapping):
        return dict(item)
    return {"task": item}


def _not_here(work: Any) -> Any:
    """Stands for a handler that another program has."""
    raise AssertionError
