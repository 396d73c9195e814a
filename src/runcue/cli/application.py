"""Finds what `module:attribute` names in an application: the Cue of `runcue worker`, the function of `runcue relay`.

Rules:
- The module is imported as `python -m` would: the working directory comes first.
- The attribute may be dotted. A function (or class) is called without arguments and has to return a Cue.
- A name that does not exist, or names no Cue, is bad input (2). An error that the application raises is one of its
  configuration (4): its last line is shown, and with RUNCUE_DEBUG=1 the traceback.
- A Cue that a worker cannot run is also an error of configuration: one in memory, and one that was already run.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from runcue.cli.failure import Failure, bad_input, misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runcue import Cue


def is_name(text: str) -> bool:
    """True for what looks like `module:attribute`."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


def check(name: str) -> str:
    """The name of a Cue as given, if it looks like one."""
    if not is_name(name):
        raise bad_input(f"{name[:80]!r} names no Cue. Write module:attribute, such as app:cue.")
    return name


def found_at(name: str) -> tuple[object, str]:
    """What has that name in an application, and where it is."""
    from runcue import Cue

    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise bad_input(
                f"There is no module {missing!r} here: it is looked for in {Path.cwd()}."
            ) from error
        raise raised(f"Importing {module_name}", error) from error
    except (Exception, SystemExit) as error:  # an application may raise anything
        raise raised(f"Importing {module_name}", error) from error
    place = module_name
    for part in attribute.split("."):
        if not hasattr(found, part):
            cues = [key for key, value in vars(found).items() if isinstance(value, Cue)]
            raise bad_input(f"{place} has no {part!r}." + (f" It has: {', '.join(cues)}." if cues else ""))
        found, place = getattr(found, part), f"{place}.{part}"
    return found, place


def load(name: str) -> Cue:
    """The Cue of that name, ready to be run."""
    from runcue import Cue

    found, place = found_at(check(name))
    module_name = name.partition(":")[0]
    used = (
        f'Importing {module_name!r} runs its Cue: put asyncio.run(main()) under `if __name__ == "__main__":`.'
    )
    if callable(found) and not isinstance(found, Cue):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise raised(f"{place}()", error) from error
        place = f"{place}()"
        used = f"{place} returns a Cue that was run already. Return one that was not."
    if not isinstance(found, Cue):
        raise bad_input(f"{place} is no runcue.Cue, but {type(found).__name__}.")
    if found.loop is not None:
        raise misconfigured(used)
    if found.path is None:
        raise misconfigured(
            f"{place} keeps its queue in memory, where its own process alone sees it: a worker would have nothing "
            'to do. Give it a file: Cue("queue.db").'
        )
    return found


def raised(what: str, error: BaseException) -> Failure:
    """The failure about an error that an application raised: where it was raised, and its text."""
    import traceback

    said = error.msg if isinstance(error, SyntaxError) else str(error)
    last = f"{type(error).__name__}: {said.strip().partition(chr(10))[0][:300]}".rstrip(": ")
    where = ""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}:{error.lineno}"
    elif frames and frames[-1].filename != __file__:
        where = f" at {frames[-1].filename}:{frames[-1].lineno}"
    return misconfigured(f"{what} failed{where}: {last} (RUNCUE_DEBUG=1 shows all)")
