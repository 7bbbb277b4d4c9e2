"""Finds and ends what a dead server left running: by notes and markers, never by a pid alone.

A process is an orphan when it carries the server's name and an instance that nobody here runs, or when a note
names its pid together with the instant it was started at. What another server that lives has started is left
alone, but for a run that is about to be started here: that one has lost it.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from postroom.contracts.clock import Timer
from postroom.executors.processes.child_environment import DISPATCH, INSTANCE, RUN, SERVER
from postroom.executors.processes.ending import end_all
from postroom.executors.processes.limits import CommandLimits
from postroom.executors.processes.machine import Machine, Wanted
from postroom.executors.processes.records import Records
from postroom.log import get_logger

_LOG = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A program that outlived its server; `ended` and `left` are pids."""

    instance: str
    run_id: str
    dispatch_id: str
    ended: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    instance: str
    run_id: str
    dispatch_id: str
    leader: int | None = None


class Orphans:
    """Finds and ends them."""

    def __init__(
        self,
        records: Records,
        machine: Machine,
        server_name: str,
        *,
        limits: CommandLimits,
        timer: Timer,
    ) -> None:
        self._records = records
        self._machine = machine
        self._server_name = server_name
        self._limits = limits
        self._timer = timer

    async def end(
        self, running: Callable[[], Collection[str]], *, run_id: str | None = None
    ) -> tuple[Orphan, ...]:
        """End every orphan, or those of one run, all at once; `running` are the instances of this server."""
        found = await asyncio.to_thread(self._find, running, run_id)
        async with asyncio.TaskGroup() as group:
            ending = [group.create_task(self._end(one), name="orphan") for one in found]
        return tuple(one for task in ending if (one := task.result()) is not None)

    async def look(self, running: Callable[[], Collection[str]]) -> tuple[int, ...]:
        """Return the processes that are orphans, and end none."""
        found = await asyncio.to_thread(self._find, running, None)
        return await asyncio.to_thread(
            lambda: tuple(sorted({pid for one in found for pid in self._alive(one)}))
        )

    def _alive(self, one: _Found) -> tuple[int, ...]:
        return tuple(process.pid for process in self._machine.find(self._wanted(one)))

    def _wanted(self, one: _Found) -> Wanted:
        return Wanted(leader=one.leader, variables=((INSTANCE, one.instance),))

    def _find(self, running: Callable[[], Collection[str]], run_id: str | None) -> tuple[_Found, ...]:
        found: dict[str, _Found] = {}
        spared: set[str] = set()
        for record in self._records.all():
            is_another_run = run_id is not None and record.run_id != run_id
            is_anothers = run_id is None and record.is_owned_by_another(self._machine)
            if record.server_name != self._server_name or is_another_run or is_anothers:
                spared.add(record.instance)
                continue
            found[record.instance] = _Found(
                instance=record.instance,
                run_id=record.run_id,
                dispatch_id=record.dispatch_id,
                leader=record.leader(self._machine),
            )
        if run_id is None:  # a run that is about to begin has its note: it was written first
            self._add_marked(found, spared)
        mine = running()  # asked last: what was started meanwhile is not an orphan
        return tuple(one for one in found.values() if one.instance not in mine)

    def _add_marked(self, found: dict[str, _Found], spared: set[str]) -> None:
        """Add processes that have the server's marker but no note."""
        for variables in self._machine.marked(INSTANCE):
            instance = variables[INSTANCE]
            server_name = variables.get(SERVER)
            if server_name == self._server_name and instance not in spared:
                one = _Found(
                    instance=instance, run_id=variables.get(RUN, ""), dispatch_id=variables.get(DISPATCH, "")
                )
                found.setdefault(instance, one)

    async def _end(self, one: _Found) -> Orphan | None:
        seen, left = await end_all(self._machine, self._wanted(one), self._limits, self._timer)
        alive = {process.pid for process in left}
        orphan = Orphan(
            instance=one.instance,
            run_id=one.run_id,
            dispatch_id=one.dispatch_id,
            ended=tuple(process.pid for process in seen if process.pid not in alive),
            left=tuple(sorted(alive)),
        )
        if not alive:
            await asyncio.to_thread(self._records.remove, one.instance)
        if not seen:
            return None  # only its note was left
        _LOG.warning(
            "command.orphan", run_id=one.run_id, ended=len(orphan.ended), left=list(orphan.left) or None
        )
        return orphan
