"""The states of a unit and the moves between them, as one table.

A move is a state, a verb and the state it leads to. A move that is not in the table is illegal: `move` raises and
changes nothing. No other module writes `Record.state`; the diagram in the docs is made from MOVES.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from runcue.core.model.record import Record, WorkState

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


_TARGETS: dict[str, dict[WorkState, WorkState]] = {}
for (_source, _verb), _target in MOVES.items():
    _TARGETS.setdefault(_verb, {})[_source] = _target


class IllegalMove(AssertionError):
    """A bug in runcue itself: a move that the table does not have."""


def move(record: Record, verb: str, **changes: Any) -> Record:
    """The record after `verb`, with `changes`; IllegalMove when its state does not allow that."""
    state = _TARGETS.get(verb, {}).get(record.state)
    if state is None:
        raise IllegalMove(f"unit {record.id!r} is {record.state.value}: it cannot {verb}")
    return replace(record, state=state, **changes)


def started(
    record: Record, token: int, now: float, worker: str | None = None, index_key: str | None = None
) -> Record:
    """The move that begins every attempt: `move(record, "start", …)`, at a fifth of its cost.

    Where no other process shares the queue there is no worker to name, and most starts change few fields.
    """
    if record.state is not PENDING:
        return move(record, "start")
    if worker is None and record.next_retry_at is None and record.watch_at is None:
        return replace(record, state=RUNNING, attempt=record.spent + 1, token=token, started_at=now)
    return replace(record, state=RUNNING, attempt=record.spent + 1, token=token, started_at=now, next_retry_at=None,
                   worker=worker, index_key=index_key, sort_key=now, watch_at=None)  # fmt: skip


def finished(record: Record, result: Any, now: float) -> Record:
    """The move that ends most attempts: `move(record, "finish", …)`, at a fifth of its cost."""
    if record.state is not RUNNING:
        return move(record, "finish")
    if record.worker is None and record.error is None:
        return replace(
            record, state=COMPLETED, spent=record.attempt, token=0, completed_at=now, result=result
        )
    return replace(record, state=COMPLETED, spent=record.attempt, token=0, completed_at=now, result=result,
                   error=None, traceback=None, worker=None, index_key=None, sort_key=0.0)  # fmt: skip


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending: submit"]
    lines += [f"    {source.value} --> {target.value}: {verb}" for (source, verb), target in MOVES.items()]
    lines += [f"    {state.value} --> [*]" for state in WorkState if state.is_final]
    return "\n".join(lines) + "\n"
