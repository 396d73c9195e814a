"""What one work says about its own command, texts too long for an argument, and what becomes of the output."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import runcue
from runcue import Command, Cue, Reader, Work
from runcue.errors import BadCommand, CommandFailed
from runcue.executors.command.executor import LONGEST_ARGUMENT, CommandExecutor
from runcue.executors.command.reaper import Reaper
from runcue.executors.process_locks import Jobs
from tests.executors.fakes import FakeTask, FakeWork, RealClock, jobs_folder
from tests.patience import BOUND

GRACE = 0.3


class Place:
    """An executor with a folder of its own."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "queue.db.files"
        jobs = Jobs(jobs_folder(directory))
        self.reaper = Reaper(jobs)
        self.executor = CommandExecutor(RealClock(), GRACE, self.files, jobs, self.reaper)

    async def run(self, command: object, **options: Any) -> Any:
        """Run what a handler of a task with these options returned."""
        async with asyncio.timeout(BOUND):
            return await self.executor.run(FakeWork(), FakeTask(lambda work: command, **options), None)

    def names(self) -> set[str]:
        return {path.name for path in self.files.iterdir()} if self.files.exists() else set()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    await made.executor.close()


# --- What one work says -----------------------------------------------------------------------------


async def test_a_command_of_arguments_runs_as_a_list_would(place: Place) -> None:
    result = await place.run(Command(["echo", "$HOME; `id`"]))
    assert result == {"stdout": "$HOME; `id`\n", "stderr": "", "exit_code": 0}


async def test_arguments_and_folder_may_be_paths(place: Place, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("content")
    command = Command(["cat", tmp_path / "a file", Path("a file")], cwd=tmp_path)  # type: ignore[list-item]
    assert (await place.run(command))["stdout"] == "contentcontent"


@pytest.mark.parametrize("of_the_task", [True, False])
async def test_a_text_is_run_by_a_shell_where_the_work_says_so(place: Place, of_the_task: bool) -> None:
    result = await place.run(Command("echo $((1 + 1))", shell=True), shell=of_the_task)
    assert result["stdout"] == "2\n"


async def test_a_work_may_do_without_the_shell_of_its_task(place: Place) -> None:
    assert (await place.run(Command(["echo", "$HOME"], shell=False), shell=True))["stdout"] == "$HOME\n"
    with pytest.raises(BadCommand, match="is a str"):
        await place.run(Command("echo", shell=False), shell=True)


async def test_what_a_work_does_not_say_is_as_its_task_says(place: Place, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "shell": True,
        "check": False,
        "cwd": str(tmp_path),
        "env": {"A": "of the task"},
    }
    result = await place.run(Command('pwd; echo "$A"; exit 3'), **options)
    assert result == {"stdout": f"{tmp_path}\nof the task\n", "stderr": "", "exit_code": 3}


async def test_what_a_work_says_wins_over_its_task(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    command = Command('pwd; echo "$A$B"; exit 3', shell=True, check=False, cwd=str(other), env={"A": "mine"})
    result = await place.run(command, cwd=str(tmp_path), env={"A": "of the task", "B": "of the task"})
    assert result == {"stdout": f"{other}\nmine\n", "stderr": "", "exit_code": 3}
    with pytest.raises(CommandFailed, match="exit code 3"):
        await place.run(Command(["sh", "-c", "exit 3"], check=True), check=False)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (Command("ls -l"), "is a str"),
        (Command([]), "names no program"),
        (Command([""]), "names no program"),
        (Command("", shell=True), "is empty"),
        (Command("  \n", shell=True), "is empty"),
        (Command("echo \0", shell=True), "NUL"),
        (Command("echo \ud800", shell=True), "cannot be encoded"),
        (Command(["echo", 1]), "make every argument a str"),  # type: ignore[list-item]
        (Command(("echo", "x")), "type tuple"),  # type: ignore[arg-type]
        (Command(None), "type NoneType"),  # type: ignore[arg-type]
        (Command(Command(["echo"])), "type Command"),  # type: ignore[arg-type]
        (Command(["true"], shell="yes"), "shell='yes'"),  # type: ignore[arg-type]
        (Command(["true"], check=1), "check=1"),  # type: ignore[arg-type]
        (Command(["true"], cwd=7), "has 7 in it"),  # type: ignore[arg-type]
        (Command(["true"], cwd="a\0b"), "NUL"),
        (Command(["true"], env=["A=1"]), "wrong env"),  # type: ignore[arg-type]
        (Command(["true"], env={"A": 1}), "wrong env"),  # type: ignore[dict-item]
        (Command(["true"], env={1: "A"}), "wrong env"),  # type: ignore[dict-item]
        (Command(["true"], env={"A=B": "c"}), "env"),
        (Command(["true"], env={"A": "b\0"}), "env"),
    ],
    ids=str,
)
async def test_a_wrong_command_is_refused_and_nothing_runs(place: Place, command: Command, says: str) -> None:
    with pytest.raises(BadCommand, match=r"^bad_command: ") as caught:
        await place.run(command)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert place.names() == set()


@pytest.mark.parametrize("folder", ["nowhere", "file"])
async def test_a_folder_that_is_none_fails_the_attempt_and_says_so(
    place: Place, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises((BadCommand, CommandFailed), match="cwd '"):  # (of a long path it shows a part)
        await place.run(Command(["true"], cwd=str(tmp_path / folder)))


# --- Texts that are too long for an argument --------------------------------------------------------


def script(size: int) -> str:
    """A text for a shell of that many bytes, which ends with the only thing that it does."""
    end = "\necho 'ä done'; exit 5"
    return "#" * (size - len(end.encode())) + end


@pytest.mark.parametrize(
    "size",
    [
        LONGEST_ARGUMENT - 2,
        LONGEST_ARGUMENT - 1,
        LONGEST_ARGUMENT,
        LONGEST_ARGUMENT + 1,
        256 * 1024,
        3 * 2**20,
    ],
)
async def test_a_text_of_any_length_is_run_to_its_end(place: Place, size: int) -> None:
    text = script(size)
    assert len(text.encode()) == size
    result = await place.run(Command(text, shell=True, check=False))
    assert result == {"stdout": "ä done\n", "stderr": "", "exit_code": 5}


async def test_a_long_text_of_a_task_with_a_shell_is_run_too(place: Place) -> None:
    assert (await place.run(script(LONGEST_ARGUMENT * 2), shell=True, check=False))["exit_code"] == 5


async def test_a_long_text_has_no_input_either_and_keeps_its_own_text_to_itself(place: Place) -> None:
    text = "#" * LONGEST_ARGUMENT + "\ncat; echo end; wc -c < /dev/stdin"
    assert (await place.run(Command(text, shell=True)))["stdout"].split() == ["end", "0"]


async def test_a_long_text_leaves_no_file_behind(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    await place.run(Command(script(LONGEST_ARGUMENT), shell=True, check=False))
    with pytest.raises((BadCommand, CommandFailed)):
        await place.run(Command(script(LONGEST_ARGUMENT), shell=True, cwd=str(tmp_path / "nowhere")))
    assert list(folder.iterdir()) == []


async def test_long_texts_leave_no_descriptor_open(place: Place) -> None:
    text = Command(script(LONGEST_ARGUMENT), shell=True, check=False)
    await place.run(text)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await place.run(text)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_an_argument_that_is_too_long_in_a_list_says_so(place: Place) -> None:
    with pytest.raises(CommandFailed, match="too long"):
        await place.run(Command(["echo", "x" * (LONGEST_ARGUMENT + 1)]))


async def test_a_list_that_looks_like_a_shell_and_its_text_is_left_as_it_is(place: Place) -> None:
    argv = [str(Path("/bin", "sh")), "-c", "--", script(LONGEST_ARGUMENT)]
    with pytest.raises(CommandFailed, match="too long"):
        await place.run(Command(argv))


# --- In a queue -------------------------------------------------------------------------------------


def queue(path: Path, **options: Any) -> Cue:
    """A program whose only task runs what a work says."""
    cue = Cue(path, **options)

    @cue.task(executor="subprocess")
    def shell(work: Work) -> Command:
        return Command(work.params["command"], shell=True, env={"WORK": work.id})

    return cue


async def test_what_a_command_printed_is_kept_in_files_and_read_by_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    cue = queue(path)
    async with cue, asyncio.timeout(BOUND):
        await cue.submit("shell", id="good", params={"command": 'echo "out of $WORK"; echo err >&2'})
        await cue.submit("shell", id="../odd id", params={"command": 'echo "out of $WORK"'})
        await cue.submit(
            "shell", id="bad", params={"command": "echo once more; exit 1"},
            retry={"max_attempts": 2, "base_delay": 0.01},
        )  # fmt: skip
        await cue.submit("shell", id="silent", params={"command": "true"})
        await cue.join()
        with Reader(path) as reader:
            assert reader.output("good").data == b"out of good\n"
            assert reader.output("good", "stderr").data == b"err\n"
            assert reader.output("../odd id").data == b"out of ../odd id\n"
            assert [reader.output("bad", attempt=number).data for number in (1, 2)] == [b"once more\n"] * 2
            assert reader.output("bad").attempt == 2
            assert reader.output("silent").data == b""
    await cue.close()


async def test_what_purged_work_printed_is_gone_and_what_others_printed_is_not(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    cue = queue(path)
    folder = tmp_path / "queue.db.files"
    async with cue, asyncio.timeout(BOUND):
        for work_id in ("a", "a-1", "b", "../odd"):
            command = {"command": "echo out; echo err >&2; exit 1"}
            await cue.submit(
                "shell", id=work_id, params=command, retry={"max_attempts": 2, "base_delay": 0.01}
            )
        await cue.join()
        assert len(list(folder.iterdir())) == 16
        assert await cue.purge("a") is True
        names = {file.name for file in folder.iterdir()}
        assert len(names) == 12
        assert {"a-1.1.out", "a-1.2.err", "b.1.out"} <= names
        assert {"a.1.out", "a.2.out", "a.1.err", "a.2.err"}.isdisjoint(names)
        await cue.submit("shell", id="a", params={"command": "true"})
        await cue.wait("a")
        with Reader(path) as reader:
            assert reader.output("a").data == b""
            assert reader.output("a-1", attempt=1).data == b"out\n"
        assert await cue.purge_dead() == 3
        assert list(folder.iterdir()) == []
    await cue.close()


async def test_no_more_is_kept_of_a_stream_than_was_said_and_that_is_its_end(tmp_path: Path) -> None:
    path, limit = tmp_path / "queue.db", 256 * 1024
    cue = queue(path, output_limit=limit)
    async with cue, asyncio.timeout(BOUND):
        await cue.submit("shell", id="a", params={"command": "yes | head -c 1000000; echo the end"})
        result = await cue.result("a")
        assert result["stdout"].endswith("the end\n")
        with Reader(path) as reader:
            found, at = b"", 0
            for _ in range(100):
                piece = reader.output("a", start=at, limit=50_000)
                if not piece.data:
                    break
                found, at = found + piece.data, piece.end
        assert found.endswith(b"y\nthe end\n")
        assert b"\0" not in found
        assert limit // 2 <= len(found) <= limit
    await cue.close()


@pytest.mark.parametrize("wrong", [0, 131_071, "1 MiB", None, 1e6])
def test_a_limit_for_output_has_to_leave_room_for_a_result(wrong: Any) -> None:
    with pytest.raises(runcue.errors.InvalidOption, match="output_limit"):
        Cue(output_limit=wrong)


async def test_a_wrong_command_fails_its_work_at_once_and_for_good(tmp_path: Path) -> None:
    cue = Cue(tmp_path / "queue.db")

    @cue.task(executor="subprocess", retry=5)
    def shell(work: Work) -> Command:
        return Command(["true"], cwd=work.params["cwd"])

    async with cue, asyncio.timeout(BOUND):
        work = await cue.wait(await cue.submit("shell", params={"cwd": 7}))
        assert (work.state, work.attempt) == ("failed", 1)
        assert "bad_command: " in str(work.error)
    await cue.close()
