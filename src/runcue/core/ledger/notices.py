"""Events about services (circuits, outages, rates), and which services have to be written."""

from __future__ import annotations

import math
from typing import Any

from runcue.core.ledger.current import CurrentTurn
from runcue.core.limits.service import Blocked, Service
from runcue.core.model.state import ServiceState
from runcue.core.schedule.ready import Ready

CIRCUIT_EVENTS = {"open": "circuit_opened", "half_open": "circuit_half_open", "closed": "circuit_closed"}
RATE_LIMITED_EVERY = 1.0


class Notices:
    """What was emitted about each service, so that nothing is emitted twice."""

    __slots__ = ("_changed", "_limited_at", "_ready", "_throttled", "_turn")

    def __init__(self, turn: CurrentTurn, ready: Ready) -> None:
        self._turn = turn
        self._ready = ready
        self._limited_at: dict[str, float] = {}
        self._throttled: dict[Service, None] = {}
        """Throttled services, for which this process emitted that; it emits the end of it, too."""
        self._changed: dict[Service, None] = {}

    def changed(self, service: Service) -> None:
        """Have the state of that service written with this turn."""
        self._changed[service] = None

    def take_changed(self) -> dict[str, ServiceState]:
        """The states of services that have to be written with this turn."""
        states = {one.name: one.state() for one in self._changed if not one.name.startswith("#")}
        self._changed.clear()
        return states

    def circuit(self, service: Service, news: str | None) -> None:
        """If `news` names a new state of the circuit: emit it, and let the lanes of the service look again."""
        if news is not None:
            assert service.breaker is not None
            self.changed(service)
            self._turn.emit(CIRCUIT_EVENTS[news], service=service.name, failures=service.breaker.failures)
            self.availability(service)
            self._ready.touch(service)

    def availability(self, service: Service, is_always: bool = False, **data: Any) -> None:
        """Emit whether a service is available, if that has changed; with `is_always` in any case."""
        outage = service.outage(self._turn.now)
        if is_always or service.is_out != (outage is not None):
            service.is_out = outage is not None
            reason, until = (None, None) if outage is None else (outage.reason, outage.until)
            self._turn.emit("service_status", service=service.name, available=outage is None, reason=reason,
                            until=until, **data)  # fmt: skip

    def throttled(self, service: Service, until: float, details: str) -> None:
        """Emit that a service is throttled until then."""
        used, limit = service.fullest(self._turn.now)
        self._turn.emit("service_rate_limited", service=service.name, until=until, current_rate=used, limit=limit,
                        details=details)  # fmt: skip
        self.availability(service)
        self._throttled[service] = None

    def recovered(self, service: Service) -> None:
        """A moment that this service waited for has come: if it was throttled until then, emit the end of that."""
        if service in self._throttled:
            if self._turn.now < service.throttled_until:  # it was throttled again since
                self._ready.wake_service(service, service.throttled_until)
            else:
                del self._throttled[service]
                self.availability(service)

    def limited(self, service: Service, blocked: Blocked) -> None:
        """Emit that a service lets nothing start because of its rate: at most once a second."""
        now, limited_at = self._turn.now, self._limited_at
        if now - limited_at.get(service.name, -math.inf) >= RATE_LIMITED_EVERY:
            limited_at.pop(service.name, None)
            limited_at[service.name] = now
            # also those of keys that are gone
            while now - next(iter(limited_at.values())) >= RATE_LIMITED_EVERY:
                del limited_at[next(iter(limited_at))]
            used, limit = service.fullest(now)
            self._turn.emit("service_rate_limited", service=service.name, until=blocked.until, current_rate=used,
                            limit=limit, details=blocked.details)  # fmt: skip
