"""`runcue` finds units by what was submitted with them, counts, changes and exports them."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import runcue
from tests.cli.works import Inside, refused


async def make(path: Path) -> None:
    cue = runcue.Cue(path)

    @cue.task("read", label="page {page}")
    async def read(work: runcue.Work) -> dict[str, Any]:
        if work.params.get("fails"):
            raise OSError("no line")
        return {"words": work.params["page"], "token": "sk-canary-1234"}

    cue.task("plain")(lambda work: None)
    items: list[dict[str, Any]] = [
        {"id": "a", "task": "read", "params": {"page": 1}, "group": "import-7", "tags": {"run": "nightly"}},
        {"id": "b", "task": "read", "params": {"page": 2, "fails": True}, "group": "import-7"},
        {"id": "c", "task": "read", "params": {"page": 3}, "tags": {"run": "nightly", "who": "me"}},
        {"id": "d", "task": "plain", "params": {"x": 1, "y": "long " * 20, "z": 3, "more": 4}},
        {"id": "e", "task": "plain", "idempotency_key": "key-1"},
    ]
    await cue.submit_many(items)
    async with cue:
        await cue.join()
    later = {"task": "read", "delay": "1h", "params": {"page": 9}, "group": "import-8"}
    await cue.submit_many([{**later, "id": "f"}, {**later, "id": "g"}])
    await cue.close()


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    asyncio.run(make(tmp_path / "queue.db"))
    return Inside(tmp_path / "queue.db", monkeypatch, capsys)


def ids(text: str) -> str:
    return "".join(one["id"] for one in json.loads(text))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--group", "import-7"], "ba"),
        (["--group", "import-7", "--state", "failed"], "b"),
        (["--tag", "run=nightly"], "ca"),
        (["--tag", "run=nightly", "--tag", "who=me"], "c"),
        (["--key", "key-1"], "e"),
        (["--search", "page 3"], "c"),
        (["--since", "1h"], "gfedcba"),
        (["--until", "1h"], ""),
        (["--since", "2020-01-01T00:00:00Z", "--task", "plain"], "ed"),
    ],
)
def test_units_are_listed_by_what_was_submitted_with_them(
    inside: Inside, options: list[str], found: str
) -> None:
    assert ids(inside("list", "--json", *options).out) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tag", "nightly"], "such as run=nightly"),
        (["--tag", "=x"], "such as run=nightly"),
        (["--since", "soon"], "--since"),
        (["--since", "2h", "--until", "long ago"], "--until"),
        (["--json", "--csv"], "not both"),
    ],
)
def test_what_chooses_nothing_is_refused(inside: Inside, options: list[str], said: str) -> None:
    refused(inside("list", *options), 2, said)


def test_a_list_shows_what_a_person_knows_each_unit_by(inside: Inside) -> None:
    rows = {line.split("\t")[0]: line.split("\t")[5] for line in inside("list").out.splitlines()}
    long = ("long " * 8)[:39]
    assert rows == {
        "a": "page 1", "b": "page 2", "c": "page 3", "d": f"x=1 y={long}… z=3", "e": "key-1", "f": "page 9",
        "g": "page 9",
    }  # fmt: skip


def test_json_and_csv_have_all_that_is_known(inside: Inside) -> None:
    [one] = json.loads(inside("list", "--json", "--raw", "--tag", "run=nightly", "--group", "import-7").out)
    wanted = {"label": "page 1", "group": "import-7", "tags": {"run": "nightly"}, "params": {"page": 1}}
    assert one | wanted == one
    assert one["result"] == {"words": 1, "token": "sk-canary-1234"}
    rows = [*csv.DictReader(io.StringIO(inside("list", "--csv", "--raw").out))]
    assert [row["id"] for row in rows] == [*"gfedcba"]
    assert rows[-1]["result"] == '{"words":1,"token":"sk-canary-1234"}'
    assert (rows[-1]["label"], json.loads(rows[-1]["tags"]), rows[2]["idempotency_key"]) == (
        "page 1", {"run": "nightly"}, "key-1",
    )  # fmt: skip
    assert "sk-canary" not in inside("list", "--csv").out
    cut = inside("list", "--csv", "--limit", "2")
    assert (len(cut.out.splitlines()), "There are more than these 2" in cut.err) == (3, True)


def test_show_tells_label_group_and_tags(inside: Inside) -> None:
    said = inside("show", "a").out
    assert all(text in said for text in ("page 1", "import-7", "run=nightly"))


def test_units_are_counted(inside: Inside) -> None:
    said = inside("count", "--group", "import-7").out
    assert "import-7: 2 of 2 units, 1 failed" in said
    assert "failed\t1" in said
    assert json.loads(inside("count", "--tag", "run=nightly", "--json").out)["completed"] == 2
    assert json.loads(inside("count", "--json").out)["pending"] == 2
    refused(inside("count", "--group", "import_7"), 6, "Did you mean 'import-7'?")


def test_chosen_units_are_cancelled_and_retried(inside: Inside) -> None:
    assert "2 units would be cancelled" in inside("cancel", "--group", "import-8", "--dry-run").out
    refused(inside("cancel", "--group", "import-8"), 2, "--yes")
    assert "Cancelled 2 units" in inside("cancel", "--group", "import-8", "--yes").out
    assert "Cancelled 0 units" in inside("cancel", "--group", "import-8", "--yes").out
    assert inside("retry", "--group", "import-8", "--state", "cancelled", "--dry-run").out.split() == [
        "f",
        "g",
    ]
    assert "Requeued 2 units" in inside("retry", "--group", "import-8", "--state", "cancelled", "--yes").out
    assert inside("retry", "--tag", "run=nightly", "--yes").out.strip() == "Requeued 0 units"
    assert "Requeued 1 unit" in inside("retry", "--all-failed", "--group", "import-7", "--yes").out
    for verb in ("cancel", "retry"):
        refused(inside(verb), 2, "Say which")
        refused(inside(verb, "a", "--group", "import-7"), 2, "not both")
    refused(inside("cancel", "a", "--dry-run"), 2, "--dry-run")
    refused(inside("retry", "--state", "pending"), 2, "Only failed and cancelled")


def test_events_of_a_unit_and_of_a_group_are_shown(inside: Inside) -> None:
    rows = [line.split("\t") for line in inside("events", "--unit", "b").out.splitlines()]
    assert [row[3] for row in rows] == ["queued", "started", "failed"]
    found = [json.loads(line) for line in inside("events", "--group", "import-7", "--json").out.splitlines()]
    assert {one.get("unit") for one in found} == {"a", "b", None}
    assert found[-1]["type"] == "group_done"
    assert "sk-canary" not in inside("events", "--unit", "a", "--json").out
    assert "sk-canary" in inside("events", "--unit", "a", "--json", "--raw", "--type", "completed").out
    refused(inside("events", "--unit", "nobody"), 6, "nobody")
    refused(inside("events", "--group", "nobody"), 6, "nobody")
    refused(inside("events", "--type", "finished"), 2, "event type")


def test_results_are_exported_whole_or_not_at_all(
    inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    told = inside("export", "--tag", "run=nightly", "--results", str(out))
    assert "2 results written to" in told.err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["label"], row["result"]["words"]) for row in rows] == [
        ("c", "page 3", 3),
        ("a", "page 1", 1),
    ]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert len(inside("export", "--group", "import-7", "--results", "-").out.splitlines()) == 1
    refused(inside("export", "--results", str(tmp_path)), 2, "is a folder")
    refused(inside("export", "--results", str(tmp_path / "none" / "x")), 2, "--results")

    def broken(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    assert inside("export", "--group", "import-7", "--results", str(out)).code != 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["c", "a"]
    assert not [*tmp_path.glob(".out*")]
