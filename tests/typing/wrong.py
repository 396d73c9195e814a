"""What type checkers refuse: every line marked here is a mistake. Never run; a mark that is not needed is an error.

mypy checks the code in brackets as well; others know only that the line is wrong.
"""

from __future__ import annotations

import runcue
import runcue.testing

cue = runcue.Cue()

# names and options that there are not

runcue.Works  # type: ignore[attr-defined]  # noqa: B018
cue.enqueue("named")  # type: ignore[attr-defined]
runcue.Cue(pool_sise=4)  # type: ignore[call-arg]
runcue.Retry(attempts=3)  # type: ignore[call-arg]
cue.task("named", retries=3)  # type: ignore[call-overload]
cue.task("named", timeout=b"5s")  # type: ignore[call-overload]
cue.task(5)  # type: ignore[call-overload]
cue.start(queue="night")  # type: ignore[call-arg]

# values of another kind

runcue.Cue(5)  # type: ignore[arg-type]
runcue.Retry(max_attempts="3")  # type: ignore[arg-type]
runcue.Unique(within=60, on_conflict="ignore")  # type: ignore[arg-type]
runcue.RateLimited(retry_after=[1])  # type: ignore[arg-type]
runcue.adaptive(max="many")  # type: ignore[arg-type]
runcue.map(str, 5)  # type: ignore[call-overload]
runcue.priority_constant("high")  # type: ignore[arg-type]
runcue.dependency_check_file(5)  # type: ignore[arg-type]
cue.service(5)  # type: ignore[arg-type]
cue.service("api", concurrent="5 or so")  # type: ignore[arg-type]
cue.get_task(len)  # type: ignore[arg-type]
cue.is_ready("a name")  # type: ignore[type-var]
cue.observe(print)  # type: ignore[arg-type]


@cue.task
async def summarize(page: int) -> str:
    return str(page)


async def call_it() -> None:
    await summarize.submit(pge=3)  # type: ignore[call-arg]
    await summarize.submit(page="3")  # type: ignore[arg-type]
    await summarize.submit()  # type: ignore[call-arg]
    await summarize.options(priorty=5).submit(page=3)  # type: ignore[call-arg]
    await summarize.options(priority=5).submit(page="3")  # type: ignore[arg-type]
    summarize.unit(pages=3)  # type: ignore[call-arg]
    number: int = await (await summarize.submit(page=3)).result()  # type: ignore[assignment]
    summarize.result(number)  # type: ignore[attr-defined]


async def ask(work: runcue.Work) -> None:
    await cue.submit("named", parms={})  # type: ignore[call-overload]
    await cue.submit("named", {"page": 1})  # type: ignore[call-overload]
    await cue.submit("named", params=5)  # type: ignore[call-overload]
    await cue.submit("named", priority="high")  # type: ignore[call-overload]
    await cue.submit("named", depends_on=5)  # type: ignore[call-overload]
    await cue.submit_many(["named"])  # type: ignore[arg-type]
    await cue.cancel(5)  # type: ignore[call-overload]
    await cue.list(state=5)  # type: ignore[arg-type]
    await cue.wait("a", timeout=b"1s")  # type: ignore[arg-type]
    await cue.start()  # type: ignore[func-returns-value, misc]
    unawaited: str = cue.submit("named")  # type: ignore[assignment]
    missing: runcue.Work = await cue.get("a")  # type: ignore[assignment]
    for _ in cue.events():  # type: ignore[attr-defined]
        pass
    with cue:  # type: ignore[attr-defined]
        pass
    work.state = runcue.WorkState.FAILED  # type: ignore[misc]
    work.params = {}  # type: ignore[misc]
    work.outcome  # type: ignore[attr-defined]  # noqa: B018
    work.state == runcue.WorkState.DONE  # type: ignore[attr-defined]  # noqa: B015
    del unawaited, missing


@cue.task("named")
async def named(work: runcue.Work) -> int:
    return work.attempt


async def call(running: runcue.RunningWork) -> None:
    await named()  # type: ignore[call-arg]
    await named("work")  # type: ignore[arg-type]
    running.progress("half")  # type: ignore[arg-type]
    cue.sync.submit(b"named")  # type: ignore[arg-type]
    cue.sync.events()  # type: ignore[attr-defined]
    with runcue.Reader(5) as reader:  # type: ignore[arg-type]
        reader.cancel("a")  # type: ignore[attr-defined]
        reader.list(stat="failed")  # type: ignore[call-arg]
    runcue.testing.run(named)  # type: ignore[arg-type]
