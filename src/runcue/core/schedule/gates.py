"""About which units the application's callbacks are called, and when they are called again.

There are two kinds of questions about a unit: gates (dependencies, is_ready, is_stale) and the score. Gates are asked
whether there is room or not, because a skip needs none; a score alone only when there is room.

never asked   first, in order of rank over all lanes
not ready     again when any unit has completed, else after 50 ms growing to 1 s, in the order of the last question
lacks a file  again when the unit that makes it has completed, with the never asked; else by time like the others
candidates    passed all gates. An answer older than 100 ms is not acted on; every 100 ms the best 64 of a lane are
              scored again before a choice (all of them up to 1,000), and the others in rotation

Units of a queue that is paused or not served are not asked about; they are set aside until the queue is opened.
How many callbacks are called in one turn is the caller's `Allowance`: this module knows no clock and no cost.
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
"""Seconds of waiting that the best score is worth against the worst, where some tasks are scored and others are not:
so that the units of all stand in one order in which none starves."""
BEYOND_ALL = -2.0
"""The order of units that were never asked about: before every score."""


class Allowance(msgspec.Struct, frozen=True):
    """How many units may be asked about in this turn: for the first time, and again."""

    first: int = FEW
    again: int = FEW


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What the callbacks said about a unit, and when."""

    id: str
    at: float
    ready: bool = True
    stale: bool = True
    score: float = 0.5
    why: str = ""
    """Which gate is closed, if the unit is not ready (`dependency`, `lacks`, `unseen` or `not_ready`)."""
    lacks: str = ""
    """The declared input that does not exist, if the unit is not ready because of that."""
    makes: tuple[str, ...] = ()
    """The declared outputs, if the unit is not stale."""


class Wait(msgspec.Struct, frozen=True, gc=False):
    """A unit that a gate holds back: when it was asked about, how long it rests, which gate it was."""

    asked_at: float
    rest: float
    lane: Lane
    why: str
    completions: int
    """How many units had completed when it was asked about: a count, because a clock may stand still."""
    lacks: str = ""
    """The file it waits for: a unit that completes without making that file changes nothing for it."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A unit that callbacks are being called about, and what was known of it before."""

    lane: Lane
    completions: int
    wait: Wait | None
    record: Record


class ClosedQueue:
    """What is set aside while a queue is closed: lanes with units never asked about, and units not ready."""

    __slots__ = ("lanes", "recheck", "resting")

    def __init__(self) -> None:
        self.lanes: dict[Lane, None] = {}
        self.recheck: dict[str, Wait] = {}
        self.resting: dict[str, Wait] = {}


class MissingFiles:
    """Which units wait for which file, and which files were made while callbacks were being called."""

    __slots__ = ("_many_made", "_waiting", "made")

    def __init__(self) -> None:
        self._waiting: dict[str, str | dict[str, None]] = {}
        """The ids by file: mostly one, for which a dict would be large."""
        self.made: dict[str, int] = {}
        """Files made lately, with the number of the completion that made them."""
        self._many_made = FEW

    def add(self, path: str, work_id: str) -> None:
        """Have a unit wait for that file."""
        known = self._waiting.get(path)
        if known is None:
            self._waiting[path] = work_id
        elif isinstance(known, dict):
            known[work_id] = None
        else:
            self._waiting[path] = {known: None, work_id: None}

    def drop(self, path: str, work_id: str) -> None:
        """Have a unit no longer wait for that file."""
        known = self._waiting.get(path)
        if isinstance(known, dict):
            known.pop(work_id, None)
        if not known or known == work_id:
            self._waiting.pop(path, None)

    def take(self, path: str) -> Iterable[str]:
        """Take out all units that wait for that file, in the order they came."""
        known = self._waiting.pop(path, ())
        return (known,) if isinstance(known, str) else known

    def note(self, path: str, number: int, oldest: Callable[[], int]) -> None:
        """Note which completion made that file: a callback that is being called may not have seen it yet."""
        self.made[path] = number
        if len(self.made) > self._many_made:
            least = oldest()
            self.made = {one: at for one, at in self.made.items() if at > least}
            self._many_made = max(FEW, 2 * len(self.made))


class Gates:
    """Which units were asked about, what was answered, and which have to be asked about again."""

    __slots__ = ("_again_left", "_asked", "_by_rank", "_closed", "_completions", "_file_made", "_first_unasked",
                 "_is_mixed", "_missing_files", "_numbers", "_recheck", "_records", "_resting", "_unasked",
                 "_wanted", "ready", "waiting")  # fmt: skip

    def __init__(self, records: dict[str, Record], ready: Ready, *, is_mixed: bool = False) -> None:
        """`is_mixed` says that some tasks are scored and others are not."""
        self._records = records
        self.ready = ready
        self._is_mixed = is_mixed
        self.waiting: dict[str, Wait] = {}
        self._wanted: list[Record] = []
        self._numbers = count()
        self._again_left = 0
        self._first_unasked: dict[Lane, Key] = {}
        """The place of the first unit never asked about, of each lane that has one."""
        self._unasked: list[tuple[float, int, Lane]] = []
        """These places as a heap, with outdated entries."""
        self._closed: dict[str, ClosedQueue] = {}
        self._asked: dict[str, Asked] = {}
        self._resting: dict[float, deque[tuple[str, Wait]]] = {}
        """Units that are not ready, by how long they rest: each line is in the order of its questions."""
        self._recheck: deque[tuple[str, Wait]] = deque()
        """Units that are not ready and lack no file: asked about again when any unit has completed."""
        self._completions = 0
        self._missing_files = MissingFiles()
        self._file_made: deque[tuple[str, Wait]] = deque()
        """Units whose missing file was made."""
        self._by_rank = ByRank(ready)
        ready.order_by(self)

    def arrived(self, lane: Lane, records: list[Record]) -> None:
        """Add units to their lane that wait for nothing but callbacks and limits."""
        lane.line.extend(records)
        if lane.questions.gates:
            self._note_unasked(lane, min((record.rank, record.seq) for record in records))
        else:
            self.ready.wake(lane)

    def lane_found(self, lane: Lane) -> None:
        """A lane may have units in the store that were never asked about."""
        if not lane.questions.gates:
            self.ready.wake(lane)
        else:
            self._note_unasked(lane, lane.line.key())

    def _note_unasked(self, lane: Lane, key: Key | None) -> None:
        """A unit with this key was never asked about: it may be the first of its lane."""
        first = self._first_unasked.get(lane)
        if key is not None and (first is None or key < first):
            self._first_unasked[lane] = key
            heappush(self._unasked, (*key, lane))

    def left(self, work_id: str, lane: Lane) -> None:
        """A unit has left its lane without a start: forget what was answered about it."""
        wait = self.waiting.pop(work_id, None)
        if wait is not None and wait.lacks:
            self._missing_files.drop(wait.lacks, work_id)
        lane.entries.pop(work_id, None)

    def completed(self, makes: Sequence[str] = ()) -> None:
        """A unit has completed: others that were not ready may be now; those that lack a file only if it was made."""
        self._made(makes)
        self._completions += 1

    def _made(self, paths: Sequence[str]) -> None:
        files, waiting = self._missing_files, self.waiting
        for path in paths:
            self._file_made.extend((work_id, waiting[work_id]) for work_id in files.take(path))
            if self._asked:
                files.note(path, self._completions + 1, self._asked_first)

    def _asked_first(self) -> int:
        """How many units had completed when the first of the questions under way was put."""
        return min(asked.completions for asked in self._asked.values())

    def is_asked(self, work_id: str) -> bool:
        """True while callbacks are being called about that unit."""
        return work_id in self._asked

    def has_unmet_needs(self, record: Record, lane: Lane) -> bool | None:
        """What the callbacks last said about the dependencies of that unit; None before they said anything."""
        if record.id in lane.entries:
            return False
        asked = self._asked.get(record.id)
        wait = self.waiting.get(record.id) or (None if asked is None else asked.wait)
        return None if wait is None else wait.why == "dependency"

    def answered(self, verdicts: Sequence[Verdict]) -> list[Record]:
        """Take answers in. Returns the units that are not stale: the caller skips them."""
        asked, records = self._asked, self._records
        skipped: list[Record] = []
        lanes: dict[Lane, None] = {}
        for verdict in verdicts:
            work_id = verdict.id
            question = asked.pop(work_id, None)
            if question is None:  # the callbacks have been replaced since
                continue
            lane, wait, record = question.lane, question.wait, question.record
            lanes[lane] = None
            if records.get(work_id) is not record:  # the unit has changed since
                continue
            if not verdict.ready:
                lane.entries.pop(work_id, None)
                rest = FIRST_WAIT if wait is None else min(wait.rest * GROWTH, LONGEST_WAIT)
                held = Wait(verdict.at, rest, lane, verdict.why, question.completions, verdict.lacks)
                self._hold_back(work_id, held)
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
                    lane.rotation.append(candidate)
        for lane in lanes:
            self._drop_outdated(lane)
            self.ready.wake(lane)
        if not asked:
            self._missing_files.made.clear()
        return skipped

    def _worth(self, score: float) -> float:
        """How many seconds of waiting a score is worth, where other tasks are not scored."""
        return score * SCORE_STEP if self._is_mixed else 0.0

    def begin(self, allowance: Allowance, now: float) -> None:
        """Choose the units to ask about in this turn, before any unit is started."""
        self._again_left = allowance.again
        self._ask_files_made(allowance.first)
        self._ask_first(allowance.first)
        recheck, waiting = self._recheck, self.waiting
        while recheck and self._again_left > 0:
            work_id, wait = recheck[0]
            if waiting.get(work_id) is wait:
                if wait.completions == self._completions:
                    break
                if wait.lane.queue.is_paused:
                    self._put_aside(wait.lane).recheck[work_id] = wait
                else:
                    self._ask_waiting(work_id, wait)
            recheck.popleft()
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
        """The units to ask about now, chosen by `begin` and since."""
        wanted, self._wanted = self._wanted, []
        return wanted

    @property
    def again_left(self) -> int:
        """How much of the allowance for asking again this turn has left."""
        return self._again_left

    def wakes_at(self, now: float) -> float:
        """When there is a unit to ask about again; if the allowance was spent, in a little while."""
        if self._unasked or self._file_made:
            return now + FIRST_WAIT / 5
        first = self._first_waiting(self._recheck)
        if first is not None and first.completions < self._completions:
            return now + FIRST_WAIT
        firsts = map(self._first_waiting, self._resting.values())
        at = min((wait.asked_at + wait.rest for wait in firsts if wait is not None), default=math.inf)
        return at if at > now else now + FIRST_WAIT

    def _first_waiting(self, line: deque[tuple[str, Wait]]) -> Wait | None:
        """The first entry of a line that is not outdated; those before it are dropped."""
        while line and self.waiting.get(line[0][0]) is not line[0][1]:
            line.popleft()
        return line[0][1] if line else None

    def busy_lanes(self) -> set[Lane]:
        """The lanes of all units that are or will be asked about: they must not be dropped."""
        waiting = {wait.lane for wait in self.waiting.values()}
        return waiting.union(self._first_unasked, (asked.lane for asked in self._asked.values()))

    def _ask_files_made(self, most: int) -> None:
        """Ask about units whose missing file was made, as if for the first time; in a closed queue they rest on."""
        made = self._file_made
        while made and len(self._wanted) < most:
            work_id, wait = made.popleft()
            if self.waiting.get(work_id) is wait and not wait.lane.queue.is_paused:
                del self.waiting[work_id]
                self._wanted.append(self._ask(wait.lane, self._records[work_id]))

    def _ask_first(self, most: int) -> None:
        """Ask about the best of the units never asked about, in all lanes whose queues are open."""
        first, heap = self._first_unasked, self._unasked
        while heap and len(self._wanted) < most:
            rank, seq, lane = heap[0]
            if first.get(lane) != (rank, seq):
                heappop(heap)
                continue
            if lane.queue.is_paused:
                self._put_aside(lane).lanes[lane] = None
                heappop(heap)
                continue
            head = lane.line.head()
            if head is not None and head.rank == rank and head.seq == seq:
                lane.line.pop()
                self._wanted.append(self._ask(lane, head))
                head = lane.line.head()
            if head is None:
                del first[lane]
                heappop(heap)
            else:
                first[lane] = head.rank, head.seq
                heapreplace(heap, (head.rank, head.seq, lane))

    def _put_aside(self, lane: Lane) -> ClosedQueue:
        aside = self._closed.get(lane.queue.name)
        if aside is None:
            aside = self._closed[lane.queue.name] = ClosedQueue()
        return aside

    def queue_opened(self, name: str) -> None:
        """A queue is open again: what was set aside goes back, before those that came later."""
        aside = self._closed.pop(name, None)
        if aside is None:
            return
        for lane in aside.lanes:
            heappush(self._unasked, (*self._first_unasked[lane], lane))
        self._recheck.extendleft(reversed(aside.recheck.items()))
        for work_id, wait in reversed(aside.resting.items()):
            self._resting[wait.rest].appendleft((work_id, wait))

    def _never_asked(self, lane: Lane, most: int) -> list[Record]:
        asked: list[Record] = []
        while len(asked) < most and (record := lane.line.head()) is not None:
            lane.line.pop()
            asked.append(self._ask(lane, record))
        return asked

    def _ask(self, lane: Lane, record: Record, wait: Wait | None = None) -> Record:
        self._asked[record.id] = Asked(lane, self._completions, wait, record)
        return record

    def _ask_waiting(self, work_id: str, wait: Wait) -> None:
        del self.waiting[work_id]
        if wait.lacks:
            self._missing_files.drop(wait.lacks, work_id)
        self._again_left -= 1
        self._wanted.append(self._ask(wait.lane, self._records[work_id], wait))

    def _hold_back(self, work_id: str, wait: Wait) -> None:
        self.waiting[work_id] = wait
        if wait.lacks:
            # made while it was asked about
            if self._missing_files.made.get(wait.lacks, 0) > wait.completions:
                self._file_made.append((work_id, wait))
            else:
                self._missing_files.add(wait.lacks, work_id)
        elif wait.completions == self._completions:
            self._recheck.append((work_id, wait))
        else:  # a unit completed while it was asked about: it is due at once, and those that are stand in front
            self._recheck.appendleft((work_id, wait))
        resting = self._resting.setdefault(wait.rest, deque())
        resting.append((work_id, wait))
        if max(len(self._recheck), len(resting)) > 4 * len(self.waiting) + FEW:
            self._sweep()

    def _sweep(self) -> None:
        """Drop outdated entries: keep those of units that still wait."""
        waiting = self.waiting
        entries = (entry for entry in waiting.items() if not entry[1].lacks)
        self._recheck = deque(sorted(entries, key=lambda entry: entry[1].completions))
        for rest, line in self._resting.items():
            self._resting[rest] = deque(entry for entry in line if waiting.get(entry[0]) is entry[1])

    # the choice: the methods of `Order` -------------------------------------------------------------------------

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
        """Up to `room` of the best units whose answers are fresh; None when callbacks have to be called first."""
        if not lane.questions:
            return self._by_rank.take(lane, room, now, limit)
        was_answered = lane.asked_at != math.inf  # these answers count, however long the callbacks took
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
        """Ask about the units that must be asked about before this lane starts any. True when there are some."""
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
        while lane.rotation and self._again_left > 0:
            candidate = lane.rotation.popleft()
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
        if len(lane.rotation) > most:
            lane.rotation = deque(lane.entries.values())
