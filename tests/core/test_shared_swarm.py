"""Several processes on one queue, with and without callbacks, doing whatever they may do, in any order; some die.

After every turn what was committed has to make sense: the counters say how much there is, work runs in one place at a
time, what ended well stays as it is, and in the end everything has ended.
"""

import random
from collections import Counter

import pytest

from runcue.core import line, ready
from runcue.core.asking import Questions
from runcue.core.model import Record, WorkState
from runcue.core.outcome import STOPPED
from runcue.core.plan import Cancel, Ended, Lost, Revive, Verdicts
from runcue.core.retry import Retry
from runcue.core.settings import Rule
from tests.core.bench_of_core import limits
from tests.core.library import Process, Shared
from tests.sample import fewer

STEPS = 120
ASKED = (Questions(), Questions(ready=True), Questions(ready=True, stale=True), Questions(score=True),
         Questions(dependencies=True))  # fmt: skip


class Swarm:
    """Processes that come and go, and what must hold whatever they do."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.shared = Shared()
        self.questions = self.chance.choice(ASKED)
        self.processes: list[Process] = []
        self.dead: list[Process] = []
        self.code: dict[int, tuple[Process, str]] = {}
        """Attempts whose code runs, with the process it runs in and its work."""
        self.done: dict[str, Record] = {}
        self.names = 0
        for _ in range(3):
            self.join()

    def join(self) -> None:
        self.names += 1
        rules = {"task": Rule(Retry.of({"max_attempts": 2, "base_delay": 1.0})), "other": Rule(Retry())}
        if self.chance.random() < 0.2:
            del rules["other"]
        services = (limits(concurrent=self.chance.choice((1, 3))), limits("rated", rate=(5, 10.0)))
        process = Process(self.shared, f"p{self.names}", *services, rules=rules, questions=self.questions)
        self.processes.append(process)
        self.turn(process)

    def turn(self, process: Process, *items: object) -> None:
        for token in [token for token, (owner, _) in self.code.items() if owner is process]:
            ended = any(
                getattr(item, "token", None) == token and getattr(item, "has_ended", True) for item in items
            )
            if ended:
                del self.code[token]
        if self.chance.random() < 0.1:  # it is kept, and this process does not hear so
            process.turn(*items, is_heard=False)  # type: ignore[arg-type]
            items = ()
        process.turn(*items)  # type: ignore[arg-type]
        for record in process.plan.start:
            assert record.id not in [work_id for _, work_id in self.code.values()], f"{record.id} runs twice"
            self.code[record.token] = process, record.id
        for record in process.plan.ask:
            self.answer(process, record.id)
        self.check()

    def answer(self, process: Process, work_id: str) -> None:
        said = {
            "ready": self.chance.random() < 0.7,
            "stale": self.chance.random() < 0.8,
            "score": self.chance.random(),
        }
        process._entered.append(Verdicts([process.verdict(work_id, **said)]))

    def step(self) -> None:
        process = self.chance.choice(self.processes)
        self.shared.now += self.chance.choice((0.0, 0.0, 0.1, 2.0))
        self.shared.wall = self.shared.now
        act = self.chance.choice(("submit", "submit", "end", "end", "end", "cancel", "revive", "turn", "time_out",
                                  "stop", "die", "join"))  # fmt: skip
        getattr(self, f"do_{act}")(process)

    def do_submit(self, process: Process) -> None:
        known = list(self.shared.records)
        needs = self.chance.sample(known, min(len(known), self.chance.choice((0, 0, 0, 1, 2))))
        task = self.chance.choice(list(process.rules))
        service = self.chance.choice(("api", "rated"))
        items = [process.submission(None, needs=needs, task=task, services=(service,)) for _ in range(2)]
        self.turn(process, *items)

    def own(self, process: Process) -> list[tuple[int, str]]:
        return [(token, work_id) for token, (owner, work_id) in self.code.items() if owner is process]

    def do_end(self, process: Process) -> None:
        for token, work_id in self.own(process)[:2]:
            if token in process.given_up:
                self.turn(process, Ended(work_id, token))
            else:
                process.tokens[work_id] = token
                is_good = self.chance.random() < 0.7
                self.turn(process, process.success(work_id, 1) if is_good else process.failure(work_id))

    def do_time_out(self, process: Process) -> None:
        for token, work_id in self.own(process)[:1]:
            if token not in process.given_up:
                process.tokens[work_id] = token
                self.turn(process, process.failure(work_id, "timeout", message="timeout", has_ended=False))

    def do_cancel(self, process: Process) -> None:
        if self.shared.records:
            chosen = self.chance.choice(list(self.shared.records))
            self.turn(process, Cancel(chosen, cascade=self.chance.random() < 0.3))

    def do_stop(self, process: Process) -> None:
        for _, work_id in self.own(process)[:1]:
            self.turn(process, Cancel(work_id, reason=STOPPED))

    def do_revive(self, process: Process) -> None:
        over = [one.id for one in self.shared.records.values() if one.state.value in ("failed", "cancelled")]
        if over:
            self.turn(process, Revive(self.chance.choice(over), cascade=self.chance.random() < 0.3))

    def do_turn(self, process: Process) -> None:
        self.turn(process)

    def do_join(self, process: Process) -> None:
        if len(self.processes) < 4:
            self.join()

    def do_die(self, process: Process) -> None:
        if len(self.processes) > 1 and self.chance.random() < 0.5:
            self.processes.remove(process)
            self.code = {token: one for token, one in self.code.items() if one[0] is not process}
            self.turn(self.chance.choice(self.processes), Lost(process.tag))

    def check(self) -> None:
        records = self.shared.records
        states = Counter(record.state for record in records.values())
        head = self.shared.head
        assert (head.pending, head.running) == (states[WorkState.PENDING], states[WorkState.RUNNING])
        assert head.blocked == sum(bool(one.missing) for one in records.values() if not one.state.is_final)
        for record in records.values():
            if record.state is WorkState.RUNNING:
                assert record.token in self.code, f"{record.id} runs nowhere"
            if record.state is WorkState.COMPLETED:
                known = self.done.setdefault(record.id, record)
                assert (known.result, known.completed_at, known.spent) == (
                    record.result,
                    record.completed_at,
                    record.spent,
                )
            else:
                assert record.id not in self.done, f"{record.id} was completed before"

    def drain(self) -> None:
        """Everything is let come to its end."""
        if not any("other" in process.rules for process in self.processes):
            self.processes[0].rules["other"] = Rule(Retry())
        for _ in range(400):
            self.shared.now += 1.0
            self.shared.wall = self.shared.now
            for process in self.processes:
                self.turn(process)
                for token, work_id in self.own(process):
                    over = Ended(work_id, token)
                    process.tokens[work_id] = token
                    self.turn(process, over if token in process.given_up else process.success(work_id, 1))
            if not self.shared.head.pending + self.shared.head.running:
                return
        left = [one for one in self.shared.records.values() if not one.state.is_final]
        raise AssertionError(f"never ended: {left}")


@pytest.mark.parametrize("seed", range(fewer(60, 24)))
def test_whatever_processes_do_what_is_committed_makes_sense(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # little is in mind, and little is enough for a turn
        monkeypatch.setattr(line, "MOST", 4)
        monkeypatch.setattr(ready, "AT_ONCE", 2)
    swarm = Swarm(seed)
    for _ in range(STEPS):
        swarm.step()
    swarm.drain()
