"""Ends the processes of a run: SIGTERM, SIGKILL after the grace, and another look until none is left.

look ─▶ ask to end ─▶ all ended? ─▶ look again ─▶ none: done
             └─ grace over ─▶ kill ─▶ look again … ─▶ none: done, or these could not be ended
"""

import asyncio
import os
import signal
from contextlib import ExitStack
from dataclasses import replace

import psutil

from postroom.concurrency import Tasks
from postroom.contracts.clock import Timer, milliseconds
from postroom.executors.processes.limits import CommandLimits
from postroom.executors.processes.machine import KILL, Machine, Seen, Wanted
from postroom.log import get_logger

_LOG = get_logger(__name__)
POLL_MS = 50
"""The interval between looks where the system does not report an end."""


async def end_all(
    machine: Machine, wanted: Wanted, limits: CommandLimits, timer: Timer
) -> tuple[tuple[Seen, ...], tuple[Seen, ...]]:
    """End every wanted process; return those that were found and those that are still alive."""
    found: dict[psutil.Process, Seen] = {}
    left: tuple[Seen, ...] = ()
    for wish, patience in (
        (signal.SIGTERM, milliseconds(limits.grace)),
        (KILL, milliseconds(limits.kill_wait)),
    ):
        tasks = Tasks("end of a run")
        try:
            alarm = tasks.start(timer.sleep(patience), name=f"patience after {wish.name}")
            left = await _Round(machine, wanted, wish, timer, found).end(tasks, alarm)
        finally:
            await tasks.close()
        if not left:
            break
    await asyncio.to_thread(machine.reap, tuple(found.values()))
    return tuple(found.values()), left


class _Round:
    """Sends one signal to the wanted processes until none is left or the time is over."""

    def __init__(
        self,
        machine: Machine,
        wanted: Wanted,
        wish: signal.Signals,
        timer: Timer,
        found: dict[psutil.Process, Seen],
    ) -> None:
        self._machine = machine
        self._wanted = wanted
        self._wish = wish
        self._timer = timer
        self._found = found
        self._asked: set[psutil.Process] = set()

    async def end(self, tasks: Tasks, alarm: "asyncio.Task[None]") -> tuple[Seen, ...]:
        """Return the processes that are left."""
        is_signalled = False  # a look may take longer than the patience: the signal is sent all the same
        while True:
            left = await self._look()
            if left == () or (is_signalled and alarm.done()):
                return self._known() if left is None else left
            with ExitStack() as opened:
                told = await asyncio.to_thread(self._sent, left, opened)
                is_signalled = True
                wait = self._timer.sleep(POLL_MS) if told is None else _all_ended(told, opened)
                ended = tasks.start(wait, name="their end")
                await asyncio.wait((alarm, ended), return_when=asyncio.FIRST_COMPLETED)

    async def _look(self) -> tuple[Seen, ...] | None:
        """Return the wanted processes; None when the system refuses a look, as without a free descriptor."""
        wanted = replace(self._wanted, known=frozenset(self._found))
        try:
            left = await asyncio.to_thread(self._machine.find, wanted)
        except OSError as error:
            _LOG.warning("command.processes_not_seen", reason=str(error))
            return None
        self._found.update({one.process: one for one in left})
        return left

    def _known(self) -> tuple[Seen, ...]:
        """Return what may be left when no look is possible: all that was seen before."""
        return tuple(self._found.values()) or (Seen(pid=self._wanted.leader or 0),)

    def _sent(self, left: tuple[Seen, ...] | None, opened: ExitStack) -> list[int] | None:
        """Signal each; return the descriptors that report their ends, None when one has none.

        When no look is possible, the group is signalled: that takes no descriptor.
        """
        if left is None:
            if self._wanted.leader is not None:
                self._machine.kill_group(self._wanted.leader, self._wish)
            return None
        new = [one for one in left if one.process not in self._asked or self._wish is KILL]
        self._asked.update(one.process for one in new)
        return _sent(self._machine, new, self._wish, opened)


def _sent(
    machine: Machine, processes: list[Seen], wish: signal.Signals, opened: ExitStack
) -> list[int] | None:
    """Signal each; return the descriptors that report their ends, None when one has none."""
    told: list[int] = []
    is_whole = bool(processes)
    for one in processes:
        try:
            descriptor = machine.send(one, wish)
        except ProcessLookupError:
            continue
        except OSError as error:
            _LOG.warning("command.not_signalled", pid=one.pid, reason=str(error))
            descriptor = None
        if descriptor is None:
            is_whole = False
        else:
            opened.callback(os.close, descriptor)
            told.append(descriptor)
    return told if is_whole else None


async def _all_ended(descriptors: list[int], opened: ExitStack) -> None:
    """Return when every process has ended."""
    loop = asyncio.get_running_loop()
    ends = [told_by(loop, descriptor, opened) for descriptor in descriptors]
    for end in ends:
        await end.wait()


def told_by(loop: asyncio.AbstractEventLoop, descriptor: int, opened: ExitStack) -> asyncio.Event:
    """Return an event that is set when a descriptor can be read, until the stack is closed."""
    event = asyncio.Event()

    def told() -> None:
        loop.remove_reader(descriptor)
        event.set()

    loop.add_reader(descriptor, told)
    opened.callback(loop.remove_reader, descriptor)
    return event
