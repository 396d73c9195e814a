"""`watch` hears every event, however many come at once."""

import pytest

from runcue import Cue, Event
from runcue.testing import run, watch


def test_nothing_is_missed_when_more_is_told_at_once_than_a_reader_could_keep() -> None:
    heard: list[Event] = []

    async def main() -> None:
        cue = Cue()
        watch(cue, heard.append)
        cue.task("call")(lambda work: None)
        await cue.submit_many([{"task": "call", "params": {}} for _ in range(12_000)])
        await cue.submit("call", id="last")
        await cue.cancel("last")

    run(main())
    assert [event.seq for event in heard] == list(range(1, len(heard) + 1))
    assert [event.type for event in heard].count("queued") == 12_001
    assert (heard[-1].type, heard[-1].work_id) == ("cancelled", "last")


def test_a_queue_in_a_file_has_a_log_instead(tmp_path: object) -> None:
    with pytest.raises(ValueError, match="in memory"):
        watch(Cue(f"{tmp_path}/queue.db"), print)
