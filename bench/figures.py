"""python -m bench.figures: fill the marked places of the pages from docs/figures.json, which `bench --write` makes.

Rules:
- A figure has a key, `measure: line`, where the line is named as `python -m bench` names it. It keeps all its runs,
  the worst and the best of them, its goal and the day; nothing of it is typed by hand.
- `<!-- bench: key -->…<!-- / -->` on a page is filled with the spread, from the lowest run to the highest. Several
  keys, separated by ` & `, are one spread; after `; rounded` two digits count.
- `<!-- goal: key -->…<!-- / -->` is filled with the goal, and says where runs missed it.
- `<!-- days: measure -->…<!-- / -->` is filled with the day of its figures, or the first and the last.
- `<!-- peers: table -->` and `<!-- end -->` enclose what bench.peers.report makes of the part `peers` of the file.
- Whoever fills pages measures nothing, and whoever measures fills them at once.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.child import ROOT
from bench.measure import Line

FILE = ROOT / "docs" / "figures.json"
PAGES = tuple(
    ROOT / name
    for name in (
        "README.md",
        "docs/figures.md",
        "docs/scale.md",
        "docs/peers.md",
        "docs/guides/transactions.md",
    )
)
MARK = re.compile(r"(<!-- (bench|goal|days): ([^>]+?)(; rounded)? -->)(.*?)(<!-- / -->)")
TOGETHER = " & "
UNKNOWN = "not measured yet"
"""What a page says in the place of a figure that has no run."""
Figures = dict[str, Any]


def stored(path: Path = FILE) -> dict[str, Any]:
    """What the file has."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def keep(found: Mapping[str, Any], path: Path = FILE) -> None:
    """Write the file: a line for each figure, so that a change of one is a change of one line."""
    figures = ",\n".join(
        f"  {json.dumps(key, ensure_ascii=False)}: {json.dumps(figure, ensure_ascii=False)}"
        for key, figure in sorted(found["figures"].items())
    )
    rest = {name: part for name, part in found.items() if name != "figures"}
    text = json.dumps(rest, indent=1, ensure_ascii=False)
    path.write_text(f'{{\n "figures": {{\n{figures}\n }},\n{text[2:]}\n', encoding="utf-8")


def figure(lines: Iterable[Line], date: str) -> Figures:
    """One figure of the same line in several runs."""
    runs = list(lines)
    values = [float(f"{line.value:.6g}") for line in runs]
    low, high = min(values), max(values)
    last = runs[-1]
    worst, best = (low, high) if last.is_more_better else (high, low)
    made: Figures = {"date": date, "unit": last.unit, "runs": values, "worst": worst, "best": best}
    if last.goal:
        missed = sum(line.passed is False for line in runs)
        made |= {"goal": last.goal, "missed": missed}
    return made


def number(value: float, digits: int) -> str:
    """A number with so many decimals."""
    return f"{value:,.{digits}f}"


def decimals(highest: float) -> int:
    """As many as a figure deserves."""
    return 0 if highest >= 100 else 1 if highest >= 10 else 2


def rounded(value: float) -> str:
    """Two digits that matter."""
    return f"{float(f'{value:.2g}'):,.10g}"


def spread(figures: list[Figures], is_rounded: bool) -> str:
    """From the lowest run to the highest."""
    values = [value for one in figures for value in (one["worst"], one["best"]) if value is not None]
    if not values:
        return UNKNOWN
    low, high = min(values), max(values)
    digits = max(one.get("digits", decimals(high)) for one in figures)
    ends = [rounded(value) if is_rounded else number(value, digits) for value in (low, high)]
    note = (
        f" ({figures[0]['note']})" if len(figures) == 1 and figures[0].get("note") and not is_rounded else ""
    )
    return "–".join(dict.fromkeys(ends)) + note


def verdict(one: Figures) -> str:
    """The goal, and whether runs missed it."""
    if not one.get("goal"):
        return ""
    missed, runs = one["missed"], len(one["runs"])
    said = (
        "" if not missed else ", **missed**" if missed == runs else f", **missed** in {missed} of {runs} runs"
    )
    return f"{one['goal']}{said}"


def days(figures: Mapping[str, Figures], measures: list[str]) -> str:
    """When these measures were made."""
    found = {
        one["date"] for key, one in figures.items() if key.partition(": ")[0] in measures and one["runs"]
    }
    return " to ".join(dict.fromkeys((min(found), max(found)))) if found else UNKNOWN


def filled(text: str, figures: Mapping[str, Figures]) -> str:
    """A page with all its marked places anew; a key that the file does not have is an error."""

    def place(mark: re.Match[str]) -> str:
        keys = mark[3].split(TOGETHER)
        if mark[2] == "days":
            return f"{mark[1]}{days(figures, keys)}{mark[6]}"
        if gone := [key for key in keys if key not in figures]:
            raise KeyError(f"no figure {gone[0]!r} in {FILE.name}: measure it with python -m bench --write")
        chosen = [figures[key] for key in keys]
        made = spread(chosen, bool(mark[4])) if mark[2] == "bench" else verdict(chosen[0])
        return f"{mark[1]}{made}{mark[6]}"

    return MARK.sub(place, text)


def wanted() -> dict[str, set[str]]:
    """The lines of each measure that pages show."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for mark in MARK.finditer(page.read_text(encoding="utf-8")):
            for key in mark[3].split(TOGETHER) if mark[2] != "days" else ():
                measure, _, line = key.partition(": ")
                found.setdefault(measure, set()).add(line)
    return found


def pages(found: Mapping[str, Any]) -> dict[Path, str]:
    """What the pages and pictures are to say."""
    from bench.peers import report  # who only measures needs none of it

    made = {page: filled(page.read_text(encoding="utf-8"), found["figures"]) for page in PAGES}
    made[report.PAGE] = report.written(made[report.PAGE], found["peers"])
    return made | {report.IMAGES / name: picture for name, picture in report.pictures(found["peers"]).items()}


def stale(found: Mapping[str, Any]) -> list[Path]:
    """The pages that say something else than the file."""
    return [
        path
        for path, text in pages(found).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Fill the pages, or only say which of them are not as the file has it."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 if a page is not filled"
    )
    arguments = parser.parse_args()
    found = stored()
    late = stale(found)
    if arguments.check:
        for path in late:
            print(f"{path.relative_to(ROOT)} does not say what docs/figures.json has")
        return 1 if late else 0
    for path, text in pages(found).items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
