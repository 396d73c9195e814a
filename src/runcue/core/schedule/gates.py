"""What to ask of the user's callbacks, and when to ask again.

Work passes two kinds of questions before it may start: gates (dependencies, is_ready, is_stale) and the score.
Gates are asked whether there is room or not, because skipping needs none; a score alone only when there is.

never asked   first, in order of rank, whichever lane they are in
not ready     again when any work completed, else after 50 ms growing to 1 s, longest unasked first
lacks a file  again when the work that makes it completed, with the never asked; else by the clock like the others
candidates    a gate's answer is not acted on when it is older than 100 ms; every 100 ms the best 64 of a lane are
              scored again at a choice (all of them up to 1,000), and the rest in rotation

Nobody is asked about work whose queue is paused or not served: it is set aside until its queue is opened.
How much may be asked in one turn is the caller's `Allowance`: this module knows no clock and no cost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

import msgspec

from runcue.core.model.record import Record
from runcue.core.model.settings import Questions as Questions  # noqa: PLC0414 (it is looked for here, too)
from runcue.core.schedule.lane import Candidate, Lane
from runcue.core.schedule.line import Key
from runcue.core.schedule.order import ByRank
from runcue.core.schedule.ready import FRESH, Ready

FIRST_WAIT = 0.05
GROWTH = 1.5
LONGEST_WAIT = 1.0
BEST = 64
FEW = 1000
SCORE_STEP = 3600.0
"""Seconds of waiting that the best score is worth against the worst, where work of one program is scored and that of
another is not: only so can both stand in one line in which nobody starves."""
BEYOND_ALL = -2.0
"""A score nobody can beat: work never asked goes first, to be asked."""


class Allowance(msgspec.Struct, frozen=True):
    """How many callbacks may be asked in this turn: for the first time, and again."""

    first: int = FEW
    again: int = FEW


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What the callbacks said about one work: data, with the moment they said it."""

    id: str
    at: float
    ready: bool = True
    stale: bool = True
    score: float = 0.5
    why: str = ""
    """For work that is not ready: which gate is closed (`dependency`, `lacks`, `unseen` or `not_ready`)."""
    lacks: str = ""
    """For work that is not ready: the declared input that does not exist, if that is why."""
    makes: tuple[str, ...] = ()
    """For work that is not stale: its declared outputs."""


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Work that a gate holds back: when it was asked, how long it rests, which gate it was."""

    asked_at: float
    rest: float
    lane: Lane
    why: str
    completions: int
    """How much work had completed when it was asked: by count, because a clock may stand still."""
    lacks: str = ""
    """The file it waits for: what completes without making that is nothing to it."""


class ClosedQueue:
    """What of one closed queue is not asked about until it is opened: lanes, and those who wait."""

    __slots__ = ("lanes", "resting", "ring")

    def __init__(self) -> None:
        self.lanes: dict[Lane, None] = {}
        self.ring: dict[str, Wait] = {}
        self.resting: dict[str, Wait] = {}


class Lacking:
    """Who waits for which file, and which were made while somebody was being asked."""

    __slots__ = ("_many_made", "_waiting", "made")

    def __init__(self) -> None:
        self._waiting: dict[str, str | dict[str, None]] = {}  # mostly one: a dict for each would be large
        self.made: dict[str, int] = {}
        """Files made lately, with the number of the completion that made them."""
        self._many_made = FEW

    def add(self, path: str, work_id: str) -> None:
        """That work waits for that file."""
        known = self._waiting.get(path)
        if known is None:
            self._waiting[path] = work_id
        elif isinstance(known, dict):
            known[work_id] = None
        else:
            self._waiting[path] = {known: None, work_id: None}

    def drop(self, path: str, work_id: str) -> None:
        """It does not any more."""
        known = self._waiting.get(path)
        if isinstance(known, dict):
            known.pop(work_id, None)
        if not known or known == work_id:
            self._waiting.pop(path, None)

    def take(self, path: str) -> Iterable[str]:
        """Everybody who waits for that file, in the order they came; they do not any more."""
        known = self._waiting.pop(path, ())
        return (known,) if isinstance(known, str) else known

    def note(self, path: str, number: int, oldest: Callable[[], int]) -> None:
        """That file was made, by that completion; whoever is being asked may not have seen it yet."""
        self.made[path] = number
        if len(self.made) > self._many_made:
            least = oldest()
            self.made = {one: at for one, at in self.made.items() if at > least}
            self._many_made = max(FEW, 2 * len(self.made))


class Gates:
    """The book of questions: who was asked, who waits for a new question."""

    __slots__ = ("_again_left", "_asked", "_by_rank", "_closed", "_completions", "_curious", "_heads", "_is_mixed",
                 "_lacking", "_numbers", "_records", "_resting", "_ring", "_wanted", "_woken", "ready",
                 "waiting")  # fmt: skip

    def __init__(self, records: dict[str, Record], ready: Ready, *, is_mixed: bool = False) -> None:
        """`is_mixed` says that there is work which is scored beside work which is not."""
        self._records = records
        self.ready = ready
        self._is_mixed = is_mixed
        self.waiting: dict[str, Wait] = {}
        self._wanted: list[Record] = []
        self._numbers = count()
        self._again_left = 0
        self._curious: dict[Lane, Key] = {}  # the first of each lane that has somebody never asked
        self._heads: list[tuple[float, int, Lane]] = []  # the same as a heap; with outdated entries
        self._closed: dict[str, ClosedQueue] = {}
        self._asked: dict[str, tuple[Lane, int, Wait | None, Record]] = {}
        # By how long they rest: each line is in order.
        self._resting: dict[float, deque[tuple[str, Wait]]] = {}
        self._ring: deque[tuple[str, Wait]] = deque()
        self._completions = 0
        self._lacking = Lacking()
        self._woken: deque[tuple[str, Wait]] = deque()  # what they lacked was made
        self._by_rank = ByRank(ready)
        ready.order_by(self)

    def arrived(self, lane: Lane, records: list[Record]) -> None:
        """Work that nothing but the callbacks holds back joins the line of the never asked."""
        lane.line.extend(records)
        if lane.questions.gates:
            key = min((record.rank, record.seq) for record in records)
            first = self._curious.get(lane)
            if first is None or key < first:
                self._curious[lane] = key
                heappush(self._heads, (*key, lane))
        else:
            self.ready.wake(lane)

    def lane_found(self, lane: Lane) -> None:
        """A lane may have work in the store that was never asked about here."""
        key = lane.line.key()
        if not lane.questions.gates:
            self.ready.wake(lane)
        elif key is not None and key < self._curious.get(lane, (math.inf, 0)):
            self._curious[lane] = key
            heappush(self._heads, (*key, lane))

    def left(self, work_id: str, lane: Lane) -> None:
        """That work went away unstarted: forget what was said about it."""
        wait = self.waiting.pop(work_id, None)
        if wait is not None and wait.lacks:
            self._lacking.drop(wait.lacks, work_id)
        lane.entries.pop(work_id, None)

    def completed(self, makes: Sequence[str] = ()) -> None:
        """Some work completed: whoever was found not ready may be ready, and who lacks a file if this was made."""
        self._made(makes)
        self._completions += 1

    def _made(self, paths: Sequence[str]) -> None:
        lacking, waiting = self._lacking, self.waiting
        for path in paths:
            self._woken.extend((work_id, waiting[work_id]) for work_id in lacking.take(path))
            if self._asked:
                lacking.note(path, self._completions + 1, self._asked_first)

    def _asked_first(self) -> int:
        """How much had completed when the oldest question was put that is under way."""
        return min(completions for _, completions, _, _ in self._asked.values())

    def is_asked(self, work_id: str) -> bool:
        """True while a question about that work is under way."""
        return work_id in self._asked

    def has_unmet_needs(self, record: Record, lane: Lane) -> bool | None:
        """What the callbacks last said about the dependencies of that work; None before they said anything."""
        if record.id in lane.entries:
            return False
        wait = self.waiting.get(record.id) or self._asked.get(record.id, (lane, 0, None, record))[2]
        return None if wait is None else wait.why == "dependency"

    def answered(self, verdicts: Sequence[Verdict]) -> list[Record]:
        """Take answers in. Those whose output is valid are returned: they are to be skipped."""
        asked, records = self._asked, self._records
        skipped: list[Record] = []
        lanes: dict[Lane, None] = {}
        for verdict in verdicts:
            work_id = verdict.id
            if work_id not in asked:  # by callbacks that have been replaced since
                continue
            lane, completions, wait, record = asked.pop(work_id)
            lanes[lane] = None
            if records.get(work_id) is not record:  # it moved on meanwhile: that was about another attempt
                continue
            if not verdict.ready:
                lane.entries.pop(work_id, None)
                rest = FIRST_WAIT if wait is None else min(wait.rest * GROWTH, LONGEST_WAIT)
                self._hold_back(
                    work_id, Wait(verdict.at, rest, lane, verdict.why, completions, verdict.lacks)
                )
            elif not verdict.stale:
                lane.entries.pop(work_id, None)
                skipped.append(record)
                self._made(verdict.makes)
            else:
                has_score = lane.questions.score
                is_ranked = self._is_mixed or not has_score
                order = record.rank - self._worth(verdict.score) if is_ranked else -verdict.score
                candidate = (order, record.seq, next(self._numbers), record, verdict.at)
                lane.entries[work_id] = candidate
                heappush(lane.candidates, candidate)
                if has_score:
                    lane.ring.append(candidate)
        for lane in lanes:
            self._drop_outdated(lane)
            self.ready.wake(lane)
        if not asked:
            self._lacking.made.clear()
        return skipped

    def _worth(self, score: float) -> float:
        """How many seconds of waiting a score is worth, beside work that is not scored."""
        return score * SCORE_STEP if self._is_mixed else 0.0

    def begin(self, allowance: Allowance, now: float) -> None:
        """Choose whom to ask in this turn, before anything is started."""
        self._again_left = allowance.again
        self._ask_woken(allowance.first)
        self._ask_first(allowance.first)
        ring, waiting = self._ring, self.waiting
        while ring and self._again_left > 0:
            work_id, wait = ring[0]
            if waiting.get(work_id) is wait:
                if wait.completions == self._completions:
                    break
                if wait.lane.queue.is_paused:
                    self._put_aside(wait.lane).ring[work_id] = wait
                else:
                    self._ask_waiting(work_id, wait)
            ring.popleft()
        for line in self._resting.values():
            while line and self._again_left > 0:
                work_id, wait = line[0]
                if waiting.get(work_id) is wait:
                    if wait.asked_at + wait.rest > now:
                        break
                    if wait.lane.queue.is_paused:
                        self._put_aside(wait.lane).resting[work_id] = wait
                    else:
                        self._ask_waiting(work_id, wait)
                line.popleft()

    def wanted(self) -> list[Record]:
        """Everybody to be asked now, chosen by `begin` and by the choice itself."""
        wanted, self._wanted = self._wanted, []
        return wanted

    @property
    def again_left(self) -> int:
        """How much of the allowance for asking again this turn left over."""
        return self._again_left

    def wakes_at(self, now: float) -> float:
        """When there is next somebody to ask; with a spent allowance that is in a little while."""
        ring, waiting = self._ring, self.waiting
        if self._heads or self._woken:
            return now + FIRST_WAIT / 5
        while ring and waiting.get(ring[0][0]) is not ring[0][1]:
            ring.popleft()
        if ring and ring[0][1].completions < self._completions:
            return now + FIRST_WAIT
        at = math.inf
        for line in self._resting.values():
            while line and waiting.get(line[0][0]) is not line[0][1]:
                line.popleft()
            if line:
                at = min(at, line[0][1].asked_at + line[0][1].rest)
        return at if at > now else now + FIRST_WAIT

    def busy_lanes(self) -> set[Lane]:
        """The lanes of everybody who is or will be asked: they must not be dropped."""
        waiting = {wait.lane for wait in self.waiting.values()}
        return waiting.union(self._curious, (asked[0] for asked in self._asked.values()))

    def _ask_woken(self, most: int) -> None:
        """Ask those whose file was made, as if for the first time; in a closed queue they rest on."""
        woken = self._woken
        while woken and len(self._wanted) < most:
            work_id, wait = woken.popleft()
            if self.waiting.get(work_id) is wait and not wait.lane.queue.is_paused:
                del self.waiting[work_id]
                self._wanted.append(self._ask(wait.lane, self._records[work_id]))

    def _ask_first(self, most: int) -> None:
        """Ask the best of the never asked, of all lanes whose queues are open."""
        curious, heads = self._curious, self._heads
        while heads and len(self._wanted) < most:
            rank, seq, lane = heads[0]
            if curious.get(lane) != (rank, seq):
                heappop(heads)
                continue
            if lane.queue.is_paused:
                self._put_aside(lane).lanes[lane] = None
                heappop(heads)
                continue
            head = lane.line.head()
            if head is not None and head.rank == rank and head.seq == seq:
                lane.line.pop()
                self._wanted.append(self._ask(lane, head))
                head = lane.line.head()
            if head is None:
                del curious[lane]
                heappop(heads)
            else:
                curious[lane] = head.rank, head.seq
                heapreplace(heads, (head.rank, head.seq, lane))

    def _put_aside(self, lane: Lane) -> ClosedQueue:
        aside = self._closed.get(lane.queue.name)
        if aside is None:
            aside = self._closed[lane.queue.name] = ClosedQueue()
        return aside

    def queue_opened(self, name: str) -> None:
        """That queue goes on: whoever was set aside takes its place again, in front of those it was among."""
        aside = self._closed.pop(name, None)
        if aside is None:
            return
        for lane in aside.lanes:
            heappush(self._heads, (*self._curious[lane], lane))
        self._ring.extendleft(reversed(aside.ring.items()))
        for work_id, wait in reversed(aside.resting.items()):
            self._resting[wait.rest].appendleft((work_id, wait))

    def _never_asked(self, lane: Lane, most: int) -> list[Record]:
        asked: list[Record] = []
        while len(asked) < most and (record := lane.line.head()) is not None:
            lane.line.pop()
            asked.append(self._ask(lane, record))
        return asked

    def _ask(self, lane: Lane, record: Record, wait: Wait | None = None) -> Record:
        self._asked[record.id] = (lane, self._completions, wait, record)
        return record

    def _ask_waiting(self, work_id: str, wait: Wait) -> None:
        del self.waiting[work_id]
        if wait.lacks:
            self._lacking.drop(wait.lacks, work_id)
        self._again_left -= 1
        self._wanted.append(self._ask(wait.lane, self._records[work_id], wait))

    def _hold_back(self, work_id: str, wait: Wait) -> None:
        self.waiting[work_id] = wait
        if wait.lacks:
            self._watch(work_id, wait)
        elif wait.completions == self._completions:
            self._ring.append((work_id, wait))
        else:  # something completed while it was asked: the ring has those to be asked once more in front
            self._ring.appendleft((work_id, wait))
        resting = self._resting.setdefault(wait.rest, deque())
        resting.append((work_id, wait))
        if max(len(self._ring), len(resting)) > 4 * len(self.waiting) + FEW:
            self._sweep()

    def _watch(self, work_id: str, wait: Wait) -> None:
        """Have that work asked again when its file is made, or now if that happened while it was asked."""
        if self._lacking.made.get(wait.lacks, 0) > wait.completions:
            self._woken.append((work_id, wait))
        else:
            self._lacking.add(wait.lacks, work_id)

    def _sweep(self) -> None:
        """Too many entries are outdated: keep only what still waits."""
        waiting = self.waiting
        ring = (entry for entry in waiting.items() if not entry[1].lacks)
        self._ring = deque(sorted(ring, key=lambda entry: entry[1].completions))
        for rest, line in self._resting.items():
            self._resting[rest] = deque(entry for entry in line if waiting.get(entry[0]) is entry[1])

    # the choice: what `Order` asks for --------------------------------------------------

    def head(self, lane: Lane) -> Key | None:
        """The place of the best candidate of a lane among all lanes; None when there is none."""
        if not lane.questions:
            return self._by_rank.head(lane)
        if not lane.questions.gates:
            unasked = lane.line.head()
            if unasked is not None:
                return BEYOND_ALL, unasked.seq
        candidates, entries = lane.candidates, lane.entries
        while candidates and entries.get(candidates[0][3].id) is not candidates[0]:
            heappop(candidates)
        return candidates[0][:2] if candidates else None

    def take(self, lane: Lane, room: int, now: float, limit: Key) -> list[Record] | None:
        """Up to `room` of the best whose answers are fresh; None when somebody has to be asked first."""
        if not lane.questions:
            return self._by_rank.take(lane, room, now, limit)
        was_answered = lane.asked_at != math.inf  # what this round said counts, however long it took
        oldest = min(now - FRESH, lane.asked_at)
        lane.asked_at = math.inf
        if not was_answered and self._refresh(lane, room, now, oldest):
            return None
        batch: list[Record] = []
        candidates, entries, gates = lane.candidates, lane.entries, lane.questions.gates
        while len(batch) < room and candidates:
            best = candidates[0]
            if entries.get(best[3].id) is best:
                if (gates and best[4] < oldest) or best[:2] > limit:
                    break
                del entries[best[3].id]
                batch.append(best[3])
            heappop(candidates)
        if not batch:
            self._refresh(lane, room, now, now - FRESH)
            return None
        return batch

    def _refresh(self, lane: Lane, room: int, now: float, oldest: float) -> bool:
        """Ask whoever has to be asked before this lane may start something; True when there was somebody."""
        asked = [] if lane.questions.gates else self._never_asked(lane, FEW)
        candidates = lane.candidates
        is_late = lane.questions.gates and bool(candidates) and candidates[0][4] < oldest
        if candidates and (is_late or now - lane.refreshed_at >= FRESH):
            lane.refreshed_at = now
            stale = [best[3] for best in self._best_of(lane, room) if best[4] < oldest]
            asked += [self._ask(lane, record) for record in stale if record.id not in self._asked]
        if asked:
            asked += self._in_rotation(lane)
            lane.asked_at = now
            self._wanted += asked
        return bool(asked)

    def _best_of(self, lane: Lane, room: int) -> list[Candidate]:
        if len(lane.entries) <= FEW and lane.questions.score:
            return list(lane.entries.values())
        best: list[Candidate] = []
        most = max(BEST, room) if lane.questions.score else room
        while len(best) < most and lane.candidates:
            candidate = heappop(lane.candidates)
            if lane.entries.get(candidate[3].id) is candidate:
                best.append(candidate)
        for candidate in best:
            heappush(lane.candidates, candidate)
        return best

    def _in_rotation(self, lane: Lane) -> list[Record]:
        asked: list[Record] = []
        if len(lane.entries) <= FEW:
            return asked
        while lane.ring and self._again_left > 0:
            candidate = lane.ring.popleft()
            record = candidate[3]
            if lane.entries.get(record.id) is candidate and record.id not in self._asked:
                self._again_left -= 1
                asked.append(self._ask(lane, record))
        return asked

    def _drop_outdated(self, lane: Lane) -> None:
        most = 4 * len(lane.entries) + FEW
        if len(lane.candidates) > most:
            lane.candidates = list(lane.entries.values())
            heapify(lane.candidates)
        if len(lane.ring) > most:
            lane.ring = deque(lane.entries.values())
