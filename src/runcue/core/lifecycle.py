"""The life of a piece of work, as one table.

A move names a state, a verb and the state it leads to. What is not in the table is illegal: `move` raises
and changes nothing. No other module writes `Record.state`; the diagram in the docs is made from MOVES.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from runcue.core.model import Record, WorkState

PENDING, RUNNING = WorkState.PENDING, WorkState.RUNNING
COMPLETED, FAILED, CANCELLED = WorkState.COMPLETED, WorkState.FAILED, WorkState.CANCELLED

MOVES: dict[tuple[WorkState, str], WorkState] = {
    (PENDING, "start"): RUNNING,
    (PENDING, "skip"): COMPLETED,
    (PENDING, "fail"): FAILED,
    (PENDING, "cancel"): CANCELLED,
    (RUNNING, "finish"): COMPLETED,
    (RUNNING, "fail"): FAILED,
    (RUNNING, "cancel"): CANCELLED,
    (RUNNING, "retry"): PENDING,
    (RUNNING, "return"): PENDING,
    (FAILED, "revive"): PENDING,
    (CANCELLED, "revive"): PENDING,
}


class IllegalMove(AssertionError):
    """A mistake in runcue itself: a move that the table of lives does not have."""


def move(record: Record, verb: str, **changes: Any) -> Record:
    """The record after `verb`, with `changes`; IllegalMove when its state does not allow that."""
    state = MOVES.get((record.state, verb))
    if state is None:
        raise IllegalMove(f"work {record.id!r} is {record.state.value}: it cannot {verb}")
    return replace(record, state=state, **changes)


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending: submit"]
    lines += [f"    {source.value} --> {target.value}: {verb}" for (source, verb), target in MOVES.items()]
    lines += [f"    {state.value} --> [*]" for state in WorkState if state.is_final]
    return "\n".join(lines) + "\n"
