"""The project's own rules, checked on its source text.

Nothing of runcue is imported here: every rule is a function from a parsed file to a list of complaints, each
tried on a small bad example below, and then run on every file it is meant for. Import contracts between the
layers are import-linter's (pyproject.toml); purity of core is checked here too, because it carries the rest.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "runcue"
TESTS = ROOT / "tests"

# Budgets. What grows past one of these has more than one job: split it before raising the number.
MODULE_LINES = 600
CLASS_LINES = 450

PUBLIC_METHODS = {"Ledger": 25}
PART_METHODS = 20
"""Public methods, properties included: of the ledger, and of each of its parts (core/ledger)."""

# Names that were private language, and what they are called now (docs/architecture.md has the glossary).
OLD_NAMES = {
    "Mind": "WorkingSet", "Library": "TurnReader", "Lacks": "ReadRequest", "Places": "Capacity",
    "Waiting": "Timers", "Kept": "FinishedRetention", "Rehearsal": "DryRun", "Told": "EventDraft", "Asking": "Gates",
    "disappoint": "fail_waiters", "Inquiry": "Queries", "Complaints": "CallbackErrors", "Around": "Middleware",
    "Errands": "StoreThread", "Claim": "Ticket", "Hearing": "WakeupDebounce", "Neighbours": "PeerMonitor",
    "Looks": "SnapshotReader", "Looking": "ReadConnection", "Aside": "Quarantine", "Mending": "Rebuild",
    "guests": "transient", "invite": "load", "doubtful": "unverified", "mind": "working", "library": "reader",
    "unlearn": "forget", "mending": "rebuild",
}  # fmt: skip
OLD_PARAMETERS = {"lacks": "request"}
OLD_WORDS = re.compile(r"(?<![a-z])(shelf|shelves|set_aside)(?![a-z])", re.IGNORECASE)
"""Words that stand in no name and in no text either: `index_key`, `index_heads` and `quarantine` took their place."""
MAY_HAVE_OLD_WORDS = {"MIGRATIONS", "FORMER_NAMES"}
"""What a step of a migration finds in a file or database of an earlier version."""
LIBRARY = ("api", "core", "declare", "engine", "executors", "host", "instrument", "stores")
"""Folders of the library, without the programs that use it."""
MAY_INHERIT = re.compile(
    r"(msgspec\.)?Struct|Structure|NamedTuple|TypedDict|(Protocol|Generic|TaskFunction)(\[.*\])?|Plain(Options|Schedule)|(Str)?Enum|"
    r"\w*(Error|Exception)"
)
INHERITS = {
    "Group": "services of a glob are a service that lanes wait at",
    "WithOutputs": "JSON that is known to hold outputs",
    "Handle": "an id, usable wherever an id is",
    "Crew": "the workers of a lane are a service that lanes wait at",
    "Services": "a mapping",
    "Memory": "a mapping",
    "RunningWork": "the fields of a Work, and what makes sense while it runs",
    "JsonFormatter": "logging is given such a class",
    "RemoteCommand": "asyncssh is given such a class", "OwnLoop": "asyncio is given such a class",
    "PoolWork": "a Work as a worker process has it",
    "Proactor": "asyncio takes such a class", "Connection": "apsw is asked for such a class",
    "Pickler": "cloudpickle calls a method of such a class",
    "TextAsWritten": "psycopg is asked for such a class",
}  # fmt: skip
"""Classes that inherit from others than exceptions, protocols and values, and why."""

# What core must not reach for: it gets the time, the verdicts and the records as values.
IMPURE = frozenset({"asyncio", "time", "random", "logging", "os", "threading"})

# Modules and constants that only one system has, and questions which one this is.
OF_ONE_SYSTEM = frozenset({
    "fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "termios", "tty", "winreg", "winsound", "_winapi",
})  # fmt: skip
QUESTIONS = re.compile(
    r"(sys\.platform|os\.name|platform\.(system|platform)|os\.O_(CLOEXEC|NOFOLLOW|NONBLOCK|DIRECTORY|TMPFILE))\b"
)
ADAPTERS = (
    "host/posix",
    "host/windows",
    "host/system.py",
    "executors/system.py",
    "executors/windows.py",
    "executors/command/executor.py",
    "executors/command/windows.py",
    "executors/job_objects.py",
    "executors/process/spawner.py",
    "executors/process/surroundings.py",
    "executors/process/windows_surroundings.py",
    "executors/process_locks.py",
    "cli/posix.py",
    "cli/system.py",
    "cli/windows.py",
)
"""Where a system may be asked for: the two adapters of each port, and where they are chosen."""

# Where a test may wait. Real time is for the few tests that meet the world; elsewhere time is virtual.
MAY_TIME_SLEEP = ("tests/acceptance", "tests/faults")
MAY_ASYNCIO_SLEEP = ("tests/acceptance", "tests/engine", "tests/executors", "tests/faults", "tests/handlers.py",
                     "tests/patience.py", "tests/pg", "tests/sim", "tests/stores", "tests/testing",
                     "tests/torture")  # fmt: skip
NO_ASYNCIO = ("tests/core",)

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
HANGING = re.compile(r"\s*[\])}].*  # (?!fmt: |noqa|type: )")


# ------------------------------------------------------------------------------------------- the rules


@cache
def parsed(source: str) -> ast.Module:
    """Several rules look at each file: it is read once for all of them."""
    return ast.parse(source)


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every import, wherever it stands."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name.partition(".")[0]
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module.partition(".")[0]
            case ast.Call(
                func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module.partition(".")[0]
            case _:
                pass


def impure_imports(source: str) -> list[str]:
    """Imports that would let core see the clock, chance, the system or the log."""
    found = imported_names(parsed(source))
    return [f"line {line}: imports {name}" for line, name in found if name in IMPURE]


def system_questions(source: str) -> list[str]:
    """What works on one system only, or asks which one this is."""
    found = [
        f"line {line}: imports {name}"
        for line, name in imported_names(parsed(source))
        if name in OF_ONE_SYSTEM
    ]
    asked = (ast.unparse(node) for node in ast.walk(parsed(source)) if isinstance(node, ast.Attribute))
    return found + [f"asks for {one}" for one in asked if QUESTIONS.fullmatch(one)]


def asyncio_imports(source: str) -> list[str]:
    """Imports of asyncio in tests that need no loop."""
    found = imported_names(parsed(source))
    return [f"line {line}: imports {name}" for line, name in found if name == "asyncio"]


def _names_of(tree: ast.AST, module: str, function: str) -> set[str]:
    """Every dotted name under which `module.function` can be called in this file."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {f"{alias.asname or module}.{function}" for alias in aliases if alias.name == module}
            case ast.ImportFrom(module=origin, names=aliases) if origin == module:
                names |= {alias.asname or function for alias in aliases if alias.name == function}
            case _:
                pass
    return names


def sleeps(source: str, module: str) -> list[str]:
    """Calls of `module.sleep`, but for `asyncio.sleep(0)`, which gives way without waiting."""
    if "sleep" not in source:
        return []
    tree = parsed(source)
    names = _names_of(tree, module, "sleep")
    found: list[str] = []
    if not names:
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            delay = node.args[0] if node.args else next((k.value for k in node.keywords), None)
            gives_way = isinstance(delay, ast.Constant) and delay.value == 0
            if not (gives_way and module == "asyncio"):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def too_long(source: str) -> list[str]:
    """Modules and classes over their budget."""
    found = []
    length = len(source.splitlines())
    if length > MODULE_LINES:
        found.append(f"module has {length} lines, budget {MODULE_LINES}")
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            length = (node.end_lineno or first) - first + 1
            if length > CLASS_LINES:
                found.append(f"line {first}: class {node.name} has {length} lines, budget {CLASS_LINES}")
    return found


def hanging_comments(source: str) -> list[str]:
    """Comments that the formatter hung behind a closing bracket, away from what they explain."""
    lines = enumerate(source.splitlines(), 1)
    return [f"line {number}: {line.strip()}" for number, line in lines if HANGING.match(line)]


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass | ast.Continue) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _catches_everything(kind: ast.expr | None) -> bool:
    match kind:
        case None:
            return True
        case ast.Name(id="Exception" | "BaseException"):
            return True
        case ast.Tuple(elts=kinds):
            return any(_catches_everything(kind) for kind in kinds)
        case _:
            return False


def swallowed_errors(source: str) -> list[str]:
    """Handlers that catch every exception and leave no trace of it."""
    found = []
    for node in ast.walk(parsed(source)):
        match node:
            case ast.ExceptHandler(type=kind, body=body) if _catches_everything(kind):
                if all(map(_does_nothing, body)):
                    found.append(f"line {node.lineno}: every exception is swallowed")
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=kinds):
                if any(map(_catches_everything, kinds)):
                    found.append(f"line {node.lineno}: every exception is suppressed")
            case _:
                pass
    return found


def unfinished(source: str) -> list[str]:
    """Comments and strings that leave work for later: an issue is the place for that."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            found += [f"line {token.start[0]}: {word}" for word in UNFINISHED.findall(token.string)]
    return found


def too_many_methods(source: str) -> list[str]:
    """Classes with more public methods than they may have."""
    found = []
    for node in parsed(source).body:
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name[0] != "_"]
            most = PUBLIC_METHODS.get(node.name, PART_METHODS)
            if len(methods) > most:
                found.append(
                    f"line {node.lineno}: {node.name} has {len(methods)} public methods, budget {most}"
                )
    return found


def old_names(source: str) -> list[str]:
    """Names of the private language."""
    names = (
        one for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.type == tokenize.NAME
    )
    found = [
        f"line {name.start[0]}: {name.string} is called {OLD_NAMES[name.string]}"
        for name in names
        if name.string in OLD_NAMES
    ]
    parameters = (one for one in ast.walk(parsed(source)) if isinstance(one, ast.arg))
    return found + [
        f"line {one.lineno}: {one.arg} is called {OLD_PARAMETERS[one.arg]}"
        for one in parameters
        if one.arg in OLD_PARAMETERS
    ]


def old_words(source: str) -> list[str]:
    """Words of the private language in names, texts and comments, outside of the steps of migrations."""
    if OLD_WORDS.search(source) is None:
        return []
    exempt: set[int] = set()
    for node in parsed(source).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in MAY_HAVE_OLD_WORDS:
            exempt.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return [
        f"line {number}: {word}"
        for number, line in lines
        for word in OLD_WORDS.findall(line)
        if number not in exempt
    ]


def inheritance(source: str) -> list[str]:
    """Classes that inherit from others than exceptions, protocols and values."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef) and node.name not in INHERITS:
            bases = [ast.unparse(base) for base in node.bases]
            found += [f"line {node.lineno}: {node.name} inherits from {one}" for one in bases
                      if not MAY_INHERIT.fullmatch(one)]  # fmt: skip
    return found


# ----------------------------------------------------------------------- each rule on something it dislikes

LONG_CLASS = "class Big:\n" + "    x = 1\n" * CLASS_LINES


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import os.path",
        "from time import monotonic",
        "import json, random",
        "def late():\n    import threading",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from logging import Logger",
        "import importlib\nimportlib.import_module('asyncio.events')",
        "__import__('time')",
    ],
)
def test_an_impure_import_is_seen_in_any_form(source: str) -> None:
    assert len(impure_imports(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import math",
        "from runcue.core import time_table",
        "from . import time",
        "asyncio = 1",
        "import timeit",
    ],
)
def test_a_pure_import_passes(source: str) -> None:
    assert impure_imports(source) == []


def test_a_question_for_the_system_is_seen() -> None:
    assert system_questions("def late():\n    import fcntl") == ["line 2: imports fcntl"]
    assert system_questions("import sys\nif sys.platform == 'win32': ...") == ["asks for sys.platform"]
    assert system_questions("import os\nos.open('f', os.O_RDONLY | os.O_NOFOLLOW)") == [
        "asks for os.O_NOFOLLOW"
    ]
    assert system_questions("import os\nos.names = os.open('f', os.O_RDONLY)") == []


def test_asyncio_is_seen_where_no_loop_is_wanted() -> None:
    assert asyncio_imports("from asyncio import Event") == ["line 1: imports asyncio"]
    assert asyncio_imports("import pytest") == []


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import time\ntime.sleep(0.1)", "time"),
        ("import time\ntime.sleep(0)", "time"),
        ("import time as clock\nclock.sleep(1)", "time"),
        ("from time import sleep\nsleep(1)", "time"),
        ("from time import sleep as nap\nnap(1)", "time"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0.1)", "asyncio"),
        ("import asyncio\nasync def f(n):\n    await asyncio.sleep(n)", "asyncio"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(delay=1)", "asyncio"),
        ("from asyncio import sleep\nasync def f():\n    await sleep(1)", "asyncio"),
    ],
)
def test_a_sleep_is_seen_under_any_name(source: str, module: str) -> None:
    assert len(sleeps(source, module)) == 1


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)", "asyncio"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(1)", "time"),
        ("def sleep(n): ...\nsleep(1)", "time"),
        ("text = 'time.sleep(1)'", "time"),
    ],
)
def test_giving_way_is_no_sleep(source: str, module: str) -> None:
    assert sleeps(source, module) == []


def test_a_module_over_budget_is_seen() -> None:
    assert too_long("x = 1\n" * MODULE_LINES) == []
    assert too_long("x = 1\n" * (MODULE_LINES + 1)) == [
        f"module has {MODULE_LINES + 1} lines, budget {MODULE_LINES}"
    ]


def test_a_class_over_budget_is_seen_with_its_decorators() -> None:
    assert too_long("class Fits:\n" + "    x = 1\n" * (CLASS_LINES - 1)) == []
    assert too_long(LONG_CLASS) == [f"line 1: class Big has {CLASS_LINES + 1} lines, budget {CLASS_LINES}"]
    decorated = "@final\nclass Big:\n" + "    x = 1\n" * (CLASS_LINES - 1)
    assert too_long(decorated) == [f"line 1: class Big has {CLASS_LINES + 1} lines, budget {CLASS_LINES}"]


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept BaseException:\n    ...",
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept (ValueError, Exception):\n    pass",
        "for x in y:\n    try:\n        f()\n    except Exception:\n        continue",
        "try:\n    f()\nexcept Exception:\n    'a reason'\n    pass",
        "try:\n    f()\nexcept* Exception:\n    pass",
        "import contextlib\nwith contextlib.suppress(Exception):\n    f()",
        "from contextlib import suppress\nwith suppress(OSError, BaseException):\n    f()",
    ],
)
def test_a_swallowed_error_is_seen(source: str) -> None:
    assert len(swallowed_errors(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    f()\nexcept Exception as error:\n    report(error)",
        "try:\n    f()\nexcept KeyError:\n    pass",
        "try:\n    f()\nexcept Exception:\n    raise",
        "import contextlib\nwith contextlib.suppress(KeyError):\n    f()",
    ],
)
def test_a_named_or_reported_error_passes(source: str) -> None:
    assert swallowed_errors(source) == []


def test_unfinished_work_is_seen_in_comments_and_strings() -> None:
    assert unfinished("x = 1  # TODO: y") == ["line 1: TODO"]
    assert unfinished('"""Does f.\n\nFIXME later.\n"""') == ["line 1: FIXME"]
    assert unfinished("TODO_LIST = []  # what the user still has to do") == []


def test_a_comment_behind_a_closing_bracket_is_seen() -> None:
    assert hanging_comments("x = f(\n    y\n)  # why") == ["line 3: )  # why"]
    assert hanging_comments("if (\n    x\n):  # why\n    y") == ["line 3: ):  # why"]
    assert hanging_comments("# Why.\nx = f(y)  # z\ny = [\n    1,\n]  # fmt: skip") == []


# ------------------------------------------------------------------------------- every rule on every file


def complaints(files: list[Path], rule: Callable[[str], list[str]]) -> list[str]:
    """What a rule says about some files, one line each, ready to click on."""
    return [
        f"{file.relative_to(ROOT).as_posix()}: {complaint}"
        for file in files
        for complaint in rule(file.read_text(encoding="utf-8"))
    ]


def python_files(folder: Path, *, outside: tuple[str, ...] = ()) -> list[Path]:
    """The Python files under a folder, without those of some subfolders."""
    left_out = [ROOT / name for name in outside]
    return [
        file
        for file in sorted(folder.rglob("*.py"))
        if not any(file.is_relative_to(folder) for folder in left_out)
    ]


def test_files_of_a_left_out_folder_are_not_listed() -> None:
    here = Path(__file__).resolve()
    assert here in python_files(TESTS)
    assert here not in python_files(TESTS, outside=("tests",))


def test_core_is_pure() -> None:
    core = python_files(SRC / "core")
    assert core, "src/runcue/core has no modules: is this test looking in the right place?"
    assert complaints(core, impure_imports) == []


def test_no_module_or_class_outgrows_its_budget() -> None:
    assert complaints(python_files(SRC), too_long) == []


def test_a_class_with_too_many_methods_is_seen() -> None:
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(PART_METHODS + 1))
    assert len(too_many_methods(f"class Part:\n{methods}")) == 1
    assert too_many_methods(f"class Ledger:\n{methods}") == []


def test_an_old_name_is_seen_as_a_name_alone() -> None:
    assert old_names("class Asking: ...") == ["line 1: Asking is called Gates"]
    assert old_names("text = 'Asking'  # Asking") == []
    assert old_names("def read(lacks): ...") == ["line 1: lacks is called request"]
    assert old_names("verdict.lacks = f(lacks='file')") == []


def test_an_old_word_is_seen_anywhere_but_in_steps_of_migrations() -> None:
    assert old_words("_on_shelf = 1  # Shelves\nq = 'SELECT 1 FROM set_aside'") == [
        "line 1: shelf", "line 1: Shelves", "line 2: set_aside",
    ]  # fmt: skip
    assert old_words("SHELL = 'myshelf'") == []
    assert old_words('MIGRATIONS: Final = (\n"shelf",\n)\nFORMER_NAMES: Final = {"shelf": 1}') == []
    assert old_words('MIGRATIONS: Final = (1,)\nother = "shelf"') == ["line 2: shelf"]


def test_inheritance_is_seen() -> None:
    assert inheritance("class B(A): ...") == ["line 1: B inherits from A"]
    assert (
        inheritance("class E(ValueError): ...\nclass P(Protocol[T]): ...\nclass S(msgspec.Struct): ...") == []
    )


def test_the_ledger_is_made_of_parts_with_a_few_verbs_each() -> None:
    assert complaints(python_files(SRC / "core" / "ledger"), too_many_methods) == []


def test_the_code_speaks_the_language_of_the_glossary() -> None:
    folders = ("api", "core", "declare", "engine", "stores")
    assert complaints([file for name in folders for file in python_files(SRC / name)], old_names) == []
    assert complaints(python_files(SRC), old_words) == []


def test_the_library_composes_and_does_not_inherit() -> None:
    assert complaints([file for name in LIBRARY for file in python_files(SRC / name)], inheritance) == []


def test_no_error_is_swallowed() -> None:
    assert complaints(python_files(SRC), swallowed_errors) == []


def test_nothing_in_src_is_left_unfinished() -> None:
    assert complaints(python_files(SRC), unfinished) == []


def test_a_comment_stands_with_what_it_explains() -> None:
    assert complaints([*python_files(SRC), *python_files(ROOT / "examples")], hanging_comments) == []


def test_only_the_adapters_know_which_system_this_is() -> None:
    outside = tuple(f"src/runcue/{name}" for name in ADAPTERS)
    assert complaints(python_files(SRC, outside=outside), system_questions) == []


def test_core_tests_need_no_loop() -> None:
    for folder in NO_ASYNCIO:
        assert complaints(python_files(ROOT / folder), asyncio_imports) == []


def test_no_test_sleeps_in_real_time() -> None:
    files = python_files(TESTS, outside=MAY_TIME_SLEEP)
    assert complaints(files, lambda source: sleeps(source, "time")) == []


def test_only_tests_on_virtual_time_and_acceptance_tests_await_a_sleep() -> None:
    files = python_files(TESTS, outside=MAY_ASYNCIO_SLEEP)
    assert complaints(files, lambda source: sleeps(source, "asyncio")) == []
