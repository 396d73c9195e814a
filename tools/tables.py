"""Writes the tables of the documentation that are made from the code: `python -m tools.tables`.

They stand between `<!-- made: name -->` and `<!-- end -->` on their pages. A test compares them with what this gives.
What somebody should do about an error is said here and nowhere else; a test insists on every error.
"""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import runcue
from runcue import errors
from runcue.core.model.events import EVENTS, WORK_EVENTS
from runcue.core.model.lifecycle import MOVES
from runcue.instrument.prometheus import FAMILIES

DOCS = Path(__file__).resolve().parent.parent / "docs"
MADE = re.compile(r"(<!-- made: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

ADVICE = {
    "RuncueError": "Catch it to handle any error of the queue in one place.",
    "ConfigError": "Correct the declaration in the program: it fails in every run.",
    "UnknownTask": "Register the task before units of it are submitted, or correct the name; `.known` has all names.",
    "UnknownService": "Declare the service first, or correct the name; `.known` has all names.",
    "UnknownSchedule": "Correct the name; `.known` has all names.",
    "ScheduleConflict": "Choose another name, or change the declaration in the module `.source`.",
    "InvalidRate": "Write a rate as `60/min`, `100/10s`, `(60, 60)`, or a list of these.",
    "InvalidOption": "Pass a value as `.expected` describes.",
    "UnknownOption": "Correct the name; `.known` has all options.",
    "SubmitError": "Correct the submission. Nothing was queued; of `submit_many` not a single item.",
    "InvalidParams": "Pass what the handler declares, or plain JSON values; for anything large the path of a file.",
    "QueueFull": 'Submit later, raise `max_queued`, or let `submit` wait with `reject_policy="block"`.',
    "DependencyCycle": "Remove one of the dependencies in `.cycle`.",
    "DuplicateWork": "For another unit use another id or key; for the same unit use `.work_id`.",
    "WorkNotFound": "Use the id that `submit` returned. If `.forgotten`, raise `retention` or `keep_finished`.",
    "GroupNotFound": "Use the name that units were submitted with. Its counts are kept as long as one of them.",
    "WorkFailed": "Look at `.work.error` and `.work.history`; when the cause is repaired, `cue.retry(id)`.",
    "WorkTimedOut": "Raise `timeout=`, or find out what takes so long.",
    "WorkExpired": "Raise `expires=`, or find out what it waited for; `cue.retry(id)` counts anew.",
    "WorkNotEditable": "Submit another unit; cancel this one first if it still runs.",
    "WorkCancelled": "Nothing, if it was intended; `cue.retry(id)` runs the unit after all.",
    "CueClosed": "Make a new Cue, or close this one later.",
    "WrongThread": "Await on the loop of the Cue. From other threads use `cue.sync`.",
    "StoreError": "See the message. Accepted units are safe; submit the others again, with the same keys.",
    "StorageFull": "Free some space. The queue continues by itself.",
    "StorageCorrupt": "Restore a backup, or copy what can be read into a new file: `runcue.recover(path)`.",
    "StorageReplaced": "Restart the program: it opens the file that is there now.",
    "StorageInsecure": "Run all processes as the owner of the files, and keep others from writing to them.",
    "StorageBusy": "Find the process that holds it: a program stopped in a debugger, a backup, a long transaction.",
    "SchemaTooNew": "Use the newer version in all processes.",
    "ForkedConnection": "Start the child as a new process, or fork before the queue is first used.",
    "CommandFailed": "Look at its output in `.result`. With `check=False` your code judges exit codes itself.",
    "ResourceFailed": "Repair what it connects to. The next attempt opens the resource anew.",
    "WrongResult": "Read the result as it is stored with `cue.get(id)`, or give the changed task another name.",
    "WorkerLost": "Look for what kills processes: memory, native code, `os._exit`.",
    "Unreachable": "Check that `ssh host true` works, or that the cluster is up.",
    "RateLimited": 'Raise it when the service says "slow down" and your client raises nothing.',
    "RetryLater": "Raise it to choose the time of the next attempt yourself.",
    "Snooze": "Raise it when it is too early to run and nothing has failed.",
    "Permanent": "Raise it when no other attempt can succeed, as with a wrong input.",
    "BadCommand": "Return a list of texts, or a text with `shell=True`.",
}


def table(*rows: str) -> str:
    """A table of these rows, the first of which is its head."""
    return "\n".join([rows[0], "|---" * (rows[0].count("|") - 1) + "|", *rows[1:]]) + "\n"


def lifecycle() -> str:
    """Every move between states."""
    rows = [f"| `{source.value}` | {verb} | `{target.value}` |" for (source, verb), target in MOVES.items()]
    return table("| from | move | to |", "| | submit | `pending` |", *rows)


def events() -> str:
    """Every event."""
    rows = [
        f"| `{name}` | {f'`work_{name}`' if name in WORK_EVENTS else f'`{name}`'} | {told} |"
        for name, told in EVENTS.items()
    ]
    return table("| `event.type` | `event.name` | emitted when |", *rows)


def metrics() -> str:
    """Every metric."""
    rows = [
        f"| `{name}_total` | {kind} | {f'`{label}` ' if label else ''}| {told} |"
        if kind == "counter"
        else f"| `{name}` | {kind} | {f'`{label}` ' if label else ''}| {told} |"
        for name, (kind, label, told) in FAMILIES.items()
    ]
    return table("| metric | type | label | |", *rows)


def known_errors() -> list[type[Exception]]:
    """Every public error, in the order of the source."""
    return [
        kind
        for name, kind in vars(errors).items()
        if name in runcue.__all__ and isinstance(kind, type) and issubclass(kind, Exception)
    ]


def facts(kind: type[Exception]) -> list[str]:
    """The attributes that such an error has besides its message."""
    found: dict[str, None] = {}
    for one in kind.__mro__:
        if one.__module__ == errors.__name__ and "__init__" in vars(one):
            text = inspect.getsource(vars(one)["__init__"])
            found |= dict.fromkeys(re.findall(r"^        self\.([a-z]\w*) = ", text, re.MULTILINE))
    return list(found)


def error_rows() -> str:
    """Every error: what it is, when it is raised, what to do."""
    rows = []
    for kind in known_errors():
        bases = ", ".join(
            f"`{base.__name__}`" for base in kind.__bases__ if not base.__name__.startswith("_")
        )
        when = str(kind.__doc__).partition("\n")[0]
        if names := facts(kind):
            when += " Has " + ", ".join(f"`.{name}`" for name in names) + "."
        rows.append(f"| `{kind.__name__}` | {bases or '`RuncueError`'} | {when} | {ADVICE[kind.__name__]} |")
    return table("| error | is a | what it says | what to do |", *rows)


TABLES: dict[str, Callable[[], str]] = {
    "lifecycle": lifecycle,
    "events": events,
    "metrics": metrics,
    "errors": error_rows,
}


def renewed(text: str) -> str:
    """The text of a page with its tables as they should be now."""
    return MADE.sub(lambda match: match[1] + TABLES[match[2]]() + match[4], text)


if __name__ == "__main__":
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        if (after := renewed(before)) != before:
            page.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(DOCS.parent)}\n")
