"""The ready index: which of the work that could run runs next."""

import math
from collections.abc import Callable, Iterable
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runcue.core.limits.breaker import end_of
from runcue.core.limits.service import Blocked, Limits, Service
from runcue.core.model.lifecycle import move
from runcue.core.model.parse import Rate
from runcue.core.model.record import Record, Spec
from runcue.core.model.retry import Retry
from runcue.core.model.settings import Rule
from runcue.core.schedule.lane import ACTIVE, ASKING, LEAST_HOLD, Hold, Lane
from runcue.core.schedule.line import Key, Line
from runcue.core.schedule.order import ByRank
from runcue.core.schedule.ready import Ready
from tests.sample import fewer

NOW = 1_700_000_000.0
ANY = Rule(Retry())


Head = Callable[[Lane], Key | None]
Take = Callable[[Lane, int, float, Key], list[Record] | None]


class Judged(ByRank):
    """An order in which callbacks have their say."""

    def __init__(self, ready: Ready, head: Head | None, take: Take | None) -> None:
        super().__init__(ready)
        self._head, self._take = head or super().head, take or super().take

    def head(self, lane: Lane) -> Key | None:
        return self._head(lane)

    def take(self, lane: Lane, room: int, now: float, limit: Key) -> list[Record] | None:
        return self._take(lane, room, now, limit)


class Yard:
    """The index with everything around it that a scheduler would do, and a slow model of the right choice."""

    def __init__(self, **services: int | Limits) -> None:
        self.records: dict[str, Record] = {}
        self.ready = Ready(self.records)
        self.now = NOW
        self.seq = 0
        self.started: list[str] = []
        self.running: list[str] = []
        for name, limit in services.items():
            limits = limit if isinstance(limit, Limits) else Limits(name, concurrent=limit)
            self.ready.services[name] = Service(limits)

    def judge(self, head: Head | None = None, take: Take | None = None) -> None:
        """These say from now on which unit of a lane is first, and which are taken."""
        self.ready.order_by(Judged(self.ready, head, take))

    def service(self, name: str) -> Service:
        return self.ready.services[name]

    def lane(self, work_id: str) -> Lane:
        return self.ready.lane(self.records[work_id].spec, ANY)

    def submit(self, *services: str, rank: float = 0.0, queue: str = "q", task: str = "t") -> str:
        self.seq += 1
        work_id = f"{self.seq}"
        spec = Spec(work_id, task, b"{}", services, queue)
        self.records[work_id] = record = Record(work_id, spec, self.seq, rank, NOW)
        self.ready.push(self.ready.lane(record.spec, ANY), record)
        return work_id

    def choose(self) -> list[str]:
        """What starts now, in order."""
        before = len(self.started)
        self.ready.due(self.now)
        self.ready.choose(self.now, self.start)
        return self.started[before:]

    def start(self, lane: Lane, batch: list[Record]) -> None:
        assert batch
        for service in lane.services:
            service.active += len(batch)
            service.granted(len(batch))
            for _ in batch:
                service.entered(self.now)
        for record in batch:
            assert self.records[record.id] is record
            self.records[record.id] = move(record, "start", token=1)
            self.started.append(record.id)
            self.running.append(record.id)

    def end(self, work_id: str) -> None:
        """That work is over."""
        self.running.remove(work_id)
        record = self.records.pop(work_id)
        self._release(record)

    def put_back(self, work_id: str) -> None:
        """That work is to run again, at its old place."""
        self.running.remove(work_id)
        record = self.records[work_id]
        self._release(record)
        self.records[work_id] = record = move(record, "return", token=0)
        self.ready.push(self.ready.lane(record.spec, ANY), record)

    def _release(self, record: Record) -> None:
        for service in self.ready.lane(record.spec, ANY).services:
            service.active -= 1
            self.ready.touch(service)

    def cancel(self, work_id: str) -> None:
        """That pending work goes away."""
        lane = self.lane(work_id)
        del self.records[work_id]
        self.ready.left(lane)

    def pause(self, name: str, paused: bool) -> None:
        self.service(name).is_paused = paused
        self.ready.touch(self.service(name))

    # the slow model -------------------------------------------------------------------------------

    def pending(self) -> list[Record]:
        """Everything that waits, best first."""
        waiting = [record for record in self.records.values() if not record.token]
        return sorted(waiting, key=lambda record: (record.rank, record.seq))

    def heads(self) -> list[Record]:
        """The best of each lane, best first."""
        heads: dict[tuple[str, str, tuple[str, ...]], Record] = {}
        for record in self.pending():
            heads.setdefault((record.spec.task, record.spec.queue, record.spec.services), record)
        return list(heads.values())

    def can_start(self, record: Record, at: float | None = None) -> bool:
        """True when nothing but a place kept for older work could hold this back."""
        at = self.now if at is None else at
        if self.ready.queue(record.spec.queue).is_paused:
            return False
        return all(self.service(name).room(at) > 0 for name in record.spec.services)

    def is_kept_for_older(self, record: Record) -> bool:
        """True when the last unit of a service this needs is kept for a lane with an older head."""
        for name in record.spec.services:
            service = self.service(name)
            holder = service.held_by
            if holder is None or service.room(self.now) > 1:
                continue
            if (holder.rank, holder.seq) < (record.rank, record.seq):
                return True
        return False


def should_start(yard: Yard) -> list[str]:
    """What would start now, in order, if the best of all that could start were looked for every time."""
    started: list[str] = []
    used = dict.fromkeys(yard.ready.services, 0)
    waiting = yard.pending()
    while True:
        for record in waiting:
            services = [yard.service(name) for name in record.spec.services]
            if yard.can_start(record) and all(
                service.room(yard.now) - used[service.name] > 0 for service in services
            ):
                break
        else:
            return started
        waiting.remove(record)
        started.append(record.id)
        for name in record.spec.services:
            used[name] += 1


# --- Work in order of rank ------------------------------------------------------------------------


def drained(line: Line) -> list[int]:
    seqs = []
    while (record := line.head()) is not None:
        line.pop()
        seqs.append(record.seq)
    return seqs


def record_at(rank: float, seq: int) -> Record:
    return Record(f"{seq}", Spec(f"{seq}", "t", b"{}", ()), seq, rank, NOW)


@given(
    steps=st.lists(
        st.sampled_from(list(product(["push", "push", "push", "pop", "back", "leave", "take"], range(6)))),
        min_size=20,
        max_size=60,
    )
)
def test_a_line_gives_its_living_in_order_of_rank_then_of_submission(steps: list[tuple[str, int]]) -> None:
    records: dict[str, Record] = {}
    line = Line(records)
    inside: list[Record] = []
    outside: list[Record] = []
    for seq, (step, number) in enumerate(steps):
        if step == "push":
            record = records[f"{seq}"] = record_at(number, seq)
            line.push(record)
            inside.append(record)
        elif step == "back" and outside:
            old = outside.pop(number % len(outside))
            record = records[old.id] = record_at(old.rank, old.seq)
            line.push(record)
            inside.append(record)
        elif step == "leave" and inside:
            del records[inside.pop(number % len(inside)).id]
            line.left()
        elif step == "pop" and inside:
            best = min(inside, key=lambda record: (record.rank, record.seq))
            assert line.head() is best
            line.pop()
            inside.remove(best)
            outside.append(best)
        elif step == "take":
            best_first = sorted(inside, key=lambda record: (record.rank, record.seq))
            taken = [record for record in best_first if record.rank <= 3][:number]
            assert line.take(number, (3.0, 1000)) == taken
            inside = [record for record in inside if record not in taken]
            outside += taken
    inside.sort(key=lambda record: (record.rank, record.seq))
    assert drained(line) == [record.seq for record in inside]


def test_an_empty_line_has_no_head() -> None:
    assert Line({}).head() is None


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "against it"])
def test_those_who_left_a_long_line_are_let_go_of(order: int) -> None:
    records: dict[str, Record] = {}
    line = Line(records)
    for seq in range(1000):
        records[f"{seq}"] = record_at(order * seq, seq)
        line.push(records[f"{seq}"])
    for seq in range(0, 1000, 2):
        del records[f"{seq}"]
        line.left()
    kept = len(line._fifo) + len(line._early)
    assert kept == 1000
    for seq in range(1, 400, 2):
        del records[f"{seq}"]
        line.left()
    kept = len(line._fifo) + len(line._early)
    assert kept < 500
    left = list(range(401, 1000, 2))
    assert drained(line) == (left if order == 1 else left[::-1])


# --- The choice, without holds --------------------------------------------------------------------

NAMES = ["a", "b", "c"]
COMMON = ["submit"] * 6 + ["end"] * 5 + ["put back"] * 2 + ["cancel"] * 2
CHANGES = ["pause", "resume", "resume", "pause queue", "resume queue", "resume queue", "serve", "declare"]
SINGLE_STEPS = st.lists(
    st.sampled_from(
        list(product([*COMMON * 2, *["choose"] * 9, *["wait"] * 3, *CHANGES], NAMES, range(7), "qqr"))
    ),
    min_size=30,
    max_size=100,
)


def single_service_step(yard: Yard, step: str, name: str, number: int, queue: str) -> None:
    """One thing that may happen to work that needs one service, or none."""
    pending = yard.pending()
    if step == "submit":
        services = () if number == 6 else (name,)
        yard.submit(*services, rank=float(number), queue=queue, task=f"t{number % 2}")
    elif step == "end" and yard.running:
        yard.end(yard.running[number % len(yard.running)])
    elif step == "put back" and yard.running:
        yard.put_back(yard.running[number % len(yard.running)])
    elif step == "cancel" and pending:
        yard.cancel(pending[number % len(pending)].id)
    elif step in {"pause", "resume"}:
        yard.pause(name, step == "pause")
    elif step in {"pause queue", "resume queue"}:
        yard.ready.pause_queue(queue, step == "pause queue")
    elif step == "serve":
        yard.ready.serve(None if number > 1 else frozenset({queue}))
    elif step == "declare":
        rates = (Rate(number, 10.0),) if number > 3 else ()
        yard.service(name).declare(Limits(name, max(1, number), rates))
        yard.ready.touch(yard.service(name))
    elif step == "wait":
        yard.now += number


@settings(max_examples=fewer(120, 40))
@given(steps=SINGLE_STEPS, caps=st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_what_starts_is_what_a_look_at_everything_would_start_in_the_same_order(
    steps: list[tuple[str, str, int, str]], caps: list[int]
) -> None:
    yard = Yard(**dict(zip(NAMES, caps, strict=True)))
    for step, name, number, queue in [*steps, ("choose", "a", 0, "q")]:
        if step == "choose":
            expected = should_start(yard)
            assert yard.choose() == expected
        else:
            single_service_step(yard, step, name, number, queue)


@pytest.mark.no_cover
@given(steps=SINGLE_STEPS)
def test_nothing_could_start_before_the_moment_the_index_wakes_at(
    steps: list[tuple[str, str, int, str]],
) -> None:
    yard = Yard(**{name: Limits(name, rates=(Rate(2, 7.0), Rate(5, 60.0))) for name in NAMES})
    for step, name, number, queue in steps:
        if step not in {"choose", "declare"}:
            single_service_step(yard, step, name, number, queue)
            yard.choose()
            wakes_at = yard.ready.wakes_at()
            assert wakes_at > yard.now
            latest = math.nextafter(min(wakes_at, NOW * 2), 0)
            assert not any(yard.can_start(record, latest) for record in yard.heads())


def test_the_best_of_two_lanes_parked_at_one_service_go_in_turn() -> None:
    yard = Yard(a=2)
    first = [yard.submit("a"), yard.submit("a")]
    assert yard.choose() == first
    ranks = [1.0, 10.0, 2.0, 9.0]
    tasks = ["left", "left", "right", "right"]
    ids = [yard.submit("a", rank=rank, task=task) for rank, task in zip(ranks, tasks, strict=True)]
    assert yard.choose() == []
    for work_id in first:
        yard.end(work_id)
    assert yard.choose() == [ids[0], ids[2]]


def test_a_retry_keeps_its_place_among_those_submitted_at_the_same_moment() -> None:
    yard = Yard(a=1)
    ids = [yard.submit("a") for _ in range(3)]
    assert yard.choose() == [ids[0]]
    yard.put_back(ids[0])
    assert yard.choose() == [ids[0]]


def test_a_blocked_service_blocks_nobody_else() -> None:
    yard = Yard(a=1, b=1)
    blocked = [yard.submit("a") for _ in range(3)]
    free = yard.submit("b")
    assert yard.choose() == [blocked[0], free]


def test_work_that_needs_no_service_starts_at_once() -> None:
    yard = Yard()
    ids = [yard.submit() for _ in range(3)]
    assert yard.choose() == ids


def test_a_lane_takes_implicit_services_after_its_own() -> None:
    yard = Yard(a=1, threads=1)
    spec = Spec("w", "t", b"{}", ("a",))
    lane = yard.ready.lane(spec, Rule(Retry(), ("threads",)))
    assert [service.name for service in lane.services] == ["a", "threads"]
    assert repr(lane) == "<Lane t ['a', 'threads']>"


def test_a_service_named_twice_is_taken_once() -> None:
    yard = Yard(a=1)
    spec = Spec("w", "t", b"{}", ("a", "a"))
    lane = yard.ready.lane(spec, Rule(Retry(), ("a",)))
    assert lane.services == (yard.service("a"),)


def test_work_of_one_task_queue_and_services_shares_a_lane() -> None:
    yard = Yard(a=1, b=1)
    base = yard.lane(yard.submit("a"))
    assert yard.lane(yard.submit("a", rank=5.0)) is base
    others = [yard.submit("b"), yard.submit("a", queue="r"), yard.submit("a", task="u")]
    assert base not in [yard.lane(work_id) for work_id in others]


def test_the_cost_of_a_start_does_not_depend_on_how_many_lanes_wait() -> None:
    yard = Yard(a=1)
    first = yard.submit("a")
    yard.choose()
    for number in range(500):
        yard.submit("a", rank=float(number), task=f"t{number}")
    yard.choose()
    looks: list[Lane] = []

    def head_of(lane: Lane) -> Key | None:
        looks.append(lane)
        return lane.line.key()

    yard.judge(head=head_of)
    yard.end(first)
    assert len(yard.choose()) == 1
    assert len(looks) < 10


def test_entries_of_a_lane_do_not_pile_up_while_its_service_is_blocked() -> None:
    yard = Yard(a=1)
    yard.submit("a")
    yard.choose()
    lane = yard.lane(yard.submit("a"))
    yard.choose()
    for _ in range(100):
        yard.ready.wake(lane)
    assert len(yard.service("a").parked) == 1


# --- Queues ---------------------------------------------------------------------------------------


def test_a_paused_queue_starts_nothing_until_it_goes_on() -> None:
    yard = Yard(a=5)
    yard.ready.pause_queue("r", True)
    held, free = yard.submit("a", queue="r"), yard.submit("a", queue="q")
    assert yard.choose() == [free]
    yard.ready.pause_queue("r", False)
    assert yard.choose() == [held]


def test_only_the_queues_that_are_served_start_something() -> None:
    yard = Yard(a=5)
    yard.ready.serve(frozenset({"q"}))
    other, own = yard.submit("a", queue="r"), yard.submit("a", queue="q")
    assert yard.choose() == [own]
    yard.ready.serve(None)
    assert yard.choose() == [other]


def test_a_queue_that_is_paused_and_not_served_needs_both_to_change() -> None:
    yard = Yard(a=5)
    yard.ready.serve(frozenset())
    yard.ready.pause_queue("q", True)
    work_id = yard.submit("a")
    yard.ready.serve(None)
    assert yard.choose() == []
    yard.ready.pause_queue("q", False)
    assert yard.choose() == [work_id]


# --- Time -----------------------------------------------------------------------------------------


def test_a_lane_blocked_by_a_rate_starts_at_the_moment_the_window_opens() -> None:
    yard = Yard(a=Limits("a", rates=(Rate(1, 0.1),)))
    yard.now = 1_700_000_000.1
    yard.submit("a")
    second = yard.submit("a")
    assert len(yard.choose()) == 1
    assert yard.ready.limited == [(yard.service("a"), Blocked("rate", 1_700_000_000.2, "1/1 used"))]
    opens = end_of(yard.now, 0.1)
    assert yard.ready.wakes_at() == opens
    yard.now = math.nextafter(opens, 0)
    assert yard.choose() == []
    yard.now = opens
    assert yard.choose() == [second]


def test_a_lane_blocked_by_an_open_circuit_starts_at_the_moment_of_the_probe() -> None:
    yard = Yard(a=Limits("a", circuit_threshold=1, circuit_timeout=0.1))
    breaker = yard.service("a").breaker
    assert breaker is not None
    yard.now = 1_700_000_000.1
    breaker.started(yard.now)
    breaker.ended(0, False, yard.now)
    work_id = yard.submit("a")
    assert yard.choose() == []
    yard.now = yard.ready.wakes_at()
    assert yard.now == end_of(1_700_000_000.1, 0.1)
    assert yard.choose() == [work_id]


def test_a_service_that_is_still_blocked_when_its_time_comes_is_looked_at_again_later() -> None:
    yard = Yard(a=Limits("a", rates=(Rate(1, 10.0),)))
    first, second = yard.submit("a"), yard.submit("a")
    assert yard.choose() == [first]
    yard.service("a").throttle(NOW, 30.0)
    yard.now = NOW + 10
    assert yard.choose() == []
    assert yard.ready.wakes_at() == NOW + 30
    yard.now = NOW + 30
    assert yard.choose() == [second]


def test_an_earlier_time_replaces_a_later_one() -> None:
    yard = Yard(a=1)
    service = yard.service("a")
    yard.ready.wake_service(service, NOW + 20)
    yard.ready.wake_service(service, NOW + 10)
    yard.ready.wake_service(service, NOW + 30)
    assert yard.ready.wakes_at() == NOW + 10
    assert yard.ready.due(NOW + 5) == []
    assert yard.ready.due(NOW + 100) == [service]
    assert yard.ready.wakes_at() == math.inf


def test_a_time_that_was_replaced_is_forgotten() -> None:
    yard = Yard(a=1)
    service = yard.service("a")
    yard.ready.wake_service(service, NOW + 20)
    yard.ready.wake_service(service, NOW + 10)
    assert yard.ready.due(NOW + 10) == [service]
    assert yard.ready.wakes_at() == math.inf
    assert yard.ready.due(NOW + 20) == []


# --- Work that needs several services -------------------------------------------------------------

SERVICE_SETS = [names for size in (1, 2, 3) for names in permutations("abcd", size)]
MULTI_STEPS = st.lists(
    st.sampled_from(list(product([*COMMON, "pause", "resume", "resume"], SERVICE_SETS, range(9)))),
    min_size=30,
    max_size=80,
)


class StrictYard(Yard):
    """A yard that checks each single start against everything that waits."""

    def start(self, lane: Lane, batch: list[Record]) -> None:
        for record in batch:
            for other in self.heads():
                if (other.rank, other.seq) < (record.rank, record.seq) and other not in batch:
                    assert not self.can_start(other) or self.is_kept_for_older(other)
            super().start(lane, [record])

    def check_after_choice(self) -> None:
        """Nothing idles that could run, except a unit kept for older work that lacks only a running slot."""
        for head in self.heads():
            assert not self.can_start(head) or self.is_kept_for_older(head)
        for service in self.ready.services.values():
            assert 0 <= service.active <= service.cap
            if service.held_by is not None:
                self.check_hold(service)

    def check_hold(self, held: Service) -> None:
        lane = held.held_by
        assert lane is not None
        assert lane.line.key() == (lane.rank, lane.seq)
        lacking = [service for service in lane.services if service.room(self.now) <= 0]
        assert len(lacking) == 1
        assert lacking[0] is not held
        blocked = lacking[0].blocked(self.now)
        assert blocked is not None
        assert blocked.reason == "concurrency"
        assert all(service.held_by is lane for service in lane.services if service is not lacking[0])


def multi_service_step(yard: Yard, step: str, services: Iterable[str], number: int) -> None:
    """One thing that may happen to work that needs one to three services."""
    pending = yard.pending()
    if step == "submit":
        yard.submit(*services, rank=float(number))
    elif step == "end" and yard.running:
        yard.end(yard.running[number % len(yard.running)])
    elif step == "put back" and yard.running:
        yard.put_back(yard.running[number % len(yard.running)])
    elif step == "cancel" and pending:
        yard.cancel(pending[number % len(pending)].id)
    elif step in {"pause", "resume"}:
        for name in services:
            yard.pause(name, step == "pause")


CAPS = st.lists(st.integers(1, 2), min_size=4, max_size=4)


def four_services(kind: type[Yard], caps: list[int]) -> Any:
    return kind(**dict(zip("abcd", caps, strict=True)))


@pytest.mark.no_cover
@settings(max_examples=fewer(120, 40))
@given(steps=MULTI_STEPS, caps=CAPS)
def test_nothing_idles_that_could_run_except_for_older_work_that_lacks_one_running_slot(
    steps: list[tuple[str, tuple[str, ...], int]], caps: list[int]
) -> None:
    yard: StrictYard = four_services(StrictYard, caps)
    for step, services, number in steps:
        multi_service_step(yard, step, services, number)
        yard.choose()
        yard.check_after_choice()


@pytest.mark.no_cover
@settings(max_examples=fewer(120, 40))
@given(steps=MULTI_STEPS, caps=CAPS)
def test_a_choice_made_twice_chooses_nothing_more(
    steps: list[tuple[str, tuple[str, ...], int]], caps: list[int]
) -> None:
    yard = four_services(Yard, caps)
    for step, services, number in steps:
        multi_service_step(yard, step, services, number)
        yard.choose()
        assert yard.choose() == []


@pytest.mark.no_cover
@settings(max_examples=fewer(120, 40))
@given(steps=MULTI_STEPS, caps=CAPS)
def test_whatever_happened_before_all_work_runs_in_the_end(
    steps: list[tuple[str, tuple[str, ...], int]], caps: list[int]
) -> None:
    yard: StrictYard = four_services(StrictYard, caps)
    for number, (step, services, pick) in enumerate(steps):
        multi_service_step(yard, step, services, pick)
        if number % 3:
            yard.choose()
    for name in "abcd":
        yard.pause(name, False)
    yard.choose()
    while yard.running:
        yard.end(yard.running[0])
        yard.choose()
        yard.check_after_choice()
    assert yard.pending() == []


@given(
    needs=st.sampled_from([names for names in SERVICE_SETS if len(names) < 3]),
    older=st.lists(st.sampled_from(SERVICE_SETS), max_size=4),
    caps=CAPS,
    picks=st.lists(st.integers(0, 7), min_size=1, max_size=20),
)
def test_work_that_needs_two_services_does_not_starve_behind_younger_work(
    needs: tuple[str, ...], older: list[tuple[str, ...]], caps: list[int], picks: list[int]
) -> None:
    yard = four_services(Yard, caps)

    def crowd(rank: float) -> None:
        for name in "abcd":
            while sum(record.spec.services == (name,) for record in yard.pending()) < 3:
                yard.submit(name, rank=rank)

    crowd(0.0)
    yard.choose()
    for record in yard.pending():
        yard.cancel(record.id)
    for services in older:
        yard.submit(*services, rank=1.0)
    awaited = yard.submit(*needs, rank=2.0)
    rounds = 0
    while awaited not in yard.started:
        rounds += 1
        assert rounds < 150
        crowd(3.0)
        yard.choose()
        oldest = yard.running[: 1 + picks[rounds % len(picks)] % 2]
        for work_id in oldest:
            yard.end(work_id)


def test_a_thousand_works_that_need_two_services_in_either_order_all_run() -> None:
    yard = StrictYard(a=3, b=2)
    ids = [yard.submit(*("ab" if number % 2 else "ba"), rank=float(number)) for number in range(1000)]
    yard.choose()
    while yard.running:
        assert len(yard.running) == 2 or not yard.pending()
        yard.end(yard.running[0])
        yard.choose()
    assert yard.started == ids


def kept_for_two() -> tuple[Yard, str, str]:
    """`b` is taken by `other`; `both` waits for it and keeps `a`."""
    yard = Yard(a=1, b=1)
    other = yard.submit("b")
    yard.choose()
    both = yard.submit("a", "b", rank=1.0)
    assert yard.choose() == []
    assert yard.service("a").held_by is yard.lane(both)
    return yard, other, both


def test_a_unit_is_kept_for_older_work_that_lacks_one_running_slot() -> None:
    yard, other, both = kept_for_two()
    younger = yard.submit("a", rank=2.0)
    assert yard.choose() == []
    yard.end(other)
    assert yard.choose() == [both]
    yard.end(both)
    assert yard.choose() == [younger]


def test_a_unit_is_kept_for_a_while_and_then_used_by_others() -> None:
    yard, _, _ = kept_for_two()
    younger = yard.submit("a", rank=2.0)
    assert yard.choose() == []
    assert yard.ready.wakes_at() == NOW + LEAST_HOLD
    yard.now += LEAST_HOLD
    yard.ready.due(yard.now)
    assert yard.choose() == [younger]


def test_the_end_of_a_hold_is_not_forgotten_when_its_service_is_looked_at_before() -> None:
    yard, _, _ = kept_for_two()
    yard.ready.wake_service(yard.service("a"), NOW + 0.5)
    yard.now += 0.5
    yard.ready.due(yard.now)
    yard.choose()
    assert yard.ready.wakes_at() == NOW + LEAST_HOLD


def test_a_unit_is_kept_again_only_after_twice_the_time_and_then_for_longer() -> None:
    hold = Hold((1.0, 1), NOW)
    kept: list[tuple[float, float]] = []
    for second in range(100):
        is_going_on = NOW + second < hold.until
        if hold.allows(NOW + second) and not is_going_on:
            kept.append((second, hold.until - NOW - second))
    assert kept == [(0, 1.0), (2, 1.0), (4, 1.0), (8, 2.0), (16, 4.0), (32, 8.0), (64, 16.0)]


@pytest.mark.parametrize("seconds", [0.4, 3.0, 60.0])
@pytest.mark.parametrize("places", [1, 3])
def test_work_that_needs_two_services_starts_however_long_calls_take(seconds: float, places: int) -> None:
    """Both are always full of younger work that takes so long, at moments that never meet by themselves."""
    yard = Yard(a=places, b=places)
    ends: list[tuple[float, str]] = []

    def go_on() -> None:
        for name in ("a", "b"):
            while sum(record.spec.services == (name,) for record in yard.pending()) < 2:
                yard.submit(name, rank=9.0)
        yard.ready.due(yard.now)
        late = 0.5 if yard.now == NOW else 0.0  # those of b are half a call behind
        for work_id in yard.choose():
            is_b = yard.records[work_id].spec.services == ("b",)
            ends.append((yard.now + seconds * (1 + late * is_b), work_id))

    go_on()
    both = yard.submit("a", "b", rank=1.0)
    while both not in yard.started:
        ends.sort()
        yard.now = min(ends[0][0], max(yard.now, yard.ready.wakes_at()))
        assert yard.now - NOW < 20 * seconds + 20
        while ends and ends[0][0] <= yard.now:
            yard.end(ends.pop(0)[1])
        go_on()


def test_a_unit_is_not_kept_against_older_work() -> None:
    yard, _, _ = kept_for_two()
    older = yard.submit("a", rank=0.5)
    assert yard.choose() == [older]


def test_only_one_unit_is_kept() -> None:
    yard = Yard(a=3, b=1)
    yard.submit("b")
    yard.choose()
    yard.submit("a", "b", rank=1.0)
    yard.submit("a", "b", rank=1.5)
    younger = [yard.submit("a", rank=2.0) for _ in range(3)]
    assert yard.choose() == younger[:2]


def test_nothing_is_kept_for_work_that_waits_for_a_rate() -> None:
    yard = Yard(a=1, b=Limits("b", rates=(Rate(1, 60.0),)))
    yard.submit("b")
    yard.choose()
    yard.submit("a", "b", rank=1.0)
    younger = yard.submit("a", rank=2.0)
    assert yard.choose() == [younger]


def test_nothing_is_kept_for_work_that_lacks_two_services() -> None:
    yard = Yard(a=1, b=1, c=1)
    yard.submit("b")
    yard.submit("c")
    yard.choose()
    yard.submit("a", "b", "c", rank=1.0)
    younger = yard.submit("a", rank=2.0)
    assert yard.choose() == [younger]


def test_what_was_kept_is_free_when_the_work_goes_away() -> None:
    yard, _, both = kept_for_two()
    younger = yard.submit("a", rank=2.0)
    assert yard.choose() == []
    yard.cancel(both)
    assert yard.choose() == [younger]


def test_what_was_kept_passes_to_the_next_work_of_that_lane() -> None:
    yard, other, both = kept_for_two()
    follower = yard.submit("a", "b", rank=1.5)
    yard.cancel(both)
    younger = yard.submit("a", rank=2.0)
    assert yard.choose() == []
    yard.end(other)
    assert yard.choose() == [follower]
    yard.end(follower)
    assert yard.choose() == [younger]


@pytest.mark.parametrize("name", ["a", "b"])
def test_nothing_is_kept_while_one_of_the_services_is_paused(name: str) -> None:
    yard = Yard(a=1, b=1, c=1)
    yard.submit("b")
    yard.choose()
    yard.submit("a", "b", "c", rank=1.0)
    younger = yard.submit("c", rank=2.0)
    assert yard.choose() == []
    yard.pause(name, True)
    assert yard.choose() == [younger]


def test_nothing_is_kept_any_more_once_older_work_took_another_of_the_services() -> None:
    yard = Yard(a=1, b=1, c=1)
    yard.submit("b")
    yard.choose()
    yard.submit("a", "b", "c", rank=1.0)
    younger = yard.submit("c", rank=2.0)
    assert yard.choose() == []
    older = yard.submit("a", rank=0.5)
    assert yard.choose() == [older, younger]


def test_older_work_takes_over_what_was_kept_and_nothing_stays_kept_for_the_younger() -> None:
    yard = Yard(a=1, b=1, c=1, d=1)
    yard.submit("b")
    yard.submit("d")
    yard.choose()
    yard.submit("a", "b", "c", rank=2.0)
    single = yard.submit("c", rank=3.0)
    assert yard.choose() == []
    older = yard.submit("a", "d", rank=1.0)
    assert yard.choose() == [single]
    assert yard.service("a").held_by is yard.lane(older)


def test_nothing_is_kept_for_a_lane_whose_work_no_longer_passes_its_callbacks() -> None:
    yard, _, both = kept_for_two()
    younger = yard.submit("a", rank=2.0)
    assert yard.choose() == []
    refused = yard.lane(both)
    yard.judge(head=lambda lane: None if lane is refused else lane.line.key())
    yard.ready.wake(refused)
    assert yard.choose() == [younger]


def asked_about() -> tuple[Yard, str, str]:
    """`both` keeps `a`, has found `b` free, and is being asked about; `younger` needs `a` alone."""
    yard, other, both = kept_for_two()
    younger = yard.submit("a", rank=2.0)
    asked = yard.lane(both)

    def take(lane: Lane, room: int, now: float, limit: Key) -> list[Record] | None:
        return None if lane is asked else lane.line.take(room, limit)

    yard.judge(take=take)
    yard.end(other)
    assert yard.choose() == []
    assert asked.where is ASKING
    return yard, both, younger


def test_what_was_kept_stays_kept_while_its_work_is_asked_about() -> None:
    yard, both, _ = asked_about()
    assert yard.choose() == []
    yard.judge()
    yard.ready.wake(yard.lane(both))
    assert yard.choose() == [both]


def test_what_was_kept_is_free_when_its_work_goes_away_while_it_is_asked_about() -> None:
    yard, both, younger = asked_about()
    yard.cancel(both)
    assert yard.choose() == [younger]


def test_a_younger_head_of_a_lane_keeps_less_than_the_one_it_had() -> None:
    yard, _, both = kept_for_two()
    middle = yard.submit("a", rank=2.0)
    assert yard.choose() == []
    lane = yard.lane(both)
    yard.judge(head=lambda asked: (3.0, 99) if asked is lane else asked.line.key())
    yard.ready.wake(lane)
    assert yard.choose() == [middle]


def test_older_work_joins_a_lane_that_waits_behind_a_kept_unit_and_starts() -> None:
    yard, _, _ = kept_for_two()
    yard.submit("a", rank=2.0)
    assert yard.choose() == []
    older = yard.submit("a", rank=0.5)
    assert yard.choose() == [older]


def test_a_kept_unit_is_not_taken_by_younger_work_that_follows_older_work_of_its_lane() -> None:
    yard = Yard(a=2, b=1)
    yard.submit("b")
    yard.choose()
    yard.submit("a", "b", rank=2.0)
    assert yard.choose() == []
    older, _ = yard.submit("a", rank=1.0), yard.submit("a", rank=3.0)
    assert yard.choose() == [older]


def test_who_waits_for_a_unit_that_is_kept_for_older_work_keeps_nothing() -> None:
    yard = Yard(a=1, b=1, c=1)
    holder, blocker = yard.submit("b"), yard.submit("c")
    yard.choose()
    yard.submit("a", "b", rank=3.0)
    single = yard.submit("a", rank=4.0)
    assert yard.choose() == []
    yard.submit("b", "c", rank=2.0)
    yard.submit("b", rank=2.5)
    assert yard.choose() == []
    yard.end(holder)
    assert yard.choose() == [single]
    assert blocker in yard.running


def test_the_better_of_two_parked_lanes_starts_when_the_head_of_the_other_went_away() -> None:
    yard = Yard(a=1)
    first = yard.submit("a")
    yard.choose()
    gone, late = yard.submit("a", rank=1.0, task="u"), yard.submit("a", rank=3.0, task="u")
    between = yard.submit("a", rank=2.0, task="v")
    assert yard.choose() == []
    yard.cancel(gone)
    yard.end(first)
    assert yard.choose() == [between]
    yard.end(between)
    assert yard.choose() == [late]


# --- Lanes whose work is judged elsewhere ---------------------------------------------------------


def test_a_lane_that_has_to_be_asked_about_waits_until_it_is_woken() -> None:
    yard = Yard(a=1)
    work_id = yard.submit("a")
    answers: list[Any] = [None]

    def take(lane: Lane, room: int, now: float, limit: Key) -> list[Record] | None:
        return answers.pop() if answers else lane.line.take(room, limit)

    yard.judge(take=take)
    assert yard.choose() == []
    assert yard.choose() == []
    yard.ready.wake(yard.lane(work_id))
    assert yard.choose() == [work_id]


def test_a_lane_whose_head_changed_is_put_where_its_new_head_belongs() -> None:
    yard = Yard(a=5)
    first, second = yard.submit("a", rank=1.0), yard.submit("a", rank=3.0)
    between = yard.submit("a", rank=2.0, task="u")
    yard.cancel(first)
    assert yard.choose() == [between, second]


def test_a_lane_whose_last_work_went_away_is_empty_and_can_be_used_again() -> None:
    yard = Yard(a=1)
    yard.cancel(yard.submit("a"))
    assert yard.choose() == []
    work_id = yard.submit("a")
    assert yard.choose() == [work_id]


def test_the_next_lane_is_offered_when_the_best_at_a_service_turns_out_empty() -> None:
    yard = Yard(a=1)
    first = yard.submit("a")
    yard.choose()
    gone, second = yard.submit("a", rank=1.0, task="u"), yard.submit("a", rank=2.0, task="v")
    assert yard.choose() == []
    yard.cancel(gone)
    yard.end(first)
    assert yard.choose() == [second]


def test_cleared_lanes_are_empty_and_keep_nothing() -> None:
    yard, _, both = kept_for_two()
    single = yard.submit("a", rank=2.0)
    yard.choose()
    yard.ready.clear()
    assert yard.choose() == []
    assert yard.service("a").held_by is None
    for work_id in (both, single):
        yard.ready.push(yard.lane(work_id), yard.records[work_id])
    assert yard.lane(single).where is ACTIVE
    assert yard.choose() == []
    assert yard.service("a").held_by is yard.lane(both)


def test_lanes_with_the_same_key_are_in_no_order() -> None:
    yard = Yard(a=1)
    left, right = yard.lane(yard.submit("a")), yard.lane(yard.submit("a", task="u"))
    assert not left < right
    assert not right < left


def test_better_and_better_work_of_a_parked_lane_does_not_pile_up_where_it_waits() -> None:
    yard = Yard(a=1)
    yard.ready.pause_queue("q", True)
    queue = yard.ready.queue("q")
    other = yard.submit("a", rank=1.0, task="u")
    yard.choose()
    for number in range(5000):
        yard.submit("a", rank=-float(number))
        if number == 0:
            yard.choose()
    assert len(queue.parked) < 200
    yard.ready.pause_queue("q", False)
    assert yard.choose() == ["5001"]
    assert yard.records[other].token == 0


def test_better_and_better_work_of_a_lane_that_might_start_does_not_pile_up() -> None:
    yard = Yard(a=1)
    first = yard.submit("a", rank=1.0, task="u")
    for number in range(5000):
        yard.submit("a", rank=-float(number))
    assert len(yard.ready._active) < 200
    assert yard.choose() == ["5001"]
    assert yard.records[first].token == 0


def test_there_is_no_lane_for_a_service_that_nobody_knows() -> None:
    with pytest.raises(KeyError, match="nobody"):
        Yard(a=1).submit("nobody")
