"""A stand-in for an LLM API: slow, strict about its limits, and exact about what it was paid for.

    python -m examples.llm_batch.server --port 8399

It answers POST /v1/chat/completions as OpenAI does, and GET /stats with what it has counted. Rules:

- Calls and tokens are limited in every window of `per` seconds, sliding, over the times at which calls arrive. What
  would exceed one of them gets a 429 with Retry-After, and counts for nothing.
- x-ratelimit-remaining-… and x-ratelimit-reset-… say how much more fits before the oldest call leaves the window.
- A call is paid for when it is let in, whether or not the caller lives to see the answer. A call with an
  Idempotency-Key that was paid for is answered again, at no cost (but with `honours_keys=False`).
- With `books` what was paid is written down in a file, so that a restart forgets nothing.
"""

import argparse
import asyncio
import json
import math
import random
import re
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

CALLS, TOKENS, PER = 300, 100_000, 5.0
"""What it permits in each window: 60 calls and 20,000 tokens a second on average. Real APIs count by the minute; five
seconds let 2,000 calls show in half a minute what a window does."""
LATENCY = (0.02, 0.06)
"""Seconds that an answer takes: at least, at most."""
TEXT = "the model has read this and thinks it over before it says what follows from all of that"
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}
LONGEST_BODY = 1_000_000


def tokens_of(text: str) -> int:
    """How many tokens a text has: what a tokenizer would say, more or less."""
    return sum(1 + len(piece) // 6 for piece in re.findall(r"\w+|[^\w\s]", text))


class Window:
    """At most `limit` of something in any `per` seconds."""

    def __init__(self, limit: float, per: float) -> None:
        self.limit = limit
        self._per = per
        self._used: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def room(self, now: float) -> float:
        """How much is left."""
        while self._used and now - self._used[0][0] >= self._per:
            self._sum -= self._used.popleft()[1]
        return self.limit - self._sum

    def take(self, amount: float, now: float) -> None:
        """That much is used."""
        self._used.append((now, amount))
        self._sum += amount

    def wait(self, amount: float, now: float) -> float:
        """Seconds until that much fits."""
        lacking = amount - self.room(now)
        for at, used in self._used:
            if lacking <= 0:
                break
            lacking -= used
            if lacking <= 0:
                return at + self._per - now
        return 0.0 if lacking <= 0 else self._per

    def resets_in(self, now: float) -> float:
        """Seconds until there is more of it than now."""
        self.room(now)
        return self._used[0][0] + self._per - now if self._used else 0.0


class Answer(NamedTuple):
    """What a caller gets, and after how long."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]
    after: float = 0.0


class Llm:
    """The API without its network: one call in, one answer out."""

    def __init__(
        self,
        calls: int = CALLS,
        tokens: int = TOKENS,
        per: float = PER,
        latency: Sequence[float] = LATENCY,
        books: Path | None = None,
        honours_keys: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.per = per
        self._latency = latency
        self._clock = clock
        self._books = books
        self._honours_keys = honours_keys
        self._requests = Window(calls, per)
        self._tokens = Window(tokens, per)
        self._chance = random.Random(1)
        self._let_in: list[tuple[float, int]] = []
        self._paid: dict[str, list[int]] = {}
        """The tokens of each payment, by key."""
        self._calls = self._refused = self._repeated = 0
        if books is not None and books.exists():
            for line in books.read_text(encoding="utf-8").splitlines():
                self._enter(**json.loads(line))

    def call(self, key: str, body: dict[str, Any]) -> Answer:
        """Somebody asks something."""
        now = self._clock()
        self._calls += 1
        prompt = " ".join(str(message["content"]) for message in body["messages"])
        most = max(1, int(body.get("max_tokens", 60)))
        text = " ".join(islice(cycle(TEXT.split()), crc32(prompt.encode()) % most))
        asked, said = tokens_of(prompt), tokens_of(text)
        is_known = self._honours_keys and key in self._paid
        cost = 0 if is_known else asked + said
        if self._requests.room(now) < 1 or self._tokens.room(now) < cost:
            self._refused += 1
            wait = max(self._requests.wait(1, now), self._tokens.wait(cost, now))
            headers = {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(wait * 1000))}
            return Answer(429, {**headers, **self._left(now)}, {"error": {"type": "rate_limit_exceeded"}})
        self._requests.take(1, now)
        self._tokens.take(cost, now)
        self._let_in.append((now, cost))
        if is_known:
            self._repeated += 1
        else:
            self._pay(key or f"call-{self._calls}", cost)
        usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return Answer(
            200, self._left(now), {"choices": [choice], "usage": usage}, self._chance.uniform(*self._latency)
        )

    def stats(self) -> dict[str, Any]:
        """What it counted: the tokens and keys ever paid for, the calls since it was started."""
        windows = self.windows()
        return {
            "calls": self._calls,
            "refused": self._refused,
            "repeated": self._repeated,
            "paid": len(self._paid),
            "paid_twice": sum(len(payments) > 1 for payments in self._paid.values()),
            "tokens": sum(sum(payments) for payments in self._paid.values()),
            "windows": windows,
            "share": sum(max(window) for window in windows) / len(windows) if windows else None,
        }

    def windows(self) -> list[tuple[float, float]]:
        """How full it was, in calls and in tokens: one window after the other, without the first and the last."""
        if not self._let_in:
            return []
        first, last = self._let_in[0][0] + self.per, self._let_in[-1][0] - self.per
        count = int((last - first) / self.per) if last > first else 0
        found = [(0, 0)] * count
        for at, tokens in self._let_in:
            place = int((at - first) // self.per)
            if 0 <= place < count:
                found[place] = found[place][0] + 1, found[place][1] + tokens
        return [(calls / self._requests.limit, used / self._tokens.limit) for calls, used in found]

    def _left(self, now: float) -> dict[str, str]:
        found = {}
        for name, window in (("requests", self._requests), ("tokens", self._tokens)):
            found[f"x-ratelimit-limit-{name}"] = f"{window.limit:.0f}"
            found[f"x-ratelimit-remaining-{name}"] = f"{window.room(now):.0f}"
            found[f"x-ratelimit-reset-{name}"] = f"{math.ceil(window.resets_in(now) * 1000)}ms"
        return found

    def _pay(self, key: str, tokens: int) -> None:
        self._enter(key, tokens)
        if self._books is not None:
            with self._books.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "tokens": tokens}) + "\n")

    def _enter(self, key: str, tokens: int) -> None:
        self._paid.setdefault(key, []).append(tokens)


# --- HTTP -----------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(llm: Llm, port: int = 0) -> AsyncIterator[str]:
    """Have it listen on loopback; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _request(reader)) is not None:
                answer = _route(llm, *request)
                await asyncio.sleep(answer.after)
                writer.write(_response(answer))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller has gone: nobody is left to tell
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _route(llm: Llm, verb: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
    if (verb, path) == ("GET", "/stats"):
        return Answer(200, {}, llm.stats())
    if (verb, path) != ("POST", "/v1/chat/completions"):
        return Answer(404, {}, {"error": {"message": f"There is no {verb} {path} here."}})
    try:
        return llm.call(headers.get("idempotency-key", ""), json.loads(body))
    except (ValueError, TypeError, KeyError) as error:
        return Answer(400, {}, {"error": {"message": f"{type(error).__name__}: {error}"}})


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes] | None:
    """The next request of a connection: verb, path, headers, body; None at its end."""
    first = (await reader.readline()).decode("latin-1").split()
    if len(first) != 3:
        return None
    headers = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    size = min(int(headers.get("content-length", 0)), LONGEST_BODY)
    return first[0], first[1], headers, await reader.readexactly(size)


def _response(answer: Answer) -> bytes:
    body = json.dumps(answer.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} {REASONS[answer.status]}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


# --- A process of its own -------------------------------------------------------------------------


async def main(given: argparse.Namespace) -> None:
    """Serve until Ctrl-C, or until whoever started it has gone."""
    llm = Llm(given.calls, given.tokens, given.per, given.latency, given.books, not given.forget_keys)
    async with serving(llm, given.port) as url:
        print(url, flush=True)
        if given.until_eof:
            await asyncio.to_thread(sys.stdin.read)
        else:
            await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A mock LLM API on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0, the default: any that is free; it is printed")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls in a window")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens in a window")
    parser.add_argument("--per", type=float, default=PER, help="seconds of a window")
    parser.add_argument("--latency", type=float, nargs=2, default=LATENCY, help="seconds: at least, at most")
    parser.add_argument("--books", type=Path, help="the file in which payments are written down")
    parser.add_argument("--forget-keys", action="store_true", help="be paid again, as most LLM APIs are")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    try:
        asyncio.run(main(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)
