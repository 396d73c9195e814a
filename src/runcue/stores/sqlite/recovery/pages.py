"""The pages of a SQLite file and of its log read without SQLite, for files that SQLite no longer reads.

Rules:
- Every number is checked: one that leads out of the file, out of a page or to a page of another kind is damage.
  Pages that only a damaged page leads to are found by looking at all pages.
- A page on the list of free pages holds what was deleted: its rows are not taken.
- The file is read through SQLite's own file layer: closing it must not drop the locks of other connections of this
  process (sqlite/file.py).
- The format is that of https://sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import apsw

from runcue.stores.sqlite.file import HEADER_LENGTH

Values = tuple[Any, ...]
Row = tuple[int, Values]
"""A row number (0 in a table without) and the values beside it."""

USUAL_SIZE: Final = 4096
SMALLEST, LARGEST = 512, 65_536

TABLE_LEAF, TABLE_INSIDE, INDEX_LEAF, INDEX_INSIDE = 13, 5, 10, 2
INSIDE: Final = (TABLE_INSIDE, INDEX_INSIDE)
KINDS: Final = {True: (TABLE_LEAF, TABLE_INSIDE), False: (INDEX_LEAF, INDEX_INSIDE)}
"""What a tree of rows with numbers (True) is made of, and what one without."""

_CONSTANTS: Final = {0: None, 8: 0, 9: 1}
_WIDTHS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8}
_FIRST, _LAST = -(2**63), 2**63 - 1


class Damage(Exception):
    """A page, cell or row is not what SQLite would have written."""


class Pages:
    """The pages of one file, counted from 1."""

    def __init__(self, path: str) -> None:
        self._file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
        self.header = self.read(0, HEADER_LENGTH)
        self.size = page_size(int.from_bytes(self.header[16:18])) or USUAL_SIZE
        self.count = self._file.xFileSize() // self.size

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.xClose()

    def read(self, start: int, amount: int) -> bytes:
        """That many bytes from `start` on, fewer at the end of the file."""
        left = min(amount, self._file.xFileSize() - start)
        return bytes(self._file.xRead(left, start)) if left > 0 else b""

    def page(self, number: int) -> bytes:
        """One page; Damage when there is none."""
        if not 1 <= number <= self.count:
            raise Damage(f"there is no page {number}")
        return self.read((number - 1) * self.size, self.size)

    def free(self) -> tuple[set[int], bool]:
        """The pages on the list of free pages, and whether the whole list could be read."""
        trunk, amount = struct.unpack(">II", self.header[32:40].ljust(8, b"\xff"))
        found: set[int] = set()
        while trunk and trunk not in found and 1 < trunk <= self.count:
            page = self.page(trunk)
            found.add(trunk)
            trunk, leaves = struct.unpack(">II", page[:8])
            if leaves > self.size // 4 - 2:
                return found, False
            numbers = set(struct.unpack(f">{leaves}I", page[8 : 8 + 4 * leaves]))
            if len(numbers) < leaves or numbers & found or not all(1 < one <= self.count for one in numbers):
                return found, False
            found |= numbers
        return found, not trunk and len(found) == amount


def page_size(number: int) -> int | None:
    """The bytes of a page from the number in a header; None for a number that means no size."""
    size = LARGEST if number == 1 else number
    return size if SMALLEST <= size <= LARGEST and not size & (size - 1) else None


# --- Cells ----------------------------------------------------------------------------------------


class Leaf:
    """One page: its rows, the pages that long rows continue on, and the pages below, each with its largest number."""

    def __init__(self, pages: Pages, number: int) -> None:
        data = pages.page(number)
        start = HEADER_LENGTH if number == 1 else 0
        self.kind = data[start]
        if self.kind not in {*KINDS[True], *KINDS[False]}:
            raise Damage(f"page {number} has no kind")
        self.rows: list[Row] = []
        self.below: list[tuple[int, int]] = []
        self.spilled: set[int] = set()
        self.broken = 0
        """Cells that could not be read."""
        first = start + (12 if self.kind in INSIDE else 8)
        amount = int.from_bytes(data[start + 3 : start + 5])
        if first + 2 * amount > pages.size:
            raise Damage(f"page {number} has no room for {amount} cells")
        for at in range(first, first + 2 * amount, 2):
            cell = int.from_bytes(data[at : at + 2])
            try:
                if cell < first + 2 * amount:
                    raise Damage(f"a cell of page {number} is in its header")
                self._cell(pages, data, cell)
            except (Damage, IndexError, struct.error, UnicodeDecodeError):
                self.broken += 1
        if self.kind in INSIDE:
            self.below.append((int.from_bytes(data[start + 8 : start + 12]), _LAST))

    def _cell(self, pages: Pages, data: bytes, at: int) -> None:
        below = number = 0
        if self.kind in INSIDE:
            below = int.from_bytes(data[at : at + 4])
            at += 4
        if self.kind == TABLE_INSIDE:
            number, _ = _varint(data, at)
            self.below.append((below, _signed(number)))
            return
        if below:
            self.below.append((below, _LAST))
        length, at = _varint(data, at)
        if self.kind == TABLE_LEAF:
            number, at = _varint(data, at)
        payload, spilled = self._payload(pages, data, at, length)
        self.rows.append((_signed(number), _values(payload)))
        self.spilled |= spilled

    def _payload(self, pages: Pages, data: bytes, at: int, length: int) -> tuple[bytes, set[int]]:
        """The bytes of a row, and the pages that it continues on."""
        usable = pages.size
        most = usable - 35 if self.kind == TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if length <= most:
            if at + length > usable:
                raise Damage("a row ends beyond its page")
            return data[at : at + length], set()
        least = (usable - 12) * 32 // 255 - 23
        here = least + (length - least) % (usable - 4)
        here = here if here <= most else least
        parts, missing = [data[at : at + here]], length - here
        following = int.from_bytes(data[at + here : at + here + 4])
        spilled: set[int] = set()
        while missing > 0:
            if following in spilled or following == 1 or missing > pages.count * usable:
                raise Damage("the rest of a row is missing")
            page = pages.page(following)
            spilled.add(following)
            parts.append(page[4 : 4 + missing])
            missing -= len(parts[-1])
            following = int.from_bytes(page[:4])
        if following:
            raise Damage("a row continues beyond its length")
        return b"".join(parts), spilled


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _signed(number: int) -> int:
    return number - 2**64 if number > _LAST else number


def _values(payload: bytes) -> Values:
    """The values of a row; every byte of the row has to belong to a value."""
    length, at = _varint(payload, 0)
    place = length
    found: list[Any] = []
    while at < length:
        kind = payload[at]
        if kind < 0x80:
            at += 1
        else:
            kind, at = _varint(payload, at)
        if kind in _CONSTANTS:
            found.append(_CONSTANTS[kind])
            continue
        start, place = place, place + (_WIDTHS[kind] if kind in _WIDTHS else (kind - 12) // 2)
        data = payload[start:place]
        if kind == 7:
            found.append(struct.unpack(">d", data)[0])
            if math.isnan(found[-1]):
                raise Damage("a number is NaN")
        elif kind in _WIDTHS:
            found.append(int.from_bytes(data, signed=True))
        elif kind >= 12:
            found.append(data.decode() if kind % 2 else data)
        else:
            raise Damage(f"there is no kind {kind} of value")
    if at != length or place != len(payload):
        raise Damage("a row has another length than its values")
    return tuple(found)


# --- Trees ----------------------------------------------------------------------------------------


class Tree:
    """A table or an index: its rows, and after they were read its pages and what could not be read."""

    def __init__(self, pages: Pages, root: int, is_table: bool, fits: Callable[[Values], bool]) -> None:
        self._pages = pages
        self._root = root
        self._fits = fits
        self.is_table = is_table
        self.claimed: set[int] = set()
        self.bad: set[int] = set()
        """Pages that the tree leads to, and that are damaged or belong to another tree."""
        self.broken = 0
        """Damaged rows on readable pages."""

    @property
    def is_whole(self) -> bool:
        """True when no damage was found in the part that was read."""
        return not self.bad and not self.broken

    def rows(self) -> Iterator[Row]:
        """The rows of all pages that the root leads to."""
        todo = [(self._root, _FIRST, _LAST)]
        seen: set[int] = set()
        while todo:
            number, low, high = todo.pop()
            try:
                if number in seen:
                    raise Damage(f"two ways lead to page {number}")
                seen.add(number)
                page = self._sound(number, low, high)
            except Damage:
                self.bad.add(number)
                continue
            yield from self._taken(number, page)
            ways = []
            for below, last in page.below:
                ways.append((below, low, min(last, high)))
                low = last if self.is_table else low
            todo += reversed(ways)

    def _sound(self, number: int, low: int, high: int) -> Leaf:
        page = Leaf(self._pages, number)
        if page.kind not in KINDS[self.is_table]:
            raise Damage(f"page {number} belongs to something else")
        if self.is_table and not all(low < row[0] <= high for row in page.rows):
            raise Damage(f"page {number} has rows that belong elsewhere")
        if not self.fits(page):
            raise Damage(f"page {number} has rows of something else")
        return page

    def fits(self, page: Leaf) -> bool:
        """Whether a page may belong to this tree: it has a row that fits, or no rows at all."""
        has_none = page.kind == TABLE_INSIDE or not (page.rows or page.broken)
        return has_none or any(self._fits(values) for _, values in page.rows)

    def take(self, number: int, page: Leaf) -> Iterator[Row]:
        """The rows of a page of this tree that no other page leads to."""
        self.bad.discard(number)
        yield from self._taken(number, page)

    def _taken(self, number: int, page: Leaf) -> Iterator[Row]:
        self.claimed |= {number, *page.spilled}
        self.broken += page.broken
        for row in page.rows:
            if self._fits(row[1]):
                yield row
            else:
                self.broken += 1


def lost_pages(pages: Pages, trees: dict[str, Tree], free: set[int]) -> Iterator[tuple[str, int, Leaf]]:
    """Pages with rows that no other page leads to, each with the name of the only damaged tree that it fits."""
    hurt = {name: tree for name, tree in trees.items() if not tree.is_whole}
    claimed = free.union({1}, *(tree.claimed for tree in trees.values()))
    for number in range(2, pages.count + 1) if hurt else ():
        if number in claimed:
            continue
        try:
            page = Leaf(pages, number)
        except Damage:
            continue
        owners = [
            name for name, tree in hurt.items() if page.kind in KINDS[tree.is_table] and tree.fits(page)
        ]
        if page.rows and len(owners) == 1:
            yield owners[0], number, page


# --- The log --------------------------------------------------------------------------------------

LOG_HEADER, FRAME_HEADER = 32, 24
LOG_MAGIC: Final = 0x377F0682
"""The first number of a log with checksums of little-endian words; one more means big-endian words."""


class Log:
    """The pages in a write-ahead log: those of all commits before the first damage."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.places: dict[int, int] = {}
        """Where the latest version of each page is in the log."""
        self.size = self.count = 0
        """The bytes of a page, and the number of pages after the last commit."""
        self.is_whole = True
        """False when the log has commits that cannot be used."""
        header = file.read(LOG_HEADER)
        if len(header) < LOG_HEADER:
            return
        magic, _, size = struct.unpack(">III", header[:12])
        sums = _sums(header[:24], (0, 0), magic)
        if magic & ~1 != LOG_MAGIC or page_size(size) is None or sums != struct.unpack(">II", header[24:]):
            self.is_whole = not any(header)
            return
        self.size = size
        self._read(header[16:24], sums, magic)

    def _read(self, salt: bytes, sums: tuple[int, int], magic: int) -> None:
        fresh: dict[int, int] = {}
        is_sound = True
        while len(frame := self._file.read(FRAME_HEADER + self.size)) == FRAME_HEADER + self.size:
            number, count = struct.unpack(">II", frame[:8])
            is_ours = frame[8:16] == salt  # else it is left from an earlier log
            if is_sound:
                sums = _sums(frame[FRAME_HEADER:], _sums(frame[:8], sums, magic), magic)
                is_sound = is_ours and number > 0 and sums == struct.unpack(">II", frame[16:24])
            if not is_sound:
                self.is_whole = self.is_whole and not (is_ours and count)
                continue
            fresh[number] = self._file.tell() - self.size
            if count:
                self.places |= fresh
                self.count = count
                fresh = {}

    def page(self, number: int) -> bytes:
        """The latest version of a page."""
        self._file.seek(self.places[number])
        return self._file.read(self.size)


def _sums(data: bytes, before: tuple[int, int], magic: int) -> tuple[int, int]:
    first, second = before
    words = iter(struct.unpack(f"{'>' if magic & 1 else '<'}{len(data) // 4}I", data))
    for word, following in zip(words, words, strict=True):
        first = first + word + second & 0xFFFFFFFF
        second = second + following + first & 0xFFFFFFFF
    return first, second
