"""Commands on other hosts: what they come to, what is told apart, and what is really gone afterwards."""

import asyncio
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

import runcue
from runcue import testing
from runcue.errors import BadCommand, CommandFailed, Unreachable
from runcue.executors.command.text import KEEP, Tail
from runcue.executors.ssh import remote_command
from runcue.executors.ssh.executor import SshExecutor
from runcue.executors.ssh.target import command_of, place_of
from runcue.ports import TooLate
from tests.executors.fakes import Entered, FakeTask, FakeWork, RealClock
from tests.executors.sshserver import Host, write_key
from tests.patience import BOUND, lives, until, until_sync

GRACE = 0.3


class Caller:
    """An executor, and works for one host."""

    made: ClassVar[list["Caller"]] = []

    def __init__(self, host: str, options: dict[str, Any], **more: Any) -> None:
        self.made.append(self)
        self.host = host
        self.executor = SshExecutor(RealClock(), GRACE, options, **more)

    async def run(self, command: object, work: FakeWork | None = None, **options: Any) -> Any:
        work = work if work is not None else FakeWork({"host": self.host})
        async with asyncio.timeout(BOUND):
            return await self.executor.run(work, FakeTask(lambda work: command, **options), None)

    def begin(self, command: str) -> tuple[asyncio.Task[Any], Entered]:
        """A command under way."""
        entered = Entered()
        work, task = FakeWork({"host": self.host}), FakeTask(lambda work: command)
        return asyncio.ensure_future(self.executor.run(work, task, entered)), entered


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("runcue-ssh")}


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with Host(tmp_path) as host:
        yield host


@pytest.fixture
async def caller(host: Host) -> AsyncIterator[Caller]:
    """Closed at the end; then neither a connection nor a thread may be left."""
    before = threads()
    caller = Caller(f"127.0.0.1:{host.port}", host.options, connect_timeout=BOUND)
    yield caller
    while Caller.made:
        await Caller.made.pop().executor.close()
    await until(lambda: host.open_connections == 0, "connections are closed")
    await until(lambda: threads() == before, "the thread has ended")


async def failure_of(caller: Caller, command: str = "true") -> str:
    """Why the host is unreachable."""
    with pytest.raises(Unreachable) as raised:
        await caller.run(command)
    message = str(raised.value)
    assert message.startswith(f"{caller.host}: ")
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------------- what a work asks for


@pytest.mark.parametrize(
    ("given", "user", "name", "port"),
    [
        ("web1", None, "web1", None),
        ("deploy@web-1.example.com:2222", "deploy", "web-1.example.com", 2222),
        ("my_alias", None, "my_alias", None),
        ("10.0.0.7", None, "10.0.0.7", None),
        ("root@10.0.0.7:22", "root", "10.0.0.7", 22),
        ("::1", None, "::1", None),
        ("fe80::1", None, "fe80::1", None),
        ("me@[::1]:22", "me", "::1", 22),
        ("web1.", None, "web1.", None),
    ],
)
def test_a_host_may_have_a_user_and_a_port(given: str, user: str | None, name: str, port: int | None) -> None:
    assert place_of({"host": given}) == (given, user, name, port)


BAD_HOSTS = [
    "-oProxyCommand=touch pwned",
    "-oProxyCommand=touch${IFS}pwned",
    "user@-oProxyCommand=x",
    "-l@web1",
    "web 1",
    " web1",
    "web1\n",
    "web1\nProxyCommand touch pwned",
    "web1;touch pwned",
    "web1|id",
    "$(touch pwned)",
    "`touch pwned`",
    "web1\0",
    "web1%h",
    "wéb1",
    "web1/..",
    "a..b",
    "web1:",
    "web1:0",
    "web1:65536",
    "web1:22:",
    "@web1",
    "user@",
    "a@b@c",
    "[::1",
    "[web1]:22",
    "x" * 64,
    "a." * 200,
    "",
    None,
    7,
    ["web1"],
]


@pytest.mark.parametrize("given", BAD_HOSTS)
async def test_what_is_no_host_is_refused_and_nobody_is_contacted(
    given: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    caller = Caller("", {"config": None})
    with pytest.raises(BadCommand, match=r"^bad_command: params"):
        await caller.run("true", FakeWork({"host": given}))
    assert list(tmp_path.iterdir()) == []
    assert caller.executor._pool is None  # not even a thread was started


async def test_a_work_without_a_host_is_refused() -> None:
    with pytest.raises(BadCommand, match="is no host: None"):
        await Caller("", {}).run("true", FakeWork({}))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ([], "names no program"),
        ([""], "names no program"),
        (["ls", 5], "has 5 in it: make every argument a str"),
        (["ls", None], "has None"),
        (["ls", b"x"], "has b'x'"),
        (("ls", "-l"), "is of type tuple"),
        (None, "is of type NoneType"),
        (7, "is of type int"),
        (b"ls", "is of type bytes"),
        ("ls \0", "NUL"),
        (["ls", "a\0b"], "NUL"),
        ("echo " + "x" * 128 * 1024, "longer than 128 KiB"),
        ("echo \udc80", "no UTF-8"),
        (["echo", "\ud900"], "cannot be encoded"),
    ],
)
def test_what_is_no_command_is_refused(command: object, problem: str) -> None:
    with pytest.raises(BadCommand, match=problem) as raised:
        command_of(command)
    assert str(raised.value).startswith("bad_command: ")


async def test_a_directory_is_no_option_of_remote_commands(host: Host, caller: Caller) -> None:
    with pytest.raises(BadCommand, match="begin with cd"):
        await caller.run("true", cwd="/srv")
    assert host.connections == []


# ------------------------------------------------------------------------------------------- what comes back


async def test_output_and_exit_code_come_back(caller: Caller) -> None:
    result = await caller.run("echo one; echo two >&2; echo three")
    assert result == {"stdout": "one\nthree\n", "stderr": "two\n", "exit_code": 0}


async def test_a_list_is_quoted_for_the_shell_over_there(caller: Caller) -> None:
    arguments = ["a b", "$HOME", "it's", "", "-n", ";id", "two\nlines", "*"]
    result = await caller.run(["printf", "<%s>", *arguments, Path("/srv/x y")])
    assert result["stdout"] == "".join(f"<{argument}>" for argument in [*arguments, "/srv/x y"])


async def test_the_handler_may_be_a_coroutine(host: Host, caller: Caller) -> None:
    async def handler(work: FakeWork) -> str:
        await asyncio.sleep(0)
        return f"echo {work.params['text']}"

    work = FakeWork({"host": caller.host, "text": "hello"})
    result = await caller.executor.run(work, FakeTask(handler), None)
    assert result["stdout"] == "hello\n"


async def test_what_the_handler_raises_is_the_outcome_and_nobody_is_contacted(
    host: Host, caller: Caller
) -> None:
    def handler(work: FakeWork) -> str:
        raise LookupError("no such release")

    with pytest.raises(LookupError, match="no such release"):
        await caller.executor.run(FakeWork({"host": caller.host}), FakeTask(handler), None)
    assert host.connections == []


@pytest.mark.parametrize("code", [1, 3, 126, 127, 255])
async def test_an_exit_code_is_a_failure_with_the_last_line_of_stderr(caller: Caller, code: int) -> None:
    with pytest.raises(CommandFailed) as raised:
        await caller.run(f"echo out; echo first >&2; echo last >&2; exit {code}")
    assert str(raised.value) == f"exit code {code}: last"
    assert raised.value.result == {"stdout": "out\n", "stderr": "first\nlast\n", "exit_code": code}


async def test_an_exit_code_without_a_word_is_told_alone(caller: Caller) -> None:
    with pytest.raises(CommandFailed, match=r"^exit code 255$"):
        await caller.run("exit 255")


async def test_an_exit_code_may_be_no_failure(caller: Caller) -> None:
    assert (await caller.run("exit 3", check=False))["exit_code"] == 3


@pytest.mark.parametrize("check", [True, False])
async def test_a_signal_is_named(caller: Caller, check: bool) -> None:
    with pytest.raises(CommandFailed) as raised:
        await caller.run("echo before; kill -9 $$", check=check)
    assert str(raised.value) == "signal:KILL"
    assert raised.value.result == {"stdout": "before\n", "stderr": "", "exit_code": -9}


async def test_there_is_nothing_to_read_from_stdin(caller: Caller) -> None:
    assert (await caller.run("cat; echo end"))["stdout"] == "end\n"


async def test_only_the_environment_of_the_task_is_sent(
    host: Host, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNCUE_TOKEN", "secret")
    config = host.folder / "config"
    config.write_text("SendEnv RUNCUE_TOKEN\nSetEnv OTHER=1\n")
    caller = Caller(caller.host, {**host.options, "config": [str(config)]})
    await caller.run("true", env={"GREETING": "hallo"})
    await caller.run("true")
    await caller.executor.close()
    assert host.environments == [{"GREETING": "hallo"}, {}]


async def test_output_that_is_no_text_is_escaped(caller: Caller) -> None:
    result = await caller.run(r"printf 'a\377b\303\244'")
    assert result["stdout"] == "a\\xffbä"


async def test_the_end_of_much_output_is_kept_and_memory_stays_small(caller: Caller) -> None:
    await caller.run("true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await caller.run(
        "head -c 48000000 /dev/zero | tr '\\0' x; echo; echo end; head -c 9000000 /dev/zero >&2"
    )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert result["stdout"] == "x" * (KEEP - 5) + "\nend\n"
    assert len(result["stderr"]) == KEEP
    assert grown < 32 * 1024


def test_a_tail_cuts_no_character_in_half() -> None:
    tail = Tail()
    for _ in range(10):
        tail.add("ä€".encode() * 10_000 + b".")
    text = tail.text()
    assert len(text.encode()) in range(KEEP - 3, KEEP + 1)
    assert set(text) == {"ä", "€", "."}


def test_a_last_line_is_short_and_moves_no_cursor() -> None:
    tail = Tail()
    tail.add(b"first\nsecond \x1b[31mred\x07\r\n\n  ")
    assert tail.last_line() == "second  [31mred"
    tail.add(b"\n" + b"y" * 5000)
    assert tail.last_line() == "y" * 200 + "…"
    assert tail.last_line(is_whole=True) != tail.last_line()


async def test_lines_are_told_while_the_command_runs(caller: Caller) -> None:
    work = FakeWork({"host": caller.host})
    running = asyncio.ensure_future(caller.run("echo 10 of 20; exec sleep 60", work))
    await until(lambda: work.told, "a line was told")
    assert not running.done()
    assert work.told == [(None, "10 of 20")]
    running.cancel()
    await asyncio.wait([running])


async def test_it_is_entered_once_when_the_command_runs(host: Host, caller: Caller) -> None:
    entered = Entered()
    work = FakeWork({"host": caller.host})
    await caller.executor.run(work, FakeTask(lambda work: "true"), entered)
    await entered.wait()
    assert len(entered.times) == 1
    assert entered.times[0] is not None


async def test_what_comes_too_late_for_its_grant_is_not_sent(host: Host, caller: Caller) -> None:
    running, entered = caller.begin("true")
    entered.is_late = True
    with pytest.raises(TooLate):
        await running
    assert host.open_connections == 1  # it was asked when everything else was done
    assert host.commands == entered.times == []
    assert (await caller.run("echo next"))["stdout"] == "next\n"


# --------------------------------------------------------------------------------------------- connections


async def test_ten_works_at_once_open_one_connection(host: Host, caller: Caller) -> None:
    results = await asyncio.gather(*(caller.run(f"echo {number}") for number in range(10)))
    assert [result["stdout"] for result in results] == [f"{number}\n" for number in range(10)]
    assert len(host.connections) == 1


async def test_a_connection_is_used_again(host: Host, caller: Caller) -> None:
    for _ in range(5):
        await caller.run("true")
    assert len(host.connections) == 1


async def test_another_user_has_another_connection(host: Host, caller: Caller) -> None:
    await caller.run("true")
    await caller.run("true", FakeWork({"host": f"deploy@{caller.host}"}))
    users = [connection.get_extra_info("username") for connection in host.connections]
    assert len(users) == 2
    assert users[1] == "deploy"


async def test_an_idle_connection_is_closed_and_opened_again(host: Host, caller: Caller) -> None:
    caller = Caller(caller.host, host.options, keep_idle=0.01)
    await caller.run("true")
    await until(lambda: host.open_connections == 0, "it is closed")
    await caller.run("true")
    assert len(host.connections) == 2
    await caller.executor.close()


async def test_a_command_longer_than_the_idle_time_keeps_its_connection(host: Host, caller: Caller) -> None:
    caller = Caller(caller.host, host.options, keep_idle=0.01)
    await caller.run("true")
    await caller.run("sleep 0.2")
    await caller.executor.close()
    assert len(host.commands) == 2


async def test_a_connection_that_died_idle_costs_no_attempt(host: Host, caller: Caller) -> None:
    await caller.run("true")
    await host.stop()
    await host.start()
    assert (await caller.run("echo again"))["stdout"] == "again\n"
    assert host.commands == ["true", "echo again"]


async def test_a_host_that_allows_few_sessions_gets_more_connections(host: Host, caller: Caller) -> None:
    host.most_sessions = 3
    results = await asyncio.gather(*(caller.run(f"sleep 0.2; echo {number}") for number in range(10)))
    assert [result["stdout"] for result in results] == [f"{number}\n" for number in range(10)]
    assert len(host.connections) == 4
    assert len(host.commands) == 10


async def test_a_host_that_allows_no_session_is_unreachable(host: Host, caller: Caller) -> None:
    host.most_sessions = 0
    assert "opens no session (open failed)" in await failure_of(caller)


async def test_a_host_that_runs_no_commands_says_so(host: Host, caller: Caller) -> None:
    host.runs_commands = False
    with pytest.raises(CommandFailed, match=r"^refused: 127\.0\.0\.1:\d+ runs no commands"):
        await caller.run("true")


async def test_close_leaves_running_commands_alone(host: Host, caller: Caller) -> None:
    before = threads()
    running, entered = caller.begin("sleep 0.3; echo end")
    await entered.wait()
    await caller.executor.close()
    assert not running.done()
    assert (await running)["stdout"] == "end\n"
    await until(lambda: host.open_connections == 0, "the connection is closed")
    await until(lambda: threads() < before | {threading.current_thread()}, "the thread has ended")


async def test_close_without_a_command_does_nothing(caller: Caller) -> None:
    await caller.executor.close()
    await caller.executor.close()


# --------------------------------------------------------------------------------------- what is told apart


async def test_a_refused_connection_is_unreachable(host: Host, caller: Caller) -> None:
    await host.stop()
    entered = Entered()
    with pytest.raises(Unreachable, match="connection refused"):
        await caller.executor.run(FakeWork({"host": caller.host}), FakeTask(lambda work: "true"), entered)
    assert entered.times == []
    await host.start()
    await caller.run("true")  # nothing of the failure is left


@pytest.fixture
def silence() -> Iterator[socket.socket]:
    """Somebody who accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


async def test_a_host_that_does_not_answer_is_unreachable(host: Host, silence: socket.socket) -> None:
    caller = Caller(f"127.0.0.1:{silence.getsockname()[1]}", host.options, connect_timeout=0.2)
    assert "no answer within 0.2 s" in await failure_of(caller)
    await caller.executor.close()


async def test_ten_works_for_a_silent_host_wait_for_one_connection(
    host: Host, silence: socket.socket
) -> None:
    caller = Caller(f"127.0.0.1:{silence.getsockname()[1]}", host.options, connect_timeout=0.2)
    outcomes = await asyncio.gather(*(caller.run("true") for _ in range(10)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unreachable}
    assert len(set(map(id, outcomes))) == 10
    silence.accept()[0].close()
    with pytest.raises(BlockingIOError):
        silence.accept()
    await caller.executor.close()


async def test_the_time_to_connect_is_that_of_the_ssh_config(host: Host, silence: socket.socket) -> None:
    config = host.folder / "config"
    config.write_text("ConnectTimeout 1\n")
    options = {**host.options, "config": [str(config)]}
    caller = Caller(f"127.0.0.1:{silence.getsockname()[1]}", options, connect_timeout=BOUND)
    assert "no answer within 1 s" in await failure_of(caller)
    await caller.executor.close()


async def test_who_does_not_speak_ssh_is_unreachable(host: Host) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ESMTP\r\n")
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        caller = Caller(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", host.options)
        assert "no connection (" in await failure_of(caller)
        await caller.executor.close()


async def test_a_name_that_nobody_knows_is_unreachable(
    host: Host, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object, **__: object) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    caller.host = "web1"
    assert "its name cannot be looked up" in await failure_of(caller)


async def test_an_unknown_host_key_is_never_accepted(host: Host, caller: Caller) -> None:
    host.known_hosts.write_text("")
    assert "its host key is not in known_hosts" in await failure_of(caller)
    assert host.commands == []
    assert host.known_hosts.read_text() == ""  # nor remembered


async def test_a_missing_known_hosts_file_knows_nobody(host: Host, caller: Caller) -> None:
    host.known_hosts.unlink()
    assert "its host key is not in known_hosts" in await failure_of(caller)


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("ssh-ed25519", "its host key is not the one in known_hosts"),
        ("ecdsa-sha2-nistp256", "no key or cipher suits both sides"),
    ],
)
async def test_a_changed_host_key_is_never_accepted(
    host: Host, caller: Caller, algorithm: str, reason: str
) -> None:
    host.known_hosts.write_text("")
    host.know(write_key(host.folder / "old", algorithm))
    message = await failure_of(caller)
    assert reason in message
    assert "ssh-keygen -R" in message
    assert host.commands == []


async def test_known_hosts_may_not_be_turned_off(host: Host, caller: Caller) -> None:
    config = host.folder / "config"
    config.write_text("UserKnownHostsFile none\n")
    options = {"config": [str(config)], "client_keys": host.options["client_keys"]}
    assert "any host would be believed" in await failure_of(Caller(caller.host, options))
    assert "any host would be believed" in await failure_of(
        Caller(caller.host, {**host.options, "known_hosts": None})
    )
    assert host.commands == []


async def test_a_key_that_is_not_accepted_is_unreachable_and_nobody_is_asked_for_a_password(
    host: Host, caller: Caller
) -> None:
    write_key(host.folder / "other")
    caller = Caller(caller.host, {**host.options, "client_keys": [str(host.folder / "other")]})
    assert "it accepts no key of ours" in await failure_of(caller)
    await caller.executor.close()


async def test_a_session_that_is_never_answered_is_unreachable(host: Host, caller: Caller) -> None:
    host.gate = asyncio.Event()
    caller = Caller(caller.host, host.options, connect_timeout=0.5)
    assert "opens no session (no answer within 0.5 s)" in await failure_of(caller)
    await caller.executor.close()


async def test_a_connection_cut_while_the_command_runs_leaves_its_outcome_unknown(
    host: Host, caller: Caller
) -> None:
    running, entered = caller.begin("sleep 60")
    await entered.wait()
    await until(lambda: host.pids, "it runs")
    await host.stop()
    with pytest.raises(Unreachable, match=r"cut off while the command ran .*is unknown: look before"):
        await running
    await host.start()
    await caller.run("true")
    assert host.commands == ["sleep 60", "true"]  # it was not sent again


async def test_a_channel_closed_without_an_exit_code_leaves_the_outcome_unknown(
    host: Host, caller: Caller
) -> None:
    host.hangs_up = True
    assert "the host closed its channel). What the command did is unknown" in await failure_of(caller)


# ------------------------------------------------------------------------------------- the user's own config


@pytest.fixture
def home(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory whose ssh config, key and known_hosts lead to the host as web1."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".ssh" / "config").write_text(
        f'Host web1\n  HostName 127.0.0.1\n  Port {host.port}\n  User deploy\n  IdentityFile "{host.client_key}"\n'
    )
    shutil.copy(host.known_hosts, home / ".ssh" / "known_hosts")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home


async def test_the_users_ssh_config_keys_and_known_hosts_are_used(host: Host, home: Path) -> None:
    caller = Caller("web1", {})
    assert (await caller.run("echo there"))["stdout"] == "there\n"
    assert host.connections[0].get_extra_info("username") == "deploy"
    await caller.executor.close()


async def test_a_config_that_cannot_be_read_is_told(host: Host, caller: Caller) -> None:
    config = host.folder / "config"
    config.write_text("Port many\n")
    caller = Caller(caller.host, {**host.options, "config": [str(config)]})
    assert "ssh config, keys or known_hosts cannot be used" in await failure_of(caller)
    await caller.executor.close()


async def test_a_key_with_a_passphrase_asks_nobody(host: Host, caller: Caller) -> None:
    encrypted = host.folder / "encrypted"
    key = write_key(encrypted)
    encrypted.write_bytes(key.export_private_key("pkcs8-pem", passphrase="secret"))
    config = host.folder / "config"
    config.write_text(f'IdentityFile "{encrypted}"\nIdentityAgent none\n')
    options = {"config": [str(config)], "known_hosts": str(host.known_hosts)}
    assert "it accepts no key of ours" in await failure_of(Caller(caller.host, options))


# ----------------------------------------------------------------------------------------------- jump hosts


class Behind:
    """A host that is reached through another, as an ssh config says: `behind` through `jump`."""

    def __init__(self, host: Host, jump: Host) -> None:
        self.host = host
        self.jump = jump
        self.config = host.folder / "config"
        self.known_hosts = host.folder / "known_hosts"

    async def caller(self, of_jump: str = "", of_all: str = "") -> Caller:
        def entry(name: str, host: Host, more: str) -> str:
            return f"Host {name}\n  HostName 127.0.0.1\n  Port {host.port}\n{more}\n"

        self.config.write_text(
            entry("behind", self.host, "  ProxyJump jump\n")
            + entry("jump", self.jump, of_jump)
            + f'Host *\n  IdentityFile "{self.host.client_key}"\n  UserKnownHostsFile "{self.known_hosts}"\n{of_all}'
        )
        return Caller("behind", {"config": [str(self.config)]}, connect_timeout=BOUND)


@pytest.fixture
async def behind(host: Host, caller: Caller, tmp_path: Path) -> AsyncIterator[Behind]:
    """Both hosts; at the end nobody may be connected to either."""
    async with Host(tmp_path, "jump") as jump:
        jump.passed_on = []
        yield Behind(host, jump)
        while Caller.made:
            await Caller.made.pop().executor.close()
        await until(lambda: jump.open_connections == 0, "connections to the jump host are closed")


async def test_a_host_is_reached_through_the_jump_host_of_the_config(behind: Behind) -> None:
    caller = await behind.caller()
    for _ in range(2):
        assert (await caller.run("echo there"))["stdout"] == "there\n"
    assert behind.jump.passed_on == [("127.0.0.1", behind.host.port)]
    assert behind.jump.commands == []


async def test_a_jump_host_is_not_believed_without_a_known_key(behind: Behind) -> None:
    behind.known_hosts.write_text("")
    behind.host.know()
    reason = await failure_of(await behind.caller())
    assert reason.startswith("behind: jump host jump: its host key is not in known_hosts")
    assert behind.jump.passed_on == behind.host.connections == []


async def test_known_hosts_may_not_be_turned_off_for_a_jump_host(behind: Behind) -> None:
    reason = await failure_of(await behind.caller(of_jump="  UserKnownHostsFile none\n"))
    assert "jump host jump: " in reason
    assert "any host would be believed" in reason
    assert behind.jump.connections == behind.host.connections == []


async def test_a_host_behind_a_jump_host_is_not_believed_without_a_known_key(behind: Behind) -> None:
    behind.known_hosts.write_text("")
    behind.jump.know()
    assert (await failure_of(await behind.caller())).startswith("behind: its host key is not in known_hosts")
    assert behind.host.commands == []
    await until(lambda: behind.jump.open_connections == 0, "the way there is given up, too")


async def test_a_jump_host_that_lets_nobody_through_is_told(behind: Behind) -> None:
    behind.jump.passed_on = None
    assert "no connection (" in await failure_of(await behind.caller())
    assert behind.host.connections == []


async def test_a_jump_host_that_is_meant_for_all_is_not_reached_through_itself(behind: Behind) -> None:
    assert (await (await behind.caller(of_all="  ProxyJump jump\n")).run("echo x"))["stdout"] == "x\n"


@pytest.mark.parametrize(
    ("jumps", "says"), [("behind", "goes round in a circle"), ("-oProxyCommand=x", "what is no host")]
)
async def test_jump_hosts_that_cannot_be_are_refused(behind: Behind, jumps: str, says: str) -> None:
    assert says in await failure_of(await behind.caller(of_jump=f"  ProxyJump {jumps}\n"))
    assert behind.jump.connections == behind.host.connections == []


# --------------------------------------------------------------------------------------------------- cancel


async def test_a_cancelled_command_is_terminated_and_gone_before_run_returns(
    host: Host, caller: Caller
) -> None:
    running, entered = caller.begin("sleep 60")
    await entered.wait()
    pid = await until(lambda: host.pids and host.pids[0], "it runs")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert host.signals == ["TERM"]
    assert not lives(pid)


async def test_a_command_that_ignores_term_is_killed_after_grace(host: Host, caller: Caller) -> None:
    work = FakeWork({"host": caller.host})
    running = asyncio.ensure_future(caller.run("trap '' TERM; echo ready; sleep 60; sleep 60", work))
    await until(lambda: work.told, "it ignores TERM")
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert host.signals == ["TERM", "KILL"]
    assert not lives(host.pids[0])


async def test_a_command_that_stopped_itself_is_killed(host: Host, caller: Caller) -> None:
    work = FakeWork({"host": caller.host})
    running = asyncio.ensure_future(caller.run("echo ready; kill -STOP $$", work))
    await until(lambda: work.told, "it runs")
    running.cancel()
    await asyncio.wait([running])
    assert host.signals == ["TERM", "KILL"]
    assert not lives(host.pids[0])


async def test_a_host_deaf_to_signals_holds_nobody_up_and_is_warned_about(
    host: Host, caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote_command, "KILL_PATIENCE", 0.1)
    host.is_deaf = True
    running, entered = caller.begin("sleep 60")
    await entered.wait()
    running.cancel()
    await asyncio.wait([running], timeout=BOUND)
    assert running.cancelled()
    assert host.signals == ["TERM", "KILL"]
    assert caplog.messages == [f"{caller.host}: a command that was given up may still run there"]


async def test_a_second_cancel_does_not_skip_the_end(host: Host, caller: Caller) -> None:
    work = FakeWork({"host": caller.host})
    running = asyncio.ensure_future(caller.run("trap '' TERM; echo ready; sleep 60; sleep 60", work))
    await until(lambda: work.told, "it ignores TERM")
    running.cancel()
    await until(lambda: host.signals, "TERM has come")
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert host.signals == ["TERM", "KILL"]
    assert not lives(host.pids[0])


async def test_other_commands_on_the_connection_go_on(host: Host, caller: Caller) -> None:
    first, entered = caller.begin("sleep 60")
    second, also_entered = caller.begin("sleep 0.5; echo end")
    await entered.wait()
    await also_entered.wait()
    first.cancel()
    await asyncio.wait([first])
    assert (await second)["stdout"] == "end\n"
    assert len(host.connections) == 1


async def test_a_work_cancelled_while_connecting_lets_the_others_connect(
    host: Host, silence: socket.socket
) -> None:
    caller = Caller(f"127.0.0.1:{silence.getsockname()[1]}", host.options, connect_timeout=0.5)
    first, _ = caller.begin("true")
    second, _ = caller.begin("true")
    connection = await until(lambda: _accepted(silence), "somebody connects")
    first.cancel()
    await asyncio.wait([first], timeout=BOUND)
    assert first.cancelled()
    assert not second.done()
    with pytest.raises(Unreachable, match="no answer within"):
        await second
    connection.close()
    await caller.executor.close()


async def test_the_last_work_to_be_cancelled_ends_the_connecting(host: Host, silence: socket.socket) -> None:
    caller = Caller(f"127.0.0.1:{silence.getsockname()[1]}", host.options, connect_timeout=BOUND)
    running, _ = caller.begin("true")
    connection = await until(lambda: _accepted(silence), "somebody connects")
    running.cancel()
    await asyncio.wait([running], timeout=BOUND)
    assert running.cancelled()
    connection.settimeout(BOUND)
    while connection.recv(1024):
        continue  # until it is closed
    connection.close()
    await caller.executor.close()


def _accepted(listener: socket.socket) -> socket.socket | None:
    try:
        return listener.accept()[0]
    except BlockingIOError:
        return None


async def test_a_work_cancelled_while_its_session_is_opened_leaves_nothing(
    host: Host, caller: Caller
) -> None:
    host.gate = asyncio.Event()
    running, _ = caller.begin("sleep 60")
    await until(lambda: host.waiting, "a session is asked for")
    running.cancel()
    await asyncio.sleep(0)
    host.gate.set()
    await asyncio.wait([running], timeout=BOUND)
    assert running.cancelled()
    await until(lambda: not any(map(lives, host.pids)), "nothing runs")
    assert host.signals[:1] == ["TERM"]


# ---------------------------------------------------------------------------------------------- around it


def test_on_virtual_time_a_command_takes_none(tmp_path: Path) -> None:
    async def main() -> tuple[float, Any]:
        loop = asyncio.get_running_loop()
        async with Host(tmp_path) as host:
            executor = SshExecutor(RealClock(), GRACE, host.options)
            began = loop.time()
            work = FakeWork({"host": f"127.0.0.1:{host.port}"})
            result = await executor.run(work, FakeTask(lambda work: "sleep 0.2; echo end"), None)
            took = loop.time() - began
            await executor.close()
        return took, result

    took, result = testing.run(main())
    assert result["stdout"] == "end\n"
    assert took == 0


def test_without_asyncssh_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['asyncssh'] = None; import runcue.executors.ssh.executor"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=BOUND
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last == 'runcue.errors.ConfigError: executor="ssh" needs asyncssh: pip install "runcue[ssh]"'


async def test_what_blocks_is_done_in_threads_that_keep_nobody_from_ending(
    host: Host, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[threading.Thread] = []
    look_up = socket.getaddrinfo

    def seen_looking_up(*arguments: Any, **options: Any) -> Any:
        if arguments[0] == "localhost":
            seen.append(threading.current_thread())
        return look_up(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", seen_looking_up)
    caller.host = f"localhost:{host.port}"
    with host.known_hosts.open("a") as file:
        file.write(host.known_hosts.read_text().replace("127.0.0.1", "localhost"))
    await caller.run("true")
    assert {thread.name for thread in seen} == {"runcue-ssh-call"}
    assert all(thread.daemon for thread in seen)


# ---------------------------------------------------------------------------------------------- through a Cue


async def test_a_cue_runs_remote_commands(host: Host, home: Path) -> None:
    cue = runcue.Cue()
    cue.service("ssh_web1", concurrent=2)

    @cue.task(executor="ssh", uses="ssh_{host}", env={"GREETING": "hallo"})
    def greet(work: runcue.Work) -> list[str]:
        return ["sh", "-c", 'echo "$GREETING $1"', "greet", work.params["name"]]

    @cue.task(executor="ssh", uses="ssh_{host}")
    def typed(host: str, names: tuple[str, ...]) -> list[str]:
        return ["echo", host, *names]

    async with cue:
        params = {"host": "web1", "name": "it's me"}
        result = await cue.result(await cue.submit(greet, params=params), timeout=BOUND)
        typed_unit = await cue.submit(typed, params={"host": "web1", "names": ("a", "b")})
        assert (await cue.result(typed_unit, timeout=BOUND))["stdout"] == "web1 a b\n"
    await cue.close()
    assert result == {"stdout": "hallo it's me\n", "stderr": "", "exit_code": 0}
    await until(lambda: host.open_connections == 0, "the connection is closed")


async def test_a_cue_ends_a_remote_command_that_takes_too_long(host: Host, home: Path) -> None:
    cue = runcue.Cue(grace=GRACE)

    @cue.task(executor="ssh", timeout=0.2)
    def slow(work: runcue.Work) -> str:
        return "exec sleep 60"

    async with cue:
        with pytest.raises(runcue.WorkTimedOut):
            await cue.result(await cue.submit(slow, params={"host": "web1"}), timeout=BOUND)
        await until(lambda: host.pids and not lives(host.pids[0]), "it is gone")
    await cue.close()
    assert host.signals == ["TERM"]


async def test_a_host_that_is_down_opens_its_circuit_and_is_used_when_it_is_back(
    host: Host, home: Path
) -> None:
    await host.stop()
    cue = runcue.Cue()
    cue.service("ssh_web1", circuit_threshold=2, circuit_timeout=0.1)
    seen: list[str] = []

    @cue.task(executor="ssh", uses="ssh_{host}", retry=runcue.Retry(max_attempts=50, base_delay=0.01))
    def look(work: runcue.Work) -> str:
        return "echo there"

    @cue.on_failure
    def failed(work: runcue.Work, error: BaseException, will_retry: bool) -> None:
        seen.append(type(error).__name__)

    async with cue:
        reader = cue.events(["circuit_opened"])
        opened = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        work_id = await cue.submit(look, params={"host": "web1"})
        assert (await asyncio.wait_for(opened, BOUND)).service == "ssh_web1"
        await host.start()
        assert (await cue.result(work_id, timeout=BOUND))["stdout"] == "there\n"
    await cue.close()
    assert set(seen) == {"Unreachable"}


# --------------------------------------------------------------------------------------------- a real sshd


SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


class Sshd:
    """An sshd of our own on a loopback port, with its own keys and settings."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        key = write_key(folder / "sshd_key")
        write_key(folder / "id")
        public = key.export_public_key().decode()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f'HostKey "{folder / "sshd_key"}"',
            f'AuthorizedKeysFile "{folder / "id.pub"}"',
            "StrictModes no",
            "PidFile none",
            "UsePAM no",
            "PermitRootLogin yes",
            *settings,
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        assert SSHD is not None
        with (folder / "sshd.log").open("w") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)

    def __enter__(self) -> Self:
        until_sync(self._listens, "sshd listens")
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(BOUND)

    def _listens(self) -> bool:
        if self.process.poll() is not None:
            pytest.skip(f"sshd does not start here: {(self.folder / 'sshd.log').read_text().strip()}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def caller(self) -> Caller:
        options = {"config": None, "known_hosts": str(self.folder / "known_hosts")}
        return Caller(f"127.0.0.1:{self.port}", {**options, "client_keys": [str(self.folder / "id")]})


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    if SSHD is None:
        pytest.skip("there is no sshd: apt-get install openssh-server")
    if os.geteuid() == 0:  # it insists on this folder, which a service would have made
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with Sshd(tmp_path, "PasswordAuthentication yes", "MaxSessions 3", "AcceptEnv GREETING") as sshd:
        yield sshd


@pytest.fixture
async def real(sshd: Sshd) -> AsyncIterator[Caller]:
    caller = sshd.caller
    yield caller
    await caller.executor.close()


async def pid_of(work: FakeWork) -> int:
    """What the command told of itself."""
    await until(lambda: work.told, "it told its pid")
    return int(work.told[0][1] or "")


async def test_sshd_output_and_environment(real: Caller) -> None:
    result = await real.run(
        'echo "$GREETING"; echo oops >&2; exit 255', check=False, env={"GREETING": "hallo"}
    )
    assert result == {"stdout": "hallo\n", "stderr": "oops\n", "exit_code": 255}


async def test_sshd_a_command_killed_by_a_signal(real: Caller) -> None:
    with pytest.raises(CommandFailed, match=r"^signal:KILL$"):
        await real.run("kill -9 $$")


async def test_sshd_more_works_than_sessions_allowed(real: Caller) -> None:
    results = await asyncio.gather(*(real.run(f"sleep 0.2; echo {number}") for number in range(10)))
    assert [result["stdout"] for result in results] == [f"{number}\n" for number in range(10)]


async def test_sshd_cancel_ends_the_whole_group_unless_it_is_roots(
    real: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_command, "KILL_PATIENCE", 0.5)
    work = FakeWork({"host": real.host})
    running = asyncio.ensure_future(real.run("trap '' TERM; echo $$; sleep 60 & wait; sleep 60", work))
    leader = await pid_of(work)
    assert len(_group(leader)) == 2
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    if os.geteuid() == 0:  # sshd passes no signals on to root's commands, as the guide says
        os.killpg(leader, signal.SIGKILL)
    await until(lambda: _group(leader) == [], "nobody is left")
    assert (await real.run("echo there"))["stdout"] == "there\n"


def _group(leader: int) -> list[int]:
    """Who lives in that process group."""
    stats = [path / "stat" for path in Path("/proc").iterdir() if path.name.isdigit()]
    fields = [(int(stat.parent.name), _fields(stat)) for stat in stats]
    return [pid for pid, found in fields if found and int(found[2]) == leader and lives(pid)]


def _fields(stat: Path) -> list[str]:
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return []  # it has ended meanwhile


async def test_sshd_what_a_command_leaves_behind_does_not_hang_its_work(
    real: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_command, "QUIET", 0.2)
    result = await real.run("sleep 60 & echo $!")
    pid = int(result["stdout"])
    assert lives(pid)  # it is no part of the command any more
    os.kill(pid, signal.SIGKILL)


async def test_sshd_cut_while_the_command_runs(sshd: Sshd, real: Caller) -> None:
    work = FakeWork({"host": real.host})
    file = sshd.folder / "pid"
    command = f"echo $$ > {shlex.quote(str(file))}; echo $PPID; exec sleep 60"
    running = asyncio.ensure_future(real.run(command, work))
    os.kill(await pid_of(work), signal.SIGKILL)
    with pytest.raises(Unreachable, match="unknown: look before it runs again"):
        await running
    assert (await real.run("echo again"))["stdout"] == "again\n"
    pid = int(file.read_text())
    assert lives(pid)  # as the guide says: sshd ends nothing by itself
    os.kill(pid, signal.SIGKILL)


async def test_sshd_an_unknown_host_key_and_a_wrong_key(sshd: Sshd, real: Caller) -> None:
    known = (sshd.folder / "known_hosts").read_text()
    (sshd.folder / "known_hosts").write_text("")
    assert "its host key is not in known_hosts" in await failure_of(real)
    (sshd.folder / "known_hosts").write_text(known)
    write_key(sshd.folder / "id")  # another one, which sshd was never told of
    (sshd.folder / "id.pub").write_text("")
    assert "it accepts no key of ours" in await failure_of(real)  # though it would take a password
