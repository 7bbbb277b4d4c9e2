"""Programs as Windows would have them run: its pipes by threads and no groups, with the programs of this system.

The threads and all else are real; that the system is Windows is not, so that its own calls are untested here.
"""

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from dispatch_room import PATIENCE
from executors.room import HANG, SERVER, Room, lives, script
from postroom.contracts.errors import CommandFailed, CommandNotStarted
from postroom.contracts.runners import Recipe, Runner
from postroom.executors.command import CommandLimits
from postroom.executors.processes.pipes import reading
from postroom.executors.processes.process_runner import ProcessRunner
from postroom.executors.processes.stdin import MOST_UNREAD, StdinWriter

QUICK = CommandLimits(grace=timedelta(milliseconds=50))


def room_of(folder: Path, runner: Runner) -> Room:
    """Return a room whose programs are run as on Windows."""
    room = Room(folder, runner)
    room.executor.process_runner = ProcessRunner.at(
        room.folder, server_name="windows", server=SERVER, limits=QUICK, platform="win32"
    )
    return room


async def test_input_is_given_and_output_of_any_size_is_read(tmp_path: Path) -> None:
    text = "said = sys.stdin.read()\nprint('x' * 300_000)\nprint('told', said)"
    room = room_of(tmp_path, script(text))
    response = await room.run("something to do")
    assert (response.count("x"), "something to do" in response) == (300_000, True)
    assert room.files() == []


async def test_a_program_that_fails_is_told_by_what_it_put_out(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="out of oil"):
        await room_of(tmp_path, script("sys.exit('out of oil')")).run()


async def test_a_run_that_is_ended_ends_what_its_program_started(tmp_path: Path) -> None:
    text = "import subprocess\ntell('pid', subprocess.Popen(['sleep', '3600']).pid)\n" + HANG
    room = room_of(tmp_path, script(text))
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pid = await room.sink.number("pid")
    await room.executor.close()
    await asyncio.wait((run,), timeout=PATIENCE)
    assert (run.done(), lives(pid), room.files()) == (True, False, [])


async def test_a_program_that_is_told_by_a_socket_is_refused_there(tmp_path: Path) -> None:
    room = room_of(tmp_path, Runner(recipe=Recipe.OPENCODE, cwd="/"))
    with pytest.raises(CommandNotStarted, match="socket"):
        await room.run()


def echo() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_a_program_is_written_to_and_its_pipe_is_closed_when_all_was_read() -> None:
    process = echo()
    writer = await StdinWriter.on(process, pytest.fail, platform="win32")
    assert process.stdout is not None
    pipe, heard = await reading(process.stdout, platform="win32"), b""
    for number in range(3):
        writer.write(b"%d\n" % number)
    writer.finish()
    async with asyncio.timeout(PATIENCE):
        while piece := await pipe.read(1000):
            heard += piece
        assert (heard, await pipe.read(1000)) == (b"0\n1\n2\n", b"")
    assert await asyncio.to_thread(process.wait) == 0


async def test_a_program_that_does_not_read_is_noticed_and_holds_nobody_up() -> None:
    full: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", "import time\n" + HANG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        writer = await StdinWriter.on(process, lambda: full.append("full"), platform="win32")
        for _ in range(3):
            writer.write(bytes(MOST_UNREAD))
        assert full
        async with asyncio.timeout(PATIENCE):
            await writer.drop()
        process.kill()


async def test_output_that_nobody_takes_any_more_does_not_hold_the_program_up() -> None:
    process = subprocess.Popen([sys.executable, "-c", "print('x' * 1_000_000)"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pipe = await reading(process.stdout, platform="win32")
    assert await pipe.read(1000)
    await pipe.close()
    assert await asyncio.to_thread(process.wait) == 0
