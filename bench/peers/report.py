"""python -m bench.peers.report: write `peers` of docs/figures.json into docs/peers.md, and draw pictures.

The page keeps its words; what stands between `<!-- peers: name -->` and `<!-- end -->` is made here, and made anew
each time. Where runcue is behind is found out here too, so that the page cannot forget it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any

from bench import figures
from bench.child import ROOT
from bench.peers.charts import Bar, bars
from bench.peers.contenders import CONTENDERS, UNAVAILABLE

PAGE = ROOT / "docs" / "peers.md"
IMAGES = ROOT / "docs" / "images"
PART = re.compile(r"(<!-- peers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
FILE, POSTGRES = "runcue, file", "runcue, PostgreSQL"
Found = dict[str, Any]
Rows = list[dict[str, Any]]
UNKNOWN = ""
"""Of a measurement from before the slowest round was kept."""
WIDTH = 128
"""Of a line of the page that is no table."""


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown; all but the first column are as wide as they need to be."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def by_key(rows: Rows, key: str) -> dict[str, Any]:
    """One row, or an empty one."""
    return next((row for row in rows if row["key"] == key and not row["error"]), {})


def measured(rows: Rows) -> Rows:
    """Those with figures."""
    return [row for row in rows if not row["error"]]


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Two digits that matter."""
    return f"{value:,.0f} ×" if value >= 10 else f"{value:.2g} ×"


def bold(text: str, row: dict[str, Any]) -> str:
    """runcue stands out."""
    return f"**{text}**" if row["name"] == "runcue" else text


# --- Tables ---------------------------------------------------------------------------------------


def throughput(found: Found) -> str:
    """Units a second, the fastest first."""
    rows = found["throughput"]
    file, postgres = by_key(rows, FILE).get("speed"), by_key(rows, POSTGRES).get("speed")
    told = {one.key: one for one in CONTENDERS}
    lines = []
    for row in sorted(measured(rows), key=lambda row: -row["speed"]):
        ratios = [ratio(mine / row["speed"]) if mine else "" for mine in (file, postgres)]
        cost = f"{number(1e6 * row['client'])} + {number(1e6 * row['server'])}"
        one = told[row["key"]]
        lines.append(
            [
                bold(row["name"], row),
                row["store"],
                number(row["speed"]),
                number(row["slowest"]) if "slowest" in row else UNKNOWN,
                *ratios,
                cost,
                one.power,
                one.how,
            ]
        )
    lines += [
        [row["name"], row["store"], "—", "", "", "", "", "", row["error"]] for row in rows if row["error"]
    ]
    known = {row["key"] for row in rows}
    lines += [
        [one.label, one.store, "—", "", "", "", "", "", "not measured yet"]
        for one in CONTENDERS
        if one.key not in known
    ]
    head = [
        *("", "store", "units/s", "slowest round", "runcue, file", "runcue, PostgreSQL"),
        *("processor, µs a unit: queue + server", "a crash of the store or a power cut leaves", "settings"),
    ]
    return table(head, lines)


def latency(found: Found) -> str:
    """Milliseconds, the shortest first."""
    rows = found["latency"]
    lines = [
        [
            bold(row["name"], row),
            row["store"],
            number(1e3 * row["p50"]),
            number(1e3 * row["slowest"]) if "slowest" in row else UNKNOWN,
            number(1e3 * row["p99"]),
        ]
        for row in sorted(measured(rows), key=lambda row: row["p50"])
    ]
    lines += [[row["name"], row["store"], "—", "", row["error"]] for row in rows if row["error"]]
    return table(["", "store", "p50, ms", "p50, slowest round", "p99, ms"], lines)


def limits(found: Found) -> str:
    """Windows, for each limit."""
    lines = []
    for row in found["limits"]:
        head = [bold(row["name"], row), f"{row['limit']:,}/s"]
        if row["error"]:
            lines.append([*head, "—", "", "", "", row["error"]])
            continue
        figures = [
            f"{row['exceeded']:,}",
            f"{row['worst']:,}",
            f"{row['used']:.1f} %",
            number(1e6 * row["processor"]),
        ]
        lines.append([*head, *figures, f"`{row['how']}`"])
    head = [
        "",
        "limit",
        "windows exceeded",
        "most in one",
        "permitted starts used",
        "processor, µs a start",
        "how",
    ]
    return table(head, lines)


def recovery(found: Found) -> str:
    """What became of units after a kill."""
    told = {one.key: one for one in CONTENDERS}
    lines = []
    for row in found["recovery"]:
        head = [bold(row["name"], row), row["store"]]
        if row["error"]:
            lines.append([*head, "—", row["error"], ""])
            continue
        again = f"{row['again']} of {row['works']}"
        lines.append([*head, str(row["running"]), again, after(row), told[row["key"]].worker])
    return table(["", "store", "ran", "began anew", "after", "a unit whose worker dies"], lines)


def after(row: dict[str, Any]) -> str:
    """When the last of the units began anew."""
    if not row["again"]:
        return f"none within {row['bound']:g} s"
    if row["again"] < row["works"]:
        return f"not all within {row['bound']:g} s"
    return f"{row['seconds']:.1f} s"


def behind(found: Found) -> str:
    """Where a peer did better than runcue, in one list."""
    said = []
    for what, figure, sign in (("Throughput", "speed", -1), ("Latency, p50", "p50", 1)):
        rows = measured(found["throughput" if figure == "speed" else "latency"])
        for key in (FILE, POSTGRES):
            if mine := by_key(rows, key).get(figure):
                ahead = [row for row in rows if row["name"] != "runcue" and sign * row[figure] < sign * mine]
                names = ", ".join(f"{row['key']} ({row[figure] / mine:.2f} ×)" for row in ahead)
                verdict = f"behind {names}" if ahead else "ahead of every peer measured"
                said.append(f"- {what}, {key}: {verdict}.")
    rows = measured(found["limits"])
    for limit in sorted({row["limit"] for row in rows}):
        needs = {row["name"]: row["processor"] for row in rows if row["limit"] == limit}
        less = [name for name, processor in needs.items() if processor < needs.get("runcue", 0.0)]
        names = f"less than runcue: {', '.join(less)}" if less else "nobody less than runcue"
        said.append(f"- Processor for each start at {limit:,}/s: {names}.")
    return "".join(fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) + "\n" for line in said)


def unavailable(_: Found) -> str:
    """Who could not be had, what was tried, and what their own pages say of them."""
    return table(
        ["", "what was tried", "published by its own project, on its own machine"],
        [[one.name, one.tried, one.published or "—"] for one in UNAVAILABLE],
    )


def machine(found: Found) -> str:
    """What it all ran on."""
    here, versions = found["machine"], found["versions"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {found['date']}: {here['system']}, {here['cores']} cores, {here['memory']} GiB, Python "
        f"{here['python']}, load {here['load']} at the beginning; "
        f"{sum(found['seconds'].values()) / 60:.0f} minutes in all.\n\n{told}.\n"
    )


TABLES: dict[str, Callable[[Found], str]] = {
    "throughput": throughput,
    "latency": latency,
    "limits": limits,
    "recovery": recovery,
    "behind": behind,
    "machine": machine,
    "unavailable": unavailable,
}


# --- Pictures -------------------------------------------------------------------------------------


def pictures(found: Found) -> dict[str, str]:
    """Each picture by its name."""
    return {
        "peers-throughput.svg": bars(
            "No-op units a second, from submit to their end in the store",
            "longer is better; logarithmic scale",
            [
                Bar(
                    f"{row['name']}, {row['store']}",
                    row["speed"],
                    number(row["speed"]),
                    row["name"] == "runcue",
                )
                for row in sorted(measured(found["throughput"]), key=lambda row: -row["speed"])
            ],
            is_log=True,
        ),
        "peers-latency.svg": bars(
            "From submit to start on an idle queue",
            "milliseconds, p50; the line is p99; shorter is better; logarithmic scale",
            [
                Bar(
                    row["key"],
                    1e3 * row["p50"],
                    f"{number(1e3 * row['p50'])} ms, p99 {number(1e3 * row['p99'])}",
                    row["name"] == "runcue",
                    1e3 * row["p99"],
                )
                for row in sorted(measured(found["latency"]), key=lambda row: row["p50"])
            ],
            is_log=True,
        ),
        "peers-limits.svg": bars(
            "Most starts in any window of one second",
            "per cent of the limit; the line is the limit",
            [
                Bar(
                    f"{row['name']}, {row['limit']:,}/s",
                    100 * row["worst"] / row["limit"],
                    f"{100 * row['worst'] / row['limit']:.0f} %, {row['used']:.0f} % used",
                    row["name"] == "runcue",
                    100.0,
                )
                for row in measured(found["limits"])
            ],
        ),
        "peers-recovery.svg": bars(
            "Four units, and their worker killed (kill -9): how many began anew",
            "the store lives on; a new worker is started at once",
            [
                Bar(
                    row["key"],
                    row["again"] or None,
                    f"{row['again']} of {row['works']}, {after(row)}",
                    row["name"] == "runcue",
                )
                for row in sorted(
                    measured(found["recovery"]), key=lambda row: (-row["again"], row["seconds"] or 0.0)
                )
            ],
        ),
    }


def written(text: str, found: Found) -> str:
    """The page with all tables anew."""
    return PART.sub(lambda part: f"{part[1]}\n{TABLES[part[2]](found)}\n{part[3]}", text)


def main(results: Path = figures.FILE, page: Path = PAGE, images: Path = IMAGES) -> None:
    """Write the page and its pictures."""
    found = figures.stored(results)["peers"]
    page.write_text(written(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    for name, picture in pictures(found).items():
        (images / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
