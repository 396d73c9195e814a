"""Calls the application's deciding callbacks, with time limits and fallbacks; their verdicts go into the next turn.

Plain callbacks are called on the loop in slices of 2 ms; `async` ones are tasks that are cut off at the limit.
A plain one that overran is from then on called in a thread of its own, where the limit can be enforced.

callback that fails        the answer that is used
is_ready                   not ready
is_stale                   stale (run it)
dependency_satisfied       not satisfied
priority                   0.5
declared files             not ready

The files that a task declares are checked here, too, like one more callback of that task: after the dependencies,
before is_ready. Files out of reach hold up only the units of their own task, and only while they are out of reach.
Callbacks take at most a quarter of the loop's time for units never asked about before, and 4 % for repeated asking.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from math import isnan
from time import perf_counter
from typing import Any, NamedTuple

from msgspec.structs import replace

from runcue.core.model.failure import is_kind
from runcue.core.model.parse import duration
from runcue.core.model.record import PriorityContext, Record, Work, view
from runcue.core.schedule.gates import FEW, Allowance, Verdict
from runcue.core.schedule.plan import Plan
from runcue.engine.artifacts import UNSEEN, Artifacts, Finding
from runcue.engine.callback_errors import CallbackErrors
from runcue.engine.callback_threads import Overrun, OwnThread
from runcue.engine.handler import is_async
from runcue.errors import StoreError
from runcue.ports import Clock

SLICE = 0.002
TURN_COST = 4e-6
"""Seconds that a turn spends on one question and its verdict, besides the callback itself."""
FIRST_SHARE = 0.25
AGAIN_SHARE = 0.025
"""Shares of the loop's time by the estimated cost of a question; a measured share is about 4 %."""
BATCH_LIMITS = 2
"""For how many time limits a score may wait for the others asked with it: until a call that overran is given up and
the calls behind it have answered."""
FALLBACKS: dict[str, Any] = {
    "dependency_satisfied": False,
    "is_ready": False,
    "is_stale": True,
    "priority": 0.5,
}
QUICK_CHECKS = 100
"""How many checks of files in a row have to end in time before they are made on the loop again."""
FILES = "artifacts"
"""The name of the check of declared files among the callbacks."""
DELAY = "retry_delay"
NOTHING_DECLARED = Finding()


class Question:
    """One registered callback: how it is called, and the fallback when it fails."""

    def __init__(self, kind: str, function: Callable[..., Any], limit: float, report: CallbackErrors) -> None:
        self.kind = kind
        self.function = function
        self.limit = limit
        self.report = report
        self.wants_task = bool(getattr(function, "wants_task", False))
        self.is_plain = not is_async(function) and not self.wants_task
        self._usual = {"priority": float, FILES: Finding}.get(kind, bool)
        self._thread: OwnThread | None = None
        self._quick = 0

    def ask(self, arguments: tuple[Any, ...], timer: Callable[[], float]) -> Any:
        """Call a plain callback on the loop and return its answer."""
        began = timer()
        try:
            answer = self.function(*arguments)
            given = type(answer)
            if given is not self._usual or (given is float and not 0.0 <= answer <= 1.0):
                if asyncio.iscoroutine(answer):
                    answer.close()
                    self.is_plain = False
                    raise TypeError("it returned a coroutine: declare it with `async def`")
                answer = self._checked(answer)
        except KeyboardInterrupt:  # Ctrl-C
            raise
        except BaseException as error:  # noqa: BLE001 (an application's callback may raise anything)
            answer = self.fallback(error)
        took = timer() - began
        if self.report.observers:
            self.report.took(self.kind, took)
        if took > self.limit:
            self.is_plain = False
            self._thread = self._thread or OwnThread(f"runcue-{self.kind}")
            answer = self.fallback(self._late())
        return answer

    def close(self) -> None:
        """End its thread, if it has one."""
        if self._thread is not None:
            self._thread.close()

    async def ask_async(self, arguments: tuple[Any, ...]) -> Any:
        """Call any callback, cut off at the limit, and return its answer."""
        began = perf_counter()
        try:
            return await self._answer(arguments)
        finally:
            if self.report.observers:
                self.report.took(self.kind, perf_counter() - began)

    async def _answer(self, arguments: tuple[Any, ...]) -> Any:
        try:
            if self._thread is not None:
                answer = await self._thread.call(self.function, arguments, self.limit)
                if self.kind == FILES:
                    self._count_quick()
            else:
                answer = await self._cut_off(arguments)
            return self._checked(answer)
        except Overrun:
            self._quick = 0
            return self.fallback(self._late())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if is_kind(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # this task itself is cancelled, because the loop ends
            return self.fallback(error)

    async def _cut_off(self, arguments: tuple[Any, ...]) -> Any:
        limit = asyncio.timeout(self.limit)
        try:
            async with limit:
                answer = self.function(*arguments)
                return await answer if asyncio.iscoroutine(answer) else answer
        except TimeoutError:
            if limit.expired():
                raise Overrun from None
            raise

    def _count_quick(self) -> None:
        """Check files on the loop again after many quick checks: the slow one may be due to a busy machine."""
        self._quick += 1
        if self._quick >= QUICK_CHECKS:
            self._quick = 0
            self.is_plain = True

    def _checked(self, answer: Any) -> Any:
        if isinstance(answer, Finding):
            return answer
        if self.kind != "priority":
            if answer is None:
                raise TypeError("it returned None, not True or False")
            return bool(answer)
        is_number = isinstance(answer, (int, float)) and not isinstance(answer, bool)
        if not is_number or (isinstance(answer, float) and isnan(answer)):
            raise TypeError(f"it returned {answer!r:.80}, not a number from 0 to 1")
        return float(min(1.0, max(0.0, answer)))

    def _late(self) -> TimeoutError:
        return TimeoutError(f"it took longer than {self.limit:g} s")

    def fallback(self, error: BaseException) -> Any:
        """Report the error and return the answer that is used instead."""
        self.report(self.kind, error)
        return FALLBACKS.get(self.kind, UNSEEN)


class Moment(NamedTuple):
    """What priority callbacks are told of the queue: the same for all units of a plan, so that equals score alike."""

    at: float
    depth: int
    pressure: dict[str, float]


Interview = Generator[tuple[Question, tuple[Any, ...]] | Verdict, Any, None]
"""Yields the questions about one unit, one after the other, each with its arguments; then the verdict."""


class Judge:
    """Asks the callbacks about the units in `plan.ask` and delivers verdicts."""

    def __init__(
        self,
        clock: Clock,
        timer: Callable[[], float],
        limit: float,
        callbacks: Mapping[str, Callable[..., Any]],
        report: CallbackErrors,
        deliver: Callable[[list[Verdict]], None],
        task_of: Callable[[str], Awaitable[str | None]],
        artifacts: Mapping[str, Artifacts],
    ) -> None:
        self._clock = clock
        self._timer = timer
        self._limit = limit
        self._callbacks = callbacks
        self._report = report
        self._deliver = deliver
        self._task_of = task_of
        self.artifacts = artifacts
        """The declared files, by task."""
        self._questions: dict[str, Question] = {}
        self._file_checks: dict[str, Question] = {}
        self._todo: deque[tuple[Record, Moment]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_going = False
        self._unanswered = 0
        self._answers: list[Verdict] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._cost = 2 * TURN_COST
        self._first_tokens = self._again_tokens = SLICE
        self._paid_at = clock.now()
        self.asking: str | None = None
        """The callback that is being called right now, for the watchdog."""

    def _use_registered(self) -> None:
        for kind in FALLBACKS:
            function = self._callbacks.get(kind)
            known = self._questions.get(kind)
            if function is not None and (known is None or known.function is not function):
                self._questions[kind] = Question(kind, function, self._limit, self._report)

    def _file_check(self, task: str) -> Question | None:
        """The question that checks the files of a task; None when the task declares none."""
        if task not in self.artifacts:
            return None
        check = self._file_checks.get(task)
        if check is None:
            check = self._file_checks[task] = Question(FILES, self._check_files, self._limit, self._report)
        return check

    def _check_files(self, work: Work) -> Finding:
        """Check the files of a unit: on the loop, or in a thread once that took too long."""
        declared = self.artifacts.get(work.task)
        return Finding() if declared is None else declared.look(work, self._clock.wall())

    def makes(self, record: Record) -> tuple[str, ...]:
        """The declared outputs of a unit that has just completed."""
        declared = self.artifacts.get(record.spec.task)
        try:
            return () if declared is None else declared.makes(view(record))
        except BaseException as error:  # noqa: BLE001 (an application's function may raise anything)
            self._report(FILES, error)
            return ()

    def delay(self, function: Callable[[Any], Any], record: Record) -> float | None:
        """The delay that `retry_delay` chooses before the next attempt of a unit that has just failed."""
        try:
            answer = function(view(replace(record, failures=record.failures + 1)))
            return None if answer is None else duration(answer, DELAY)
        except Exception as error:  # noqa: BLE001 (an application's function may raise anything)
            self._report(DELAY, error)
            return None

    def allowance(self) -> Allowance:
        """How many questions the next turn may ask, so that callbacks stay within their share of the loop's time."""
        if self._unanswered >= FEW:  # they run in threads or tasks
            return Allowance(0, 0)
        now = self._clock.now()
        passed, self._paid_at = now - self._paid_at, now
        self._first_tokens = min(SLICE, self._first_tokens + passed * FIRST_SHARE)
        self._again_tokens = min(SLICE, self._again_tokens + passed * AGAIN_SHARE)
        return Allowance(self._affordable(self._first_tokens), self._affordable(self._again_tokens))

    def ask(self, plan: Plan) -> None:
        """Ask about every unit in `plan.ask`: the first slice at once, the next ones in later steps of the loop."""
        self._use_registered()
        self._first_tokens = max(-SLICE, self._first_tokens - (len(plan.ask) - plan.again) * self._cost)
        self._again_tokens = max(-SLICE, self._again_tokens - plan.again * self._cost)
        self._unanswered += len(plan.ask)
        moment = Moment(self._clock.now(), plan.depth or 1, plan.pressure)
        self._todo.extend((record, moment) for record in plan.ask)
        if not self._is_going:
            self._next_slice()

    def _affordable(self, tokens: float) -> int:
        """How many questions the tokens pay for; with full tokens at least one, however much it costs."""
        return max(1 if tokens >= SLICE else 0, min(FEW, int(tokens / self._cost)))

    def _next_slice(self) -> None:
        timer = self._timer
        began = timer()
        verdicts: list[Verdict] = []
        asked = 0
        is_plain = all(question.is_plain for question in self._questions.values())
        while self._todo and (not asked or timer() - began < SLICE):
            record, moment = self._todo.popleft()
            check = self._file_check(record.spec.task)
            interview = self._interview(record, check, moment)
            asked += 1
            if is_plain and (check is None or check.is_plain):
                verdicts.append(self._conduct(interview))
            else:
                task = asyncio.get_running_loop().create_task(
                    self._conduct_async(interview), name="runcue callback"
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self.asking = None
        self._learn_cost((timer() - began) / asked)
        if verdicts:
            self._answer(verdicts)
        self._is_going = bool(self._todo)
        if self._is_going:
            asyncio.get_running_loop().call_soon(self._next_slice)

    def _answer(self, verdicts: list[Verdict]) -> None:
        """Deliver verdicts; those with scores all at once, so that the best one wins and not the first one."""
        self._unanswered -= len(verdicts)
        self._answers += verdicts
        if not self._unanswered or "priority" not in self._questions:
            self._deliver_all()
        elif self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(BATCH_LIMITS * self._limit, self._deliver_all)

    def _deliver_all(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        answers, self._answers = self._answers, []
        self._deliver(answers)

    def _learn_cost(self, cost: float) -> None:
        """Adjust the estimated cost of a question: quickly down, slowly up, because a busy machine adds to it."""
        cost += TURN_COST
        self._cost += (cost - self._cost) * (0.2 if cost < self._cost else 0.02)

    def _conduct(self, interview: Interview) -> Verdict:
        step = next(interview)
        while not isinstance(step, Verdict):
            question, arguments = step
            self.asking = question.kind
            step = interview.send(question.ask(arguments, self._timer))
        return step

    async def _conduct_async(self, interview: Interview) -> None:
        step = next(interview)
        while not isinstance(step, Verdict):
            question, arguments = step
            step = interview.send(await self._ask_async(question, arguments))
        self._answer([step])

    async def _ask_async(self, question: Question, arguments: tuple[Any, ...]) -> Any:
        """The answer to one question; a store that cannot be read counts as an error of the callback."""
        if question.wants_task:
            try:
                arguments = (*arguments, await self._task_of(arguments[0]))
            except StoreError as error:
                return question.fallback(error)
        if not question.is_plain:
            return await question.ask_async(arguments)
        self.asking = question.kind
        answer = question.ask(arguments, self._timer)
        self.asking = None
        return answer

    def close(self) -> None:
        """End the threads of slow callbacks."""
        for question in (*self._questions.values(), *self._file_checks.values()):
            question.close()

    def _interview(self, record: Record, file_check: Question | None, moment: Moment) -> Interview:
        """The questions about one unit, in the order of the gates; the first closed gate ends it."""
        questions, clock = self._questions, self._clock
        work = view(record)
        satisfied = questions.get("dependency_satisfied")
        if satisfied is not None:
            for need in work.depends_on:
                if not (yield satisfied, (need,)):
                    yield Verdict(work.id, clock.now(), ready=False, why="dependency")
        found = NOTHING_DECLARED
        if file_check is not None:
            found = yield file_check, (work,)
            if found.trouble is not None:
                self._report(FILES, found.trouble)
            if not found.is_ready:
                why = "lacks" if found.lacks else "unseen"
                yield Verdict(work.id, clock.now(), ready=False, why=why, lacks=found.lacks)
        ready = questions.get("is_ready")
        if ready is not None and not (yield ready, (work,)):
            yield Verdict(work.id, clock.now(), ready=False, why="not_ready")
        stale = questions.get("is_stale")
        is_stale = found.is_stale
        if stale is not None and not is_stale:
            is_stale = yield stale, (work,)
        if is_stale is False:
            yield Verdict(work.id, clock.now(), stale=False, makes=found.makes)
        priority = questions.get("priority")
        if priority is None:
            yield Verdict(work.id, clock.now())
        else:
            now = clock.now()
            waited = max(0.0, moment.at - record.created_at)
            context = PriorityContext(work, waited, moment.depth, moment.pressure)
            score = yield priority, (context,)
            yield Verdict(work.id, now, True, True, score)
