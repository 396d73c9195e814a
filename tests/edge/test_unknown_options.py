"""An option that does not exist is refused with advice that can be followed where it is given."""

from collections.abc import Callable
from typing import Any

import pytest

from runcue import UnknownOption, Work
from runcue.core.model.retry import Retry
from runcue.declare.options import Options
from runcue.declare.registry import Registry
from runcue.declare.service_options import read_changes, read_limits

SERVICE = 'Limits belong to a service: cue.service("api", rate="60/min", concurrent=5), and uses="api"'
LATER = "delay= for seconds from now, or run_at= for a moment."


async def extract(work: Work) -> None: ...


def submit(**given: Any) -> None:
    registry = Registry(Options())
    registry.task("extract")(extract)
    registry.spec("extract", make_id=str, **given)


CALLS: dict[str, Callable[..., object]] = {
    "Cue": Options.of,
    "service()": lambda **given: read_limits("api", **given),
    "total=": lambda **given: read_limits("api", per="user", total=given),
    "set_limits()": read_changes,
    "task()": lambda **given: Registry(Options()).task("extract", **given),
    "submit()": submit,
    "retry": Retry.of,
}


@pytest.mark.parametrize(
    ("where", "name", "advice"),
    [
        ("Cue", "max_retries", "Give it to task() or submit(): retry=3."),
        ("Cue", "rate", f"{SERVICE} in task()."),
        ("Cue", "concurrency", f"Say max_running=5 for all units together. {SERVICE} in task()."),
        ("Cue", "queue", "Give it to submit(), for each unit."),
        ("service()", "concurrency", "Did you mean 'concurrent'?"),
        ("service()", "retries", "Give it to task() or submit(): retry=3."),
        ("service()", "data", "It takes 'circuit_threshold', "),
        ("total=", "max_concurrent", "Did you mean 'concurrent'?"),
        ("set_limits()", "rate_limit", 'Say rate="60/min" or concurrent=5.'),
        ("task()", "rate", f"{SERVICE} here."),
        ("task()", "max_retries", "Say retry=3, or "),
        ("task()", "countdown", f"Give it to submit(): {LATER}"),
        ("task()", "delay", "Give it to submit(), for each unit."),
        ("task()", "args", "Arguments of the handler are given to submit(): params={…}."),
        ("submit()", "param", "Did you mean 'params'?"),
        ("submit()", "page", "Arguments of the handler go into params={'page': …}."),
        ("submit()", "args", "Arguments of the handler go into params={…}."),
        ("submit()", "concurrent", f"{SERVICE} in task()."),
        ("submit()", "retries", "Say retry=3, or "),
        ("submit()", "countdown", f"Say {LATER}"),
        ("submit()", "after", "Say depends_on=[id, …]."),
        ("submit()", "uses", "Give it to task(), for all its units."),
        ("submit()", "service", 'Give it to task(): uses="api".'),
        ("retry", "retries", "Say max_attempts=3."),
    ],
)
def test_the_advice_holds_where_it_is_given(where: str, name: str, advice: str) -> None:
    call = CALLS[where]
    with pytest.raises(UnknownOption) as caught:
        call({name: 3}) if where == "retry" else call(**{name: 3})
    assert str(caught.value).startswith(f"{where} has no option {name!r}. {advice}")
