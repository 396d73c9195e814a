"""All services that a queue knows, by name: declared ones, the parts of keys, and groups.

A key's part (`name[key]`) comes to be when it is first used, here or by another process, and is dropped when it has
nothing left to remember. A group (`name_*`) is kept aside: it is a way to use services and not one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runcue.core.limits.service import Group, Limits, Service
from runcue.core.model.state import base_name, is_pattern, key_name


class Services(dict[str, Service]):
    """Services by name; `find` makes those that follow from a declaration."""

    def __init__(self, touch: Callable[[Service], None]) -> None:
        super().__init__()
        self._touch = touch
        self.groups: dict[str, Group] = {}
        self.declared = 0
        """How many were declared since the beginning: what follows from them is not counted."""
        self.on_new: Callable[[Service], None] = nobody_used_it
        """Called for a service that is watched from now on: one that was declared, or the part of a new key."""

    def find(self, name: str) -> Service | None:
        """The service of that name: declared, a key's part of one that is, or a group of them."""
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
        """The service or group of that name, if there is one already."""
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
        """A program declares a service. None when that changes nothing: it has these limits already, or others that
        were set by hand since the program declared the same before."""
        service = self.get(limits.name)
        if service is not None and service.declared is not None:
            if service.declared == limits:
                return None
            service.declared = None
            return self.apply(limits) or service
        return self.apply(limits)

    def adjust(self, service: Service, limits: Limits) -> None:
        """Somebody set the limits of a service by hand: they hold until its program declares others than before."""
        declared = service.declared or service.limits
        self.apply(limits)
        service.declared = None if declared == limits else declared

    def apply(self, limits: Limits) -> Service | None:
        """A service has these limits from now on, and its keys theirs. None when it has had them already."""
        service = self.get(limits.name)
        if service is None:
            self.declared += 1
            service = self[limits.name] = Service(limits)
            self.on_new(service)
            for group in self.groups.values():
                group.admit(service)
                self._touch(group)
            return service
        if service.limits == limits:
            return None
        service.declare(limits)
        self._touch(service)
        for group in self.groups.values():
            group.admit(service)
            self._touch(group)
        for part in self.values():
            each = limits.of_key(part.name) if part.base == service.name else None
            if each is not None:
                part.declare(each)
                self._touch(part)
        return service

    def drop_keys(self, used: Iterable[Service], now: float) -> None:
        """Drop what is kept of keys that are not among the used ones and have nothing to remember."""
        keys = dict.fromkeys(service for service in self.values() if self.is_key(service))
        for service in used:
            keys.pop(service, None)
        for service in keys:
            if service.is_as_new(now):
                del self[service.name]

    def with_parts(self, names: Iterable[str]) -> list[str]:
        """The same, and for each service with keys whose key nobody said the part of those that have none: such work
        was submitted when the service had no keys, or by a program that does not know of them."""
        found: list[str] = []
        for name in names:
            service = self.get(name)
            has_part = (
                service is None or service.limits.each is None or any(base_name(one) == name for one in found)
            )
            found += [name] if has_part else [key_name(name, ""), name]
        return found

    def is_key(self, service: Service) -> bool:
        """True for the part of a service that one key has; a name with brackets may be a service's own."""
        base = self.get(service.base or "")
        return base is not None and base.limits.each is not None


def nobody_used_it(service: Service) -> None:
    """A service is watched from now on, and there is nobody else who might have used it before."""
