"""By what people find a unit: its tags, its group, and the label that its task computes.

Rules:
- Tags and groups are texts that can be shown: they stand in lists, in addresses of the dashboard and in shells.
- A label is only for people: what it shows is cut, and a param that is missing is shown as "?" instead of refusing
  the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, Final

from runcue.core.model.parse import LONGEST_NAME
from runcue.errors import ConfigError, InvalidOption, SubmitError, listed, nearest, quoted

MOST_TAGS: Final = 20
LONGEST_VALUE: Final = 512
LONGEST_LABEL: Final = 200
EXAMPLE: Final = 'Expected names and texts, such as {"run": "nightly"}'

Label = tuple[tuple[str, str | None, str], ...]
"""The parts of a template: a text, the param that follows it if one does, and how that is formatted."""


def tags(value: object) -> tuple[tuple[str, str], ...]:
    """Read the tags of a submission, in the order of their names."""
    if not isinstance(value, Mapping):
        raise SubmitError(f"Invalid tags: {quoted(value)}. {EXAMPLE}.")
    if len(value) > MOST_TAGS:
        raise SubmitError(f"Invalid tags: {len(value):,} of them. A unit has at most {MOST_TAGS}.")
    for name, text in value.items():
        if not _is_shown(name, LONGEST_NAME):
            raise SubmitError(
                f"Invalid tag: its name is {quoted(name)}. Expected 1 to {LONGEST_NAME} printable characters."
            )
        if not _is_shown(text, LONGEST_VALUE):
            raise SubmitError(
                f"Invalid tag {quoted(name)}: {quoted(text)}. "
                f"Expected a text of 1 to {LONGEST_VALUE} printable characters."
            )
    return tuple(sorted((str.__str__(name), str.__str__(text)) for name, text in value.items()))


def group(value: object) -> str:
    """Read the name of a group."""
    if not _is_shown(value, LONGEST_VALUE):
        raise SubmitError(
            f"Invalid group: {quoted(value)}. Expected a text of 1 to {LONGEST_VALUE} printable characters."
        )
    return str.__str__(value)


def _is_shown(value: object, longest: int) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= longest and value.isprintable()


def template(value: object) -> Label | None:
    """Read the `label` of a task: a text with the names of params in braces."""
    if value is None:
        return None
    problem = 'a text with names of params in braces, such as "{page} of {book}"'
    if not isinstance(value, str) or not value:
        raise InvalidOption("label", value, problem)
    parts: list[tuple[str, str | None, str]] = []
    try:
        for text, name, form, conversion in Formatter().parse(value):
            if conversion or "{" in (form or "") or (name is not None and not name.isidentifier()):
                raise InvalidOption("label", value, problem)
            parts.append((text, name, form or ""))
    except ValueError as error:
        raise InvalidOption("label", value, f"{problem} ({error})") from None
    return tuple(parts)


def check_label(label: Label, refuses: Callable[[str], bool], known: Iterable[str]) -> None:
    """Refuse the label of a task that names a param which no unit of it can have."""
    for _, name, _ in label:
        if name is not None and refuses(name):
            near = nearest(name, known) or f" It has {listed(known)}."
            raise ConfigError(f"The label names {{{name}}}, and the task has no such param.{near}")


def rendered(label: Label, params: Mapping[str, Any]) -> str:
    """The label of a unit with these params."""
    shown = "".join(text + ("" if name is None else _value(params, name, form)) for text, name, form in label)
    shown = "".join(sign if sign.isprintable() else " " for sign in shown[: LONGEST_LABEL + 1])
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"


def _value(params: Mapping[str, Any], name: str, form: str) -> str:
    if name not in params:
        return "?"
    value = params[name]
    try:
        return format(value, form) if form else str(value)
    except Exception:  # noqa: BLE001 (a label is only shown: whatever a value raises, the unit counts)
        return quoted(value)
