"""`cue.group("import-7")`: the units that were submitted with the same group, together."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Final

from runcue.core.model.parse import optional_duration
from runcue.core.model.record import WorkState

if TYPE_CHECKING:
    from runcue.api.cue import Cue
    from runcue.api.signature import Duration
    from runcue.core.model.group import GroupCounts
    from runcue.core.model.record import Work
    from runcue.engine.queries import Queries

SOME: Final = 1000
"""How many results are read at once."""


class Group:
    """The units of one group. What is asked of a group that does not exist raises GroupNotFound."""

    def __init__(self, cue: Cue, queries: Queries, name: str) -> None:
        self._cue = cue
        self._queries = queries
        self.name = name

    def __repr__(self) -> str:
        return f"<Group {self.name!r}>"

    async def progress(self) -> GroupCounts:
        """How far the group is: how many units are in each state, `fraction` and `text`."""
        return await self._queries.group(self.name)

    async def counts(self) -> dict[WorkState, int]:
        """How many units are in each state, those included that are no longer kept."""
        return (await self.progress()).by_state

    async def wait(self, timeout: Duration | None = None) -> GroupCounts:
        """Wait until all units have ended, however they did."""
        return await self._queries.wait_for_group(self.name, optional_duration(timeout, "timeout"))

    async def results(self) -> dict[str, Any]:
        """The results of the completed units that are kept, by id, in the order of their submission."""
        await self.progress()
        found: builtins.list[Work] = []
        page = await self.list(WorkState.COMPLETED, limit=SOME)
        while page:
            found += page
            page = await self.list(WorkState.COMPLETED, limit=SOME, before=page[-1].id)
        return {work.id: work.result for work in reversed(found)}

    async def list(
        self,
        state: WorkState | str | None = None,
        task: str | None = None,
        limit: int = 100,
        *,
        before: str | None = None,
    ) -> builtins.list[Work]:
        """The latest units, newest first; the next page is what comes `before` the last id of this one."""
        return await self._cue.list(state, task, limit, before=before, group=self.name)

    async def cancel(self, *, cascade: bool = False) -> int:
        """Cancel all units that have not ended, and return how many they were."""
        await self.progress()
        return await self._cue.cancel(group=self.name, cascade=cascade)

    async def retry(self, *, cascade: bool = False) -> int:
        """Retry all failed units, and return how many they were."""
        await self.progress()
        return await self._cue.retry(group=self.name, cascade=cascade)
