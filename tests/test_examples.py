"""The examples run as they stand, each in a process of its own, and say what they should."""

import os
import re
import signal
import struct
import subprocess
import sys
import zlib
from itertools import islice
from pathlib import Path

import pytest

from examples import pipeline, tiles

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "examples.md"


def started(name: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """An example under way, with a temporary directory of its own."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints; it must end well and complain about nothing."""
    with started(name, folder, *arguments) as process:
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (0, "")
    return output


def figure(name: str, output: str) -> int:
    """A figure of the demo's summary."""
    found = re.search(rf"^  {name} +(\d+)", output, re.MULTILINE)
    assert found is not None, output
    return int(found[1])


def on_the_page(name: str) -> str:
    """What docs/examples.md says that an example prints."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^\$ python examples/{name}$\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name} is not on the page"
    return found[1]


def test_the_quickstart_prints_its_results_in_order(tmp_path: Path) -> None:
    assert run("quickstart.py", tmp_path) == f"squares: {' '.join(str(n * n) for n in range(20))}\n"


def test_schedules_go_through_a_change_of_the_clocks_and_a_night_without_power(tmp_path: Path) -> None:
    output = run("schedules.py", tmp_path)
    assert output == on_the_page("schedules.py")
    lines = output.splitlines()
    assert lines == sorted(lines, key=lambda line: (["Sat", "Sun", "Mon"].index(line[:3]), line[4:9]))
    assert len({line[11:] for line in lines}) == len(lines), "no slot twice"


def test_the_limits_are_kept_and_the_circuit_opens_and_closes(tmp_path: Path) -> None:
    output = run("limits.py", tmp_path)
    assert "api:   45 calls; at most 5 in 100 ms and 20 in a second" in output
    told = re.findall(r"flaky: (circuit .*)", output)
    assert (told[0], told[-1]) == ("circuit opened", "circuit closed")


def test_the_demo_does_everything_once_and_skips_it_the_second_time(tmp_path: Path) -> None:
    first = run("pipeline.py", tmp_path, "--folder", "out")
    assert "\x1b" not in first
    assert "earlier run" not in first
    assert [figure(name, first) for name in ("documents", "completed", "skipped", "failed")] == [
        12,
        148,
        0,
        2,
    ]
    assert (figure("retries", first), figure("throttled", first)) == (13, 1)
    assert figure("busiest", first) <= 15
    assert "letter-2/7: Permanent: no text on this page" in first

    second = run("pipeline.py", tmp_path, "--folder", "out")
    assert second.splitlines()[0] == (
        "An earlier run is in out, and what it finished is skipped. From the beginning: make demo ARGS=--fresh"
    )
    assert [figure(name, second) for name in ("completed", "skipped", "failed")] == [0, 148, 2]
    assert "what is done is skipped" in second


def test_the_demo_keeps_what_it_makes_under_the_checkout() -> None:
    assert pipeline.FOLDER == ROOT / ".cache" / "demo"


def test_the_demo_sums_up_what_it_did_when_interrupted(tmp_path: Path) -> None:
    with started("pipeline.py", tmp_path, "--folder", "out") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (130, "")
    assert re.search(r"^Interrupted after .* s, \d+ units left for the next run$", output, re.MULTILINE)
    assert figure("completed", output) > 0


def test_the_durable_one_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    read: list[str] = []
    for _ in range(3):
        with started("durable.py", tmp_path) as process:
            assert process.stdout is not None
            lines = list(islice(process.stdout, 8))
            process.kill()
            read += [line for line in lines + process.stdout.readlines() if line.startswith("read page ")]
        assert process.returncode == -signal.SIGKILL
    last = run("durable.py", tmp_path).splitlines()
    read += [f"{line}\n" for line in last if line.startswith("read page ")]
    assert re.fullmatch(r"going on: \d+ of 61 were done before", last[0])
    path = tmp_path / f"runcue-durable-{os.getuid()}" / "book.txt"
    assert last[-1] == f"done: {path}"
    assert set(read) == {f"read page {number}\n" for number in range(1, 61)}
    assert len(read) <= 60 + 3 * 4  # what ran when it was killed ran again, and nothing else
    book = path.read_text(encoding="utf-8")
    assert book == "".join(f"text of page {number}\n" for number in range(1, 61))

    again = run("durable.py", tmp_path)
    assert again.splitlines()[0] == "going on: 61 of 61 were done before"
    assert "read page" not in again


# ------------------------------------------------------------------------------------------------- apple pie


def made(output: str) -> list[list[str]]:
    """What was made each time, in order."""
    parts = re.split(r"^\d\. .*$", output, flags=re.MULTILINE)[1:]
    return [
        [" ".join(line.split()[1:]) for line in re.findall(r"^   \d:\d\d .*$", part, re.MULTILINE)]
        for part in parts
    ]


def test_the_pie_is_made_once_and_then_only_what_changed(tmp_path: Path) -> None:
    output = run("apple_pie.py", tmp_path)
    first, second, third, fourth = made(output)
    assert len(first) == len(set(first)) == 11
    for before, after in (
        ("slice pear", "fill pear"),
        ("knead", "fill pear"),
        ("bake pear", "serve pear for Dov"),
    ):
        assert first.index(before) < first.index(after)
    assert second == []
    of_pears = {"slice pear", "fill pear", "bake pear", "serve pear for Cleo", "serve pear for Dov"}
    assert set(third) == of_pears
    assert set(fourth) == set(first) - {"slice pear", "slice apple"}
    assert re.findall(r"(\d+) made, (\d+) skipped", output) == [
        ("11", "0"),
        ("0", "11"),
        ("5", "6"),
        ("9", "2"),
    ]
    assert re.findall(r"at most (\d) hands and (\d) oven", output) == [("2", "1")] * 3
    assert "mould" not in output
    assert "Dov has baked slices of soft yellow pears in a crust of flour and butter" in output
    assert list(tmp_path.iterdir()) == []
    assert output == on_the_page("apple_pie.py")


# ---------------------------------------------------------------------------------------------------- orders


def test_each_order_is_charged_once_although_the_shop_is_killed_twice(tmp_path: Path) -> None:
    output = run("orders.py", tmp_path)
    assert (output.count("The shop opens\n"), output.count("killed: ")) == (3, 2)
    rows = dict(re.findall(r"^(\w+) +\d+\.\d\d +(.*)$", output, re.MULTILINE))
    assert {name: row.split() for name, row in rows.items()} == {
        name: ["–"] * 4 if name == "e105" else ["1×"] * 4
        for name in ("a101", "b102", "c103", "d104", "e105", "f106")
    }
    assert "d104/ship: skipped, there is a proof" in output
    assert "asked 9 times (6 × 200, 1 × 402, 1 × 429, 1 × 500) and took 74.60." in output
    assert re.findall(r"^Dead letter: (\S+), (.*)$", output, re.MULTILINE) == [
        ("e105/charge", "HTTPError: HTTP Error 402: Payment Required"),
        ("e105/pack", "prerequisite_failed"),
        ("e105/ship", "prerequisite_failed"),
        ("e105/announce", "prerequisite_failed"),
    ]
    assert list(tmp_path.iterdir()) == []
    assert sorted(output.splitlines()) == sorted(on_the_page("orders.py").splitlines())


# ----------------------------------------------------------------------------------------------------- tiles


def parts(png: bytes) -> dict[bytes, bytes]:
    """The parts of a picture, each of which has the checksum that it says."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    found, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length) == (zlib.crc32(name + data),)
        found[name] = data
        at += 12 + length
    return found


def test_the_picture_is_whole_although_a_process_was_killed(tmp_path: Path) -> None:
    output = run("tiles.py", tmp_path, str(tmp_path / "picture.png"))
    left, top = tiles.KILLED
    assert f"tile {left},{top}: WorkerLost: the process that ran it died: signal:KILL" in output
    left, top = tiles.BROKEN
    assert f"tile {left},{top}: ArithmeticError: a bit has flipped, computed again" in output
    told = re.search(r"^96 tiles by (\d+) processes: (.*)$", output, re.MULTILINE)
    assert told is not None
    shares = [int(share.split()[1]) for share in told[2].split(", ")]
    assert (len(shares), sum(shares)) == (int(told[1]), 96)
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]

    picture = parts((tmp_path / "picture.png").read_bytes())
    assert struct.unpack(">IIBBBBB", picture[b"IHDR"])[:2] == (tiles.WIDTH, tiles.HEIGHT)
    lines = zlib.decompress(picture[b"IDAT"])
    across = tiles.WIDTH + 1
    assert len(lines) == across * tiles.HEIGHT
    for x, y in [(0, 0), (479, 319), tiles.KILLED, tiles.BROKEN, (120, 160), (240, 40), (300, 119)]:
        assert lines[y * across + 1 + x] == tiles.colour(x, y), (x, y)


def test_the_picture_of_the_docs_is_that_of_the_example() -> None:
    picture = parts((ROOT / "docs" / "images" / "tiles.png").read_bytes())
    assert picture[b"PLTE"] == tiles.palette()
    assert struct.unpack(">IIBBBBB", picture[b"IHDR"])[:2] == (tiles.WIDTH, tiles.HEIGHT)


def test_where_no_picture_can_be_written_it_says_so(tmp_path: Path) -> None:
    with started("tiles.py", tmp_path, str(tmp_path)) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert errors == f"{tmp_path} is a folder. Name a file to write.\n"
    assert output == ""


def test_no_folder_is_made_for_the_picture(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    with started("tiles.py", tmp_path, str(folder / "x.png")) as process:
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, output) == (1, "")
    assert errors == f"{folder} is no folder. Make it, or name a file elsewhere.\n"
    assert not folder.exists()


# ---------------------------------------------------------------------------------------------------- Ctrl-C


def test_the_durable_one_that_is_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    with started("durable.py", tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("read page ")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (130, "")
    assert output.splitlines()[-1] == "stopped; run it again to go on"


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("orders.py", "The shop opens"),
        ("tiles.py", "tile "),
        ("limits.py", " "),
        ("many_workers/demo.py", "QUEUE names no queue"),
    ],
)
def test_interrupted_it_ends_quietly_and_leaves_nothing(name: str, sign: str, tmp_path: Path) -> None:
    with started(name, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(sign)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (130, "")
    assert list(tmp_path.iterdir()) == []
