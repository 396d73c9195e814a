"""Declared files: how their paths come about, what they say about work, and how they are written whole."""

import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runcue import Cue, Work, write_output
from runcue.engine.artifacts import Artifacts, Finding, declared
from runcue.errors import ConfigError, InvalidOption, SubmitError

NOW = 1_700_000_000.0


def of(inputs: Any = None, outputs: Any = None, max_age: float | None = None) -> Artifacts:
    made = declared(inputs, outputs, max_age)
    assert made is not None
    return made


def work(**params: Any) -> Work:
    return Work(id="w", task="ocr", params=params)


def file(path: Path, age: float = 0.0) -> Path:
    """A file that was last changed so many seconds before NOW."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (NOW - age, NOW - age))
    return path


# --- Paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declaration", "paths"),
    [
        ("pages/{page}.png", ["pages/7.png"]),
        (Path("pages/{page}.png"), ["pages/7.png"]),
        (["{book}/{page}.png", Path("{book}/index")], ["moby/7.png", "moby/index"]),
        (("same.txt",), ["same.txt"]),
        ("/data/../{book}{page}", ["/data/../moby7"]),
        (lambda work: f"{work.params['page']}.png", ["7.png"]),
        (lambda work: Path("a", str(work.params["page"])), ["a/7"]),
        (lambda work: (path for path in ("a", Path("b"))), ["a", "b"]),
        (lambda work: [], []),
        ([], []),
        (None, []),
    ],
)
def test_a_path_is_a_template_or_comes_from_a_function(declaration: Any, paths: list[str]) -> None:
    assert of(inputs=declaration, outputs="x").inputs.of(work(page=7, book="moby")) == paths


@pytest.mark.parametrize(
    "declaration",
    [
        "",
        "a\0b",
        7,
        b"bytes",
        ["ok", ""],
        [3],
        {"a": 1},
        "pages/{}.png",
        "pages/{page",
        "a}b",
        "{0}",
        "{a.b}",
    ],
)
@pytest.mark.parametrize("option", ["inputs", "outputs"])
def test_a_declaration_that_makes_no_sense_is_refused(option: str, declaration: Any) -> None:
    with pytest.raises(InvalidOption, match=option):
        of(**{option: declaration})


def test_a_function_that_could_never_be_called_is_refused() -> None:
    async def later(work: Work) -> str:
        return "x"

    for function in (later, lambda: "x"):
        with pytest.raises(InvalidOption, match="plain function of work"):
            of(inputs=function)


def test_an_age_needs_something_that_can_be_old() -> None:
    with pytest.raises(ConfigError, match=r"max_age= .* needs outputs="):
        declared("in", None, 5.0)


def test_a_task_without_declarations_has_none() -> None:
    assert declared(None, None, None) is None


def test_a_missing_param_is_named() -> None:
    with pytest.raises(SubmitError, match=r"'ocr' has inputs='pages/\{page\}.png', and params has no 'page'"):
        of("pages/{page}.png").check(work(pag=1))


@pytest.mark.parametrize("value", [None, True, 1.5, ["a"], {}])
def test_a_value_that_is_neither_text_nor_whole_is_refused(value: Any) -> None:
    with pytest.raises(SubmitError, match=r"params\['page'\] is .* Pass text or a whole number"):
        of(outputs="pages/{page}.png").check(work(page=value))


@pytest.mark.parametrize(
    "value",
    ["", ".", "..", "../x", "x/..", "a/../b", "/etc/passwd", "a//b", "a/", "./a", "a\0b", "\0", "..\\x", "\\x", " ",
     "a/. ./b", "...", "~/../x"],
)  # fmt: skip
def test_a_value_that_would_leave_the_folder_of_its_template_is_refused(value: str) -> None:
    for template in ("pages/{page}.png", "{page}", "pages/{page}/x"):
        with pytest.raises(SubmitError, match="relative path without"):
            of(outputs=template).check(work(page=value))


@pytest.mark.parametrize(
    "value", ["1", "a b", ".hidden", "2024/05/page-1", "ä", "a..b", "..a", "-", "~", 12, -3]
)
def test_a_name_or_a_relative_path_fits(value: str | int) -> None:
    assert of(outputs="pages/{page}.png").outputs.of(work(page=value)) == [f"pages/{value}.png"]


@given(
    st.text(alphabet="./\\ a:\0", max_size=8),
    st.sampled_from(["in/{v}", "in/{v}{v}", "in/.{v}", "in/{v}.", "in/{v}/x"]),
)
@example(".", "in/.{v}")
@example("./", "in/{v}.")
def test_no_path_ever_leaves_its_folder(value: str, template: str) -> None:
    try:
        [path] = of(inputs=template).inputs.of(work(v=value))
    except SubmitError:
        return
    for flavour in (path, path.replace("\\", "/")):
        assert PurePosixPath(os.path.normpath(flavour)).is_relative_to("in")
        assert len(PurePosixPath(os.path.normpath(flavour)).parts) > 1


@pytest.mark.parametrize("answer", [None, 7, b"x", [b"x"], {"a": "b"}, "", ["a", ""], "a\0"])
def test_a_function_that_returns_no_paths_is_refused(answer: Any) -> None:
    with pytest.raises(SubmitError, match="inputs= of task 'ocr' returned"):
        of(inputs=lambda work: answer).check(work())


def test_a_function_that_raises_is_told_with_its_reason() -> None:
    with pytest.raises(SubmitError, match=r"outputs= of task 'ocr' raised .*KeyError") as caught:
        of(outputs=lambda work: work.params["page"]).check(work())
    assert isinstance(caught.value.__cause__, KeyError)


def test_one_file_has_one_name_however_it_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    spellings = ["a/b", "./a/b", "a//b", "c/../a/b", str(tmp_path / "a" / "b")]
    assert {of(outputs=one).makes(work()) for one in spellings} == {(str(tmp_path / "a" / "b"),)}


# --- At the edge ----------------------------------------------------------------------------------


async def handler(work: Work) -> None: ...


async def test_what_cannot_be_told_is_refused_at_submit_and_nothing_is_queued() -> None:
    cue = Cue()
    cue.task("ocr", inputs="pages/{page}.png", outputs="text/{page}.txt", max_age="24h")(handler)
    with pytest.raises(SubmitError, match="params has no 'page'"):
        await cue.submit("ocr")
    with pytest.raises(SubmitError, match=r"items\[1\]: .* relative path"):
        await cue.submit_many([{"task": "ocr", "params": {"page": page}} for page in ("a", "../b")])
    assert sum((await cue.count()).values()) == 0
    declared = cue.get_task("ocr").artifacts
    assert declared is not None
    assert declared.max_age == 86400


@pytest.mark.parametrize("max_age", [0, -1, "soon", True])
def test_an_age_that_is_no_duration_is_refused(max_age: Any) -> None:
    with pytest.raises(ValueError, match="max_age"):
        Cue().task("ocr", outputs="x", max_age=max_age)


async def test_a_task_declared_anew_has_the_files_of_the_new_declaration() -> None:
    cue = Cue()
    cue.task("ocr", outputs="{page}")(handler)
    cue.task("ocr")(handler)
    await cue.submit("ocr")
    assert cue.get_task("ocr").artifacts is None


# --- What files say -------------------------------------------------------------------------------


def test_work_is_ready_when_all_its_inputs_exist(tmp_path: Path) -> None:
    both = of(inputs=[tmp_path / "a", tmp_path / "b"])
    file(tmp_path / "b")
    assert both.look(work(), NOW) == Finding(is_ready=False, lacks=str(tmp_path / "a"))
    file(tmp_path / "a")
    assert both.look(work(), NOW) == Finding()


@pytest.mark.parametrize(
    ("ages", "is_stale"),
    [
        ({}, True),
        ({"out": 5}, True),
        ({"out": 5, "more": 15}, True),
        ({"out": 5, "more": 5}, False),
        ({"out": 10, "more": 10}, False),  # as old as the input
        ({"out": 10.000_001, "more": 5}, True),
        ({"out": -3600, "more": 5}, False),  # from the future
    ],
)
def test_outputs_are_valid_when_none_is_missing_or_older_than_an_input(
    tmp_path: Path, ages: dict[str, float], is_stale: bool
) -> None:
    file(tmp_path / "in", age=10)
    file(tmp_path / "older", age=1000)
    for name, age in ages.items():
        file(tmp_path / name, age)
    both = of(inputs=[tmp_path / "in", tmp_path / "older"], outputs=[tmp_path / "out", tmp_path / "more"])
    found = both.look(work(), NOW)
    assert found.is_stale is is_stale
    assert found.makes == (() if is_stale else (str(tmp_path / "out"), str(tmp_path / "more")))


@pytest.mark.parametrize(("age", "is_stale"), [(59, False), (60, False), (61, True), (-60, False)])
def test_an_output_is_valid_until_it_is_older_than_its_age(
    tmp_path: Path, age: float, is_stale: bool
) -> None:
    aged = of(outputs=file(tmp_path / "out", age), max_age=60)
    assert aged.look(work(), NOW).is_stale is is_stale


def test_a_folder_counts_by_its_own_time(tmp_path: Path) -> None:
    folders = of(inputs=tmp_path / "in", outputs=tmp_path / "out")
    for name, age in (("in", 10.0), ("out", 5.0)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (NOW - age, NOW - age))
    assert folders.look(work(), NOW).is_stale is False
    file(tmp_path / "in" / "new")  # which changes the folder, now
    assert folders.look(work(), NOW).is_stale is True


def test_a_link_that_leads_nowhere_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert of(inputs=tmp_path / "link").look(work(), NOW).lacks == str(tmp_path / "link")
    assert of(outputs=tmp_path / "link").look(work(), NOW).is_stale is True
    file(tmp_path / "gone")
    assert of(inputs=tmp_path / "link").look(work(), NOW).is_ready


def test_below_a_file_nothing_exists(tmp_path: Path) -> None:
    file(tmp_path / "file")
    assert of(inputs=tmp_path / "file" / "x").look(work(), NOW) == Finding(
        is_ready=False, lacks=str(tmp_path / "file" / "x")
    )


def refusing(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """Everything whose name has "secret" in it cannot be looked at."""
    look: Callable[..., os.stat_result] = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if "secret" in str(path):
            raise error
        return look(path, **options)

    monkeypatch.setattr(os, "stat", refuse)


def test_what_may_not_be_looked_at_does_not_exist_and_is_complained_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PermissionError(13, "Permission denied")
    refusing(monkeypatch, error)
    found = of(inputs=tmp_path / "secret").look(work(), NOW)
    assert (found.is_ready, found.lacks, found.trouble) == (False, str(tmp_path / "secret"), error)
    found = of(outputs=tmp_path / "secret").look(work(), NOW)
    assert (found.is_ready, found.is_stale, found.trouble) == (True, True, error)


def test_of_any_other_trouble_nothing_can_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        of(outputs=tmp_path / "secret").look(work(), NOW)


# --- Writing --------------------------------------------------------------------------------------


def test_text_is_written_in_utf_8_into_folders_that_are_made(tmp_path: Path) -> None:
    target = tmp_path / "text" / "deep" / "1.txt"
    with write_output(target) as out:
        out.write("Grüße")
        assert not target.exists()
    assert target.read_bytes() == "Grüße".encode()
    assert list(target.parent.iterdir()) == [target]


def test_bytes_and_other_encodings_are_written_too(tmp_path: Path) -> None:
    with write_output(str(tmp_path / "b"), "wb") as out:
        out.write(b"\0\r\n\xff")
    with write_output(tmp_path / "t", encoding="latin-1") as text:
        text.write("ü")
    assert (tmp_path / "b").read_bytes() == b"\0\r\n\xff"
    assert (tmp_path / "t").read_bytes() == b"\xfc"


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_leaves_the_file_as_it_was(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "1.txt"
    target.write_text("before")

    def write_half() -> None:
        with write_output(target) as out:
            out.write("half")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_while_it_is_put_on_the_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "1.txt"
    target.write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), write_output(target) as out:
        out.write("after")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_it_is_on_the_disk_before_it_has_its_name_and_its_name_is_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "1.txt"
    synced: list[tuple[bool, bool]] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), target.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with write_output(target) as out:
        out.write("x")
        out.close()  # that does no harm
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize(("number", "is_told"), [(22, False), (5, True)])
def test_a_folder_that_cannot_be_synced_is_no_failure_but_a_broken_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_told: bool
) -> None:
    sync = os.fsync

    def no_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, "no")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", no_folders)
    told = []
    try:
        with write_output(tmp_path / "1.txt") as out:
            out.write("x")
    except OSError as error:
        told.append(error.errno)
    assert told == ([number] if is_told else [])
    assert (tmp_path / "1.txt").read_text() == "x"


def test_what_replaces_a_file_may_be_read_by_the_same_people(tmp_path: Path) -> None:
    target = tmp_path / "1.txt"
    target.write_text("before")
    target.chmod(0o640)
    with write_output(target) as out:
        out.write("after")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    (tmp_path / "plain").write_text("as open() does it")
    with write_output(tmp_path / "new") as out:
        out.write("x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "runs" / "1.txt")
    with write_output(link) as out:
        out.write("x")
    assert link.is_symlink()
    assert (tmp_path / "runs" / "1.txt").read_text() == "x"


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="writes files"), write_output(tmp_path / "folder"):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


@pytest.mark.parametrize(("path", "mode"), [("", "w"), ("a\0", "w"), (7, "w"), ("x", "a"), ("x", "r")])
def test_what_cannot_be_written_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, mode: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption):
        write_output(path, mode)
    assert list(tmp_path.iterdir()) == []
