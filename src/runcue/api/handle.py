"""What a submission returns: the id of the unit, and what can be asked about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.api.signature import Duration
    from runcue.core.model.record import Work
    from runcue.core.views.explain import Explanation

R = TypeVar("R")


class Handle(str, Generic[R]):
    """The id of a submitted unit, which also waits for it, cancels it and tells about it."""

    __slots__ = ("_cue", "is_duplicate")

    _cue: Cue
    is_duplicate: bool
    """True when nothing was queued, because this unit was there already."""

    def __new__(cls, id: str, cue: Cue, is_duplicate: bool = False) -> Handle[R]:
        """A handle is made by submitting."""
        self = super().__new__(cls, id)
        self._cue = cue
        self.is_duplicate = is_duplicate
        return self

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
