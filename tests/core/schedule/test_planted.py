"""Mistakes planted in how processes share a queue, one at a time: the swarm of the core, or a test of one rule, finds
each; without it the same run finds nothing."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from runcue.core.ledger.fleet import Fleet
from runcue.core.ledger.ledger import Ledger
from runcue.core.schedule import takeover
from runcue.core.schedule.plan import Changes, Hello, Item, Key, Outcome, Plan, Post
from runcue.core.schedule.scheduler import Scheduler
from tests.core.ledger import test_fleet
from tests.core.library import Process, Shared
from tests.core.schedule import test_takeover
from tests.core.schedule.test_shared_swarm import STEPS, Swarm
from tests.mistakes import given_to_two

SEEDS = 60
"""How many seeds may pass before a mistake is found."""

Plant = Callable[[pytest.MonkeyPatch], None]


def taken_back_and_begun(patch: pytest.MonkeyPatch) -> None:
    """What is taken back of what a process has not read is left where it reads it."""
    keep = Shared.keep

    def forgetful(self: Shared, plan: Plan) -> dict[str, Key | None]:
        self.taken_back.clear()
        return keep(self, plan)

    patch.setattr(Shared, "keep", forgetful)


def letters_kept(patch: pytest.MonkeyPatch) -> None:
    """What a process has read is read once more."""
    read = Process.read

    def again(self: Process, is_heard: bool = True) -> None:
        letters = self.store.letters.get(self.tag, [])
        read(self, is_heard)
        if letters and not self.store.letters.get(self.tag):
            self.store.letters[self.tag] = letters

    patch.setattr(Process, "read", again)


def posts_kept(patch: pytest.MonkeyPatch) -> None:
    """A post that was taken is taken once more."""
    turn = Process.turn
    taken: set[tuple[str, int]] = set()

    def again(self: Process, *items: Item, **how: Any) -> Plan:
        posts = [post for post in self.store.inbox if (post.worker, post.number) not in taken]
        plan = turn(self, *items, **how)
        if not any(post in self.store.inbox for post in posts):
            taken.update((post.worker, post.number) for post in posts)
            self.store.inbox = [*posts, *self.store.inbox]
        return plan

    patch.setattr(Process, "turn", again)


def answers_dropped(patch: pytest.MonkeyPatch) -> None:
    """A post is taken, and how an attempt in it ended is not."""
    take = Scheduler.take_posts

    def careless(self: Scheduler, posts: Iterable[Post]) -> None:
        left = [[item for item in post.items if type(item) is not Outcome] for post in posts]
        take(self, [Post(post.worker, post.number, items) for post, items in zip(posts, left, strict=True)])

    patch.setattr(Scheduler, "take_posts", careless)


def begun_before_commit(patch: pytest.MonkeyPatch) -> None:
    """What a turn starts is begun though it is not kept."""
    turn = Process.turn

    def hasty(self: Process, *items: Item, is_kept: bool = True, **how: Any) -> Plan:
        plan = turn(self, *items, is_kept=is_kept, **how)
        if not is_kept:
            self.begun, self.questioned = [], []
            self._open(plan)
        return plan

    patch.setattr(Process, "turn", hasty)


def two_deciders(patch: pytest.MonkeyPatch) -> None:
    """Who decided once goes on, whoever has decided since, without reading anything anew."""
    patch.setattr(Process, "decides", property(lambda self: self._seen is not None))


def unbegun_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a process was to run, and never heard of, is taken for running."""
    take_up = takeover._take_up

    def trusting(ledger: Ledger, member: Any) -> None:
        ledger.inherited._about_to_begin |= {
            one.token for one in ledger.working.under(f"running/{member.id}")
        }
        take_up(ledger, member)

    patch.setattr(takeover, "_take_up", trusting)


def runs_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who takes over does not know what runs in its own process."""
    patch.setattr(Scheduler, "adopt", lambda self, attempts, items: None)


def begun_and_put_back(patch: pytest.MonkeyPatch) -> None:
    """Who takes over puts back what it was given, and begins it as well."""
    begins = Scheduler.begins
    patch.setattr(Scheduler, "begins", lambda self, given, posts: begins(self, (), posts))


SWARMED: tuple[Plant, ...] = (taken_back_and_begun, letters_kept, posts_kept, given_to_two, answers_dropped,
                              begun_before_commit, two_deciders, unbegun_forgotten, runs_forgotten,
                              begun_and_put_back)  # fmt: skip


def play(seed: int) -> None:
    """One seed from beginning to end."""
    swarm = Swarm(seed)
    for _ in range(STEPS):
        swarm.step()
    swarm.drain()


@pytest.mark.parametrize("plant", SWARMED, ids=[plant.__name__ for plant in SWARMED])
def test_the_swarm_of_the_core_finds_a_planted_mistake(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        with monkeypatch.context() as planted:
            plant(planted)
            try:
                play(seed)
            except (AssertionError, KeyError):  # what the swarm, or the core itself, does not put up with
                is_found = True
            else:
                is_found = False
        if is_found:
            play(seed)  # without it nothing is wrong
            return
    pytest.fail(f"no seed below {SEEDS} gave it away")


# mistakes that one rule gives away --------------------------------------------------------------------------


def left_outcomes_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who takes over does not know of what it ran that its outcome is in the inbox."""
    begins = Scheduler.begins
    patch.setattr(Scheduler, "begins", lambda self, given, posts: begins(self, given, ()))


def rules_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who takes over does not know what others declared."""
    catch_up = takeover.catch_up

    def blind(ledger: Ledger, changes: Changes) -> None:
        changes.tasks.clear()
        catch_up(ledger, changes)

    patch.setattr(takeover, "catch_up", blind)


def unread_left_alone(patch: pytest.MonkeyPatch) -> None:
    """What a process has not read stays with it, however long."""
    patch.setattr(Fleet, "unread", lambda self, now: [])


def greetings_ignored(patch: pytest.MonkeyPatch) -> None:
    """What a process tells of itself by post is not taken in."""
    greet = Scheduler.greet

    def deaf(self: Scheduler, items: Iterable[Item], posts: Iterable[Post]) -> None:
        greet(self, [item for item in items if type(item) is Hello], ())

    patch.setattr(Scheduler, "greet", deaf)


SINGLE: dict[Plant, Callable[[], None]] = {
    left_outcomes_forgotten:
        test_takeover.test_what_ended_and_left_its_outcome_is_not_put_back_when_its_own_process_takes_over,
    rules_forgotten: test_takeover.test_who_takes_over_knows_rules_services_workers_and_what_runs,
    unread_left_alone: test_fleet.test_what_was_given_and_not_read_is_taken_back_and_counts_no_attempt,
    greetings_ignored: test_fleet.test_work_goes_only_to_who_knows_its_task,
}  # fmt: skip


@pytest.mark.parametrize("plant", SINGLE, ids=[plant.__name__ for plant in SINGLE])
def test_a_test_of_one_rule_finds_a_planted_mistake(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    test = SINGLE[plant]
    test()
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        test()
