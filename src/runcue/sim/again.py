"""How to repeat a run: the command, and the configuration as YAML."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from runcue.sim.config import BadConfig, Config, load
from runcue.sim.scenarios import SCENARIOS, scenario

ALWAYS = frozenset({"name", "seed", "duration", "submit_rate"})
"""Keys that are written even if they have their default."""

NO_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that YAML does not read as text."""


def command_of(config: Config) -> str:
    """The command that runs a configuration; one that is no scenario has to be in `run.yaml`."""
    if config.name in SCENARIOS:
        plain = msgspec.structs.replace(scenario(config.name, config.duration), seed=config.seed)
        if plain == config:
            return f"runcue-sim --scenario {config.name} --duration {config.duration:g}s --seed {config.seed}"
    return f"runcue-sim --config run.yaml --seed {config.seed}"


def as_yaml(config: Config) -> str:
    """A configuration as YAML, without values that are the defaults."""
    short = "\n".join(_yaml(_told(config), 0)) + "\n"
    try:
        if load(short, name=config.name) == config:
            return short
    except BadConfig:  # then every value has to be written
        pass
    return "\n".join(_yaml(msgspec.to_builtins(config), 0)) + "\n"


def _told(value: Any) -> Any:
    """A struct as plain values, without defaults."""
    if isinstance(value, msgspec.Struct):
        usual = type(value)()
        return {
            field.encode_name: _told(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != getattr(usual, field.name) or field.name in ALWAYS
        }
    if isinstance(value, dict):
        return {key: _told(inside) for key, inside in value.items()}
    return [_told(inside) for inside in value] if isinstance(value, list) else value


def _yaml(value: dict[Any, Any], depth: int) -> list[str]:
    """Lines of YAML: mappings in blocks, everything else as JSON, which YAML reads too."""
    lines = []
    for key, inside in value.items():
        is_plain = (
            isinstance(key, str) and key.isidentifier() and key.isascii() and key.lower() not in NO_TEXT
        )
        name = key if is_plain else json.dumps(key)
        if isinstance(inside, dict) and inside:
            lines += [f"{'  ' * depth}{name}:", *_yaml(inside, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{name}: {json.dumps(inside)}")
    return lines
