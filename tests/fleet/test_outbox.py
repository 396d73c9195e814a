"""What a process left for whoever decides: taken once, answered once, left again if the one who took it is gone."""

import asyncio
from typing import Any

import pytest

from runcue.core.model.record import Spec
from runcue.core.model.state import NO_HEAD
from runcue.core.schedule.plan import Cancel, Item, Plan, Submit, Withdraw
from runcue.engine.outbox import Outbox
from runcue.engine.replies import Replies
from runcue.errors import QueueFull, StoreError
from runcue.ports import Received


class Office:
    """An outbox, and those who wait for answers."""

    def __init__(self, *, is_refusing: bool = False) -> None:
        self.replies = Replies(asyncio.get_running_loop())
        self.outbox = Outbox(self.replies, is_refusing=is_refusing)

    def ask(self, item: Item) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.replies.to(item))

    async def leave(self, *items: Item, decider: str | None = "other") -> int:
        await asyncio.sleep(0)  # those who ask wait by now
        post = self.outbox.post(list(items))
        assert post is not None
        self.outbox.posted(post.number, list(items), decider)
        return post.number

    def hear(self, *replies: Any, unread: tuple[int, ...] = ()) -> None:
        plan = Plan()
        plan.replies = list(replies)
        self.outbox.receive(Received(NO_HEAD, plan, frozenset(unread)))


def plain() -> Submit:
    return Submit([Spec("a", "task", b"{}", ())], is_plain=True)


def named(*, may_wait: bool = False) -> Submit:
    return Submit([Spec("b", "task", b"{}", (), is_named=True)], is_plain=False, may_wait=may_wait)


async def test_nothing_is_no_post() -> None:
    assert Office().outbox.post([]) is None


async def test_a_plain_submission_is_answered_once_it_was_left() -> None:
    office, item = Office(), plain()
    answer = office.ask(item)
    await office.leave(item)
    assert await answer == ["a"]
    assert not item.is_answered


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_submission_that_can_be_refused_waits_for_its_answer(is_full: bool) -> None:
    office = Office(is_refusing=True)
    item = plain() if is_full else named()
    answer = office.ask(item)
    number = await office.leave(item)
    office.hear(((number, 0), QueueFull(1, 1, 1)))
    with pytest.raises(QueueFull):
        await answer
    assert item.is_answered


async def test_answers_find_their_items_by_post_and_place() -> None:
    office, first, second = Office(), Cancel("a"), Cancel("b")
    answers = office.ask(first), office.ask(second)
    number = await office.leave(first, second)
    office.hear(((number, 1), True), ((number, 0), False), ((number, 7), True), ((99, 0), True))
    assert [await one for one in answers] == [False, True]


async def test_what_was_not_taken_is_known() -> None:
    office = Office()
    first, second = await office.leave(Cancel("a")), await office.leave(Cancel("b"))
    office.hear(unread=(second,))
    assert office.outbox.has_unread
    office.hear(unread=())
    assert not office.outbox.has_unread
    assert first != second


async def test_what_waits_for_room_in_the_mind_of_somebody_who_decides_no_longer_is_left_again() -> None:
    office, item = Office(), named(may_wait=True)
    answer = office.ask(item)
    number = await office.leave(item, decider="other")
    office.hear(unread=(number,))
    assert office.outbox.resubmissions("another") == []  # whoever decides finds it in the inbox
    office.hear()
    assert office.outbox.resubmissions("other") == []
    withdraw, again = office.outbox.resubmissions("another")
    assert isinstance(withdraw, Withdraw)
    assert (withdraw.ref, again) == ((number, 0), item)
    assert office.outbox.resubmissions("another") == []
    await office.leave(withdraw, again, decider="another")
    assert office.outbox.resubmissions("a third") == []  # it is in the inbox
    office.hear(((number, 0), ["b"]))
    assert await answer == ["b"], "it had been taken before it was withdrawn"


async def test_what_cannot_wait_for_room_was_answered_by_the_turn_that_took_it_and_is_not_left_again() -> (
    None
):
    office, item = Office(), named()
    answer = office.ask(item)
    await office.leave(item, decider="other")
    office.hear()
    assert office.outbox.resubmissions("another") == []
    answer.cancel()


async def test_what_this_process_took_itself_is_not_left_again() -> None:
    office, item = Office(), named(may_wait=True)
    answer = office.ask(item)
    await office.leave(item, decider="other")
    office.outbox.mark_taken("me")
    assert not office.outbox.has_unread
    assert office.outbox.resubmissions("me") == []
    answer.cancel()


async def test_who_withdraws_a_submission_names_it_by_its_place() -> None:
    office, item = Office(), named()
    answer = office.ask(item)
    number = await office.leave(Cancel("x"), item)
    post = office.outbox.post([Withdraw(item)])
    assert post is not None
    [withdraw] = post.items
    assert isinstance(withdraw, Withdraw)
    assert withdraw.ref == (number, 1)
    answer.cancel()


async def test_who_withdraws_a_submission_of_the_same_post_names_it_by_its_place_there() -> None:
    office, item = Office(), named(may_wait=True)
    withdraw = Withdraw(item)
    post = office.outbox.post([Cancel("x"), item, withdraw])
    assert post is not None
    assert withdraw.ref == (post.number, 1)


async def test_what_somebody_gave_up_waiting_for_is_known_until_it_was_withdrawn() -> None:
    office, item = Office(), named(may_wait=True)
    answer = office.ask(item)
    number = await office.leave(item)
    answer.cancel()
    await asyncio.wait([answer])
    office.hear()
    assert office.outbox.resubmissions("other") == []
    withdraw = Withdraw(item)
    office.outbox.post([withdraw])
    assert withdraw.ref == (number, 0)
    office.hear(((number, 0), ["b"]))
    assert office.replies.late(item) == ["b"], "it was accepted before that"
    office.hear()
    office.outbox.resubmissions("other")
    office.outbox.post([withdraw])
    assert withdraw.ref is None


async def test_an_answer_that_comes_at_the_very_moment_of_giving_up_is_kept() -> None:
    for is_first in (True, False):
        office, item = Office(), named(may_wait=True)
        answer = office.ask(item)
        number = await office.leave(item)
        if is_first:
            office.hear(((number, 0), ["b"]))
        answer.cancel()
        if not is_first:
            office.hear(((number, 0), ["b"]))
        await asyncio.wait([answer])
        assert office.replies.late(item) == ["b"]


async def test_when_answers_were_lost_only_those_to_what_was_taken_are_given_up() -> None:
    office, taken, left = Office(), Cancel("a"), Cancel("b")
    answers = office.ask(taken), office.ask(left)
    await office.leave(taken)
    second = await office.leave(left)
    office.hear(unread=(second,))
    office.outbox.fail(StoreError("lost"), is_all=False)
    with pytest.raises(StoreError, match="lost"):
        await answers[0]
    office.hear(((second, 0), True))
    assert await answers[1]


async def test_when_nothing_is_known_of_posts_none_was_taken() -> None:
    office = Office()
    await office.leave(Cancel("a"))
    office.outbox.receive(Received(NO_HEAD, Plan(), None))
    assert office.outbox.has_unread
