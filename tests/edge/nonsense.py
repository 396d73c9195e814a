"""Values that nobody should pass: every kind of type and the edges of each, some of them hostile."""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from hypothesis import strategies as st


class Hostile:
    """Raises whatever is asked of it."""

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError("leave me alone")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = _refuse
    __lt__ = __gt__ = __le__ = __ge__ = __index__ = __float__ = __int__ = _refuse


ODDITIES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2**63,
    2**70,
    -(10**400),
    10**5000,
    0.0,
    -0.0,
    5e-324,
    -1e-9,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    1j,
    Decimal("NaN"),
    Fraction(1, 3),
    "",
    " ",
    "\0",
    "\ud800",
    "x" * 1_000_000,
    "'; DROP TABLE work_units; --",
    "６０/min",
    "1e9/sec",
    "60/fortnight",
    "{0.__class__}",
    "{host!r:>1000000000}",
    "../../etc/passwd",
    "#threads",
    b"60/min",
    bytearray(b"x"),
    (),
    (60, 0),
    (math.nan, 1),
    [],
    [[]],
    {},
    {"a": 1},
    {1: 2},
    set(),
    frozenset({1}),
    timedelta(days=-1),
    timedelta.max,
    date(2024, 1, 1),
    datetime(2024, 1, 1),  # noqa: DTZ001 (without a zone on purpose)
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    Path("..") / "x",
    object,
    object(),
    print,
    len,
    int,
    lambda: None,
    lambda work: None,
    lambda a, b, c: None,
    ValueError,
    ValueError("x"),
    NotImplemented,
    ...,
    Hostile(),
    [Hostile()],
    (Hostile(), 1),
]


def oddity(number: int) -> Any:
    """One of them, by its place: not all of them can be shown."""
    return ODDITIES[number]


anything = st.one_of(
    st.integers(0, len(ODDITIES) - 1).map(oddity),
    st.integers(),
    st.floats(),
    st.text(max_size=200),
    st.binary(max_size=20),
    st.timedeltas(),
    st.datetimes(),
    st.lists(st.one_of(st.text(max_size=5), st.integers(), st.none()), max_size=4),
    st.tuples(st.integers(), st.integers()),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)
