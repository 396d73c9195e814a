"""Events about services: circuits, outages, rates; and which services have to be written."""

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
    """What was emitted about each service lately, so that it is emitted once."""

    __slots__ = ("_changed", "_limited_at", "_ready", "_throttled", "_turn")

    def __init__(self, turn: CurrentTurn, ready: Ready) -> None:
        self._turn = turn
        self._ready = ready
        self._limited_at: dict[str, float] = {}
        self._throttled: dict[Service, None] = {}
        """Services that asked to be left alone, as was emitted here: so is the end of that."""
        self._changed: dict[Service, None] = {}
        """Services of which something is to be written."""

    def changed(self, service: Service) -> None:
        """Something about that service is to be written with this turn."""
        self._changed[service] = None

    def take_changed(self) -> dict[str, ServiceState]:
        """What is to be written of services."""
        states = {one.name: one.state() for one in self._changed if not one.name.startswith("#")}
        self._changed.clear()
        return states

    def circuit(self, service: Service, news: str | None) -> None:
        """A circuit changed, if there is news of it: emit that, and let its lanes look again."""
        if news is not None:
            assert service.breaker is not None
            self.changed(service)
            self._turn.emit(CIRCUIT_EVENTS[news], service=service.name, failures=service.breaker.failures)
            self.availability(service)
            self._ready.touch(service)

    def availability(self, service: Service, is_always: bool = False, **data: Any) -> None:
        """Emit it when a service became available or no longer is; with `is_always` in any case."""
        outage = service.outage(self._turn.now)
        if is_always or service.is_out != (outage is not None):
            service.is_out = outage is not None
            reason, until = (None, None) if outage is None else (outage.reason, outage.until)
            self._turn.emit("service_status", service=service.name, available=outage is None, reason=reason,
                            until=until, **data)  # fmt: skip

    def throttled(self, service: Service, until: float, details: str) -> None:
        """The far side asked to be left alone until then."""
        used, limit = service.fullest(self._turn.now)
        self._turn.emit("service_rate_limited", service=service.name, until=until, current_rate=used, limit=limit,
                        details=details)  # fmt: skip
        self.availability(service)
        self._throttled[service] = None

    def recovered(self, service: Service) -> None:
        """The time of that service has come: if the far side had asked to be left alone, emit the end of that."""
        if service in self._throttled:
            if self._turn.now < service.throttled_until:  # it asked again since
                self._ready.wake_service(service, service.throttled_until)
            else:
                del self._throttled[service]
                self.availability(service)

    def limited(self, service: Service, blocked: Blocked) -> None:
        """A service lets nothing start because of its rate: emitted at most once a second."""
        now, limited_at = self._turn.now, self._limited_at
        if now - limited_at.get(service.name, -math.inf) >= RATE_LIMITED_EVERY:
            limited_at.pop(service.name, None)
            limited_at[service.name] = now
            while now - next(iter(limited_at.values())) >= RATE_LIMITED_EVERY:  # of keys that are gone, too
                del limited_at[next(iter(limited_at))]
            used, limit = service.fullest(now)
            self._turn.emit("service_rate_limited", service=service.name, until=blocked.until, current_rate=used,
                            limit=limit, details=blocked.details)  # fmt: skip
