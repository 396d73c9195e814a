"""One log line for each event, on the logger "runcue"."""

import asyncio
import logging
import re

import pytest

import runcue
from runcue import Cue, RunningWork, Work
from tests.engine.seen import told
from tests.handlers import no_op, taking

PAIR = re.compile(r"""^\w+=(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s'"]\S*)$""")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "runcue"]


async def test_there_is_one_line_for_each_event(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue()
    cue.service("api", rate="3/min", concurrent=1, circuit_threshold=2)

    @cue.task("call", uses="api", retry=2)
    async def call(work: RunningWork) -> None:
        work.progress(0.5)
        if work.params["fails"]:
            raise OSError("no")

    with caplog.at_level(logging.DEBUG, "runcue"):
        async with cue:
            await cue.submit_many({"task": "call", "params": {"fails": n == 2}} for n in range(5))
            await cue.submit("call", id="gone", params={"fails": False}, delay=5)
            await cue.cancel("gone")
            await cue.join()
    names = [event.name for event in await told(cue)]
    assert [line.partition(":")[0] for line in lines(caplog)] == names


async def test_a_line_has_key_value_pairs_and_the_same_as_extra(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue()
    cue.service("api", concurrent=1)
    cue.task("call", uses="api")(taking(1.5))
    with caplog.at_level(logging.DEBUG, "runcue"):
        async with cue:
            await cue.submit("call", id="a")
            await cue.join()
    record = next(record for record in caplog.records if record.getMessage().startswith("work_completed"))
    assert record.getMessage() == "work_completed: work_id=a task=call attempt=1 service=api duration=1.5"
    assert record.__dict__["runcue"] == {
        "event": "work_completed",
        "work_id": "a",
        "task": "call",
        "attempt": 1,
        "service": "api",
        "duration": 1.5,
    }


async def test_nothing_of_normal_work_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue()
    cue.service("api", rate="2/s", concurrent=1)

    @cue.task("call", uses="api")
    async def call(work: RunningWork) -> None:
        work.progress(1.0)
        await asyncio.sleep(0.3)

    cue.is_stale(lambda work: work.params["n"] % 5 != 0)
    with caplog.at_level(logging.WARNING, "runcue"):
        async with cue:
            await cue.submit_many({"task": "call", "params": {"n": n}} for n in range(20))
            await cue.submit("call", id="gone", params={"n": 1}, delay=5)
            await cue.cancel("gone")
            await cue.pause("api")
            await cue.resume("api")
            await cue.join()
    assert lines(caplog) == []


async def test_a_final_failure_is_a_warning_and_one_before_it_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cue = Cue()

    @cue.task("call", retry=2)
    async def call(work: Work) -> None:
        raise OSError("no\nsuch thing")

    with caplog.at_level(logging.INFO, "runcue"):
        async with cue:
            await cue.submit("call", id="a")
            await cue.join()
    failed = [record for record in caplog.records if record.getMessage().startswith("work_failed")]
    assert [record.levelno for record in failed] == [logging.INFO, logging.WARNING]
    assert failed[1].getMessage() == (
        "work_failed: work_id=a task=call attempt=2 error='OSError: no\\nsuch thing' will_retry=False duration=0.0"
    )


@pytest.mark.parametrize(
    "text", ["two words", "line\nbreak", "tab\t", "\x1b[2J", "\u202eright to left", "", "it's"]
)
async def test_whatever_text_there_is_a_line_stays_one_line_of_pairs(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    cue = Cue()

    @cue.task("call")
    async def call(work: RunningWork) -> None:
        work.progress(0.5, text)
        await asyncio.sleep(0)
        raise runcue.Permanent(text)

    with caplog.at_level(logging.DEBUG, "runcue"):
        async with cue:
            await cue.wait(await cue.submit("call"))
    for line in lines(caplog):
        assert line.isprintable()
        _, _, pairs = line.partition(": ")
        for pair in re.findall(r"""\w+=(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)""", pairs):
            assert PAIR.match(pair), line


async def test_a_failing_callback_is_logged_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    cue = Cue()
    cue.task("call")(no_op)

    @cue.on_complete
    def bookkeeping(work: Work, result: object, duration: float) -> None:
        raise ZeroDivisionError("oh")

    with caplog.at_level(logging.WARNING, "runcue"):
        async with cue:
            await cue.submit_many({"task": "call"} for _ in range(10))
            await cue.join()
    (line,) = lines(caplog)
    assert line.startswith("callback_failed: ")
    assert "callback=on_complete" in line
    assert "bookkeeping" in line
    assert "error='ZeroDivisionError: oh'" in line


async def test_runcue_configures_nothing() -> None:
    logger = logging.getLogger("runcue")
    assert logger.level == logging.NOTSET
    assert {type(handler) for handler in logger.handlers} <= {logging.NullHandler}
    assert logger.propagate


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the disk of the log is full")


async def test_a_log_handler_that_raises_does_not_stop_the_queue() -> None:
    cue = Cue()

    @cue.task("call")
    async def call(work: Work) -> str:
        return "done"

    heard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    logger = logging.getLogger("runcue")
    broken = Broken()
    logger.addHandler(broken)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        async with cue:
            assert await cue.result(await cue.submit("call"), timeout=60) == "done"
    finally:
        logger.removeHandler(broken)
        logger.setLevel(level)
    assert heard != []


async def test_secrets_do_not_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cue = runcue.Cue()

    @cue.task
    async def call(work: runcue.Work) -> None:
        raise OSError("no line to postgres://app:hunter2@db/x with password=hunter2")

    with caplog.at_level(logging.DEBUG, "runcue"):
        async with cue:
            await cue.wait(await cue.submit("call", params={"password": "hunter2"}))
    assert "postgres://app:***@db/x" in caplog.text
    assert "hunter2" not in caplog.text + "".join(str(vars(record)) for record in caplog.records)
