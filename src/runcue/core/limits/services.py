"""All services that a queue knows, by name: declared ones, the parts of keys, and groups.

The part of a key (`name[key]`) is made when it is first used, here or by another process, and dropped when it has
nothing left to remember. A group (`name_*`) is a way to use services and not a service of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runcue.core.limits.service import Group, Limits, Service
from runcue.core.model.state import base_name, is_pattern, key_name


class Services(dict[str, Service]):
    """Services by name; `find` makes the parts of keys and groups."""

    def __init__(self, touch: Callable[[Service], None]) -> None:
        super().__init__()
        self._touch = touch
        self.groups: dict[str, Group] = {}
        self.declared = 0
        """How many were declared so far; parts of keys and groups are not counted."""
        self.on_new: Callable[[Service], None] = ignore
        """Called for each new service: one that was declared, or the part of a new key."""

    def find(self, name: str) -> Service | None:
        """The service of that name: a declared one, the part of a key, or a group; None for an unknown name."""
        service = self.get(name)
        if service is not None:
            return service
        if is_pattern(name):
            return self._group(name)
        base = self.get(base_name(name) or "")
        limits = None if base is None else base.limits.of_key(name)
        if limits is None:
            return None
        service = self[name] = Service(limits)
        self.on_new(service)
        return service

    def lookup(self, name: str) -> Service | None:
        """The service or group of that name, if it was made already."""
        return self.get(name) or self.groups.get(name)

    def _group(self, pattern: str) -> Group | None:
        group = self.groups.get(pattern)
        if group is None:
            group = Group(pattern)
            for service in self.values():
                if not self.is_key(service):
                    group.admit(service)
            if group.members:
                self.groups[pattern] = group
        return group if group.members else None

    def declare(self, limits: Limits) -> Service | None:
        """A program declares a service. None when that changes nothing: the service has these limits already, or the
        program declared the same before and others were set by hand since."""
        service = self.get(limits.name)
        if service is not None and service.declared is not None:
            if service.declared == limits:
                return None
            service.declared = None
            return self.apply(limits) or service
        return self.apply(limits)

    def adjust(self, service: Service, limits: Limits) -> None:
        """Set the limits of a service by hand: they hold until its program declares others than before."""
        declared = service.declared or service.limits
        self.apply(limits)
        service.declared = None if declared == limits else declared

    def apply(self, limits: Limits) -> Service | None:
        """Give a service these limits, and its keys theirs. None when it has had them already."""
        service = self.get(limits.name)
        is_new = service is None
        if service is None:
            self.declared += 1
            service = self[limits.name] = Service(limits)
            self.on_new(service)
        elif service.limits == limits:
            return None
        else:
            service.declare(limits)
            self._touch(service)
        for group in self.groups.values():
            group.admit(service)
            self._touch(group)
        for part in () if is_new else self.values():
            each = limits.of_key(part.name) if part.base == service.name else None
            if each is not None:
                part.declare(each)
                self._touch(part)
        return service

    def drop_keys(self, used: Iterable[Service], now: float) -> None:
        """Drop the parts of keys that are not in use and have nothing to remember."""
        kept = set(used)
        for service in list(self.values()):
            if service not in kept and self.is_key(service) and service.is_as_new(now):
                del self[service.name]

    def with_parts(self, names: Iterable[str]) -> list[str]:
        """These names, and before each service with keys the part of the empty key, if no key of it is among them:
        such units were submitted when the service had no keys, or by a program that does not know of them."""
        found: list[str] = []
        for name in names:
            service = self.get(name)
            if service is not None and service.limits.each is not None and name not in map(base_name, found):
                found.append(key_name(name, ""))
            found.append(name)
        return found

    def is_key(self, service: Service) -> bool:
        """True for the part of a key. (A service may be declared with brackets in its name.)"""
        base = self.get(service.base or "")
        return base is not None and base.limits.each is not None


def ignore(service: Service) -> None:
    """A service is new, and no other process can have used it before."""
