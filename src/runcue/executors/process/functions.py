"""Functions that other processes can find by their name, and the script that they are defined in."""

from __future__ import annotations

import os
import pickle
import sys
from types import MethodType

from runcue.core.model.failure import describe
from runcue.errors import ConfigError, Permanent, WorkerLost, quoted
from runcue.host.shortage import NO_ROOM, no_room
from runcue.ports import Handler

# --- Starting a worker -----------------------------------------------------------------------------------


def main_module() -> dict[str, str]:
    """How a worker can import the script again, as multiprocessing.spawn.prepare wants it; empty when it cannot."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name is not None:
        # A spec named __main__ belongs to a package, a folder or an archive.
        is_module = spec.name.rpartition(".")[2] != "__main__"
        return {"init_main_from_name": spec.name} if is_module else {}
    if isinstance(file, str) and os.path.isfile(file):  # noqa: PTH113 (`file` is "<stdin>" for a script from standard input)
        return {"init_main_from_path": os.path.abspath(file)}  # noqa: PTH100 (as text)
    return {}


def not_started(error: OSError) -> Exception:
    """What to raise in an attempt whose worker process could not be started."""
    if error.errno not in NO_ROOM:
        needed = f"{quoted(sys.executable)} and the current folder have to be there"
        return WorkerLost(f"a worker process could not be started: {error}: {needed}")
    advice = "lower pool_size=, or raise the limits of processes, open files or memory"
    return no_room("worker process", error, advice)


# --- Functions that workers can find ----------------------------------------------------------------------


def check_importable(function: object) -> None:
    """Refuse a handler that another process could not find by its name."""
    what, inner = f"The handler {_spoken(function)}", _inner(function)
    name = getattr(inner, "__qualname__", "")
    if name.endswith("<lambda>"):
        raise ConfigError(f"{what} is a lambda, which a worker process cannot find. {DEFINE}")
    if "<locals>" in name:
        raise ConfigError(
            f"{what} is defined inside a function, where a worker process cannot find it. {DEFINE}"
        )
    module = getattr(inner, "__module__", None)
    if module == "__main__" and not main_module():
        raise ConfigError(
            f"{what} is defined at a prompt, in a notebook, by `python -c` or `python -`, or in a __main__.py, where "
            f"a worker process cannot find it. Put it into a module and import it."
        )
    if _is_being_defined(inner, module, name):
        return  # whether a worker finds it shows at the first call
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be sent to a worker process ({describe(error)}). {DEFINE}"
        ) from error


DEFINE = "Define it with def at the top of a module."


def _inner(function: object) -> object:
    """The function that a partial or a method calls."""
    while True:
        if isinstance(function, MethodType):
            function = function.__func__
        elif hasattr(function, "func") and hasattr(function, "keywords"):
            function = function.func
        else:
            return function


def _is_being_defined(function: object, module: object, name: str) -> bool:
    """Whether the module is still being imported and does not have the name yet, as when a decorator checks."""
    home = sys.modules.get(module) if isinstance(module, str) else None
    if home is None or not name:
        return False
    is_loading = module in ("__main__", "__mp_main__") or getattr(
        getattr(home, "__spec__", None), "_initializing", False
    )
    found: object = home
    for part in name.split("."):
        found = getattr(found, part, None)
    return is_loading and found is not function


def pickled(handler: Handler) -> bytes:
    try:
        return pickle.dumps(handler)
    except Exception as error:
        raise Permanent(
            f"its handler cannot be sent to a worker process ({describe(error)}). {DEFINE} Another decorator "
            "goes below @cue.task, not above it."
        ) from error


def _spoken(function: object) -> str:
    return quoted(getattr(function, "__qualname__", function))
