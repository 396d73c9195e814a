"""Builds the documentation site into .cache/site: `make docs`, or `python tools/docs_site.py`.

- The pages are those of docs/, which also read well without a site. What they link to outside of docs/ (an example,
  CONTRIBUTING) comes along as a page of its own, so that every link leads somewhere in both.
- Whatever the builder warns of is a failure, and so is a page that would load something from elsewhere.
- The builder lives in .cache/docs/python, installed from requirements/docs.txt when that has changed. With it in
  place nothing is downloaded.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LOCK = ROOT / "requirements" / "docs.txt"
SETTINGS = DOCS / "zensical.toml"
HOME = ROOT / ".cache" / "docs"
"""Where the builder works: it takes a folder `.cache` beside its settings for its own, and this one has none."""
PYTHON = HOME / "python"
PAGES = HOME / "pages"
BUILT = HOME / "site"
SITE = ROOT / ".cache" / "site"
HOMES = {"CONTRIBUTING.md": "contributing.md"}
"""Files beside docs/ that have a page with a name of its own; all others are found below `aside/`."""
PICTURES = {".png", ".svg"}
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the builder would load to let search work from the disk; docs/worker.js does that here."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
"""A line of a table: in its code the builder wants a bare `|` where code hosts want it escaped."""
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
ELSEWHERE = re.compile(r"(?:https?:)?//")
STYLES_FROM_ELSEWHERE = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")
LIST_IN_A_PARAGRAPH = re.compile(r"<p>[^<]*\n(?:[-*]|\d+\.) ")


class Unusable(Exception):
    """The site cannot be built: one line for each reason."""


# ----------------------------------------------------------------------------------------------- the builder


def install() -> None:
    """Bring the builder into .cache/docs/python, unless what the lock file names is there."""
    stamp = PYTHON / ".lock"
    if stamp.is_file() and stamp.read_bytes() == LOCK.read_bytes():
        return
    shutil.rmtree(PYTHON, ignore_errors=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".cache" / "uv" / "bin"))
    tool = [uv, "pip", "install", "--quiet", "--python"] if uv else []
    tool += [sys.executable] if uv else [sys.executable, "-m", "pip", "install", "--quiet"]
    print(f"docs: installing {LOCK.relative_to(ROOT)} into {PYTHON.relative_to(ROOT)}", file=sys.stderr)
    certificates = {"UV_SYSTEM_CERTS": "1"} if Path("/etc/ssl/certs/ca-certificates.crt").exists() else {}
    done = subprocess.run(
        [*tool, "--require-hashes", "--target", str(PYTHON), "-r", str(LOCK)],
        env={**certificates, **os.environ},
        check=False,
    )
    if done.returncode != 0:
        shutil.rmtree(PYTHON, ignore_errors=True)
        raise Unusable(
            f"{LOCK.relative_to(ROOT)} could not be installed; the lines above say why. A package index must be"
            " reachable once: later builds need none."
        )
    stamp.write_bytes(LOCK.read_bytes())


def build() -> None:
    """Have the site made, and take any warning for a failure."""
    for old in (BUILT, HOME / ".cache"):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copyfile(SETTINGS, HOME / SETTINGS.name)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=HOME,
        env={**os.environ, "PYTHONPATH": str(PYTHON), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = COLOUR.sub("", done.stdout).partition("Traceback (most recent call last)")[0].strip()
    if done.returncode != 0 or "warning" in said.lower():
        raise Unusable(said or done.stdout.strip())
    for page in BUILT.rglob("*.html"):
        ours = "../" * (len(page.relative_to(BUILT).parts) - 1) + "worker.js"
        page.write_text(page.read_text(encoding="utf-8").replace(SHIM, ours), encoding="utf-8")


# ------------------------------------------------------------------------------------------------- the pages


def place_of(path: Path) -> Path:
    """Where a file of the checkout is found among the pages."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    if name in HOMES:
        return Path(HOMES[name])
    aside = Path("aside") / name
    return aside if path.suffix in {".md", *PICTURES} else aside.with_name(f"{aside.name}.md")


def led(text: str, source: Path, found: set[Path]) -> str:
    """The text of a page with its links leading to pages; the files they mean are added to `found`."""
    here = place_of(source).parent

    def lead(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve()
        if not target.is_file():
            raise Unusable(f"{source.relative_to(ROOT)}: {match[2]} is no file that could be shown.")
        found.add(target)
        return (
            match[1] + Path(os.path.relpath(place_of(target), here)).as_posix() + (match[3] or "") + match[4]
        )

    parts = FENCED.split(text)
    parts[::2] = [
        ROW.sub(lambda row: row[0].replace("\\|", "|"), LINK.sub(lead, part)) for part in parts[::2]
    ]
    return "".join(parts)


def page_of(source: Path, found: set[Path]) -> str:
    """A file as a page: Markdown as it is but for its links, anything else as a block of code."""
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".md":
        return led(text, source, found)
    fence = "`" * 4
    language = {".py": "python", ".sh": "bash"}.get(source.suffix, source.suffix.lstrip("."))
    return f"# {source.relative_to(ROOT).as_posix()}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def stage() -> None:
    """Gather the pages: all of docs/, CONTRIBUTING, and whatever these link to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    todo = {path for path in DOCS.rglob("*") if path.is_file() and path != SETTINGS} | {
        ROOT / "CONTRIBUTING.md"
    }
    done: set[Path] = set()
    while todo:
        source = todo.pop()
        done.add(source)
        found: set[Path] = set()
        place = PAGES / place_of(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if (source.is_relative_to(DOCS) and source.suffix != ".md") or source.suffix in PICTURES:
            shutil.copyfile(source, place)
        else:
            place.write_text(page_of(source, found), encoding="utf-8")
        todo |= found - done


# ------------------------------------------------------------------------------------------------- the check


class Seen(HTMLParser):
    """What a built page links to, loads, and can be linked to by."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.page = page
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        given = dict(attrs)
        if name := given.get("id"):
            self.names.add(name)
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        if tag in LOADING and (loaded := given.get(LOADING[tag])):
            self.loads.append(loaded)


def complaints() -> Iterator[str]:
    """What is wrong with the built site."""
    pages = {page: Seen(page) for page in sorted(BUILT.rglob("*.html")) if page.name != "404.html"}
    for page, seen in pages.items():
        name = page.relative_to(BUILT)
        yield from (f"{name}: loads {one} from elsewhere" for one in seen.loads if ELSEWHERE.match(one))
        text = page.read_text(encoding="utf-8")
        yield from (
            f"{name}: a list without an empty line above it: {one!r}"
            for one in LIST_IN_A_PARAGRAPH.findall(text)
        )
        for link in seen.links + [one for one in seen.loads if not ELSEWHERE.match(one)]:
            if re.match(r"[a-z]+:|//", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name}: {link} is not there"
            elif anchor and target in pages and anchor not in pages[target].names:
                yield f"{name}: {link} is no heading there"
    for style in BUILT.rglob("*.css"):
        if STYLES_FROM_ELSEWHERE.search(style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(BUILT)}: loads something from elsewhere"


def main() -> None:
    """Build the site, check it, and say where it is."""
    try:
        install()
        stage()
        build()
        if wrong := list(complaints()):
            raise Unusable("\n".join(wrong))
        shutil.rmtree(SITE, ignore_errors=True)
        BUILT.rename(SITE)
    except Unusable as error:
        sys.exit(f"docs: {error}")
    amount = sum(1 for _ in SITE.rglob("*.html"))
    print(f"docs: {amount} pages, open {(SITE / 'index.html').relative_to(ROOT)} in a browser")


if __name__ == "__main__":
    main()
