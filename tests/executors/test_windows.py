"""Commands and pools of processes on Windows: job objects end what a worker started."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "win32":
    pytest.skip("of Windows", allow_module_level=True)

import runcue
from runcue.errors import CommandFailed, Unreachable
from runcue.executors import job_objects
from runcue.executors.ssh.executor import SshExecutor
from tests.executors.fakes import FakeTask, FakeWork, RealClock
from tests.executors.sshserver import Host
from tests.patience import BOUND, lives, until

PYTHON = sys.executable
SLEEPER = "import time; time.sleep(600)"
PARENT = (
    "import pathlib, subprocess, sys, time\n"
    f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])\n"
    "pathlib.Path(sys.argv[1]).write_text(str(child.pid))\n"
    "time.sleep(float(sys.argv[2]))\n"
)


@pytest.fixture
async def cue(tmp_path: Path) -> AsyncIterator[runcue.Cue]:
    async with runcue.Cue(tmp_path / "queue.db", grace=0.2) as one:
        yield one


async def run(cue: runcue.Cue, command: Any, **options: Any) -> runcue.Work:
    """A unit with that command, when it is over."""

    @cue.task("command", executor="subprocess", **options)
    def handler(work: Any) -> Any:
        return command

    return await cue.wait(await cue.submit("command"), timeout=BOUND)


async def pid_in(file: Path) -> int:
    """The pid that a process has written there."""
    return int(await until(lambda: file.exists() and file.read_text()))


async def test_a_list_is_run_as_it_is_and_its_output_is_the_result(cue: runcue.Cue) -> None:
    code = "import sys; print(sys.argv[1:]); print('wrong', file=sys.stderr)"
    work = await run(cue, [PYTHON, "-c", code, 'a "b" c', "%PATH%", "x\\", ""])
    assert work.result == {
        "stdout": "['a \"b\" c', '%PATH%', 'x\\\\', '']\r\n", "stderr": "wrong\r\n", "exit_code": 0,
    }  # fmt: skip


async def test_a_text_is_read_by_cmd(cue: runcue.Cue) -> None:
    work = await run(cue, 'echo "one two" & exit 3', shell=True, check=False)
    assert (work.result["stdout"].strip(), work.result["exit_code"]) == ('"one two"', 3)


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        (["no-such-program"], {}, "not found"),
        ([PYTHON, "-c", "raise SystemExit(4)"], {}, "exit code 4"),
        (["run.bat", "& calc"], {}, "names a batch file"),
        ("echo one\necho two", {"shell": True}, "has several lines"),
        ([PYTHON, "-c", ""], {"cwd": "C:/no/such/folder"}, "no such folder"),
    ],
)
async def test_what_cannot_be_run_fails_its_unit_and_says_why(
    cue: runcue.Cue, command: Any, options: dict[str, Any], said: str
) -> None:
    work = await run(cue, command, **options)
    assert work.state == "failed"
    assert said in str(work.error)


async def test_a_command_that_takes_too_long_is_ended_with_its_children(
    cue: runcue.Cue, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    command = [PYTHON, "-c", PARENT, str(file), "600"]
    cue.task("hang", executor="subprocess")(lambda work: command)
    unit = await cue.submit("hang")
    pid = await pid_in(file)
    assert await cue.cancel(unit)
    await until(lambda: not lives(pid))
    assert (await cue.wait(unit, timeout=BOUND)).state == "cancelled"


async def test_what_a_command_left_running_ends_with_it(cue: runcue.Cue, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    work = await run(cue, [PYTHON, "-c", PARENT, str(file), "0"])
    assert work.state == "completed"
    assert not lives(int(file.read_text()))


async def test_secrets_of_ours_stay_here_and_env_is_added(
    cue: runcue.Cue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNCUE_SECRET", "sesame")
    code = "import os; print(os.environ.get('RUNCUE_SECRET'), os.environ['EXTRA'])"
    work = await run(cue, [PYTHON, "-c", code], env={"EXTRA": "more"})
    assert work.result["stdout"] == "None more\r\n"


FLOOD = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
for _ in range(200_000): print('x' * 50)
sys.stdout.flush()
(folder / 'flooded').touch()
while not (folder / 'go').exists(): time.sleep(0.01)
print('last words')
"""


async def test_of_endless_output_the_end_is_kept(tmp_path: Path) -> None:
    async with runcue.Cue(tmp_path / "queue.db", output_limit=1_000_000) as cue:
        cue.task("flood", executor="subprocess")(lambda work: [PYTHON, "-c", FLOOD, str(tmp_path)])
        unit = await cue.submit("flood")
        await until((tmp_path / "flooded").exists)
        [file] = (tmp_path / "queue.db.files").glob("*.out")
        await until(lambda: file.stat().st_size <= 1_000_000)  # what is printed as it is emptied is lost
        (tmp_path / "go").touch()
        work = await cue.wait(unit, timeout=BOUND)
    [file] = (tmp_path / "queue.db.files").iterdir()
    assert work.result["stdout"].endswith("last words\r\n")
    assert file.stat().st_size <= 2_000_000


def test_the_processes_of_a_killed_worker_end_with_it_and_nothing_is_left(tmp_path: Path) -> None:
    folder, file = tmp_path / "jobs", tmp_path / "pid"
    owner = (
        "import pathlib, sys, time\n"
        "from runcue.executors.job_objects import Jobs\n"
        "command = [sys.executable, '-c', sys.argv[3], sys.argv[2], '600']\n"
        "started = Jobs(pathlib.Path(sys.argv[1])).start(1, command)\n"
        "print(started.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    worker = subprocess.Popen(
        [PYTHON, "-c", owner, str(folder), str(file), PARENT], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    pid = int(worker.stdout.readline())
    child = int(asyncio.run(_content(file)))
    assert (lives(pid), lives(child)) == (True, True)
    worker.kill()
    worker.wait(BOUND)
    worker.stdout.close()
    asyncio.run(_over(folder))
    assert (lives(pid), lives(child)) == (False, False)
    assert not folder.exists()


async def _content(file: Path) -> str:
    return str(await until(lambda: file.exists() and file.read_text()))


async def _over(folder: Path) -> None:
    await until(lambda: job_objects.end_leftovers(folder))


def test_a_process_that_could_not_be_started_leaves_no_note(tmp_path: Path) -> None:
    jobs = job_objects.Jobs(tmp_path / "jobs")
    with pytest.raises(FileNotFoundError):
        jobs.start(1, ["no-such-program"])
    jobs.close()
    assert not (tmp_path / "jobs").exists()
    assert job_objects.end_leftovers(tmp_path / "jobs")


# --- Functions in processes -----------------------------------------------------------------------


def double(work: runcue.Work) -> int:
    work.progress(0.5, "half")
    return int(work.params["n"]) * 2


def fail(work: runcue.Work) -> None:
    raise ValueError("as told")


def die(work: runcue.Work) -> None:
    from runcue.host.system import processes

    processes.end_self()


def sleep(work: runcue.Work) -> None:
    Path(work.params["file"]).write_text("begun")
    threading.Event().wait(600)


async def test_functions_return_raise_and_report(cue: runcue.Cue) -> None:
    cue.task(executor="process_pool")(double)
    cue.task(executor="process_pool")(fail)
    units = await cue.submit_many([{"task": "double", "params": {"n": n}} for n in range(5)])
    assert [await cue.result(one, timeout=BOUND) for one in units] == [0, 2, 4, 6, 8]
    work = await cue.wait(await cue.submit("fail"), timeout=BOUND)
    assert str(work.error) == "ValueError: as told"


async def test_a_function_whose_process_dies_is_lost_and_others_go_on(cue: runcue.Cue) -> None:
    cue.task(executor="process_pool")(die)
    cue.task(executor="process_pool")(double)
    work = await cue.wait(await cue.submit("die"), timeout=BOUND)
    assert "exit code 9" in str(work.error)
    assert await cue.result(await cue.submit("double", params={"n": 4}), timeout=BOUND) == 8


async def test_a_function_is_ended_where_it_sleeps(cue: runcue.Cue, tmp_path: Path) -> None:
    cue.task(executor="process_pool")(sleep)
    file = tmp_path / "begun"
    unit = await cue.submit("sleep", params={"file": str(file)})
    await until(file.exists)
    assert await cue.cancel(unit)
    assert (await cue.wait(unit, timeout=BOUND)).state == "cancelled"


# --- Commands over SSH ----------------------------------------------------------------------------


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    """A host whose shell is cmd, as that of OpenSSH for Windows is."""
    one = Host(tmp_path)
    one.shell = ("cmd", "/c")
    async with one:
        yield one


@pytest.fixture
async def ssh(host: Host) -> AsyncIterator[Callable[[Any], Coroutine[Any, Any, Any]]]:
    """Runs a command on that host, from here."""
    executor = SshExecutor(RealClock(), 0.2, host.options, connect_timeout=BOUND)

    async def run(command: Any) -> Any:
        work, task = FakeWork({"host": f"127.0.0.1:{host.port}"}), FakeTask(lambda work: command)
        async with asyncio.timeout(BOUND):
            return await executor.run(work, task, None)

    yield run
    await executor.close()


async def test_commands_run_on_another_host_and_share_a_connection(host: Host, ssh: Any) -> None:
    first, second = await asyncio.gather(ssh(["echo", "one"]), ssh("echo two"))
    assert (first["stdout"], second["stdout"], second["exit_code"]) == ("one\r\n", "two\r\n", 0)
    assert len(host.connections) == 1
    with pytest.raises(CommandFailed, match="exit code 4"):
        await ssh("exit 4")


async def test_a_host_whose_key_is_not_known_is_not_believed(host: Host, ssh: Any) -> None:
    host.known_hosts.write_text("")
    with pytest.raises(Unreachable, match="not in known_hosts"):
        await ssh("echo one")


async def test_a_command_as_proxy_is_refused_with_what_to_do_instead(host: Host) -> None:
    executor = SshExecutor(RealClock(), 0.2, host.options | {"proxy_command": "nc"}, connect_timeout=BOUND)
    with pytest.raises(Unreachable, match="Use ProxyJump"):
        await executor.run(FakeWork({"host": "127.0.0.1:1"}), FakeTask(lambda work: ["true"]), None)
    await executor.close()


async def test_a_command_on_another_host_is_told_to_end(host: Host, ssh: Any) -> None:
    host.is_deaf, host.shell = True, (PYTHON, "-c")
    running = asyncio.ensure_future(ssh(SLEEPER))
    await until(lambda: host.commands)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: host.signals == ["TERM", "KILL"])
