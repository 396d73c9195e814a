"""The documentation is true: its snippets run, its tables and pictures are those of the code, its links lead.

A ```python block is a program of its own. It runs in an empty folder, where warnings are errors; a ```text
block that follows it is what it prints. After `<!-- fragment -->` a block is only compiled.

What stands between `<!-- made: name -->` and `<!-- end -->` is made from the code. To make it anew:
`python -m tests.test_docs`.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import runcue
from runcue.core.events import EVENTS, WORK_EVENTS
from runcue.core.lifecycle import diagram
from runcue.registry import CALLBACKS, Options

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
REFERENCE = DOCS / "reference.md"
BOUND = 30

BLOCK = re.compile(
    r"(?P<fragment><!-- fragment -->\n+)?^```python\n(?P<code>.*?)^```$"
    r"(?:\n+^```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
MADE = re.compile(r"(<!-- made: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ROW = re.compile(r"^\| `([^`]+)` \|([^|]*)\|", re.MULTILINE)


class Snippet(NamedTuple):
    """One block of code, and what the page says that it prints."""

    place: str
    code: str
    output: str | None
    is_fragment: bool


def snippets() -> Iterator[Snippet]:
    """Every block of Python on every page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code"))
            place = f"{page.relative_to(ROOT).as_posix()}:{line}"
            yield Snippet(place, match["code"], match["output"], match["fragment"] is not None)


ALL = list(snippets())


# ---------------------------------------------------------------------------------------------- snippets


@pytest.mark.parametrize("snippet", [pytest.param(one, id=one.place) for one in ALL if not one.is_fragment])
def test_a_snippet_runs_and_prints_what_the_page_says(snippet: Snippet, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet.code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(runcue.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if snippet.output is not None:
        assert done.stdout == snippet.output


@pytest.mark.parametrize("snippet", [pytest.param(one, id=one.place) for one in ALL if one.is_fragment])
def test_a_fragment_is_valid_python(snippet: Snippet) -> None:
    compile(snippet.code, snippet.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_snippets_are_found() -> None:
    text = "<!-- fragment -->\n```python\nx\n```\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
    found = [(m["code"], m["output"], m["fragment"] is not None) for m in BLOCK.finditer(text)]
    assert found == [("x\n", None, True), ("print(1)\n", "1\n", False)]
    assert all(page.read_text(encoding="utf-8").count("```python") == sum(
        snippet.place.startswith(f"{page.relative_to(ROOT).as_posix()}:") for snippet in ALL
    ) for page in PAGES)  # fmt: skip


# ------------------------------------------------------------------------------------------- made from code


def made(subject: str) -> str:
    """What the code has to say about that."""
    if subject == "lifecycle":
        return f"```mermaid\n{diagram()}```\n"
    assert subject == "events"
    rows = [
        f"| `{name}` | {f'`work_{name}`' if name in WORK_EVENTS else '(the same)'} | {told} |"
        for name, told in EVENTS.items()
    ]
    return "\n".join(["| `event.type` | `event.name` | told when |", "|---|---|---|", *rows]) + "\n"


@pytest.mark.parametrize(
    ("page", "name"), [("docs/concepts.md", "lifecycle"), ("docs/reference.md", "events")]
)
def test_what_is_made_from_the_code_is_up_to_date(page: str, name: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {match[2]: match[3] for match in MADE.finditer(text)}[name] == made(name)


def write() -> None:
    """Make everything anew that is made from the code."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(MADE.sub(lambda match: match[1] + made(match[2]) + match[4], text), encoding="utf-8")


# ------------------------------------------------------------------------------------------- the reference


def section(title: str) -> str:
    """One section of the reference, from its heading to the next of the same depth."""
    text = REFERENCE.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"the reference has no section {title!r}"
    return found[1]


def options_of(title: str) -> dict[str, str]:
    """The options in the tables of a section, with what the second column says (mostly the default)."""
    return {name: default.strip() for name, default in ROW.findall(section(title))}


def known_options(where: str) -> set[str]:
    """The options that a call really has: asking for one that it has not names them."""
    cue = runcue.Cue()
    calls: dict[str, Callable[..., object]] = {
        "Cue()": runcue.Cue,
        "cue.service()": partial(cue.service, "any"),
        "cue.task()": cue.task,
    }
    with pytest.raises(runcue.UnknownOption) as caught:
        calls[where](nonsense=1)
    return set(caught.value.known)


@pytest.mark.parametrize("title", ["Cue()", "cue.service()", "cue.task()"])
def test_every_option_is_in_the_reference_and_no_other(title: str) -> None:
    assert set(options_of(title)) - {"store"} == known_options(title)


async def test_every_option_of_submit_is_in_the_reference_and_no_other() -> None:
    cue = runcue.Cue()

    @cue.task
    async def any_task(work: runcue.Work) -> None: ...

    with pytest.raises(runcue.UnknownOption) as caught:
        await cue.submit("any_task", nonsense=1)  # type: ignore[call-arg]  # (that is the mistake)
    assert set(options_of("cue.submit()")) == set(caught.value.known)


def test_the_defaults_of_a_cue_are_those_in_the_reference() -> None:
    said = options_of("Cue()")
    for name in Options.__struct_fields__:
        value = getattr(Options(), name)
        assert ast.literal_eval(said[name].strip("`").replace(",", "")) == value, name


def test_every_callback_is_in_the_reference_with_its_arguments() -> None:
    said = options_of("Callbacks")
    assert set(said) == {f"{name}({', '.join(arguments)})" for name, arguments in CALLBACKS.items()}


def test_every_error_is_in_the_reference() -> None:
    errors = {
        name
        for name in runcue.__all__
        if isinstance(kind := getattr(runcue, name), type) and issubclass(kind, BaseException)
    }
    assert set(options_of("Errors")) == errors


def test_every_method_of_a_cue_is_in_the_reference() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    names = [name for name in vars(runcue.Cue) if not name.startswith("_") and name not in CALLBACKS]
    assert [name for name in names if f"cue.{name}" not in text] == []


# ------------------------------------------------------------------------------------------------- links


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in LINK.findall(text):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(linked), f"{target}#{anchor} is not there"


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        todo += [
            (page.parent / target).resolve() for target, _ in LINK.findall(page.read_text(encoding="utf-8"))
        ]
    assert [page.relative_to(ROOT).as_posix() for page in PAGES if page not in seen] == []


if __name__ == "__main__":
    write()
