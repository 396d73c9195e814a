"""Checks what a handler returned as a command: a list of arguments, or a text for a shell."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from runcue.errors import BadCommand, quoted
from runcue.ports import Command, CommandOptions


def meant(answer: object, options: CommandOptions) -> tuple[object, CommandOptions]:
    """The command in a handler's answer and its options; raises BadCommand when a `Command` has a wrong option."""
    if not isinstance(answer, Command):
        return answer, options
    said = {
        name: value
        for name in CommandOptions.__struct_fields__
        if (value := getattr(answer, name)) is not None
    }
    for name in ("shell", "check"):
        if not isinstance(said.get(name, True), bool):
            raise bad_command(answer, f"has {name}={quoted(said[name])}", "make it True or False")
    if "cwd" in said:
        said["cwd"] = _argument(said["cwd"], answer)
    env = said.get("env", {})
    if not isinstance(env, Mapping) or not all(
        isinstance(part, str) for pair in env.items() for part in pair
    ):
        raise bad_command(answer, "has a wrong env", "make it a dict of names and texts")
    return answer.args, replace(options, **said)


def checked(command: object, may_be_text: bool) -> list[str] | str:
    """The arguments, or the text where that is allowed; raises BadCommand for anything that could not be run."""
    if isinstance(command, str):
        if not may_be_text:
            raise bad_command(command, "is a str", "return a list of arguments, or give the task shell=True")
        if not command.strip():
            raise bad_command(command, "is empty", "return something to run")
        return _argument(command, command)
    if not isinstance(command, list):
        kind = f"is of type {type(command).__name__}"
        raise bad_command(command, kind, "return a list of str" + (" or a str" if may_be_text else ""))
    arguments = [_argument(part, command) for part in command]
    if not arguments or not arguments[0]:
        raise bad_command(command, "names no program", "return a list that begins with one")
    return arguments


def _argument(part: object, command: object) -> str:
    text = os.fspath(part) if isinstance(part, os.PathLike) else part
    if not isinstance(text, str):
        raise bad_command(command, f"has {quoted(part)} in it", "make every argument a str")
    if "\0" in text:
        raise bad_command(command, "has a NUL character in it", "leave it out: no program can be given one")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise bad_command(command, "has a character that cannot be encoded", "leave it out") from None
    return text


def bad_command(command: object, problem: str, advice: str) -> BadCommand:
    """The error for a command: what is wrong with it, and what to do."""
    return BadCommand(f"bad_command: {quoted(command)} {problem}: {advice}")
