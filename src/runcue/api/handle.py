"""What a submission returns: the id of the unit, and what can be asked about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.api.signature import Duration
    from runcue.core.model.record import Spec, Work
    from runcue.core.views.explain import Explanation

R = TypeVar("R")


class Handle(str, Generic[R]):
    """The id of a submitted unit, which also waits for it, cancels it and tells about it."""

    __slots__ = ()  # with fields of its own, each would be one more object for the garbage collector to look at

    _cue: ClassVar[Cue]
    is_duplicate: ClassVar[bool] = False
    """True when nothing was queued, because this unit was there already."""

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the result; raise WorkFailed, WorkTimedOut or WorkCancelled if there is none."""
        result: R = await self._cue.result(self, timeout)
        return result

    async def wait(self, timeout: Duration | None = None) -> Work:
        """Wait until the unit has ended, in whatever state, and return it."""
        return await self._cue.wait(self, timeout)

    async def get(self) -> Work | None:
        """The unit as it stands; None when it is no longer kept."""
        return await self._cue.get(self)

    async def cancel(self, *, cascade: bool = False) -> bool:
        """Cancel the unit; True when it was pending or running."""
        return await self._cue.cancel(self, cascade=cascade)

    async def explain(self) -> Explanation:
        """Explain why the unit is in its state, and until when."""
        return await self._cue.explain(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str.__str__(self),)  # a copy elsewhere is the id alone


class Handles:
    """Makes the handles of one Cue, which is in their class: 100,000 of them cost little more than their ids."""

    def __init__(self, cue: Cue) -> None:
        self._new = type("Handle", (Handle,), {"__slots__": (), "__doc__": Handle.__doc__, "_cue": cue})
        self._duplicate = type("Handle", (self._new,), {"__slots__": (), "is_duplicate": True})

    def known(self, id: str) -> Handle[Any]:
        """The handle of a unit that exists."""
        handle: Handle[Any] = self._new(id)
        return handle

    def of(self, ids: list[str], specs: list[Spec]) -> list[Handle[Any]]:
        """The handles of units, from the ids that the queue gave for these submissions."""
        new, duplicate = self._new, self._duplicate
        return [new(id) if id == spec.id else duplicate(id) for id, spec in zip(ids, specs, strict=True)]
