"""Draws the world of one seed of the swarm: its services and tasks, what is submitted and done, what goes wrong.

Rules:
- Each purpose has a random stream of its own, named after the seed: drawing more for one purpose leaves the others
  as they were.
- Each seed has some kinds of faults and lacks others, because one fault may hide a mistake that another shows.
- Times lie on a grid of 0.25 s, which adds up without rounding: what happens at one moment is decided in one turn,
  and turns are what costs time. Jitter and the power backoff leave the grid.
- Whatever could wait for ever has a timeout, so that every world comes to rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from runcue import Retry
from runcue.sim.config import BACKOFFS, RetryConfig, ServiceConfig
from runcue.sim.limits import Adaptive, Total, windows
from runcue.sim.promise import Rules, Task, fits, limits_of
from runcue.sim.timetable import MISSED, OVERLAP, ScheduleConfig

FAULTS: Final = ("commit_failed", "commit_unanswered", "disk_full", "crash", "submit_cut", "clock_forward",
                 "clock_back", "slow", "hang", "swallow", "refused", "key_race", "id_race")  # fmt: skip
"""Every kind of fault. A commit that is `unanswered` took place, and its process was told that it failed."""
COMMITS: Final = FAULTS[:3]
GRID: Final = 0.25
BUSY: Final = 5
"""For how many steps of the grid things are done."""
PRIORITIES: Final = (0, 0, 0, 0, 0, 0, -2, 1, 2, 4)
MOODS: Final = {
    "slow": 0.04,
    "hang": 0.04,
    "swallow": 0.05,
    "dies at once": 0.01,
    "dies at last": 0.01,
    "commit_failed": 0.01,
    "commit_unanswered": 0.01,
    "disk_full": 0.01,
}
"""What handlers do besides their task, and how often in a world where they do it at all."""
REFUSED: Final = 0.08
"""How often a service refuses a call, in a world with an adaptive concurrency."""
METERED, KEYED, GROUPED, ADAPTIVE, SCHEDULED = 0.25, 0.2, 0.2, 0.2, 0.25
"""The share of worlds with a quantity, with keys, with a group of services, with an adaptive concurrency, with
schedules."""
LONGER: Final = 24
"""For how many steps of the grid there are troubles in a world with schedules, whose slots are a second apart."""
QUANTITY: Final = "tokens"
COSTS: Final = (0, 2.5, 4, 7.3, 10, 10, 15, 40)
"""What units are expected to use of the quantity."""
GROUP: Final = "g_*"
PER: Final = "account"
"""The param that tells keys apart."""


class Kind(msgspec.Struct, frozen=True):
    """A task: what it uses, how it is retried, how long it may take, how often it fails."""

    uses: tuple[str, ...]
    retry: Retry
    timeout: float | None
    error_rate: float
    has_cost: bool = False
    accounts: int = 0
    """How many keys there are, where it uses a service that has some."""


class Item(msgspec.Struct, frozen=True):
    """One unit to be submitted."""

    id: str
    task: str
    depends_on: tuple[str, ...] = ()
    priority: float = 0.0
    key: str | None = None
    delay: float | None = None
    run_in: float | None = None
    is_raced: bool = False
    """True when another node submits the same id."""
    cost: float = 0
    account: str = ""

    def options(self, wall: float) -> dict[str, Any]:
        """The options of `cue.submit`."""
        return {
            "task": self.task,
            "params": {PER: self.account, "cost": self.cost},
            "id": self.id,
            "depends_on": list(self.depends_on),
            "dependency_timeout": 2.0 if self.depends_on else None,
            "priority": self.priority,
            "idempotency_key": self.key,
            "delay": self.delay,
            "run_at": None if self.run_in is None else wall + self.run_in,
        }


class Act(msgspec.Struct, frozen=True):
    """One thing that is done, or that goes wrong, at a moment; what the rest means depends on the kind."""

    at: float
    kind: str
    node: int = 0
    items: tuple[Item, ...] = ()
    steps: int = 0
    seconds: float = 0.0
    target: str = ""
    cascade: bool = False
    service: ServiceConfig | None = None


class Mood(msgspec.Struct, frozen=True):
    """What a handler does in one attempt, and how long that lasts."""

    kind: str
    lasts: float


class Trial(msgspec.Struct):
    """The world of a seed, before it is played."""

    seed: int
    nodes: int
    services: dict[str, ServiceConfig]
    tasks: dict[str, Kind]
    acts: list[Act]
    moods: dict[str, float]
    down: list[float]
    """How long a node is down, one after the other."""
    age_step: float
    poison: str = ""
    """The unit that kills every process that runs it."""
    schedules: dict[str, ScheduleConfig] = {}

    def rules(self) -> Rules:
        """What the checker holds this world to."""
        return Rules(
            {name: limits_of(service) for name, service in self.services.items()},
            {name: Task(kind.uses, kind.retry) for name, kind in self.tasks.items()},
            self.age_step,
            self.schedules,
        )

    def mood(self, work_id: str, task: str, attempt: int) -> Mood:
        """What the handler does in that attempt of that unit."""
        if work_id == self.poison:
            return Mood("dies at once", 0.0)
        random = Random(f"{self.seed}/{work_id}/{attempt}")
        kind, lasts = self.tasks[task], random.choice((0.25, 0.25, 0.25, 0.5))
        lot = random.random()
        for name, share in self.moods.items():
            lot -= share
            if lot < 0:
                if name in {"hang", "swallow"} and kind.timeout is None:
                    break
                return Mood(name, random.choice((0.75, 1.0)) if name in {"slow", "swallow"} else lasts)
        if random.random() < kind.error_rate:
            return Mood("permanent" if random.random() < 0.1 else "error", lasts)
        return Mood("", lasts)

    def charges(self, work_id: str, attempt: int, cost: float) -> tuple[float | None, float | None]:
        """What the handler says that it used, when it begins and when it ends; None where it says nothing."""
        random = Random(f"{self.seed}/{work_id}/{attempt}/charges")
        usual = cost or COSTS[1]
        less, more = random.choice((0, usual / 4, usual / 2)), random.choice((usual, usual * 1.5, usual * 2))
        return random.choice(((None, None), (None, less), (None, more), (more, None), (less, more)))

    def company(self, work_id: str) -> list[str]:
        """A unit and all that depend on it, directly or not."""
        found = [work_id]
        for one in found:
            for act in self.acts:
                found += [item.id for item in act.items if one in item.depends_on and item.id not in found]
        return found


def draw(seed: int) -> Trial:
    """The world of a seed."""
    random = Random(f"{seed}/world")
    services = {f"s{place}": _service(random) for place in range(random.randint(1, 3))}
    tasks = {f"t{place}": _task(random, list(services)) for place in range(random.randint(2, 3))}
    _group(Random(f"{seed}/group"), services, tasks)
    _meter(Random(f"{seed}/quantity"), services, tasks)
    _divide(Random(f"{seed}/keys"), services, tasks)
    chosen = Random(f"{seed}/moods")
    moods = {name: share for name, share in MOODS.items() if chosen.random() < 0.5}
    if _adapt(Random(f"{seed}/adaptive"), services, tasks):
        moods["refused"] = REFUSED
    nodes = random.choices((2, 3, 4), (84, 12, 4))[0]
    works = random.choices((50, 60, 100), (92, 6, 2))[0]
    schedules = _schedules(Random(f"{seed}/every"), list(tasks))
    drawing = _Acts(seed, nodes, tasks, services)
    acts = drawing.draw(works, Random(f"{seed}/later") if schedules else None)
    return Trial(
        seed,
        nodes,
        services,
        tasks,
        acts,
        moods,
        down=[random.choice((0.25, 0.25, 0.5, 1.0)) for _ in range(8)],
        age_step=random.choice((0.25, 0.5, 2.0)),
        poison=f"w{random.randrange(works)}" if random.random() < 0.15 else "",
        schedules=schedules,
    )


def _rates(limits: Iterable[tuple[int, float]]) -> list[str]:
    """Numbers and windows in seconds as a configuration has them."""
    return [f"{most}/{window:g}s" for most, window in limits]


def _service(random: Random) -> ServiceConfig:
    window = random.choice((0.5, 0.75, 1.0))
    rates = [] if random.random() < 0.4 else [(round(random.randint(14, 30) * window), window)]
    if rates and random.random() < 0.2:
        rates.append((rates[0][0] * 2, window * 3))
    concurrent = None if rates and random.random() < 0.3 else random.randint(4, 11)
    threshold = random.randint(2, 4) if random.random() < 0.4 else None
    return ServiceConfig(
        rates=_rates(rates),
        concurrent=concurrent,
        circuit_threshold=threshold,
        circuit_timeout=random.choice((0.5, 0.75)),
    )


def _task(random: Random, services: list[str]) -> Kind:
    uses = random.sample(services, 2 if len(services) > 1 and random.random() < 0.3 else 1)
    retry = RetryConfig(
        max_attempts=random.randint(1, 3),
        backoff=random.choice(BACKOFFS),
        base_delay=random.choice((0.25, 0.5)),
        max_delay=0.75,
        jitter=random.random() < 0.2,
    )
    timeout = random.choice((None, 0.5, 0.75))
    return Kind(tuple(uses), retry.policy(), timeout, random.choice((0.0, 0.1, 0.25)))


def _group(random: Random, services: dict[str, ServiceConfig], tasks: dict[str, Kind]) -> None:
    """Perhaps let some tasks use any one of several services."""
    if random.random() >= GROUPED:
        return
    for place in range(random.randint(2, 3)):
        services[GROUP.replace("*", str(place))] = replace(_service(random), concurrent=random.randint(2, 5))
    for name in random.sample(list(tasks), random.randint(1, len(tasks))):
        tasks[name] = replace(tasks[name], uses=(GROUP, *tasks[name].uses[1:]))


def _meter(random: Random, services: dict[str, ServiceConfig], tasks: dict[str, Kind]) -> None:
    """Perhaps let a service limit a quantity."""
    if random.random() >= METERED:
        return
    name = random.choice(_used(services, tasks))
    services[name] = replace(services[name], quantities={QUANTITY: _amounts(random)})
    for task, kind in tasks.items():
        if any(fits(name, use) for use in kind.uses):
            tasks[task] = replace(kind, has_cost=True)


def _amounts(random: Random) -> list[str]:
    window = random.choice((0.5, 0.75, 1.0))
    most = round(random.randint(14, 30) * window * 11)
    second = [(most * 2, window * 3)] if random.random() < 0.2 else []
    return _rates([(most, window), *second])


def _divide(random: Random, services: dict[str, ServiceConfig], tasks: dict[str, Kind]) -> None:
    """Perhaps give a service its limits for each key."""
    names = [name for name in _used(services, tasks) if not fits(name, GROUP)]
    if not names or random.random() >= KEYED:
        return
    name = random.choice(names)
    accounts, service = random.randint(2, 4), services[name]
    each = _rates((max(4, most * 2 // 3), window) for most, window in service.windows())
    concurrent, rates = random.choice(((None, []), (6, []), (None, ["16/0.75s"]), (8, ["20/1s"])))
    amounts = {QUANTITY: _amounts(random)} if service.quantities and random.random() < 0.5 else {}
    places = None if service.concurrent is None else random.randint(2, 5)
    total = Total(concurrent=concurrent, rates=rates, quantities=amounts)
    services[name] = replace(service, rates=each, concurrent=places, per=PER, total=total)
    for task, kind in tasks.items():
        if name in kind.uses:
            tasks[task] = replace(kind, accounts=accounts)


def _adapt(random: Random, services: dict[str, ServiceConfig], tasks: dict[str, Kind]) -> bool:
    """Perhaps make the concurrency of a service adaptive; True when one is."""
    names = [name for name in _used(services, tasks) if services[name].total is None]
    if not names or random.random() >= ADAPTIVE:
        return False
    name, low = random.choice(names), random.randint(1, 2)
    start = random.randint(low, 5)
    bounds = Adaptive(min=low, start=start, max=random.randint(start, 9))
    services[name] = replace(services[name], concurrent=None, adaptive=bounds)
    return True


def _schedules(random: Random, tasks: list[str]) -> dict[str, ScheduleConfig]:
    """Perhaps have some schedules, of the tasks that there are."""
    if random.random() >= SCHEDULED:
        return {}
    found = {}
    for place in range(random.randint(1, 3)):
        missed = random.choice(MISSED)
        every = random.choice((1.0, 1.0, 1.5, None))
        # A clock that jumps by an hour makes slots that all count: there may not be one in every second of it.
        cron = random.choice(("* * * * * *", "*/2 * * * * *")) if missed != "all" else "*/10 * * * *"
        found[f"every{place}" if every else f"cron{place}"] = ScheduleConfig(
            every=every,
            cron=None if every else cron,
            overlap=random.choice(OVERLAP),
            missed=missed,
            jitter=random.choice((0.0, 0.0, 0.5)),
            task=random.choice(tasks),
        )
    return found


def _used(services: dict[str, ServiceConfig], tasks: dict[str, Kind]) -> list[str]:
    """The services that some task uses."""
    uses = {use for kind in tasks.values() for use in kind.uses}
    return [name for name in services if any(fits(name, use) for use in uses)]


class _Acts:
    """Draws the acts of a world."""

    def __init__(
        self, seed: int, nodes: int, tasks: dict[str, Kind], services: dict[str, ServiceConfig]
    ) -> None:
        self._seed = seed
        self._nodes = nodes
        self._kinds = tasks
        self._tasks = list(tasks)
        self._costs = Random(f"{seed}/costs")
        self._services = services
        self._random = Random(f"{seed}/works")
        self._acts: list[Act] = []
        self._ids: list[str] = []
        self._hopeful: set[str] = set()
        """Units that depend on later ones: nothing depends on them, so that there is no cycle."""

    def draw(self, works: int, later: Random | None) -> list[Act]:
        """Draw so many units and all else that happens, in order of time; more of it later on, if asked for."""
        random = self._random
        step = 0
        while works > 0:
            items = tuple(self._item() for _ in range(min(random.randint(8, 16), works)))
            works -= sum(item.key is None for item in items)  # the others may be one and the same
            self._acts.append(Act(step * GRID, "submit", random.randrange(self._nodes), items))
            step = min(BUSY, step + 1)
        self._races(Random(f"{self._seed}/races"))
        self._troubles(Random(f"{self._seed}/troubles"))
        self._operate(Random(f"{self._seed}/operators"))
        if later is not None:
            for _ in range(later.randint(2, 5)):
                kind = later.choice(("crash", "crash", *COMMITS, "clock_forward", "clock_back"))
                seconds = later.choice((0.5, 1.5, 3600.0)) * (1 if kind == "clock_forward" else -1)
                at, node = later.randint(BUSY, LONGER) * GRID, later.randrange(self._nodes)
                self._acts.append(Act(at, kind, node, seconds=seconds))
        return sorted(self._acts, key=lambda act: act.at)

    def _item(self) -> Item:
        random = self._random
        known = self._ids
        work_id = f"w{len(known)}"
        depends_on: tuple[str, ...] = ()
        recent = [one for one in known[-12:] if one not in self._hopeful]
        if recent and random.random() < 0.3:
            depends_on = tuple(sorted(set(random.choices(recent, k=random.choice((1, 1, 2))))))
        elif random.random() < 0.03:
            depends_on = (f"w{len(known) + random.randint(1, 12)}",)
            self._hopeful.add(work_id)
        task, lot = random.choice(self._tasks), random.random()
        known.append(work_id)
        return self._priced(
            Item(
                work_id,
                task,
                depends_on,
                random.choice(PRIORITIES),
                f"{task} {random.randrange(2)}" if lot < 0.06 else None,
                random.choice((0.25, 0.5)) if 0.06 < lot < 0.1 else None,
                random.choice((0.5, 1.0)) if 0.1 < lot < 0.14 else None,
            )
        )

    def _priced(self, item: Item) -> Item:
        """An item with its cost and its account."""
        kind, random = self._kinds[item.task], self._costs
        if item.key is not None:  # which means the same unit, whoever submits it
            random = Random(f"{self._seed}/{item.key}/costs")
            item = replace(item, depends_on=())
        if kind.has_cost:
            item = replace(item, cost=random.choice(COSTS))
        return replace(item, account=f"k{random.randrange(kind.accounts)}") if kind.accounts else item

    def _moment(self, random: Random) -> float:
        return random.randint(1, BUSY) * GRID

    def _races(self, random: Random) -> None:
        for _ in range(random.choice((0, 1, 2))):
            task, name = random.choice(self._tasks), f"race{len(self._ids)}"
            items = tuple(self._priced(Item(f"{name}{place}", task, key=name)) for place in "ab")
            self._acts.append(Act(self._moment(random), "key_race", random.randrange(self._nodes), items))
            self._ids += [item.id for item in items]
        for _ in range(random.choice((0, 1))):
            item = self._priced(Item(f"twin{len(self._ids)}", random.choice(self._tasks), is_raced=True))
            act = Act(self._moment(random), "id_race", random.randrange(self._nodes), (item, item))
            self._acts.append(act)
            self._ids.append(item.id)

    def _troubles(self, random: Random) -> None:
        kinds = [*COMMITS, "crash", "crash", "submit_cut", "clock_forward", "clock_back"]
        for kind in random.sample(kinds, random.randint(1, 3)):
            seconds = random.choice((0.5, 3600.0)) * (1 if kind == "clock_forward" else -1)
            cut = range(3 if kind == "submit_cut" else 0)
            items = tuple(self._priced(Item(f"cut{place}", random.choice(self._tasks))) for place in cut)
            at, node, steps = self._moment(random), random.randrange(self._nodes), random.randint(0, 4)
            self._acts.append(Act(at, kind, node, items, steps, seconds))

    def _operate(self, random: Random) -> None:
        """Draw what operators do while the queue runs."""
        services = self._services
        for _ in range(random.choice((0, 1, 3))):
            target, cascade = random.choice(self._ids), random.random() < 0.3
            self._add(random, "cancel", target=target, cascade=cascade)
        for _ in range(random.choice((0, 1, 2))):
            self._add(random, "retry", steps=random.randrange(100), cascade=random.random() < 0.3)
        if random.random() < 0.3:
            target = random.choice([*services, "default"])
            self._add(random, "pause", target=target, seconds=random.choice((0.25, 0.5)))
        if random.random() < 0.3:
            name = random.choice(list(services))
            service = services[name]
            rates = _rates(
                (max(4, most + random.randint(-6, 6)), window) for most, window in service.windows()
            )
            concurrent = None if service.concurrent is None else random.randint(2, 8)
            amounts = {
                name: _rates(
                    (max(60, most + random.randint(-40, 40)), window) for most, window in windows(texts)
                )
                for name, texts in service.quantities.items()
            }
            changed = replace(service, rates=rates, concurrent=concurrent, quantities=amounts)
            self._add(random, "limits", target=name, service=changed)
        if random.random() < 0.15:
            self._add(random, "leave")

    def _add(self, random: Random, kind: str, **more: Any) -> None:
        self._acts.append(Act(self._moment(random), kind, random.randrange(self._nodes), **more))
