"""The reference names every metric, as it is."""

import re
from pathlib import Path

from runcue.instrument.prometheus import FAMILIES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (gauge|counter|histogram) \| (?:`(\w+)`)? ?\| (.+) \|$",
        REFERENCE.read_text(),
        re.MULTILINE,
    )
    assert rows == [
        (f"{name}_total" if kind == "counter" else name, kind, label or "", told)
        for name, (kind, label, told) in FAMILIES.items()
    ]
