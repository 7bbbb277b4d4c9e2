"""Submission of due schedules: each tick once over all workers, despite clocks, crashes and failures."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dispatch import conftest as rooms
from dispatch_room import Counting, Deaf, done
from postroom.contracts.errors import (
    AgentNotFound,
    DuplicateRecord,
    InvalidSchedule,
    UnknownSchedule,
)
from postroom.contracts.schedules import Schedule
from postroom.dispatch.config import MailboxConfig
from postroom.embedded.schedules import RUN, RunSchedules, RunTarget
from postroom.schedules.firing import AT_ONCE, Schedules
from postroom.schedules.ticks import MAX_MISSED
from postroom.testing import ManualClock

room = rooms.room
run_place, prepared_stores = rooms.run_place, rooms.prepared_stores
run_stores, both_engines = rooms.run_stores, rooms.both_engines
HOUR = timedelta(hours=1)
NO_WORK = MailboxConfig(max_concurrent_runs=0)


class Worker:
    """The schedules of one process over a room, and what they have enqueued."""

    def __init__(self, room: Any, executor: Any = None, name: str = "one", **config: Any) -> None:
        self.stores, self.clock = room.stores, room.clock
        settings = MailboxConfig(**config) if config else NO_WORK
        queue = room.mailbox(executor or Counting(), consumer_id=name, config=settings)
        self.queue = queue
        self.schedules = RunSchedules(queue, room.stores, lambda thread, run: (thread, run))
        self.kept = self.schedules.kept

    async def add(self, name: str = "nightly", **given: Any) -> Schedule:
        asked: dict[str, Any] = {"thread": "t", "content": "go"} | given
        if "cron" not in asked:
            asked.setdefault("every", HOUR)
        return await self.schedules.add(name, **asked)

    async def found(self, name: str = "nightly") -> Schedule:
        return await self.kept.named(RUN, name)

    async def submitted(self, thread: str = "t") -> list[str]:
        messages = await self.stores.threads.load_messages(thread) or ()
        return [one.text() for one in messages if one.role == "user"]

    async def all_due(self) -> None:
        while await self.kept.submit_due():
            pass


@both_engines
async def test_a_tick_is_submitted_when_it_is_due_and_once(room):
    worker = Worker(room)
    made = await worker.add(content="hello")
    assert made.next_at == made.tick_at == room.clock.now() + 3_600_000
    room.clock.advance(HOUR - timedelta(milliseconds=1))
    assert await worker.kept.submit_due() == 0
    room.clock.advance(timedelta(milliseconds=1))
    assert await worker.kept.submit_due() == 1
    assert await worker.kept.submit_due() == 0
    assert await worker.submitted() == ["hello"]
    found = await worker.found()
    assert (found.submitted, found.last_at, found.tick_at) == (1, room.clock.now(), made.tick_at + 3_600_000)
    assert (await room.stores.threads.load_run(found.last_id)).thread_id == "t"


@both_engines
async def test_two_workers_at_once_submit_each_tick_once(room):
    workers = [Worker(room, name=name) for name in ("one", "two", "three")]
    for number in range(AT_ONCE + 3):
        await workers[0].add(f"s{number}", thread=f"t{number}")
    for _ in range(2):
        room.clock.advance(HOUR)
        await asyncio.gather(*(worker.all_due() for worker in workers))
    counts = Counter([len(await workers[0].submitted(f"t{number}")) for number in range(AT_ONCE + 3)])
    assert counts == {2: AT_ONCE + 3}


@pytest.mark.parametrize("back", [timedelta(minutes=90), 3 * HOUR, timedelta(days=400)])
async def test_an_interval_goes_on_when_the_clock_is_set_back(room, back):
    worker, other = Worker(room), Worker(room, name="two")
    await worker.add()
    await other.all_due()
    room.clock.advance(HOUR)
    await worker.all_due()
    assert await worker.submitted() == ["go"]
    room.clock.advance(-back)
    counts = []
    for _ in range(6):
        await worker.all_due()
        await other.all_due()
        counts.append(len(await worker.submitted()))
        room.clock.advance(timedelta(minutes=30))
    assert counts == [1, 1, 2, 2, 3, 3]


async def test_a_clock_that_was_set_back_while_nothing_ran_keeps_no_interval_silent(room):
    worker = Worker(room)
    await worker.add()
    await worker.add("paused", thread="u")
    room.clock.advance(HOUR)
    await worker.all_due()
    await worker.schedules.pause("paused")
    room.clock.advance(-10 * HOUR)
    heir = Worker(room, name="two")
    await heir.all_due()
    assert (await heir.found()).next_at == room.clock.now() + 3_600_000
    assert (await heir.schedules.resume("paused")).next_at == room.clock.now() + 3_600_000
    await heir.add(content="new", replaces=True)
    assert (await heir.found()).next_at == room.clock.now() + 3_600_000


@pytest.mark.parametrize("rhythm", [{"every": HOUR}, {"cron": "* * * * *"}])
async def test_a_server_whose_clock_is_a_moment_behind_moves_no_schedule(room, caplog, rhythm):
    worker = Worker(room)
    made = await worker.add(**rhythm)
    room.clock.set(made.next_at)
    await worker.all_due()
    after = await worker.found()
    room.clock.advance(-timedelta(milliseconds=26))
    await Worker(room, name="two").all_due()
    assert await worker.found() == after
    assert "clock_set_back" not in caplog.text


async def test_a_schedule_that_is_added_during_the_first_look_is_not_moved(room, caplog, monkeypatch):
    worker = Worker(room)
    listed = worker.kept.listed

    async def later(*args: Any, **options: Any) -> list[Schedule]:
        if not options:
            room.clock.advance(timedelta(seconds=5))
            await worker.add()
        return await listed(*args, **options)

    monkeypatch.setattr(worker.kept, "listed", later)
    await worker.all_due()
    assert (await worker.found()).next_at == room.clock.now() + 3_600_000
    assert "clock_set_back" not in caplog.text


async def test_a_fixed_time_is_not_repeated_when_the_clock_is_set_back_by_an_hour(room):
    worker = Worker(room)
    made = await worker.add(cron="30 9 * * *")
    room.clock.set(made.next_at)
    await worker.all_due()
    after = await worker.found()
    room.clock.advance(-HOUR)
    for _ in range(3):
        await worker.all_due()
        room.clock.advance(timedelta(minutes=30))
    assert await worker.found() == after
    assert after.tick_at == made.tick_at + 24 * 3_600_000


async def test_a_fixed_time_comes_again_when_the_clock_was_days_ahead(room):
    worker = Worker(room)
    made = await worker.add(cron="30 9 * * *")
    room.clock.set(made.next_at)
    await worker.all_due()
    room.clock.advance(timedelta(days=-3))
    await worker.all_due()
    assert (await worker.found()).tick_at == made.tick_at - 2 * 24 * 3_600_000


async def test_a_line_for_each_hour_goes_on_when_the_clock_is_set_back(room):
    worker = Worker(room)
    made = await worker.add(cron="0 * * * *")
    for _ in range(2):
        room.clock.set((await worker.found()).next_at)
        await worker.all_due()
    room.clock.set(made.tick_at - 1)
    await worker.all_due()
    room.clock.advance(timedelta(milliseconds=1))
    await worker.all_due()
    assert await worker.submitted() == ["go", "go", "go"], "the same instant is submitted again"


@pytest.mark.parametrize(
    ("missed", "ahead", "count"),
    [("once", 30, 1), ("skip", 30, 0), ("all", 30, 30), ("all", 2 * MAX_MISSED, MAX_MISSED)],
)
async def test_a_clock_that_jumps_ahead_follows_the_policy_for_missed_ticks(room, missed, ahead, count):
    worker = Worker(room)
    made = await worker.add(missed=missed)
    room.clock.advance(ahead * HOUR + timedelta(minutes=10))
    await worker.all_due()
    found = await worker.found()
    assert len(await worker.submitted()) == found.submitted == count
    assert found.tick_at == made.tick_at + ahead * 3_600_000


class Hiring(Counting):
    """Has no agent of the name `gone`, until it is back."""

    is_back = False

    async def resolve(self, request, *, pinned):
        if request.agent_id == "gone" and not self.is_back:
            raise AgentNotFound("there is no agent 'gone'", value="gone")
        return await super().resolve(request, pinned=pinned)


async def test_a_failure_is_kept_and_stops_no_other(room):
    executor = Hiring()
    worker = Worker(room, executor)
    await worker.add("a", thread="a", agent="gone")
    await worker.add("b", thread="b")
    room.clock.advance(HOUR)
    await worker.all_due()
    failed = await worker.found("a")
    assert failed.last_error == "runtime error: there is no agent 'gone'"
    assert (failed.submitted, failed.tick_at) == (0, room.clock.now() + 3_600_000)
    assert await worker.submitted("b") == ["go"]
    executor.is_back = True
    room.clock.advance(HOUR)
    await worker.all_due()
    assert (await worker.found("a")).last_error is None
    assert await worker.submitted("a") == ["go"]


async def test_a_schedule_that_nobody_can_read_stops_no_other(room):
    worker = Worker(room)
    bad = await worker.add("bad")
    await worker.add("good")
    await room.stores.store.write(lambda tx: tx.schedules.put(replace(bad, payload={"thread": 7})))
    room.clock.advance(HOUR)
    await worker.all_due()
    assert await worker.submitted() == ["go"]
    found = await worker.found("bad")
    assert found.last_error.startswith("ValidationError inside postroom")
    assert found.tick_at == bad.tick_at + 3_600_000


class Patient(Deaf):
    """Works until it may end."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def execute(self, activation, sink):
        await self.may_end.wait()
        return done(activation)


@pytest.mark.parametrize(("overlap", "count"), [("queue", 3), ("skip", 1)])
async def test_a_tick_while_the_last_run_is_open_follows_the_policy_for_overlaps(room, overlap, count):
    executor = Patient()
    worker = Worker(room, executor, max_concurrent_runs=4, lease_ms=86_400_000)  # outlasts the jumps below
    await worker.add(overlap=overlap)
    for _ in range(3):
        room.clock.advance(HOUR)
        await worker.all_due()
    assert len(await worker.submitted()) == count
    assert (await worker.found()).passed_over == 3 - count
    executor.may_end.set()
    await worker.queue.settled()
    room.clock.advance(HOUR)
    await worker.all_due()
    assert len(await worker.submitted()) == count + 1


async def test_a_paused_schedule_submits_nothing_and_makes_nothing_up(room):
    worker = Worker(room)
    made = await worker.add(missed="all")
    assert (await worker.schedules.pause("nightly")).is_paused
    assert (await worker.schedules.pause("nightly")).is_paused
    room.clock.advance(5 * HOUR)
    await worker.all_due()
    assert await worker.submitted() == []
    assert (await worker.schedules.resume("nightly")).next_at == made.tick_at + 5 * 3_600_000
    assert (await worker.schedules.resume("nightly")).next_at == made.tick_at + 5 * 3_600_000
    room.clock.advance(HOUR)
    await worker.all_due()
    assert await worker.submitted() == ["go"]


async def test_a_trigger_submits_now_and_moves_no_tick(room):
    worker = Worker(room)
    made = await worker.add(overlap="skip")
    await worker.schedules.pause("nightly")
    runs = {(await worker.schedules.trigger("nightly"))[1] for _ in range(2)}
    assert len(runs) == 2
    found = await worker.found()
    assert (found.submitted, found.tick_at, found.next_at) == (2, made.tick_at, None)
    assert await worker.submitted() == ["go", "go"]


async def test_the_same_schedule_is_added_once_and_another_takes_its_place_only_when_asked(room):
    worker = Worker(room)
    made = await asyncio.gather(*(worker.add(content={"page": 1, "tags": ("a",)}) for _ in range(4)))
    assert len({one.schedule_id for one in made}) == 1
    room.clock.advance(HOUR)
    await worker.all_due()
    assert (await worker.add(content={"page": 1, "tags": ["a"]})).submitted == 1
    with pytest.raises(DuplicateRecord, match="a schedule named 'nightly' already exists"):
        await worker.add(every=2 * HOUR, content={"page": 1, "tags": ["a"]})
    assert (await worker.found()).every_ms == 3_600_000
    new = await worker.add(every=2 * HOUR, replaces=True)
    assert (new.schedule_id, new.submitted) == (made[0].schedule_id, 1)
    assert new.next_at == room.clock.now() + 2 * 3_600_000


async def test_names_are_listed_and_removed(room):
    worker = Worker(room)
    for name in ("b", "a", "c"):
        await worker.add(name)
    assert [one.name for one in await worker.schedules.list()] == ["a", "b", "c"]
    assert await worker.schedules.remove("b")
    assert not await worker.schedules.remove("b")
    room.clock.advance(HOUR)
    await worker.all_due()
    assert len(await worker.submitted()) == 2
    for change in (worker.schedules.pause, worker.schedules.resume, worker.schedules.trigger):
        with pytest.raises(UnknownSchedule, match="no schedule named 'b'"):
            await change("b")


async def test_what_cannot_be_kept_is_refused_before_anything_is_written(room):
    worker = Worker(room)
    for given, why in (
        ({"cron": "0 0 31 2 *"}, "not a valid cron expression"),
        ({"cron": "0 9 * * *", "zone": "Mars/Base"}, "unknown time zone"),
        ({"every": timedelta(0)}, "`every` must be from 1s to 3660d"),
        ({"every": timedelta(days=3661)}, "`every` must be from 1s to 3660d"),
        ({"missed": "some"}, "`missed` must be one of skip, once, all, not 'some'"),
        ({"overlap": "kill"}, "`overlap` must be one of queue, skip, not 'kill'"),
        ({"jitter": HOUR}, "`jitter` must be at least 0 and less than 1h"),
        ({"name": " "}, "must have 1 to 200 printable characters"),
        ({"name": "x" * 201}, "must have 1 to 200 printable characters"),
    ):
        with pytest.raises(InvalidSchedule, match=why):
            await worker.add(**given)
    assert await worker.schedules.list() == []


async def test_a_tick_waits_for_its_jitter(room):
    worker = Worker(room)
    made = await worker.add(jitter=timedelta(minutes=30))
    assert made.tick_at < made.next_at < made.tick_at + 1_800_001
    room.clock.set(made.next_at - 1)
    assert await worker.kept.submit_due() == 0
    room.clock.set(made.next_at)
    assert await worker.kept.submit_due() == 1
    assert (await worker.found()).last_id.endswith(f"-{made.tick_at}")


async def test_a_schedule_whose_zone_is_gone_is_paused_with_the_reason(room):
    worker = Worker(room)
    made = await worker.add(cron="0 9 * * *")
    await room.stores.store.write(lambda tx: tx.schedules.put(replace(made, zone="Gone/Zone")))
    room.clock.advance(24 * HOUR)
    await worker.all_due()
    found = await worker.found()
    assert found.is_paused
    assert "unknown time zone 'Gone/Zone'" in found.last_error


class Looks:
    """A store that counts who looks, and lets a listener wait by the clock of the test."""

    def __init__(self, store: Any, clock: ManualClock) -> None:
        self.store, self.clock, self.changes, self.looks, self.waits = store, clock, self, 0, []

    async def read(self, look: Any) -> Any:
        self.looks += 1
        return await self.store.read(look)

    def listen(self, topic: str) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    async def wait(self, at_most: timedelta) -> bool:
        self.waits.append(at_most)
        if len(self.waits) == 4:
            raise asyncio.CancelledError
        self.clock.advance(at_most)
        return False


async def test_a_worker_sleeps_until_the_first_is_due_however_many_there_are(room):
    worker = Worker(room)
    for number in range(30):
        await worker.add(f"s{number}", thread=f"t{number}", every=HOUR + timedelta(seconds=number))
    room.clock.advance(HOUR - timedelta(seconds=40))
    looking = Looks(room.stores.store, room.clock)
    with pytest.raises(asyncio.CancelledError):
        await Schedules(looking, {RUN: RunTarget(worker.queue)}).serve()
    seconds = [one.total_seconds() for one in looking.waits]
    assert seconds == [30, 10, 1, 1]
    assert looking.looks <= 12
