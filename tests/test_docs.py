"""The documentation is true: its snippets run, its tables and pictures are those of the code, its links lead.

A ```python block is a program of its own. It runs in an empty folder, where warnings are errors; a ```text
block that follows it is what it prints. Those of the tutorial that build on each other also run in one folder. After
`<!-- file: app.py -->` it is also a file of that name for the blocks that follow on its page, and after
`<!-- with: ssh -->` it has what a test of its own below puts beside it. After `<!-- fragment -->` a block is only
compiled: code for other libraries, which are not here.

What is made from the code is made by a tool: tables (`python -m tools.tables`), signatures and docstrings (`python -m
tools.api_reference`), diagrams (`python -m tools.diagrams`). `make docs` builds the site, and checks it as a whole.
"""

import ast
import asyncio
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import runcue
import runcue.testing.contract
import runcue.web
from runcue.declare.options import Options
from runcue.declare.registry import CALLBACKS
from runcue.stores.sqlite.schema import TABLES
from tests.executors.daskserver import cluster
from tests.executors.sshserver import Host
from tests.patience import until_sync
from tests.pg.fixtures import pg, pg_server
from tests.programs import listens
from tests.queues import make_empty
from tools import api_reference, diagrams, docs_site, tables

__all__ = ["pg", "pg_server"]

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
REFERENCE = DOCS / "reference.md"
BOUND = 300
"""Seconds after which a program hangs."""

BLOCK = re.compile(
    r"(?:(?P<fragment><!-- fragment -->\n+)|<!-- file: (?P<file>[\w.]+) -->\n+|<!-- with: (?P<beside>\w+) -->\n+)?"
    r"^```python\n(?P<code>.*?)^```$"
    r"(?:\n+^```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
ROW = re.compile(r"^\| `([^`]+)` \|([^|]*)\|", re.MULTILINE)


class Snippet(NamedTuple):
    """One block of code, and what the page says that it prints."""

    place: str
    code: str
    output: str | None
    is_fragment: bool
    files: dict[str, str]
    file: str | None
    beside: str | None
    """What has to be there when it runs."""


def snippets() -> Iterator[Snippet]:
    """Every block of Python on every page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        files: dict[str, str] = {}
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code"))
            place = f"{page.relative_to(ROOT).as_posix()}:{line}"
            is_fragment = match["fragment"] is not None
            yield Snippet(
                place, match["code"], match["output"], is_fragment, files, match["file"], match["beside"]
            )
            if match["file"]:
                files = {**files, match["file"]: match["code"]}


ALL = list(snippets())
ALONE = [one for one in ALL if not one.is_fragment and one.beside is None]
BESIDE = {one.beside: one for one in ALL if one.beside is not None}


def usual() -> dict[str, str]:
    """The environment, but for what changes how Python prints: few readers have that set."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def try_out(snippet: Snippet, folder: Path, **environment: str) -> None:
    """Run a snippet in a folder, and compare what it prints with what the page says."""
    for name, text in snippet.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    if snippet.file is not None:
        (folder / snippet.file).write_text(snippet.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", *([snippet.file] if snippet.file else ["-c", snippet.code])],
        cwd=folder,
        env={**usual(), "PYTHONPATH": str(Path(runcue.__file__).parent.parent), **environment},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 0, f"{snippet.place}: {done.stderr}"
    if snippet.output is not None:
        assert done.stdout == snippet.output, snippet.place


# ---------------------------------------------------------------------------------------------- snippets


@pytest.mark.parametrize("snippet", [pytest.param(one, id=one.place) for one in ALONE])
def test_a_snippet_runs_and_prints_what_the_page_says(snippet: Snippet, tmp_path: Path) -> None:
    try_out(snippet, tmp_path)


def test_the_steps_of_the_tutorial_can_be_done_one_after_the_other_in_one_folder(tmp_path: Path) -> None:
    steps = [one for one in ALL if one.place.startswith("docs/tutorial.md:") and "pipeline" in one.code]
    first = next(one for one in ALL if one.file == "pipeline.py")
    assert len(steps) == 3
    for step in (first, *steps, *steps):
        try_out(step, tmp_path)


async def test_a_snippet_runs_with_hosts_that_speak_ssh(tmp_path: Path) -> None:
    home = tmp_path / "home" / ".ssh"
    home.mkdir(mode=0o700, parents=True)
    async with Host(tmp_path, "web1") as web1, Host(tmp_path, "web2") as web2:
        for host in (web1, web2):
            with (home / "config").open("a", encoding="utf-8") as config:
                config.write(f"Host {host.name}\n  HostName 127.0.0.1\n  Port {host.port}\n")
                config.write(
                    f'  IdentityFile "{host.client_key}"\n  UserKnownHostsFile "{host.known_hosts}"\n'
                )
        await asyncio.to_thread(try_out, BESIDE["ssh"], tmp_path, HOME=str(home.parent), SSH_AUTH_SOCK="")
        assert (web1.commands, web2.commands) == (["df -h /"], ["df -h /"])


def test_a_snippet_runs_with_a_dask_cluster(tmp_path: Path) -> None:
    snippet = BESIDE["dask"]
    assert "tcp://scheduler:8786" in snippet.code
    with cluster(tmp_path / "dask") as address:
        try_out(snippet._replace(code=snippet.code.replace("tcp://scheduler:8786", address)), tmp_path)


@pytest.mark.parametrize("library", ["django", "flask"])
async def test_a_snippet_runs_with_a_queue_in_postgresql(library: str, pg: str, tmp_path: Path) -> None:
    await make_empty(pg)
    with psycopg.connect(pg) as connection:
        connection.execute("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, item text)")
    given = {name: str(value) for name, value in conninfo_to_dict(pg).items()}
    snippet = BESIDE[library]
    code = re.sub(r'(?<=["/])shop(?=")', given["dbname"], snippet.code)
    assert code.count(given["dbname"]) == 2
    place = {"PGHOST": given["host"], "PGPORT": given["port"], "PGUSER": given["user"]}
    await asyncio.to_thread(try_out, snippet._replace(code=code), tmp_path, **place)


def test_a_snippet_runs_in_workers_that_gunicorn_has_forked(tmp_path: Path) -> None:
    (tmp_path / "wsgi.py").write_text(BESIDE["gunicorn"].code, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place: tuple[str, int] = free.getsockname()
    call = [
        sys.executable,
        "-m",
        "gunicorn",
        "--preload",
        "--workers",
        "4",
        "--bind",
        "{}:{}".format(*place),
        "wsgi:app",
    ]
    environment = {**usual(), "PYTHONPATH": str(Path(runcue.__file__).parent.parent)}
    log = tmp_path / "log"

    def ask(page: int) -> tuple[int, str]:
        with closing(HTTPConnection(*place, timeout=BOUND)) as connection:
            connection.request("GET", f"/{page}")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    with log.open("wb") as output:
        process = subprocess.Popen(call, cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        until_sync(lambda: process.poll() is not None or listens(place))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(40)))
    finally:
        process.terminate()
        process.wait(BOUND)
    assert {status for status, _ in answers} == {202}, log.read_text()
    with runcue.Client(tmp_path / "mail.db") as client:
        found = {unit.id: unit.params for unit in client.list()}
    assert found == {id: {"page": f"/{page}"} for page, (_, id) in enumerate(answers)}


STORE = """
from runcue.stores.sqlite.store import sqlite_store

def MyStore(path):
    return sqlite_store(str(path), durability="relaxed", lease=30.0)
"""


def test_a_snippet_runs_by_pytest_with_a_store(tmp_path: Path) -> None:
    (tmp_path / "my_store.py").write_text(STORE, encoding="utf-8")
    (tmp_path / "test_it.py").write_text(BESIDE["pytest"].code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=BOUND, check=False,
    )  # fmt: skip
    checks = len([*runcue.testing.contract.EVERY, *runcue.testing.contract.SHARED])
    assert f"{checks} passed" in done.stdout, done.stdout


def test_what_is_not_run_is_code_for_other_libraries() -> None:
    assert set(BESIDE) == {"ssh", "dask", "pytest", "django", "flask", "gunicorn"}
    assert [one.place for one in ALL if one.is_fragment and not one.place.startswith("docs/migration/")] == []


@pytest.mark.parametrize("snippet", [pytest.param(one, id=one.place) for one in ALL if one.is_fragment])
def test_a_fragment_is_valid_python(snippet: Snippet) -> None:
    compile(snippet.code, snippet.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_snippets_are_found() -> None:
    text = "<!-- fragment -->\n```python\nx\n```\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
    text += "<!-- file: a.py -->\n```python\ny\n```\n<!-- with: ssh -->\n```python\nz\n```\n"
    names = ("code", "output", "file", "beside")
    found = [(*map(m.__getitem__, names), m["fragment"] is not None) for m in BLOCK.finditer(text)]
    assert found == [
        ("x\n", None, None, None, True),
        ("print(1)\n", "1\n", None, None, False),
        ("y\n", None, "a.py", None, False),
        ("z\n", None, None, "ssh", False),
    ]
    assert all(page.read_text(encoding="utf-8").count("```python") == sum(
        snippet.place.startswith(f"{page.relative_to(ROOT).as_posix()}:") for snippet in ALL
    ) for page in PAGES)  # fmt: skip


# ------------------------------------------------------------------------------------------- made from code


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_tables_that_are_made_from_the_code_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == tables.renewed(text), "run: python -m tools.tables"


def test_every_table_that_can_be_made_stands_on_one_page() -> None:
    found = [match[2] for page in PAGES for match in tables.MADE.finditer(page.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(tables.TABLES)


def test_something_is_said_about_every_error_and_about_nothing_else() -> None:
    public = {
        name
        for name in runcue.__all__
        if isinstance(kind := getattr(runcue, name), type) and issubclass(kind, BaseException)
    }
    assert {kind.__name__ for kind in tables.known_errors()} == public
    assert set(tables.ADVICE) == public


@pytest.mark.parametrize("name", diagrams.PICTURES)
def test_a_diagram_shows_the_code_as_it_is(name: str) -> None:
    drawn = (diagrams.IMAGES / name).read_text(encoding="utf-8")
    assert drawn == diagrams.PICTURES[name](), "run: python -m tools.diagrams"


@pytest.mark.parametrize("page", [pytest.param(page, id=page.path) for page in api_reference.PAGES])
def test_the_signatures_are_those_of_the_source(page: api_reference.Page) -> None:
    written = (DOCS / page.path).read_text(encoding="utf-8")
    assert written == api_reference.text_of(page), "run: python -m tools.api_reference"


@pytest.mark.parametrize("module", ["runcue", "runcue.testing", "runcue.web"])
def test_every_public_name_has_its_place_among_the_signatures(module: str) -> None:
    errors = {kind.__name__ for kind in tables.known_errors()}
    names = [name for page in api_reference.PAGES if page.module == module for name in page.names]
    assert len(names) == len(set(names))
    assert set(names) == set(sys.modules[module].__all__) - errors


@pytest.mark.parametrize(
    ("page", "kind", "owner"), [("cue", runcue.Cue, "cue"), ("reader", runcue.Reader, "reader")]
)
def test_every_public_method_has_its_signature(page: str, kind: type, owner: str) -> None:
    text = (DOCS / "api" / f"{page}.md").read_text(encoding="utf-8")
    public = [name for name in vars(kind) if not name.startswith("_")]
    assert [name for name in public if f"### {owner}.{name}\n" not in text] == []


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
        await cue.submit("any_task", nonsense=1)  # type: ignore[call-overload]  # (that is the mistake)
    assert set(options_of("cue.submit()")) == set(caught.value.known)


def test_every_reason_why_work_waits_is_on_the_page_that_explains_them_and_no_other() -> None:
    core = ROOT / "src" / "runcue" / "core"
    said = "".join(
        (core / name).read_text() for name in ("views/explain.py", "ledger/fleet.py", "limits/service.py")
    )
    reasons = {*re.findall(r'(?:_answer\(record, |Blocked\()"(\w+)"', said)} - {"unserved"}
    later = said[said.index("def _why_later") : said.index("def _gate")]
    reasons |= {*re.findall(r'"(\w+)"', later)} | {state.value for state in runcue.WorkState} - {"pending"}
    text = (DOCS / "guides" / "events-and-logging.md").read_text()
    table = text[text.index("| reason | waits for |") :].split("\n\n")[0]
    shown = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert shown == reasons


def test_the_defaults_of_a_cue_are_those_in_the_reference() -> None:
    said = options_of("Cue()")
    for name in Options.__struct_fields__:
        value = getattr(Options(), name)
        assert ast.literal_eval(said[name].strip("`").replace(",", "")) == value, name


def test_every_callback_is_in_the_reference_with_its_arguments() -> None:
    said = options_of("Callbacks")
    assert set(said) == {f"{name}({', '.join(arguments)})" for name, arguments in CALLBACKS.items()}


def test_every_method_of_a_cue_is_in_the_reference() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    names = [name for name in vars(runcue.Cue) if not name.startswith("_") and name not in CALLBACKS]
    assert [name for name in names if f"cue.{name}" not in text] == []


def test_the_names_of_changelog_fragments_are_those_that_their_tool_reads() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    kinds = "|".join(one["directory"] for one in settings["type"])
    names = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name not in settings["ignore"]]
    assert [one for one in names if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({kinds})(\.\d+)?\.md", one)] == []


FOLDERS = {
    "api": "The layers",
    "declare": "The layers",
    "engine": "The layers",
    "host": "The layers",
    "core": "The layers",
    "core/model": "Inside the core",
    "core/limits": "Inside the core",
    "core/ledger": "Inside the core",
    "core/schedule": "Inside the core",
    "core/views": "Inside the core",
    "stores": "The layers",
    "stores/postgres": "The stores that processes share",
    "host/posix": "The layers",
    "host/windows": "The layers",
    "stores/presence": "The stores that processes share",
    "stores/sql": "The stores that processes share",
    "stores/sqlite": "The stores that processes share",
    "stores/sqlite/recovery": "The stores that processes share",
    "executors/command": "Executors, instruments, help for tests",
    "executors/dask": "Executors, instruments, help for tests",
    "executors/process": "Executors, instruments, help for tests",
    "executors/ssh": "Executors, instruments, help for tests",
}
"""Where on docs/architecture.md the row of each folder is that has one: its modules are told of together."""

MODULES = {
    "": "The layers",
    "executors": "Executors, instruments, help for tests",
    "instrument": "Executors, instruments, help for tests",
    "testing": "Executors, instruments, help for tests",
    "cli": "The command line",
    "cli/top": "The command line",
    "web": "The dashboard",
    "sim": "The simulator",
}
"""Where the modules of the other folders are, one by one. (Each of cli/commands is a verb of its name.)"""


def test_every_folder_and_every_module_outside_of_them_is_in_the_architecture() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    source = ROOT / "src" / "runcue"
    packages = {path.parent.relative_to(source).as_posix() for path in source.rglob("*.py")}
    assert packages - {"cli/commands"} == {folder or "." for folder in [*FOLDERS, *MODULES]}
    assert [
        folder
        for folder, title in FOLDERS.items()
        if not re.search(rf"^\|[^\n]*`{folder}/`", parts[title], re.MULTILINE)
    ] == []
    assert [
        f"{package}/{path.stem}"
        for package, title in MODULES.items()
        for path in (source / package).glob("[!_]*.py")
        if not re.search(rf"[`/]{path.stem}`", parts[title])
    ] == []


def test_every_path_in_the_architecture_and_in_the_guide_for_contributors_leads_to_a_file() -> None:
    source = ROOT / "src" / "runcue"
    tops = [path.name for path in source.iterdir() if path.is_dir()]
    for page in (DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"):
        told = re.findall(rf"`((?:{'|'.join(tops)})/[\w/]*(?:\.\w+)?)`", page.read_text(encoding="utf-8"))
        assert told
        assert [
            path for path in told if not ((source / path).exists() or (source / f"{path}.py").exists())
        ] == []


def undefined(row: str) -> list[str]:
    """The names in a row of the guide for contributors that none of the files in it defines."""
    words = [word for word in re.findall(r"`([^`]+)`", row) if not word.startswith(("python ", "make "))]
    paths = [word.rstrip("/") for word in words if re.search(r"/|\.(?:py|js|css|md|toml|json)$", word)]
    places = (ROOT, ROOT / "src" / "runcue", ROOT / "src" / "runcue" / "web" / "static")
    found = [file for path in paths for place in places for file in place.glob(path)]
    files = [one for file in found for one in ([file] if file.is_file() else file.rglob("*.py"))]
    code, others = (
        "\n".join(file.read_text(encoding="utf-8") for file in files if (file.suffix == ".py") is is_code)
        for is_code in (True, False)
    )
    names = [re.findall(r"[\w-]+", word)[-1] for word in words if word.rstrip("/") not in paths]
    definition = r"^\s*(?:async )?(?:def|class) {0}\b|^ *{0}(?:: [^=\n]+)? = "
    return [
        name
        for name in names
        if not re.search(definition.format(re.escape(name)), code, re.MULTILINE)
        and not re.search(rf"\b{re.escape(name)}\b", others)
    ]


def test_the_guide_for_contributors_names_what_its_files_define() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| to change or add |")[2]
    rows = text[: text.index("\n\n")].splitlines()[2:]
    assert {row.split("|")[1].strip(): names for row in rows if (names := undefined(row))} == {}


def test_every_table_of_a_file_is_told_about() -> None:
    said = set(re.findall(r"`(\w+)`", (DOCS / "guides" / "durable.md").read_text(encoding="utf-8")))
    assert said >= TABLES


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


def test_every_picture_is_on_a_page() -> None:
    pages = [*PAGES, *(ROOT / "examples").rglob("*.md")]
    said = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [path.name for path in (DOCS / "images").iterdir() if f"images/{path.name})" not in said] == []


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


# --------------------------------------------------------------------------------------------------- the site


def pages_in(nav: list[dict[str, Any]]) -> Iterator[str]:
    """Every page that the navigation names."""
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from pages_in(value)


def test_the_navigation_has_every_page_once_and_no_other() -> None:
    nav = tomllib.loads(docs_site.SETTINGS.read_text(encoding="utf-8"))["project"]["nav"]
    named = list(pages_in(nav))
    assert sorted(named) == sorted(
        ["contributing.md", *(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))]
    )


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_what_belongs_to_an_item_of_a_list_is_indented_enough_for_the_site(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*|(?<=\n\n) {1,3}\S.*", text, re.MULTILINE) == []


def test_the_settings_of_the_site_do_not_lie_beside_the_cache_of_the_checkout() -> None:
    # the builder takes the folder `.cache` beside its settings for its own, and may empty it
    assert not (docs_site.SETTINGS.parent / ".cache").exists()
    assert not (ROOT / docs_site.SETTINGS.name).exists()
    assert not (docs_site.HOME.parent / docs_site.SETTINGS.name).exists()


def test_a_link_out_of_the_docs_leads_to_a_page_of_the_site() -> None:
    found: set[Path] = set()
    source = DOCS / "guides" / "any.md"
    code = "\n```\n[d](nowhere)\n```\n"
    text = "[a](../../examples/durable.py) [b](limits.md#rates) [c](../../README.md#figures)"
    assert docs_site.led(text + code, source, found) == (
        "[a](../aside/examples/durable.py.md) [b](limits.md#rates) [c](../aside/README.md#figures)" + code
    )
    assert found == {ROOT / "examples" / "durable.py", DOCS / "guides" / "limits.md", ROOT / "README.md"}


def test_a_bar_in_the_code_of_a_table_is_written_as_the_builder_wants_it() -> None:
    text = "| `str \\| None` | x |\n\nand `a \\| b`\n"
    assert docs_site.led(text, DOCS / "any.md", set()) == "| `str | None` | x |\n\nand `a \\| b`\n"


def test_a_link_to_nothing_is_refused_by_the_site() -> None:
    with pytest.raises(docs_site.Unusable, match="is no file"):
        docs_site.led("[a](nowhere.md)", DOCS / "index.md", set())


def test_what_is_wrong_with_a_built_site_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "BUILT", tmp_path)
    (tmp_path / "good.html").write_text('<p id="x">fine <a href="#x">x</a></p>', encoding="utf-8")
    assert list(docs_site.complaints()) == []
    (tmp_path / "bad.html").write_text(
        '<script src="//cdn/x.js"></script><a href="good.html#y">y</a><a href="gone.html">z</a><p>one:\n- two</p>',
        encoding="utf-8",
    )
    (tmp_path / "bad.css").write_text("@import 'https://fonts/x.css'", encoding="utf-8")
    said = "\n".join(docs_site.complaints())
    for words in (
        "from elsewhere",
        "good.html#y is no heading",
        "gone.html is not there",
        "a list",
        "bad.css",
    ):
        assert words in said, said
