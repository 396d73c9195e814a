"""The guide to the simulator is true: its YAML loads, its tables are the code's, its commands run and say that."""

import json
import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runcue.sim.config import Behaviour, Config, Latency, RetryConfig, ServiceConfig, Workload, load
from runcue.sim.limits import Adaptive, Allows, Amount, Total
from runcue.sim.main import command, invoke
from runcue.sim.request import request_of
from runcue.sim.scenarios import SCENARIOS
from runcue.sim.timetable import ScheduleConfig
from runcue.sim.tui import HELP

GUIDE = (Path(__file__).resolve().parent.parent.parent / "docs" / "guides" / "simulator.md").read_text(
    "utf-8"
)
TABLES: dict[str, type[msgspec.Struct]] = {
    "At the top": Config,
    "`services.NAME`": ServiceConfig,
    "`services.NAME.adaptive`": Adaptive,
    "`services.NAME.total`": Total,
    "`services.NAME.behaviour`": Behaviour,
    "`services.NAME.behaviour.allows`": Allows,
    "`workload.cost.QUANTITY`": Amount,
    "`services.NAME.behaviour.latency`": Latency,
    "`workload`": Workload,
    "`schedules.NAME`": ScheduleConfig,
    "`retry`": RetryConfig,
}
IN_WORDS = {"name", "services", "workload", "retry", "behaviour", "latency"}
"""Keys whose default is told in words."""


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """The program turns runcue's log off for its own process; this one has other tests to run."""
    logger = logging.getLogger("runcue")
    before = logger.level, logger.propagate, logger.handlers[:]
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers[:] = before[1:]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("text", blocks("yaml"))
def test_a_configuration_of_the_guide_loads(text: str) -> None:
    assert load(text, name="guide").services


@pytest.mark.parametrize("title", sorted(TABLES))
def test_every_key_is_in_its_table_with_its_default_and_no_other(title: str) -> None:
    table = re.search(rf"^\*\*{re.escape(title)}\*\*\n\n(.*?)\n\n", GUIDE, re.DOTALL | re.MULTILINE)
    assert table is not None
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", table[1], re.MULTILINE))
    fields = {field.name: field for field in msgspec.structs.fields(TABLES[title])}
    assert list(rows) == list(fields)
    for name, said in rows.items():
        if name not in IN_WORDS:
            field = fields[name]
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            assert json.loads(said.strip("`")) == msgspec.to_builtins(default), name


def test_every_scenario_is_in_the_guide_and_no_other() -> None:
    section = GUIDE.split("## Scenarios")[1].split("## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(SCENARIOS)


def test_every_key_of_the_screen_is_in_the_guide() -> None:
    section = GUIDE.split("## Watching")[1].split("## ")[0]
    for key in {word for line in HELP.splitlines() for word in line[:11].split() if len(word) == 1}:
        assert f"`{key}`" in section


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_guide_is_one(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(line)
    assert program == "runcue-sim"
    context = command.make_context("runcue-sim", arguments)
    if context.params["replay"] is None:
        assert request_of(context.params).config.services


def test_the_first_command_says_what_the_guide_says(capsys: pytest.CaptureFixture[str]) -> None:
    said = blocks("console")[0]
    line, _, output = said.partition("\n")
    assert invoke(shlex.split(line)[2:]) == 0
    assert capsys.readouterr().out == output


def test_the_mistake_of_the_guide_is_reported_like_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(blocks("yaml")[0].replace("error_rate: 0.02", "error_rate: 1.5"), encoding="utf-8")
    assert invoke(["--config", str(path)]) == 2
    assert capsys.readouterr().err == blocks("text")[0]
