"""The values users meet, under the name older code imports them from."""

from __future__ import annotations

from runcue.core.model.record import PriorityContext, Work, WorkState

WorkUnit = Work

__all__ = ["PriorityContext", "Work", "WorkState", "WorkUnit"]
