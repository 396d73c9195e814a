"""The mock LLM API keeps its limits and its books exactly, so that what it says of a batch can be believed."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from examples.llm_batch.server import Answer, Llm, serving, tokens_of

opener = build_opener(ProxyHandler({}))


class Clock:
    """Time that stands still unless it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def body(prompt: str = "why", most: int = 1) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": most}


def asked(llm: Llm, key: str, prompt: str = "why") -> Answer:
    """A call whose answer is empty, so that its cost is that of the prompt."""
    return llm.call(key, body(prompt))


def test_one_call_too_many_is_refused_until_the_oldest_has_left_the_window(clock: Clock) -> None:
    llm = Llm(calls=2, tokens=1000, per=3.0, clock=clock)
    assert asked(llm, "a").status == 200
    clock.now += 1
    assert asked(llm, "b").status == 200
    refusal = asked(llm, "c")
    assert (refusal.status, refusal.headers["retry-after-ms"], refusal.headers["retry-after"]) == (
        429,
        "2000",
        "2",
    )
    clock.now += 1.999
    assert asked(llm, "c").status == 429
    clock.now += 0.001
    assert [asked(llm, "c").status, asked(llm, "d").status] == [200, 429]


def test_tokens_are_limited_as_calls_are(clock: Clock) -> None:
    llm = Llm(calls=100, tokens=5, per=3.0, clock=clock)
    assert asked(llm, "a", "one two").status == 200
    clock.now += 1
    assert asked(llm, "b", "one two").status == 200
    assert asked(llm, "c", "one two three").headers["retry-after-ms"] == "2000"
    assert asked(llm, "d", "one").status == 200
    assert asked(llm, "e", "one two three four").headers["retry-after-ms"] == "3000"


def test_headers_say_what_is_left_and_until_when(clock: Clock) -> None:
    llm = Llm(calls=3, tokens=10, per=3.0, clock=clock)
    asked(llm, "a", "one two")
    clock.now += 1
    headers = asked(llm, "b", "one two three").headers
    assert (headers["x-ratelimit-remaining-requests"], headers["x-ratelimit-reset-requests"]) == (
        "1",
        "2000ms",
    )
    assert (headers["x-ratelimit-remaining-tokens"], headers["x-ratelimit-reset-tokens"]) == ("5", "2000ms")


def test_a_key_is_paid_once_however_often_it_is_asked_and_a_refusal_never(clock: Clock) -> None:
    llm = Llm(calls=2, tokens=1000, per=3.0, clock=clock)
    first, again, refused = asked(llm, "a", "one two"), asked(llm, "a", "one two"), asked(llm, "b")
    assert (first.body, refused.status) == (again.body, 429)
    stats = llm.stats()
    assert {
        name: stats[name] for name in ("calls", "refused", "repeated", "paid", "paid_twice", "tokens")
    } == {
        "calls": 3,
        "refused": 1,
        "repeated": 1,
        "paid": 1,
        "paid_twice": 0,
        "tokens": 2,
    }


def test_a_server_that_honours_no_keys_is_paid_for_each_call(clock: Clock) -> None:
    llm = Llm(honours_keys=False, clock=clock)
    for key in ("a", "a", "b"):
        asked(llm, key, "one two")
    stats = llm.stats()
    assert [stats[name] for name in ("paid", "paid_twice", "repeated", "tokens")] == [2, 1, 0, 6]


def test_what_was_paid_is_known_after_a_restart(clock: Clock, tmp_path: Path) -> None:
    books = tmp_path / "paid.jsonl"
    asked(Llm(clock=clock, books=books), "a", "one two")
    llm = Llm(clock=clock, books=books)
    asked(llm, "a", "one two")
    asked(llm, "b")
    assert (llm.stats()["paid"], llm.stats()["repeated"], llm.stats()["tokens"]) == (2, 1, 3)


def test_the_books_show_what_was_paid_twice(tmp_path: Path) -> None:
    books = tmp_path / "paid.jsonl"
    books.write_text('{"key": "a", "tokens": 2}\n' * 2, encoding="utf-8")
    assert Llm(books=books).stats()["paid_twice"] == 1


def test_the_share_is_that_of_the_fuller_limit_without_the_first_and_the_last_window(clock: Clock) -> None:
    llm = Llm(calls=10, tokens=20, per=1.0, clock=clock)
    for window, (count, prompt) in enumerate([(10, "a"), (5, "a"), (5, "a b c"), (10, "a"), (1, "a")]):
        clock.now = 100.0 + window
        for number in range(count):
            assert asked(llm, f"{window}-{number}", prompt).status == 200
    assert llm.windows() == [(0.5, 0.25), (0.5, 0.75)]
    assert llm.stats()["share"] == 0.625


def test_a_call_that_nobody_can_read_is_refused_as_such() -> None:
    with pytest.raises(KeyError):
        Llm().call("a", {})


def test_an_answer_costs_tokens_too() -> None:
    usage = Llm().call("a", body("one two", most=50)).body["usage"]
    assert usage["prompt_tokens"] == 2
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert tokens_of("a contract, unquestionably") == 1 + 2 + 1 + 3


async def test_it_speaks_http(clock: Clock) -> None:
    def get(path: str, data: object = None) -> tuple[int, dict[str, Any], str | None]:
        sent = None if data is None else json.dumps(data).encode()
        request = Request(f"{url}{path}", data=sent, headers={"Idempotency-Key": "a"})
        try:
            with opener.open(request, timeout=240) as response:
                return (
                    response.status,
                    json.load(response),
                    response.headers["x-ratelimit-remaining-requests"],
                )
        except HTTPError as error:
            with error:
                return error.code, json.load(error), error.headers["retry-after"]

    llm = Llm(calls=1, per=3.0, latency=(0, 0), clock=clock)
    async with serving(llm) as url:
        status, answer, left = await asyncio.to_thread(get, "/v1/chat/completions", body("one two"))
        assert (status, answer["usage"]["total_tokens"], left) == (200, 2, "0")
        status, _, after = await asyncio.to_thread(get, "/v1/chat/completions", body("one two"))
        assert (status, after) == (429, "3")
        assert (await asyncio.to_thread(get, "/v1/chat/completions", {}))[0] == 400
        assert (await asyncio.to_thread(get, "/v2"))[0] == 404
        assert (await asyncio.to_thread(get, "/stats"))[1]["paid"] == 1
