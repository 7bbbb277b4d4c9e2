"""What differs by platform takes the platform as a parameter, and is looked at here for those that are not this one."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from postroom.app import check_results, gateway_secrets, privacy, tokens
from postroom.app.config import tells_case_apart
from postroom.cli import start
from postroom.cli.watch import hold_alone
from postroom.contracts.errors import CommandNotStarted, ConfigError
from postroom.executors.processes import asking, job
from postroom.executors.processes.child_environment import passed_on
from postroom.executors.processes.machine import Machine, Wanted
from postroom.executors.processes.starting import Launch, started
from postroom.gateway.spooling import open_plain
from postroom.mail.archive import git
from postroom.stores.sqlite import apart, apart_process
from postroom.stores.sqlite.connection import prepare
from postroom.stores.sqlite.copying import sync_folder


def test_on_macos_a_commit_and_a_checkpoint_reach_the_disk_past_the_drives_cache(tmp_path: Path) -> None:
    for platform, expected in (("darwin", 1), ("linux", 0), ("win32", 0)):
        with closing(sqlite3.connect(tmp_path / f"{platform}.db")) as connection:
            prepare(connection, read_only=False, platform=platform)
            for pragma in ("fullfsync", "checkpoint_fullfsync"):
                assert connection.execute(f"PRAGMA {pragma}").fetchone() == (expected,), (platform, pragma)
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


HIDDEN = """
import importlib, os, pkgutil, signal, sys
import filelock, mcp.client.stdio, mcp.server, psutil, typer, uvicorn  # they decide by sys.platform
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "killpg", "setsid", "geteuid", "getuid", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGSTOP", "SIGCONT", "SIGCHLD", "SIGQUIT"):
    delattr(signal, name)
import postroom
for found in pkgutil.walk_packages(postroom.__path__, "postroom."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""


@pytest.mark.long
def test_every_module_is_imported_where_what_only_unix_has_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Windows:
    """What `msvcrt` is asked for."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def locking(self, descriptor: int, mode: int, size: int) -> None:
        self.asked.append((os.lseek(descriptor, 0, os.SEEK_CUR), mode, size))


def test_who_waits_to_be_woken_holds_its_place_alone_on_windows_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Windows()
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with (tmp_path / "wake").open("a+") as first, (tmp_path / "wake").open("a+") as second:
        hold_alone(first.fileno(), platform="win32")
        assert windows.asked == [(1 << 20, Windows.LK_NBLCK, 1)]
        hold_alone(first.fileno(), platform="linux")
        with pytest.raises(BlockingIOError):
            hold_alone(second.fileno(), platform="linux")


def test_a_file_is_opened_and_a_link_is_not_on_every_system(tmp_path: Path) -> None:
    file, link, gone = tmp_path / "file", tmp_path / "link", tmp_path / "gone"
    file.write_text("words")
    link.symlink_to(file)
    for platform in ("linux", "darwin", "win32"):
        with os.fdopen(open_plain(file, platform=platform), "rb") as opened:
            assert opened.read() == b"words"
        for refused in (link, gone):
            with pytest.raises(OSError, match=str(refused)):
                open_plain(refused, platform=platform)


def test_where_files_have_no_modes_their_folders_lists_protect_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.write_text("x")
    shared.chmod(0o644)
    found = shared.stat()
    table = gateway_secrets.Table(shared, "")
    told = [privacy._is_shared(shared, platform=one) for one in ("linux", "darwin", "win32")]
    assert told == [True, True, False]

    def check(platform: str) -> None:
        tokens._check_private(shared, found, platform=platform)

    def check_secret(platform: str) -> None:
        gateway_secrets._check_private(table, "a setting", shared, found, platform=platform)

    for look in (check, check_secret):
        look("win32")
        for platform in ("linux", "darwin"):
            with pytest.raises(ConfigError, match="other users"):
                look(platform)


def test_a_folder_is_synced_where_it_can_be_opened(tmp_path: Path) -> None:
    sync_folder(tmp_path / "gone", platform="win32")
    for platform in ("linux", "darwin"):
        sync_folder(tmp_path, platform=platform)
        with pytest.raises(FileNotFoundError):
            sync_folder(tmp_path / "gone", platform=platform)


class Asked:
    """A process that is ended, or left alone."""

    def __init__(self, pid: int = 0) -> None:
        self.pid, self.killed = pid, False

    def kill(self) -> None:
        self.killed = True


def test_where_there_are_no_groups_of_processes_a_program_is_ended_alone() -> None:
    for end in (git._end, asking.end):
        process = Asked()
        end(process, platform="win32")  # type: ignore[arg-type]
        assert process.killed
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as group:
            end(group, platform="linux")  # type: ignore[arg-type]
        assert group.returncode in (-signal.SIGTERM, -signal.SIGKILL)


def test_how_processes_are_begun_and_kept_private_differs_by_system() -> None:
    systems = ("linux", "darwin", "win32")
    assert [start.apart_on(one) for one in systems] == [0, 0, 0x208]
    assert [apart.flags_of(one) for one in systems] == [0, 0, 0x40]
    assert [git.umask_of(one) for one in systems] == [0o077, 0o077, -1]
    assert [tells_case_apart(one) for one in systems] == [True, False, False]


def test_priority_and_limits_are_asked_of_the_system_where_it_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[int] = []
    monkeypatch.setattr(os, "nice", stepped.append)
    for platform in ("linux", "darwin", "win32"):
        apart_process.step_back(platform=platform)
    assert stepped == [10, 10]
    assert check_results.most_descriptors(platform="win32") is None
    assert check_results.most_descriptors(platform="linux") != 0


class Jobs:
    """What `win32job` and `win32api` are asked for: a fake, for Windows has the real one alone."""

    JobObjectExtendedLimitInformation, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE = 9, 0x2000

    def __init__(self) -> None:
        self.limits: dict[str, dict[str, int]] = {"BasicLimitInformation": {"LimitFlags": 1}}
        self.done: list[object] = []

    def CreateJobObject(self, security: None, name: str) -> str:
        return f"a job without a name{name}"

    def QueryInformationJobObject(self, job: str, kind: int) -> dict[str, dict[str, int]]:
        return {name: dict(told) for name, told in self.limits.items()}

    def SetInformationJobObject(self, job: str, kind: int, limits: dict[str, dict[str, int]]) -> None:
        self.done.append((kind, limits["BasicLimitInformation"]["LimitFlags"]))

    def GetCurrentProcess(self) -> str:
        return "this process"

    def AssignProcessToJobObject(self, job: str, process: str) -> None:
        self.done.append(process)


def test_on_windows_a_server_is_in_a_job_that_ends_its_programs_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windows = Jobs()
    for name in ("win32api", "win32job"):
        monkeypatch.setitem(sys.modules, name, windows)
    monkeypatch.setattr(job, "_HELD", held := [])
    for platform in ("linux", "darwin"):
        job.end_programs_with_this_process(platform=platform)
    assert (windows.done, held) == ([], [])
    job.end_programs_with_this_process(platform="win32")
    assert windows.done == [(9, 0x2001), "this process"]
    assert held == ["a job without a name"], "who lets it go ends the server"


def test_on_windows_a_batch_file_is_refused_for_its_shell_would_read_messages(tmp_path: Path) -> None:
    for name in ("client.cmd", "client.bat"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
        launch = Launch(
            words=(name, "a prompt & calc"),
            cwd=str(tmp_path),
            environment={"PATH": str(tmp_path)},
            reads=lambda _: subprocess.DEVNULL,
        )
        with pytest.raises(CommandNotStarted, match="batch file"):
            started(launch, platform="win32")


def test_where_a_system_has_no_groups_a_family_of_processes_is_found_and_ended(tmp_path: Path) -> None:
    machine = Machine("win32")
    text = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        found = machine.find(Wanted(leader=parent.pid))
        assert sorted((one.pid, one.group, one.session) for one in found) == sorted(
            [(parent.pid, 0, 0), (child, 0, 0)]
        )
        machine.kill_group(parent.pid)
        parent.wait()
    family = Wanted(leader=parent.pid, known=frozenset(one.process for one in found))
    until = time.monotonic() + 60
    while machine.find(family):  # the signal is sent; the child may need a moment to end
        assert time.monotonic() < until


def test_programs_have_what_they_need_of_the_servers_environment_on_every_system() -> None:
    assert "SYSTEMROOT" in passed_on("win32")
    assert (
        passed_on("linux")
        == passed_on("darwin")
        == passed_on("win32")
        - {
            *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA"),
            *("SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE"),
        }
    )
