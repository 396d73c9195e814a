"""`queuectl service`, `pause` and `resume`."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import runcue
from tests.cli.conftest import Watch
from tests.cli.crew import QUEUECTL, environment
from tests.cli.inside import Inside, refused
from tests.patience import BOUND


def service(home: Path, name: str) -> dict[str, Any]:
    with runcue.Reader(home / "queue.db") as reader:
        return next(one for one in reader.services() if one["name"] == name)


def rates(home: Path, name: str) -> list[str]:
    return [rate["rate"] for rate in service(home, name)["rates"]]


# service ---------------------------------------------------------------------------------------------------


def test_a_service_is_made_before_there_is_a_job(inside: Inside, home: Path) -> None:
    told = inside("service", "set", "api", "--rate", "60/min", "--rate", "1000/day", "--concurrent", "4")
    assert told == (0, "Service api: 60/min, 1000/day, 4 at once\n", "")
    assert rates(home, "api") == ["60/min", "1000/day"]
    assert service(home, "api")["concurrent"] == 4


def test_what_is_not_given_stays_as_it_is_and_none_takes_it_away(inside: Inside, home: Path) -> None:
    inside("service", "set", "api", "--rate", "60/min", "--concurrent", "4")
    assert inside("service", "set", "api", "--concurrent", "2").out == "Service api: 60/min, 2 at once\n"
    assert inside("service", "set", "api", "--rate", "none").out == "Service api: 2 at once\n"
    assert inside("service", "set", "api", "--concurrent", "None").out == "Service api: no limits\n"
    assert inside("service", "set", "api").out == "Service api: no limits\n"
    assert rates(home, "api") == []


def test_a_circuit_stays_when_something_else_changes(inside: Inside, home: Path) -> None:
    inside("service", "set", "api", "--circuit-threshold", "1", "--circuit-timeout", "1h")
    assert service(home, "api")["circuit"] == "closed"
    inside("service", "set", "api", "--concurrent", "2")
    assert service(home, "api")["circuit"] == "closed"
    inside("service", "set", "api", "--circuit-threshold", "none")
    assert service(home, "api")["circuit"] is None


def test_a_change_leaves_what_only_a_program_can_declare(inside: Inside, home: Path) -> None:
    inside("enqueue", "--", "true")

    async def declare() -> None:
        cue = runcue.Cue(home / "queue.db", age_step=None)
        cue.service("llm", concurrent=runcue.adaptive(min=1, max=8), tokens="200k/min", rate="5/s")
        await cue.services()
        await cue.close()

    asyncio.run(declare())
    told = inside("service", "set", "llm", "--rate", "2/s")
    assert told.out == "Service llm: 2/s, 200,000 tokens per 1 m, 1 to 8 at once, as it answers\n"
    found = service(home, "llm")
    assert found["adaptive"] == {"min": 1, "start": 1, "max": 8}
    assert [(one["name"], one["limit"]) for one in found["quantities"]] == [("tokens", 200_000)]


def test_a_change_leaves_a_pause_as_it_is(inside: Inside, home: Path) -> None:
    inside("service", "set", "api", "--concurrent", "1")
    inside("pause", "api")
    inside("service", "set", "api", "--concurrent", "2")
    assert service(home, "api")["paused"]


@pytest.mark.parametrize(
    "args",
    [
        ["--rate", "often"], ["--rate", "0/min"], ["--rate", "60/fortnight"], ["--rate", "none", "--rate", "1/s"],
        ["--concurrent", "0"], ["--concurrent", "-1"], ["--concurrent", "1.5"], ["--concurrent", "9" * 30],
        ["--concurrent", "٣"], ["--circuit-threshold", "0"], ["--circuit-timeout", "0"], ["--circuit-timeout", "x"],
    ],
)  # fmt: skip
def test_a_limit_that_cannot_be_is_refused(inside: Inside, home: Path, args: list[str]) -> None:
    refused(inside("service", "set", "api", *args), 2)
    assert json.loads(inside("service", "list", "--json").out) == []


def test_how_much_a_limit_may_be_is_told(inside: Inside) -> None:
    told = inside("service", "set", "api", "--circuit-threshold", "99999999999999")
    refused(told, 2, "from 1 to 1,000,000,000, or none")
    assert inside("service", "set", "api", "--concurrent", "1000000000").code == 0


@pytest.mark.parametrize("name", ["", "#threads", "a\nb", "x" * 129, "a{b}"])
def test_a_name_that_cannot_be_a_services_is_refused(inside: Inside, name: str) -> None:
    refused(inside("service", "set", "--", name), 2, "name")


def test_services_are_listed(inside: Inside) -> None:
    told = inside("service", "list")
    assert (told.code, told.out) == (0, "")
    assert "queuectl service set" in told.err
    assert inside("service", "list", "--json").out == "[]\n"
    inside("service", "set", "api", "--rate", "60/min", "--concurrent", "4")
    inside("service", "set", "disk", "--circuit-threshold", "3")
    inside("pause", "disk")
    rows = [line.split("\t") for line in inside("service", "list").out.splitlines()]
    assert rows == [["api", "0/4", "0 of 60/min", "-", "ready"], ["disk", "0", "-", "closed", "paused"]]
    found = json.loads(inside("service", "list", "--json").out)
    assert [one["name"] for one in found] == ["api", "disk"]
    assert found[1]["paused"] is True
    assert found[1]["seconds"] is None


def test_circuits_are_shown_where_there_are_any(inside: Inside, on_terminal: Watch) -> None:
    inside("service", "set", "api", "--rate", "60/min")
    for verb in (("service", "list"), ("status",)):
        shown = on_terminal(*verb, env={"NO_COLOR": "1"})[1]
        assert re.search(r"^SERVICE +RUNNING +RATE +NOW$", shown, re.MULTILINE)
        assert re.search(r"^api +0 +0 of 60/min +ready$", shown, re.MULTILINE)
    inside("service", "set", "disk", "--concurrent", "2", "--circuit-threshold", "3")
    for verb in (("service", "list"), ("status",)):
        shown = on_terminal(*verb, env={"NO_COLOR": "1"})[1]
        assert re.search(r"^SERVICE +RUNNING +RATE +CIRCUIT +NOW$", shown, re.MULTILINE)
        assert re.search(r"^api +0 +0 of 60/min +- +ready$", shown, re.MULTILINE)
        assert re.search(r"^disk +0/2 +- +closed +ready$", shown, re.MULTILINE)


def test_changes_at_once_do_not_undo_each_other(home: Path) -> None:
    changes = [("--rate", "60/min"), ("--concurrent", "4"), ("--circuit-threshold", "3")]
    for number in range(3):
        started = [
            subprocess.Popen(
                [*QUEUECTL, "service", "set", f"api{number}", *change],
                env=environment(home),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for change in changes
        ]
        told = [(*process.communicate(timeout=BOUND), process.returncode) for process in started]
        assert [code for _, _, code in told] == [0] * len(changes), told
        found = service(home, f"api{number}")
        assert (rates(home, found["name"]), found["concurrent"], found["circuit"]) == (
            ["60/min"],
            4,
            "closed",
        )


def test_nobody_is_said_to_have_declared_what_is_set_by_hand(inside: Inside, home: Path) -> None:
    for number in ("1", "2"):
        inside("service", "set", "api", "--concurrent", number)
    assert (service(home, "api")["concurrent"], service(home, "api")["declared"]) == (2, None)


def test_jobs_keep_to_a_services_limits(inside: Inside, home: Path) -> None:
    inside("service", "set", "one", "--concurrent", "1")
    log = home / "log"
    script = f'echo start >> "{log}"; sleep 0.05; echo end >> "{log}"'
    inside("enqueue", input="\n".join(json.dumps({"command": script, "uses": "one"}) for _ in range(4)))
    inside.work()
    assert log.read_text().split() == ["start", "end"] * 4


# pause and resume ------------------------------------------------------------------------------------------


def test_a_service_is_paused_and_resumed(inside: Inside, home: Path) -> None:
    inside("service", "set", "api", "--concurrent", "1")
    assert inside("pause", "api") == (0, "Paused service api. Go on with: queuectl resume api\n", "")
    assert service(home, "api")["paused"]
    assert inside("resume", "api") == (0, "Resumed service api\n", "")
    assert not service(home, "api")["paused"]


def test_a_queue_is_paused_and_resumed(inside: Inside, home: Path) -> None:
    inside("enqueue", "--id", "a", "--queue", "night", "--", "true")
    assert inside("pause", "night").out.startswith("Paused queue night.")
    assert inside("pause", "default").code == 0, "it is always there"
    with runcue.Reader(home / "queue.db") as reader:
        assert sorted(reader.paused()) == ["default", "night"]
    assert inside("resume", "default").code == 0
    assert inside("resume", "night") == (0, "Resumed queue night\n", "")
    with runcue.Reader(home / "queue.db") as reader:
        assert reader.paused() == []


def test_a_queue_that_no_job_uses_yet_has_to_be_called_one(inside: Inside, home: Path) -> None:
    assert inside("pause", "--queue", "night").code == 0
    with runcue.Reader(home / "queue.db") as reader:
        assert reader.paused() == ["night"]
    assert inside("resume", "night").code == 0, "it is known now"


def test_an_unknown_name_gets_the_nearest(inside: Inside) -> None:
    inside("service", "set", "openai", "--concurrent", "1")
    refused(inside("pause", "opnai"), 6, "No service or queue 'opnai'", "Did you mean: 'openai'", "--queue")
    refused(inside("resume", "zzz"), 6, "There are: 'default', 'openai'")


def test_a_service_is_no_queue(inside: Inside) -> None:
    inside("service", "set", "api", "--concurrent", "1")
    refused(inside("pause", "--queue", "api"), 2, "'api' is a service")


def test_a_name_that_cannot_be_one_is_refused(inside: Inside) -> None:
    refused(inside("pause", "--", "\x1b[2J"), 2, "printable")
