"""The schedules of the library, which enqueue runs repeatedly; all processes enqueue each tick once."""

from collections.abc import Callable
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from postroom.contracts.activation import DeliveryOptions, RunActivation, RunHints
from postroom.contracts.clock import Duration
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus
from postroom.contracts.schedules import Missed, Overlap, Schedule
from postroom.dispatch.mailbox import Mailbox as Queue
from postroom.dispatch.submission import refuse_bad_delivery, validate_run_inputs
from postroom.embedded.handle import RunHandle
from postroom.embedded.items import Item, build_message, plain, refuse_other_id
from postroom.schedules.firing import Firing, Schedules, Target, new_schedule
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import Transaction

RUN: Final = "run"
"""The kind under which the library's schedules are stored."""


class _Submission(msgspec.Struct, frozen=True):
    """The work that a schedule enqueues at each tick."""

    thread: str
    content: Json
    agent: str | None = None
    tenant: str = ""
    limit_key: str = ""
    priority: int = 128
    attempts: int | None = None
    interruptions: int | None = None

    def request(self, run_id: str) -> RunActivation:
        made = RunActivation.new(self.thread, [build_message(self.content, id=run_id)], agent_id=self.agent)
        delivery = DeliveryOptions(
            priority=self.priority,
            max_attempts=self.attempts,
            max_interruptions=self.interruptions,
            tenant=self.tenant,
            limit_key=self.limit_key,
        )
        return replace(made, delivery=delivery, hints=RunHints(run_id=run_id))


class RunTarget(Target):
    """Enqueues runs for schedules."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def submit(self, firing: Firing) -> str:
        """Enqueue the run of a tick, and return the run id."""
        submission = msgspec.convert(firing.schedule.payload, _Submission)
        await self._queue.submit_background(submission.request(firing.key), first=firing.joined(firing.key))
        return firing.key

    def is_open(self, tx: Transaction, made: str) -> bool:
        """Return whether the run of an earlier tick has not ended yet."""
        run = tx.runs.threads.load_run(made)
        return run is not None and run.status is not RunStatus.DONE


class RunSchedules:
    """The schedules of a mailbox, available as `mailbox.schedules`."""

    def __init__(self, queue: Queue, stores: RunStores, handle: Callable[[str, str], RunHandle]) -> None:
        """Create the schedules of a mailbox.

        `handle` creates a handle from a thread id and a run id.
        """
        self.kept = Schedules(stores.store, {RUN: RunTarget(queue)})
        self._handle = handle

    async def add(  # noqa: PLR0913 - the options, by name
        self,
        name: str,
        thread: str,
        content: object,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str | ZoneInfo = "UTC",
        missed: Missed | str = Missed.ONCE,
        overlap: Overlap | str = Overlap.QUEUE,
        jitter: Duration = 0,
        agent: str | None = None,
        tenant: str = "",
        limit_key: str = "",
        priority: int = 128,
        attempts: int | None = None,
        interruptions: int | None = None,
        replaces: bool = False,
    ) -> Schedule:
        """Enqueue `content` on a thread repeatedly.

        The schedule is durable when the call returns.

        `cron` is an expression of five fields in the time zone `zone`. `every` is the interval between ticks.
        `missed` decides about ticks while no process was running: `skip` them, enqueue `once`, or enqueue
        `all` (the last 100). `overlap` decides about a tick while the previous run is open: `skip` the tick,
        or `queue` another run. `jitter` is the maximum random delay of each tick. A repeated call has no
        effect. With `replaces`, an existing schedule with the name is replaced.

        Raises:
            InvalidSchedule, InvalidArgument, InvalidSubmission: The schedule cannot be stored, or its work
                cannot be enqueued.
            DuplicateRecord: Another schedule has this name, and `replaces` is False.
        """
        _text(name)
        Item(
            thread,
            "",
            agent=agent,
            tenant=tenant,
            limit_key=limit_key,
            priority=priority,
            attempts=attempts,
            interruptions=interruptions,
        ).request(str)
        submission = _Submission(
            thread=thread,
            content=msgspec.json.decode(msgspec.json.encode(plain(content, "the enqueued content"))),
            agent=agent,
            tenant=tenant,
            limit_key=limit_key,
            priority=priority,
            attempts=attempts,
            interruptions=interruptions,
        )
        # Reject work that could not be enqueued when a tick is due.
        request = submission.request("schedule")
        refuse_bad_delivery(request)
        validate_run_inputs(request.thread_id, request.messages, allow_empty=False, new_id=lambda: "")
        payload = msgspec.to_builtins(submission)
        schedule = new_schedule(
            RUN,
            name,
            payload,
            cron=cron,
            every=every,
            zone=zone,
            missed=missed,
            overlap=overlap,
            jitter=jitter,
        )
        return await self.kept.add(schedule, replaces=replaces)

    async def list(self) -> list[Schedule]:
        """Return all schedules, ordered by name."""
        schedules: list[Schedule] = []
        while page := await self.kept.listed(RUN, after=schedules[-1].name if schedules else ""):
            schedules += page
        return schedules

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule until `resume` is called.

        Raises:
            UnknownSchedule, InvalidArgument: No schedule has this name, or it is not text.
        """
        return await self.kept.pause(RUN, _text(name))

    async def resume(self, name: str) -> Schedule:
        """Resume a paused schedule with the next tick.

        Ticks during the pause are skipped.

        Raises:
            UnknownSchedule, InvalidArgument: No schedule has this name, or it is not text.
        """
        return await self.kept.resume(RUN, _text(name))

    async def trigger(self, name: str) -> RunHandle:
        """Enqueue one run of a schedule now, even if the schedule is paused, and return the run's handle.

        Raises:
            UnknownSchedule, InvalidArgument: No schedule has this name, or it is not text.
        """
        schedule = await self.kept.named(RUN, _text(name))
        return self._handle(str(schedule.payload["thread"]), await self.kept.trigger(RUN, name))

    async def remove(self, name: str) -> bool:
        """Remove a schedule; return False if no schedule has the name.

        Enqueued runs continue.
        """
        return await self.kept.remove(RUN, _text(name))


def _text(name: str) -> str:
    refuse_other_id("the name of a schedule", name)
    return name
