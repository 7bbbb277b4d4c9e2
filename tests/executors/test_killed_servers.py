"""A killed server leaves no process of a program, and no run starts again next to its former program."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatch_room import PATIENCE
from executors.room import DEAF, FORKING, HANG, Room, go_on, is_gone, lives, parent_of, script, stand_still
from patient_loop import a_moment
from postroom.contracts.messages import Json
from postroom.executors.processes import process_runner

pytestmark = pytest.mark.long

HIDING = DEAF + FORKING + "tell('child', leave(lambda: None)); tell('pid', os.getpid())\n" + HANG
TESTS = Path(__file__).resolve().parents[1]


class Owner:
    """A server with an active program."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "executors/owner_process.py"), str(folder), HIDING],
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
def an_owner(folder: Path) -> Iterator[Owner]:
    owner = Owner(folder)
    try:
        yield owner
    finally:
        owner.kill()


async def test_programs_of_a_killed_server_end_at_once_with_all_that_they_started(tmp_path: Path) -> None:
    """Ignoring SIGTERM, forked twice, in their own session; the only act is the kill of the server."""
    with an_owner(tmp_path) as owner:
        pids = await asyncio.to_thread(owner.numbers, "child", "pid")
        assert all(map(lives, pids))
    for pid in pids:
        await is_gone(pid)


async def test_a_program_that_stops_its_shim_and_itself_ends_with_a_killed_server(tmp_path: Path) -> None:
    with an_owner(tmp_path) as owner:
        pids = await asyncio.to_thread(owner.numbers, "child", "pid")
        shim = parent_of(pids[1])
        for pid in (shim, *pids):
            os.kill(pid, signal.SIGSTOP)
    for pid in (*pids, shim):
        await is_gone(pid)


async def test_a_server_that_stands_still_has_its_programs_ended_at_their_deadline(tmp_path: Path) -> None:
    """After its continuation, it detects that it was cut off, and reports no failure of the program."""
    with an_owner(tmp_path) as owner:
        pids = await asyncio.to_thread(owner.numbers, "child", "pid")
        owner.process.send_signal(signal.SIGUSR1)  # it may go on for so long, and says so
        assert await asyncio.to_thread(owner.numbers, "held") == [100]
        owner.process.send_signal(signal.SIGSTOP)
        for pid in pids:
            await is_gone(pid)
        owner.process.send_signal(signal.SIGCONT)
        assert owner.process.stdout is not None
        assert await asyncio.to_thread(owner.process.stdout.readline) == b"StaleClaim\n"


async def test_a_run_waits_for_what_its_former_execution_has_left(tmp_path: Path) -> None:
    with an_owner(tmp_path) as owner:
        [pid] = await asyncio.to_thread(owner.numbers, "pid")
        shim = parent_of(pid)
        stand_still(shim)  # as on a machine that is too busy for it
    text = "tell(os.path.exists('/proc/' + sys.argv[1]))"
    room = Room(tmp_path, script(text, str(pid)))
    await asyncio.to_thread(room.executor.process_runner.remove_leftovers)
    assert len(room.files()) == 1
    assert await room.run(thread="another", run="another") == "True\n"
    again = asyncio.ensure_future(room.run())
    for _ in range(100):
        await a_moment()
    assert not again.done()
    go_on(shim)
    assert await again == "False\n"
    assert room.files() == []


async def test_what_a_killed_server_left_in_its_folder_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with an_owner(tmp_path) as owner:
        [pid] = await asyncio.to_thread(owner.numbers, "pid")
        shim = parent_of(pid)
    await is_gone(shim)
    room = Room(tmp_path, None)
    assert len(room.files()) == 1
    await asyncio.to_thread(room.executor.process_runner.remove_leftovers)
    assert room.files() == []


async def test_a_killed_server_counts_as_gone_when_its_programs_have_ended(tmp_path: Path) -> None:
    with an_owner(tmp_path) as owner:
        [pid] = await asyncio.to_thread(owner.numbers, "pid")
        own = await asyncio.to_thread(process_runner.own_process, tmp_path / "private")
        about: dict[str, Json] = {**own, "pid": owner.process.pid}

        async def counts_as_gone() -> bool:
            return await asyncio.to_thread(process_runner.is_gone, about)

        assert not await counts_as_gone()
        shim = parent_of(pid)
        stand_still(shim)
    assert not await counts_as_gone()
    go_on(shim)
    await is_gone(shim)
    assert await counts_as_gone()
    assert not await asyncio.to_thread(
        process_runner.is_gone, {**about, "programs": str(tmp_path / "other" / "x")}
    )
