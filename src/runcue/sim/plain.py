"""Reads YAML into plain values; nothing else in the simulator reads YAML.

Rules:
- The text is untrusted: safe tags only, at most 10,000 values and 40 levels, aliases counted where they are used, no
  key twice. Nothing in it is executed.
- Whatever is wrong raises `BadConfig` with the line, or the path of the key, and what was expected there.
"""

from __future__ import annotations

from typing import Any

import yaml

from runcue.sim.reading import BadConfig

MOST_VALUES = 10_000
DEEPEST = 40

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The fast one, where there is one. It composes recursively, and in C: what it is given must not be deep."""


def plain(text: str, path: str) -> Any:
    """Read a YAML text into plain values; one that is too large is refused before it takes memory."""
    try:
        depth = 0
        for amount, event in enumerate(yaml.parse(text, Loader=_Loader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if amount > MOST_VALUES or depth > DEEPEST:
                where = f"line {event.start_mark.line + 1}"
                raise BadConfig(where, f"at most {MOST_VALUES:,} values and {DEEPEST} levels")
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise (BadConfig(path, "a value", text) if path else _unreadable(error, text)) from error
    except yaml.YAMLError as error:
        raise BadConfig(path, "readable YAML", str(error).partition("\n")[0]) from error
    return None if node is None else Plain().value(node, path, 0)


class Plain:
    """Makes plain values of YAML's nodes; aliases are counted as often as they are used."""

    def __init__(self) -> None:
        self._left = MOST_VALUES
        self._scalars = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, path: str, depth: int) -> Any:
        """The value of one node, and of all below it."""
        self._left -= 1
        if self._left < 0:
            raise BadConfig(path, f"at most {MOST_VALUES:,} values, aliases counted in full")
        if depth > DEEPEST:
            raise BadConfig(path, f"at most {DEEPEST} levels")
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.value(item, f"{path}[{place}]", depth + 1) for place, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        raise BadConfig(path, "plain YAML without tags", node.tag)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise BadConfig(path, "keys that are text")
            key = self._scalar(key_node, path)
            if not isinstance(key, (str, int, float)):
                raise BadConfig(path, "keys that are text", key)
            inside = f"{path}.{str(key)[:64]}" if path else str(key)[:64]
            if key in found:
                raise BadConfig(inside, f"each key once (again in line {key_node.start_mark.line + 1})")
            found[key] = self.value(value_node, inside, depth + 1)
        return found

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind not in {"str", "int", "float", "bool", "null", "merge", "value", "timestamp"}:
            raise BadConfig(path, "plain YAML without tags", node.tag)
        if kind == "int" and len(node.value) > 64:
            raise BadConfig(path, "a number of fewer digits", node.value)
        if kind in {"str", "merge", "value", "timestamp"}:
            return str(node.value)
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise BadConfig(path, f"what YAML calls {kind}", node.value) from error


def _unreadable(error: yaml.MarkedYAMLError, text: str) -> BadConfig:
    mark = error.problem_mark
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return BadConfig(where, "spaces: YAML is not indented with tabs")
    return BadConfig(where, f"readable YAML ({str(error.problem)[:100]})")
