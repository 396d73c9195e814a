"""The entry points of `queuectl` and `runcue`: their verbs, and how errors become one line and an exit code.

Rules:
- Almost nothing is imported before `_run` catches exceptions, so that Ctrl-C never prints a traceback.
- No error that a user can cause prints a traceback; QUEUECTL_DEBUG=1 shows those of our own mistakes.
- Where stdin, stdout or stderr is closed, no other file may get its number. An error that cannot be printed still
  sets the exit code.
"""

from __future__ import annotations

import os
import sys

from runcue.cli import failure as codes
from runcue.cli.failure import Failure, bad_input
from runcue.host.system import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import click

DEBUG = "QUEUECTL_DEBUG"
ALSO_DEBUG = "RUNCUE_DEBUG"

COLORS = {"auto": None, "always": True, "never": False}

QUEUECTL = {
    "Jobs": {
        "enqueue": ("enqueue", "Add jobs: a command, JSON, or a file of them"),
        "list": ("listing", "List jobs, newest first, and why they wait"),
        "show": ("show", "Show everything about one job"),
        "why": ("why", "Say why a job does not run, and until when"),
        "logs": ("logs", "Show what a job printed"),
        "wait": ("wait", "Wait for jobs to end; the exit code tells how"),
        "cancel": ("cancel", "Cancel jobs"),
        "edit": ("edit", "Change jobs that wait or are dead"),
        "dlq": ("dlq", "List, retry or purge dead jobs"),
        "schedule": ("schedule", "Add jobs at moments, as cron does"),
    },
    "Workers and limits": {
        "worker": ("worker", "Start, stop and list workers"),
        "status": ("status", "Show the whole queue on one screen"),
        "top": ("top", "Watch the queue live, and act on it"),
        "dashboard": ("dashboard", "Watch the queue in a browser, and act on it"),
        "pause": ("pause", "Stop starting jobs in a queue or on a service"),
        "resume": ("pause:resume", "Resume a paused queue or service"),
        "service": ("service", "Set and list limits that jobs share"),
    },
    "Setup": {
        "config": ("config", "Read and change settings"),
        "doctor": ("doctor", "Look for trouble, and say what to do"),
        "completion": ("completion", "Print a shell's completion script"),
        "demo": ("demo", "See it work in a few seconds"),
    },
}
RUNCUE = {
    "Look": {
        "top": ("top:top", "Watch a queue live, and act on it"),
        "dashboard": ("dashboard:dashboard", "Watch a queue in a browser, and act on it"),
        "status": ("status:status", "Show the whole queue on one screen"),
        "list": ("listing:list_file", "List units, newest first, and why they wait"),
        "count": ("count:count", "Count units by state, and say how far a group is"),
        "show": ("show:show", "Show everything about one unit"),
        "explain": ("why:explain", "Say why a unit does not run, and until when"),
        "logs": ("logs:logs", "Show what the command of a unit printed"),
        "events": ("events:events", "Show what happened, to all units, one unit or one group"),
        "schedules": ("schedules:schedules", "List schedules; pause, resume, run or remove one"),
        "export": ("export:export", "Write results to a file, one JSON object a line"),
    },
    "Act": {
        "retry": ("retry:retry", "Retry failed or cancelled units"),
        "cancel": ("cancel:cancel", "Cancel units"),
        "edit": ("edit:edit", "Change units that are pending or have failed"),
        "pause": ("pause:pause_file", "Stop starting units in a queue or on a service"),
        "resume": ("pause:resume_file", "Resume a paused queue or service"),
        "set": ("set:set_limits", "Change the limits of a service"),
    },
    "Run": {
        "worker": ("appworker", "Run the workers of an application"),
        "relay": ("relay:relay", "Move units that an Outbox gathers in another database into a queue"),
        "demo": ("appdemo", "See it work in a few seconds"),
    },
    "Setup": {
        "sql": ("sql", "Print the SQL of a queue in PostgreSQL, and grant roles to submit by it"),
    },
}

PURPOSE = {
    "queuectl": "A queue of shell commands that survives everything.",
    "runcue": "Look at queues, operate them, and run the applications that work on them.",
}
EXAMPLES = {
    "queuectl": ("queuectl enqueue -- sleep 2", "queuectl worker start --count 2", "queuectl status"),
    "runcue": ("runcue demo", "runcue top queue.db", "runcue worker app:cue --count 2"),
}
ENDINGS = {
    "queuectl": """\b
Exit codes:
  0    done; a worker stopped gracefully
  1    a job that was waited for failed
  2    bad input
  3    the storage cannot be read or written
  4    wrong version, permissions or configuration
  5    others keep the queue busy
  6    not found, or in conflict with what is there
  70   a mistake in queuectl itself
  124  waited for too long
  130  interrupted by Ctrl-C
  141  the reader of a pipe went away

\b
Environment: QUEUECTL_HOME (default ~/.queuectl), NO_COLOR, CLICOLOR_FORCE, QUEUECTL_DEBUG=1
""",
    "runcue": """\b
Exit codes:
  0    done; the workers stopped gracefully
  2    bad input: there is no such Cue
  3    there is no such queue, or it cannot be reached, read or written
  4    wrong version, permissions or configuration, or the application raised while it was imported
  5    others keep the queue busy
  6    not found, or in conflict with what is there
  70   a mistake in runcue itself, or workers that die as they start
  130  interrupted by Ctrl-C, or asked to stop at once
  141  the reader of a pipe went away

\b
Environment: NO_COLOR, CLICOLOR_FORCE, RUNCUE_DEBUG=1
""",
}
"""The end of each program's help."""


def queuectl() -> None:
    """The program `queuectl`."""
    sys.exit(_run("queuectl"))


def runcue() -> None:
    """The program `runcue`."""
    sys.exit(_run("runcue"))


def _run(name: str) -> int:
    """Run one command; returns its exit code."""
    try:
        try:
            _fill_streams()
            code = _invoked(name, sys.argv[1:])
            _flush()
        except Exception as error:  # noqa: BLE001 (every error is printed in one line)
            code = _ended(name, error)
    except KeyboardInterrupt:
        _silence_streams()
        return 130
    except BrokenPipeError:
        _silence_streams()
        return 141
    return code


def _invoked(name: str, args: list[str]) -> int:
    import click

    group = program(name)
    variable = f"_{name.upper()}_COMPLETE"
    if instruction := os.environ.get(variable):
        from click.shell_completion import shell_complete

        try:
            return shell_complete(group, {}, name, variable, instruction)
        except (KeyError, ValueError) as error:
            raise bad_input(
                f"{variable} is set, but not by a shell that completes: {error} is wrong."
            ) from error
    try:
        with group.make_context(name, args) as context:
            group.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return 0


def program(name: str) -> click.Group:
    """The command group of `queuectl` or `runcue`."""
    import click

    from runcue import __version__
    from runcue.cli.groups import LazyGroup
    from runcue.cli.home import Home

    is_queuectl = name == "queuectl"

    def start(color: str, **place: Any) -> None:
        context = click.get_current_context()
        context.color = COLORS[color]
        if is_queuectl:
            context.obj = Home(place["home"], insecure=place["insecure"])
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    where = "Where the queue is (default: QUEUECTL_HOME, or ~/.queuectl)."
    trust = "Use a home that other users own or may write to."
    home = [
        click.Option(["--home"], metavar="DIR", help=where),
        click.Option(["--insecure"], is_flag=True, help=trust),
    ]
    color = click.Option(
        ["--color"],
        type=click.Choice([*COLORS]),
        default="auto",
        show_default=True,
        help="When to use colour.",
    )
    group = LazyGroup(
        name,
        callback=start,
        params=[*(home if is_queuectl else ()), color],
        help=PURPOSE[name],
        examples=EXAMPLES[name],
        epilog=ENDINGS[name],
        verbs=QUEUECTL if is_queuectl else RUNCUE,
        invoke_without_command=True,
    )
    version = click.version_option(__version__, "--version", prog_name=name, message="%(prog)s %(version)s")
    return version(group)


# errors ---------------------------------------------------------------------------------------------------


def _ended(name: str, error: Exception) -> int:
    """Print what went wrong, where that is possible; returns the exit code."""
    if _is_closed_pipe(error):
        raise BrokenPipeError from error
    from click.exceptions import NoArgsIsHelpError

    failure = failure_of(error, name)
    try:
        if isinstance(error, NoArgsIsHelpError):
            from runcue.cli.screen import note

            note(error.format_message())
        else:
            _tell(name, error, failure)
        _flush()
    except BrokenPipeError:
        raise
    except OSError:  # a full disk behind stdout or stderr
        _silence_streams()
    return failure.code


def _tell(name: str, error: Exception, failure: Failure) -> None:
    """Print on stderr in one line what went wrong."""
    from runcue.cli.screen import clean, note

    if os.environ.get(DEBUG) or os.environ.get(ALSO_DEBUG):
        import traceback

        note("".join(traceback.format_exception(error)).rstrip())
    context = getattr(error, "ctx", None)
    if failure.text:
        note(f"{clean(name if context is None else context.command_path)}: {clean(failure.text)}")


def failure_of(error: Exception, name: str = "queuectl") -> Failure:
    """Turn any error into one line and an exit code."""
    import click

    if isinstance(error, Failure):
        return error
    if isinstance(error, click.Abort):
        return Failure("Aborted.", codes.INTERRUPTED)
    if isinstance(error, click.UsageError):
        text = error.format_message()
        if isinstance(error, click.NoSuchOption):
            text = f"No such option {error.option_name[:40]!r}.{_near(error.option_name, error.possibilities or ())}"
        path = f" See: {error.ctx.command_path} --help" if error.ctx is not None else ""
        return Failure(f"{text.rstrip('.')}.{path}".replace("?.", "?"), codes.BAD_INPUT)
    if isinstance(error, click.ClickException):
        return Failure(error.format_message(), codes.BAD_INPUT)
    import runcue as library

    if isinstance(error, library.StoreError) and codes.is_old(error):
        what = str(error).partition(". ")[0]
        return Failure(f"{what}. {codes.BRING_UP_TO_DATE[name]}", codes.CONFIGURATION)
    if isinstance(error, library.StorageCorrupt):
        return Failure(codes.saving(str(error), error.store, name), codes.STORAGE)
    for kinds, code in (
        ((library.SchemaTooNew, library.StorageInsecure), codes.CONFIGURATION),
        (library.StorageBusy, codes.BUSY),
        (library.StoreError, codes.STORAGE),
        (
            (
                library.WorkNotFound,
                library.DuplicateWork,
                library.DependencyCycle,
                library.UnknownSchedule,
                library.ScheduleConflict,
            ),
            codes.CONFLICT,
        ),
        ((library.ConfigError, library.SubmitError), codes.BAD_INPUT),
    ):
        if isinstance(error, kinds):
            return Failure(str(error), code)
    if isinstance(error, OSError):
        where = f" {error.filename}:" if error.filename is not None else ""
        return Failure(f"cannot continue:{where} {error.strerror or error}.", codes.STORAGE)
    what = f"{type(error).__name__}: {error}"
    variable = DEBUG if name == "queuectl" else ALSO_DEBUG
    return Failure(f"internal error: {what[:300]}; set {variable}=1 for details", codes.INTERNAL)


def _near(name: str, names: Iterable[str]) -> str:
    """The end of a message that suggests an option with a similar name, if there is one."""
    from difflib import get_close_matches  # only mistakes need it

    plain = {one.lstrip("-"): one for one in names}
    near = get_close_matches(name.lstrip("-")[:80], plain, n=1)
    return f" Did you mean {plain[near[0]]!r}?" if near else ""


def _is_closed_pipe(error: BaseException) -> bool:
    return isinstance(error, BrokenPipeError) and error.filename is None


# streams --------------------------------------------------------------------------------------------------


def _fill_streams() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed, so that no other file gets its number.

    A shell may have opened its script there: an output that can only be read is replaced, too.
    """
    for number in (1, 2):
        if files.is_only_read(number):
            os.close(number)
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return
        os.set_inheritable(descriptor, True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _silence_streams() -> None:
    """Send further output to /dev/null, so that the interpreter's flush at exit cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
