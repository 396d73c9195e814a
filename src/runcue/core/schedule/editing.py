"""Changes what a unit was submitted with, as long as it has not started or once it has failed for good."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from runcue.core.ledger.ledger import Ledger, rank_of
from runcue.core.model.record import Record, Spec, WorkState
from runcue.core.schedule.line import READY
from runcue.core.schedule.plan import Edit
from runcue.errors import WorkNotEditable, WorkNotFound

EDITABLE: Final = frozenset({WorkState.PENDING, WorkState.FAILED})


def edit(ledger: Ledger, item: Edit) -> Exception | None:
    """Edit a unit: one that is pending is judged anew, one that has failed waits to be retried. Returns why not."""
    record = ledger.working.live(item.id) or ledger.working.latest(item.id)
    if record is None:
        option = "retention" if ledger.is_shared else "keep_finished"
        return WorkNotFound(item.id, ledger.working.state_of(item.id) is not None, option)
    if record.state not in EDITABLE:
        return WorkNotEditable(item.id, record.state.value)
    ledger.turn.emit("edited", change(ledger, record, _edited(record.spec, item), record.expires_at))
    return None


def change(ledger: Ledger, record: Record, spec: Spec, expires_at: float | None) -> Record:
    """Give a pending or final unit another spec. A pending one waits where that belongs from now on."""
    step = ledger.lanes.settings_of(spec.task).age_step
    changed = replace(record, spec=spec, rank=rank_of(spec, record.created_at, step), expires_at=expires_at)
    plan = ledger.turn.plan
    plan.respecified.add(record.id)
    ledger.groups.note_change(record, spec)
    if record.state.is_final:
        plan.records[record.id] = changed
        plan.rewritten.add(record.id)
        return changed
    ledger.retention.want_for(changed)
    ledger.retention.end(record)
    if str(record.index_key).startswith(READY):
        ledger.leave_line(record)  # callbacks are called about it anew
    ledger.working.write(changed)
    if spec.unique_key is not None:
        ledger.lookups.note_keys(changed)
    changed = ledger.arm(changed)
    ledger.place(changed)
    return changed


def _edited(spec: Spec, item: Edit) -> Spec:
    changes: dict[str, Any] = {
        "services": item.services,
        "cost": item.cost,
        "priority": item.priority,
        "params": item.params,
        "label": item.label,
    }
    return replace(spec, **{name: value for name, value in changes.items() if value is not None})
