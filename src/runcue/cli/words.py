"""The words that differ between `queuectl` and `runcue`, so that the code of a verb is written once.

queuectl has jobs in a home; runcue has units in a file or a database. `Words.do` writes a command as it is typed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

TYPE_CHECKING = False
if TYPE_CHECKING:
    import runcue


class Words(msgspec.Struct, frozen=True):
    """The words of one program."""

    program: str
    one: str
    states: tuple[str, ...]
    """All states, in the order in which they are listed."""
    waiting: tuple[str, ...]
    """The states of units that wait."""
    names: Mapping[str, str] = {}
    """The library's names of states that have another name here."""
    retrying: str = "pending"
    """The state of a unit that failed and waits for its next attempt."""
    dead: str = "failed"
    is_dead: str = "has failed"
    had_died: str = "had failed"
    may_retry: frozenset[str] = frozenset({"failed"})
    """The states, as the library calls them, in which a unit can be retried by hand."""
    verbs: Mapping[str, str] = {}
    """The names of verbs that are called otherwise in the other program."""
    everything: str = "--all"
    """The option that retries all failed units."""
    has_programs: bool = False
    """True where a worker is a program that runs many units at once, False where it runs one command at a time."""
    busy: str = "workers busy"
    start: str = ""
    """The command that starts a worker."""
    give: str = "enqueue"
    """The verb for adding a unit."""
    add: str = ""
    """What to do in an empty queue."""
    place: str = ""
    """The argument behind every verb, quoted for a shell: the file or the address."""

    @property
    def many(self) -> str:
        """The plural."""
        return f"{self.one}s"

    def do(self, verb: str, *args: str) -> str:
        """The command that does this, as it is typed."""
        parts = (self.program, self.verbs.get(verb, verb), self.place, *args)
        return " ".join(part for part in parts if part)

    def do_start(self, queue: str | None = None) -> str:
        """The command that starts a worker, for that queue alone if one is given."""
        from shlex import quote

        return self.start if queue is None else f"{self.start} --queue {quote(queue)}"

    def state_of(self, work: runcue.Work) -> str:
        """The state of a unit in these words."""
        if work.state == "pending":
            return self.retrying if work.failures else "pending"
        return self.names.get(work.state, str(work.state))


QUEUECTL = Words(
    program="queuectl",
    one="job",
    states=("pending", "processing", "completed", "failed", "dead", "cancelled"),
    waiting=("pending", "failed"),
    names={"running": "processing", "failed": "dead"},
    retrying="failed",
    dead="dead",
    is_dead="is dead",
    had_died="had died",
    verbs={"explain": "why", "set": "service set", "retry": "dlq retry", "dead": "dlq list"},
    start="queuectl worker start",
    add="Add a job: queuectl enqueue -- echo hello",
)
RUNCUE = Words(
    program="runcue",
    one="unit",
    states=("pending", "running", "completed", "failed", "cancelled"),
    waiting=("pending",),
    may_retry=frozenset({"failed", "cancelled"}),
    verbs={"dead": "list --state failed"},
    has_programs=True,
    busy="in line",
    everything="--all-failed",
    start="runcue worker MODULE:CUE",
    give="submit",
    add="A program adds units with `await cue.submit(…)`.",
)
