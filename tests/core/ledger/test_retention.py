"""Which final records a queue in memory keeps."""

from __future__ import annotations

from runcue.core.ledger.retention import FinishedRetention
from runcue.core.model.record import Extras, Record, Spec


def record(id: str, *outputs: str) -> Record:
    extras = Extras(outputs=outputs) if outputs else None
    return Record(id, Spec(id, "t", b"{}", (), extras=extras), seq=sum(id.encode()), rank=0, created_at=0)


def surplus(kept: FinishedRetention) -> list[str]:
    return [one.id for one in kept.surplus()]


def test_the_last_ones_are_kept() -> None:
    kept = FinishedRetention(1)
    a, b, c = map(record, "abc")
    kept.add(a, b, c)
    kept.drop(b)
    assert surplus(kept) == ["a"]
    kept.add(record("d"))
    assert surplus(kept) == ["c"]


def test_a_result_is_kept_until_the_last_that_wants_it_has_ended() -> None:
    kept = FinishedRetention(0)
    first, second = record("x", "a", "b"), record("y", "a")
    kept.want_for(first)
    kept.want_for(second)
    kept.want_for(record("z"))
    kept.add(record("a"), record("b"), record("c"))
    assert surplus(kept) == ["c"]
    kept.end(first)
    assert surplus(kept) == ["b"]
    kept.end(second)
    assert surplus(kept) == ["a"]
    assert not kept.wanted


def test_a_result_that_was_deleted_is_not_given_back() -> None:
    kept = FinishedRetention(0)
    wants = record("x", "a", "late")
    kept.want_for(wants)
    kept.add(record("a"))
    assert surplus(kept) == []
    kept.drop(record("a"))
    kept.end(wants)
    assert surplus(kept) == []


def test_a_shared_store_decides_for_itself() -> None:
    kept = FinishedRetention(None)
    wants = record("x", "a")
    kept.want_for(wants)
    kept.add(record("a"))
    kept.drop(record("a"))
    kept.end(wants)
    assert surplus(kept) == []
