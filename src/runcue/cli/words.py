"""What `queuectl` and `runcue` call things: a verb is written once, and these words are its data.

queuectl knows jobs in a home; runcue knows units in any file or database. `do` is how a command has to be typed.
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
    """All states, in the order in which they are told."""
    waiting: tuple[str, ...]
    """The states of what waits."""
    names: Mapping[str, str] = {}
    """States that the library calls otherwise."""
    retrying: str = "pending"
    """The state of what failed and waits for its next attempt."""
    dead: str = "failed"
    is_dead: str = "has failed"
    may_retry: frozenset[str] = frozenset({"failed"})
    """What may be tried again by hand, in the library's words."""
    verbs: Mapping[str, str] = {}
    """Verbs that have another name."""
    everything: str = "--all"
    """The option that retries all that failed."""
    has_programs: bool = False
    """True where workers are programs that run what they see fit, False where each runs one command at a time."""
    busy: str = "workers busy"
    start: str = ""
    """How a worker is started."""
    give: str = "enqueue"
    """What is done to have something run."""
    add: str = ""
    """How to begin where there is nothing."""
    place: str = ""
    """What stands behind every verb: the file or the address, as it has to be typed."""

    @property
    def many(self) -> str:
        """The plural."""
        return f"{self.one}s"

    def do(self, verb: str, *args: str) -> str:
        """The command that does this."""
        parts = (self.program, self.verbs.get(verb, verb), self.place, *args)
        return " ".join(part for part in parts if part)

    def do_start(self, queue: str | None = None) -> str:
        """The command that starts a worker, of that queue alone if one is given."""
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
    add="A program adds work with `await cue.submit(…)`.",
)
