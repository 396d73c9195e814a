"""The process that decides is stopped, or something in it holds the interpreter: the others go on.

Nothing is lost, and nothing is begun twice. What is waited for is always an event, within a bound that is generous.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.stage import Actor, Refused
from tests.fleet.place import FilePlace, Place, PostgresPlace

pytestmark = pytest.mark.timeout(300)

WORKS = 12


def go_on(place: Place, others: Sequence[Actor]) -> list[str]:
    """What others submit is accepted, decided over, begun and completed, and by nobody else; its ids."""
    named = [f"w{number}" for number in range(WORKS)]
    for number, work_id in enumerate(named):  # that an id is free somebody has to decide
        assert others[number % len(others)].submit(id=work_id) == work_id
    plain = [actor.submit() for actor in others]
    for work_id in (*named, *plain):
        others[0].until_state(work_id, "completed")
    pids = {actor.pid for actor in others}
    assert {line.pid for line in place.lines() if line.work in {*named, *plain}} <= pids
    assert place.until_deciding(others) in others
    return [*named, *plain]


def rest(actors: Sequence[Actor], one: Actor) -> list[Actor]:
    """The others."""
    return [actor for actor in actors if actor is not one]


def test_when_who_decides_is_stopped_between_two_turns_the_others_go_on(place: Place) -> None:
    actors = place.crew()
    stopped = place.stopped_outside(actors)
    works = go_on(place, rest(actors, stopped))
    stopped.signal(signal.SIGCONT)
    place.is_settled(actors, [*works, stopped.submit()])


def test_one_after_the_other_is_stopped_while_it_decides_until_one_is_left(place: Place) -> None:
    actors = place.crew()
    left = [*actors]
    while len(left) > 1:
        left.remove(place.stopped_outside(left))
        left[0].until_state(left[0].submit(id=f"among{len(left)}"), "completed")
    works = go_on(place, left)
    for actor in actors:
        actor.signal(signal.SIGCONT)
    place.is_settled(actors, works)


def test_what_a_stopped_process_was_given_runs_elsewhere_and_once(place: Place) -> None:
    """It is stopped, not dead: what it has not read is given to others, and it never begins that."""
    actors = place.crew()
    decider = place.until_deciding(actors)
    stopped, *others = rest(actors, decider)
    stopped.signal(signal.SIGSTOP)
    stopped.until_stopped()
    if not place.is_between_turns():  # it reads or leaves something; on a file that keeps out everybody else
        stopped.signal(signal.SIGCONT)
        stopped = place.stopped_outside(actors)
        others = rest(actors, stopped)
    else:
        others.append(decider)
    works = go_on(place, others)
    stopped.signal(signal.SIGCONT)
    place.is_settled(actors, works)


@pytest.mark.parametrize("where", ["turn.begin", "turn.decided", "turn.written"])
def test_on_a_file_all_wait_for_who_is_stopped_inside_a_turn_and_then_go_on(
    file_place: FilePlace, where: str
) -> None:
    actors = file_place.crew()
    stopped, call, half = file_place.stopped_inside(actors, where)
    others = rest(actors, stopped)
    calls = [actor.tell("submit", task="note", id=f"late{actor.pid}") for actor in others]
    assert not any(actor.has_answered(call, 0.5) for actor, call in zip(others, calls, strict=True))
    assert others[0].ask("get", work_id=half) is None
    stopped.signal(signal.SIGCONT)
    assert stopped.answer(call) == half
    late = [actor.answer(call) for actor, call in zip(others, calls, strict=True)]
    file_place.is_settled(actors, [half, *late])
    for actor in actors:
        actor.close()
    file_place.check()


@pytest.mark.parametrize("where", ["turn.begin", "turn.decided", "turn.written"])
def test_on_a_server_who_is_stopped_inside_a_turn_loses_it_and_the_others_go_on(
    server_place: PostgresPlace, where: str
) -> None:
    actors = server_place.crew()
    stopped, call, half = server_place.stopped_inside(actors, where)
    others = rest(actors, stopped)
    assert others[0].submit(), "a plain one waits for nobody"
    works = go_on(server_place, others)
    stopped.signal(signal.SIGCONT)
    try:
        assert stopped.answer(call) == half
    except Refused:  # it is told that its turn was lost
        assert stopped.ask("get", work_id=half) is None
    else:
        works.append(half)
    server_place.is_settled(actors, works)


def test_while_a_handler_holds_the_interpreter_of_who_decides_the_others_go_on(
    place: Place, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    actors = place.crew()
    ours = os.open(pipe, os.O_RDWR)
    held = place.until_deciding(actors)
    held.tell("seize", pipe=str(pipe))
    place.until_there(tmp_path / "pipe.seized")
    call = held.tell("count")
    works = go_on(place, rest(actors, held))
    assert not held.has_answered(call, 0.1), "nothing in it does anything"
    os.write(ours, b"!")
    held.answer(call)
    os.close(ours)
    place.is_settled(actors, works)
