"""The processes that have a queue open, as its tables have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runcue.core.model.state import Worker
from runcue.core.schedule.plan import Plan
from runcue.stores.sql import statements, states
from runcue.stores.sql.session import Session


class Workers:
    """Reads the workers, and remembers those that were there last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fleet: int | None = None
        self.known: Sequence[Worker] = ()
        """The workers that were there when this process last looked."""

    def all(self) -> list[Worker]:
        """Every process that has the queue open, and dead ones that were not noticed yet."""
        return [states.read_worker(row) for row in self._session.execute(statements.WORKER_SELECT)]

    def meet(self, fleet: int) -> None:
        """Read the workers again if `fleet`, which counts their changes, is not what it was."""
        if fleet != self._fleet:
            self.known = self.all()
            self._fleet = fleet

    def took_over(self, workers: Sequence[Worker]) -> None:
        """These were there when this process began to decide."""
        self.known = workers
        self._fleet = None

    def decided(self, plan: Plan) -> None:
        """A turn of this process was committed."""
        if plan.workers or plan.lost:
            workers = {worker.id: worker for worker in self.known} | plan.workers
            self.known = [worker for worker in workers.values() if worker.id not in plan.lost]

    @property
    def pids(self) -> Mapping[str, int]:
        """The workers that this process last read, with their pids."""
        return {worker.id: worker.pid for worker in self.known}

    @property
    def is_known(self) -> bool:
        """False when the others took this process for dead, as far as this one has read."""
        return any(worker.id == self._session.worker for worker in self.known)
