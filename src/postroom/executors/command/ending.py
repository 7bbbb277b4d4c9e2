"""Ends what a run has started: asked first, killed after the grace, looked for again until none is left.

look ─▶ ask to end ─▶ all ended? ─▶ look again ─▶ none: done
             └─ grace over ─▶ kill ─▶ look again … ─▶ none: done, or these could not be ended
"""

import asyncio
import os
import signal
from contextlib import ExitStack
from dataclasses import replace

from postroom.concurrency import Tasks
from postroom.contracts.clock import Timer, milliseconds
from postroom.executors.command.limits import CommandLimits
from postroom.executors.command.processes import Machine, Seen, Wanted

POLL_MS = 50
"""After which is looked again where the system does not tell of an end."""


async def end_all(
    machine: Machine, wanted: Wanted, limits: CommandLimits, timer: Timer
) -> tuple[tuple[Seen, ...], tuple[Seen, ...]]:
    """End every process that is wanted; return those that were found and those that live on all the same."""
    found: dict[tuple[int, int], Seen] = {}
    left: tuple[Seen, ...] = ()
    for wish, patience in (
        (signal.SIGTERM, milliseconds(limits.grace)),
        (signal.SIGKILL, milliseconds(limits.kill_wait)),
    ):
        left = await _end_by(machine, wanted, wish, patience, timer, found)
        if not left:
            break
    return tuple(found.values()), left


async def _end_by(
    machine: Machine,
    wanted: Wanted,
    wish: signal.Signals,
    patience: int,
    timer: Timer,
    found: dict[tuple[int, int], Seen],
) -> tuple[Seen, ...]:
    tasks = Tasks("end of a run")
    asked: set[tuple[int, int]] = set()
    alarm = tasks.start(timer.sleep(patience), name=f"patience after {wish.name}")
    try:
        while left := await asyncio.to_thread(machine.find, replace(wanted, known=frozenset(found))):
            found.update({one.key: one for one in left})
            new = [one for one in left if one.key not in asked or wish is signal.SIGKILL]
            asked.update(one.key for one in new)
            with ExitStack() as opened:
                told = await asyncio.to_thread(_sent, machine, new, wish, opened)
                wait = _all_ended(told, opened) if told is not None else timer.sleep(POLL_MS)
                ended = tasks.start(wait, name="their end")
                await asyncio.wait((alarm, ended), return_when=asyncio.FIRST_COMPLETED)
            if alarm.done():
                return await asyncio.to_thread(machine.find, replace(wanted, known=frozenset(found)))
        return ()
    finally:
        await tasks.close()


def _sent(
    machine: Machine, processes: list[Seen], wish: signal.Signals, opened: ExitStack
) -> list[int] | None:
    """Signal each; return what tells of their ends, None where that is not told of all."""
    told: list[int] = []
    is_whole = bool(processes)
    for one in processes:
        try:
            descriptor = machine.send(one, wish)
        except ProcessLookupError:
            continue
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
    """Return what is set when a descriptor can be read, until the stack is closed."""
    event = asyncio.Event()

    def told() -> None:
        loop.remove_reader(descriptor)
        event.set()

    loop.add_reader(descriptor, told)
    opened.callback(loop.remove_reader, descriptor)
    return event
