"""Programs that do not end: asked, killed, whatever session they hide in, however the run ends."""

import asyncio
import ctypes
import errno
import os
import resource
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dispatch_room import PATIENCE
from executors.room import (
    DEAF,
    FORKING,
    HANG,
    SERVER,
    Room,
    Sink,
    descriptors,
    go_on,
    is_gone,
    lives,
    parent_of,
    script,
    stand_still,
    zombies,
)
from patient_loop import a_moment
from postroom.contracts.errors import (
    CommandBusy,
    CommandKilled,
    CommandNotEnded,
    CommandTimedOut,
    ThreadAlreadyRunning,
)
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.runners import Runner
from postroom.contracts.runs import TerminationReason
from postroom.executors.command import CommandLimits
from postroom.executors.processes.process_runner import ProcessRunner
from postroom.testing import ManualClock

QUICK = CommandLimits(grace=timedelta(milliseconds=100))
READY = "tell('pid', os.getpid())\n"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path):  # type: ignore[no-untyped-def]
    """No zombie, no descriptor, no private folder is left by any test here."""
    before = descriptors()
    yield
    assert zombies() == []
    assert descriptors() <= before + 5, "those of the loop, and the launcher's socket, are closed later"
    assert list((tmp_path / "private").glob("*")) == []


async def test_a_cancelled_program_is_asked_to_end(tmp_path: Path) -> None:
    text = "import signal\ndef bye(*_): os.write(1, b'bye\\n'); os._exit(0)\nsignal.signal(signal.SIGTERM, bye)\n"
    room = Room(tmp_path, script(text + READY + HANG))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.executor.run(await room.activation(), room.sink))
        pid = await room.sink.number("pid")
        assert room.executor.cancel("dispatch-of-r")
        await room.sink.tells("bye")
    assert run.result().termination == TerminationReason.cancelled()
    assert run.result().response == ""
    assert not lives(pid)


@pytest.mark.parametrize("id", ["r", "t", "dispatch-of-r"])
async def test_one_that_ignores_the_wish_is_killed_after_the_grace(tmp_path: Path, id: str) -> None:
    """The time does not advance: it is not killed before the end of the grace, and then at once."""
    clock = ManualClock()
    room = Room(tmp_path, script(DEAF + READY + HANG), timer=clock, clock=clock)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.executor.run(await room.activation(), room.sink))
        pid = await room.sink.number("pid")
        limits = clock.sleeping
        assert room.executor.cancel(id)
        while clock.sleeping == limits:
            await asyncio.sleep(0)
        clock.advance(timedelta(milliseconds=4_999))
        assert lives(pid)
        clock.advance(timedelta(milliseconds=1))
    assert run.result().termination == TerminationReason.cancelled()
    assert not lives(pid)


@pytest.mark.parametrize("how", ["cancel", "task", "wait", "time-out", "exit", "close"])
async def test_children_that_hide_in_sessions_of_their_own_are_ended(tmp_path: Path, how: str) -> None:
    """Forked twice, in its own session, ignoring SIGTERM; the leader also ignores it or has exited."""
    text = (
        DEAF
        + FORKING
        + "tell('child', leave(lambda: None))\ntell('same', leave(lambda: None, setsid=False))\n"
    )
    end = "" if how == "exit" else HANG
    clock = ManualClock()
    timed = {"clock": clock, "timer": clock} if how == "time-out" else {}
    room = Room(tmp_path, script(text + READY + end, timeout=timedelta(minutes=5)), limits=QUICK, **timed)
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pids = [await room.sink.number(name) for name in ("child", "same", "pid")]
    assert how == "exit" or all(map(lives, pids))
    if how == "cancel":
        assert room.executor.cancel("r")
    if how == "task":
        run.cancel()
    if how == "wait":
        assert await room.executor.cancel_and_wait_by_thread("t")
        assert not any(map(lives, pids))
    if how == "close":
        await room.executor.close()
        assert not any(map(lives, pids))
    async with asyncio.timeout(PATIENCE):
        clock.advance(timedelta(minutes=5))
        while how == "time-out" and not run.done():  # no faster than processes end on a busy machine
            clock.advance(timedelta(milliseconds=10))
            await a_moment()
        await asyncio.wait((run,))
    assert not any(map(lives, pids))
    if how == "exit":
        assert run.result().termination == TerminationReason.natural_end()
    if how == "task":
        assert run.cancelled()
    if how == "time-out":
        assert isinstance(run.exception(), CommandTimedOut)
    assert room.executor.executing == 0


ESCAPED = """
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    os.set_inheritable(writer, True)
    for end in (0, 1, 2): os.close(end)
    os.execve("/bin/sh", ["sh", "-c", f"%secho $$ >&{writer}; exec {writer}>&-; while :; do sleep 600; done"], {})
os.wait(); os.close(writer)
tell('daemon', os.read(reader, 20).decode().strip())
"""
"""A daemon in its own session, forked twice, with an empty environment and without our pipes; `%s` is its first word."""


@pytest.mark.parametrize("first", ["", "trap '' TERM; "], ids=["willing", "deaf"])
async def test_a_daemon_with_an_empty_environment_ends_with_its_run(tmp_path: Path, first: str) -> None:
    room = Room(tmp_path, script(ESCAPED % first))
    answer = await room.run()
    assert not lives(int(answer.split()[1]))


async def test_a_program_that_forks_while_it_is_killed_is_ended(tmp_path: Path) -> None:
    text = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "for _ in range(3):\n    if os.fork() == 0: os.setsid()\n"
        "tell('pid', os.getpid())\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "for _ in range(20_000):\n    if os.fork() == 0: os._exit(0)\n"
    )
    room = Room(tmp_path, script(text + HANG), limits=CommandLimits(grace=timedelta(0)))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.executor.run(await room.activation(), room.sink))
        await room.sink.tells("pid")
        assert room.executor.cancel("t")
    assert run.result().termination == TerminationReason.cancelled()
    pids = [int(line.split()[1]) for line in room.sink.text.splitlines() if line.startswith("pid ")]
    assert pids
    assert not any(map(lives, pids))


@pytest.mark.parametrize(
    ("field", "words"), [("timeout", "its time-out of 60 s"), ("idle_timeout", "idle time-out of 60 s")]
)
async def test_a_program_that_hangs_is_ended_when_its_time_is_up(
    tmp_path: Path, field: str, words: str
) -> None:
    clock = ManualClock()
    room = Room(tmp_path, script(READY + HANG, **{field: timedelta(minutes=1)}), clock=clock, timer=clock)
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pid = await room.sink.number("pid")
    clock.advance(timedelta(milliseconds=59_999))
    assert not run.done()
    assert lives(pid)
    clock.advance(timedelta(milliseconds=1))
    with pytest.raises(CommandTimedOut, match=words) as failed:
        await run
    assert not failed.value.retryable
    assert not lives(pid)


async def test_output_of_any_kind_puts_the_idle_time_out_off(tmp_path: Path) -> None:
    clock = ManualClock()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = "tell('one x'); gate = open(sys.argv[1])\ngate.readline(); tell('two x')\ngate.readline(); print('three', file=sys.stderr); tell('four x')\ngate.readline()"
    room = Room(
        tmp_path, script(text, str(gate), idle_timeout=timedelta(minutes=1)), clock=clock, timer=clock
    )
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    await room.sink.tells("one")
    with await asyncio.to_thread(gate.open, "w") as opened:
        for words in ("two", "four"):
            clock.advance(timedelta(seconds=45))
            opened.write("go\n")
            opened.flush()
            await room.sink.tells(words)
        assert not run.done()
    assert (await run).response == "one x\ntwo x\nfour x\n"


async def test_what_is_cancelled_before_it_starts_is_not_started(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    room = Room(tmp_path, script("open(sys.argv[1], 'w')", str(mark)))

    class Cancelling:
        async def runner_of(self, agent_id: str, agent: object = None) -> Runner | None:
            assert room.executor.cancel("r")
            return room.runners.runner

    room.executor._runners = Cancelling()
    result = await room.executor.run(await room.activation(), room.sink)
    assert result.termination == TerminationReason.cancelled()
    assert not mark.exists()
    assert not room.executor.cancel("r")
    assert not await room.executor.cancel_and_wait_by_thread("t")


@pytest.mark.parametrize("how", ["cancel", "task"])
async def test_what_is_cancelled_while_it_starts_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The cancel comes in the moment in which the process is there and nobody watches it yet."""
    from postroom.executors.processes import process_runner

    room = Room(tmp_path, script(DEAF + HANG), limits=QUICK)
    loop, pids, plain = asyncio.get_running_loop(), [], process_runner.started

    def started(launch, launcher, **fields):  # type: ignore[no-untyped-def]
        process = plain(launch, launcher, **fields)
        pids.append(process.pid)
        act = run.cancel if how == "task" else lambda: room.executor.cancel("t")
        asyncio.run_coroutine_threadsafe(asyncio.to_thread(lambda: None), loop).result()
        loop.call_soon_threadsafe(act)
        return process

    monkeypatch.setattr(process_runner, "started", started)
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait((run,))
    assert run.cancelled() or run.result().termination == TerminationReason.cancelled()
    assert [pid for pid in pids if lives(pid)] == []
    assert len(pids) == 1


async def test_a_cancel_at_the_end_comes_too_late(tmp_path: Path) -> None:
    """The program has exited; a child of it is being ended. Its answer stands, and the wait is not cut short."""
    text = DEAF + FORKING + "tell('child', leave(lambda: None)); tell('pid', os.getpid())"
    clock = ManualClock()
    room = Room(tmp_path, script(text), timer=clock, clock=clock)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.executor.run(await room.activation(), room.sink))
        child = await room.sink.number("child")
        active = room.executor._runs.on_thread("t")
        while not active.stop.is_ending:
            await asyncio.sleep(0)
        assert not room.executor.cancel("t")
        while clock.sleeping < 2:
            await asyncio.sleep(0)
        assert lives(child)
        clock.advance(timedelta(seconds=5))
    assert run.result().termination == TerminationReason.natural_end()
    assert not lives(child)


async def test_however_often_it_is_cancelled_it_returns_when_nothing_is_left(tmp_path: Path) -> None:
    clock = ManualClock()
    room = Room(tmp_path, script(DEAF + READY + HANG), timer=clock, clock=clock)
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pid = await room.sink.number("pid")
    limits = clock.sleeping
    for _ in range(3):
        run.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
    while clock.sleeping == limits:
        await asyncio.sleep(0)
    assert not run.done()
    assert lives(pid)
    clock.advance(timedelta(seconds=5))
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not lives(pid)


async def test_a_thread_runs_once_and_one_that_is_being_ended_is_awaited(tmp_path: Path) -> None:
    room = Room(tmp_path, script(DEAF + READY + HANG), limits=QUICK)
    first = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pid = await room.sink.number("pid")
    with pytest.raises(ThreadAlreadyRunning):
        await room.run(run="another")
    first.cancel()
    await asyncio.sleep(0)
    room.runners.runner = script("tell(os.path.exists('/proc/' + sys.argv[1]))", str(pid))
    again = Sink()
    assert (await room.executor.run(await room.activation(run="r2"), again)).response == "False\n"
    assert first.cancelled()


async def test_a_program_that_stops_its_shim_is_ended_with_its_run(tmp_path: Path) -> None:
    """The next run has another launcher: the end of the first launcher continued the shim.

    A shell stops its shim before the shim can run again after the start of the program.
    """
    text = "kill -STOP $PPID; trap '' TERM; echo pid $$; while :; do sleep 3600; done"
    limits = replace(QUICK, kill_wait=QUICK.grace)
    room = Room(tmp_path, Runner(argv=("/bin/sh", "-c", text), cwd="/"), limits=limits)
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    shim = parent_of(await room.sink.number("pid"))
    assert room.executor.cancel("r")
    assert (await run).termination == TerminationReason.cancelled()
    await is_gone(shim)
    room.runners.runner = script("tell('again')")
    assert await room.run() == "again\n"


async def test_what_could_not_be_ended_is_named_and_not_begun_again_beside_it(tmp_path: Path) -> None:
    """Its shim is suspended, as if a process waited for a disk that does not answer."""
    clock = ManualClock()
    hanging = script(DEAF + READY + HANG, timeout=timedelta(minutes=1))
    room = Room(tmp_path, hanging, timer=clock, clock=clock)

    async def ended(run: "asyncio.Future[AgentRunResult]") -> None:
        async with asyncio.timeout(PATIENCE):
            while not run.done():
                clock.advance(timedelta(seconds=10))
                await a_moment()

    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pid = await room.sink.number("pid")
    shim = parent_of(pid)
    stand_still(shim)
    try:
        await ended(run)
        with pytest.raises(CommandNotEnded, match=rf"\[{pid}\]") as failed:
            await run
        assert failed.value.value == [pid]
        again = asyncio.ensure_future(room.executor.run(await room.activation(), Sink()))
        await ended(again)
        with pytest.raises(CommandNotEnded, match="earlier execution"):
            await again
    finally:
        go_on(shim)
    await is_gone(shim)
    room.runners.runner = script("tell('again')")
    assert await room.run() == "again\n"


async def test_without_a_descriptor_left_a_program_is_ended(tmp_path: Path) -> None:
    text = DEAF + FORKING + "tell('child', leave(lambda: None)); tell('pid', os.getpid())\n" + HANG
    room = Room(tmp_path, script(text), limits=QUICK)
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    child, pid = await room.sink.number("child"), await room.sink.number("pid")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        assert room.executor.cancel("t")
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait((run,))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in held:
            os.close(one)
    assert run.result().termination == TerminationReason.cancelled()
    assert not lives(pid)
    assert not lives(child)
    shutil.rmtree(room.folder, ignore_errors=True)  # without a descriptor it could not be removed


async def test_the_first_process_of_a_container_inherits_no_process_of_a_run(tmp_path: Path) -> None:
    set_child_subreaper, libc = 36, ctypes.CDLL(None)
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        text = "stat = open(f'/proc/{os.getppid()}/stat').read(); tell('launcher', stat.rpartition(')')[2].split()[1])"
        room = Room(tmp_path, script(FORKING + "tell('child', leave(lambda: None))\n" + text))
        words = (await room.run()).split()
        assert not lives(int(words[1]))
        assert zombies() == []
        await room.executor.close()
        await asyncio.to_thread(os.waitpid, int(words[3]), 0)
    finally:
        libc.prctl(set_child_subreaper, 0, 0, 0, 0)


@pytest.mark.parametrize("how", ["cancel", "exit"])
async def test_where_the_system_gives_orphans_to_nobody_the_group_of_a_program_is_ended(
    tmp_path: Path, how: str
) -> None:
    """As on macOS. A process that left the group escapes there, which the documentation says."""
    text = DEAF + FORKING + "tell('same', leave(lambda: None, setsid=False))\n" + READY
    room = Room(tmp_path, script(text + (HANG if how == "cancel" else "")), limits=QUICK)
    room.executor.process_runner = ProcessRunner(
        room.folder, environment=SERVER, limits=QUICK, platform="darwin"
    )
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.executor.run(await room.activation(), room.sink))
        pids = [await room.sink.number(name) for name in ("same", "pid")]
        assert how == "exit" or room.executor.cancel("t")
    assert not any(map(lives, pids))
    assert (run.result().response == "") is (how == "cancel")


async def test_a_program_whose_shim_is_killed_ends_and_is_begun_again_later(tmp_path: Path) -> None:
    room = Room(tmp_path, script(DEAF + READY + HANG))
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pid = await room.sink.number("pid")
    os.kill(parent_of(pid), signal.SIGKILL)
    with pytest.raises(CommandKilled, match="SIGKILL") as failed:
        await run
    assert failed.value.retryable
    await is_gone(pid)


async def test_without_the_launcher_programs_go_on_and_others_are_started(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    room = Room(tmp_path, script(READY + "open(sys.argv[1]).read(); tell('done')", str(gate)))
    run = asyncio.ensure_future(room.executor.run(await room.activation(), room.sink))
    pid = await room.sink.number("pid")
    launcher = parent_of(parent_of(pid))
    os.kill(launcher, signal.SIGKILL)
    await is_gone(launcher)
    room.runners.runner = script("tell('started')")
    assert await room.run(thread="another", run="another") == "started\n"
    await asyncio.to_thread(gate.write_text, "go")
    assert (await run).response.endswith("done\n")


@pytest.mark.parametrize("moment", ["handed over", "being handed over"])
async def test_a_launcher_that_is_killed_while_it_starts_a_program_fails_the_run_for_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    room = Room(tmp_path, script("tell('started')"))

    def lost(ends: object) -> None:
        """Lose what is handed over, as a launcher does that is killed before it forks."""
        if moment == "being handed over":
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    with monkeypatch.context() as killed:
        killed.setattr(room.executor.process_runner.launcher, "hand_over", lost)
        with pytest.raises(CommandBusy, match="could not be started at the moment"):
            await room.run()
    assert await room.run(thread="another", run="another") == "started\n"
