"""What a server leaves behind that is killed: found and ended by the next one, and nothing else is."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from dispatch_room import PATIENCE
from executors.room import DEAF, FORKING, HANG, PYTHON, SERVER, TELL, Room, lives, script
from postroom.concurrency import SystemTimer
from postroom.executors.command import CommandLimits
from postroom.executors.processes.machine import Machine, Seen, boot_id, started_at
from postroom.executors.processes.orphans import Orphans
from postroom.executors.processes.records import Record, Records

pytestmark = pytest.mark.long

SERVER_NAME = uuid4().hex
GRACE_MS = 3_600_000
QUICK = CommandLimits(grace=timedelta(milliseconds=50))
HIDING = DEAF + FORKING + "tell('child', leave(lambda: None)); tell('pid', os.getpid())\n" + HANG
TESTS = Path(__file__).resolve().parents[1]


class Owner:
    """A server that was killed with its program at work, or still lives."""

    def __init__(self, folder: Path, server_name: str, text: str, run_id: str) -> None:
        words = (str(TESTS / "executors/owner_process.py"), str(folder), server_name, text, run_id)
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))},
        )

    def numbers(self, *names: str) -> list[int]:
        """Return the pids that its program tells."""
        found: dict[str, int] = {}
        assert self.process.stdout is not None
        while not set(names) <= found.keys():
            words = self.process.stdout.readline().split()
            assert words, "the owner ended"
            if len(words) == 2:
                found[words[0].decode()] = int(words[1])
        return [found[name] for name in names]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def owner(folder: Path, server_name: str, text: str = HIDING, run_id: str = "r") -> Iterator[Owner]:
    owner = Owner(folder, server_name, text, run_id)
    try:
        yield owner
    finally:
        owner.kill()


async def test_what_a_killed_server_left_is_ended_by_the_next(tmp_path: Path) -> None:
    with owner(tmp_path, SERVER_NAME) as former:
        pids = await asyncio.to_thread(former.numbers, "child", "pid")
    assert all(map(lives, pids))
    next_one = Room(tmp_path, None, server_name=SERVER_NAME, limits=QUICK)
    assert len(next_one.files()) == 1
    [orphan] = await next_one.executor.find_and_end_orphans()
    assert (orphan.run_id, orphan.dispatch_id, orphan.left) == ("r", "dispatch-of-r", ())
    assert set(orphan.ended) == set(pids)
    assert not any(map(lives, pids))
    assert next_one.files() == []
    assert await next_one.executor.find_and_end_orphans() == ()


class Patient(SystemTimer):
    """Its graces are over when every program was asked to end."""

    def __init__(self) -> None:
        self.all_asked = asyncio.Event()

    async def sleep(self, delay: int) -> None:
        await (self.all_asked.wait() if delay == GRACE_MS else super().sleep(delay))


class Asking(Machine):
    """The machine, which tells when so many were asked to end."""

    def __init__(self, number: int, told: Callable[[], object]) -> None:
        super().__init__()
        self._left, self._told = number, told

    def send(self, process: Seen, wish: signal.Signals) -> int | None:
        if wish is signal.SIGTERM:
            self._left -= 1
            if not self._left:
                self._told()
        return super().send(process, wish)


async def test_programs_that_do_not_end_when_asked_are_waited_for_together(tmp_path: Path) -> None:
    text = DEAF + TELL + "tell('pid', os.getpid())\n" + HANG
    pids = []
    for run_id in ("r1", "r2", "r3"):
        with owner(tmp_path, SERVER_NAME, text, run_id) as former:
            pids += await asyncio.to_thread(former.numbers, "pid")
    timer, loop = Patient(), asyncio.get_running_loop()
    machine = Asking(len(pids), lambda: loop.call_soon_threadsafe(timer.all_asked.set))
    limits = CommandLimits(grace=timedelta(milliseconds=GRACE_MS))
    found = Orphans(Records(tmp_path / "private"), machine, SERVER_NAME, limits=limits, timer=timer)
    async with asyncio.timeout(PATIENCE):
        orphans = await found.end(list)
    assert sorted(pid for one in orphans for pid in one.ended) == sorted(pids)
    assert not any(map(lives, pids))


async def test_orphans_are_looked_at_without_being_ended(tmp_path: Path) -> None:
    with owner(tmp_path, "h") as former:
        pids = await asyncio.to_thread(former.numbers, "child", "pid")
        next_one = Room(tmp_path, None, server_name="h", limits=QUICK)
        assert await next_one.executor.orphans() == ()
    assert await next_one.executor.orphans() == tuple(sorted(pids))
    assert all(map(lives, pids))
    assert len(next_one.files()) == 1
    await next_one.executor.find_and_end_orphans()
    assert await next_one.executor.orphans() == ()


async def test_without_its_note_it_is_found_by_its_marker(tmp_path: Path) -> None:
    with owner(tmp_path / "former", SERVER_NAME) as former:
        pids = await asyncio.to_thread(former.numbers, "child", "pid")
    elsewhere = Room(tmp_path / "elsewhere", None, server_name=SERVER_NAME, limits=QUICK)
    [orphan] = await elsewhere.executor.find_and_end_orphans()
    assert set(orphan.ended) == set(pids)


async def test_without_its_marker_it_is_found_by_its_pid_and_start(tmp_path: Path) -> None:
    text = f"os.execve(sys.executable, [sys.executable, '-I', '-S', '-c', {TELL + 'tell(chr(112) + chr(105) + chr(100), os.getpid())' + chr(10) + HANG!r}], {{}})"
    with owner(tmp_path, SERVER_NAME, text) as former:
        [pid] = await asyncio.to_thread(former.numbers, "pid")
    [orphan] = await Room(
        tmp_path, None, server_name=SERVER_NAME, limits=QUICK
    ).executor.find_and_end_orphans()
    assert orphan.ended == (pid,)


async def test_what_a_living_server_runs_and_what_is_anothers_is_left_alone(tmp_path: Path) -> None:
    with owner(tmp_path, SERVER_NAME) as living:
        pids = await asyncio.to_thread(living.numbers, "child", "pid")
        assert (
            await Room(tmp_path, None, server_name=SERVER_NAME, limits=QUICK).executor.find_and_end_orphans()
            == ()
        )
        assert (
            await Room(tmp_path, None, server_name="other", limits=QUICK).executor.find_and_end_orphans()
            == ()
        )
        assert all(map(lives, pids))
    await Room(tmp_path, None, server_name=SERVER_NAME, limits=QUICK).executor.find_and_end_orphans()
    assert not any(map(lives, pids))


async def test_what_runs_here_is_no_orphan(tmp_path: Path) -> None:
    room = Room(tmp_path, script("tell('pid', os.getpid()); sys.stdin.read()\n" + HANG))
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pid = await room.sink.number("pid")
    assert await room.executor.find_and_end_orphans() == ()
    assert lives(pid)
    await room.executor.close()
    await room.executor.close()
    assert run.done()
    assert not lives(pid)


def note_wrongly(room: Room, pid: int) -> None:
    """Note the process by a start that is not its own, by none, and by one after another start of the system."""
    process_runner = room.executor.process_runner
    known = started_at(pid)
    assert known
    for started, boot in [(known + 1, boot_id()), (known, "another"), (0, boot_id())]:
        record = process_runner.records.begin(
            instance=f"{started} {boot}", server_name=SERVER_NAME, run_id="r", dispatch_id="d"
        )
        changed = {"pid": pid, "started": started, "boot": boot, "owner_pid": 1 << 22}
        path = process_runner.records._path(record.instance, ".json")
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))


async def test_a_pid_that_is_anothers_by_now_is_left_alone(tmp_path: Path) -> None:
    child = subprocess.Popen([*PYTHON, "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, env={})
    try:
        room = Room(tmp_path, None, server_name=SERVER_NAME, limits=QUICK)
        await asyncio.to_thread(note_wrongly, room, child.pid)
        assert len(room.files()) == 3
        assert await room.executor.find_and_end_orphans() == ()
        assert child.poll() is None
        assert room.files() == [], "notes of what is gone are removed"
    finally:
        child.kill()
        child.communicate()


async def test_a_run_that_still_lives_is_ended_before_it_is_started_again(tmp_path: Path) -> None:
    """The former server lives but has lost the run: this one was handed it."""
    with owner(tmp_path, SERVER_NAME) as former:
        pids = await asyncio.to_thread(former.numbers, "child", "pid")
        text = "tell(*[os.path.exists('/proc/' + pid) and 'Z' not in open('/proc/' + pid + '/stat').read().split()[2] for pid in sys.argv[1:]])"
        room = Room(tmp_path, script(text, *map(str, pids)), server_name=SERVER_NAME, limits=QUICK)
        other_run = await room.run(thread="other", run="another")
        assert other_run == "True True\n"
        assert await room.run() == "False False\n"
        assert not any(map(lives, pids))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"instance": 1}', b"\xff", b"null"])
async def test_a_note_that_cannot_be_read_is_passed_over(tmp_path: Path, content: bytes) -> None:
    room = Room(tmp_path, script("tell('ok')"), server_name=SERVER_NAME, limits=QUICK)
    assert await room.run() == "ok\n"
    (room.folder / "broken.json").write_bytes(content)
    assert await room.executor.find_and_end_orphans() == ()
    assert await room.run(run="r2") == "ok\n"


def test_a_note_reads_back_as_it_was_written(tmp_path: Path) -> None:
    room = Room(tmp_path, None)
    records: Records = room.executor.process_runner.records
    record = records.begin(instance="../odd/\n", server_name=SERVER_NAME, run_id="r", dispatch_id="d")
    records.has_started(record, os.getpid())
    [kept] = records.all()
    assert isinstance(kept, Record)
    assert (kept.instance, kept.pid, kept.leader(room.executor.process_runner.machine)) == (
        "../odd/\n",
        os.getpid(),
        os.getpid(),
    )
    assert [oct(path.stat().st_mode) for path in room.folder.iterdir()] == ["0o100600"]
    [note] = room.folder.glob("*.json")
    note.write_text(note.read_text().replace('"server_name"', '"house"'))  # as an earlier version wrote it
    assert records.all() == (kept,)
    records.remove("../odd/\n")
    records.remove("../odd/\n")
    assert (records.all(), SERVER["UNSAID"]) == ((), "unsaid")
