"""The description fits what the server answers, whatever it is asked (WB14)."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from runcue import web
from runcue.web import app, guard
from runcue.web.describe import ERRORS
from runcue.web.site import TABLE
from runcue.web.table import STREAM
from tests.web.conftest import BEARER, TOKEN, client, fill, prepared

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue in a file: each request may come on a loop of its own."""
    found = tmp_path_factory.mktemp("schema") / "q.db"

    async def make() -> None:
        cue = prepared(str(found))
        async with cue:
            await fill(cue)
            await cue.submit("call", id="known", delay=3600)
        await cue.close()

    asyncio.run(make())
    return found


@pytest.fixture(scope="module")
def described(path: Path) -> Iterator[Any]:
    made = app(path, token=TOKEN, hosts=["testserver"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "TRIES", 10_000)  # links with made-up tokens and codes are among what is asked
        yield schemathesis.openapi.from_asgi("/openapi.json", made, headers=dict(BEARER))


ASKED = [(line.method, re.sub(r":path}", "}", line.path)) for line in TABLE if line.kind != STREAM]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "at"), ASKED)
def test_every_answer_is_as_described(method: str, at: str, mode: GenerationMode, described: Any) -> None:
    operation = described[at][method]
    statuses: Counter[int] = Counter()

    @settings(max_examples=8, phases=[Phase.generate], derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        statuses[case.call_and_validate(headers=dict(BEARER), checks=CHECKS).status_code] += 1

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # where nothing is asked for, nothing can be wrong
    assert not statuses[503]
    if mode is GenerationMode.POSITIVE and "{" not in at:
        assert statuses[200]


@pytest.mark.parametrize(("method", "at"), [one for one in ASKED if "{" in one[1]])
def test_what_there_is_is_as_described(method: str, at: str, described: Any) -> None:
    name = {
        "works": "known",
        "services": "api",
        "queues": "default",
        "schedules": "nightly",
        "static": "index.html",
    }[at.split("/")[1]]
    body: Any = {} if method != "GET" else NOT_SET
    case = described[at][method].Case(
        path_parameters={"name": name}, body=body, media_type="application/json"
    )
    assert case.call_and_validate(headers=dict(BEARER), checks=CHECKS).status_code == 200


def test_every_refusal_is_described() -> None:
    used: set[int] = set()
    for source in Path(web.__file__).parent.glob("*.py"):
        used |= {int(one) for one in re.findall(r"(?:Refused|refusal)\((\d{3})", source.read_text())}
    assert used - {500} <= set(ERRORS)


async def test_every_address_is_described(path: Path) -> None:
    async with client(app(path, token=TOKEN)) as asker:
        document = (await asker.get("/openapi.json")).json()
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert found == {(line.method, re.sub(r":path}", "}", line.path)) for line in TABLE}
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)
    text = str(document)
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in document["components"]["schemas"]
