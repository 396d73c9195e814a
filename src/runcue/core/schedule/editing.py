"""Changes what a unit was submitted with, as long as it has not started or once it has failed for good."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from runcue.core.ledger.ledger import Ledger
from runcue.core.model.record import Spec, WorkState
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
    ledger.turn.emit("edited", ledger.change(record, _edited(record.spec, item), record.expires_at))
    return None


def _edited(spec: Spec, item: Edit) -> Spec:
    changes: dict[str, Any] = {
        "services": item.services,
        "cost": item.cost,
        "priority": item.priority,
        "params": item.params,
        "label": item.label,
    }
    return replace(spec, **{name: value for name, value in changes.items() if value is not None})
