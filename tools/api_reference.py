"""Writes docs/api/*.md: every public name with its signature and its docstring, read from the source.

Run it after a change of a signature or a docstring: `python -m tools.api_reference`. A test compares the pages with
what this gives, and insists that no public name is missing.

- The source is read, not the live objects: annotations and defaults are shown as somebody wrote them.
- `**options: Unpack[CueOptions]` is shown as the options themselves; of several forms of a method, in the last one.
- Blocks of code are marked `py`: those marked `python` are programs that tests run.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import runcue
from runcue.api import signature
from runcue.api.sync import Sync
from runcue.declare.options import Options

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH = 96
OPTIONS = {
    kind.__name__: kind
    for kind in (
        signature.CueOptions,
        signature.TaskOptions,
        signature.PlainOptions,
        signature.SubmitOptions,
        signature.MapOptions,
        signature.DeclaredSchedule,
        signature.ScheduleOptions,
        signature.Where,
        signature.Which,
    )
}
DEFAULTS = Options()
TYPES = ("Duration", "RateValue", "Artifact")


Function = ast.FunctionDef | ast.AsyncFunctionDef


class Page(NamedTuple):
    """One page: where it is, what it begins with, and the names on it."""

    path: str
    title: str
    module: str
    introduction: str
    names: tuple[str, ...]


PAGES = (
    Page(
        "api/cue.md",
        "Cue",
        "runcue",
        "What an application holds. What each option means is in [options and methods](../reference.md).",
        ("Cue",),
    ),
    Page(
        "api/values.md",
        "Work and other values",
        "runcue",
        "What methods return, and what callbacks and handlers are given. What each field of a unit means is in"
        " [Work](../reference.md#work).",
        (
            "Work",
            "Group",
            "GroupCounts",
            "ScheduleInfo",
            "RunningWork",
            "Handle",
            "TaskFunction",
            "Unit",
            "WorkState",
            "Attempt",
            "Event",
            "Explanation",
            "Forecast",
            "PriorityContext",
            "Retry",
            "Unique",
            "Command",
            "Rescue",
            "WorkUnit",
        ),
    ),
    Page(
        "api/functions.md",
        "Functions and instruments",
        "runcue",
        "What stands beside a Cue: batches, limits, files, ready-made callbacks, metrics, traces, mending.",
        (
            "output",
            "current",
            "map",
            "progress",
            "adaptive",
            "write_output",
            "priority_by_wait_time",
            "priority_constant",
            "dependency_check_file",
            "dependency_check_db",
            "Metrics",
            "trace",
            "JsonFormatter",
            "mask",
            "recover",
            "__version__",
        ),
    ),
    Page(
        "api/reader.md",
        "Reader, Client, Outbox",
        "runcue",
        "For code without an event loop: a Reader [looks at a queue](../guides/durable.md#looking-from-outside), a"
        " Client [submits to it](../guides/transactions.md#without-an-event-loop).",
        ("Reader", "Client", "Outbox", "postgres_schema"),
    ),
    Page(
        "api/testing.md",
        "runcue.testing",
        "runcue.testing",
        "Virtual time and things that go wrong, for tests of code that uses runcue: [virtual time](../testing.md) and"
        " [testing your code](../guides/testing-your-code.md) show how.",
        ("run", "settle", "VirtualLoop", "Deadlock", "watch", "kill", "fail_commit", "fill_disk"),
    ),
    Page(
        "api/web.md",
        "runcue.web",
        "runcue.web",
        "The dashboard as routes, as an application and as a server"
        ' ([how](../guides/web-api.md)). It needs `pip install "runcue[web]"`.',
        ("routes", "app", "serve"),
    ),
)


# ------------------------------------------------------------------------------------------------ signatures


def parsed(thing: Any) -> ast.ClassDef | Function:
    """The source of a class or a function as a tree."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    assert isinstance(tree, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef), thing
    Constants(vars(sys.modules[thing.__module__])).visit(tree)
    return tree


class Constants(ast.NodeTransformer):
    """Puts the value of a constant of a module in the place of its name."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """One name."""
        value = self.known.get(node.id)
        return ast.Constant(value) if node.id.isupper() and isinstance(value, str | int | float) else node


def said(node: ast.expr | None) -> str:
    """An annotation or a default, as it was written."""
    if node is None:
        return ""
    text = ast.unparse(node).replace("builtins.", "")
    return re.sub(r"'([^']*)'", r'"\1"', text)


def arguments(function: Function, are_options_shown: bool) -> Iterator[str]:
    """Each argument of a function, maybe with options in place of `**options: Unpack[…]`."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    for place, (one, default) in enumerate(zip(plain, defaults, strict=True)):
        if place or one.arg not in {"self", "cls"}:
            yield shown(one, default)
        if given.posonlyargs and place + 1 == len(given.posonlyargs):
            yield "/"
    if given.vararg is not None:
        yield f"*{shown(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield shown(one, default)
    if given.kwarg is not None:
        options = OPTIONS.get(said(given.kwarg.annotation).removeprefix("Unpack[").removesuffix("]"))
        if options is None:
            yield f"**{shown(given.kwarg, None)}"
        elif not are_options_shown:
            yield f"**{given.kwarg.arg}"
        else:
            yield "*"
            for name, kind in options.__annotations__.items():
                value = repr(getattr(DEFAULTS, name)) if options is signature.CueOptions else "…"
                yield f"{name}: {kind.__forward_arg__} = {value}".replace("'", '"')


def shown(one: ast.arg, default: ast.expr | None) -> str:
    """One argument as it stands in a signature."""
    if one.annotation is None:
        return one.arg if default is None else f"{one.arg}={said(default)}"
    return f"{one.arg}: {said(one.annotation)}" + (f" = {said(default)}" if default is not None else "")


def call(function: Function, name: str, answer: bool = True, are_options_shown: bool = True) -> str:
    """A signature, on one line if it fits."""
    wait = "await " if isinstance(function, ast.AsyncFunctionDef) else ""
    parts = list(arguments(function, are_options_shown))
    end = f" -> {said(function.returns)}" if answer and function.returns is not None else ""
    line = f"{wait}{name}({', '.join(parts)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{wait}{name}(", *(f"    {part}," for part in parts), f"){end}"])


def marks(function: Function) -> set[str]:
    """The decorators of a function."""
    return {ast.unparse(mark).rpartition(".")[2] for mark in function.decorator_list}


# ---------------------------------------------------------------------------------------------------- pieces


def code(text: str) -> str:
    """A block of code that no test runs."""
    return f"```py\n{text}\n```\n"


def prose(node: ast.ClassDef | Function) -> str:
    """The docstring; its examples, which are indented, as blocks."""
    parts = (ast.get_docstring(node) or "").split("\n\n")
    assert parts[0], f"{node.name} has no docstring"
    return "\n\n".join(code(textwrap.dedent(one)) if one.startswith("    ") else one for one in parts) + "\n"


def methods(tree: ast.ClassDef, owner: str) -> Iterator[str]:
    """Every public method and property of a class, in the order of the source; older names of others last."""
    seen: list[Function] = []
    older: list[str] = []
    for node in tree.body:
        if not isinstance(node, Function) or node.name.startswith("_"):
            continue
        if "overload" in marks(node):
            seen.append(node)
            continue
        if "property" in marks(node):
            text = f"{owner}.{node.name}: {said(node.returns)}"
        else:
            forms = seen or [node]
            text = "\n".join(
                call(form, f"{owner}.{node.name}", are_options_shown=form is forms[-1]) for form in forms
            )
        seen = []
        words = prose(node)
        entry = f"### {owner}.{node.name}\n\n{code(text)}\n{words}"
        if words.startswith("The older name of"):
            older.append(entry)
        else:
            yield entry
    yield from older


def fields(tree: ast.ClassDef, kind: type[msgspec.Struct]) -> str:
    """The fields of a value as a table."""
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for place, node in enumerate(tree.body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id not in kind.__struct_fields__:
            continue
        after = tree.body[place + 1] if place + 1 < len(tree.body) else None
        doc = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            doc = " ".join(str(after.value.value).split())
        default = said(node.value)
        default = "made" if "default_factory" in default else f"`{default}`" if default else "required"
        kind_said = said(node.annotation).replace("|", "\\|")
        rows.append(f"| `{node.target.id}` | `{kind_said}` | {default} | {doc} |")
    return "\n".join(rows) + "\n"


def of_class(name: str, kind: type, module: str) -> Iterator[str]:
    """A class: how it is made, what it is, what it has."""
    tree = parsed(kind)
    assert isinstance(tree, ast.ClassDef)
    owner = {
        "Cue": "cue",
        "Reader": "reader",
        "Client": "client",
        "Outbox": "outbox",
        "Sync": "cue.sync",
        "VirtualLoop": "loop",
        "Handle": "unit",
        "TaskFunction": "f",
    }.get(name, name)
    yield f"## {name}\n"
    made = next(
        (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None
    )
    if made is not None and name not in {"RunningWork", "Sync"}:
        yield code(call(made, f"{module}.{name}", answer=False))
    yield prose(tree)
    if issubclass(kind, Enum):
        rows = [f"| `{module}.{name}.{one}` | `{value.value!r}` |" for one, value in kind.__members__.items()]
        yield "\n".join(["| | value |", "|---|---|", *rows]) + "\n"
    if issubclass(kind, msgspec.Struct):
        yield fields(tree, kind)
    yield from methods(tree, owner)


def of_name(name: str, page: Page) -> Iterator[str]:
    """Whatever a public name stands for."""
    thing = getattr(import_module(page.module), name)
    if name == "__version__":
        yield "## \\_\\_version\\_\\_\n\n`runcue.__version__` is the version, as text.\n"
    elif isinstance(thing, type) and thing.__name__ != name:
        yield f"## {name}\n\nThe older name of [`{thing.__name__}`](#{thing.__name__.lower()}).\n"
    elif isinstance(thing, type):
        yield from of_class(name, thing, page.module)
        if thing is runcue.Cue:
            yield from of_class("Sync", Sync, page.module)
    else:
        tree = parsed(inspect.unwrap(thing))
        assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
        yield f"## {name}\n\n{code(call(tree, f'{page.module}.{name}'))}\n{prose(tree)}"


def types() -> str:
    """What the short names in annotations stand for."""
    tree = ast.parse(inspect.getsource(signature))
    named = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    rows = [f"{name} = {said(named[name])}" for name in TYPES]
    return f"## Types\n\nShort names in the signatures:\n\n{code(chr(10).join(rows))}"


def text_of(page: Page) -> str:
    """The page as it should be now."""
    origin = "Every signature and every sentence below is from the source (`tools/api_reference.py`)."
    parts = [f"# {page.title}\n", f"{page.introduction}\n", f"{origin}\n"]
    for name in page.names:
        parts += of_name(name, page)
    if page.names == ("Cue",):
        parts.append(types())
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


if __name__ == "__main__":
    for one in PAGES:
        (DOCS / one.path).parent.mkdir(exist_ok=True)
        (DOCS / one.path).write_text(text_of(one), encoding="utf-8")
    sys.stdout.write(f"docs/api: {len(PAGES)} pages\n")
