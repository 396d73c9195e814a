"""2,000 calls of an LLM API, as fast as its limits permit and each paid for once.

    python -m examples.llm_batch                 # with a mock server, offline, in about 40 seconds
    LLM_URL=http://127.0.0.1:8399 python -m examples.llm_batch.batch [COUNT]

Half of the prompts are short questions, half are long documents, so that first the calls and then the tokens are
what there is not enough of. The queue is in a file. Stop it with Ctrl-C, kill it with -9 and run it again: what is
answered is not asked again, and what was under way is asked with the same Idempotency-Key.
"""

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import runcue

FOLDER = Path(tempfile.gettempdir()) / f"runcue-llm-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
COUNT = 2000
MAX_ANSWER = 60
TEXT = "what does clause five of this contract say about late delivery and who bears the cost"

cue = runcue.Cue(FOLDER / "queue.db", retention=None)
# The server permits 300 calls and 100k tokens in any 5 s. We stay 2 % below: calls do not arrive in the rhythm in
# which they leave. The second rate of each takes the edge off bursts, for the same reason.
cue.service(
    "llm",
    rate=["294/5s", "9/100ms"],
    tokens=["98k/5s", "6k/200ms"],
    concurrent=runcue.adaptive(min=4, start=20, max=100),
)
opener = build_opener(ProxyHandler({}))  # loopback: no proxy


def estimate(prompt: str) -> int:
    """How many tokens a call will use, rather too many than too few: four characters each, and a full answer."""
    return len(prompt) // 4 + MAX_ANSWER


@cue.task(uses="llm", retry=5, timeout=30, cost=lambda work: {"tokens": estimate(work.params["prompt"])})
def ask(work: runcue.Work, name: str, prompt: str) -> dict[str, Any]:
    """One call. A 429 is raised as it is: runcue knows it by its shape and pauses the service."""
    try:
        answer, headers = post(prompt, work.idempotency_key or name)
    except HTTPError as refusal:
        if refusal.code == 429:
            work.charge(tokens=0)  # nothing was used
        raise
    work.observe(headers)
    work.charge(tokens=answer["usage"]["total_tokens"])
    text = answer["choices"][0]["message"]["content"]
    return {"text": text, "tokens": answer["usage"]["total_tokens"]}


def post(prompt: str, key: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What the API answers, and the headers that came with it."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": MAX_ANSWER}
    request = Request(
        f"{os.environ['LLM_URL']}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
    )
    try:
        with opener.open(request, timeout=25) as response:
            return json.load(response), dict(response.headers)
    except HTTPError as refusal:
        refusal.close()
        raise


def prompts(count: int) -> list[dict[str, Any]]:
    """Questions, then documents; the same in each run."""
    chance = random.Random(7)
    found = []
    for number in range(count):
        is_short = number < count // 2
        length = chance.randint(20, 80) if is_short else chance.randint(150, 450)
        text = " ".join(chance.choices(TEXT.split(), k=length))
        kind = "question" if is_short else "document"
        found.append({"name": f"{kind}-{number:04}", "prompt": f"{kind} {number}: {text}?"})
    return found


async def main(count: int = COUNT) -> None:
    """Have them all answered, and sum up."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    began, items = time.monotonic(), prompts(count)
    answered, failed, estimated, used = 0, 0, 0, 0
    async with cue:
        before = (await cue.count())[runcue.WorkState.COMPLETED]
        if before:
            print(f"going on: {before:,} of {count:,} were answered before", flush=True)
        async with runcue.progress(cue, total=count - before):
            async for work in cue.map(ask, items, key="name", window=count):
                if work.state is not runcue.WorkState.COMPLETED:
                    failed += 1
                    print(f"{work.idempotency_key} failed: {work.error}")
                    continue
                answered += 1
                estimated += estimate(work.params["prompt"])
                used += work.result["tokens"]
                if answered - before == count // 10:
                    print(foreseen(await cue.forecast()), flush=True)
    await cue.close()
    seconds = time.monotonic() - began
    print(f"{answered:,} answers in {seconds:.1f} s, {before:,} of them from before; {failed:,} failed")
    print(f"  tokens     {used:,} used, {estimated:,} estimated ({estimated / max(used, 1) - 1:+.0%})")
    print(told(await asyncio.to_thread(server_stats)))


def foreseen(forecast: runcue.Forecast) -> str:
    """When it will be done, and why not before; one line."""
    if forecast.seconds is None:
        return f"no forecast: {forecast.details}"
    return f"forecast: {forecast.seconds:.0f} s to go, held back by {forecast.bottleneck}'s {forecast.limit}"


def server_stats() -> dict[str, Any]:
    """What the server has counted."""
    with opener.open(f"{os.environ['LLM_URL']}/stats", timeout=25) as response:
        found: dict[str, Any] = json.load(response)
    return found


def told(stats: dict[str, Any]) -> str:
    """What the server has counted, for reading."""
    calls, refused = stats["calls"], stats["refused"]
    share = stats["share"]
    return "\n".join([
        f"  calls      {calls:,}",
        f"  throughput {'-' if share is None else f'{share:.1%}'} of what the server permits",
        f"  429s       {refused:,} ({refused / max(calls, 1):.2%})",
        f"  paid       {stats['paid']:,} prompts, {stats['tokens']:,} tokens; {stats['paid_twice']} paid twice",
    ])  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
