"""A picture computed in tiles by all cores, and put together when the last of them is done.

    python examples/tiles.py [PICTURE.png]

Each tile is a plain function in a worker process. One process is killed in the middle of its tile, as happens when
memory runs out, and another tile fails at first: both are computed again, and the picture lacks nothing. Putting
it together depends on all tiles. The file is written by the standard library alone.
"""

import argparse
import asyncio
import logging
import math
import os
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

import runcue

WIDTH, HEIGHT, TILE = 480, 320, 40
# Where in the Mandelbrot set, and how much of it from left to right.
CENTRE, SHOWN = complex(-0.7463, 0.1102), 0.0065
ROUNDS = 360  # a point that has not left by then is said to stay
KILLED, BROKEN = (80, 120), (320, 200)

cue = runcue.Cue()  # as many processes as there are cores, unless pool_size says otherwise
few = runcue.Retry(max_attempts=3, base_delay=0.05)

# ---------------------------------------------------------------------------------------------------- tasks


@dataclass
class Tile:
    """A byte for each of its points, who computed it, and how long that kept a core busy."""

    left: int
    top: int
    lines: list[bytes]
    process: int
    seconds: float


@cue.task(executor="process_pool", retry=few)
def compute(work: runcue.Work, left: int, top: int) -> Tile:
    """Compute one tile."""
    if work.attempt == 1 and (left, top) == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if work.attempt == 1 and (left, top) == BROKEN:
        raise ArithmeticError("a bit has flipped")
    began = time.process_time()
    lines = [bytes(colour(x, y) for x in range(left, left + TILE)) for y in range(top, top + TILE)]
    return Tile(left, top, lines, os.getpid(), time.process_time() - began)


@cue.task
async def assemble(tiles: list[Tile], path: Path) -> None:
    """All tiles are there: lay them side by side and write the file."""
    picture = [bytearray(WIDTH) for _ in range(HEIGHT)]
    for tile in tiles:
        for number, line in enumerate(tile.lines):
            picture[tile.top + number][tile.left : tile.left + TILE] = line
    with runcue.write_output(path, "wb") as file:
        file.write(png(picture))


# -------------------------------------------------------------------------------------------------- picture


def colour(x: int, y: int) -> int:
    """How soon a point leaves, as a colour from 1 to 255; 0 if it stays."""
    step = SHOWN / WIDTH
    start = CENTRE + complex((x - WIDTH / 2) * step, (y - HEIGHT / 2) * step)
    place = 0j
    for number in range(ROUNDS):
        place = place * place + start
        if abs(place) > 8:
            soon = number + 1 - math.log2(math.log(abs(place)))  # a fraction of a round, so that colours flow
            return 1 + int(24 * math.sqrt(max(0.0, soon))) % 255
    return 0


def palette() -> bytes:
    """256 colours: night for what stays, and a wheel from blue over white and amber for the rest."""
    wheel = (
        [128 + 127 * math.cos(2 * math.pi * (n / 255 - at)) for at in (-0.03, -0.1, -0.25)]
        for n in range(255)
    )
    return bytes([8, 8, 24]) + b"".join(bytes(map(int, one)) for one in wheel)


def png(lines: list[bytearray]) -> bytes:
    """The file, as the PNG specification wants it: each part has its length, its name and its checksum."""

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    # 8 bits for each point, a number in the palette.
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)
    points = zlib.compress(b"".join(b"\0" + line for line in lines), 9)
    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", head)
        + part(b"PLTE", palette())
        + part(b"IDAT", points)
        + part(b"IEND", b"")
    )


# ------------------------------------------------------------------------------------------------------ run


@cue.on_failure
def failed(work: runcue.Work, error: BaseException, will_retry: bool) -> None:
    """Tell what went wrong with a tile; what becomes of the picture is told at the end."""
    if work.task == "compute":
        place = f"{work.params['left']},{work.params['top']}"
        ending = ", computed again" if will_retry else ""
        print(f"tile {place}: {type(error).__name__}: {error}{ending}", flush=True)


def tell(tiles: list[Tile], took: float, path: Path) -> None:
    """Who computed which tile, and what was gained by that."""
    number = Counter(tile.process for tile in tiles)
    letters = dict(zip(number, ascii_uppercase, strict=False))
    busy = sum(tile.seconds for tile in tiles)
    across = WIDTH // TILE
    for row in range(0, len(tiles), across):
        print("  " + " ".join(letters[tile.process] for tile in tiles[row : row + across]))
    shares = ", ".join(f"{letter} {number[process]}" for process, letter in letters.items())
    print(f"\n{len(tiles)} tiles by {len(number)} processes: {shares}")
    print(f"{busy:.1f} s of computing in {took:.1f} s: {busy / took:.1f} of {os.cpu_count()} cores at work")
    print(f"{path}: {WIDTH} × {HEIGHT} points, {path.stat().st_size:,} bytes")


async def main(path: Path) -> None:
    """Submit the tiles and the picture that depends on them, and wait for the picture."""
    logging.getLogger("runcue").setLevel(logging.CRITICAL)  # told above
    began = time.perf_counter()
    async with cue:
        tiles = await cue.submit_many(
            compute.unit(left=left, top=top)
            for top in range(0, HEIGHT, TILE)
            for left in range(0, WIDTH, TILE)
        )
        whole = await assemble.submit(tiles=[runcue.output(tile) for tile in tiles], path=path)
        await whole.result()
        tell(await cue.results(tiles), time.perf_counter() - began, path)
    await cue.close()


if __name__ == "__main__":  # worker processes import this file too, and must not run it
    user = os.getuid() if hasattr(os, "getuid") else "user"
    place = Path(tempfile.gettempdir()) / f"runcue-tiles-{user}.png"
    parser = argparse.ArgumentParser(description="A picture computed in tiles by all cores.")
    parser.add_argument("picture", type=Path, nargs="?", default=place, help=f"the file to write [{place}]")
    path = parser.parse_args().picture
    if path.is_dir():
        sys.exit(f"{path} is a folder. Name a file to write.")
    if not path.parent.is_dir():
        sys.exit(f"{path.parent} is no folder. Make it, or name a file elsewhere.")
    try:
        asyncio.run(main(path))
    except runcue.WorkFailed as failure:
        sys.exit(f"There is no picture: {failure.work.error}")
    except KeyboardInterrupt:
        sys.exit(130)
