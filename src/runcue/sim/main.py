"""The program `runcue-sim`: from its arguments to one summary and an exit code.

Rules:
- What can be read as data goes to stdout, what is said to people to stderr.
- Whatever a user can get wrong is one line and exit code 2; a check or a condition that fails is exit code 1.
- Parts that need more than the base install (YAML, the screen) are imported when they are asked for.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from runcue import __version__

if TYPE_CHECKING:
    from runcue.sim.request import Request

FAILED = 1
BAD_INPUT = 2
INTERNAL = 70
INTERRUPTED = 130
CLOSED_PIPE = 141
DEBUG = "RUNCUE_DEBUG"

EXAMPLES = """\b
Examples:
  runcue-sim --scenario burst --duration 5m
  runcue-sim --scenario steady_load --duration 24h --check --html report.html
  runcue-sim --config my_test.yaml --report results.json --fail-on 'p95>2s'
  runcue-sim --scenario burst --set api.rate=120/min --set api.concurrent=20
  runcue-sim --replay run.db --set api.rate=120/min
  runcue-sim --count 100 --latency 50 --jitter 0.2 --error-rate 0.1 --rate-limit 20/1 --concurrent 5
  runcue-sim --config my_test.yaml --tui
  runcue-sim --swarm 2000
"""
EXIT_CODES = """\b
Exit codes:
  0    done
  1    a check, a condition or a seed of a swarm failed
  2    bad input: which key or option, and what was expected there; or a file that cannot be read or written
  70   an internal error, which is a bug in runcue-sim; RUNCUE_DEBUG=1 shows where
  130  interrupted by Ctrl-C
  141  the reader of a pipe went away
"""


class _Command(click.Command):
    """A command whose help begins with examples."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it is for, and then how it is used."""
        super().format_help_text(ctx, formatter)
        formatter.write("\n")
        formatter.write(EXAMPLES.removeprefix("\b\n"))


@click.command("runcue-sim", cls=_Command, epilog=EXIT_CODES, context_settings={"max_content_width": 100})
@click.option("--scenario", metavar="NAME", help="A built-in scenario; --list-scenarios shows them.")
@click.option("--config", metavar="FILE", help="A configuration in YAML; - reads it from stdin.")
@click.option("--replay", metavar="FILE", help="Take the workload from a real queue.")
@click.option("--duration", metavar="TIME", help="How long work arrives: 90s, 5m, 24h.")
@click.option("--seed", metavar="N", help="One seed, one run. [default: 1]")
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE", help="Run again with this changed, and compare."
)
@click.option("--count", metavar="N", help="Submit so many units; with --replay, the first so many.")
@click.option("--latency", metavar="MS", help="How long a call takes, in milliseconds.")
@click.option("--jitter", metavar="SHARE", help="By how much of itself the latency varies: 0.2.")
@click.option("--error-rate", metavar="SHARE", help="The share of calls that fail: 0.1.")
@click.option("--rate-limit", metavar="N/TIME", help="Starts allowed in a time: 20/1, 60/min.")
@click.option("--concurrent", metavar="N", help="How many calls may run at once.")
@click.option("--check", is_flag=True, help="Check runcue's promises from outside; exit 1 if one is broken.")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="CONDITION",
    help="Exit 1 if this holds: 'p95>2s', 'failed>0'; with --set, in the changed run.",
)
@click.option("--report", metavar="FILE", help="Write everything as JSON; - writes it to stdout.")
@click.option("--html", metavar="FILE", help="Write one page with plots; - writes it to stdout.")
@click.option("--realtime", is_flag=True, help="Run on real time, with the system's clock.")
@click.option("--speed", metavar="N", help="Run at N times real time.")
@click.option("--tui", is_flag=True, help="Watch it live, and turn its knobs.")
@click.option("--swarm", metavar="N", help="Play N small worlds with random faults, from --seed on.")
@click.option("--jobs", metavar="N", help="Processes for --swarm. [default: one a core]")
@click.option("--list-scenarios", is_flag=True, help="List the built-in scenarios.")
@click.option("-v", "--verbose", count=True, help="Show what runcue logs; twice: all of it.")
@click.version_option(__version__, "--version", prog_name="runcue-sim", message="%(prog)s %(version)s")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Run the real engine against mock services, on virtual time: a day takes seconds."""
    from runcue.sim.request import request_of

    _quiet(given["verbose"])
    if given["list_scenarios"]:
        _list_scenarios()
        return
    _refuse_contradictions(given)
    if given["swarm"] is not None:
        context.exit(_swarm(given))
    if not any(value for name, value in given.items() if name != "verbose"):
        click.echo(context.get_help())
        return
    context.exit(_carried_out(request_of(given)))


def _refuse_contradictions(given: dict[str, Any]) -> None:
    """Refuse options that would be ignored: silence would read as an answer."""
    if given["swarm"] is not None:
        beside = {"swarm", "seed", "jobs", "verbose"}
        for name, value in given.items():
            if value and name not in beside:
                raise click.UsageError(
                    f"--swarm plays worlds of its own: it takes no --{name.replace('_', '-')}"
                )
    elif given["jobs"]:
        raise click.UsageError("--jobs is for --swarm: one run takes one process")
    if given["tui"] and given["check"]:
        raise click.UsageError("--tui shows a run and judges nothing: use --check without it")
    if given["tui"] and given["changes"]:
        raise click.UsageError("--tui shows one run: use --set without it")
    if given["tui"] and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("--tui needs a terminal: leave it out where there is none")


def main() -> None:
    """The program `runcue-sim`."""
    _fill_streams()
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run the program with these arguments and return its exit code."""
    try:
        code = _told(list(arguments))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except KeyboardInterrupt:
        _let_go()
        return INTERRUPTED
    except BrokenPipeError:
        _let_go()
        return CLOSED_PIPE
    return code


def _told(arguments: list[str]) -> int:
    """Run the command; whatever goes wrong becomes one line and an exit code."""
    try:
        with command.make_context("runcue-sim", arguments) as context:
            command.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except click.NoSuchOption as error:
        return _complain(f"No such option {error.option_name[:40]!r}.{_near(error)} See: runcue-sim --help")
    except click.ClickException as error:
        return _complain(f"{error.format_message().rstrip('.')}. See: runcue-sim --help")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"yaml", "textual", "rich"}:
            raise
        extra = "sim" if error.name == "yaml" else "tui"
        return _complain(f"this needs {error.name}: pip install 'runcue[{extra}]'.")
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename!r}: " if error.filename is not None else ""
        return _complain(f"{where}{error.strerror or error}.")
    except Exception as error:  # noqa: BLE001 (whatever it is, a user gets one line)
        return _of_ours(error)
    return 0


def _of_ours(error: Exception) -> int:
    import runcue
    from runcue.sim.reading import BadConfig

    if isinstance(error, (BadConfig, runcue.RuncueError)):
        return _complain(f"{error}")
    if os.environ.get(DEBUG):
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True)
    what = f"{type(error).__name__}: {error}"[:300]
    _complain(f"internal error: {what}; set {DEBUG}=1 for details")
    return INTERNAL


def _near(error: click.NoSuchOption) -> str:
    """The option that was probably meant."""
    from runcue.sim.reading import nearest

    names = {name.lstrip("-"): name for option in command.params for name in option.opts}
    near = nearest(error.option_name.lstrip("-"), names)
    return f" Did you mean {names[near]}?" if near else ""


def _complain(text: str) -> int:
    click.echo(f"runcue-sim: {_spelled(text, sys.stderr.encoding)}", err=True)
    return BAD_INPUT


# --- what is to be done --------------------------------------------------------------------------------------


def _carried_out(request: Request) -> int:
    """Run a request, print and write its results, and return the exit code."""
    from runcue.sim import compare, output, report

    done = request.runs()
    base = done[0]
    is_taken = output.STDOUT in {request.report, request.html}
    if len(done) == 1:
        _say(report.lines(base.summary), to_stderr=is_taken)
    else:
        _say(compare.lines(base.summary, done[1].summary, request.changes), to_stderr=is_taken)
    if request.report is not None:
        output.write(request.report, request.document(done))
    if request.html is not None:
        output.write(request.html, request.page(done))
    lines, code = request.verdict(done)
    if lines:
        _say(["", *lines], to_stderr=is_taken)
    return code


def _swarm(given: dict[str, Any]) -> int:
    """Play many seeds with random faults."""
    from runcue.sim import swarm
    from runcue.sim.reading import amount, whole
    from runcue.sim.request import typed

    seeds = typed(given["swarm"], "--swarm", int, whole(1, 10_000_000))
    first = typed(given["seed"] or "0", "--seed", int, whole(0, 2**63))
    jobs = typed(given["jobs"] or str(os.cpu_count() or 1), "--jobs", int, whole(1, 64))
    found = swarm.run(range(first, first + seeds), jobs if jobs > 1 else None)
    faults = ", ".join(f"{count:,} {kind}" for kind, count in found.faults.items())
    played = [amount(found.seeds, "seed"), amount(found.works, "unit"), amount(found.events, "event")]
    _say([" · ".join(played), f"faults: {faults}"])
    if found.failures:
        trace = found.failures[0]
        failed = amount(len(found.failures), "seed")
        _say([f"{failed} failed, the first: {trace.seed}: {trace.violations[0]}"])
        return FAILED
    _say(["no violation"])
    return 0


def _list_scenarios() -> None:
    from runcue.sim.reading import span
    from runcue.sim.scenarios import SCENARIOS

    _say(f"  {name:<16} {one.text} ({span(one.duration)})" for name, one in SCENARIOS.items())


# --- streams -------------------------------------------------------------------------------------------------


def _say(lines: Iterable[str], *, to_stderr: bool = False) -> None:
    encoding = (sys.stderr if to_stderr else sys.stdout).encoding
    for line in lines:
        click.echo(_spelled(line, encoding), err=to_stderr)


def _spelled(text: str, encoding: str | None) -> str:
    """A text on one line, in characters that a stream can show."""
    text = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        for sign, plain in {"·": "-", "×": "x", "…": "..."}.items():
            text = text.replace(sign, plain)
        return text.encode("ascii", "backslashreplace").decode()
    return text


def _quiet(verbose: int) -> None:
    """runcue's own log goes to stderr if it is asked for, and nowhere else."""
    logger = logging.getLogger("runcue")
    logger.handlers.clear()
    logger.propagate = False
    if verbose:
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    else:
        logger.addHandler(logging.NullHandler())
        logger.setLevel(logging.CRITICAL)


def _fill_streams() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed, lest a file we open takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 (for good)


def _let_go() -> None:
    """Send all further output nowhere, so that the interpreter's last flush cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
