"""Which events a reader wants."""

import pytest
from msgspec.structs import replace

from runcue.core.model.events import EventDraft, EventFilter, News
from runcue.core.model.record import Record, Spec, WorkState

RECORD = Record("a", Spec("a", "call", b"{}", (), group="g"), 1, 0.0, 0.0)
DONE = replace(RECORD, state=WorkState.COMPLETED, completed_at=1.0)
FAILED = EventDraft("failed", 0.0, RECORD)
STATUS = EventDraft("queue_status", 0.0, None, {"pending": 1})
GROUP_DONE = EventDraft("group_done", 0.0, None, {"group": "g"})
STALE = EventDraft("stale_completion", 0.0, None, {"work_id": "a"})
EVERY = (RECORD, DONE, FAILED, STATUS, GROUP_DONE, STALE)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (EventFilter(), EVERY),
        (EventFilter(frozenset({"completed", "failed"})), (DONE, FAILED)),
        (EventFilter(work_id="a"), (RECORD, DONE, FAILED, STALE)),
        (EventFilter(work_id="b"), ()),
        (EventFilter(group="g"), (RECORD, DONE, FAILED, GROUP_DONE)),
        (EventFilter(group="h"), ()),
        (EventFilter(frozenset({"queued"}), "a", "g"), (RECORD,)),
    ],
)
def test_a_reader_takes_what_it_wants(wanted: EventFilter, taken: tuple[News, ...]) -> None:
    assert tuple(news for news in EVERY if wanted.takes_news(news)) == taken


def test_a_reader_always_wants_to_know_what_it_missed() -> None:
    assert EventFilter(frozenset({"queued"}), "a", "g").takes("gap", None, None)
