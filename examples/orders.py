"""Orders that are charged once, although the shop is killed twice.

    python examples/orders.py

Each order is charged, packed, shipped and announced. Each of these leaves a proof: a small file that says that it is
done. The shop runs in a process of its own, and gets SIGKILL at the two worst moments:

- The bank has the money, and there is no proof. The next run has to ask the bank again; it sends the same key as
  before, by which the bank knows the request, and takes nothing.
- The proof is there, and the queue has not heard of it. The next run finds the proof, and skips the work.

The queue is a file. Each run is the same program with the same file, and goes on where the one before ended. The
bank, the carrier and the post are a web server in the process that you start: it lives on, and keeps the books.
"""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import runcue

ORDERS = {"a101": 12.50, "b102": 8.00, "c103": 31.90, "d104": 5.00, "e105": 99.00, "f106": 17.20}
STEPS = ("charge", "pack", "ship", "announce")
DEATHS = {
    "c103/charge has no proof": "killed: the bank has the money for c103, and there is no proof",
    "d104/ship has a proof": "killed: the parcel of d104 is on its way, and the queue has not heard of the proof",
}

# -------------------------------------------------------------------- the shop: a queue, proofs, and four steps

cue = runcue.Cue("orders.db")
# One thing at a time, so that this always tells the same story.
cue.service("clerk", rate="50/s", concurrent=1)
patience = runcue.Retry(max_attempts=4, base_delay=0.2)
opener = build_opener(ProxyHandler({}))


def ask(work: runcue.Work) -> Any:
    """Have somebody else do it.

    What goes wrong is raised by urllib, and runcue understands it as it is: after a 429 the clerk pauses for as long
    as the answer says, a 500 is tried again a little later, and a 402 (the card is declined) is final.
    """
    headers = {"Idempotency-Key": work.id}  # the same in each attempt and each run
    url = f"{os.environ['SHOP_WORLD']}/{work.task}"
    try:
        with opener.open(Request(url, json.dumps(work.params).encode(), headers), timeout=10) as answer:
            return json.load(answer)
    except HTTPError as error:
        error.close()  # it is an answer too, with a connection
        raise


def prove(work: runcue.Work, answer: Any) -> None:
    """Leave the proof, whole and on the disk."""
    reach(f"{work.id} has no proof")
    with runcue.write_output(f"proofs/{work.params['order']}/{work.task}.json") as file:
        json.dump(answer, file)
    reach(f"{work.id} has a proof")


@cue.task(uses="clerk", retry=patience, outputs="proofs/{order}/charge.json")
def charge(work: runcue.Work) -> None:
    """Take the money."""
    prove(work, ask(work))


@cue.task(uses="clerk", outputs="proofs/{order}/pack.json")
def pack(work: runcue.Work) -> None:
    """Nobody else is needed for this."""
    prove(work, "packed")


@cue.task(uses="clerk", retry=patience, outputs="proofs/{order}/ship.json")
def ship(work: runcue.Work) -> None:
    """Hand the parcel to the carrier."""
    prove(work, ask(work))


@cue.task(uses="clerk", retry=patience, outputs="proofs/{order}/announce.json")
def announce(work: runcue.Work) -> None:
    """Tell the customer."""
    prove(work, ask(work))


@cue.on_skip
def skipped(work: runcue.Work) -> None:
    """The proof was there."""
    print(f"   {work.id}: skipped, there is a proof", flush=True)


@cue.on_failure
def failed(work: runcue.Work, error: BaseException, will_retry: bool) -> None:
    """Something went wrong, or never began because what comes before it did."""
    print(f"   {work.id}: {work.error or error}{', tried again' if will_retry else ''}", flush=True)


def reach(moment: str) -> None:
    """Die, if this is the moment for it."""
    if moment == os.environ.get("SHOP_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)


async def open_shop() -> None:
    """Take in the orders, those that are known already only once, and go on until nothing is left to do."""
    logging.getLogger("runcue").setLevel(logging.CRITICAL)  # told above
    print("The shop opens", flush=True)
    async with cue:
        await cue.submit_many(
            {
                "task": task,
                "id": f"{order}/{task}",
                "idempotency_key": f"{order}/{task}",
                "on_failed": "return",
                "params": {"order": order, "amount": amount},
                "depends_on": [f"{order}/{STEPS[number - 1]}"] if number else [],
            }
            for order, amount in ORDERS.items()
            for number, task in enumerate(STEPS)
        )
        await cue.join()
    await cue.close()


# ------------------------------------------------------------------ the world: a bank, a carrier and a post office


class World(ThreadingHTTPServer):
    """They write down what they did. The bank does it once for each key; the others do what they are told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.books: list[str] = []
        self.calls: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()

    def answer(self, key: str) -> int:
        """Do what is asked for, or do not: the status of the answer."""
        self.calls[key] += 1
        match key, self.calls[key]:
            case "d104/charge", 1:
                status = 429
            case "f106/charge", 1:
                status = 500
            case "e105/charge", _:
                status = 402
            case _:
                status = 200
                if not key.endswith("/charge") or key not in self.books:
                    self.books.append(key)
        if key.endswith("/charge"):
            self.answers[status] += 1
        return status


class Asked(BaseHTTPRequestHandler):
    """One request."""

    server: World

    def handle(self) -> None:
        """Answer what is asked; whoever asks may die over it."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def do_POST(self) -> None:
        """Answer it."""
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        status = self.server.answer(key)
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(json.dumps({"receipt": key}).encode())

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""


# ------------------------------------------------------------------------------------------------------- the story


def run_shop(folder: Path, world: World, death: str) -> int:
    """One life of the shop: its exit code."""
    environment = {**os.environ, "SHOP_WORLD": world.url, "SHOP_DIES": death}
    command = [sys.executable, __file__, "shop"]
    # Ctrl-C is for us alone.
    shop = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        return shop.wait()
    finally:
        shop.kill()
        shop.wait()


def tell(folder: Path, world: World) -> None:
    """What stands in the books, and what is left in the queue."""
    done = Counter(world.books)
    done.update(f"{path.parent.name}/pack" for path in folder.glob("proofs/*/pack.json"))
    print(f"\n{'order':<7}{'amount':>7}" + "".join(f"{step:>10}" for step in STEPS))
    for order, amount in ORDERS.items():
        times = [done[f"{order}/{step}"] for step in STEPS]
        print(f"{order:<7}{amount:>7.2f}" + "".join(f"{f'{n}×' if n else '–':>10}" for n in times))
    taken = sum(amount * done[f"{order}/charge"] for order, amount in ORDERS.items())
    paid_twice = [key for key, times in done.items() if key.endswith("/charge") and times > 1]
    answers = ", ".join(f"{number} × {status}" for status, number in sorted(world.answers.items()))
    print(f"\nThe bank was asked {world.answers.total()} times ({answers}) and took {taken:.2f}.")
    print(f"Paid twice: {', '.join(paid_twice) or 'nobody'}.")
    with runcue.Reader(folder / "orders.db") as queue:
        for work in reversed(queue.list(state="failed")):
            print(f"Dead letter: {work.id}, {work.error}")


def main() -> int:
    """Open the shop, again and again, until it closes by itself."""
    with tempfile.TemporaryDirectory(prefix="runcue-orders-") as name, World() as world:
        threading.Thread(target=world.serve_forever, daemon=True).start()
        try:
            for death, told in [*DEATHS.items(), ("", "nothing is left to do")]:
                code = run_shop(Path(name), world, death)
                if code != (-signal.SIGKILL if death else 0):
                    print(f"   It ended with code {code} before the story was over.")
                    return 1
                print(f"   {told}", flush=True)
            tell(Path(name), world)
        finally:
            world.shutdown()
    return 0


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["shop"]:
            asyncio.run(open_shop())
        else:
            sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
